"""Shared by the scripts that make goldens: versions, a tiny tokenizer, random weights, logits, checks."""

import importlib.metadata
import math
import pathlib

import numpy as np
import tokenizers
import torch
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SAMPLE_TEXT = "The keeper's lamp, built in 1874: 212 steps!\n\n  naïve café — 東京 🙂\tend  "


def made_by(script: str) -> str:
    names = ("torch", "transformers", "gguf", "safetensors", "tokenizers", "numpy")
    return f"{script}: " + ", ".join(f"{n} {importlib.metadata.version(n)}" for n in names)


def pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """`kind` is the GGUF name of a pre-tokenizer: gpt-2, smollm or llama-bpe."""
    if kind == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "smollm":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    if kind == "llama-bpe":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    raise ValueError(kind)


def tiny_tokenizer(kind: str, vocabulary_size: int) -> tokenizers.Tokenizer:
    """Byte-level BPE over all 256 bytes, three special tokens first, trained on tiny_corpus.txt."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(kind)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([(HERE / "tiny_corpus.txt").read_text("utf-8")], trainer)
    assert tokenizer.get_vocab_size() == vocabulary_size
    return tokenizer


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Weights that make a wrong reader visible: no bias 0, no norm 1, peaked attention, spread logits."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if p.dim() == 1:
            is_norm_weight = name.endswith("weight")
            middle = 1.5 if "q_norm" in name or "k_norm" in name else 1  # without which attention is uniform
            p.copy_(middle + 0.2 * noise if is_norm_weight else 0.2 * noise)
        elif "wte" in name or "wpe" in name or "embed_tokens" in name or "lm_head" in name:
            p.copy_(2.0 / math.sqrt(p.shape[1]) * noise)
        else:
            fan_in = p.shape[0] if "c_" in name else p.shape[1]  # GPT-2 stores [in, out]
            peaked = any(s in name for s in ("q_proj", "k_proj", "c_attn"))
            p.copy_((1.8 if peaked else 1.0) / math.sqrt(fan_in) * noise)


def sequences(vocabulary_size: int, lengths: tuple[int, ...], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocabulary_size, n).astype(np.uint32) for n in lengths]


@torch.no_grad()
def logits_of(model: torch.nn.Module, ids: np.ndarray) -> np.ndarray:
    """[T, V] float32 of a float32 model; checks that float64 agrees and that the model isn't degenerate."""
    batch = torch.from_numpy(ids.astype(np.int64))[None]
    model.eval()
    assert model.config._attn_implementation == "eager"
    assert model.dtype == torch.float32
    out = model(batch, output_attentions=True, use_cache=False)
    logits = out.logits[0].numpy()
    assert logits.dtype == np.float32
    assert logits.std(axis=-1).min() > 0.7, logits.std(axis=-1).min()
    if len(ids) >= 32:
        late = torch.stack([a[0, :, 16:] for a in out.attentions])  # [layer, head, query, key]
        entropy = -(late * late.clamp_min(1e-30).log()).sum(-1).mean(dim=(1, 2))
        uniform = np.mean([math.log(t + 1) for t in range(16, len(ids))])
        assert entropy.min() > 0.1 * uniform, (entropy, uniform)
        assert entropy.max() < 0.9 * uniform, (entropy, uniform)
    model.double()
    difference = np.abs(model(batch, use_cache=False).logits[0].numpy() - logits).max()
    model.float()
    assert difference < 3e-5, difference
    return logits


def save_golden(
    path: pathlib.Path, script: str, ids: list[np.ndarray], logits: list[np.ndarray], **more
) -> None:
    """PATH.npz for Python and, with the same numbers, PATH.bin for C++ (layout: see README.md)."""
    arrays = {f"ids_{i}": a for i, a in enumerate(ids)} | {f"logits_{i}": a for i, a in enumerate(logits)}
    np.savez_compressed(path.with_suffix(".npz"), made_by=made_by(script), **arrays, **more)
    with path.with_suffix(".bin").open("wb") as out:
        np.array([len(ids)], "<u4").tofile(out)
        for a, rows in zip(ids, logits, strict=True):
            np.array(rows.shape, "<u4").tofile(out)
            a.astype("<u4").tofile(out)
            rows.astype("<f4").tofile(out)
