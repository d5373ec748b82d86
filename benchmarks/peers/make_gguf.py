"""Runs in torch's environment: writes GGUF files. usage: make_gguf.py gpt2 FOLDER OUT.gguf | llama-1b OUT.gguf

gpt2: the folder's float32 weights. llama-1b: random f16 weights in the shape of a Llama model of 1.1 billion parameters.
Both without a tokenizer."""

import sys

import gguf
import numpy as np


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gpt2(folder: str, out: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config, state = model.config, model.state_dict()
    writer = gguf.GGUFWriter(out, "gpt2")
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)

    def put(name: str, source: str) -> None:
        values = state[f"transformer.{source}"].numpy()
        transposed = source.endswith("weight") and ".c_" in source  # kept as [inputs, outputs]
        writer.add_tensor(name, np.ascontiguousarray(values.T if transposed else values))

    put("token_embd.weight", "wte.weight")
    put("position_embd.weight", "wpe.weight")
    names = {"attn_norm": "ln_1", "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj"}
    names |= {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
    for kind in ("weight", "bias"):
        put(f"output_norm.{kind}", f"ln_f.{kind}")
        for layer in range(config.n_layer):
            for name, source in names.items():
                put(f"blk.{layer}.{name}.{kind}", f"h.{layer}.{source}.{kind}")
    _write(writer)


def llama_1b(out: str) -> None:
    layers, width, heads, kv_heads, hidden, vocabulary = 22, 2048, 32, 4, 5632, 32000
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(vocabulary)
    writer.add_context_length(2048)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    random = np.random.default_rng(0)

    def put(name: str, outputs: int, inputs: int) -> None:
        values = random.standard_normal((outputs, inputs), dtype=np.float32) * np.float32(0.02)
        writer.add_tensor(f"{name}.weight", values.astype(np.float16))

    put("token_embd", vocabulary, width)
    put("output", vocabulary, width)
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    key_width = width // heads * kv_heads
    for layer in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(width, dtype=np.float32))
        put(f"blk.{layer}.attn_q", width, width)
        put(f"blk.{layer}.attn_k", key_width, width)
        put(f"blk.{layer}.attn_v", key_width, width)
        put(f"blk.{layer}.attn_output", width, width)
        put(f"blk.{layer}.ffn_gate", hidden, width)
        put(f"blk.{layer}.ffn_up", hidden, width)
        put(f"blk.{layer}.ffn_down", width, hidden)
    _write(writer)


{"gpt2": gpt2, "llama-1b": llama_1b}[sys.argv[1]](*sys.argv[2:])
