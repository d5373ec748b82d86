"""Training against PyTorch: losses, gradients of every parameter, AdamW with clipping, groups and a schedule, PEFT's adapters.

The goldens are computed in float64 from the same weights (tests/golden/README.md); ours in float32.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from oracle_support import GOLDEN, Golden, read_golden
from riftco_transformer.model import Model
from riftco_transformer.training import NO_TARGET, Trainer, evaluate

TRAINING = GOLDEN / "training"
FOLDERS = sorted(path.parent for path in TRAINING.glob("*/config.json"))
LOSS_TOLERANCE = 2e-6
GRADIENT_TOLERANCE = 3e-5  # of the largest element of the parameter's gradient
ZERO_TOLERANCE = 2e-7  # of a gradient that is zero: the bias of keys moves all scores of a query alike
PARAMETER_TOLERANCE = 1e-5  # where three updates of up to 0.01 were made
ATTENTIONS = ("flash", "materialized")


def targets_of(golden: Golden, name: str) -> np.ndarray:
    """As the library takes them: PyTorch ignored -1."""
    return np.where(golden[name] < 0, NO_TARGET, golden[name].astype(np.int64))


def named(golden: Golden, prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): values for name, values in golden.items() if name.startswith(prefix)}


def trainer_of(model: Model, golden: Golden, attention: str) -> Trainer:
    return Trainer(model, schedule="cosine", attention=attention, **json.loads(str(golden["options"])))


def assert_gradients(trainer: Trainer, golden: Golden) -> None:
    for name, expected in named(golden, "gradient.").items():
        found = trainer.gradient(name)
        assert found.shape == expected.shape
        limit = GRADIENT_TOLERANCE * float(np.abs(expected).max()) + ZERO_TOLERANCE
        np.testing.assert_allclose(found, expected, rtol=0, atol=limit, err_msg=name)


def assert_training(model: Model, golden: Golden, attention: str) -> None:
    """Three updates, the second with masked targets: metrics, the first gradients, the parameters at the end."""
    before = {name: model.parameters[name] for name in named(golden, "after.")}
    with trainer_of(model, golden, attention) as trainer:
        for step in range(3):
            metrics = trainer.step(golden["tokens"], targets_of(golden, "masked" if step == 1 else "targets"))
            if step == 0:
                assert_gradients(trainer, golden)
            assert metrics.step == step + 1
            assert metrics.loss == pytest.approx(float(golden["losses"][step]), abs=1e-5)
            assert metrics.gradient_norm == pytest.approx(float(golden["norms"][step]), rel=1e-4)
            assert metrics.learning_rate == pytest.approx(float(golden["rates"][step]), rel=1e-12)
        for name, expected in named(golden, "after.").items():
            np.testing.assert_allclose(
                model.parameters[name], expected, rtol=0, atol=PARAMETER_TOLERANCE, err_msg=name
            )
            learnt = np.abs(golden[f"gradient.{name}"]).max() > ZERO_TOLERANCE
            assert np.abs(expected - before[name]).max() > 2e-3 or not learnt, name


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_every_kind_has_a_golden() -> None:
    assert {folder.name for folder in FOLDERS} == {
        "gpt2-erf-untied",
        "gpt2-tanh-tied",
        "llama-gqa-untied",
        "qwen2-biases-tied",
        "qwen3-window",
    }
    for folder in FOLDERS:
        golden = read_golden(folder.with_suffix(".npz"))
        with Model.load(folder) as model:
            names = set(model.parameters)
        assert names == set(named(golden, "gradient.")) == set(named(golden, "after."))


@pytest.mark.parametrize("attention", [*ATTENTIONS, "serving"])
def test_losses(folder: Path, attention: str) -> None:
    golden = read_golden(folder.with_suffix(".npz"))
    with Model.load(folder) as model:
        for name in ("targets", "masked"):
            targets = targets_of(golden, name)
            found = evaluate(model, golden["tokens"], targets, attention)
            assert found.loss == pytest.approx(float(golden[f"loss.{name}"]), abs=LOSS_TOLERANCE)
            assert found.target_count == (golden[name] >= 0).sum()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients_and_updates(folder: Path, attention: str) -> None:
    with Model.load(folder) as model:
        assert_training(model, read_golden(folder.with_suffix(".npz")), attention)


def adapted(golden: Golden, path: Path, targets: list[str]) -> Model:
    model = Model.load(path)
    model.attach_lora(rank=int(golden["rank"]), alpha=float(golden["alpha"]), targets=targets)
    values = named(golden, "before.")
    assert set(values) == {name for name in model.parameters if ".lora_" in name}
    for name, array in values.items():
        model.parameters[name] = array
    return model


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_adapters_of_every_matrix(attention: str) -> None:
    golden = read_golden(TRAINING / "llama-gqa-untied.lora.npz")
    targets = ["q", "k", "v", "o", "gate", "up", "down", "head"]
    with adapted(golden, TRAINING / "llama-gqa-untied", targets) as model:
        frozen = {name: model.parameters[name] for name in model.parameters if ".lora_" not in name}
        assert_training(model, golden, attention)
        for name, values in frozen.items():
            np.testing.assert_array_equal(model.parameters[name], values, err_msg=name)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_adapters_on_quantised_weights(attention: str) -> None:
    """PEFT trains on what the gguf package dequantises."""
    golden = read_golden(TRAINING / "llama-q4_1-tied.lora.npz")
    with adapted(golden, GOLDEN / "gguf" / "llama-q4_1-tied.gguf", ["q", "down"]) as model:
        types = {info.type for info in model.parameters.info.values()}
        assert "q4_1" in types
        assert_training(model, golden, attention)
        assert {info.type for info in model.parameters.info.values()} == types


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_rates_are_those_of_transformers(schedule: str) -> None:
    golden = read_golden(TRAINING / "rates.npz")
    with (
        Model.load(TRAINING / "llama-gqa-untied") as model,
        Trainer(model, learning_rate=3e-4, schedule=schedule, total_steps=20) as trainer,
    ):
        tokens = np.zeros((1, 1), np.uint32)
        for step, expected in enumerate(golden[schedule]):
            rate = trainer.step(tokens, tokens).learning_rate
            assert rate == pytest.approx(float(expected) / 1000, rel=1e-12, abs=1e-18), step
