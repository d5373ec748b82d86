"""Runs in torch's environment: writes Hugging Face folders in float32. usage: make_folders.py smollm2 MODEL.gguf OUT | gpt2 OUT"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel


def smollm2(gguf: str, out: str) -> None:
    folder, name = str(Path(gguf).parent), Path(gguf).name
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    plain = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(config), dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())  # a model loaded from GGUF refuses to be saved
    plain.tie_weights()
    plain.save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)


def gpt2(out: str) -> None:
    """Random weights in the shape of GPT-2 124M, with a vocabulary of made-up words: speed needs no more."""
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config()).save_pretrained(out)
    end = "<|endoftext|>"
    words = {f"t{i}": i for i in range(50256)} | {end: 50256}
    Path(out, "vocab.json").write_text(json.dumps(words))
    Path(out, "merges.txt").write_text("#version: 0.2\n")
    special = {"unk_token": end, "bos_token": end, "eos_token": end}
    Path(out, "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **special}))


{"smollm2": smollm2, "gpt2": gpt2}[sys.argv[1]](*sys.argv[2:])
