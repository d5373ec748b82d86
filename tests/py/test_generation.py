"""Text generation from Python."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from riftco_transformer.artifacts import Runtime
from riftco_transformer.cancel import CancelFlag
from riftco_transformer.errors import (
    CacheExhaustedError,
    CancelledError,
    ContextFullError,
    InvalidArgumentError,
    InvalidStateError,
    OutOfRangeError,
)
from riftco_transformer.kv_cache import KvCacheFactory
from riftco_transformer.model import Model, ModelConfig
from riftco_transformer.serving import TextGenerator
from riftco_transformer.tokenizer import Tokenizer

Logits = npt.NDArray[np.float32]
SAMPLED: dict[str, Any] = {"max_new_tokens": 40, "temperature": 1.0, "seed": 11}


def test_greedy_is_the_argmax_of_each_step(runtime: Runtime, generator: TextGenerator) -> None:
    result = generator.generate("Tensor:", max_new_tokens=12)
    tokens = runtime.tokenizer.encode("Tensor:")
    with runtime.model.decode_session() as session:
        logits = session.prefill(tokens)
        for token, log_probability in zip(result.tokens, result.log_probabilities, strict=True):
            assert token == int(logits.argmax())
            wide = logits.astype(np.float64)
            expected = wide[token] - wide.max() - np.log(np.exp(wide - wide.max()).sum())
            assert log_probability == pytest.approx(expected, abs=1e-5)
            logits = session.step(token)
    assert len(result.tokens) == 12
    assert result.finish_reason == "length"
    assert result.bytes == runtime.tokenizer.decode_bytes(result.tokens)
    assert result.text == result.bytes.decode("utf-8", "replace")


def test_caches_do_not_change_a_token(runtime: Runtime, generator: TextGenerator) -> None:
    expected = generator.generate("Tensor:", **SAMPLED).tokens
    for options in ({"kv_cache": "contiguous"}, {"kv_cache_block_size": 3}, {"kv_cache_block_size": 1}):
        with TextGenerator(runtime.model, runtime.tokenizer, **options) as other:
            assert other.generate("Tensor:", **SAMPLED).tokens == expected


def test_seed(generator: TextGenerator) -> None:
    first = generator.generate("a", **SAMPLED)
    assert generator.generate("a", **SAMPLED).tokens == first.tokens
    assert generator.generate("a", **{**SAMPLED, "seed": 12}).tokens != first.tokens
    assert generator.generate("a", **{**SAMPLED, "seed": 2**64 - 1}).tokens != first.tokens


def test_filters_of_one_token_are_greedy(generator: TextGenerator) -> None:
    greedy = generator.generate("a", max_new_tokens=20).tokens
    for narrow in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert generator.generate("a", max_new_tokens=20, temperature=1.5, **narrow).tokens == greedy


def test_stream_is_the_buffered_text(generator: TextGenerator) -> None:
    for options in ({}, {"stop": "e"}, {"temperature": 1.0, "seed": 5}):
        expected = generator.generate("Tensor:", max_new_tokens=50, **options)
        stream = generator.stream("Tensor:", max_new_tokens=50, **options)
        with pytest.raises(InvalidStateError, match="has not ended"):
            _ = stream.result
        pieces = list(stream)
        assert all(pieces)
        assert "".join(pieces) == stream.result.text == expected.text
        assert stream.result.bytes == expected.bytes
        assert stream.result.tokens == expected.tokens
        assert list(stream) == []


def test_prompt_as_text_bytes_and_tokens(generator: TextGenerator) -> None:
    expected = generator.generate("Tensor:", max_new_tokens=5).tokens
    for prompt in (b"Tensor:", bytearray(b"Tensor:"), list(b"Tensor:"), np.frombuffer(b"Tensor:", np.uint8)):
        assert generator.generate(prompt, max_new_tokens=5).tokens == expected


def test_stop_strings_do_not_leak(generator: TextGenerator) -> None:
    whole = generator.generate("a", **SAMPLED).bytes
    stop = whole[10:13]
    at = whole.index(stop)
    result = generator.generate("a", **SAMPLED, stop=["unlikely to appear", stop])
    assert result.finish_reason == "stop"
    assert result.bytes == whole[:at]
    stream = generator.stream("a", **SAMPLED, stop=stop)
    assert "".join(stream) == result.text
    nevers: tuple[Any, ...] = ((), [], "unlikely to appear", (b"\x00" * 20,))
    for never in nevers:
        assert generator.generate("a", **SAMPLED, stop=never).bytes == whole


def test_stop_tokens(generator: TextGenerator) -> None:
    tokens = generator.generate("a", **SAMPLED).tokens
    stop = tokens[7]
    result = generator.generate("a", **SAMPLED, stop_tokens=np.array([stop]))
    assert result.finish_reason == "stop"
    assert result.tokens == tokens[: tokens.index(stop) + 1]


def test_statistics_and_reuse(runtime: Runtime) -> None:
    with TextGenerator(runtime.model, runtime.tokenizer) as generator:
        stats = generator.generate("Tensor:", max_new_tokens=4).stats
        assert (stats.prompt_tokens, stats.reused_tokens, stats.new_tokens, stats.rollovers) == (7, 0, 4, 0)
        assert stats.prefill_seconds > 0
        assert stats.decode_seconds > 0
        assert stats.prefill_tokens_per_second == 7 / stats.prefill_seconds
        assert stats.decode_tokens_per_second == 3 / stats.decode_seconds
        again = generator.generate("Tensor:", max_new_tokens=4).stats
        assert 0 < again.reused_tokens <= 7


def test_rollover_policies(runtime: Runtime, generator: TextGenerator) -> None:
    model, tokens = runtime.model, list(b"Tensor:")
    window = generator.generate("Tensor:", max_new_tokens=80)
    assert (len(window.tokens), window.finish_reason) == (80, "length")
    assert window.stats.rollovers > 0
    for token in window.tokens:
        assert token == int(model.logits(tokens[-64:])[-1].argmax())
        tokens.append(token)
    assert generator.generate("Tensor:", max_new_tokens=80, rollover="window").tokens == window.tokens
    keep = generator.generate("Tensor:", max_new_tokens=80, rollover="keep", rollover_keep=32)
    assert 0 < keep.stats.rollovers < window.stats.rollovers
    stop = generator.generate("Tensor:", max_new_tokens=80, rollover="stop")
    assert stop.finish_reason == "length"
    assert stop.tokens == window.tokens[: len(stop.tokens)]
    assert 64 - 7 <= len(stop.tokens) <= 64 - 7 + 1


def test_prompt_longer_than_the_context(generator: TextGenerator) -> None:
    prompt = "0123456789" * 10
    with pytest.raises(ContextFullError, match=r"100.*64"):
        generator.generate(prompt, rollover="stop")
    long = generator.generate(prompt, max_new_tokens=3)
    assert long.tokens == generator.generate(prompt[-64:], max_new_tokens=3).tokens


def test_logits_hook_edits_what_is_sampled(generator: TextGenerator) -> None:
    seen: list[list[int]] = []

    def only_letters(logits: Logits, tokens: Sequence[int]) -> None:
        assert logits.shape == (256,)
        assert threading.current_thread() is threading.main_thread()
        seen.append(list(tokens))
        logits[: ord("a")] = -np.inf
        logits[ord("z") + 1 :] = -np.inf

    result = generator.generate("a", **SAMPLED, logits_hook=only_letters)
    assert result.text.isalpha()
    assert result.text.islower()
    assert seen == [result.tokens[:n] for n in range(40)]


def test_logits_hook_sees_the_logits(model: Model, generator: TextGenerator) -> None:
    rows: list[Logits] = []
    result = generator.generate([1, 2], max_new_tokens=4, logits_hook=lambda logits, _: rows.append(logits))
    expected = model.logits([1, 2, *result.tokens[:-1]])[1:]
    assert np.array_equal(np.stack(rows), expected)
    assert result.tokens == generator.generate([1, 2], max_new_tokens=4).tokens


def test_failing_logits_hooks(generator: TextGenerator) -> None:
    def fail(logits: Logits, tokens: Sequence[int]) -> None:
        if len(tokens) == 2:
            raise LookupError("the hook's own")

    with pytest.raises(LookupError, match="the hook's own"):
        generator.generate("a", logits_hook=fail)
    with pytest.raises(TypeError, match="change the logits in place"):
        generator.generate("a", logits_hook=lambda logits, _: logits + 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="logits_hook must be callable, not int"):
        generator.generate("a", logits_hook=3)  # type: ignore[arg-type]
    assert len(generator.generate("a", max_new_tokens=3).tokens) == 3


def test_cancel_from_another_thread(generator: TextGenerator) -> None:
    cancel = CancelFlag()
    stream = generator.stream("a", max_new_tokens=10**6, cancel=cancel)
    next(stream)
    timer = threading.Timer(0.1, cancel.set)
    timer.start()
    with pytest.raises(CancelledError):
        list(stream)
    assert cancel.is_set
    with pytest.raises(CancelledError):
        generator.generate("a", cancel=cancel)
    cancel.reset()
    assert len(generator.generate("a", max_new_tokens=3, cancel=cancel).tokens) == 3


def test_cancelled_stream_goes_on(generator: TextGenerator) -> None:
    expected = generator.generate("a", max_new_tokens=30).text
    cancel = CancelFlag()
    stream = generator.stream("a", max_new_tokens=30, cancel=cancel)
    pieces = [next(stream)]
    cancel.set()
    with pytest.raises(CancelledError):
        next(stream)
    cancel.reset()
    assert "".join([*pieces, *stream]) == expected


def test_new_generation_ends_a_stream(generator: TextGenerator) -> None:
    stream = generator.stream("a")
    next(stream)
    generator.generate("b", max_new_tokens=2)
    with pytest.raises(InvalidStateError, match="another generation was started"):
        next(stream)


def test_threads_take_turns(generator: TextGenerator) -> None:
    expected = {prompt: generator.generate(prompt, **SAMPLED).tokens for prompt in "abcd"}
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda prompt: (prompt, generator.generate(prompt, **SAMPLED).tokens), "abcd" * 4)
        assert all(tokens == expected[prompt] for prompt, tokens in results)


def test_generators_on_one_pool(runtime: Runtime, generator: TextGenerator) -> None:
    expected = generator.generate("Tensor:", **SAMPLED).tokens
    with KvCacheFactory.paged(runtime.model, block_size=8, block_count=16) as pool:
        several = [TextGenerator(runtime.model, factory=pool) for _ in range(2)]
        with ThreadPoolExecutor(2) as threads:
            for result in threads.map(lambda one: one.generate("Tensor:", **SAMPLED), several):
                assert result.tokens == expected
        for one in several:
            one.close()
        assert pool.usage().free_count == 16


def test_pool_without_pages(runtime: Runtime) -> None:
    with KvCacheFactory.paged(runtime.model, block_size=4, block_count=2) as pool:
        generator = TextGenerator(runtime.model, factory=pool)
        stream = generator.stream("abcd", max_new_tokens=30)
        with pytest.raises(CacheExhaustedError):
            list(stream)
        with pytest.raises(CacheExhaustedError):
            generator.generate("far too long for eight positions")
        assert len(generator.generate("abcd", max_new_tokens=4).tokens) == 4


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_new_tokens": 0}, InvalidArgumentError, "max_new_tokens"),
        ({"max_new_tokens": -1}, InvalidArgumentError, "max_new_tokens must be in 0 .."),
        ({"max_new_tokens": True}, TypeError, "max_new_tokens must be an integer, not bool"),
        ({"max_new_tokens": 3.0}, TypeError, "max_new_tokens must be an integer, not float"),
        ({"max_new_tokens": 2**64}, InvalidArgumentError, "max_new_tokens must be in 0 .."),
        ({"temperature": -1}, InvalidArgumentError, "temperature"),
        ({"temperature": float("nan")}, InvalidArgumentError, "temperature"),
        ({"temperature": float("inf")}, InvalidArgumentError, "temperature"),
        ({"temperature": True}, TypeError, "temperature must be a number, not bool"),
        ({"temperature": "1"}, TypeError, "temperature must be a number, not str"),
        ({"top_p": 0.0}, InvalidArgumentError, "top_p"),
        ({"top_p": 1.5}, InvalidArgumentError, "top_p"),
        ({"min_p": -0.1}, InvalidArgumentError, "min_p"),
        ({"top_k": -1}, InvalidArgumentError, "top_k must be in 0 .. 4294967295, not -1"),
        ({"top_k": 2**32}, InvalidArgumentError, "top_k must be in 0"),
        ({"seed": -1}, InvalidArgumentError, "seed must be in 0"),
        ({"seed": 1.5}, TypeError, "seed must be an integer, not float"),
        ({"stop": 5}, TypeError, "stop must be texts, not int"),
        ({"stop": ["a", 5]}, TypeError, "a stop text must be str or bytes, not int"),
        ({"stop": ["a", ""]}, InvalidArgumentError, "stop string 1 is empty"),
        ({"stop_tokens": [256]}, OutOfRangeError, "stop token 256 is not below"),
        ({"stop_tokens": [-1]}, OutOfRangeError, "token -1"),
        ({"rollover": "roll"}, InvalidArgumentError, "rollover must be one of default, window, keep, stop"),
        ({"rollover": "keep"}, OutOfRangeError, r"rollover_keep 0 is not in 1 \.\. 63"),
        ({"rollover": "keep", "rollover_keep": 64}, OutOfRangeError, r"rollover_keep 64 is not in"),
        ({"rollover_keep": 5}, InvalidArgumentError, "rollover_keep"),
        ({"ignore_eos": 1}, TypeError, "ignore_eos must be a bool, not int"),
        ({"cancel": 1}, TypeError, "cancel must be a CancelFlag, not int"),
        ({"prompt": ""}, InvalidArgumentError, "the prompt has no token"),
        ({"prompt": []}, InvalidArgumentError, "the prompt has no token"),
        ({"prompt": [256]}, OutOfRangeError, "256"),
        ({"prompt": None}, TypeError, "tokens must be a sequence of integers, not NoneType"),
        ({"prompt": ["a"]}, TypeError, "a token must be an integer, not str"),
    ],
)
def test_misuse(
    generator: TextGenerator, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    expected = generator.generate("Tensor:", max_new_tokens=3).tokens
    for call in (generator.generate, generator.stream):
        with pytest.raises(error, match=message):
            call(**{"prompt": "Tensor:", "max_new_tokens": 3, **options})
    assert generator.generate("Tensor:", max_new_tokens=3).tokens == expected


def test_bad_generators(runtime: Runtime) -> None:
    with pytest.raises(TypeError, match="model must be a Model, not Runtime"):
        TextGenerator(runtime)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tokenizer must be a Tokenizer, not str"):
        TextGenerator(runtime.model, "byte")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="must be one of contiguous, paged, not 'page'"):
        TextGenerator(runtime.model, kv_cache="page")
    with pytest.raises(InvalidArgumentError, match="a block needs at least one token"):
        TextGenerator(runtime.model, kv_cache_block_size=0)


def test_factory_of_another_geometry(runtime: Runtime) -> None:
    with Model.create(ModelConfig(layer_count=1)) as other, KvCacheFactory.paged(other) as factory:
        with pytest.raises(InvalidArgumentError, match="layers"):
            TextGenerator(runtime.model, factory=factory)
        with pytest.raises(InvalidArgumentError, match="layers"):
            runtime.model.decode_session(factory=factory)


def test_close_copy_and_pickle(runtime: Runtime) -> None:
    generator = TextGenerator(runtime.model)
    stream = generator.stream("a")
    for refuse in (copy.copy, pickle.dumps):
        with pytest.raises(TypeError, match="a generator cannot be"):
            refuse(generator)
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            refuse(stream)
    generator.close()
    generator.close()
    with pytest.raises(InvalidStateError, match="the generator is closed"):
        generator.generate("a")
    with pytest.raises(InvalidStateError, match="the generator is closed"):
        next(stream)


def test_generator_outlives_its_runtime(runtime: Runtime) -> None:
    with TextGenerator(runtime.model, runtime.tokenizer) as generator:
        expected = generator.generate("a", max_new_tokens=3).tokens
        runtime.close()
        assert generator.generate("a", max_new_tokens=3).tokens == expected


def test_model_without_a_tokenizer() -> None:
    with Model.create(ModelConfig(layer_count=1)) as model:
        with TextGenerator(model) as generator:
            result = generator.generate([1, 2, 3], max_new_tokens=4)
            assert (len(result.tokens), result.text) == (4, "")
            with pytest.raises(InvalidStateError, match="the model has no tokenizer"):
                generator.generate("text")
        with Tokenizer.byte() as tokenizer, TextGenerator(model, tokenizer) as generator:
            assert generator.generate("text", max_new_tokens=4).tokens
