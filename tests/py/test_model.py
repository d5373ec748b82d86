"""Models and bundles from Python."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from riftco_transformer import _native
from riftco_transformer.artifacts import ModelBundle, Runtime
from riftco_transformer.errors import (
    BackendUnavailableError,
    ContextFullError,
    CorruptDataError,
    InputOutputError,
    InvalidArgumentError,
    InvalidStateError,
    OutOfRangeError,
)
from riftco_transformer.model import Model, ModelConfig
from riftco_transformer.tokenizer import Tokenizer

SMALL = ModelConfig(vocabulary_size=32, maximum_context=16, layer_count=1, width=16, head_count=2,
                    kv_head_count=1, head_width=8, mlp_width=24, position="rotary", norm="rms",
                    activation="silu_gated", biases=frozenset({"q", "gate"}), tied_head=True, rotary_width=8,
                    rotary_base=5000.0, norm_epsilon=1e-6, rotary_scaling="yarn", rotary_original_context=8,
                    rotary_factor=2.0, rotary_slow_rotations=1.0, rotary_fast_rotations=4.0,
                    rotary_attention_factor=1.1, sliding_window=3, qk_norm=True)  # fmt: skip


def test_config_defaults_are_the_librarys() -> None:
    assert ModelConfig._from_native(_native.options("rt_model_config")) == ModelConfig()


def test_config_round_trip(tmp_path: Path) -> None:
    with Model.create(SMALL, seed=3) as model:
        assert model.config == SMALL
        model.save(tmp_path / "small.rift")
        with Model.load(tmp_path / "small.rift") as again:
            assert again.config == SMALL
            assert np.array_equal(model.logits([1, 2, 3]), again.logits([1, 2, 3]))
            assert again.info.parameter_count == model.info.parameter_count


def test_rotary_factors_are_a_parameter(tmp_path: Path) -> None:
    plain = ModelConfig(vocabulary_size=32, layer_count=1, width=16, head_width=4, mlp_width=24,
                        position="rotary", rotary_width=4)  # fmt: skip
    factors = dataclasses.replace(plain, rotary_scaling="factors")
    with Model.create(plain) as one, Model.create(factors) as two:
        assert two.info.parameter_count == one.info.parameter_count + 2
        two.save(tmp_path / "factors.rift")
        with Model.load(tmp_path / "factors.rift") as again:
            assert again.config == factors
            assert np.array_equal(again.logits([1, 2, 3]), two.logits([1, 2, 3]))


def test_create_is_a_function_of_the_seed() -> None:
    rows = []
    for seed in (1, 1, 2):
        with Model.create(SMALL, seed=seed) as model:
            rows.append(model.logits([5]))
    assert np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])


def test_threads_do_not_change_a_bit(rift_path: Path) -> None:
    rows = []
    for threads in (1, 2, 3):
        with Model.load(rift_path, threads=threads) as model:
            assert model.info.threads == threads
            rows.append(model.logits(range(50)))
    assert all(np.array_equal(row, rows[0]) for row in rows)


def test_info(model: Model) -> None:
    info = model.info
    assert info.backend == "cpu"
    assert info.parameter_count > 0
    assert info.weight_bytes >= 4 * info.parameter_count * 0.9
    assert info.session_count == 0


def test_logits(model: Model) -> None:
    rows = model.logits([1, 2, 3])
    assert rows.shape == (3, 256)
    assert rows.dtype == np.float32
    out = np.empty((3, 256), dtype=np.float32)
    assert model.logits([1, 2, 3], out=out) is out
    assert np.array_equal(out, rows)


def test_logits_of_a_batch(model: Model) -> None:
    batch = np.arange(10, dtype=np.int64).reshape(2, 5)
    rows = model.logits(batch)
    assert rows.shape == (2, 5, 256)
    assert np.array_equal(rows, [model.logits(batch[0]), model.logits(batch[1])])
    out = np.empty_like(rows)
    assert model.logits(batch.T.copy().T, out=out) is out
    assert np.array_equal(out, rows)
    with pytest.raises(InvalidArgumentError, match=r"\(1, 2, 3\)"):
        model.logits(np.ones((1, 2, 3), dtype=np.int64))
    with pytest.raises(TypeError, match="float64"):
        model.logits(np.ones((2, 3)))
    with pytest.raises(ContextFullError, match="65 tokens"):
        model.logits(np.ones((2, 65), dtype=np.uint32))
    with pytest.raises(OutOfRangeError, match="-1"):
        model.logits(np.array([[1, -1]]))


def test_logits_misuse(model: Model) -> None:
    with pytest.raises(InvalidArgumentError, match="at least one token"):
        model.logits([])
    with pytest.raises(OutOfRangeError, match="256"):
        model.logits([1, 256])
    with pytest.raises(ContextFullError, match=r"65 tokens .* 64"):
        model.logits([1] * 65)
    with pytest.raises(InvalidArgumentError, match="shape"):
        model.logits([1, 2], out=np.empty((1, 256), dtype=np.float32))
    assert model.logits([1]).shape == (1, 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_count": 3}, "kv_head_count 4 does not divide head_count 3"),
        ({"width": 0}, "width"),
        ({"layer_count": 0}, "layer"),
        ({"position": "absolute"}, "position must be one of learned, rotary, not 'absolute'"),
        ({"biases": frozenset({"x"})}, "a bias must be one of q, k"),
        ({"vocabulary_size": -1}, "vocabulary_size must be in 0 .. 4294967295, not -1"),
        ({"vocabulary_size": 2**32}, "vocabulary_size must be in 0"),
        ({"norm_epsilon": float("nan")}, "nan"),
    ],
)
def test_bad_configs(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Model.create(ModelConfig(**changes))  # type: ignore[arg-type]


def test_bad_config_types() -> None:
    with pytest.raises(TypeError, match="config must be a ModelConfig, not dict"):
        Model.create({})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="width must be an integer, not float"):
        Model.create(ModelConfig(width=128.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tied_head must be a bool, not int"):
        Model.create(ModelConfig(tied_head=1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="qk_norm must be a bool, not int"):
        Model.create(ModelConfig(qk_norm=1))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="rotary_scaling must be one of none, linear"):
        Model.create(ModelConfig(rotary_scaling="ntk"))
    with pytest.raises(InvalidArgumentError, match="seed must be in 0"):
        Model.create(SMALL, seed=-1)


def test_handles_refuse_copies_and_use_after_close(rift_path: Path) -> None:
    model = Model.load(rift_path)
    for refuse in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="a model cannot be"):
            refuse(model)
    model.close()
    model.close()
    for use in (lambda: model.info, model.decode_session, lambda: model.logits([1]), model.tokenizer):
        with pytest.raises(InvalidStateError, match="the model is closed"):
            use()
    assert model.config.width == 128
    assert repr(model) == "Model(closed)"


def test_bundle(rift_path: Path) -> None:
    bundle = ModelBundle.load(rift_path)
    assert bundle.path == str(rift_path)
    assert ModelBundle.load(str(rift_path)).info == bundle.info
    names = {tensor["name"] for tensor in bundle.info["tensors"]}
    assert len(names) == len(bundle.info["tensors"]) > 10
    with bundle.instantiate("cpu") as one, bundle.instantiate("cpu", threads=2) as two:
        assert np.array_equal(one.model.logits([1]), two.model.logits([1]))
        assert one.tokenizer is one.tokenizer


def test_bundle_misuse(rift_path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputOutputError, match="missing"):
        ModelBundle.load(tmp_path / "missing.rift")
    with pytest.raises(TypeError):
        ModelBundle.load(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="NUL"):
        ModelBundle.load("a\0b")
    damaged = bytearray(rift_path.read_bytes())
    damaged[-5] ^= 1
    (tmp_path / "damaged.rift").write_bytes(damaged)
    with pytest.raises(CorruptDataError, match="damaged"):
        Model.load(tmp_path / "damaged.rift")
    (tmp_path / "text.gguf").write_text("this is no model")
    with pytest.raises(ValueError, match="text"):
        ModelBundle.load(tmp_path / "text.gguf")
    bundle = ModelBundle.load(rift_path)
    for backend in ("cuda", "metal", "tpu"):
        with pytest.raises(BackendUnavailableError):
            bundle.instantiate(backend)
    with pytest.raises(InvalidArgumentError, match="backend must be one of cpu, metal, cuda, tpu, not 'gpu'"):
        bundle.instantiate("gpu")
    with pytest.raises(InvalidArgumentError, match="threads must be in 0"):
        bundle.instantiate("cpu", threads=-1)
    bundle.instantiate("cpu").close()


def test_runtime_without_a_tokenizer(tmp_path: Path) -> None:
    with Model.create(SMALL) as model:
        model.save(tmp_path / "small.rift")
    with ModelBundle.load(tmp_path / "small.rift").instantiate() as runtime:
        with pytest.raises(InvalidStateError, match="tokenizer"):
            _ = runtime.tokenizer
        assert runtime.model.logits([1]).shape == (1, 32)


def test_runtime_close(runtime: Runtime) -> None:
    tokenizer = runtime.tokenizer
    runtime.close()
    runtime.close()
    assert runtime.closed
    assert tokenizer.closed
    for use in (lambda: runtime.model, lambda: runtime.tokenizer, runtime.__enter__):
        with pytest.raises(InvalidStateError, match="the runtime is closed"):
            use()


def test_save_is_complete_or_not_at_all(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "a.rift")
    model.save(tmp_path / "b.rift")
    assert (tmp_path / "a.rift").read_bytes() == (tmp_path / "b.rift").read_bytes()
    with pytest.raises(InputOutputError):
        model.save(tmp_path / "no-folder" / "a.rift")
    with pytest.raises(InputOutputError):
        model.save(tmp_path, format="rift")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.rift", "b.rift"]
    with Tokenizer.load(tmp_path / "a.rift") as tokenizer:
        assert tokenizer.kind == "byte"
