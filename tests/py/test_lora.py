"""Adapters, and what may change while a model serves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from oracle_support import GOLDEN, read_golden
from riftco_transformer.errors import (
    BackendUnavailableError,
    CorruptDataError,
    InputOutputError,
    InvalidArgumentError,
    InvalidStateError,
    NonFiniteError,
    OutOfMemoryError,
    OutOfRangeError,
    UnsupportedError,
)
from riftco_transformer.model import LoraInfo, Model, ModelConfig
from riftco_transformer.serving import TextGenerator
from riftco_transformer.tokenizer import Tokenizer
from safetensors.numpy import load_file, save_file

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


def test_adapters_count_against_the_memory_limit() -> None:
    with Model.create(CONFIG) as free:
        limit = free.info.weight_bytes + 20000
    with Model.create(CONFIG, memory_limit=limit) as model:
        with pytest.raises(OutOfMemoryError, match="adapters"):
            model.attach_lora(rank=32, targets=("q", "k", "v", "o"))
        assert model.lora is None
        model.attach_lora(rank=1)


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


# --- files


def changed_folder(source: Path, target: Path, **fields: object) -> Path:
    """A PEFT folder with other fields in its config."""
    shutil.copytree(source, target)
    config = json.loads((target / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps(config | fields))
    return target


@pytest.mark.parametrize(
    ("name", "base"),
    [("llama", "llama-gqa-untied"), ("llama-rslora", "llama-gqa-untied"), ("gpt2", "gpt2-tied")],
)
def test_peft_folders_compute_what_peft_computes(name: str, base: str, tmp_path: Path) -> None:
    golden = read_golden(GOLDEN / "lora" / "golden.npz")
    ids, expected = golden[f"{name}.ids"], golden[f"{name}.logits"]
    with Model.load(GOLDEN / "models" / base) as model:
        plain = model.logits(ids)
        model.load_lora(GOLDEN / "lora" / name)
        logits = model.logits(ids)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
        assert np.abs(logits - plain).max() > 0.1
        model.save_lora(tmp_path / "native.safetensors")
        model.merge_lora()
        np.testing.assert_allclose(model.logits(ids), expected, rtol=0, atol=1e-4)
    with Model.load(GOLDEN / "models" / base) as model:
        model.load_lora(tmp_path / "native.safetensors")
        assert np.array_equal(model.logits(ids), logits)


def test_gpt2s_fused_matrix_becomes_three() -> None:
    with Model.load(GOLDEN / "models" / "gpt2-tied") as model:
        model.load_lora(GOLDEN / "lora" / "gpt2")
        assert model.lora == LoraInfo(4, 8.0, frozenset({"q", "k", "v", "o", "up", "down"}), 0)
        parameters = model.parameters
        tensors = load_file(GOLDEN / "lora" / "gpt2" / "adapter_model.safetensors")
        c_attn = "base_model.model.transformer.h.1.attn.c_attn.lora_"
        for i, part in enumerate("qkv"):
            assert np.array_equal(parameters[f"layers.1.{part}.lora_a"], tensors[c_attn + "A.weight"])
            rows = tensors[c_attn + "B.weight"][48 * i : 48 * (i + 1)]
            assert np.array_equal(parameters[f"layers.1.{part}.lora_b"], rows)


def test_written_folders_have_pefts_names_and_values(tmp_path: Path) -> None:
    theirs = load_file(GOLDEN / "lora" / "llama" / "adapter_model.safetensors")
    with Model.load(GOLDEN / "models" / "llama-gqa-untied") as model:
        model.load_lora(GOLDEN / "lora" / "llama")
        model.save_lora(tmp_path / "ours")
    ours = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        assert np.array_equal(ours[name], values), name
    config = json.loads((tmp_path / "ours" / "adapter_config.json").read_text())
    reference = json.loads((GOLDEN / "lora" / "llama" / "adapter_config.json").read_text())
    assert config.keys() <= reference.keys()
    for field in config.keys() - {"target_modules", "base_model_name_or_path"}:
        assert config[field] == reference[field], field
    assert set(config["target_modules"]) == set(reference["target_modules"])


def test_folders_that_ask_for_something_else_are_refused_by_name(tmp_path: Path) -> None:
    source = GOLDEN / "lora" / "llama"
    unsupported = {
        "use_dora": True,
        "rank_pattern": {"q_proj": 3},
        "alpha_pattern": {"q_proj": 3},
        "modules_to_save": ["lm_head"],
        "layers_to_transform": [0],
        "bias": "all",
        "peft_type": "LOHA",
        "init_lora_weights": "pissa",
        "lora_bias": True,
        "target_parameters": ["experts"],
        "a_field_of_tomorrow": 3,
        "use_rslora": "yes",
    }
    with Model.load(GOLDEN / "models" / "llama-gqa-untied") as model:
        for field, value in unsupported.items():
            with pytest.raises(UnsupportedError, match=field):
                model.load_lora(changed_folder(source, tmp_path / field, **{field: value}))
        for i, (field, value) in enumerate(
            [
                ("r", 3),
                ("r", "4"),
                ("r", None),
                ("r", -4),
                ("r", 2**40),
                ("r", 0),
                ("lora_alpha", "6"),
                ("lora_alpha", -1),
                ("lora_alpha", None),
            ]
        ):
            with pytest.raises(CorruptDataError):
                model.load_lora(changed_folder(source, tmp_path / f"corrupt{i}", **{field: value}))
        model.load_lora(changed_folder(source, tmp_path / "fine", a_field_of_tomorrow=None))
        model.detach_lora()
        with pytest.raises(InputOutputError, match=r"adapter_\w+\."):
            model.load_lora(GOLDEN / "models" / "llama-gqa-untied")
        with pytest.raises(CorruptDataError, match="come as a folder"):
            model.load_lora(source / "adapter_model.safetensors")
        with pytest.raises(CorruptDataError, match="first layer"):
            model.load_lora(GOLDEN / "lora" / "gpt2")
        assert model.lora is None
    with Model.load(GOLDEN / "models" / "llama-odd") as other, pytest.raises(CorruptDataError, match="shape"):
        other.load_lora(source)


@pytest.mark.parametrize("change", ["missing", "missing pair", "unknown", "integers"])
def test_folders_with_other_tensors_are_refused(change: str, tmp_path: Path) -> None:
    source, target = GOLDEN / "lora" / "llama-rslora", tmp_path / "adapter"
    shutil.copytree(source, target)
    tensors = load_file(source / "adapter_model.safetensors")
    second = "base_model.model.model.layers.1.self_attn.k_proj.lora_"
    if change == "missing pair":
        del tensors[second + "A.weight"], tensors[second + "B.weight"]
    elif change == "missing":
        del tensors[second + "B.weight"]
    elif change == "unknown":
        tensors["base_model.model.lm_head.base_layer.weight"] = np.zeros((2, 2), np.float32)
    else:
        tensors[second + "A.weight"] = tensors[second + "A.weight"].astype(np.int32)
    save_file(tensors, target / "adapter_model.safetensors")
    error = CorruptDataError if change.startswith("missing") else UnsupportedError
    name = "lm_head" if change == "unknown" else "k_proj"
    with Model.load(GOLDEN / "models" / "llama-gqa-untied") as model:
        with pytest.raises(error, match=name):
            model.load_lora(target)
        assert model.lora is None
