"""Model files: what they are, and running models from them."""

from __future__ import annotations

import json
import os
from typing import Any

from ._native import Path, check, ffi, lib, path_bytes
from .cancel import interruptible
from .errors import InvalidStateError
from .model import Model
from .tokenizer import Tokenizer


class Runtime:
    """A model on a device with its tokenizer. Sessions and generators made from it may outlive it."""

    def __init__(self, model: Model) -> None:
        """Not called directly: see `ModelBundle.instantiate`."""
        self._model = model
        self._tokenizer: Tokenizer | None = None

    @property
    def model(self) -> Model:
        """The model; `InvalidStateError` after close."""
        self._check_open()
        return self._model

    @property
    def tokenizer(self) -> Tokenizer:
        """`InvalidStateError` where the model's file has none."""
        self._check_open()
        if self._tokenizer is None:
            self._tokenizer = self._model.tokenizer()
        return self._tokenizer

    def close(self) -> None:
        """Closes model and tokenizer. Sessions and generators go on; once the last is closed, the memory
        is free."""
        self._model.close()
        if self._tokenizer is not None:
            self._tokenizer.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._model.closed

    def _check_open(self) -> None:
        if self._model.closed:
            raise InvalidStateError("the runtime is closed")

    def __enter__(self) -> Runtime:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ModelBundle:
    """A model file that was looked into, from which any number of runtimes are made."""

    def __init__(self, path: str, info: dict[str, Any]) -> None:
        """Not called directly: see `load`."""
        self._path = path
        self._info = info

    @classmethod
    def load(cls, path: Path) -> ModelBundle:
        """Looks into a .gguf file, a .rift file or a Hugging Face folder (config.json and model.safetensors).

        Reads no weights. `InputOutputError` and `CorruptDataError` say what is wrong with it. A model that
        this release does not run is described all the same; `instantiate` refuses it.
        """
        name = path_bytes(path)
        required = ffi.new("uint64_t *")

        def call() -> bytes:
            capacity = 1 << 18
            while True:
                document = ffi.new("char[]", capacity)
                status = lib.rt_model_inspect(name, len(name), document, capacity, required)
                if status != lib.RT_BUFFER_TOO_SMALL:
                    check(status)
                    return bytes(ffi.buffer(document, required[0]))
                capacity = required[0]

        return cls(os.fsdecode(name), json.loads(interruptible(call)))

    @property
    def path(self) -> str:
        """The path as given."""
        return self._path

    @property
    def info(self) -> dict[str, Any]:
        """Format, config, tensors (name, type, shape, bytes), tokenizer and an estimate of the memory."""
        return self._info

    def instantiate(self, backend: str = "cpu", threads: int = 0) -> Runtime:
        """Loads the model onto a device: "cpu" (others: `BackendUnavailableError`). threads: 0 for the
        CPUs that the process may use."""
        return Runtime(Model.load(self._path, backend, threads))

    def __repr__(self) -> str:
        return f"ModelBundle({self._path!r})"
