"""Parameters by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ._native import FloatArray, check, ffi, float_output, float_pointer, lib, output

if TYPE_CHECKING:
    from .model import Model


class ParameterInfo(NamedTuple):
    """What a parameter is."""

    type: str
    """As it is kept: "f32", "bf16", "q8_0", ..."""
    shape: tuple[int, ...]
    """(elements,) or (outputs, inputs)."""


class Parameters(Mapping[str, FloatArray]):
    """The parameters of a model under their native names ("layers.0.q.weight"), in order: each read anew as
    float32 [elements] or [outputs, inputs], which holds every value exactly."""

    def __init__(self, model: Model) -> None:
        """Not called directly: see `Model.parameters`."""
        self._model = model
        self.info: dict[str, ParameterInfo] = {}
        """Type and shape of each."""
        struct = output("rt_parameter_info")
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

    def __iter__(self) -> Iterator[str]:
        return iter(self.info)

    def __len__(self) -> int:
        return len(self.info)
