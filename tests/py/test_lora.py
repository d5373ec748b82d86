"""Adapters, and what may change while a model serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from riftco_transformer.errors import (
    BackendUnavailableError,
    InvalidArgumentError,
    InvalidStateError,
    NonFiniteError,
    OutOfRangeError,
    UnsupportedError,
)
from riftco_transformer.model import LoraInfo, Model, ModelConfig
from riftco_transformer.serving import TextGenerator
from riftco_transformer.tokenizer import Tokenizer

CONFIG = ModelConfig(maximum_context=32, layer_count=2, width=32, head_count=2, kv_head_count=2, head_width=16,
                     mlp_width=64)  # fmt: skip
IDS = [5, 1, 200, 7]


@pytest.fixture
def model() -> Iterator[Model]:
    with Tokenizer.byte() as tokenizer, Model.create(CONFIG, seed=2, tokenizer=tokenizer) as made:
        yield made


def test_adapters_change_nothing_until_they_are_trained(model: Model) -> None:
    before, own = model.logits(IDS), set(model.parameters)
    assert model.lora is None
    model.attach_lora(rank=4, alpha=2, targets=("q", "down", "head"), seed=9)
    assert model.lora == LoraInfo(4, 2.0, frozenset({"q", "down", "head"}), 9)
    assert np.array_equal(model.logits(IDS), before)
    parameters = model.parameters
    assert len(set(parameters) - own) == 2 * (2 * 2 + 1)
    assert parameters["layers.1.down.lora_a"].shape == (4, 64)
    assert not parameters["head.lora_b"].any()
    assert parameters["head.lora_b"].shape == (256, 4)
    assert model.info.tensor_count == len(parameters)
    model.detach_lora()
    assert model.lora is None
    assert set(model.parameters) == own
    assert np.array_equal(model.logits(IDS), before)


def test_merging_is_the_matrix_product(model: Model) -> None:
    model.attach_lora(rank=2, alpha=3.0)
    rng = np.random.default_rng(1)
    expected = dict(model.parameters)
    for layer in range(2):
        for target in "qv":
            name = f"layers.{layer}.{target}"
            b = rng.normal(0, 0.1, (32, 2)).astype(np.float32)
            model.parameters[name + ".lora_b"] = b
            expected[name + ".weight"] = expected[name + ".weight"] + 1.5 * b @ expected.pop(name + ".lora_a")
            del expected[name + ".lora_b"]
    attached = model.logits(IDS)
    model.merge_lora()
    merged = dict(model.parameters)
    assert list(merged) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(merged[name], values, atol=1e-6)
    np.testing.assert_allclose(model.logits(IDS), attached, atol=1e-5)


def test_options_that_do_not_fit_are_refused(model: Model) -> None:
    for wrong in ({"rank": 0}, {"alpha": 0}, {"alpha": float("nan")}, {"targets": ()}, {"targets": ("x",)},
                  {"targets": ("gate",)}, {"seed": -1}, {"rank": -1}):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            model.attach_lora(**wrong)  # type: ignore[arg-type]
    with pytest.raises(OutOfRangeError, match=r"layers\.0\.q\.weight"):
        model.attach_lora(rank=33)
    for change in (model.detach_lora, model.merge_lora):
        with pytest.raises(InvalidStateError, match="no adapters"):
            change()
    model.attach_lora()
    with pytest.raises(InvalidStateError, match="already"):
        model.attach_lora()


def test_writing_parameters(model: Model) -> None:
    before = model.logits(IDS)
    parameters, epoch = model.parameters, model.info.parameter_epoch
    weight = parameters["layers.0.up.weight"]
    parameters["layers.0.up.weight"] = 2 * weight.astype(np.float64)
    assert np.array_equal(parameters["layers.0.up.weight"], 2 * weight)
    assert model.info.parameter_epoch == epoch + 1
    assert not np.array_equal(model.logits(IDS), before)
    parameters["layers.0.up.weight"] = np.asfortranarray(weight)
    assert np.array_equal(model.logits(IDS), before)
    with pytest.raises(InvalidArgumentError, match="shape"):
        parameters["layers.0.up.weight"] = weight.T
    with pytest.raises(KeyError):
        parameters["layers.9.up.weight"] = weight
    weight[3, 4] = np.inf
    with pytest.raises(NonFiniteError, match=r"row 3 of layers\.0\.up\.weight"):
        parameters["layers.0.up.weight"] = weight
    assert np.array_equal(model.logits(IDS), before)


def test_quantised_models_carry_adapters_and_are_not_merged(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "q.rift", type="q8_0")
    with Model.load(tmp_path / "q.rift") as quantised:
        before = quantised.logits(IDS)
        with pytest.raises(UnsupportedError, match="q8_0"):
            quantised.parameters["layers.0.q.weight"] = np.zeros((32, 32))
        quantised.attach_lora(rank=2)
        assert np.array_equal(quantised.logits(IDS), before)
        quantised.parameters["layers.0.q.lora_b"] = np.ones((32, 2))
        assert not np.array_equal(quantised.logits(IDS), before)
        with pytest.raises(UnsupportedError, match=r"layers\.0\.q\.weight is q8_0"):
            quantised.merge_lora()
        with pytest.raises(InvalidStateError, match="merge or detach"):
            quantised.save(tmp_path / "again.rift")


def changes(model: Model) -> list[Callable[[], object]]:
    def write() -> None:
        model.parameters["final_norm.weight"] = np.ones(32)

    return [lambda: model.to("cpu"), model.attach_lora, model.detach_lora, model.merge_lora, write]


def test_live_sessions_hold_off_changes(model: Model) -> None:
    with model.decode_session(), model.decode_session():
        for change in changes(model):
            with pytest.raises(InvalidStateError, match="2 decode sessions of the model are alive"):
                change()
    assert model.info.parameter_epoch == 0
    assert model.to("cpu") is model
    with pytest.raises(BackendUnavailableError, match="cuda"):
        model.to("cuda")


def test_sampling_between_changes(model: Model) -> None:
    generator = TextGenerator(model)
    stream = generator.stream("abc", max_new_tokens=4)
    next(stream)
    for change in changes(model):
        with pytest.raises(InvalidStateError, match="1 decode session of the model is alive"):
            change()
    list(stream)
    seen = set()
    for step in range(3):
        model.parameters["head.bias"] = np.eye(256)[97 + step] * 100
        seen.add(generator.generate("abc", max_new_tokens=4).text)
    assert seen == {"aaaa", "bbbb", "cccc"}


def test_a_session_outlives_its_model(model: Model) -> None:
    model.attach_lora()
    model.parameters["layers.0.v.lora_b"] = np.ones((32, 8))
    expected = model.logits(IDS)[-1]
    with model.decode_session() as session:
        model.close()
        assert np.array_equal(session.prefill(IDS), expected)
