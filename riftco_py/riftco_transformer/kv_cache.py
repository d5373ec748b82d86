"""Where sessions and generators take their key/value caches from."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ._native import Handle, check, choice, create, integer, lib, options, output

if TYPE_CHECKING:
    from .model import Model

CACHE_KINDS: dict[str, int] = {"contiguous": lib.RT_KV_CACHE_CONTIGUOUS, "paged": lib.RT_KV_CACHE_PAGED}
CACHE_TYPES: dict[str, int] = {
    "f32": lib.RT_KV_ELEMENT_F32,
    "f16": lib.RT_KV_ELEMENT_F16,
    "bf16": lib.RT_KV_ELEMENT_BF16,
}
CACHE_NAMES = {number: name for name, number in CACHE_KINDS.items()}


class KvCacheUsage(NamedTuple):
    """Pages and memory of a factory at one moment."""

    block_size: int
    """Tokens per page."""
    block_count: int
    """Pages in all; of contiguous caches those that exist now."""
    free_count: int
    """Pages that no cache holds."""
    allocated_bytes: int
    """Memory of the pages that were ever leased."""
    block_bytes: int
    """Memory of one page."""


class KvCacheFactory(Handle):
    """Serves any number of sessions and generators, of any model with the same geometry, from any
    thread."""

    __slots__ = ()
    _kind = "key/value cache factory"
    _release = "rt_kv_cache_factory_release"

    @classmethod
    def create(
        cls,
        model: Model,
        kind: str,
        block_size: int = 16,
        block_count: int = 0,
        maximum_context: int = 0,
        memory_limit: int = 0,
        cache_type: str = "f32",
    ) -> KvCacheFactory:
        """`paged` or `contiguous` by name."""
        settings = options("rt_kv_cache_factory_options")
        settings.kind = choice(kind, "the kind of cache", CACHE_KINDS)
        settings.block_size = integer(block_size, "block_size")
        settings.block_count = integer(block_count, "block_count")
        settings.maximum_context = integer(maximum_context, "maximum_context")
        settings.memory_limit = integer(memory_limit, "memory_limit")
        settings.element_type = choice(cache_type, "cache_type", CACHE_TYPES)
        return cls(create(lib.rt_kv_cache_factory_create, "rt_kv_cache_factory", model._pointer(), settings))

    @classmethod
    def paged(
        cls,
        model: Model,
        block_size: int = 16,
        block_count: int = 0,
        maximum_context: int = 0,
        memory_limit: int = 0,
        cache_type: str = "f32",
    ) -> KvCacheFactory:
        """A pool of block_count pages (0: one full context) of block_size tokens, for sequences of up to
        maximum_context tokens (0: the model's). A page takes memory once it is used; one that would exceed
        memory_limit bytes (0: no limit) is an `OutOfMemoryError`. cache_type: "f32", or "f16" or "bf16" for
        half the memory, with keys and values rounded."""
        return cls.create(model, "paged", block_size, block_count, maximum_context, memory_limit, cache_type)

    @classmethod
    def contiguous(
        cls, model: Model, maximum_context: int = 0, memory_limit: int = 0, cache_type: str = "f32"
    ) -> KvCacheFactory:
        """Caches of one page of maximum_context tokens (0: the model's) each, together of at most
        memory_limit bytes (0: no limit); cache_type as for `paged`."""
        return cls.create(
            model,
            "contiguous",
            maximum_context=maximum_context,
            memory_limit=memory_limit,
            cache_type=cache_type,
        )

    def usage(self) -> KvCacheUsage:
        """Pages and memory now."""
        usage = output("rt_kv_cache_usage")
        check(lib.rt_kv_cache_factory_get_usage(self._pointer(), usage))
        return KvCacheUsage(*(getattr(usage, name) for name in KvCacheUsage._fields))
