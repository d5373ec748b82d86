"""Model files: what they are, and running models from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ._native import check, choice, ffi, integer, lib
from .cancel import CancelFlag, interruptible
from .errors import InvalidStateError
from .kv_cache import CACHE_TYPES
from .model import Model
from .progress import Progress
from .source import ModelSource, Source
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

    def __init__(self, source: ModelSource, path: str, info: dict[str, Any]) -> None:
        """Not called directly: see `load`."""
        self._source = source
        self._path = path
        self._info = info

    @classmethod
    def load(cls, source: ModelSource) -> ModelBundle:
        """Looks into a .gguf or .rift file (by its path, open for reading, or its bytes), or a Hugging Face
        folder by its path (config.json and model.safetensors).

        Reads no weights: `instantiate` does, and a file or bytes must be there until then.
        `InputOutputError` and `CorruptDataError` say what is wrong with it. A model that this release does
        not run is described all the same; `instantiate` refuses it.
        """
        origin = Source(source)
        required = ffi.new("uint64_t *")

        def call() -> bytes:
            capacity = 1 << 18
            while True:
                document = ffi.new("char[]", capacity)
                status = origin.call("rt_model_inspect", document, capacity, required)
                if status != lib.RT_BUFFER_TOO_SMALL:
                    check(status)
                    return bytes(ffi.buffer(document, required[0]))
                capacity = required[0]

        return cls(source, origin.name, json.loads(interruptible(call)))

    @property
    def path(self) -> str:
        """The path as given; of bytes and files a name in angle brackets."""
        return self._path

    @property
    def info(self) -> dict[str, Any]:
        """Format, config, tensors (name, type, shape, bytes), tokenizer, metadata and an estimate of the
        memory."""
        return self._info

    @property
    def metadata(self) -> Mapping[str, str]:
        """What else the file says, as text by key: the keys of a GGUF file, of config.json, or of a .rift
        file. Long lists (a vocabulary) are left out."""
        return MappingProxyType(self._info["metadata"])

    def kv_cache_bytes(self, context: int, cache_type: str = "f32") -> int:
        """The memory of a paged cache (pages of 16 tokens) of type "f32", "f16" or "bf16" that holds this
        many tokens. What a model takes besides is `info["memory"]["weight_bytes"]` and the activations of
        its steps."""
        choice(cache_type, "cache_type", CACHE_TYPES)
        pages = -(-integer(context, "context") // 16)
        per_page = "kv_cache_bytes_per_page" + ("" if cache_type == "f32" else "_16_bit")
        return pages * int(self._info["memory"][per_page])

    def instantiate(
        self,
        backend: str = "cpu",
        threads: int = 0,
        *,
        type: str = "keep",
        compute: str = "exact",
        memory_limit: int = 0,
        progress: Progress | None = None,
        cancel: CancelFlag | None = None,
    ) -> Runtime:
        """Loads the model onto a device: "cpu" (others: `BackendUnavailableError`). The rest is
        `Model.load`'s."""
        return Runtime(
            Model.load(
                self._source,
                backend,
                threads,
                type=type,
                compute=compute,
                memory_limit=memory_limit,
                progress=progress,
                cancel=cancel,
            )
        )

    def __repr__(self) -> str:
        return f"ModelBundle({self._path!r})"
