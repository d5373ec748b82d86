"""Models from paths, files and bytes; progress, cancelling, memory limits, metadata."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.cancel import CancelFlag
from riftco_transformer.errors import (
    CancelledError,
    CorruptDataError,
    InputOutputError,
    InvalidArgumentError,
    OutOfMemoryError,
    UnsupportedError,
)
from riftco_transformer.kv_cache import KvCacheFactory
from riftco_transformer.model import Model

GOLDEN = Path(__file__).parent.parent / "golden"


def logits_of(bundle: ModelBundle) -> np.ndarray:
    with bundle.instantiate() as runtime:
        return runtime.model.logits([1, 2, 3])


@pytest.mark.parametrize("kind", ["rift", "gguf"])
def test_path_file_and_bytes_are_the_same_model(kind: str, rift_path: Path) -> None:
    path = rift_path if kind == "rift" else GOLDEN / "gguf/llama-q8_0-tied.gguf"
    expected = logits_of(ModelBundle.load(path))
    data = path.read_bytes()
    for content in (data, bytearray(data), memoryview(data)):
        bundle = ModelBundle.load(content)
        assert bundle.path == f"<{len(data)} bytes>"
        assert bundle.info["format"] == kind
        assert np.array_equal(logits_of(bundle), expected)
    with path.open("rb") as file:
        file.seek(3)
        bundle = ModelBundle.load(file)
        assert np.array_equal(logits_of(bundle), expected)
        assert file.tell() == 3
    with pytest.raises(ValueError, match="closed file"):
        bundle.instantiate()
    folder_free = ModelBundle.load(os.fspath(path))
    assert folder_free.path == str(path)


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a model is read from a path, bytes or a file, not int"):
        ModelBundle.load(3)  # type: ignore[arg-type]
    with pytest.raises(io.UnsupportedOperation):
        ModelBundle.load(io.BytesIO(b"GGUF"))
    with pytest.raises(CorruptDataError, match="the buffer"):
        ModelBundle.load(b"GGUF")
    read, write = os.pipe()
    with (
        os.fdopen(read) as pipe,
        os.fdopen(write, "w"),
        pytest.raises(InputOutputError, match="not a regular"),
    ):
        ModelBundle.load(pipe)


def test_progress_comes_to_its_end(rift_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    Model.load(rift_path, progress=lambda done, total: seen.append((done, total))).close()
    assert seen[-1][0] == seen[-1][1] > 0
    assert seen == sorted(seen)
    assert len({total for _, total in seen}) == 1


def test_exception_of_the_listener_ends_the_load(rift_path: Path) -> None:
    def listener(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 3:
            raise LookupError("enough")

    calls: list[int] = []
    cancel = CancelFlag()
    with pytest.raises(LookupError, match="enough"):
        Model.load(rift_path, progress=listener, cancel=cancel)
    assert len(calls) == 3
    assert not cancel.is_set
    Model.load(rift_path, cancel=cancel).close()
    with pytest.raises(TypeError, match="progress must be callable, not int"):
        Model.load(rift_path, progress=3)  # type: ignore[arg-type]


def test_cancel(rift_path: Path) -> None:
    cancel = CancelFlag()
    cancel.set()
    bundle = ModelBundle.load(rift_path)
    with pytest.raises(CancelledError):
        bundle.instantiate(cancel=cancel)
    cancel.reset()
    bundle.instantiate(cancel=cancel).close()


def test_ctrl_c_ends_a_load(rift_path: Path) -> None:
    """The signal comes while the library reads."""
    with pytest.raises(KeyboardInterrupt):
        Model.load(rift_path, progress=lambda done, total: os.kill(os.getpid(), signal.SIGINT))


def test_memory_limits(rift_path: Path) -> None:
    with Model.load(rift_path) as model:
        weights = model.info.weight_bytes
        with model.decode_session() as session:
            session.step(1)
        activations = model.info.workspace_bytes
        page = ModelBundle.load(rift_path).kv_cache_bytes(1)
        pool = KvCacheFactory.paged(model, memory_limit=page)
        with model.decode_session(factory=pool) as session:
            session.prefill(range(16))
            with pytest.raises(OutOfMemoryError, match=f"{page} bytes are needed .* the limit is {page}"):
                session.step(1)
            assert session.size == 16
        contiguous = KvCacheFactory.contiguous(model, memory_limit=1)
        with model.decode_session(factory=contiguous) as session, pytest.raises(OutOfMemoryError):
            session.step(1)
    with pytest.raises(OutOfMemoryError, match=f"{weights} bytes are needed .* the limit is {weights - 1}"):
        Model.load(rift_path, memory_limit=weights - 1)
    with (
        Model.load(rift_path, memory_limit=weights + activations) as model,
        model.decode_session() as session,
    ):
        session.step(1)


def test_estimate_is_what_is_taken(rift_path: Path) -> None:
    bundle = ModelBundle.load(rift_path)
    with bundle.instantiate() as runtime:
        assert runtime.model.info.weight_bytes == bundle.info["memory"]["weight_bytes"]
        for kind in ("f32", "f16", "bf16"):
            pool = KvCacheFactory.paged(runtime.model, cache_type=kind)
            with runtime.model.decode_session(factory=pool) as session:
                for tokens in (1, 15, 1, 40, 7):  # up to the maximum context
                    session.prefill([1] * tokens)
                    assert pool.usage().allocated_bytes == bundle.kv_cache_bytes(session.size, kind)
    assert bundle.info["memory"]["kv_cache_bytes_full_context"] == bundle.kv_cache_bytes(64)


def test_metadata() -> None:
    gguf = ModelBundle.load(GOLDEN / "gguf/llama-q8_0-tied.gguf").metadata
    assert gguf["general.architecture"] == "llama"
    assert gguf["llama.block_count"].isdigit()
    assert "tokenizer.ggml.tokens" not in gguf  # too long
    folder = ModelBundle.load(GOLDEN / "models/gpt2-tied").metadata
    assert folder["model_type"] == "gpt2"
    with pytest.raises(TypeError):
        folder["model_type"] = "x"  # type: ignore[index]


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_types(rift_path: Path, kind: str, tmp_path: Path) -> None:
    ids = [1, 2, 3]
    with Model.load(rift_path) as model:
        model.save(tmp_path / "saved.rift", type=kind)
    with Model.load(tmp_path / "saved.rift") as saved:
        expected = saved.logits(ids)
    data = rift_path.read_bytes()
    with rift_path.open("rb") as file:
        for source in (rift_path, data, file):
            with ModelBundle.load(source).instantiate(type=kind) as runtime:
                np.testing.assert_array_equal(runtime.model.logits(ids), expected)
    with pytest.raises(ValueError, match="type"):
        Model.load(rift_path, type="q6_k")


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bf16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def test_compute_bf16(rift_path: Path, tmp_path: Path) -> None:
    ids = list(range(1, 50))
    with (
        Model.load(rift_path, type="bf16") as exact,
        ModelBundle.load(rift_path).instantiate(type="bf16", compute="bf16") as runtime,
    ):
        model = runtime.model
        assert (exact.info.compute, model.info.compute) == ("exact", "bf16")
        with model.decode_session() as session:
            hidden = session.hidden_states(ids)
            session.save(tmp_path / "session.safetensors")
        with pytest.raises(InvalidArgumentError, match="saved from another model"):
            exact.load_session(tmp_path / "session.safetensors")
        logits, plain = model.logits(ids), exact.logits(ids)
        head, bias = (np.float64(model.parameters[f"head.{name}"]) for name in ("weight", "bias"))
    # The head multiplies the rounded states. A sum of n terms in float32 is off by at most about n 2^-24 of the sum of their
    # sizes; the factors of bf16 have products that are exact.
    rounded = np.float64(to_bf16(hidden))
    sum_error = 1.01 * (hidden.shape[1] + 1) * 2**-24 * (abs(rounded) @ abs(head.T) + abs(bias))
    assert (abs(logits - (rounded @ head.T + bias)) <= sum_error).all()
    assert (abs(logits - (np.float64(hidden) @ head.T + bias)) > sum_error).any()
    # Each of a layer's four products in a row, and the head, sees inputs that are off by at most 2^-8 of themselves; norms and
    # small weights keep what is off from growing.
    off = np.linalg.norm(logits - plain) / np.linalg.norm(plain)
    assert 0 < off < 2**-8 * (4 * exact.config.layer_count + 1)


def test_compute_bf16_needs_matrices_of_bf16(rift_path: Path) -> None:
    for options in ({}, {"type": "f16"}, {"type": "q8_0"}):
        with pytest.raises(UnsupportedError, match="load it with type bf16"):
            Model.load(rift_path, compute="bf16", **options)
    with pytest.raises(UnsupportedError, match="load it with type bf16"):
        Model.create(compute="bf16")
    with pytest.raises(ValueError, match="compute must be one of exact, bf16, not 'f16'"):
        Model.load(rift_path, compute="f16")
    with Model.create(type="bf16", compute="bf16") as model:
        assert model.info.compute == "bf16"
        model.attach_lora(rank=2)
        model.merge_lora()
        assert model.info.compute == "exact"  # its matrices are float32 now
