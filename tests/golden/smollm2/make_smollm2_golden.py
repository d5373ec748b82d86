"""Makes golden.npz beside this script: what transformers' float32 model says about SmolLM2-135M-Instruct.

Usage: RIFTCO_SMOLLM2_GGUF=/path/SmolLM2-135M-Instruct.Q4_1.gguf python make_smollm2_golden.py [folder]
"""

import hashlib
import os
import pathlib
import sys

import gguf
import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models
from transformers.utils import logging

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common
import llama_gguf

SCRIPT = "tests/golden/smollm2/make_smollm2_golden.py"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TOP = 64
TOKENS = 512
CHAT = "<|im_start|>user\nWhat is the capital of Italy?<|im_end|>\n<|im_start|>assistant\n"
# prompt, new tokens, whether special tokens in the prompt are parsed
PROMPTS = [
    ("The capital of France is", 16, False),
    ("Once upon a time", 32, False),
    ("def fibonacci(n):", 32, False),
    (CHAT, 32, True),
]


def tokenizer_of(path: pathlib.Path) -> tokenizers.Tokenizer:
    """The file's own vocabulary and merges under the published SmolLM2 pre-tokenizer."""
    reader = gguf.GGUFReader(path)
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    kinds = reader.get_field("tokenizer.ggml.token_type").contents()
    merges = [tuple(m.split(" ")) for m in reader.get_field("tokenizer.ggml.merges").contents()]
    pre = reader.get_field("tokenizer.ggml.pre").contents()
    tokenizer = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = common.pre_tokenizer(pre)
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(t, special=True) for t, k in zip(tokens, kinds, strict=True) if k == 3]
    tokenizer.add_special_tokens(control)
    return tokenizer


def encode(tokenizer: tokenizers.Tokenizer, text: str, parse_special: bool) -> np.ndarray:
    tokenizer.encode_special_tokens = not parse_special
    return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.uint32)


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: np.ndarray, count: int, eos: int) -> tuple[np.ndarray, float]:
    """New ids (an end of sequence included) and the smallest lead of a chosen token over the next."""
    ids, lead = prompt.astype(np.int64), np.inf
    for _ in range(count):
        top = model(torch.from_numpy(ids)[None], use_cache=False).logits[0, -1].topk(2)
        lead = min(lead, float(top.values[0] - top.values[1]))
        ids = np.append(ids, int(top.indices[0]))
        if ids[-1] == eos:
            break
    return ids[len(prompt) :].astype(np.uint32), lead


def main(path: pathlib.Path, folder: pathlib.Path) -> None:
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256, f"{path} is not the expected file"
    model = llama_gguf.load(path)
    llama_gguf.check_against_transformers(path, model)
    tokenizer = tokenizer_of(path)
    text = (folder / "text.txt").read_text("utf-8")
    text_ids = encode(tokenizer, text, False)
    assert len(text_ids) >= TOKENS, len(text_ids)
    assert tokenizer.decode(text_ids) == text
    ids = text_ids[:TOKENS]

    with torch.no_grad():
        logits = model(torch.from_numpy(ids.astype(np.int64))[None], use_cache=False).logits[0]
    log_p = logits.double().log_softmax(-1)
    top = log_p.topk(TOP, dim=-1)
    rest = torch.ones(TOKENS, dtype=torch.double) - top.values.exp().sum(-1)
    predicted = log_p[torch.arange(TOKENS - 1), torch.from_numpy(ids[1:].astype(np.int64))]
    print(f"perplexity {float((-predicted.mean()).exp()):.3f}, mass of the rest {float(rest.mean()):.4f}")
    arrays = {
        "text_ids": text_ids,
        "ids": ids,
        "top_ids": top.indices.numpy().astype(np.uint16),  # sorted, the most likely first
        "top_log_probabilities": top.values.numpy().astype(np.float32),
        "rest": rest.clamp_min(0).numpy().astype(np.float32),
        "argmax": top.indices[:, 0].numpy().astype(np.uint16),
        "lead": (top.values[:, 0] - top.values[:, 1]).numpy().astype(np.float32),
    }
    eos = tokenizer.token_to_id("<|im_end|>")
    for i, (prompt, count, parse_special) in enumerate(PROMPTS):
        prompt_ids = encode(tokenizer, prompt, parse_special)
        new, lead = greedy(model, prompt_ids, count, eos)
        continuation = tokenizer.decode(new, skip_special_tokens=True)
        print(f"{prompt!r} -> {continuation!r} (smallest lead {lead:.3f})")
        arrays |= {f"prompt_{i}": prompt, f"prompt_ids_{i}": prompt_ids, f"parse_special_{i}": parse_special}
        arrays |= {
            f"greedy_ids_{i}": new,
            f"greedy_text_{i}": continuation,
            f"greedy_lead_{i}": np.float32(lead),
        }
    np.savez_compressed(folder / "golden.npz", made_by=common.made_by(SCRIPT), sha256=SHA256, **arrays)


if __name__ == "__main__":
    logging.disable_progress_bar()
    if "RIFTCO_SMOLLM2_GGUF" not in os.environ:
        sys.exit("set RIFTCO_SMOLLM2_GGUF to SmolLM2-135M-Instruct.Q4_1.gguf")
    main(
        pathlib.Path(os.environ["RIFTCO_SMOLLM2_GGUF"]).resolve(),
        pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent).resolve(),
    )
