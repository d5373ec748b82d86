"""Trainers, loops and evaluation: what they compute, what they refuse, and that a resumed run gives the same bits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from riftco_transformer.artifacts import Runtime
from riftco_transformer.cancel import CancelFlag
from riftco_transformer.errors import (
    CancelledError,
    CorruptDataError,
    InvalidArgumentError,
    InvalidStateError,
    NonFiniteError,
    OutOfRangeError,
    RiftcoError,
    UnsupportedError,
)
from riftco_transformer.model import Model, ModelConfig
from riftco_transformer.serving import TextGenerator
from riftco_transformer.tokenizer import Tokenizer
from riftco_transformer.training import (
    NO_TARGET,
    Evaluation,
    ExampleReader,
    Examples,
    StepRecord,
    TokenWindows,
    Trainer,
    checkpoint_state,
    evaluate,
    evaluate_data,
    post_train,
    pretrain,
    train,
)

SMALL = ModelConfig(
    width=32, head_count=2, kv_head_count=2, head_width=16, mlp_width=64, layer_count=2, maximum_context=32
)
TEXT = b"the lamp of the lighthouse turns and the sea is dark; " * 40


@pytest.fixture
def small() -> Iterator[Model]:
    with Tokenizer.byte() as tokenizer, Model.create(SMALL, seed=3, tokenizer=tokenizer, threads=1) as made:
        yield made


@pytest.fixture
def batch() -> tuple[np.ndarray, np.ndarray]:
    ids = np.frombuffer(TEXT[: 4 * 17], dtype=np.uint8).reshape(4, 17).astype(np.int64)
    return ids[:, :-1], ids[:, 1:]


def values(model: Model) -> bytes:
    return b"".join(value.tobytes() for value in model.parameters.values())


# --- evaluation ---


@pytest.mark.parametrize("attention", ["serving", "flash", "materialized"])
def test_loss_is_the_mean_cross_entropy_of_the_logits(
    small: Model, batch: tuple[np.ndarray, np.ndarray], attention: str
) -> None:
    tokens, targets = batch
    masked = targets.copy()
    masked[:, :5] = NO_TARGET
    logits = small.logits(tokens).astype(np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    chosen = np.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    before = values(small)
    found = evaluate(small, tokens, masked, attention)
    assert found.target_count == 4 * 11
    assert found.loss == pytest.approx(-chosen[:, 5:].mean(), rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert values(small) == before
    assert Evaluation(1e6, 1).perplexity == math.inf


def test_evaluation_of_data_weighs_by_targets(small: Model) -> None:
    ids = np.frombuffer(TEXT[:100], dtype=np.uint8)
    told: list[tuple[int, int]] = []
    found = evaluate_data(
        small, TokenWindows(ids, 32), batch=2, progress=lambda done, total: told.append((done, total))
    )
    losses = [evaluate(small, ids[None, a : a + 32], ids[None, a + 1 : a + 33]) for a in (0, 32, 64)]
    losses.append(evaluate(small, ids[None, 96:99], ids[None, 97:100]))
    assert found.target_count == sum(one.target_count for one in losses) == 99
    assert found.loss == pytest.approx(sum(one.loss * one.target_count for one in losses) / 99, rel=1e-6)
    assert told == [(2, 4), (4, 4)]


# --- trainers ---


def test_overfits_a_batch(small: Model, batch: tuple[np.ndarray, np.ndarray]) -> None:
    with Trainer(small, learning_rate=1e-2, weight_decay=0.0) as trainer:
        steps = [trainer.step(*batch) for _ in range(60)]
        assert [one.step for one in steps] == list(range(1, 61))
        assert all(one.target_count == 64 for one in steps)
        assert steps[0].loss == pytest.approx(math.log(256), abs=0.1)
        assert steps[-1].loss < 0.3 * steps[0].loss
        info = trainer.info
        assert info.step == 60
        assert info.trained_count == small.info.parameter_count
        assert info.optimizer_bytes >= 12 * info.trained_count
        assert info.activation_bytes > 0
    assert evaluate(small, *batch).loss < steps[-1].loss * 1.1


def test_first_step_is_adamw(small: Model, batch: tuple[np.ndarray, np.ndarray]) -> None:
    """With bias corrections the first step is rate * g / (|g| + epsilon), and decay of the matrices."""
    before = {
        name: small.parameters[name] for name in ("layers.0.q.weight", "layers.1.up.bias", "embedding.token")
    }
    with Trainer(small, learning_rate=1e-3, weight_decay=0.1, maximum_gradient_norm=0.0) as trainer:
        norm = trainer.step(*batch).gradient_norm
        total = sum(
            float((trainer.gradient(name).astype(np.float64) ** 2).sum()) for name in small.parameters
        )
        assert norm == pytest.approx(math.sqrt(total), rel=1e-5)
        for name, old in before.items():
            gradient = trainer.gradient(name)
            assert gradient.shape == old.shape
            decay = 0.1 if name == "layers.0.q.weight" else 0.0
            expected = old - 1e-3 * (gradient / (np.abs(gradient) + 1e-8) + decay * old)
            np.testing.assert_allclose(small.parameters[name], expected, rtol=1e-4, atol=1e-7)


def test_micro_batches_and_recomputation(batch: tuple[np.ndarray, np.ndarray]) -> None:
    """Recomputation gives the same bits; micro-batches and the kind of attention the same within rounding."""
    found = []
    for options in ({}, {"recompute": True}, {"micro_batch": 1}, {"attention": "materialized"}):
        with Model.create(SMALL, seed=3, threads=1) as model, Trainer(model, **options) as trainer:  # type: ignore[arg-type]
            trainer.step(*batch)
            found.append(trainer.gradient("layers.0.up.weight"))
    assert np.array_equal(found[0], found[1])
    for other in found[2:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-3, atol=1e-6)


def test_learning_rates(small: Model, batch: tuple[np.ndarray, np.ndarray]) -> None:
    options: Any = {"learning_rate": 1.0, "warmup_steps": 2, "total_steps": 6, "final_rate": 0.5}
    with Trainer(small, schedule="linear", **options) as trainer:
        rates = [trainer.step(*batch).learning_rate for _ in range(6)]
    assert rates == pytest.approx([0.5, 1, 1, 0.875, 0.75, 0.625])  # the next one would be 0.5


def test_sampling_between_steps(small: Model, batch: tuple[np.ndarray, np.ndarray]) -> None:
    texts = []
    with Trainer(small, learning_rate=1e-2) as trainer, TextGenerator(small) as generator:
        for _ in range(30):
            trainer.step(*batch)
            texts.append(generator.generate("the ", max_new_tokens=12).text)
        with TextGenerator(small) as fresh:
            assert fresh.generate("the ", max_new_tokens=12).text == texts[-1]
    assert texts[0] != texts[-1]


def test_steps_and_sessions(small: Model, batch: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    with Trainer(small) as trainer:
        trainer.step(*batch)
        trainer.save(tmp_path / "a")
        before = values(small)
        with small.decode_session() as session:
            logits = session.prefill([1, 2, 3])
            for change in (lambda: trainer.step(*batch), lambda: trainer.load(tmp_path / "a")):
                with pytest.raises(InvalidStateError, match="1 decode session"):
                    change()
            evaluate(small, *batch)
            session.reset()
            assert np.array_equal(session.prefill([1, 2, 3]), logits)
        assert values(small) == before
        trainer.step(*batch)
        with small.decode_session() as session:
            assert not np.array_equal(session.prefill([1, 2, 3]), logits)


def test_trainer_outlives_the_handle_of_its_model(batch: tuple[np.ndarray, np.ndarray]) -> None:
    model = Model.create(SMALL, seed=3)
    trainer = Trainer(model)
    model.close()
    trainer.step(*batch)
    assert trainer.gradient("layers.0.q.weight").shape == (32, 32)
    trainer.close()
    trainer.close()
    assert trainer.closed
    with pytest.raises(InvalidStateError, match="trainer is closed"):
        trainer.step(*batch)
    with pytest.raises(InvalidStateError, match="model is closed"):
        Trainer(model)


def test_misuse(small: Model, batch: tuple[np.ndarray, np.ndarray]) -> None:
    tokens, targets = batch
    for options, message in (
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"beta1": 1.0}, "beta1"),
        ({"beta2": -0.1}, "beta2"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"maximum_gradient_norm": -1.0}, "maximum_gradient_norm"),
        ({"schedule": "square"}, "schedule"),
        ({"schedule": "cosine"}, "total_steps"),
        ({"attention": "serving"}, "attention"),
        ({"attention": "none"}, "attention"),
        ({"final_rate": 2.0, "schedule": "linear", "total_steps": 5}, "final_rate"),
    ):
        with pytest.raises(RiftcoError, match=message):
            Trainer(small, **options)  # type: ignore[arg-type]
    for options in (
        {"learning_rate": "1"},
        {"recompute": 1},
        {"schedule": 1},
        {"no_such": 1},
        {"micro_batch": 1.5},
    ):
        with pytest.raises(TypeError, match=next(iter(options))):
            Trainer(small, **options)  # type: ignore[arg-type]
    with Trainer(small) as trainer:
        with pytest.raises(InvalidStateError):
            trainer.gradient("layers.0.q.weight")
        before = values(small)
        for arguments, kind in (
            ((tokens, targets[:2]), InvalidArgumentError),
            ((tokens[0], targets[0]), InvalidArgumentError),
            ((tokens, np.full_like(targets, NO_TARGET)), InvalidArgumentError),
            ((tokens + 256, targets), OutOfRangeError),
            ((tokens, targets + 256), OutOfRangeError),
            ((tokens - 200, targets), OutOfRangeError),
            ((tokens.astype(float), targets), TypeError),
            ((np.zeros((0, 4), int), np.zeros((0, 4), int)), InvalidArgumentError),
            ((np.zeros((1, 33), int), np.zeros((1, 33), int)), RiftcoError),
        ):
            with pytest.raises(kind):
                trainer.step(*arguments)
        assert values(small) == before
        assert trainer.info.step == 0
        trainer.step(*batch)
        with pytest.raises(OutOfRangeError, match="no parameter 'q'"):
            trainer.gradient("q")


def test_cancelled_step_changes_nothing(small: Model, batch: tuple[np.ndarray, np.ndarray]) -> None:
    before = values(small)
    flag = CancelFlag()
    flag.set()
    with Trainer(small) as trainer:
        with pytest.raises(CancelledError):
            trainer.step(*batch, cancel=flag)
        with pytest.raises(CancelledError):
            evaluate(small, *batch, cancel=flag)
        assert (values(small), trainer.info.step) == (before, 0)


def test_non_finite_step_changes_nothing(small: Model, batch: tuple[np.ndarray, np.ndarray]) -> None:
    small.parameters["layers.0.up.weight"] = np.full((64, 32), 3e38, np.float32)
    before = values(small)
    with Trainer(small) as trainer:
        with pytest.raises(NonFiniteError):
            trainer.step(*batch)
        assert (values(small), trainer.info.step) == (before, 0)


# --- checkpoints ---


def test_checkpoint(small: Model, batch: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with Trainer(small) as trainer:
        for _ in range(3):
            trainer.step(*batch)
        trainer.save(path, "wo é\n")
        trainer.step(*batch)
        expected = values(small)
    assert checkpoint_state(path) == "wo é\n"
    with Model.create(SMALL, seed=99, threads=2) as other, Trainer(other) as trainer:
        trainer.load(path)
        assert trainer.info.step == 3
        trainer.step(*batch)
        assert values(other) == expected
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CorruptDataError):
            trainer.load(path)
        assert values(other) == expected
    with pytest.raises(RiftcoError, match="missing"):
        checkpoint_state(tmp_path / "missing")


# --- loops ---

OPTIONS: Any = {"length": 16, "batch": 4, "learning_rate": 1e-2, "seed": 5, "schedule": "cosine"}


def test_pretrain(small: Model) -> None:
    told: list[StepRecord] = []
    held_out = TokenWindows(list(TEXT[:200]), 16)
    result = pretrain(
        small, list(TEXT), steps=40, held_out=held_out, evaluate_every=15, on_step=told.append, **OPTIONS
    )
    assert result.steps == 40
    assert told == result.history
    assert [one["step"] for one in told] == list(range(1, 41))
    assert [one["step"] for one in told if "held_out_loss" in one] == [15, 30, 40]
    assert told[-1]["loss"] < 0.7 * told[0]["loss"]
    assert told[-1]["held_out_loss"] == pytest.approx(evaluate_data(small, held_out).loss, rel=1e-6)
    assert told[-1]["learning_rate"] < 1e-3 < told[1]["learning_rate"]
    assert all(one["tokens_per_second"] > 0 for one in told)


def test_epochs(small: Model) -> None:
    windows = TokenWindows(list(TEXT[:165]), 16)  # 11 rows
    assert train(small, windows, batch=4).steps == 3
    assert train(small, windows, batch=4, epochs=0.5).steps == 2
    assert train(small, windows, batch=4, epochs=0, schedule="cosine").history == []
    for options in (
        {"epochs": -1},
        {"epochs": math.inf},
        {"epochs": 1, "steps": 1},
        {"batch": 0},
        {"resume": True},
    ):
        with pytest.raises(InvalidArgumentError):
            train(small, windows, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no_such"):
        train(small, windows, no_such=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("threads", [1, 2])
def test_resumed_run_gives_the_same_bits(threads: int, tmp_path: Path) -> None:
    """6 steps against 3, and 3 by another model object; over the end of a pass."""
    with Model.create(SMALL, seed=3, threads=1) as model:
        pretrain(model, list(TEXT[:200]), steps=6, total_steps=6, **OPTIONS)
        expected = values(model)
    checkpoint = tmp_path / "checkpoint"
    with Model.create(SMALL, seed=3, threads=1) as model:
        pretrain(model, list(TEXT[:200]), steps=3, total_steps=6, checkpoint=checkpoint, **OPTIONS)
        assert values(model) != expected
    state = json.loads(checkpoint_state(checkpoint))
    assert (state["position"], state["seed"]) == (12, 5)
    with Model.create(SMALL, seed=4, threads=threads) as model:
        result = pretrain(
            model, list(TEXT[:200]), steps=6, total_steps=6, checkpoint=checkpoint, resume=True, **OPTIONS
        )
        assert [one["step"] for one in result.history] == [4, 5, 6]
        assert values(model) == expected


def test_resume_refuses_other_data(small: Model, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    pretrain(small, list(TEXT), steps=1, checkpoint=checkpoint, **OPTIONS)
    again: Any = {**OPTIONS, "steps": 2, "checkpoint": checkpoint, "resume": True}
    with pytest.raises(InvalidArgumentError, match="the seed 5, not 6"):
        pretrain(small, list(TEXT), **{**again, "seed": 6})
    for text, length in ((TEXT[1:], 16), (TEXT, 15)):
        with pytest.raises(InvalidArgumentError, match="other data"):
            pretrain(small, list(text), **{**again, "length": length})
    with Trainer(small) as trainer:
        for state in ("", "[]", "{}", '{"position": -1, "seed": 5, "data": ""}'):
            trainer.save(checkpoint, state)
            with pytest.raises(CorruptDataError, match="its state is not that of a training"):
                pretrain(small, list(TEXT), **again)


def test_interrupted_run_leaves_a_checkpoint(small: Model, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"

    def stop(record: StepRecord) -> None:
        if record["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(small, list(TEXT), steps=9, checkpoint=checkpoint, on_step=stop, **OPTIONS)
    assert json.loads(checkpoint_state(checkpoint))["position"] == 8
    result = pretrain(small, list(TEXT), steps=3, checkpoint=checkpoint, resume=True, **OPTIONS)
    assert [one["step"] for one in result.history] == [3]


def test_post_train_learns_answers_only(small: Model) -> None:
    reader = ExampleReader(small.tokenizer(), 32)
    examples = [reader.example({"prompt": f"{a} is", "response": f" {a * 3}"}) for a in "abcdefgh"]
    before = evaluate_data(small, Examples(examples)).loss
    result = post_train(small, examples, epochs=40, learning_rate=1e-2)
    assert result.history[0]["target_count"] == 8 * 4
    assert evaluate_data(small, Examples(examples)).loss < 0.2 * before
    with TextGenerator(small) as generator:
        assert generator.generate("c is", max_new_tokens=4).text == " ccc"


# --- adapters ---


def test_adapters_alone_are_trained(small: Model, batch: tuple[np.ndarray, np.ndarray]) -> None:
    before = values(small)
    small.attach_lora(rank=4, targets=["q", "v", "up"])
    with Trainer(small, learning_rate=1e-2) as trainer:
        losses = [trainer.step(*batch).loss for _ in range(30)]
        assert trainer.info.trained_count == sum(
            value.size for name, value in small.parameters.items() if "lora" in name
        )
        assert trainer.gradient("layers.0.q.lora_b").shape == (32, 4)
        with pytest.raises(RiftcoError):
            trainer.gradient("layers.0.q.weight")
        assert losses[-1] < losses[0]
        small.detach_lora()
        with pytest.raises(InvalidStateError):
            trainer.step(*batch)
    assert values(small) == before


def test_quantised_base(smollm2: Runtime, tmp_path: Path) -> None:
    """SmolLM2's 4-bit file with adapters: the loss falls, and what is saved is what was trained."""
    model = smollm2.model
    with pytest.raises(UnsupportedError, match="adapters"):
        Trainer(model)
    reader = ExampleReader(smollm2.tokenizer, 16)
    examples = [
        reader.example({"prompt": f"The colour of {x} is", "response": " zorp"})
        for x in ("grass", "sky", "milk")
    ]
    ids = smollm2.tokenizer.encode("The colour of grass is")
    plain = model.logits(ids)
    model.attach_lora(rank=4, targets=["q", "v"])
    try:
        assert np.array_equal(model.logits(ids), plain)
        result = post_train(model, examples, batch=3, steps=3, learning_rate=1e-2)
        assert result.history[-1]["loss"] < 0.8 * result.history[0]["loss"]
        tuned = model.logits(ids)
        assert not np.array_equal(tuned, plain)
        model.save_lora(tmp_path / "adapter")
    finally:
        model.detach_lora()
    assert np.array_equal(model.logits(ids), plain)
    model.load_lora(tmp_path / "adapter")
    assert np.array_equal(model.logits(ids), tuned)
    model.detach_lora()
