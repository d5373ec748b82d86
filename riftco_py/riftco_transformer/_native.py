"""The loaded library, its errors and handles, and checks of arguments that the C types would let
through."""

from __future__ import annotations

import numbers
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any, SupportsIndex, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from . import errors
from ._riftco_cffi import ffi as ffi

FloatArray: TypeAlias = npt.NDArray[np.float32]
TokenArray: TypeAlias = npt.NDArray[np.uint32]
Tokens: TypeAlias = "Iterable[SupportsIndex] | npt.NDArray[np.integer[Any]]"
Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
Text: TypeAlias = "str | bytes | bytearray | memoryview"
K = TypeVar("K")
_Self = TypeVar("_Self", bound="Handle")

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
NO_TOKEN: int = ffi.integer_const("RT_NO_TOKEN")


def _load() -> Any:
    """The library beside this file; in an editable install, where the build put it."""
    major: int = ffi.integer_const("RT_ABI_VERSION_MAJOR")
    minor: int = ffi.integer_const("RT_ABI_VERSION_MINOR")
    name = f"libriftco.{major}.dylib" if sys.platform == "darwin" else f"libriftco.so.{major}"
    path = resources.files(__package__).joinpath(name)
    if not path.is_file():
        raise ImportError(f"riftco_transformer was installed without its library {name}")
    library = ffi.dlopen(os.fspath(path))  # type: ignore[call-overload]
    version: int = library.rt_abi_version()
    if version >> 16 != major or (version & 0xFFFF) < minor:
        found = f"{version >> 16}.{version & 0xFFFF}"
        raise ImportError(
            f"{path} has ABI version {found}; this package needs {major}.{minor} or a later {major}.x"
        )
    return library


lib: Any = _load()


# --- errors ---


def check(status: int) -> None:
    """Raises the exception of a failed call; in the thread that made the call."""
    if status != 0:
        message = ffi.string(lib.rt_last_error()).decode("utf-8", "replace")
        raise errors.from_status(status, re.sub(r"^\[rt_\w+\] ", "", message))


# --- handles and structs ---


class Owned:
    """Owns one native object, which lives as long as something refers to it. Neither copied nor pickled."""

    __slots__ = ("__weakref__", "_native")
    _kind = ""
    _release = ""

    def __init__(self, native: Any) -> None:
        self._native = ffi.gc(native, getattr(lib, self._release))

    def _pointer(self) -> Any:
        return self._native

    def __copy__(self) -> Any:
        raise TypeError(f"a {self._kind} cannot be copied")

    def __deepcopy__(self, _: object) -> Any:
        raise TypeError(f"a {self._kind} cannot be copied")

    def __reduce_ex__(self, _: object) -> Any:
        raise TypeError(f"a {self._kind} cannot be pickled")


class Handle(Owned):
    """A native object that can be closed. Each call holds its own reference to it, so that `close` never
    waits and never pulls an object away under a call of another thread."""

    __slots__ = ()

    def _pointer(self) -> Any:
        native = self._native
        if native is None:
            raise errors.InvalidStateError(f"the {self._kind} is closed")
        return native

    def close(self) -> None:
        """Gives the native object back once no call uses it.

        Every later use raises `InvalidStateError`; closing again does nothing.
        """
        self._native = None

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def __enter__(self: _Self) -> _Self:
        self._pointer()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create(function: Callable[..., int], kind: str, *arguments: Any) -> Any:
    """Calls function(*arguments, &handle) and returns the handle."""
    out = ffi.new(f"{kind} **")
    check(function(*arguments, out))
    return out[0]


def options(kind: str) -> Any:
    """A struct of options with the library's defaults."""
    struct = ffi.new(f"{kind} *")
    check(getattr(lib, f"{kind}_init")(struct, ffi.sizeof(kind)))
    return struct


def output(kind: str) -> Any:
    """A struct for a call to fill."""
    struct = ffi.new(f"{kind} *")
    struct.struct_size = ffi.sizeof(kind)
    return struct


# --- arguments ---


def integer(value: object, name: str, maximum: int = UINT64_MAX) -> int:
    """An integer (also numpy's) in 0 .. maximum."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not bool")
    try:
        result = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None
    if not 0 <= result <= maximum:
        raise errors.InvalidArgumentError(f"{name} must be in 0 .. {maximum}, not {_short(result)}")
    return result


def real(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return float(value)


def flag(value: object, name: str) -> int:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return int(value)


def choice(value: object, name: str, choices: dict[str, int]) -> int:
    """The number of one of a few names."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if value not in choices:
        raise errors.InvalidArgumentError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return choices[value]


def instance(value: object, name: str, kind: type[K]) -> K:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")
    return value


def token_id(token: object) -> int:
    """A token id as the C ABI takes it; the library checks it against the vocabulary."""
    if type(token) is int and 0 <= token <= UINT32_MAX:
        return token
    if isinstance(token, bool):
        raise TypeError("a token must be an integer, not bool")
    try:
        result = operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a token must be an integer, not {type(token).__name__}") from None
    if not 0 <= result <= UINT32_MAX:
        raise errors.OutOfRangeError(f"token {_short(result)} is not in 0 .. {UINT32_MAX}")
    return result


def token_array(tokens: object) -> TokenArray:
    """Tokens as an array of their own, uint32 [n]: nothing that the caller does later can change what
    was checked."""
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1:
            raise errors.InvalidArgumentError(f"tokens must have one dimension, not the shape {tokens.shape}")
        return _checked_copy(tokens)
    if isinstance(tokens, (str, bytes, bytearray)) or not isinstance(tokens, Iterable):
        raise TypeError(f"tokens must be a sequence of integers, not {type(tokens).__name__}")
    return np.array([token_id(token) for token in tokens], dtype=np.uint32)


def token_matrix(tokens: object) -> TokenArray:
    """Tokens of sequences of one length as an array of their own, uint32 [B, T]."""
    array = np.asarray(tokens)
    if array.ndim != 2:
        raise errors.InvalidArgumentError(f"tokens must have two dimensions, not the shape {array.shape}")
    return _checked_copy(array)


def _checked_copy(tokens: npt.NDArray[Any]) -> TokenArray:
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"tokens must be integers, not {tokens.dtype}")
    copy: npt.NDArray[np.integer[Any]] = tokens.copy()
    for value in (copy.min(), copy.max()) if copy.size else ():
        token_id(value)
    return copy.astype(np.uint32, order="C")


def text_bytes(text: object, name: str) -> bytes:
    """UTF-8 of a str (`UnicodeEncodeError` for lone surrogates), or the bytes as they are."""
    if isinstance(text, str):
        return text.encode("utf-8")
    if isinstance(text, (bytes, bytearray, memoryview)):
        return bytes(text)
    raise TypeError(f"{name} must be str or bytes, not {type(text).__name__}")


def path_bytes(path: object) -> bytes:
    return os.fsencode(path)  # type: ignore[arg-type]


def float_output(out: FloatArray | None, shape: tuple[int, ...]) -> FloatArray:
    """A new float32 array, or the caller's after checks."""
    if out is None:
        return np.empty(shape, dtype=np.float32)
    if not isinstance(out, np.ndarray) or out.dtype != np.float32 or not out.dtype.isnative:
        kind = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise TypeError(f"out must be a numpy array of float32, not {kind}")
    if out.shape != shape:
        raise errors.InvalidArgumentError(f"out must have the shape {shape}, not {out.shape}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise errors.InvalidArgumentError("out must be C-contiguous and writable")
    return out


def float_pointer(array: FloatArray) -> Any:
    return ffi.from_buffer("float[]", array, require_writable=True)


def token_pointer(array: TokenArray) -> Any:
    return ffi.from_buffer("uint32_t[]", array)


def _short(value: int) -> str:
    """Of a number with thousands of digits, only their count: str() of it may be refused or slow."""
    return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
