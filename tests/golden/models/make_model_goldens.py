"""Makes the tiny Hugging Face folders beside this script: random weights and transformers' float32 logits.

Usage: python make_model_goldens.py [folder, by default the script's own]
"""

import json
import pathlib
import shutil
import sys

import safetensors.torch
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common

SCRIPT = "tests/golden/models/make_model_goldens.py"
LENGTHS = (1, 7, 48)


def gpt2(**changes) -> GPT2LMHeadModel:
    base = dict(
        vocab_size=320, n_positions=64, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(GPT2Config(**(base | changes)))


def llama(theta: float = 10000.0, **changes) -> LlamaForCausalLM:
    base = dict(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(LlamaConfig(**(base | changes)))


CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def small(family: str, rope: dict | None = None, **changes) -> PreTrainedModel:
    """bfloat16 weights; a context of 64 that scaled rotary positions stretch from 16."""
    base = dict(
        vocab_size=293,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0} | (rope or {}),
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    config, model = CLASSES[family]
    return model(config(**(base | changes))).bfloat16()


LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {  # a ramp over pairs 1 to 5 of heads of 24
    "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "beta_fast": 3.0,
    "rope_theta": 100.0,
}  # fmt: skip


def use_rope_scaling(folder: pathlib.Path) -> None:
    """The spelling of transformers 4, where rope_theta stood beside rope_scaling and rope_type was once type."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    if scaling["rope_type"] != "llama3":  # which came after the change of name
        scaling["type"] = scaling.pop("rope_type")
    config["rope_scaling"] = scaling
    config["transformers_version"] = "4.42.0"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def use_hub_names(folder: pathlib.Path) -> None:
    """The layout of the published GPT-2 files: no `transformer.` prefix, and the causal masks as tensors."""
    path = folder / "model.safetensors"
    tensors = {k.removeprefix("transformer."): v for k, v in safetensors.torch.load_file(path).items()}
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(1, 1, 64, 64))
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def use_version_4_layout(folder: pathlib.Path) -> None:
    """As published Llama folders: rope_theta, rope_scaling, torch_dtype in config.json; merges as strings."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None
    config["torch_dtype"] = config.pop("dtype")
    del config["head_dim"]
    config["transformers_version"] = "4.42.0"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    tokenizer["model"]["merges"] = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=2), "utf-8")
    assert Tokenizer.from_file(str(path)).get_vocab_size() == 320


# name: (model, pre-tokenizer, tokens in its tokenizer, save_pretrained options, change after saving)
CASES = {
    "gpt2-tied": (lambda: gpt2(), "gpt-2", 320, {}, None),
    "gpt2-untied": (
        lambda: gpt2(
            tie_word_embeddings=False, n_inner=88, activation_function="gelu", layer_norm_epsilon=1e-4
        ),
        "gpt-2", 320, {}, None,
    ),
    "gpt2-hub-names": (lambda: gpt2(n_head=3), "gpt-2", 320, {}, use_hub_names),
    "llama-mha-tied": (lambda: llama(tie_word_embeddings=True), "llama-bpe", 320, {}, None),
    "llama-gqa-untied": (lambda: llama(num_key_value_heads=2), "smollm", 320, {}, None),
    "llama-gqa-sharded": (
        lambda: llama(num_key_value_heads=2), "smollm", 320, {"max_shard_size": "150KB"}, None
    ),
    "llama-head-dim": (
        lambda: llama(num_key_value_heads=2, head_dim=24, tie_word_embeddings=True, theta=100000.0),
        "smollm", 320, {}, None,
    ),
    "llama-bias-padded-vocab": (
        lambda: llama(attention_bias=True, mlp_bias=True, num_key_value_heads=1), "smollm", 293, {}, None
    ),
    "llama-v4-config": (
        lambda: llama(num_key_value_heads=2, theta=50000.0, rms_norm_eps=1e-6), "llama-bpe", 320, {},
        use_version_4_layout,
    ),
    "llama-f16": (lambda: llama(num_key_value_heads=2).half(), "smollm", 320, {}, None),
    "llama-bf16": (
        lambda: llama(num_key_value_heads=2, tie_word_embeddings=True).bfloat16(), "smollm", 320, {}, None
    ),
    "llama-odd": (
        lambda: llama(
            vocab_size=293, hidden_size=50, intermediate_size=88, num_hidden_layers=3, num_attention_heads=5,
            num_key_value_heads=1, theta=500000.0,
        ),
        "smollm", 293, {}, None,
    ),
    "mistral-window": (lambda: small("mistral", sliding_window=7), "llama-bpe", 293, {}, None),
    "mistral-no-window": (
        lambda: small("mistral", sliding_window=None, tie_word_embeddings=False, head_dim=12), "llama-bpe", 293,
        {}, None,
    ),
    "qwen2-biases": (lambda: small("qwen2", tie_word_embeddings=False), "llama-bpe", 293, {}, None),
    "qwen2-window-layers": (
        lambda: small(
            "qwen2", num_hidden_layers=3, use_sliding_window=True, sliding_window=9, max_window_layers=1
        ),
        "llama-bpe", 293, {}, None,
    ),
    "qwen3": (lambda: small("qwen3", head_dim=16), "llama-bpe", 293, {}, None),
    "qwen3-window-layers": (
        lambda: small(
            "qwen3", head_dim=20, use_sliding_window=True, sliding_window=5, attention_bias=True,
            layer_types=["full_attention", "sliding_attention"],
        ),
        "llama-bpe", 293, {}, None,
    ),
    "llama-linear": (
        lambda: small("llama", {"rope_type": "linear", "factor": 4.0}), "llama-bpe", 293, {}, None
    ),
    "llama-llama3": (lambda: small("llama", LLAMA3, head_dim=16), "llama-bpe", 293, {}, None),
    "llama-yarn": (lambda: small("llama", YARN, head_dim=24), "llama-bpe", 293, {}, None),
    "llama-linear-v4": (
        lambda: small("llama", {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}), "llama-bpe", 293,
        {}, use_rope_scaling,
    ),
    "llama-llama3-v4": (
        lambda: small("llama", LLAMA3 | {"rope_theta": 500000.0}, head_dim=16), "llama-bpe", 293, {},
        use_rope_scaling,
    ),
    "qwen2-yarn-v4": (
        lambda: small("qwen2", YARN | {"attention_factor": 1.3, "beta_slow": 0.5}, num_attention_heads=2),
        "llama-bpe", 293, {}, use_rope_scaling,
    ),
    "qwen3-yarn-mscale": (
        lambda: small("qwen3", YARN | {"mscale": 1.5, "mscale_all_dim": 0.5}, head_dim=24), "llama-bpe", 293,
        {}, None,
    ),
}  # fmt: skip


def make(name: str, folder: pathlib.Path, seed: int) -> None:
    build, kind, tokens, options, change = CASES[name]
    shutil.rmtree(folder, ignore_errors=True)
    model = build()
    common.randomise(model, seed)
    model.save_pretrained(folder, **options)
    tokenizer = common.tiny_tokenizer(kind, tokens)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    if change:
        change(folder)

    loaded, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info[k] for k in ("missing_keys", "mismatched_keys")), info
    for p, q in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(p.float(), q)
    ids = common.sequences(loaded.config.vocab_size, LENGTHS, seed)
    common.save_golden(
        folder / "golden", SCRIPT, ids, [common.logits_of(loaded, a) for a in ids],
        text=common.SAMPLE_TEXT, text_ids=tokenizer.encode(common.SAMPLE_TEXT).ids,
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent).resolve()
    for number, case in enumerate(CASES):
        make(case, out / case, seed=1000 + number)
        print(case, sum(f.stat().st_size for f in (out / case).iterdir()) // 1024, "KiB")
