"""Exceptions: a class for each status."""

from __future__ import annotations

import copy
import pickle

import pytest
from riftco_transformer import errors
from riftco_transformer._native import check, ffi, lib
from riftco_transformer.errors import RiftcoError, from_status

BUILTINS: dict[int, type[Exception]] = {
    1: ValueError, 2: IndexError, 3: OverflowError, 4: RuntimeError, 5: MemoryError, 6: RuntimeError,
    7: BufferError, 8: RuntimeError, 9: RuntimeError, 10: RuntimeError, 11: NotImplementedError,
    12: ValueError, 13: OSError, 14: RuntimeError, 15: TimeoutError, 16: RuntimeError, 17: RuntimeError,
    18: RuntimeError,
    19: FloatingPointError, 255: RuntimeError,
}  # fmt: skip


@pytest.mark.parametrize("status", BUILTINS)
def test_class_of_a_status(status: int) -> None:
    error = from_status(status, "the message")
    assert isinstance(error, BUILTINS[status])
    assert isinstance(error, RiftcoError)
    assert error.status == type(error).status == status
    assert str(error) == "the message"
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(again), str(again), again.status) == (type(error), str(error), status)


def test_all_statuses_of_the_abi_have_a_class() -> None:
    """The library names every status it knows."""
    unknown = ffi.string(lib.rt_status_name(200))
    known = {status for status in range(1, 256) if ffi.string(lib.rt_status_name(status)) != unknown}
    assert known == set(BUILTINS)


def test_unknown_status() -> None:
    error = from_status(77, "of a later library")
    assert type(error) is RiftcoError
    assert error.status == 77


def test_message_of_the_library() -> None:
    with pytest.raises(errors.InvalidArgumentError, match=r"^isa is NULL$"):
        check(lib.rt_cpu_isa(ffi.NULL))
