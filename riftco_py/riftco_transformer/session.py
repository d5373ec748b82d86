"""Decode sessions: one sequence, token by token, over a transactional key/value cache."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, SupportsIndex

from ._native import (
    FloatArray,
    Handle,
    Tokens,
    check,
    create,
    ffi,
    float_output,
    float_pointer,
    instance,
    integer,
    lib,
    token_array,
    token_id,
    token_pointer,
)
from .cancel import CancelFlag, interruptible
from .errors import InvalidArgumentError
from .kv_cache import CACHE_NAMES


class DecodeSession(Handle):
    """One sequence of a model. Made by `Model.decode_session` and `fork`.

    Safe from any thread: calls on one session wait for each other. A call that raises (`ContextFullError`,
    `CacheExhaustedError`, `NonFiniteError`, a bad token, ...) has changed nothing. The session keeps what
    it needs of the model alive.
    """

    __slots__ = ("_cancel", "_lock", "_vocabulary_size")
    _kind = "decode session"
    _release = "rt_decode_session_release"

    def __init__(self, native: Any, vocabulary_size: int, cancel: CancelFlag) -> None:
        """Not called directly."""
        self._cancel = cancel
        super().__init__(native)
        self._vocabulary_size = vocabulary_size
        self._lock = threading.RLock()

    def step(self, token: SupportsIndex, out: FloatArray | None = None) -> FloatArray:
        """Decodes one token and returns the logits of the next: float32 [vocabulary_size], a fresh array
        or `out`."""
        number = token_id(token)
        logits = float_output(out, (self._vocabulary_size,))
        required = ffi.new("uint64_t *")
        with self._lock:
            check(
                lib.rt_decode_session_step(
                    self._pointer(), number, float_pointer(logits), self._vocabulary_size, required
                )
            )
        return logits

    def prefill(self, tokens: Tokens, out: FloatArray | None = None) -> FloatArray:
        """Decodes tokens (at least one), all or none, and returns the logits after the last: float32
        [vocabulary_size].

        Ctrl-C ends it; then none was decoded, unless all were when the signal came.
        """
        ids = token_array(tokens)
        logits = float_output(out, (self._vocabulary_size,))
        required = ffi.new("uint64_t *")

        def call() -> None:
            with self._lock:
                check(
                    lib.rt_decode_session_prefill(
                        self._pointer(),
                        token_pointer(ids),
                        len(ids),
                        float_pointer(logits),
                        len(logits),
                        required,
                    )
                )

        interruptible(call, self._cancel)
        return logits

    def reset(self) -> None:
        """Back to an empty sequence; gives all pages back."""
        with self._lock:
            check(lib.rt_decode_session_reset(self._pointer()))

    def truncate(self, new_size: SupportsIndex) -> None:
        """Forgets all but the first new_size tokens; `OutOfRangeError` above `size`."""
        size = integer(new_size, "new_size")
        with self._lock:
            check(lib.rt_decode_session_truncate(self._pointer(), size))

    def fork(self) -> DecodeSession:
        """A second session with the same tokens; pages are shared until one of them writes."""
        with self._lock:
            native = create(lib.rt_decode_session_fork, "rt_decode_session", self._pointer())
        return DecodeSession(native, self._vocabulary_size, self._cancel)

    @property
    def size(self) -> int:
        """Tokens decoded so far."""
        return self._read(lib.rt_decode_session_size, "uint64_t *")

    @property
    def capacity(self) -> int:
        """Tokens that the sequence can have."""
        return self._read(lib.rt_decode_session_capacity, "uint64_t *")

    @property
    def cache_kind(self) -> str:
        """ "paged" or "contiguous"."""
        return CACHE_NAMES[self._read(lib.rt_decode_session_cache_kind, "int32_t *")]

    @property
    def block_size(self) -> int:
        """Tokens per page."""
        return self._read(lib.rt_decode_session_block_size, "uint64_t *")

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        if self.closed:
            return "DecodeSession(closed)"
        return f"DecodeSession(size={self.size}, capacity={self.capacity}, cache_kind={self.cache_kind!r})"

    def _read(self, function: Any, kind: str) -> int:
        value = ffi.new(kind)
        with self._lock:
            check(function(self._pointer(), value))
        return int(value[0])


def step_many(sessions: Sequence[DecodeSession], tokens: Tokens, out: FloatArray | None = None) -> FloatArray:
    """One token for each of n different sessions of one model, as one batch, all or none.

    Returns the logits, float32 [n, vocabulary_size], row by row bit for bit those of `DecodeSession.step`.
    """
    sessions = [instance(session, "a session", DecodeSession) for session in sessions]
    ids = token_array(tokens)
    if len(ids) != len(sessions):
        raise InvalidArgumentError(f"{len(sessions)} sessions but {len(ids)} tokens")
    if not sessions:
        raise InvalidArgumentError("no sessions")
    logits = float_output(out, (len(sessions), sessions[0]._vocabulary_size))
    required = ffi.new("uint64_t *")
    with ExitStack() as locks:
        for session in sorted(set(sessions), key=id):  # one order for all threads: no deadlock
            locks.enter_context(session._lock)
        handles = [session._pointer() for session in sessions]
        array = ffi.new("rt_decode_session *[]", handles)
        check(
            lib.rt_decode_session_step_many(
                array, token_pointer(ids), len(ids), float_pointer(logits), logits.size, required
            )
        )
    return logits
