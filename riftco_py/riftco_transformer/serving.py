"""Generation: prompt in, text out."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
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
    token_pointer,
)
from .cancel import CancelFlag, interruptible
from .errors import InvalidStateError
from .kv_cache import KvCacheFactory
from .model import Model
from .tokenizer import Tokenizer, text_decoder

__all__ = ["GenerationResult", "GenerationStats", "GenerationStream", "LogitsHook", "TextGenerator"]

LogitsHook = Callable[[FloatArray, Sequence[int]], None]
"""Called before each token is chosen, with the logits (float32 [vocabulary_size], to be changed in
place; -inf bars a token) and the new tokens so far."""

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


@dataclass(frozen=True)
class GenerationResult:
    """A generation that has ended."""

    text: str
    """`bytes` with U+FFFD where they are not valid UTF-8."""
    bytes: builtins.bytes
    tokens: list[int]
    """All that were sampled, an end-of-generation or stop token included."""
    log_probabilities: list[float]
    """Of each token under the model's distribution: temperature 1, no filter."""
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
        super().__init__(create(lib.rt_generator_create, "rt_generator", native_model, text, source))
        self._turn = threading.RLock()  # held by the thread that generates
        self._lock = threading.RLock()  # held within native calls
        self._serial = 0  # of the generation that is running
        self._cancel: CancelFlag | None = None  # of that generation, which looks at it

    def generate(
        self,
        prompt: Text | Tokens,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        stop: Text | Iterable[Text] = (),
        stop_tokens: Tokens = (),
        ignore_eos: bool = False,
        parse_special: bool = False,
        rollover: str = "default",
        rollover_keep: int = 0,
        logits_hook: LogitsHook | None = None,
        cancel: CancelFlag | None = None,
    ) -> GenerationResult:
        """Generates to the end and returns everything. Ctrl-C ends it.

        Args: prompt: Text (the BOS token is added where the model's file says so; never a chat template),
        or token ids as they are. Longer than the context: its newest tokens, or `ContextFullError` under
        "stop". max_new_tokens: Finish reason "length" after this many. temperature: 0 takes the most likely
        token; then the next four are not used. top_k: Choose among the k most likely tokens; 0: among all.
        top_p: Choose among the most likely tokens that together have this probability; 1: among all. min_p:
        Choose among tokens at least min_p times as likely as the most likely one; 0: among all. seed: The
        same seed gives the same tokens, whatever else runs. stop: Texts that end the generation and do not
        appear in it. stop_tokens: Token ids that end the generation. ignore_eos: Treat end-of-generation
        tokens as ordinary ones. parse_special: Read the text of special tokens in the prompt as those
        tokens. rollover: When the context is full: "window" goes on with the newest tokens that fit, "keep"
        with the newest `rollover_keep`, "stop" finishes; "default" is window for models with learned
        positions and stop for rotary ones. rollover_keep: 1 .. maximum context - 1, with rollover="keep".
        logits_hook: See `LogitsHook`; what it raises comes out here. cancel: Ends the generation from
        another thread, with `CancelledError`.

        """
        with self._turn:
            stream = self.stream(
                prompt,
                max_new_tokens=max_new_tokens,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                seed=seed,
                stop=stop,
                stop_tokens=stop_tokens,
                ignore_eos=ignore_eos,
                parse_special=parse_special,
                rollover=rollover,
                rollover_keep=rollover_keep,
                logits_hook=logits_hook,
                cancel=cancel,
            )
            if logits_hook is None:
                interruptible(stream._run_to_end, stream._cancel)
            else:
                for _ in stream:
                    pass
            return stream.result

    def stream(
        self,
        prompt: Text | Tokens,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        stop: Text | Iterable[Text] = (),
        stop_tokens: Tokens = (),
        ignore_eos: bool = False,
        parse_special: bool = False,
        rollover: str = "default",
        rollover_keep: int = 0,
        logits_hook: LogitsHook | None = None,
        cancel: CancelFlag | None = None,
    ) -> GenerationStream:
        """As `generate`, but returns after the prefill with an iterator of the pieces of the text."""
        if logits_hook is not None and not callable(logits_hook):
            raise TypeError(f"logits_hook must be callable, not {type(logits_hook).__name__}")
        settings = options("rt_generation_options")
        settings.max_new_tokens = integer(max_new_tokens, "max_new_tokens")
        settings.seed = integer(seed, "seed")
        settings.temperature = real(temperature, "temperature")
        settings.top_p = real(top_p, "top_p")
        settings.min_p = real(min_p, "min_p")
        settings.top_k = integer(top_k, "top_k", UINT32_MAX)
        settings.ignore_eos = flag(ignore_eos, "ignore_eos")
        settings.parse_special = flag(parse_special, "parse_special")
        settings.rollover = choice(rollover, "rollover", _ROLLOVERS)
        settings.rollover_keep = integer(rollover_keep, "rollover_keep", UINT32_MAX)
        stops, stop_ids = _texts(stop), token_array(stop_tokens)
        buffers = [ffi.from_buffer(text) for text in stops]
        strings = ffi.new(
            "rt_text[]", [(buffer, len(text)) for buffer, text in zip(buffers, stops, strict=True)]
        )
        settings.stop_strings, settings.stop_string_count = strings, len(stops)
        settings.stop_tokens, settings.stop_token_count = token_pointer(stop_ids), len(stop_ids)
        flag_of_it = CancelFlag() if cancel is None else instance(cancel, "cancel", CancelFlag)
        settings.cancel = flag_of_it._pointer()
        _kept[settings] = strings, buffers, stop_ids
        if isinstance(prompt, (str, bytes, bytearray, memoryview)):
            text = text_bytes(prompt, "prompt")
            start, arguments = lib.rt_generator_start, (text, len(text))
        else:
            ids = token_array(prompt)
            start, arguments = lib.rt_generator_start_tokens, (token_pointer(ids), len(ids))
        with self._turn:
            serial = interruptible(lambda: self._start(start, arguments, settings, flag_of_it), flag_of_it)
        return GenerationStream(self, serial, flag_of_it, logits_hook)

    def _start(self, start: Callable[..., int], prompt: Any, settings: Any, cancel: CancelFlag) -> int:
        with self._lock:
            native = self._pointer()
            self._serial += 1  # even a failing start ends the generation that was running
            self._cancel = cancel
            check(start(native, *prompt, settings))
            return self._serial


_kept: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""What structs of options point to, as long as they live."""


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
            if piece.finish != lib.RT_FINISH_NONE:
                self._result = GenerationResult(
                    text="".join(self._text),
                    bytes=b"".join(self._bytes),
                    tokens=self._tokens,
                    log_probabilities=self._log_probabilities,
                    finish_reason=_FINISH_REASONS[piece.finish],
                    stats=self._stats(),
                )
            return text

    def _run_to_end(self) -> None:
        while self._result is None:
            self._advance(None)

    def _stats(self) -> GenerationStats:
        stats = output("rt_generation_stats")
        check(lib.rt_generator_get_stats(self._pointer(), stats))
        return GenerationStats(
            **{name: getattr(stats, name) for name in GenerationStats.__dataclass_fields__}
        )
