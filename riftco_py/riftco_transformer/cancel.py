"""Cancelling: flags that end native calls, and long calls that Ctrl-C can end."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ._native import Owned, create, lib

T = TypeVar("T")


class CancelFlag(Owned):
    """A latched flag: once `set` (from any thread or signal handler), calls that were given it raise
    `CancelledError`, with everything as before the call, until `reset`."""

    __slots__ = ("_set",)
    _kind = "cancel flag"
    _release = "rt_cancel_release"

    def __init__(self) -> None:
        super().__init__(create(lib.rt_cancel_create, "rt_cancel"))
        self._set = False

    @property
    def is_set(self) -> bool:
        """Whether `set` was called since the last `reset`."""
        return self._set

    def set(self) -> None:
        """End the calls that look at this flag, now and later."""
        self._set = True
        lib.rt_cancel_set(self._pointer())

    def reset(self) -> None:
        """Let calls go on from now on."""
        self._set = False
        lib.rt_cancel_reset(self._pointer())

    def _interrupt(self) -> None:
        """Ends running calls without latching."""
        lib.rt_cancel_set(self._pointer())

    def _resume(self) -> None:
        lib.rt_cancel_reset(self._pointer())
        if self._set:
            lib.rt_cancel_set(self._pointer())


class _Call(Generic[T]):
    """A call on its way to the helper thread and back."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._owner: dict[str, str] = {}
        self._done = threading.Event()
        self._value: T
        self._error: BaseException | None = None

    def _claim(self, who: str) -> bool:
        return self._owner.setdefault("owner", who) == who

    def run(self) -> None:
        if not self._claim("helper"):
            return
        try:
            self._value = self._function()
        except BaseException as error:  # for the caller, whatever it is
            self._error = error
        finally:
            self._done.set()

    def wait(self) -> None:
        self._done.wait()

    def result(self) -> T:
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del error  # its traceback names this frame: no cycle that keeps handles alive

    def abandon(self, cancel: CancelFlag | None) -> None:
        """Comes back when the function is not running and will not run."""
        if self._claim("caller"):
            return
        try:
            while not self._done.is_set():
                try:
                    if cancel is not None:
                        cancel._interrupt()
                    self._done.wait()
                except KeyboardInterrupt:
                    pass
        finally:
            if cancel is not None:
                cancel._resume()


_calls: queue.SimpleQueue[_Call[Any]] | None = None


def _helper(calls: queue.SimpleQueue[_Call[Any]]) -> None:
    while True:
        calls.get().run()


def _forget_helper() -> None:
    global _calls
    _calls = None  # threads do not survive fork()


os.register_at_fork(after_in_child=_forget_helper)


def interruptible(function: Callable[[], T], cancel: CancelFlag | None = None) -> T:
    """function(), in such a way that Ctrl-C ends it: signals are handled by the main thread only, and only
    while that is not inside a native call, so there a helper thread makes the call. On Ctrl-C, `cancel`
    is set until the call has ended.

    `function` takes the locks that it needs itself, and so holds them exactly as long as it runs.
    """
    global _calls
    if threading.current_thread() is not threading.main_thread():
        return function()
    call = _Call(function)
    try:
        if _calls is None:
            calls: queue.SimpleQueue[_Call[Any]] = queue.SimpleQueue()
            threading.Thread(target=_helper, args=(calls,), name="riftco-calls", daemon=True).start()
            _calls = calls
        _calls.put(call)
        call.wait()
    except BaseException:
        call.abandon(cancel)
        raise
    return call.result()
