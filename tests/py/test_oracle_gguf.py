"""GGUF files: logits against transformers' float32 model of the dequantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from oracle_support import (
    GOLDEN,
    assert_stepping_is_bitwise,
    assert_tokenizer_agrees,
    log_softmax,
    read_golden,
    sequences,
)
from riftco_transformer.artifacts import ModelBundle, Runtime

FILES = sorted((GOLDEN / "gguf").glob("*.gguf"))


def is_quantised(path: Path) -> bool:
    return "-q" in path.name


def test_every_type_has_goldens_tied_and_untied() -> None:
    for kind in ("f32", "f16", "bf16", "q8_0", "q4_1"):
        for head in ("tied", "untied"):
            assert [path for path in FILES if path.name.startswith(f"llama-{kind}-{head}")], (kind, head)
    for kind in ("q4_0", "q5_0", "q5_1", "q4_k"):  # the last one with some q5_k and q6_k
        assert [path for path in FILES if path.name.startswith(f"llama-{kind}-")], kind


def test_every_architecture_and_feature_has_goldens() -> None:
    names = {path.stem for path in FILES}
    assert {"gpt2-f16-tied", "qwen2-f16-untied", "qwen3-f16-tied", "qwen3-bf16-window"} <= names
    assert {"llama-f16-linear", "llama-f16-yarn", "llama-f16-llama3", "llama-f16-window"} <= names


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def runtime(path: Path) -> Iterator[Runtime]:
    with ModelBundle.load(path).instantiate("cpu") as runtime:
        yield runtime


def test_logits_equal_transformers(path: Path, runtime: Runtime) -> None:
    divergences = []
    for ids, expected in sequences(read_golden(path.with_suffix(".npz"))):
        logits = runtime.model.logits(ids)
        assert logits.shape == expected.shape
        if is_quantised(path):
            # Activations are rounded to 8 bits, one scale per 32: about 0.09 rms at a logit deviation of 2.
            assert np.sqrt(np.mean((logits - expected) ** 2)) < 0.15
            log_p, log_q = log_softmax(expected), log_softmax(logits)
            divergences.extend((np.exp(log_p) * (log_p - log_q)).sum(axis=-1))
        else:
            np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    if is_quantised(path):
        assert np.mean(divergences) < 0.01


def test_stepping_equals_the_full_sequence(path: Path, runtime: Runtime) -> None:
    for ids, _ in sequences(read_golden(path.with_suffix(".npz"))):
        assert_stepping_is_bitwise(runtime, ids)


def test_tokenizer_equals_tokenizers(path: Path, runtime: Runtime) -> None:
    assert_tokenizer_agrees(runtime, read_golden(path.with_suffix(".npz")))


def test_file_says_whether_prompts_begin_with_bos(path: Path, runtime: Runtime) -> None:
    assert runtime.tokenizer.bos_token == 1
    assert runtime.tokenizer.eos_token == 2
    # Absent in -minimal; its pre-tokenizer is smollm, whose models do not add it.
    assert runtime.tokenizer.adds_bos == (path.stem == "llama-f16-tied-align64")
    assert (runtime.tokenizer.encode("a", add_special=True)[0] == 1) == runtime.tokenizer.adds_bos
