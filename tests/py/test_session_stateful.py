"""Sessions on one small pool, against a shadow: tokens, who shares which page, what is free, every logit."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from riftco_transformer.errors import CacheExhaustedError, ContextFullError, OutOfRangeError
from riftco_transformer.kv_cache import KvCacheFactory
from riftco_transformer.model import Model, ModelConfig
from riftco_transformer.session import DecodeSession, step_many

PAGE, PAGES, CONTEXT = 3, 9, 16
MODEL = Model.create(
    ModelConfig(vocabulary_size=32, maximum_context=CONTEXT, layer_count=2, width=16, head_count=2,
                kv_head_count=1, head_width=8, mlp_width=24), seed=5, threads=1)  # fmt: skip
TOKENS = st.integers(0, 31)


@dataclass
class Shadow:
    """A session with what it must hold: its tokens, and the names of its pages."""

    session: DecodeSession
    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = KvCacheFactory.paged(MODEL, block_size=PAGE, block_count=PAGES)
        self.shadows: list[Shadow] = []
        self.names = itertools.count()

    def pick(self, data: st.DataObject) -> Shadow:
        return data.draw(st.sampled_from(self.shadows))

    def users(self, page: int) -> int:
        return sum(page in shadow.pages for shadow in self.shadows)

    def free(self) -> int:
        return PAGES - len({page for shadow in self.shadows for page in shadow.pages})

    def copies_tail(self, shadow: Shadow) -> bool:
        return len(shadow.tokens) % PAGE != 0 and self.users(shadow.pages[-1]) > 1

    def leases(self, shadow: Shadow, count: int) -> int:
        total = -(-(len(shadow.tokens) + count) // PAGE)
        return total - len(shadow.pages) + self.copies_tail(shadow)

    def append(self, shadow: Shadow, tokens: list[int]) -> None:
        if self.copies_tail(shadow):
            shadow.pages[-1] = next(self.names)
        shadow.tokens += tokens
        while len(shadow.pages) * PAGE < len(shadow.tokens):
            shadow.pages.append(next(self.names))

    @rule()
    @precondition(lambda self: len(self.shadows) < 5)
    def create(self) -> None:
        self.shadows.append(Shadow(MODEL.decode_session(factory=self.pool)))

    @rule(data=st.data(), tokens=st.lists(TOKENS, min_size=1, max_size=8))
    @precondition(lambda self: self.shadows)
    def prefill(self, data: st.DataObject, tokens: list[int]) -> None:
        shadow = self.pick(data)
        if len(shadow.tokens) + len(tokens) > CONTEXT:
            with pytest.raises(ContextFullError):
                shadow.session.prefill(tokens)
        elif self.leases(shadow, len(tokens)) > self.free():
            with pytest.raises(CacheExhaustedError):
                shadow.session.prefill(tokens)
        else:
            row = shadow.session.prefill(tokens)
            self.append(shadow, tokens)
            assert np.array_equal(row, MODEL.logits(shadow.tokens)[-1])

    @rule(data=st.data(), token=TOKENS)
    @precondition(lambda self: self.shadows)
    def step_all(self, data: st.DataObject, token: int) -> None:
        batch = data.draw(st.permutations(self.shadows))
        batch = [shadow for shadow in batch if len(shadow.tokens) < CONTEXT]
        if not batch:
            return
        sessions, tokens = [shadow.session for shadow in batch], [token] * len(batch)
        before = [(list(shadow.tokens), list(shadow.pages)) for shadow in self.shadows]
        possible = True
        for shadow in batch:  # one after the other: a copy made for one may leave the next its page alone
            possible = possible and self.leases(shadow, 1) <= self.free()
            if possible:
                self.append(shadow, [token])
        if possible:
            for shadow, row in zip(batch, step_many(sessions, tokens), strict=True):
                assert np.array_equal(row, MODEL.logits(shadow.tokens)[-1])
        else:
            for shadow, (old_tokens, old_pages) in zip(self.shadows, before, strict=True):
                shadow.tokens, shadow.pages = old_tokens, old_pages
            with pytest.raises(CacheExhaustedError):
                step_many(sessions, tokens)

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
    @precondition(lambda self: 0 < len(self.shadows) < 5)
    def fork(self, data: st.DataObject) -> None:
        shadow = self.pick(data)
        self.shadows.append(Shadow(shadow.session.fork(), list(shadow.tokens), list(shadow.pages)))

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

    @invariant()
    def audit(self) -> None:
        assert self.pool.usage()[:3] == (PAGE, PAGES, self.free())
        for shadow in self.shadows:
            assert shadow.session.size == len(shadow.tokens)

    def teardown(self) -> None:
        for shadow in self.shadows:
            shadow.session.close()
        assert self.pool.usage().free_count == PAGES
        self.pool.close()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
