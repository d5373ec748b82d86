"""Sessions on two small pools, against a shadow: tokens, who shares which page, what is free, every logit.

RIFTCO_STATEFUL_EXAMPLES sets the number of runs, 40 steps each (60 by default).
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from riftco_transformer.errors import (
    CacheExhaustedError,
    CancelledError,
    ContextFullError,
    OutOfMemoryError,
    OutOfRangeError,
)
from riftco_transformer.kv_cache import KvCacheFactory
from riftco_transformer.model import Model, ModelConfig
from riftco_transformer.session import DecodeSession, step_many

PAGE, PAGES, CONTEXT, MOST = 3, 9, 16, 6
MODEL = Model.create(
    ModelConfig(vocabulary_size=32, maximum_context=CONTEXT, layer_count=2, width=16, head_count=2,
                kv_head_count=1, head_width=8, mlp_width=24), seed=5, threads=1)  # fmt: skip
TOKENS = st.integers(0, 31)


@dataclass
class Pool:
    """A pool and how many of its pages its memory limit allows."""

    factory: KvCacheFactory
    cache_type: str
    limit: int


@dataclass
class Shadow:
    """A session with what it must hold: its tokens, and the names of its pages."""

    session: DecodeSession
    pool: Pool
    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)

    def expect(self, row: np.ndarray[Any, Any]) -> None:
        """The row is the one of a fresh contiguous cache."""
        with MODEL.decode_session(cache="contiguous", cache_type=self.pool.cache_type) as fresh:
            assert np.array_equal(row, fresh.prefill(self.tokens))


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pools: list[Pool] = []
        self.shadows: list[Shadow] = []
        self.names = itertools.count()
        self.folder = tempfile.TemporaryDirectory()

    @initialize(types=st.permutations(["f32", "f16", "bf16"]), limit=st.integers(4, PAGES))
    def make_pools(self, types: list[str], limit: int) -> None:
        for cache_type, pages in ((types[0], PAGES), (types[1], limit)):
            with KvCacheFactory.paged(MODEL, block_size=PAGE, cache_type=cache_type) as probe:
                size = probe.usage().block_bytes
            factory = KvCacheFactory.paged(
                MODEL, block_size=PAGE, block_count=PAGES, cache_type=cache_type, memory_limit=pages * size
            )
            self.pools.append(Pool(factory, cache_type, pages))

    # --- the shadow

    def pick(self, data: st.DataObject) -> Shadow:
        return data.draw(st.sampled_from(self.shadows))

    def users(self, page: int) -> int:
        return sum(page in shadow.pages for shadow in self.shadows)

    def used(self, pool: Pool) -> int:
        return len({page for shadow in self.shadows if shadow.pool is pool for page in shadow.pages})

    def copies_tail(self, shadow: Shadow) -> bool:
        return len(shadow.tokens) % PAGE != 0 and self.users(shadow.pages[-1]) > 1

    def leases(self, shadow: Shadow, count: int) -> int:
        total = -(-(len(shadow.tokens) + count) // PAGE)
        return total - len(shadow.pages) + self.copies_tail(shadow)

    def append(self, shadow: Shadow, tokens: list[int], copy: bool) -> None:
        if copy:
            shadow.pages[-1] = next(self.names)
        shadow.tokens += tokens
        while len(shadow.pages) * PAGE < len(shadow.tokens):
            shadow.pages.append(next(self.names))

    def refusal(self, shadow: Shadow, count: int, taken: int = 0) -> type[Exception] | None:
        """What decoding that many more tokens fails with, where others of a batch have taken pages already."""
        pages = self.used(shadow.pool) + taken + self.leases(shadow, count)
        if len(shadow.tokens) + count > CONTEXT:
            return ContextFullError
        if self.leases(shadow, count) and pages > PAGES:
            return CacheExhaustedError
        return OutOfMemoryError if self.leases(shadow, count) and pages > shadow.pool.limit else None

    # --- what happens

    @rule(data=st.data())
    @precondition(lambda self: len(self.shadows) < MOST)
    def create(self, data: st.DataObject) -> None:
        pool = data.draw(st.sampled_from(self.pools))
        self.shadows.append(Shadow(MODEL.decode_session(factory=pool.factory), pool))

    def decode(self, shadow: Shadow, tokens: list[int], call: Callable[[list[int]], Any]) -> Any:
        if error := self.refusal(shadow, len(tokens)):
            with pytest.raises(error):
                call(tokens)
            return None
        result = call(tokens)
        self.append(shadow, tokens, self.copies_tail(shadow))
        return result

    @rule(data=st.data(), tokens=st.lists(TOKENS, min_size=1, max_size=8))
    @precondition(lambda self: self.shadows)
    def prefill(self, data: st.DataObject, tokens: list[int]) -> None:
        shadow = self.pick(data)
        row = self.decode(shadow, tokens, shadow.session.prefill)
        if row is not None:
            shadow.expect(row)

    @rule(data=st.data(), tokens=st.lists(TOKENS, min_size=1, max_size=4))
    @precondition(lambda self: self.shadows)
    def hidden_states(self, data: st.DataObject, tokens: list[int]) -> None:
        shadow = self.pick(data)
        states = self.decode(shadow, tokens, shadow.session.hidden_states)
        assert states is None or (states.shape == (len(tokens), 16) and np.isfinite(states).all())

    @rule(data=st.data(), token=TOKENS, cancelled=st.booleans())
    @precondition(lambda self: self.shadows)
    def step_all(self, data: st.DataObject, token: int, cancelled: bool) -> None:
        batch = data.draw(st.permutations(self.shadows))
        batch = [shadow for shadow in batch if len(shadow.tokens) < CONTEXT]
        if not batch:
            return
        sessions, tokens = [shadow.session for shadow in batch], [token] * len(batch)
        # A shared tail page is held until the commit, so every session that shares one copies it.
        copies = [self.copies_tail(shadow) for shadow in batch]
        error: type[Exception] | None = None
        taken = dict.fromkeys((pool.cache_type for pool in self.pools), 0)
        for shadow in batch:
            error = error or self.refusal(shadow, 1, taken[shadow.pool.cache_type])
            taken[shadow.pool.cache_type] += self.leases(shadow, 1)
        if error is None and cancelled:
            error = CancelledError
            batch[-1].session._cancel.set()
        if error:
            with pytest.raises(error):
                step_many(sessions, tokens)
            for shadow in self.shadows:
                shadow.session._cancel.reset()
            return
        rows = step_many(sessions, tokens)
        for shadow, copy in zip(batch, copies, strict=True):
            self.append(shadow, [token], copy)
        for shadow, row in zip(batch, rows, strict=True):
            shadow.expect(row)

    @rule(data=st.data())
    @precondition(lambda self: self.shadows)
    def cancel(self, data: st.DataObject) -> None:
        shadow = self.pick(data)
        if self.refusal(shadow, 1):
            return
        shadow.session._cancel.set()
        with pytest.raises(CancelledError):
            shadow.session.step(1)
        for other in self.shadows:  # forks keep the flag of their source
            other.session._cancel.reset()

    @rule(data=st.data())
    @precondition(lambda self: 0 < len(self.shadows) < MOST)
    def save_and_load(self, data: st.DataObject) -> None:
        shadow = self.pick(data)
        path = Path(self.folder.name) / "saved"
        shadow.session.save(path)
        pool, tokens = shadow.pool, shadow.tokens
        needed = -(-len(tokens) // PAGE)
        pages = self.used(pool) + needed
        if needed and pages > pool.limit:
            with pytest.raises(CacheExhaustedError if pages > PAGES else OutOfMemoryError):
                MODEL.load_session(path, factory=pool.factory)
        else:
            loaded = Shadow(MODEL.load_session(path, factory=pool.factory), pool)
            self.append(loaded, list(tokens), copy=False)
            self.shadows.append(loaded)

    @rule()
    def dirty_free_pages(self) -> None:
        """Fills what is free with another sequence's numbers and gives it back."""
        for pool in self.pools:
            room = (pool.limit - self.used(pool)) * PAGE
            while room > 0:
                sessions = [MODEL.decode_session(factory=pool.factory) for _ in range(-(-room // CONTEXT))]
                for session in sessions:
                    count = min(room, CONTEXT // PAGE * PAGE)
                    if count:
                        session.prefill([31] * count)
                    room -= count
                for session in sessions:
                    session.close()

    @rule(data=st.data(), size=st.integers(0, CONTEXT + 1))
    @precondition(lambda self: self.shadows)
    def truncate(self, data: st.DataObject, size: int) -> None:
        shadow = self.pick(data)
        if size > len(shadow.tokens):
            with pytest.raises(OutOfRangeError):
                shadow.session.truncate(size)
        else:
            shadow.session.truncate(size)
            del shadow.tokens[size:]
            del shadow.pages[-(-size // PAGE) :]

    @rule(data=st.data())
    @precondition(lambda self: 0 < len(self.shadows) < MOST)
    def fork(self, data: st.DataObject) -> None:
        shadow = self.pick(data)
        self.shadows.append(
            Shadow(shadow.session.fork(), shadow.pool, list(shadow.tokens), list(shadow.pages))
        )

    @rule(data=st.data())
    @precondition(lambda self: self.shadows)
    def reset(self, data: st.DataObject) -> None:
        shadow = self.pick(data)
        shadow.session.reset()
        shadow.tokens, shadow.pages = [], []

    @rule(data=st.data())
    @precondition(lambda self: self.shadows)
    def close(self, data: st.DataObject) -> None:
        shadow = self.pick(data)
        shadow.session.close()
        self.shadows.remove(shadow)

    @rule(data=st.data())
    @precondition(lambda self: self.shadows)
    def refuse(self, data: st.DataObject) -> None:
        shadow = self.pick(data)
        with pytest.raises(OutOfRangeError):
            shadow.session.prefill([1, 32])

    # --- the audit

    @invariant()
    def audit(self) -> None:
        for pool in self.pools:
            usage = pool.factory.usage()
            assert usage[:3] == (PAGE, PAGES, PAGES - self.used(pool))
            assert usage.allocated_bytes <= pool.limit * usage.block_bytes
        for shadow in self.shadows:
            assert shadow.session.size == len(shadow.tokens)
            held = shadow.session.usage()
            assert held.block_count == len(shadow.pages)
            assert held.shared_count == sum(self.users(page) > 1 for page in shadow.pages)
            assert held.bytes == len(shadow.pages) * shadow.pool.factory.usage().block_bytes

    def teardown(self) -> None:
        for shadow in self.shadows:
            shadow.session.close()
        for pool in self.pools:
            assert pool.factory.usage().free_count == PAGES
            pool.factory.close()
        self.folder.cleanup()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=int(os.environ.get("RIFTCO_STATEFUL_EXAMPLES", "60")),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
)
