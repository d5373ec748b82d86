"""Adapters of two tiny models of ../models, saved by peft, and the logits that peft computes with them."""

import json
import pathlib
import sys

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common

FOLDER = pathlib.Path(__file__).resolve().parent
SCRIPT = "tests/golden/lora/make_lora_goldens.py"
LENGTH = 10
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "llama": ("llama-gqa-untied", LoraConfig(r=4, lora_alpha=6, target_modules=[*LLAMA, "lm_head"])),
    "llama-rslora": (
        "llama-gqa-untied",
        LoraConfig(r=3, lora_alpha=2, target_modules=["k_proj", "down_proj"], use_rslora=True),
    ),
    "gpt2": ("gpt2-tied", LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"])),
}


def randomise(model: torch.nn.Module, seed: int) -> None:
    """peft begins with B zero, which would hide a wrong reader."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if ".lora_" in name:
            p.data.copy_(torch.randn(p.shape, generator=generator) * (0.3 if ".lora_A." in name else 0.1))


def sort_modules(path: pathlib.Path) -> None:
    """peft writes a set in any order."""
    config = json.loads(path.read_text())
    config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2))


if __name__ == "__main__":
    torch.set_num_threads(1)
    arrays = {}
    for seed, (name, (base, config)) in enumerate(CASES.items()):
        config.task_type = "CAUSAL_LM"
        model = AutoModelForCausalLM.from_pretrained(
            FOLDER.parent / "models" / base, dtype=torch.float32, attn_implementation="eager"
        )
        [ids] = common.sequences(model.config.vocab_size, (LENGTH,), seed)
        batch = torch.from_numpy(ids.astype(np.int64))[None]
        with torch.no_grad():
            plain = model(batch).logits[0].numpy()
            peft = get_peft_model(model, config).eval()
            randomise(peft, seed)
            logits = peft(batch).logits[0].numpy()
            assert np.abs(logits - plain).max() > 0.1, "the adapter changes too little"
            peft.peft_config["default"].base_model_name_or_path = base
            peft.save_pretrained(FOLDER / name, save_embedding_layers=False)
            (FOLDER / name / "README.md").unlink()
            sort_modules(FOLDER / name / "adapter_config.json")
            merged = peft.merge_and_unload()(batch).logits[0].numpy()
            assert np.abs(logits - merged).max() < 3e-5, "merging changes it"
        arrays |= {f"{name}.ids": ids, f"{name}.logits": logits}
    np.savez_compressed(FOLDER / "golden.npz", made_by=common.made_by(SCRIPT), **arrays)
