"""Models: weights and config, ready to decode with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._native import (
    UINT32_MAX,
    UINT64_MAX,
    FloatArray,
    Handle,
    Path,
    Tokens,
    check,
    choice,
    create,
    ffi,
    float_output,
    float_pointer,
    instance,
    integer,
    lib,
    options,
    output,
    path_bytes,
    real,
    text_bytes,
    token_array,
    token_matrix,
    token_pointer,
)
from .cancel import CancelFlag, interruptible
from .errors import ContextFullError, InvalidStateError
from .kv_cache import CACHE_KINDS, CACHE_TYPES, KvCacheFactory
from .parameters import Parameters
from .progress import Progress, watched
from .session import DecodeSession
from .source import ModelSource, Source
from .tokenizer import Tokenizer

BACKENDS: dict[str, int] = {
    "cpu": lib.RT_BACKEND_CPU,
    "metal": lib.RT_BACKEND_METAL,
    "cuda": lib.RT_BACKEND_CUDA,
    "tpu": lib.RT_BACKEND_TPU,
}
FORMATS: dict[str, int] = {
    "by path": lib.RT_FORMAT_BY_PATH,
    "rift": lib.RT_FORMAT_RIFT,
    "gguf": lib.RT_FORMAT_GGUF,
    "huggingface": lib.RT_FORMAT_HUGGING_FACE,
}
TYPES: dict[str, int] = {
    name: getattr(lib, f"RT_TYPE_{name.upper()}") for name in ("keep", "f32", "f16", "bf16", "q8_0", "q4_0")
}
COMPUTES: dict[str, int] = {"exact": lib.RT_COMPUTE_EXACT, "bf16": lib.RT_COMPUTE_BF16}
_CHOICES: dict[str, dict[str, int]] = {
    "position": {"learned": lib.RT_POSITION_LEARNED, "rotary": lib.RT_POSITION_ROTARY},
    "norm": {"layer": lib.RT_NORM_LAYER, "rms": lib.RT_NORM_RMS},
    "rotary_scaling": {
        "none": lib.RT_ROTARY_SCALING_NONE,
        "linear": lib.RT_ROTARY_SCALING_LINEAR,
        "llama3": lib.RT_ROTARY_SCALING_LLAMA3,
        "yarn": lib.RT_ROTARY_SCALING_YARN,
        "factors": lib.RT_ROTARY_SCALING_FACTORS,
    },
    "activation": {
        "gelu_erf": lib.RT_ACTIVATION_GELU_ERF,
        "gelu_tanh": lib.RT_ACTIVATION_GELU_TANH,
        "silu_gated": lib.RT_ACTIVATION_SILU_GATED,
    },
}
_BIASES: dict[str, int] = {
    name: getattr(lib, f"RT_BIAS_{name.upper()}")
    for name in ("q", "k", "v", "o", "up", "gate", "down", "head", "norms")
}
_LORA_TARGETS: dict[str, int] = {
    name: getattr(lib, f"RT_LORA_{name.upper()}")
    for name in ("q", "k", "v", "o", "up", "gate", "down", "head")
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The geometry of a model. The defaults are those of the native family: pre-LN, erf GELU, biases
    everywhere, untied head, learned positions."""

    vocabulary_size: int = 256
    maximum_context: int = 256
    """Positions."""
    layer_count: int = 4
    width: int = 128
    head_count: int = 4
    kv_head_count: int = 4
    """Divides head_count."""
    head_width: int = 32
    mlp_width: int = 512
    position: str = "learned"
    """"learned" or "rotary"."""
    norm: str = "layer"
    """"layer" or "rms"."""
    activation: str = "gelu_erf"
    """"gelu_erf", "gelu_tanh" or "silu_gated"."""
    biases: frozenset[str] = field(default=frozenset({"q", "k", "v", "o", "up", "down", "head", "norms"}))
    """Projections that have a bias: of q, k, v, o, up, gate, down, head, norms."""
    tied_head: bool = False
    """Whether the output head is the token embedding."""
    rotary_width: int = 0
    """Rotated dimensions of a head, even; 0 with learned positions."""
    rotary_base: float = 10000.0
    norm_epsilon: float = 1e-5
    rotary_scaling: str = "none"
    """"none", "linear", "llama3", "yarn" or "factors" (a parameter, one number for each rotated pair)."""
    rotary_original_context: int = 0
    """llama3, yarn: the positions trained on."""
    rotary_factor: float = 1.0
    """linear, llama3, yarn."""
    rotary_slow_rotations: float = 0.0
    """llama3, yarn: pairs that turn less often over the original context are divided by the factor."""
    rotary_fast_rotations: float = 0.0
    """llama3, yarn: pairs that turn more often are not, those between in part."""
    rotary_attention_factor: float = 1.0
    """yarn: multiplies cosines and sines."""
    sliding_window: int = 0
    """Keys that a token sees, its own included; 0: all."""
    first_window_layer: int = 0
    """Layers before it see all keys."""
    qk_norm: bool = False
    """Whether every head of q and k has an RMS norm."""

    def _to_native(self) -> Any:
        struct = options("rt_model_config")
        for item in fields(self):
            name, value = item.name, getattr(self, item.name)
            if name in _CHOICES:
                number: int | float = choice(value, name, _CHOICES[name])
            elif name == "biases":
                number = sum(choice(bias, "a bias", _BIASES) for bias in frozenset(value))
            elif item.type == "float":
                number = real(value, name)
            elif item.type == "bool":
                number = int(instance(value, name, bool))
            else:
                number = integer(value, name, UINT32_MAX)
            setattr(struct, name, number)
        return struct

    @classmethod
    def _from_native(cls, struct: Any) -> ModelConfig:
        values: dict[str, Any] = {item.name: getattr(struct, item.name) for item in fields(cls)}
        for name, names in _CHOICES.items():
            values[name] = next(text for text, number in names.items() if number == values[name])
        values["biases"] = frozenset(name for name, bit in _BIASES.items() if struct.biases & bit)
        for name in ("tied_head", "qk_norm"):
            values[name] = bool(values[name])
        return cls(**values)


class ModelInfo(NamedTuple):
    """Where a model runs and what it takes."""

    backend: str
    threads: int
    """Threads that share a step, the caller included."""
    parameter_count: int
    weight_bytes: int
    """Packed weights in memory."""
    workspace_bytes: int
    """Activation memory reserved by sessions and steps so far."""
    session_count: int
    """Decode sessions alive."""
    tensor_count: int
    """Parameters by name."""
    parameter_epoch: int
    """Changes of parameters so far."""
    compute: str
    """How steps multiply with matrices of bf16: "exact" or "bf16"."""


class LoraInfo(NamedTuple):
    """The low-rank adapters of a model."""

    rank: int
    alpha: float
    """y = W x + (alpha / rank) B (A x)."""
    targets: frozenset[str]
    """Of q, k, v, o, up, gate, down, head."""
    seed: int
    """That A was drawn from; 0 for adapters from a file."""


def _load_options(backend: str, threads: int, memory_limit: int, type: str, compute: str) -> Any:
    settings = options("rt_model_load_options")
    settings.backend = choice(backend, "backend", BACKENDS)
    settings.threads = integer(threads, "threads", UINT32_MAX)
    settings.memory_limit = integer(memory_limit, "memory_limit")
    settings.type = choice(type, "type", TYPES)
    settings.compute = choice(compute, "compute", COMPUTES)
    return settings


def _session_options(
    cache: str, block_size: int, maximum_context: int, factory: KvCacheFactory | None, cache_type: str
) -> tuple[Any, CancelFlag]:
    cancel = CancelFlag()
    settings = options("rt_decode_session_options")
    settings.kind = choice(cache, "cache", CACHE_KINDS)
    settings.block_size = integer(block_size, "block_size", UINT64_MAX)
    settings.maximum_context = integer(maximum_context, "maximum_context")
    settings.element_type = choice(cache_type, "cache_type", CACHE_TYPES)
    settings.cancel = cancel._pointer()
    if factory is not None:
        settings.factory = instance(factory, "factory", KvCacheFactory)._pointer()
    return settings, cancel


class Model(Handle):
    """A model on a device. Safe from any thread; made by `ModelBundle.instantiate` or `Model.create`."""

    __slots__ = ("_config", "_lock")
    _kind = "model"
    _release = "rt_model_release"

    def __init__(self, native: Any) -> None:
        """Not called directly."""
        super().__init__(native)
        self._lock = threading.Lock()  # held while adapters come and go, and while parameters are listed
        struct = output("rt_model_config")
        check(lib.rt_model_get_config(self._pointer(), struct))
        self._config = ModelConfig._from_native(struct)

    @classmethod
    def load(
        cls,
        source: ModelSource,
        backend: str = "cpu",
        threads: int = 0,
        *,
        type: str = "keep",
        compute: str = "exact",
        memory_limit: int = 0,
        progress: Progress | None = None,
        cancel: CancelFlag | None = None,
    ) -> Model:
        """From a .gguf or .rift file (by its path, open for reading, or its bytes), or a Hugging Face
        folder by its path.

        threads: 0 for the CPUs that the process may use. type: what the matrices become, piece by piece as
        they are read: "keep", "f32", "f16", "bf16", "q8_0" or "q4_0", the same bits as saving with that type
        and loading (`UnsupportedError` where a value is too large). compute: "bf16" rounds what is multiplied with
        matrices of bf16 to bf16 too: other results, the same bits on every machine, and faster where the processor
        multiplies bf16 itself (AVX512_BF16) but nowhere else; `UnsupportedError` without such matrices. memory_limit:
        bytes of weights and activations, 0 for none; what exceeds it, now or in a session, is an `OutOfMemoryError`.
        progress: called with the bytes done and in all. A load that is cancelled leaves nothing.
        """
        origin, settings = Source(source), _load_options(backend, threads, memory_limit, type, compute)
        native = watched(
            lambda: create(partial(origin.call, "rt_model_load"), "rt_model", settings),
            settings,
            progress,
            cancel,
        )
        return cls(native)

    @classmethod
    def create(
        cls,
        config: ModelConfig | None = None,
        seed: int = 0,
        *,
        tokenizer: Tokenizer | None = None,
        backend: str = "cpu",
        threads: int = 0,
        type: str = "keep",
        compute: str = "exact",
        memory_limit: int = 0,
    ) -> Model:
        """A model with random parameters (normal, deviation 0.02; norms one, biases zero), the same for the
        same seed on every machine; float32 where type is "keep". The rest is `load`'s."""
        geometry = instance(config, "config", ModelConfig)._to_native() if config is not None else ffi.NULL
        text = instance(tokenizer, "tokenizer", Tokenizer)._pointer() if tokenizer is not None else ffi.NULL
        number, settings = integer(seed, "seed"), _load_options(backend, threads, memory_limit, type, compute)
        return cls(
            watched(
                lambda: create(lib.rt_model_create, "rt_model", geometry, text, number, settings), settings
            )
        )

    @property
    def config(self) -> ModelConfig:
        """The geometry."""
        return self._config

    @property
    def info(self) -> ModelInfo:
        """Back end, threads, memory and sessions now."""
        struct = output("rt_model_info")
        check(lib.rt_model_get_info(self._pointer(), struct))
        backends, computes = ({number: name for name, number in of.items()} for of in (BACKENDS, COMPUTES))
        return ModelInfo(
            backends.get(struct.backend, "unknown"),
            struct.threads,
            struct.parameter_count,
            struct.weight_bytes,
            struct.workspace_bytes,
            struct.session_count,
            struct.tensor_count,
            struct.parameter_epoch,
            computes.get(struct.compute, "unknown"),
        )

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model's file; `InvalidStateError` where it has none."""
        return Tokenizer(create(lib.rt_model_tokenizer, "rt_tokenizer", self._pointer()))

    def decode_session(
        self,
        cache: str = "paged",
        block_size: int = 16,
        maximum_context: int = 0,
        factory: KvCacheFactory | None = None,
        cache_type: str = "f32",
    ) -> DecodeSession:
        """A new, empty sequence.

        cache: "paged", in pages of block_size tokens, or "contiguous". maximum_context: the longest
        sequence, 0 for the model's. factory: takes the cache from there; then cache, block_size and
        cache_type are the factory's, or left alone. cache_type: "f32", or "f16" or "bf16" for half the
        memory, with keys and values rounded.
        """
        settings, cancel = _session_options(cache, block_size, maximum_context, factory, cache_type)
        native = create(lib.rt_model_decode_session_create, "rt_decode_session", self._pointer(), settings)
        return DecodeSession(native, self._config.vocabulary_size, self._config.width, cancel)

    def load_session(
        self,
        path: Path,
        cache: str = "paged",
        block_size: int = 16,
        maximum_context: int = 0,
        factory: KvCacheFactory | None = None,
        cache_type: str = "f32",
    ) -> DecodeSession:
        """A new session with what `DecodeSession.save` wrote, in any kind of cache: it goes on with the bits of the
        saved one.

        Args as for `decode_session`; cache_type is the file's, or left alone. `CorruptDataError` for a damaged
        file, `VersionMismatchError` for one of another kernel contract, `InvalidArgumentError` for one of
        another model.
        """
        name = path_bytes(path)
        settings, cancel = _session_options(cache, block_size, maximum_context, factory, cache_type)
        native = interruptible(
            lambda: create(
                lib.rt_model_decode_session_load,
                "rt_decode_session",
                self._pointer(),
                name,
                len(name),
                settings,
            ),
            cancel,
        )
        return DecodeSession(native, self._config.vocabulary_size, self._config.width, cancel)

    def logits(
        self, tokens: Tokens | npt.NDArray[np.integer[Any]], out: FloatArray | None = None
    ) -> FloatArray:
        """The logits after each token of sequences of at most maximum_context, bit for bit those of decoding them
        token by token: float32 [T, vocabulary_size] of one sequence, [B, T, vocabulary_size] of an array [B, T]."""
        native = self._pointer()
        batch = isinstance(tokens, np.ndarray) and tokens.ndim == 2
        ids = token_matrix(tokens) if batch else token_array(tokens)[None]
        sequences, length = ids.shape
        if length > self._config.maximum_context:  # before an array of that size is made
            raise ContextFullError(
                f"{length} tokens do not fit the model's context of {self._config.maximum_context}"
            )
        logits = float_output(out, (*(ids.shape if batch else (length,)), self._config.vocabulary_size))
        rows = logits.reshape(sequences, length, self._config.vocabulary_size)
        cancel, required = CancelFlag(), ffi.new("uint64_t *")

        def call() -> None:
            for sequence, row in zip(ids, rows, strict=True):
                check(
                    lib.rt_model_logits(
                        native,
                        token_pointer(sequence),
                        length,
                        cancel._pointer(),
                        float_pointer(row),
                        row.size,
                        required,
                    )
                )

        interruptible(call, cancel)
        return logits

    @property
    def parameters(self) -> Parameters:
        """The parameters by name, as numpy arrays; assigning one changes the model."""
        return Parameters(self)

    def to(self, backend: str) -> Model:
        """The model itself, on this back end: "cpu" is where it is, others are `BackendUnavailableError`.

        This and every other change is an `InvalidStateError` while sessions of the model are alive (a
        running generation is one); generators and sessions made later see the new parameters.
        """
        check(lib.rt_model_to(self._pointer(), choice(backend, "backend", BACKENDS)))
        return self

    def attach_lora(
        self, *, rank: int = 8, alpha: float = 16.0, targets: Iterable[str] = ("q", "v"), seed: int = 0
    ) -> None:
        """Adds low-rank adapters (LoRA) to matrices of every layer: y = W x + (alpha / rank) B (A x).

        A is normal with deviation 1 / sqrt(rank), from the seed; B is zero, so that outputs stay as they
        are until it is trained. Both are parameters of the model ("layers.0.q.lora_a"). targets: of q, k,
        v, o, up, gate (gated models), down and head. `InvalidStateError` where it has adapters already.
        """
        settings = options("rt_lora_options")
        settings.rank = integer(rank, "rank", UINT32_MAX)
        settings.alpha = real(alpha, "alpha")
        settings.targets = sum(choice(name, "a target", _LORA_TARGETS) for name in frozenset(targets))
        settings.seed = integer(seed, "seed")
        self._change(partial(lib.rt_model_attach_lora, self._pointer(), settings))

    def detach_lora(self) -> None:
        """Removes the adapters: the model is as it was before them."""
        self._change(partial(lib.rt_model_detach_lora, self._pointer()))

    def merge_lora(self) -> None:
        """Adds the adapters to their matrices and removes them. float16 and bfloat16 matrices become
        float32; quantised ones are an `UnsupportedError`: convert the model to a float type first."""
        self._change(partial(lib.rt_model_merge_lora, self._pointer()))

    @property
    def lora(self) -> LoraInfo | None:
        """The adapters that are attached."""
        struct = output("rt_lora_options")
        native = self._pointer()
        try:
            check(lib.rt_model_get_lora(native, struct))
        except InvalidStateError:
            return None
        targets = frozenset(name for name, bit in _LORA_TARGETS.items() if struct.targets & bit)
        return LoraInfo(struct.rank, struct.alpha, targets, struct.seed)

    def save_lora(self, path: Path) -> None:
        """Writes the adapters alone, complete or not at all: as one file where the path ends with
        ".safetensors", else as a folder that the PEFT package reads (models of the Llama family's layout;
        the folder must not be there or be empty)."""
        native, name = self._pointer(), path_bytes(path)
        interruptible(lambda: check(lib.rt_model_save_lora(native, name, len(name))))

    def load_lora(self, path: Path) -> None:
        """Attaches adapters from a file that `save_lora` wrote, or from a PEFT folder
        (adapter_config.json and adapter_model.safetensors; also of GPT-2). What would compute something
        else is an `UnsupportedError`."""
        name = path_bytes(path)
        self._change(partial(lib.rt_model_load_lora, self._pointer(), name, len(name)))

    def _change(self, call: Callable[[], int]) -> None:
        def locked() -> None:
            with self._lock:
                check(call())

        interruptible(locked)

    def save(
        self,
        path: Path,
        *,
        format: str = "by path",
        type: str = "keep",
        shard_bytes: int = 0,
        stage: str = "",
        parent: str = "",
        progress: Progress | None = None,
        cancel: CancelFlag | None = None,
    ) -> None:
        """Writes the model with its tokenizer: complete or not at all. What the format cannot hold exactly,
        other than by the rounding of `type`, is an `UnsupportedError`.

        format: "rift", "gguf" or "huggingface"; by default the path's suffix says it, and a path without one,
        with "/" at its end or of a folder is a Hugging Face folder. An existing file is replaced, an existing
        folder must be empty. type: of the matrices, "keep", "f32", "f16", "bf16", "q8_0" or "q4_0".
        shard_bytes: tensors in one file of a folder, 0 for 5 GB. stage, parent: what made the weights and from what,
        kept in a .rift file only ("riftco.stage" and "riftco.parent" of `ModelBundle.metadata`). progress: called with the bytes done and in
        all.
        """
        native, name = self._pointer(), path_bytes(path)
        settings = options("rt_model_save_options")
        settings.format = choice(format, "format", FORMATS)
        settings.type = choice(type, "type", TYPES)
        settings.shard_bytes = integer(shard_bytes, "shard_bytes")
        texts = [text_bytes(text, name) for name, text in (("stage", stage), ("parent", parent))]
        buffers = [ffi.from_buffer(text) for text in texts]  # alive during the call
        (settings.stage, settings.parent), (settings.stage_size, settings.parent_size) = (
            buffers,
            map(len, texts),
        )
        watched(
            lambda: check(lib.rt_model_save(native, name, len(name), settings)), settings, progress, cancel
        )

    def __repr__(self) -> str:
        return "Model(closed)" if self.closed else f"Model({self._config!r})"
