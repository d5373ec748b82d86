"""Penalties, bias, barred tokens, log-probabilities and choices, against the documented steps in plain numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from riftco_transformer.artifacts import Runtime
from riftco_transformer.errors import InvalidArgumentError, InvalidStateError, NonFiniteError, OutOfRangeError
from riftco_transformer.kv_cache import KvCacheFactory
from riftco_transformer.serving import GenerationResult, TextGenerator

Row = npt.NDArray[np.float64]
PROMPT = [7, 7, 200, 13, 90, 7]


class Recorder:
    """A hook that changes nothing and keeps every raw row."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def __call__(self, logits: npt.NDArray[np.float32], tokens: Sequence[int]) -> None:
        assert len(tokens) == len(self.rows)
        self.rows.append(logits.astype(np.float64))


def processed_row(
    raw: Row, prompt: list[int], new: list[int], options: dict[str, Any], barred: set[int]
) -> Row:
    """Steps 2 to 4 of riftco/generate.h."""
    row = raw.copy()
    for token, bias in options.get("logit_bias", {}).items():
        row[token] += bias
    if len(new) < options.get("min_new_tokens", 0):
        row[list(barred)] = -np.inf
    window = options.get("penalty_window", 0) or len(prompt) + len(new)
    seen = (prompt + new)[-window:]
    for token in set(seen):
        penalty = options.get("repetition_penalty", 1.0)
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    recent = new[-window:]
    for token in set(recent):
        row[token] -= options.get("frequency_penalty", 0.0) * recent.count(token)
        row[token] -= options.get("presence_penalty", 0.0)
    return row


def drawn_from(row: Row, options: dict[str, Any]) -> Row:
    """Log-probabilities after steps 5 and 6."""
    temperature = options.get("temperature", 0.0)
    if temperature:
        row = row / temperature
        order = np.argsort(-row, kind="stable")
        if top_k := options.get("top_k", 0):
            row[order[top_k:]] = -np.inf
        if (top_p := options.get("top_p", 1.0)) < 1:
            shares = np.exp(log_softmax(row))[order]
            row[order[np.cumsum(shares) - shares >= top_p]] = -np.inf
        if min_p := options.get("min_p", 0.0):
            row[np.exp(row - row.max()) < min_p] = -np.inf
    return log_softmax(row)


def log_softmax(row: Row) -> Row:
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum())


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.5, "temperature": 0.7},
    {"presence_penalty": 3.0},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3, "logit_bias": {5: 40.0}},  # 5, again and again
    {"frequency_penalty": 1.5, "presence_penalty": -0.5},
    {"frequency_penalty": 0.4, "repetition_penalty": 1.2, "penalty_window": 5, "temperature": 1.1},
    {"logit_bias": {3: 4.0, 250: -math.inf, 7: -2.5}},
    {"logit_bias": {3: 4.0}, "temperature": 1.3, "top_k": 9, "min_p": 0.02},
    {"temperature": 0.9, "top_p": 0.7, "presence_penalty": 1.0},
    {"min_new_tokens": 12, "stop_tokens": [1, 2, 3], "logit_bias": {1: 9.0, 2: 9.0}},
    {
        "temperature": 1.5, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.3,
        "presence_penalty": 0.2, "frequency_penalty": 0.1, "penalty_window": 9, "logit_bias": {5: 1.0},
        "min_new_tokens": 3, "stop_tokens": [40],
    },
]  # fmt: skip


@pytest.mark.parametrize("options", CASES)
def test_equals_plain_numpy(generator: TextGenerator, options: dict[str, Any]) -> None:
    hook = Recorder()
    result = generator.generate(PROMPT, 16, logits_hook=hook, alternatives=5, seed=3, **options)
    assert result.tokens == generator.generate(PROMPT, 16, seed=3, **options).tokens
    barred = set(options.get("stop_tokens", ()))
    for i, token in enumerate(result.tokens):
        raw = hook.rows[i]
        processed = processed_row(raw, PROMPT, result.tokens[:i], options, barred)
        drawn = drawn_from(processed, options)
        if not options.get("temperature"):
            assert processed[token] >= processed.max() - 1e-5
        assert result.log_probabilities[i] == pytest.approx(log_softmax(raw)[token], abs=2e-5)
        assert result.processed_log_probabilities[i] == pytest.approx(drawn[token], abs=2e-5)
        best = np.argsort(-raw, kind="stable")[:5]
        assert [one.token for one in result.alternatives[i]] == best.tolist()
        for one in result.alternatives[i]:
            assert one.log_probability == pytest.approx(log_softmax(raw)[one.token], abs=2e-5)
            assert one.processed_log_probability == pytest.approx(drawn[one.token], abs=2e-5)


def test_barred_tokens_come_back(generator: TextGenerator) -> None:
    wanted = generator.generate(PROMPT, 1).tokens[0]
    result = generator.generate(PROMPT, 10, stop_tokens=[wanted], logit_bias={wanted: 50.0}, min_new_tokens=4)
    assert wanted not in result.tokens[:4]
    assert result.tokens[4:] == [wanted]
    assert result.finish_reason == "stop"


def test_a_row_with_every_token_barred(generator: TextGenerator) -> None:
    with pytest.raises(NonFiniteError):
        generator.generate(PROMPT, 2, logit_bias=dict.fromkeys(range(256), -math.inf))
    assert generator.generate(PROMPT, 2).tokens


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"repetition_penalty": 0.0}, InvalidArgumentError, "repetition_penalty 0"),
        ({"repetition_penalty": math.inf}, InvalidArgumentError, "repetition_penalty inf"),
        ({"presence_penalty": math.nan}, InvalidArgumentError, "presence_penalty nan"),
        ({"frequency_penalty": -math.inf}, InvalidArgumentError, "frequency_penalty -inf"),
        ({"logit_bias": {256: 1.0}}, OutOfRangeError, "token 256 of the logit bias"),
        ({"logit_bias": {1: math.nan}}, InvalidArgumentError, "the logit bias of token 1 is nan"),
        ({"logit_bias": {1: math.inf}}, InvalidArgumentError, "the logit bias of token 1 is inf"),
        ({"logit_bias": [1]}, TypeError, "logit_bias must be a mapping"),
        ({"min_new_tokens": 17}, InvalidArgumentError, "min_new_tokens 17 is more than max_new_tokens 16"),
        ({"speculation": 65}, OutOfRangeError, "a speculation of 65 tokens is more than 64"),
        ({"speculation": -1}, InvalidArgumentError, "speculation must be in 0"),
        ({"alternatives": 65}, OutOfRangeError, "65 alternatives are more than 64"),
        ({"penalty": 1.0}, TypeError, "there is no option 'penalty'"),
        ({"n": 0}, InvalidArgumentError, "n must be at least 1"),
    ],
)
def test_refused(
    generator: TextGenerator, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        generator.generate(PROMPT, 16, **options)


# --- choices ---

SAMPLED: dict[str, Any] = {"temperature": 1.2, "seed": 5}


def outcome(result: GenerationResult) -> tuple[list[int], list[float], str]:
    return result.tokens, result.log_probabilities, result.finish_reason


def test_a_choice_does_not_depend_on_the_others(generator: TextGenerator) -> None:
    alone = generator.generate(PROMPT, 20, **SAMPLED)
    four = generator.generate(PROMPT, 20, n=4, **SAMPLED)
    two = generator.generate(PROMPT, 20, n=2, **SAMPLED)
    assert outcome(four[0]) == outcome(alone)
    assert [outcome(one) for one in two] == [outcome(one) for one in four[:2]]
    assert len({tuple(one.tokens) for one in four}) == 4
    assert all(one.stats.prompt_tokens == len(PROMPT) for one in four)
    assert [outcome(one) for one in generator.generate(PROMPT, 20, n=4)[1:]] == [
        outcome(generator.generate(PROMPT, 20))
    ] * 3  # greedy


def test_choices_prefill_once_and_share_pages(runtime: Runtime) -> None:
    prompt = list(range(40))
    with (
        KvCacheFactory.paged(runtime.model, block_size=4, block_count=14) as pool,
        TextGenerator(runtime.model, factory=pool) as generator,
    ):
        # 40 tokens take 10 pages and 7 more take 2: four choices fit only because they share the prompt's
        results = generator.generate(prompt, 8, n=4, **SAMPLED)
        assert pool.usage().free_count == 2
        assert [one.stats.prefill_seconds for one in results] == [results[0].stats.prefill_seconds] * 4
        assert runtime.model.info.session_count == 0


def test_hooks_see_their_own_choice(generator: TextGenerator) -> None:
    seen: list[int] = []

    def hook(logits: npt.NDArray[np.float32], tokens: Sequence[int]) -> None:
        seen.append(len(tokens))
        logits[:] = -np.inf
        logits[len(tokens)] = 0

    results = generator.generate(PROMPT, 3, n=2, logits_hook=hook)
    assert [one.tokens for one in results] == [[0, 1, 2]] * 2
    assert seen == [0, 1, 2] * 2


def test_closing_a_stream_ends_its_session(runtime: Runtime, generator: TextGenerator) -> None:
    with generator.stream(PROMPT, 9) as stream:
        next(stream)
        assert runtime.model.info.session_count == 1
    assert runtime.model.info.session_count == 0
    with pytest.raises(InvalidStateError):
        next(stream)
    other = generator.stream(PROMPT, 9)
    stream.close()  # of a generation that is over: not the one that runs
    assert runtime.model.info.session_count == 1
    assert "".join(other) == generator.generate(PROMPT, 9).text


# --- speculation ---


@pytest.mark.parametrize(
    "options",
    [*CASES, {"max_new_tokens": 90}, {"max_new_tokens": 90, "rollover": "keep", "rollover_keep": 20}],
)
def test_speculation_changes_nothing(generator: TextGenerator, options: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 30, "seed": 3, "alternatives": 3, **options}
    prompt = PROMPT * 3
    expected = generator.generate(prompt, **settings)
    assert expected.stats.drafted_tokens == 0
    for speculation in (1, 9):
        result = generator.generate(prompt, speculation=speculation, **settings)
        hooked = generator.generate(prompt, speculation=speculation, logits_hook=Recorder(), **settings)
        for one in (result, hooked):
            assert (one.text, one.finish_reason) == (expected.text, expected.finish_reason)
            assert outcome(one) == outcome(expected)
            assert one.processed_log_probabilities == expected.processed_log_probabilities
            assert one.alternatives == expected.alternatives
        assert result.stats.accepted_tokens <= result.stats.drafted_tokens


def test_speculation_of_choices(generator: TextGenerator) -> None:
    expected = generator.generate(PROMPT * 3, 20, n=4, **SAMPLED)
    found = generator.generate(PROMPT * 3, 20, n=4, speculation=7, **SAMPLED)
    assert [outcome(one) for one in found] == [outcome(one) for one in expected]


def test_speculation_saves_steps(generator: TextGenerator) -> None:
    """A model that says one token for ever is guessed right, and then a step gives many tokens."""
    settings: dict[str, Any] = {"max_new_tokens": 40, "logit_bias": {5: 100.0}}
    with generator.stream(PROMPT, speculation=64, **settings) as stream:
        text = "".join(stream)
    stats = stream.result.stats
    assert text == generator.generate(PROMPT, **settings).text
    # the first three show that it repeats itself; then a step gives 1 + 1, 1 + 2, 1 + 4, 1 + 8 and 1 + 16 tokens
    assert stats.accepted_tokens == stats.drafted_tokens == 31
