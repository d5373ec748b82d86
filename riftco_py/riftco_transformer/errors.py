"""Exceptions: one class for each status of the C ABI, all `RiftcoError` and also the builtin that fits
best.

An argument of the wrong type is a plain `TypeError`. A call that raises has left every object as it was
before.
"""

from __future__ import annotations


class RiftcoError(Exception):
    """Base of all errors of the engine. `status` is the number of the C ABI (rt_status)."""

    status: int = 0


class InvalidArgumentError(RiftcoError, ValueError):
    """An argument has a value that the call does not take."""

    status = 1


class OutOfRangeError(RiftcoError, IndexError):
    """A token, position or size is beyond its limit."""

    status = 2


class SizeOverflowError(RiftcoError, OverflowError):
    """A size does not fit into the machine's numbers or the engine's limits."""

    status = 3


class BackendUnavailableError(RiftcoError, RuntimeError):
    """The back end was not compiled in, or this machine lacks its hardware or library."""

    status = 4


class OutOfMemoryError(RiftcoError, MemoryError):
    """The machine or a memory limit has no room."""

    status = 5


class NativeRuntimeError(RiftcoError, RuntimeError):
    """The engine failed while it worked."""

    status = 6


class BufferTooSmallError(RiftcoError, BufferError):
    """An output buffer is too small."""

    status = 7


class ContextFullError(RiftcoError, RuntimeError):
    """The sequence has reached its maximum context."""

    status = 8


class CacheExhaustedError(RiftcoError, RuntimeError):
    """The key/value cache pool has no free page."""

    status = 9


class InvalidStateError(RiftcoError, RuntimeError):
    """The object cannot do this now: it is closed, inherited over fork(), nothing is running, ..."""

    status = 10


class UnsupportedError(RiftcoError, NotImplementedError):
    """A file or option asks for what this release does not compute."""

    status = 11


class CorruptDataError(RiftcoError, ValueError):
    """A file contradicts itself or its format."""

    status = 12


class InputOutputError(RiftcoError, OSError):
    """A file could not be read or written."""

    status = 13


class CancelledError(RiftcoError, RuntimeError):
    """A cancel flag was set."""

    status = 14


class DeadlineError(RiftcoError, TimeoutError):
    """A deadline has passed."""

    status = 15


class BusyError(RiftcoError, RuntimeError):
    """Another call is using the object."""

    status = 16


class QueueFullError(RiftcoError, RuntimeError):
    """A queue takes no more requests."""

    status = 17


class VersionMismatchError(RiftcoError, RuntimeError):
    """A file or library is of a version that this one does not read."""

    status = 18


class NonFiniteError(RiftcoError, FloatingPointError):
    """Logits or a cache value were infinite or not a number; the step was undone."""

    status = 19


class InternalError(RiftcoError, RuntimeError):
    """A mistake in the engine itself; please report it."""

    status = 255


_CLASSES = {
    c.status: c
    for c in (
        InvalidArgumentError, OutOfRangeError, SizeOverflowError, BackendUnavailableError, OutOfMemoryError,
        NativeRuntimeError, BufferTooSmallError, ContextFullError, CacheExhaustedError, InvalidStateError,
        UnsupportedError, CorruptDataError, InputOutputError, CancelledError, DeadlineError, BusyError,
        QueueFullError, VersionMismatchError, NonFiniteError, InternalError,
    )
}  # fmt: skip


def from_status(status: int, message: str) -> RiftcoError:
    """The exception of a failed call; a status that is unknown here is a plain `RiftcoError`."""
    error = _CLASSES.get(status, RiftcoError)(message)
    error.status = status
    return error
