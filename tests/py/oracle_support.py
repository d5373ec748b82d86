"""Goldens made by other implementations (tests/golden/README.md) and how far from them an answer is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from riftco_transformer.artifacts import Runtime

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

Golden = dict[str, NDArray[Any]]


def read_golden(path: Path) -> Golden:
    """All arrays of an .npz file."""
    with np.load(path) as file:
        return dict(file)


def sequences(golden: Golden) -> list[tuple[list[int], NDArray[np.float32]]]:
    """The token ids and expected logits `[T, V]` of each sequence."""
    count = sum(name.startswith("ids_") for name in golden)
    assert count == 3
    return [(golden[f"ids_{i}"].tolist(), golden[f"logits_{i}"]) for i in range(count)]


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Log-probabilities over the last axis, in float64."""
    wide = np.asarray(logits, np.float64)
    shifted: NDArray[np.float64] = wide - wide.max(axis=-1, keepdims=True)
    log_sum: NDArray[np.float64] = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted - log_sum


def assert_stepping_is_bitwise(runtime: Runtime, ids: list[int]) -> None:
    """A session fed one token at a time gives the rows of the full sequence, bit for bit."""
    rows = runtime.model.logits(ids)
    with runtime.model.decode_session() as session:
        for position, token in enumerate(ids):
            step = session.step(token)
            np.testing.assert_array_equal(
                step.view(np.uint32), rows[position].view(np.uint32), err_msg=f"position {position}"
            )


def assert_tokenizer_agrees(runtime: Runtime, golden: Golden) -> None:
    """The model's tokenizer gives the ids of the Hugging Face `tokenizers` package, and the text back."""
    text = str(golden["text"])
    ids = runtime.tokenizer.encode(text)
    assert ids == golden["text_ids"].tolist()
    assert runtime.tokenizer.decode(ids) == text
