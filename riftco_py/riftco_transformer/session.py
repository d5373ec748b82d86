"""Decode sessions: one sequence, token by token, over a transactional key/value cache."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, SupportsIndex

from ._native import (
    FloatArray,
    Handle,
    Path,
    Tokens,
    check,
    create,
    ffi,
    float_output,
    float_pointer,
    instance,
    integer,
    lib,
    output,
    path_bytes,
    token_array,
    token_id,
    token_pointer,
)
from .cancel import CancelFlag, interruptible
from .errors import InvalidArgumentError
from .kv_cache import CACHE_NAMES


class SessionUsage(NamedTuple):
    """Pages and memory of a session at one moment."""

    block_count: int
    """Pages that it holds."""
    shared_count: int
    """Of them held by other sessions or generators too."""
    bytes: int
    """Memory of all of them."""


class DecodeSession(Handle):
    """One sequence of a model. Made by `Model.decode_session` and `fork`.

    Safe from any thread: calls on one session wait for each other. A call that raises (`ContextFullError`,
    `CacheExhaustedError`, `NonFiniteError`, a bad token, ...) has changed nothing. The session keeps what
    it needs of the model alive.
    """

    __slots__ = ("_cancel", "_lock", "_vocabulary_size", "_width")
    _kind = "decode session"
    _release = "rt_decode_session_release"

    def __init__(self, native: Any, vocabulary_size: int, width: int, cancel: CancelFlag) -> None:
        """Not called directly."""
        self._cancel = cancel
        super().__init__(native)
        self._vocabulary_size = vocabulary_size
        self._width = width
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

    def hidden_states(self, tokens: Tokens, first: int = 0, out: FloatArray | None = None) -> FloatArray:
        """Decodes tokens as `prefill` does, and returns the final hidden states (what the output head reads: after
        the final norm) of those from index `first` on: float32 [len(tokens) - first, width]. first=-1: of the last
        only."""
        ids = token_array(tokens)
        begin = integer(first + len(ids) if first < 0 else first, "first")
        states = float_output(out, (max(len(ids) - begin, 0), self._width))
        required = ffi.new("uint64_t *")

        def call() -> None:
            with self._lock:
                check(
                    lib.rt_decode_session_hidden_states(
                        self._pointer(),
                        token_pointer(ids),
                        len(ids),
                        begin,
                        float_pointer(states),
                        states.size,
                        required,
                    )
                )

        interruptible(call, self._cancel)
        return states

    def save(self, path: Path) -> None:
        """Writes the session to a file, whole or not at all, for `Model.load_session`. Neither tokens nor logits are
        in it. The first save for a model computes a checksum of its weights."""
        name = path_bytes(path)

        def call() -> None:
            with self._lock:
                check(lib.rt_decode_session_save(self._pointer(), name, len(name)))

        interruptible(call)

    def usage(self) -> SessionUsage:
        """Pages and memory that the session holds now."""
        usage = output("rt_decode_session_usage")
        with self._lock:
            check(lib.rt_decode_session_get_usage(self._pointer(), usage))
        return SessionUsage(usage.block_count, usage.shared_count, usage.bytes)

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
        return DecodeSession(native, self._vocabulary_size, self._width, self._cancel)

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
