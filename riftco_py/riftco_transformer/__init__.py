"""A decoder-only transformer engine: load a checkpoint, generate text, decode token by token.

from riftco_transformer import ModelBundle, TextGenerator

with ModelBundle.load("model.gguf").instantiate("cpu") as runtime:
    print(TextGenerator(runtime.model).generate("The capital of France is", max_new_tokens=8).text)
"""

from ._native import ffi as _ffi
from ._native import lib as _lib
from .artifacts import ModelBundle, Runtime
from .cancel import CancelFlag
from .errors import RiftcoError
from .kv_cache import KvCacheFactory, KvCacheUsage
from .model import LoraInfo, Model, ModelConfig, ModelInfo
from .serving import (
    GenerationOptions,
    GenerationResult,
    GenerationStats,
    GenerationStream,
    TextGenerator,
    TokenProbability,
)
from .session import DecodeSession, SessionUsage, step_many
from .tokenizer import StreamDecoder, Tokenizer

__version__: str = _ffi.string(_lib.rt_version_string()).decode()

__all__ = [
    "CancelFlag",
    "DecodeSession",
    "GenerationOptions",
    "GenerationResult",
    "GenerationStats",
    "GenerationStream",
    "KvCacheFactory",
    "KvCacheUsage",
    "LoraInfo",
    "Model",
    "ModelBundle",
    "ModelConfig",
    "ModelInfo",
    "RiftcoError",
    "Runtime",
    "SessionUsage",
    "StreamDecoder",
    "TextGenerator",
    "TokenProbability",
    "Tokenizer",
    "step_many",
]
