"""SmolLM2-135M-Instruct (Q4_1) against transformers' float32 model of its dequantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from oracle_support import GOLDEN, Golden, log_softmax, read_golden
from riftco_transformer.artifacts import ModelBundle, Runtime
from riftco_transformer.serving import TextGenerator

FOLDER = GOLDEN / "smollm2"
PROMPTS = range(4)
CAPITAL_OF_FRANCE, CHAT = 0, 3


@pytest.fixture(scope="module")
def golden() -> Golden:
    return read_golden(FOLDER / "golden.npz")


@pytest.fixture(scope="module")
def runtime(smollm2_path: Path) -> Iterator[Runtime]:
    with ModelBundle.load(smollm2_path).instantiate("cpu") as runtime:
        yield runtime


@pytest.fixture(scope="module")
def log_q(golden: Golden, runtime: Runtime) -> NDArray[np.float64]:
    """Our log-probabilities at each of the 512 positions."""
    return log_softmax(runtime.model.logits(golden["ids"].tolist()))


def test_token_ids(golden: Golden, runtime: Runtime) -> None:
    text = (FOLDER / "text.txt").read_text("utf-8")
    ids = runtime.tokenizer.encode(text)
    assert ids == golden["text_ids"].tolist()
    assert runtime.tokenizer.decode(ids) == text
    for i in PROMPTS:
        prompt, parse_special = str(golden[f"prompt_{i}"]), bool(golden[f"parse_special_{i}"])
        ids = runtime.tokenizer.encode(prompt, parse_special=parse_special)
        assert ids == golden[f"prompt_ids_{i}"].tolist()


def test_most_likely_token(golden: Golden, log_q: NDArray[np.float64]) -> None:
    assert len(log_q) == 512
    agreement = np.mean(log_q.argmax(axis=-1) == golden["argmax"])
    print(f"top-1 agreement {agreement:.4f}")
    assert agreement >= 0.96


def test_divergence(golden: Golden, log_q: NDArray[np.float64]) -> None:
    """KL(golden || ours) over 65 events: each of the golden's 64 most likely tokens, and all others."""
    log_p = golden["top_log_probabilities"].astype(np.float64)
    ours = np.take_along_axis(log_q, golden["top_ids"].astype(np.int64), axis=-1)
    rest_p = golden["rest"].astype(np.float64)
    rest_q = 1 - np.exp(ours).sum(axis=-1)
    inside = (np.exp(log_p) * (log_p - ours)).sum(axis=-1)
    outside = rest_p * np.log(np.maximum(rest_p, 1e-12) / np.maximum(rest_q, 1e-12))
    divergence = np.mean(inside + outside)
    print(f"mean KL {divergence:.5f}")
    assert 0 <= divergence < 0.01


@pytest.mark.parametrize("i", PROMPTS)
def test_greedy_answers_stay_near_the_best(i: int, golden: Golden, runtime: Runtime) -> None:
    """Along the golden's greedy answer, each of its tokens is our best too, or nearly so: where two
    tokens are almost as likely (greedy_lead is as small as 0.07), rounding may swap them."""
    prompt, answer = golden[f"prompt_ids_{i}"].tolist(), golden[f"greedy_ids_{i}"].tolist()
    rows = runtime.model.logits(prompt + answer[:-1])[len(prompt) - 1 :]
    behind = rows.max(axis=-1) - rows[np.arange(len(answer)), answer]
    assert behind.max() < 0.5
    assert np.mean(behind == 0) >= 0.9


def test_greedy_text(golden: Golden, runtime: Runtime) -> None:
    generator = TextGenerator(runtime.model, runtime.tokenizer)
    france = generator.generate(str(golden[f"prompt_{CAPITAL_OF_FRANCE}"]), max_new_tokens=8)
    assert france.text.startswith(" Paris.")
    chat = generator.generate(str(golden[f"prompt_{CHAT}"]), max_new_tokens=32, parse_special=True)
    assert chat.text == str(golden[f"greedy_text_{CHAT}"]) == "The capital of Italy is Rome."
    assert chat.tokens == golden[f"greedy_ids_{CHAT}"].tolist()
    assert chat.finish_reason == "eos"
