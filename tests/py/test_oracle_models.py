"""Hugging Face folders: logits against transformers' float32 logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from oracle_support import (
    GOLDEN,
    assert_stepping_is_bitwise,
    assert_tokenizer_agrees,
    read_golden,
    sequences,
)
from riftco_transformer.artifacts import ModelBundle, Runtime

FOLDERS = sorted(path.parent for path in (GOLDEN / "models").glob("*/golden.npz"))


def test_every_family_has_goldens() -> None:
    names = {folder.name for folder in FOLDERS}
    assert {"gpt2-tied", "gpt2-untied", "llama-mha-tied", "llama-gqa-untied", "llama-odd"} <= names
    assert {"mistral-window", "qwen2-biases", "qwen2-window-layers", "qwen3", "qwen3-window-layers"} <= names
    assert {"llama-linear", "llama-llama3", "llama-yarn"} <= names
    assert len(names) == 25


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def runtime(folder: Path) -> Iterator[Runtime]:
    with ModelBundle.load(folder).instantiate("cpu") as runtime:
        yield runtime


def test_logits_equal_transformers(folder: Path, runtime: Runtime) -> None:
    for ids, expected in sequences(read_golden(folder / "golden.npz")):
        logits = runtime.model.logits(ids)
        assert logits.dtype == np.float32
        assert logits.shape == expected.shape
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


def test_stepping_equals_the_full_sequence(folder: Path, runtime: Runtime) -> None:
    for ids, _ in sequences(read_golden(folder / "golden.npz")):
        assert_stepping_is_bitwise(runtime, ids)


def test_tokenizer_equals_tokenizers(folder: Path, runtime: Runtime) -> None:
    assert_tokenizer_agrees(runtime, read_golden(folder / "golden.npz"))
