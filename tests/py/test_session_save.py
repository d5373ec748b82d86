"""Saved sessions from Python: another process goes on with the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from riftco_transformer.errors import (
    CacheExhaustedError,
    ContextFullError,
    CorruptDataError,
    InvalidArgumentError,
    RiftcoError,
)
from riftco_transformer.kv_cache import KvCacheFactory
from riftco_transformer.model import Model, ModelConfig

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
CONTINUE = """
import sys
import numpy as np
from riftco_transformer.model import Model
session = Model.load(sys.argv[1], threads=2).load_session(sys.argv[2], block_size=3)
np.save(sys.argv[3], np.stack([session.step(token) for token in (7, 8, 9)]))
"""


@pytest.mark.parametrize("cache_type", ["f32", "f16"])
def test_another_process_goes_on(model: Model, rift_path: Path, tmp_path: Path, cache_type: str) -> None:
    with model.decode_session(cache="contiguous", cache_type=cache_type) as session:
        session.prefill(IDS)
        session.save(tmp_path / "a.session")
        expected = np.stack([session.step(token) for token in (7, 8, 9)])
    arguments = [sys.executable, "-c", CONTINUE, rift_path, tmp_path / "a.session", tmp_path / "rows.npy"]
    subprocess.run(arguments, check=True, timeout=60)
    assert np.array_equal(np.load(tmp_path / "rows.npy"), expected)


def test_load_and_save_again_is_the_same_file(model: Model, tmp_path: Path) -> None:
    with model.decode_session(block_size=7) as session:
        session.prefill(IDS)
        session.save(tmp_path / "a")
    with model.load_session(tmp_path / "a", cache="contiguous") as loaded:
        assert loaded.size == len(IDS)
        assert loaded.cache_kind == "contiguous"
        loaded.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_refused(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "a"
    with model.decode_session() as session:
        session.prefill(IDS)
        session.save(path)
    with pytest.raises(ContextFullError):
        model.load_session(path, maximum_context=19)
    with (
        KvCacheFactory.paged(model, block_size=4, block_count=4) as pool,
        pytest.raises(CacheExhaustedError),
    ):
        model.load_session(path, factory=pool)
    with pytest.raises(InvalidArgumentError, match="keys and values are f32, the cache's bf16"):
        model.load_session(path, cache_type="bf16")
    with (
        Model.create(ModelConfig(maximum_context=64, layer_count=2), seed=8) as other,
        pytest.raises(InvalidArgumentError, match="saved from another model"),
    ):
        other.load_session(path)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match="checksum"):
        model.load_session(path)
    path.write_bytes(b"what")
    with pytest.raises(CorruptDataError):
        model.load_session(path)
    with pytest.raises(RiftcoError):
        model.load_session(tmp_path / "nothing")
    assert model.info.session_count == 0
