"""Makes the tiny GGUF llama files beside this script, their float32 logits, and blocks with their values.

Usage: python make_gguf_goldens.py [folder, by default the script's own]
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common
import llama_gguf

SCRIPT = "tests/golden/gguf/make_gguf_goldens.py"
LENGTHS = (1, 5, 32)
Type = gguf.GGMLQuantizationType
FILE_TYPES = {Type.F32: 0, Type.F16: 1, Type.Q4_1: 3, Type.Q8_0: 7, Type.BF16: 32}


class Case:
    """One file: matrices in `kind` (the embedding in `embedding`), norms f32."""

    def __init__(self, kind, tied, pre="smollm", embedding=None, minimal=False, alignment=None, **config):
        self.kind, self.tied, self.pre, self.minimal, self.alignment = kind, tied, pre, minimal, alignment
        self.embedding = kind if embedding is None else embedding
        theta = config.pop("theta", 10000.0)
        base = dict(
            vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": theta}, tie_word_embeddings=tied,
            bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        self.config = LlamaConfig(**(base | config))


CASES = {
    "llama-f32-tied": Case(Type.F32, True),
    # Only the keys that have no default: as many key/value heads as heads, rotary base 10000.
    "llama-f32-untied-minimal": Case(Type.F32, False, minimal=True, num_key_value_heads=4),
    "llama-f16-tied-align64": Case(Type.F16, True, pre="llama-bpe", alignment=64),
    "llama-f16-untied": Case(Type.F16, False, theta=100000.0),
    "llama-bf16-tied": Case(Type.BF16, True, pre="gpt-2"),
    "llama-bf16-untied": Case(Type.BF16, False, num_key_value_heads=1),
    "llama-q8_0-tied": Case(Type.Q8_0, True, theta=100000.0),
    "llama-q8_0-untied-head-dim": Case(Type.Q8_0, False, head_dim=24),
    "llama-q4_1-tied": Case(Type.Q4_1, True, embedding=Type.Q8_0, theta=100000.0),
    "llama-q4_1-untied-wide": Case(
        Type.Q4_1, False, hidden_size=128, intermediate_size=160, num_hidden_layers=3, num_key_value_heads=2
    ),
}


def write_config(writer: gguf.GGUFWriter, case: Case) -> None:
    c = case.config
    if case.alignment:
        writer.add_custom_alignment(case.alignment)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    if case.minimal:
        return
    writer.add_name("tiny random llama")
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(c.head_dim)
    if c.head_dim * c.num_attention_heads != c.hidden_size:
        writer.add_key_length(c.head_dim)
        writer.add_value_length(c.head_dim)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(FILE_TYPES[case.kind])
    writer.add_quantization_version(2)


def write_tokenizer(writer: gguf.GGUFWriter, case: Case, tokenizer) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = len(common.SPECIAL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(case.pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i < special else 1 for i in range(len(tokens))])  # control, normal
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if not case.minimal:
        writer.add_add_bos_token(case.pre == "llama-bpe")


def write_tensors(writer: gguf.GGUFWriter, case: Case, model: LlamaForCausalLM) -> None:
    for name, p in model.named_parameters():
        w = p.detach().numpy()
        if heads := llama_gguf.rotary_heads(name, case.config):
            w = llama_gguf.interleave(w, heads)
        kind = Type.F32 if w.ndim == 1 else case.embedding if "embed" in name else case.kind
        writer.add_tensor(llama_gguf.gguf_name(name), gguf.quantize(w, kind), raw_dtype=kind)


def make(name: str, folder: pathlib.Path, seed: int) -> None:
    case = CASES[name]
    path = folder / f"{name}.gguf"
    model = LlamaForCausalLM(case.config)
    common.randomise(model, seed)
    tokenizer = common.tiny_tokenizer(case.pre, case.config.vocab_size)
    writer = gguf.GGUFWriter(path, "llama")
    write_config(writer, case)
    write_tokenizer(writer, case, tokenizer)
    write_tensors(writer, case, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    loaded = llama_gguf.load(path)
    for p, q in zip(model.parameters(), loaded.parameters(), strict=True):
        assert (p - q).abs().max() <= {Type.F32: 0, Type.Q4_1: 0.5}.get(case.kind, 0.05) * p.abs().max()
    if not case.minimal:  # transformers 5.24 leaves q and k permuted when head_count_kv is absent
        llama_gguf.check_against_transformers(path, loaded)
    ids = common.sequences(case.config.vocab_size, LENGTHS, seed)
    common.save_golden(
        path, SCRIPT, ids, [common.logits_of(loaded, a) for a in ids],
        text=common.SAMPLE_TEXT, text_ids=tokenizer.encode(common.SAMPLE_TEXT).ids,
    )  # fmt: skip


def make_blocks(folder: pathlib.Path) -> None:
    """KIND.blocks.bin: raw blocks; KIND.values.bin: the 32 float32 of each. Scales: edges, then random."""
    rng = np.random.default_rng(2000)
    # 0, smallest and largest subnormal, smallest normal, 1, 1 + epsilon, largest; each with both signs.
    positive = np.array([0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x3C01, 0x7BFF], "<u2")
    edges = np.concatenate([positive, positive | 0x8000])
    random = rng.normal(0, 0.05, (256, 2)).astype("<f2").view("<u2")
    pairs = np.concatenate([np.stack(np.meshgrid(edges, edges), -1).reshape(-1, 2), random])
    for kind, scales, data_bytes in (
        (Type.Q4_1, pairs, 16),
        (Type.Q8_0, np.concatenate([np.repeat(edges, 4), random[:, 0]])[:, None], 32),
    ):
        data = rng.integers(0, 256, (len(scales), data_bytes), np.uint8)
        data[::16] = 0x80  # -128, the value without a positive twin; nibbles 0 and 8
        blocks = np.concatenate([np.ascontiguousarray(scales).view(np.uint8), data], axis=1)
        values = gguf.dequantize(blocks, kind)
        assert values.dtype == np.float32
        assert np.isfinite(values).all()
        assert values.shape == (len(scales), 32)
        blocks.tofile(folder / f"{kind.name.lower()}.blocks.bin")
        values.astype("<f4").tofile(folder / f"{kind.name.lower()}.values.bin")


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    out = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent).resolve()
    make_blocks(out)
    for number, case_name in enumerate(CASES):
        make(case_name, out, seed=3000 + number)
        print(case_name, (out / f"{case_name}.gguf").stat().st_size // 1024, "KiB")
