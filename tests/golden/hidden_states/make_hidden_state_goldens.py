"""Final hidden states of a few of the tiny models of ../models: transformers' last_hidden_state, float32."""

import pathlib
import sys

import numpy as np
import torch
from transformers import AutoModel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common

FOLDER = pathlib.Path(__file__).resolve().parent
SCRIPT = "tests/golden/hidden_states/make_hidden_state_goldens.py"
LENGTH = 23

if __name__ == "__main__":
    torch.set_num_threads(1)
    arrays = {}
    for seed, name in enumerate(("gpt2-untied", "llama-gqa-untied", "llama-odd")):
        model = AutoModel.from_pretrained(
            FOLDER.parent / "models" / name, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        [ids] = common.sequences(model.config.vocab_size, (LENGTH,), seed)
        with torch.no_grad():
            states = model(torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0]
        arrays[f"{name}.ids"], arrays[f"{name}.states"] = ids, states.numpy()
    np.savez_compressed(FOLDER / "golden.npz", made_by=common.made_by(SCRIPT), **arrays)
