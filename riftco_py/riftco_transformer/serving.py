"""Generation: prompt in, text out."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast, overload
from weakref import WeakKeyDictionary

import numpy as np

from ._native import (
    NO_TOKEN,
    UINT32_MAX,
    FloatArray,
    Handle,
    Text,
    Tokens,
    check,
    choice,
    create,
    ffi,
    flag,
    instance,
    integer,
    lib,
    options,
    output,
    real,
    text_bytes,
    token_array,
    token_id,
    token_pointer,
)
from .cancel import CancelFlag, interruptible
from .errors import InvalidArgumentError, InvalidStateError
from .kv_cache import KvCacheFactory
from .model import Model
from .tokenizer import Tokenizer, text_decoder

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "GenerationOptions",
    "GenerationResult",
    "GenerationStats",
    "GenerationStream",
    "LogitsHook",
    "TextGenerator",
    "TokenProbability",
]

LogitsHook = Callable[[FloatArray, Sequence[int]], None]
"""Called before each token is chosen, with the model's logits (float32 [vocabulary_size], to be changed in
place; -inf bars a token) and the new tokens so far. Bias, penalties and filters see what it leaves."""


class GenerationOptions(TypedDict, total=False):
    """What `TextGenerator.generate` and `stream` take beside the prompt. How a token is chosen: the hook, logit_bias,
    min_new_tokens, the penalties, temperature, top_k, top_p, min_p, one draw, in this order."""

    temperature: float
    """0, the default, takes the most likely token; then top_k, top_p, min_p and seed are not used."""
    top_k: int
    """Choose among the k most likely tokens; 0: among all."""
    top_p: float
    """Choose among the most likely tokens that together have this probability; 1: among all."""
    min_p: float
    """Choose among tokens at least min_p times as likely as the most likely one; 0: among all."""
    seed: int
    """The same seed gives the same tokens, whatever else runs. Default 0."""
    min_new_tokens: int
    """End-of-generation and stop tokens are barred before this many. Default 0."""
    repetition_penalty: float
    """Above 0; 1: off. Logits of tokens of the prompt and the new text: those above 0 are divided by it, others
    multiplied."""
    presence_penalty: float
    """Taken off the logits of tokens that are in the new text. 0: off."""
    frequency_penalty: float
    """Taken off the logits of tokens of the new text for every time that they are there. 0: off."""
    penalty_window: int
    """The penalties look at this many newest tokens; 0: at all."""
    logit_bias: Mapping[int, float]
    """Added to the logits of these tokens; -inf bars them."""
    stop: Text | Iterable[Text]
    """Texts that end the generation and do not appear in it."""
    stop_tokens: Tokens
    """Token ids that end the generation."""
    ignore_eos: bool
    """Treat end-of-generation tokens as ordinary ones."""
    parse_special: bool
    """Read the text of special tokens in the prompt as those tokens."""
    rollover: str
    """When the context is full: "window" goes on with the newest tokens that fit, "keep" with the newest
    `rollover_keep`, "stop" finishes; "default" is window for models with learned positions and stop for rotary
    ones."""
    rollover_keep: int
    """1 .. maximum context - 1, with rollover="keep"."""
    alternatives: int
    """How many of the most likely tokens to tell at each place, at most 64. Default 0."""
    speculation: int
    """Guess up to this many tokens ahead, from what followed the same tokens earlier in prompt and text, and check them in
    one step; at most 64. Faster where a text repeats or edits what was there; tokens and probabilities are the same.
    Default 0: off."""
    logits_hook: LogitsHook | None
    """See `LogitsHook`; what it raises comes out of the call."""
    cancel: CancelFlag | None
    """Ends the generation from another thread, with `CancelledError`."""


_ROLLOVERS: dict[str, int] = {
    "default": lib.RT_ROLLOVER_DEFAULT,
    "window": lib.RT_ROLLOVER_WINDOW,
    "keep": lib.RT_ROLLOVER_KEEP,
    "stop": lib.RT_ROLLOVER_STOP,
}
_FINISH_REASONS: dict[int, str] = {
    lib.RT_FINISH_EOS: "eos",
    lib.RT_FINISH_STOP: "stop",
    lib.RT_FINISH_LENGTH: "length",
}


@dataclass(frozen=True)
class GenerationStats:
    """Counts and times of a generation."""

    prompt_tokens: int
    """Of the prompt as given."""
    reused_tokens: int
    """Of them already in the cache."""
    new_tokens: int
    """Sampled so far."""
    rollovers: int
    prefill_seconds: float
    """Computing the prompt tokens that were not reused."""
    decode_seconds: float
    """All steps after it, replays included."""
    drafted_tokens: int = 0
    """Guessed and computed ahead by speculation."""
    accepted_tokens: int = 0
    """Of them those that were then sampled."""

    @property
    def prefill_tokens_per_second(self) -> float:
        """Of the prompt tokens that were computed; 0 without any."""
        return _rate(self.prompt_tokens - self.reused_tokens, self.prefill_seconds)

    @property
    def decode_tokens_per_second(self) -> float:
        """Of the tokens after the first, which comes with the prefill; 0 without any."""
        return _rate(self.new_tokens - 1, self.decode_seconds)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0


class TokenProbability(NamedTuple):
    """What a token's chances were."""

    token: int
    log_probability: float
    """Under the raw distribution."""
    processed_log_probability: float
    """Under the processed one; -inf: it could not be drawn."""


@dataclass(frozen=True)
class GenerationResult:
    """A generation that has ended."""

    text: str
    """`bytes` with U+FFFD where they are not valid UTF-8."""
    bytes: builtins.bytes
    tokens: list[int]
    """All that were sampled, an end-of-generation or stop token included."""
    log_probabilities: list[float]
    """Of each token under the raw distribution: softmax of the model's logits, or of what the hook made of them."""
    processed_log_probabilities: list[float]
    """Of each token under the distribution that it was drawn from: after bias, penalties, temperature and filters
    (temperature 0: after bias and penalties)."""
    alternatives: list[list[TokenProbability]]
    """For each token the most likely ones under the raw distribution, best first; empty unless asked for."""
    finish_reason: str
    """"eos", "stop" or "length"."""
    stats: GenerationStats


class TextGenerator(Handle):
    """Generates text with a model. Keeps its cache between generations, and uses it again as far as prompts
    begin alike.

    Runs one generation at a time: `generate` of another thread waits for its turn, and a new generation
    ends a stream that was not read to its end. For several at once make several generators; they may share
    a `KvCacheFactory`.
    """

    __slots__ = ("_cancel", "_lock", "_serial", "_turn")
    _kind = "generator"
    _release = "rt_generator_release"

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None = None,
        kv_cache: str = "paged",
        kv_cache_block_size: int = 16,
        kv_cache_block_count: int = 0,
        maximum_context: int = 0,
        factory: KvCacheFactory | None = None,
        kv_cache_type: str = "f32",
    ) -> None:
        """tokenizer: None for the model's. kv_cache: "paged", in kv_cache_block_count pages (0: one full
        context) of kv_cache_block_size tokens, or "contiguous". maximum_context: the longest
        sequence, 0 for the model's. kv_cache_type: "f32", or "f16" or "bf16" for half the memory, with keys
        and values rounded. factory: takes the cache from there instead of all these."""
        native_model = instance(model, "model", Model)._pointer()
        text = ffi.NULL if tokenizer is None else instance(tokenizer, "tokenizer", Tokenizer)._pointer()
        if factory is None:
            factory = KvCacheFactory.create(
                model,
                kv_cache,
                kv_cache_block_size,
                kv_cache_block_count,
                maximum_context,
                cache_type=kv_cache_type,
            )
        source = instance(factory, "factory", KvCacheFactory)._pointer()
        self._own(create(lib.rt_generator_create, "rt_generator", native_model, text, source), None)

    def _own(self, native: Any, cancel: CancelFlag | None) -> None:
        super().__init__(native)
        self._turn = threading.RLock()  # held by the thread that generates
        self._lock = threading.RLock()  # held within native calls
        self._serial = 0  # of the generation that is running
        self._cancel = cancel  # of that generation, which looks at it

    @classmethod
    def _of(cls, native: Any, cancel: CancelFlag) -> TextGenerator:
        """Around a native generator whose generation is running."""
        generator = cls.__new__(cls)
        generator._own(native, cancel)
        return generator

    @overload
    def generate(
        self,
        prompt: Text | Tokens,
        max_new_tokens: int = 256,
        *,
        n: None = None,
        **options: Unpack[GenerationOptions],
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompt: Text | Tokens,
        max_new_tokens: int = 256,
        *,
        n: int,
        **options: Unpack[GenerationOptions],
    ) -> list[GenerationResult]: ...

    def generate(
        self,
        prompt: Text | Tokens,
        max_new_tokens: int = 256,
        *,
        n: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> GenerationResult | list[GenerationResult]:
        """Generates to the end and returns everything. Ctrl-C ends it.

        Args: prompt: Text (the BOS token is added where the model's file says so; never a chat template),
        or token ids as they are. Longer than the context: its newest tokens, or `ContextFullError` under
        rollover="stop". max_new_tokens: Finish reason "length" after this many. n: That many choices, each
        with its own random numbers, as a list; the prompt is prefilled once. Choice i is the same for every
        n, and choice 0 is what n=None gives. options: See `GenerationOptions`.

        """
        if n is None:
            with self._turn:
                return self.stream(prompt, max_new_tokens, **options)._run()
        count = integer(n, "n", UINT32_MAX)
        if count == 0:
            raise InvalidArgumentError("n must be at least 1")
        with self._turn:
            first = self.stream(prompt, max_new_tokens, **options)
            # the first goes last, so that the others find the prompt's pages and have given theirs back
            others = [self._choice(first, choice) for choice in range(1, count)]
            return [first._run(), *others]

    def _choice(self, stream: GenerationStream, choice: int) -> GenerationResult:
        """A fork of a stream that was just started, to its end."""
        with self._lock:
            native = create(lib.rt_generator_fork, "rt_generator", stream._pointer(), choice)
        with TextGenerator._of(native, stream._cancel) as fork:
            return GenerationStream(fork, fork._serial, stream._cancel, stream._hook)._run()

    def stream(
        self, prompt: Text | Tokens, max_new_tokens: int = 256, **options: Unpack[GenerationOptions]
    ) -> GenerationStream:
        """As `generate`, but returns after the prefill with an iterator of the pieces of the text."""
        hook = options.get("logits_hook")
        if hook is not None and not callable(hook):
            raise TypeError(f"logits_hook must be callable, not {type(hook).__name__}")
        given = options.get("cancel")
        cancel = CancelFlag() if given is None else instance(given, "cancel", CancelFlag)
        settings = _native_options(max_new_tokens, options, cancel)
        if isinstance(prompt, (str, bytes, bytearray, memoryview)):
            text = text_bytes(prompt, "prompt")
            start, arguments = lib.rt_generator_start, (text, len(text))
        else:
            ids = token_array(prompt)
            start, arguments = lib.rt_generator_start_tokens, (token_pointer(ids), len(ids))
        with self._turn:
            serial = interruptible(lambda: self._start(start, arguments, settings, cancel), cancel)
        return GenerationStream(self, serial, cancel, hook)

    def _start(self, start: Callable[..., int], prompt: Any, settings: Any, cancel: CancelFlag) -> int:
        with self._lock:
            native = self._pointer()
            self._serial += 1  # even a failing start ends the generation that was running
            self._cancel = cancel
            check(start(native, *prompt, settings))
            return self._serial


_kept: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""What structs of options point to, as long as they live."""


def _native_options(max_new_tokens: object, given: GenerationOptions, cancel: CancelFlag) -> Any:
    if unknown := given.keys() - GenerationOptions.__annotations__.keys():
        raise TypeError(f"there is no option {min(unknown)!r}")
    settings = options("rt_generation_options")
    settings.max_new_tokens = integer(max_new_tokens, "max_new_tokens")
    for name in given:
        value = given[name]  # type: ignore[literal-required]
        if name in ("seed", "min_new_tokens"):
            setattr(settings, name, integer(value, name))
        elif name in ("top_k", "rollover_keep", "penalty_window", "alternatives", "speculation"):
            setattr(settings, name, integer(value, name, UINT32_MAX))
        elif name in ("ignore_eos", "parse_special"):
            setattr(settings, name, flag(value, name))
        elif name == "rollover":
            settings.rollover = choice(value, name, _ROLLOVERS)
        elif name in ("temperature", "top_p", "min_p") or name.endswith("_penalty"):
            setattr(settings, name, real(value, name))
    stops, stop_ids = _texts(given.get("stop", ())), token_array(given.get("stop_tokens", ()))
    buffers = [ffi.from_buffer(text) for text in stops]
    strings = ffi.new("rt_text[]", [(buffer, len(text)) for buffer, text in zip(buffers, stops, strict=True)])
    biases = _biases(given.get("logit_bias", {}))
    settings.stop_strings, settings.stop_string_count = strings, len(stops)
    settings.stop_tokens, settings.stop_token_count = token_pointer(stop_ids), len(stop_ids)
    settings.logit_bias, settings.logit_bias_count = biases, len(biases)
    settings.cancel = cancel._pointer()
    _kept[settings] = strings, buffers, stop_ids, biases
    return settings


def _biases(bias: object) -> Any:
    if not isinstance(bias, Mapping):
        raise TypeError(f"logit_bias must be a mapping of token ids to numbers, not {type(bias).__name__}")
    pairs = [(token_id(token), real(value, "a logit bias")) for token, value in bias.items()]
    return ffi.new("rt_logit_bias[]", pairs)


def _texts(stop: object) -> list[bytes]:
    if isinstance(stop, (str, bytes, bytearray, memoryview)):
        stop = (stop,)
    if not isinstance(stop, Iterable):
        raise TypeError(f"stop must be texts, not {type(stop).__name__}")
    return [text_bytes(text, "a stop text") for text in stop]


class GenerationStream(Iterator[str]):
    """Iterates over the pieces of a text as they become certain; none is empty, and together they are
    `result.text`."""

    def __init__(
        self, generator: TextGenerator, serial: int, cancel: CancelFlag, logits_hook: LogitsHook | None
    ) -> None:
        """Not called directly: see `TextGenerator.stream`."""
        self._generator = generator
        self._serial = serial
        self._cancel = cancel
        self._hook = logits_hook
        self._decoder = text_decoder()
        self._text: list[str] = []
        self._bytes: list[bytes] = []
        self._tokens: list[int] = []
        self._log_probabilities: list[float] = []
        self._processed: list[float] = []
        self._alternatives: list[list[TokenProbability]] = []
        self._result: GenerationResult | None = None

    def __next__(self) -> str:
        """A piece of text. `InvalidStateError` once another generation was started. After any other
        error (cancelled, Ctrl-C, no free page, the hook's own) the next call goes on."""
        while self._result is None:
            logits = self._hooked_logits() if self._hook is not None else None
            text = interruptible(partial(self._advance, logits), self._cancel)
            if text:
                return text
        raise StopIteration

    def close(self) -> None:
        """Ends the generation where it is; it no longer counts as a session of the model. Nothing happens when it has
        ended or another one was started."""
        with self._generator._lock:
            if not self._generator.closed and self._generator._serial == self._serial:
                check(lib.rt_generator_stop(self._pointer()))

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def result(self) -> GenerationResult:
        """Everything; `InvalidStateError` before the end."""
        if self._result is None:
            raise InvalidStateError("the generation has not ended")
        return self._result

    def __reduce_ex__(self, _: object) -> Any:
        raise TypeError("a generation stream cannot be copied or pickled")

    def _pointer(self) -> Any:
        native = self._generator._pointer()
        if self._generator._serial != self._serial:
            raise InvalidStateError("another generation was started on this generator")
        return native

    def _native_logits(self) -> FloatArray:
        """A view of the library's row, for use under the lock."""
        row, count = ffi.new("float **"), ffi.new("uint64_t *")
        check(lib.rt_generator_logits(self._pointer(), row, count))
        return cast("FloatArray", np.frombuffer(ffi.buffer(row[0], 4 * count[0]), dtype=np.float32))

    def _hooked_logits(self) -> FloatArray:
        """The hook's version of the row, made in the caller's thread."""
        assert self._hook is not None
        logits = interruptible(self._read_logits, self._cancel)
        if self._hook(logits, tuple(self._tokens)) is not None:
            raise TypeError("logits_hook must change the logits in place and return None")
        return logits

    def _read_logits(self) -> FloatArray:
        with self._generator._lock:
            return np.array(self._native_logits())

    def _advance(self, logits: FloatArray | None) -> str:
        piece = output("rt_generation_piece")
        with self._generator._lock:
            if self._result is not None:
                return ""  # another thread read the end
            if logits is not None:
                self._native_logits()[:] = logits
            check(lib.rt_generator_next(self._pointer(), piece))
            data = bytes(ffi.buffer(piece.bytes, piece.size)) if piece.size else b""
            text = self._decoder.decode(data, final=piece.finish != lib.RT_FINISH_NONE)
            self._text.append(text)
            self._bytes.append(data)
            if piece.token != NO_TOKEN:
                self._tokens.append(piece.token)
                self._log_probabilities.append(piece.log_probability)
                self._processed.append(piece.processed_log_probability)
                self._alternatives.append(
                    [
                        TokenProbability(one.token, one.log_probability, one.processed_log_probability)
                        for one in piece.alternatives[0 : piece.alternative_count]
                    ]
                )
            if piece.finish != lib.RT_FINISH_NONE:
                self._result = GenerationResult(
                    text="".join(self._text),
                    bytes=b"".join(self._bytes),
                    tokens=self._tokens,
                    log_probabilities=self._log_probabilities,
                    processed_log_probabilities=self._processed,
                    alternatives=self._alternatives,
                    finish_reason=_FINISH_REASONS[piece.finish],
                    stats=self._stats(),
                )
            return text

    def _run(self) -> GenerationResult:
        """All of it at once."""
        if self._hook is None:
            interruptible(self._run_to_end, self._cancel)
        else:
            for _ in self:
                pass
        return self.result

    def _run_to_end(self) -> None:
        while self._result is None:
            self._advance(None)

    def _stats(self) -> GenerationStats:
        stats = output("rt_generation_stats")
        check(lib.rt_generator_get_stats(self._pointer(), stats))
        return GenerationStats(
            **{name: getattr(stats, name) for name in GenerationStats.__dataclass_fields__}
        )
