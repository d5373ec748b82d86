"""Makes the tiny GGUF files beside this script, their float32 logits, and blocks with their values.

Usage: python make_gguf_goldens.py [folder, by default the script's own]
"""

import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.utils import logging

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import common
import llama_gguf

SCRIPT = "tests/golden/gguf/make_gguf_goldens.py"
LENGTHS = (1, 5, 32)
Type = gguf.GGMLQuantizationType
FILE_TYPES = {
    Type.F32: 0, Type.F16: 1, Type.Q4_0: 2, Type.Q4_1: 3, Type.Q8_0: 7, Type.Q5_0: 8, Type.Q5_1: 9, Type.Q4_K: 15,
    Type.BF16: 32,
}  # fmt: skip
CONFIGS = {
    "gpt2": GPT2Config, "llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config,
}  # fmt: skip


class Case:
    """One file: matrices in `kind` (the embedding in `embedding`), norms f32."""

    def __init__(
        self, kind, tied, pre="smollm", embedding=None, minimal=False, alignment=None, family="llama", kinds=None,
        **config,
    ):  # fmt: skip
        self.kind, self.tied, self.pre, self.minimal, self.alignment = kind, tied, pre, minimal, alignment
        self.embedding = kind if embedding is None else embedding
        self.family, self.kinds = family, kinds or {}
        theta = config.pop("theta", 10000.0)
        base = dict(
            vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": theta}, tie_word_embeddings=tied,
            bos_token_id=1, eos_token_id=2,
        )  # fmt: skip
        if family == "gpt2":
            base = dict(
                vocab_size=320, n_embd=32, n_layer=2, n_head=4, n_positions=64, layer_norm_epsilon=1e-4,
                tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2,
            )  # fmt: skip
        self.config = CONFIGS[family](**(base | config))

    def kind_of(self, name: str) -> Type:
        """The type of a tensor by its GGUF name."""
        if "_norm" in name or name.endswith(".bias") or name.startswith("position"):
            return Type.F32
        if name.startswith("token_embd"):
            return self.embedding
        return next((kind for part, kind in self.kinds.items() if part in name), self.kind)


SMALL = dict(hidden_size=32, intermediate_size=48, vocab_size=293)


def scaled(rope_type: str, **more) -> dict:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 100.0} | more}


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
    "llama-q4_0-tied": Case(Type.Q4_0, True),
    "llama-q5_0-untied": Case(Type.Q5_0, False),
    "llama-q5_1-tied": Case(Type.Q5_1, True),
    # As files called Q4_K_M: some tensors have more bits.
    "llama-q4_k-tied": Case(
        Type.Q4_K, True, embedding=Type.Q6_K, hidden_size=256, intermediate_size=256, num_hidden_layers=1,
        vocab_size=293, kinds={"ffn_down": Type.Q6_K, "attn_v": Type.Q6_K, "ffn_up": Type.Q5_K},
    ),
    "llama-f16-linear": Case(Type.F16, True, **SMALL, **scaled("linear", factor=4.0)),
    "llama-f16-yarn": Case(
        Type.F16, True, head_dim=24, **SMALL,
        **scaled("yarn", factor=2.0, original_max_position_embeddings=32, beta_fast=3.0),
    ),
    # In GGUF these frequencies are a tensor, rope_freqs.weight.
    "llama-f16-llama3": Case(
        Type.F16, True, head_dim=16, **SMALL,
        **scaled("llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
    ),
    "llama-f16-window": Case(Type.F16, True, family="mistral", sliding_window=7, **SMALL),
    "qwen2-f16-untied": Case(Type.F16, False, family="qwen2", **SMALL),
    "qwen2-q4_0-tied": Case(Type.Q4_0, True, family="qwen2"),
    "qwen3-f16-tied": Case(Type.F16, True, family="qwen3", head_dim=16, **SMALL),
    "qwen3-bf16-window": Case(
        Type.BF16, True, family="qwen3", head_dim=20, use_sliding_window=True, sliding_window=5,
        max_window_layers=1, **SMALL,
    ),
    "gpt2-f16-tied": Case(Type.F16, True, family="gpt2"),
    "gpt2-q5_1-untied": Case(Type.Q5_1, False, family="gpt2"),
}  # fmt: skip


def write_config(writer: gguf.GGUFWriter, case: Case) -> None:
    c = case.config
    if case.alignment:
        writer.add_custom_alignment(case.alignment)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(4 * c.n_embd if case.family == "gpt2" else c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    if case.family == "gpt2":
        writer.add_layer_norm_eps(c.layer_norm_epsilon)
    else:
        writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    if case.minimal:
        return
    writer.add_name(f"tiny random {case.family}")
    if case.family != "gpt2":
        write_rotary(writer, case)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(FILE_TYPES[case.kind])
    writer.add_quantization_version(2)


def write_rotary(writer: gguf.GGUFWriter, case: Case) -> None:
    c = case.config
    head_dim = getattr(c, "head_dim", c.hidden_size // c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_rope_freq_base(c.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    if head_dim * c.num_attention_heads != c.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = c.rope_parameters
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    if getattr(c, "sliding_window", None):
        writer.add_sliding_window(c.sliding_window)
        if case.family != "mistral":
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in c.layer_types])


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


def nearest(x: np.ndarray, scale: np.ndarray, low: int, high: int) -> np.ndarray:
    """x / scale as whole numbers, 0 where the scale is."""
    return np.clip(np.rint(x / np.where(scale == 0, 1, scale)), low, high).astype(
        np.uint8 if low == 0 else np.int8
    )


def pack_six(s: np.ndarray, m: np.ndarray) -> np.ndarray:
    """8 scales and 8 minima of 6 bits each as the 12 bytes of Q4_K and Q5_K."""
    low, high = s[:, :4] | (s[:, 4:] >> 4) << 6, m[:, :4] | (m[:, 4:] >> 4) << 6
    return np.concatenate([low, high, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], axis=1).astype(np.uint8)


def quantise_k(w: np.ndarray, kind: Type) -> np.ndarray:
    """Q4_K, Q5_K or Q6_K, which the gguf package only reads: scales from the extremes of each part."""
    x = w.astype(np.float32).reshape(-1, 256)
    halves = lambda v: v.astype("<f2").view(np.uint8).reshape(-1, 2)  # noqa: E731
    if kind == Type.Q6_K:
        parts = x.reshape(-1, 16, 16)
        extreme = np.abs(parts).max(axis=2) / 31
        d = (extreme.max(axis=1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
        s = nearest(extreme, d, -127, 127)
        q = (nearest(parts, (d * s)[..., None], -32, 31).astype(np.int16) + 32).astype(np.uint8)
        q = q.reshape(-1, 2, 4, 32)  # half, quarter, element
        low = np.concatenate([q[:, :, :2] & 15 | (q[:, :, 2:] & 15) << 4], axis=2).reshape(-1, 128)
        high = sum((q[:, :, i] >> 4) << 2 * i for i in range(4)).reshape(-1, 64)
        blocks = np.concatenate([low, high.astype(np.uint8), s.view(np.uint8), halves(d)], axis=1)
    else:
        most = 15 if kind == Type.Q4_K else 31
        parts = x.reshape(-1, 8, 32)
        minimum = np.maximum(-parts.min(axis=2), 0)
        step = (parts.max(axis=2) + minimum) / most
        d = (step.max(axis=1, keepdims=True) / 63).astype(np.float16).astype(np.float32)
        n = (minimum.max(axis=1, keepdims=True) / 63).astype(np.float16).astype(np.float32)
        s, m = nearest(step, d, 0, 63), nearest(minimum, n, 0, 63)
        q = nearest(parts + (n * m)[..., None], (d * s)[..., None], 0, most)
        nibbles = q.reshape(-1, 4, 2, 32) & 15
        nibbles = (nibbles[:, :, 0] | nibbles[:, :, 1] << 4).reshape(-1, 128)
        fifth = sum((q[:, i] >> 4) << i for i in range(8)).astype(np.uint8)
        head = [halves(d), halves(n), pack_six(s, m)]
        blocks = np.concatenate([*head, *([fifth] if kind == Type.Q5_K else []), nibbles], axis=1)
    return np.ascontiguousarray(blocks).reshape(w.shape[0], -1)


def write_tensors(writer: gguf.GGUFWriter, case: Case, model: PreTrainedModel) -> None:
    for name, p in model.named_parameters():
        w = p.detach().numpy()
        if heads := llama_gguf.rotary_heads(name, case.config):
            w = llama_gguf.interleave(w, heads)
        if llama_gguf.is_transposed(name, case.config):
            w = np.ascontiguousarray(w.T)
        name = llama_gguf.gguf_name(name)
        kind = case.kind_of(name)
        is_k = kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K)
        writer.add_tensor(name, quantise_k(w, kind) if is_k else gguf.quantize(w, kind), raw_dtype=kind)
    rope = getattr(case.config, "rope_parameters", None)
    if rope and rope["rope_type"] == "llama3":
        plain, _ = ROPE_INIT_FUNCTIONS["linear"](CONFIGS["llama"](**{
            **case.config.to_dict(), "rope_parameters": scaled("linear", factor=1.0)["rope_parameters"]
        }), "cpu")  # fmt: skip
        stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](case.config, "cpu")
        writer.add_tensor("rope_freqs.weight", (plain / stretched).numpy())


def make(name: str, folder: pathlib.Path, seed: int) -> None:
    case = CASES[name]
    path = folder / f"{name}.gguf"
    model = AutoModelForCausalLM.from_config(case.config)
    common.randomise(model, seed)
    tokenizer = common.tiny_tokenizer(case.pre, case.config.vocab_size)
    writer = gguf.GGUFWriter(path, "llama" if case.family == "mistral" else case.family)
    write_config(writer, case)
    write_tokenizer(writer, case, tokenizer)
    write_tensors(writer, case, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    loaded = llama_gguf.load(path, case.config)
    coarse = {Type.F32: 0, Type.Q4_0: 0.5, Type.Q4_1: 0.5, Type.Q5_0: 0.2, Type.Q5_1: 0.2, Type.Q4_K: 0.5}
    for p, q in zip(model.parameters(), loaded.parameters(), strict=True):
        assert (p - q).abs().max() <= coarse.get(case.kind, 0.05) * p.abs().max()
    rope = getattr(case.config, "rope_parameters", None)
    plain = rope is None or rope["rope_type"] == "default"
    # transformers 5.24 leaves q and k permuted when head_count_kv is absent, and reads neither scaling nor windows, nor
    # the head width of qwen3 and the context length of gpt2
    if not case.minimal and plain and case.family in ("llama", "qwen2"):
        llama_gguf.check_against_transformers(path, loaded)
    ids = common.sequences(case.config.vocab_size, LENGTHS, seed)
    common.save_golden(
        path, SCRIPT, ids, [common.logits_of(loaded, a) for a in ids],
        text=common.SAMPLE_TEXT, text_ids=tokenizer.encode(common.SAMPLE_TEXT).ids,
    )  # fmt: skip


def make_blocks(folder: pathlib.Path) -> None:
    """KIND.blocks.bin: raw blocks; KIND.values.bin: the float32 of each. Scales: edges, then random."""
    rng = np.random.default_rng(2000)
    # 0, smallest and largest subnormal, smallest normal, 1, 1 + epsilon, largest; each with both signs.
    positive = np.array([0x0000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x3C01, 0x7BFF], "<u2")
    edges = np.concatenate([positive, positive | 0x8000])
    random = rng.normal(0, 0.05, (256, 2)).astype("<f2").view("<u2")
    pairs = np.concatenate([np.stack(np.meshgrid(edges, edges), -1).reshape(-1, 2), random])
    single = np.concatenate([np.repeat(edges, 4), random[:, 0]])[:, None]
    few = np.concatenate([np.stack([edges, edges[::-1]], -1), np.stack([edges, edges], -1), random[:16]])
    for kind, scales, data_bytes in (
        (Type.Q4_1, pairs, 16),
        (Type.Q8_0, single, 32),
        (Type.Q4_0, single, 16),
        (Type.Q5_0, single, 20),
        (Type.Q5_1, pairs[::2], 20),
        (Type.Q4_K, few, 140),
        (Type.Q5_K, few, 172),
        (Type.Q6_K, few[:, :1], 208),
    ):
        data = rng.integers(0, 256, (len(scales), data_bytes), np.uint8)
        data[::16] = 0x80  # -128, the value without a positive twin; nibbles 0 and 8
        if kind not in (Type.Q4_1, Type.Q8_0):
            data[1::16] = 0xFF
        halves = np.ascontiguousarray(scales).view(np.uint8)
        blocks = np.concatenate([data, halves] if kind == Type.Q6_K else [halves, data], axis=1)
        values = gguf.dequantize(blocks, kind)
        assert values.dtype == np.float32
        assert np.isfinite(values).all()
        assert values.shape == (len(scales), gguf.GGML_QUANT_SIZES[kind][0])
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
