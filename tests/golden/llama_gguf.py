"""GGUF of the architectures gpt2, llama, qwen2 and qwen3 <-> transformers, through the gguf package's quantisers and dequantisers."""

import pathlib
import re

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
TOP_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
}  # fmt: skip


def gguf_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{suffix}"
    layer, stem = re.fullmatch(r"(?:model\.layers|transformer\.h)\.(\d+)\.(.+)", stem).groups()
    return f"blk.{layer}.{LAYER_NAMES[stem]}.{suffix}"


def interleave(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head from half-split rotary order (0..h-1, h..2h-1) to GGUF's pairs (0, h, 1, h+1, ...)."""
    return w.reshape(heads, 2, -1, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def split_halves(w: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of interleave."""
    return w.reshape(heads, -1, 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def rotary_heads(name: str, config: PreTrainedConfig) -> int:
    """Heads of a q or k projection, whose rows llama permutes; 0 for every other tensor."""
    if config.model_type not in ("llama", "mistral"):
        return 0
    if "q_proj" in name:
        return config.num_attention_heads
    return config.num_key_value_heads if "k_proj" in name else 0


def is_transposed(name: str, config: PreTrainedConfig) -> bool:
    """GPT-2's matrices in layers are [inputs, outputs] in transformers."""
    return config.model_type == "gpt2" and ".c_" in name and name.endswith(".weight")


def config_of(reader: gguf.GGUFReader) -> LlamaConfig:
    def get(key: str, default=None):
        field = reader.get_field(key)
        return default if field is None else field.contents()

    heads = get("llama.attention.head_count")
    width = get("llama.embedding_length")
    names = {t.name for t in reader.tensors}
    return LlamaConfig(
        vocab_size=len(reader.get_field("tokenizer.ggml.tokens").data),
        hidden_size=width,
        intermediate_size=get("llama.feed_forward_length"),
        num_hidden_layers=get("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=get("llama.attention.head_count_kv", heads),
        head_dim=get("llama.attention.key_length", width // heads),
        max_position_embeddings=get("llama.context_length"),
        rms_norm_eps=get("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": get("llama.rope.freq_base", 10000.0)},
        tie_word_embeddings="output.weight" not in names,
        bos_token_id=get("tokenizer.ggml.bos_token_id"),
        eos_token_id=get("tokenizer.ggml.eos_token_id"),
    )


@torch.no_grad()
def load(path: pathlib.Path, config: PreTrainedConfig | None = None) -> PreTrainedModel:
    """The float32 model of the file's dequantised weights; a llama where no config is given."""
    reader = gguf.GGUFReader(path)
    tensors = {t.name: t for t in reader.tensors}
    config = config or config_of(reader)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    for name, p in model.named_parameters():
        tensor = tensors.pop(gguf_name(name))
        w = gguf.dequantize(tensor.data, tensor.tensor_type)
        if heads := rotary_heads(name, config):
            w = split_halves(w, heads)
        if is_transposed(name, config):
            w = w.T
        assert tuple(p.shape) == w.shape, (name, p.shape, w.shape)
        p.copy_(torch.from_numpy(w.copy()))
    assert set(tensors) <= {"rope_freqs.weight"}, tensors.keys()
    return model.eval()


def check_against_transformers(path: pathlib.Path, model: PreTrainedModel) -> None:
    """transformers' own GGUF loader must give the same weights and logits."""
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for (name, p), q in zip(model.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q), name
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, theirs(ids).logits)
