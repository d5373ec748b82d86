"""Final hidden states, against transformers' last_hidden_state and the model's own head."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.errors import ContextFullError, OutOfRangeError
from riftco_transformer.model import Model

GOLDEN = Path(__file__).parent.parent / "golden"
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]


@pytest.mark.parametrize("name", ["gpt2-untied", "llama-gqa-untied", "llama-odd"])
def test_equals_transformers(name: str) -> None:
    golden = np.load(GOLDEN / "hidden_states" / "golden.npz")
    ids, expected = golden[f"{name}.ids"], golden[f"{name}.states"]
    with (
        ModelBundle.load(GOLDEN / "models" / name).instantiate("cpu", threads=1) as runtime,
        runtime.model.decode_session() as session,
    ):
        states = session.hidden_states(ids)
        assert states.shape == expected.shape
        assert np.abs(states - expected).max() < 1e-4


def test_any_cut_gives_the_same_bits(model: Model) -> None:
    with model.decode_session() as session:
        whole = session.hidden_states(IDS)
        assert whole.shape == (len(IDS), model.config.width)
        logits = session.step(7)
        session.reset()
        parts = [
            session.hidden_states(IDS[:1]),
            session.hidden_states(IDS[1:9]),
            session.hidden_states(IDS[9:]),
        ]
        assert np.array_equal(np.concatenate(parts), whole)
        assert np.array_equal(session.step(7), logits)
        session.reset()
        assert np.array_equal(session.hidden_states(IDS, first=10), whole[10:])
        session.truncate(10)
        assert np.array_equal(session.hidden_states(IDS[10:], first=-1), whole[-1:])
        assert session.size == len(IDS)


def test_refused(model: Model) -> None:
    with model.decode_session() as session:
        with pytest.raises(OutOfRangeError):
            session.hidden_states(IDS, first=len(IDS))
        with pytest.raises(OutOfRangeError):
            session.hidden_states([1, 256])
        with pytest.raises(OutOfRangeError):
            session.hidden_states([])
        with pytest.raises(ContextFullError):
            session.hidden_states([1] * 65)
        assert session.size == 0
