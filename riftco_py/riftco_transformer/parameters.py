"""Parameters by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ._native import FloatArray, check, ffi, float_output, float_pointer, lib, output
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .model import Model


class ParameterInfo(NamedTuple):
    """What a parameter is."""

    type: str
    """As it is kept: "f32", "bf16", "q8_0", ..."""
    shape: tuple[int, ...]
    """(elements,) or (outputs, inputs)."""


class Parameters(Mapping[str, FloatArray]):
    """The parameters of a model under their native names ("layers.0.q.weight"), in order, those of its adapters
    last: each read anew as float32 [elements] or [outputs, inputs], which holds every value exactly.

    Assigning an array of a parameter's shape changes the model. float16 and bfloat16 matrices round to
    nearest even; a quantised one is an `UnsupportedError`, a value that is not finite a `NonFiniteError`, and
    all are `InvalidStateError` while sessions of the model are alive.
    """

    def __init__(self, model: Model) -> None:
        """Not called directly: see `Model.parameters`."""
        self._model = model
        self.info: dict[str, ParameterInfo] = {}
        """Type and shape of each."""
        struct = output("rt_parameter_info")
        with model._lock:  # adapters' names go with them
            for index in range(model.info.tensor_count):
                check(lib.rt_model_parameter(model._pointer(), index, struct))
                name, kind = (ffi.string(text).decode() for text in (struct.name, struct.type))
                self.info[name] = ParameterInfo(kind, tuple(struct.shape[0 : struct.rank]))

    def __getitem__(self, name: str) -> FloatArray:
        values = float_output(None, self.info[name].shape)
        key, required = name.encode(), ffi.new("uint64_t *")
        check(
            lib.rt_model_read_parameter(
                self._model._pointer(), key, len(key), float_pointer(values), values.size, required
            )
        )
        return values

    def __setitem__(self, name: str, values: npt.ArrayLike) -> None:
        array = np.ascontiguousarray(values, dtype=np.float32)
        if array.shape != self.info[name].shape:
            raise InvalidArgumentError(f"{name} has the shape {self.info[name].shape}, not {array.shape}")
        key = name.encode()
        check(
            lib.rt_model_write_parameter(
                self._model._pointer(), key, len(key), ffi.from_buffer("float[]", array), array.size
            )
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self.info)

    def __len__(self) -> int:
        return len(self.info)
