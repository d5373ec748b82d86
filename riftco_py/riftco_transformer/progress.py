"""Long calls that tell how far they are, and that a flag, Ctrl-C or the listener's exception ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from ._native import ffi, instance
from .cancel import CancelFlag, interruptible

T = TypeVar("T")

Progress: TypeAlias = "Callable[[int, int], object]"
"""Called with the bytes done and the bytes in all, by the thread that works. An exception ends the work, as
if it was cancelled, and comes out of the call."""


def watched(
    call: Callable[[], T], settings: Any, progress: Progress | None = None, cancel: CancelFlag | None = None
) -> T:
    """call(), which passes on `settings`, a struct with the fields cancel, progress and
    progress_user_data."""
    flag = CancelFlag() if cancel is None else instance(cancel, "cancel", CancelFlag)
    settings.cancel = flag._pointer()
    if progress is None:
        return interruptible(call, flag)
    if not callable(progress):
        raise TypeError(f"progress must be callable, not {type(progress).__name__}")
    errors: list[BaseException] = []

    def report(_: Any, done: int, total: int) -> None:
        if errors:
            return
        try:
            progress(done, total)
        except BaseException as error:  # it cannot pass through the library: raised below
            errors.append(error)
            flag._interrupt()

    settings.progress = callback = ffi.callback("rt_progress_callback", report)
    try:
        return interruptible(call, flag)
    finally:
        del callback  # the library has it no longer
        if errors:
            flag._resume()
            raise errors[0]
