"""Decode sessions: what they compute, refuse and survive."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from riftco_transformer.artifacts import Runtime
from riftco_transformer.errors import (
    CacheExhaustedError,
    ContextFullError,
    InvalidArgumentError,
    InvalidStateError,
    OutOfRangeError,
)
from riftco_transformer.kv_cache import KvCacheFactory
from riftco_transformer.model import Model
from riftco_transformer.session import DecodeSession, step_many

IDS = list(range(3, 40))


@pytest.fixture
def session(model: Model) -> Iterator[DecodeSession]:
    with model.decode_session() as session:
        yield session


def rows_of(session: DecodeSession, ids: list[int]) -> np.ndarray:
    return np.stack([session.step(token) for token in ids])


def test_step_is_the_full_sequence_bit_for_bit(model: Model, session: DecodeSession) -> None:
    rows = rows_of(session, IDS)
    assert rows.dtype == np.float32
    assert np.array_equal(rows, model.logits(IDS))
    assert len(session) == session.size == len(IDS)


@pytest.mark.parametrize(
    ("cache", "block_size", "reported"),
    [("paged", 1, 1), ("paged", 3, 3), ("paged", 64, 64), ("paged", 1000, None), ("contiguous", 16, 64)],
)
def test_caches_do_not_change_a_bit(
    model: Model, session: DecodeSession, cache: str, block_size: int, reported: int | None
) -> None:
    with model.decode_session(cache=cache, block_size=block_size) as other:
        assert np.array_equal(rows_of(other, IDS), rows_of(session, IDS))
        assert other.cache_kind == cache
        assert other.block_size == (reported or other.block_size)
        assert other.capacity == 64


@pytest.mark.parametrize(("cache_type", "tolerance"), [("f16", 2e-3), ("bf16", 2e-2)])
def test_sixteen_bit_caches_take_half_the_memory_and_stay_exact(
    model: Model, cache_type: str, tolerance: float
) -> None:
    with model.decode_session(cache="contiguous", cache_type=cache_type) as plain:
        rows = rows_of(plain, IDS)
    expected = model.logits(IDS)
    assert 0 < np.abs(rows - expected).max() < tolerance * np.abs(expected).max()
    pools = {kind: KvCacheFactory.paged(model, block_size=3, cache_type=kind) for kind in ("f32", cache_type)}
    for pool in pools.values():
        with model.decode_session(factory=pool) as other:
            last = other.prefill(IDS)
    assert np.array_equal(last, rows[-1])  # of the 16-bit pool
    half, whole = pools[cache_type].usage().allocated_bytes, pools["f32"].usage().allocated_bytes
    assert abs(2 * half - whole) <= 64 * pools["f32"].usage().block_count  # pages are padded to 64 bytes
    other_type = "bf16" if cache_type == "f16" else "f16"
    with pytest.raises(InvalidArgumentError, match="an element type of"):
        model.decode_session(factory=pools[cache_type], cache_type=other_type)


def test_prefill_is_all_steps(model: Model, session: DecodeSession) -> None:
    expected = model.logits(IDS)
    assert np.array_equal(session.prefill(IDS[:5]), expected[4])
    assert np.array_equal(session.prefill(np.array(IDS[5:], dtype=np.int16)), expected[-1])
    assert session.size == len(IDS)


def test_truncate_reset_and_fork(model: Model, session: DecodeSession) -> None:
    expected = model.logits(IDS)
    session.prefill(IDS)
    session.truncate(20)
    with session.fork() as fork:
        assert fork.size == 20
        assert np.array_equal(fork.step(IDS[20]), expected[20])
        assert session.size == 20
    assert np.array_equal(session.step(IDS[20]), expected[20])
    session.reset()
    assert session.size == 0
    assert np.array_equal(session.step(IDS[0]), expected[0])


def test_step_many_is_each_alone(model: Model) -> None:
    sessions = [model.decode_session() for _ in range(3)]
    for n, session in enumerate(sessions):
        session.prefill(IDS[: 2 + 5 * n])
    rows = step_many(sessions, np.array([9, 8, 7]))
    assert rows.shape == (3, 256)
    for n, token in enumerate((9, 8, 7)):
        assert np.array_equal(rows[n], model.logits([*IDS[: 2 + 5 * n], token])[-1])
    out = np.empty((3, 256), dtype=np.float32)
    assert step_many(sessions, [1, 2, 3], out=out) is out


def test_out_is_filled_and_returned(session: DecodeSession) -> None:
    out = np.full(256, np.nan, dtype=np.float32)
    assert session.step(5, out=out) is out
    assert np.isfinite(out).all()
    assert session.prefill([5], out=out) is out


def test_each_array_is_fresh(session: DecodeSession) -> None:
    first = session.step(1)
    kept = first.copy()
    session.step(2)
    assert np.array_equal(first, kept)


def test_numpy_integers_are_integers(session: DecodeSession) -> None:
    for kind in (np.int8, np.uint8, np.int64, np.uint64):
        session.step(kind(5))
    session.prefill([np.int32(3), 4])
    session.prefill(np.arange(4, dtype=np.uint64))
    session.prefill(range(3))
    session.truncate(np.uint8(2))
    assert session.size == 2


MISUSES: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda s: s.step(256), OutOfRangeError, "token 256 is not below the vocabulary size 256"),
    (lambda s: s.step(-1), OutOfRangeError, "token -1 is not in 0 .. 4294967295"),
    (lambda s: s.step(2**32), OutOfRangeError, "token 4294967296 is not in"),
    (lambda s: s.step(10**5000), OutOfRangeError, "token a number of 16610 bits is not in"),
    (lambda s: s.step(True), TypeError, "a token must be an integer, not bool"),
    (lambda s: s.step(np.True_), TypeError, "a token must be an integer, not bool"),
    (lambda s: s.step(1.0), TypeError, "a token must be an integer, not float"),
    (lambda s: s.step(np.float32(1)), TypeError, "a token must be an integer, not float32"),
    (lambda s: s.step("1"), TypeError, "a token must be an integer, not str"),
    (lambda s: s.step(None), TypeError, "a token must be an integer, not NoneType"),
    (lambda s: s.prefill([]), InvalidArgumentError, "at least one token is needed"),
    (lambda s: s.prefill([1, 256]), OutOfRangeError, "token 256 is not below the vocabulary size"),
    (lambda s: s.prefill([1, -1]), OutOfRangeError, "token -1"),
    (lambda s: s.prefill(np.array([1, -1])), OutOfRangeError, "token -1"),
    (lambda s: s.prefill(np.array([1, 2**40])), OutOfRangeError, "token 1099511627776"),
    (lambda s: s.prefill([True, 1]), TypeError, "not bool"),
    (lambda s: s.prefill(np.array([1.0])), TypeError, "tokens must be integers, not float64"),
    (lambda s: s.prefill(np.array([True])), TypeError, "tokens must be integers, not bool"),
    (lambda s: s.prefill(np.array([[1]])), InvalidArgumentError, "one dimension"),
    (lambda s: s.prefill("abc"), TypeError, "tokens must be a sequence of integers, not str"),
    (lambda s: s.prefill(b"abc"), TypeError, "not bytes"),
    (lambda s: s.prefill(7), TypeError, "not int"),
    (lambda s: s.prefill([0] * 62), ContextFullError, "64"),
    (lambda s: s.truncate(4), OutOfRangeError, "4"),
    (lambda s: s.truncate(-1), InvalidArgumentError, "new_size must be in 0 .."),
    (lambda s: s.truncate(2**64), InvalidArgumentError, "new_size must be in 0 .."),
    (lambda s: s.truncate(1.5), TypeError, "new_size must be an integer, not float"),
    (lambda s: s.step(1, out=np.empty(256)), TypeError, "out must be a numpy array of float32, not float64"),
    (lambda s: s.step(1, out=np.empty(256, dtype=">f4")), TypeError, "not >f4"),
    (lambda s: s.step(1, out=[0.0] * 256), TypeError, "not list"),
    (
        lambda s: s.step(1, out=np.empty(255, np.float32)),
        InvalidArgumentError,
        r"shape \(256,\), not \(255,\)",
    ),
    (lambda s: s.step(1, out=np.empty((1, 256), np.float32)), InvalidArgumentError, "shape"),
    (lambda s: s.step(1, out=np.empty(512, np.float32)[::2]), InvalidArgumentError, "C-contiguous"),
    (lambda s: s.step(1, out=read_only()), InvalidArgumentError, "writable"),
    (lambda s: step_many([s, s], [1, 2]), InvalidArgumentError, "session 1 is in the batch twice"),
    (lambda s: step_many([], []), InvalidArgumentError, "no sessions"),
    (lambda s: step_many([s], [1, 2]), InvalidArgumentError, "1 sessions but 2 tokens"),
    (lambda s: step_many([s], [300]), OutOfRangeError, "300"),
    (lambda s: step_many([None], [1]), TypeError, "a session must be a DecodeSession"),  # type: ignore[list-item]
    (copy.copy, TypeError, "a decode session cannot be copied"),
    (copy.deepcopy, TypeError, "a decode session cannot be copied"),
    (pickle.dumps, TypeError, "a decode session cannot be pickled"),
]


def read_only() -> np.ndarray:
    array = np.empty(256, dtype=np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(("misuse", "error", "message"), MISUSES)
def test_misuse_changes_nothing(
    model: Model,
    session: DecodeSession,
    misuse: Callable[[Any], object],
    error: type[Exception],
    message: str,
) -> None:
    session.prefill([1, 2, 3])
    with pytest.raises(error, match=message):
        misuse(session)
    assert session.size == 3
    assert np.array_equal(session.step(4), model.logits([1, 2, 3, 4])[-1])


def test_context_full_changes_nothing(model: Model) -> None:
    with model.decode_session(maximum_context=3) as session:
        session.prefill([1, 2, 3])
        with pytest.raises(ContextFullError):
            session.step(4)
        session.truncate(2)
        assert np.array_equal(session.step(3), model.logits([1, 2, 3])[-1])


def test_pool_without_pages(model: Model) -> None:
    with KvCacheFactory.paged(model, block_size=4, block_count=2) as pool:
        assert pool.usage()[:3] == (4, 2, 2)
        first, second = model.decode_session(factory=pool), model.decode_session(factory=pool)
        first.prefill(IDS[:8])
        assert pool.usage().free_count == 0
        assert pool.usage().allocated_bytes > 0
        with pytest.raises(CacheExhaustedError):
            second.step(1)
        assert second.size == 0
        with pytest.raises(CacheExhaustedError):
            step_many([second, first], [1, 2])
        first.close()
        assert pool.usage().free_count == 2
        assert np.array_equal(second.prefill(IDS[:8]), model.logits(IDS[:8])[-1])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cache": "pages"}, InvalidArgumentError, "cache must be one of contiguous, paged, not 'pages'"),
        ({"cache": 1}, TypeError, "cache must be a str, not int"),
        (
            {"cache_type": "q8_0"},
            InvalidArgumentError,
            "cache_type must be one of f32, f16, bf16, not 'q8_0'",
        ),
        ({"block_size": 0}, InvalidArgumentError, "a block needs at least one token"),
        ({"block_size": -1}, InvalidArgumentError, "block_size must be in 0 .."),
        ({"block_size": True}, TypeError, "block_size must be an integer, not bool"),
        ({"block_size": 16.0}, TypeError, "block_size must be an integer, not float"),
        ({"maximum_context": 65}, OutOfRangeError, "65 tokens is more than the model's 64"),
        ({"factory": 3}, TypeError, "factory must be a KvCacheFactory, not int"),
    ],
)
def test_bad_session_options(
    model: Model, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        model.decode_session(**options)  # type: ignore[arg-type]
    assert model.info.session_count == 0


def test_close(model: Model) -> None:
    session = model.decode_session()
    assert model.info.session_count == 1
    session.close()
    session.close()
    assert session.closed
    assert model.info.session_count == 0
    for use in (
        lambda: session.step(1),
        lambda: session.prefill([1]),
        lambda: session.size,
        session.fork,
        session.reset,
        lambda: step_many([session], [1]),
        session.__enter__,
    ):
        with pytest.raises(InvalidStateError, match="the decode session is closed"):
            use()
    assert repr(session) == "DecodeSession(closed)"


def test_session_outlives_its_runtime(runtime: Runtime) -> None:
    model = runtime.model
    expected = model.logits([1, 2])[-1]
    with model.decode_session() as session:
        session.step(1)
        runtime.close()
        assert np.array_equal(session.step(2), expected)
        with pytest.raises(InvalidStateError, match="the model is closed"):
            model.decode_session()


def test_one_session_from_many_threads(model: Model, session: DecodeSession) -> None:
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda _: session.step(5), range(40)))
    assert session.size == 40
    expected = {row.tobytes() for row in model.logits([5] * 40)}
    assert {row.tobytes() for row in rows} == expected


def test_many_sessions_from_many_threads(model: Model) -> None:
    expected = model.logits(IDS)

    def run(_: int) -> bool:
        with model.decode_session() as session:
            return np.array_equal(rows_of(session, IDS), expected)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))


def test_step_many_from_two_threads_in_two_orders(model: Model) -> None:
    one, two = model.decode_session(), model.decode_session()

    def run(sessions: list[DecodeSession]) -> None:
        for _ in range(20):
            step_many(sessions, [1, 1])

    threads = [threading.Thread(target=run, args=(pair,)) for pair in ([one, two], [two, one])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert one.size == two.size == 40


def test_close_under_a_running_call(model: Model) -> None:
    sessions = [model.decode_session() for _ in range(10)]
    with ThreadPoolExecutor(2) as pool:
        for session in sessions:
            call = pool.submit(session.prefill, IDS)
            session.close()
            assert isinstance(call.exception(), (InvalidStateError, type(None)))
    assert model.info.session_count == 0
