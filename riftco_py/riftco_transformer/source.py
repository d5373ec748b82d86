"""What a model is read from: a path, an open file, or bytes in memory."""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeAlias

from ._native import ffi, lib


class OpenFile(Protocol):
    """A file that the operating system has open."""

    def fileno(self) -> int:
        """Its descriptor."""
        ...


ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | OpenFile"
"""A .gguf or .rift file by its path, open for reading, or its bytes; a Hugging Face folder by its path."""


class Source:
    """A checked `ModelSource`: which form of a call takes it, and how it is told."""

    def __init__(self, source: ModelSource) -> None:
        self._kept: Any = source
        if isinstance(source, (bytes, bytearray, memoryview)):
            self._form = "_buffer"
            self._kept = ffi.from_buffer(source)
            self.name = f"<{len(self._kept)} bytes>"
        elif isinstance(source, (str, os.PathLike)):
            self._form = ""
            self._kept = os.fsencode(source)
            self.name = os.fsdecode(self._kept)
        elif hasattr(source, "fileno"):
            self._form = "_fd"
            self.name = f"<file {getattr(source, 'name', source.fileno())}>"
        else:
            raise TypeError(f"a model is read from a path, bytes or a file, not {type(source).__name__}")

    def call(self, function: str, *arguments: Any) -> int:
        """The status of rt_model_load and the like, in the form for this source."""
        first = (self._kept.fileno(),) if self._form == "_fd" else (self._kept, len(self._kept))
        status: int = getattr(lib, function + self._form)(*first, *arguments)
        return status
