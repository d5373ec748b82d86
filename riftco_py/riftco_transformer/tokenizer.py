"""Text to token ids and back."""

from __future__ import annotations

import codecs
import pathlib
import threading
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any, SupportsIndex

import numpy as np

from ._native import (
    NO_TOKEN,
    UINT32_MAX,
    Handle,
    Path,
    Text,
    TokenArray,
    Tokens,
    check,
    choice,
    create,
    ffi,
    flag,
    integer,
    lib,
    options,
    output,
    path_bytes,
    text_bytes,
    token_array,
    token_id,
    token_pointer,
)
from .cancel import CancelFlag, interruptible
from .progress import Progress, watched

_KINDS = {0: "byte", 1: "bpe", 2: "sentencepiece"}


PRE_TOKENIZERS: dict[str, int] = {
    "gpt2": lib.RT_PRE_TOKENIZER_GPT2,
    "smollm": lib.RT_PRE_TOKENIZER_SMOLLM,
    "llama3": lib.RT_PRE_TOKENIZER_LLAMA3,
    "qwen2": lib.RT_PRE_TOKENIZER_QWEN2,
}


def _texts(items: object, name: str) -> list[bytes]:
    if isinstance(items, (str, bytes, PathLike)) or not isinstance(items, Iterable):
        raise TypeError(f"expected an iterable of texts, not {type(items).__name__}")
    return [
        pathlib.Path(item).read_bytes() if isinstance(item, PathLike) else text_bytes(item, name)
        for item in items
    ]


def _text_array(texts: list[bytes]) -> Any:
    """rt_text[], pointing into the texts."""
    array = ffi.new("rt_text[]", len(texts))
    for entry, text in zip(array, texts, strict=True):
        entry.data, entry.size = ffi.from_buffer(text), len(text)
    return array


def _optional(token: int) -> int | None:
    return None if token == NO_TOKEN else token


class Tokenizer(Handle):
    """A tokenizer: immutable, safe to use from any number of threads at once."""

    __slots__ = ("_info",)
    _kind = "tokenizer"
    _release = "rt_tokenizer_release"

    def __init__(self, native: Any) -> None:
        """Not called directly: see `load`, `byte` and `Runtime.tokenizer`."""
        super().__init__(native)
        info = output("rt_tokenizer_info")
        check(lib.rt_tokenizer_get_info(self._pointer(), info))
        self._info = info

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """From a tokenizer.json, a .gguf, a .rift or a folder with a tokenizer.json."""
        name = path_bytes(path)
        return cls(interruptible(lambda: create(lib.rt_tokenizer_load, "rt_tokenizer", name, len(name))))

    @classmethod
    def byte(cls) -> Tokenizer:
        """The byte tokenizer: 256 ids, no special token."""
        return cls(create(lib.rt_tokenizer_create_byte, "rt_tokenizer"))

    @classmethod
    def train(
        cls,
        texts: Iterable[Text | PathLike[str]],
        *,
        vocabulary_size: int = 8192,
        pre_tokenizer: str = "gpt2",
        minimum_count: int = 0,
        special_tokens: Iterable[Text] = (),
        eos_token: int | None = None,
        progress: Progress | None = None,
        cancel: CancelFlag | None = None,
    ) -> Tokenizer:
        """A byte-level BPE tokenizer learnt from texts; a `pathlib.Path` among them stands for a file's
        bytes.

        vocabulary_size: special tokens (the first ids) and the 256 bytes included; fewer come out where the
        texts have no more pairs. pre_tokenizer: how text is cut, "gpt2", "smollm", "llama3" or "qwen2".
        minimum_count: pairs that come less often do not join. eos_token: the id of the special token that ends a
        text. The texts are held in memory; the merges are
        those of the `tokenizers` package's trainer. progress: called with bytes, each counted twice.
        """
        corpus_texts = _texts(texts, "a text")
        special_texts = _texts(special_tokens, "a special token")
        corpus, special = _text_array(corpus_texts), _text_array(special_texts)
        settings = options("rt_tokenizer_train_options")
        settings.vocabulary_size = integer(vocabulary_size, "vocabulary_size", UINT32_MAX)
        settings.pre_tokenizer = choice(pre_tokenizer, "pre_tokenizer", PRE_TOKENIZERS)
        settings.minimum_count = integer(minimum_count, "minimum_count")
        settings.special_tokens, settings.special_token_count = special, len(special)
        settings.eos_token = NO_TOKEN if eos_token is None else token_id(eos_token)

        def call() -> Any:
            made = create(lib.rt_tokenizer_train, "rt_tokenizer", corpus, len(corpus), settings)
            del corpus_texts[:], special_texts[:]  # kept until here: the arrays point into them
            return made

        return cls(watched(call, settings, progress, cancel))

    @property
    def kind(self) -> str:
        """ "byte", "bpe" (byte-level) or "sentencepiece" (BPE with byte fallback)."""
        return _KINDS[self._info.kind]

    @property
    def vocabulary_size(self) -> int:
        """Ids are below this."""
        return int(self._info.vocabulary_size)

    @property
    def bos_token(self) -> int | None:
        """The token that begins a text."""
        return _optional(self._info.bos_token)

    @property
    def eos_token(self) -> int | None:
        """The first token that ends a generation."""
        return _optional(self._info.eos_token)

    @property
    def adds_bos(self) -> bool:
        """Whether the file says that prompts begin with the BOS token."""
        return bool(self._info.adds_bos)

    @property
    def special_tokens(self) -> list[int]:
        """The ids of all special tokens, lowest first."""
        required = ffi.new("uint64_t *")
        check(lib.rt_tokenizer_special_tokens(self._pointer(), ffi.NULL, 0, required))
        tokens = np.empty(required[0], dtype=np.uint32)
        check(lib.rt_tokenizer_special_tokens(self._pointer(), token_pointer(tokens), required[0], required))
        ids: list[int] = tokens.tolist()
        return ids

    def encode(
        self,
        text: Text,
        *,
        add_special: bool = False,
        parse_special: bool = False,
        strict: bool = False,
        plain_ranges: Iterable[tuple[int, int]] = (),
    ) -> list[int]:
        """The token ids of a text, or of any bytes.

        add_special: add what the file says surrounds a text (BOS, EOS). parse_special: read the text of
        special tokens in the input as those tokens. strict: a byte without any token is an
        `InvalidArgumentError` instead of being left out. plain_ranges: [begin, end) of the text's bytes, in
        order, where parse_special finds nothing.
        """
        ids: list[int] = self._encode(text, add_special, parse_special, strict, plain_ranges).tolist()
        return ids

    def _encode(
        self,
        text: Text,
        add_special: bool = False,
        parse_special: bool = False,
        strict: bool = False,
        plain_ranges: Iterable[tuple[int, int]] = (),
    ) -> TokenArray:
        """As `encode`, without a list of integers for a text of millions."""
        data = text_bytes(text, "text")
        cancel = CancelFlag()
        settings = options("rt_encode_options")
        settings.add_special = flag(add_special, "add_special")
        settings.parse_special = flag(parse_special, "parse_special")
        settings.strict = flag(strict, "strict")
        settings.cancel = cancel._pointer()
        ranges = ffi.new(
            "rt_byte_range[]", [(integer(a, "begin"), integer(b, "end")) for a, b in plain_ranges]
        )
        settings.plain_ranges, settings.plain_range_count = ranges, len(ranges)
        native = self._pointer()
        required = ffi.new("uint64_t *")

        def call() -> TokenArray:
            capacity = len(data) + 16  # a token is at least a byte, but for those around the prompt
            while True:
                tokens = np.empty(capacity, dtype=np.uint32)
                status = lib.rt_tokenizer_encode(
                    native, data, len(data), settings, token_pointer(tokens), capacity, required
                )
                if status != lib.RT_BUFFER_TOO_SMALL:
                    check(status)
                    return tokens[: required[0]]
                capacity = required[0]

        # Short texts are done before a thread could be told of them.
        return call() if len(data) <= 4096 else interruptible(call, cancel)

    def decode(self, tokens: Tokens, *, skip_special: bool = False) -> str:
        """The text of token ids; what is not valid UTF-8 becomes U+FFFD. `OutOfRangeError` for an id
        that does not exist."""
        return self.decode_bytes(tokens, skip_special=skip_special).decode("utf-8", "replace")

    def decode_bytes(self, tokens: Tokens, *, skip_special: bool = False) -> bytes:
        """The exact bytes of token ids."""
        ids = token_array(tokens)
        skip = flag(skip_special, "skip_special")
        required = ffi.new("uint64_t *")
        native = self._pointer()
        capacity = 8 * len(ids) + 16
        while True:
            text = ffi.new("char[]", capacity)
            status = lib.rt_tokenizer_decode(
                native, token_pointer(ids), len(ids), skip, text, capacity, required
            )
            if status != lib.RT_BUFFER_TOO_SMALL:
                check(status)
                return bytes(ffi.buffer(text, required[0]))
            capacity = required[0]

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the chat template that the file brings; None where it has none."""
        required = ffi.new("uint64_t *")
        check(lib.rt_tokenizer_chat_template(self._pointer(), ffi.NULL, 0, required))
        text = ffi.new("char[]", required[0])
        check(lib.rt_tokenizer_chat_template(self._pointer(), text, required[0], required))
        return bytes(ffi.buffer(text, required[0])).decode("utf-8") or None

    def save(self, path: Path) -> None:
        """Writes a tokenizer.json that `load` and the `tokenizers` package read.

        `UnsupportedError` for the byte tokenizer. Scores of a SentencePiece model become merges: equal
        scores may then join in another order.
        """
        name, native = path_bytes(path), self._pointer()
        interruptible(lambda: check(lib.rt_tokenizer_save(native, name, len(name))))

    def find(self, text: Text) -> int | None:
        """The id whose text is exactly this, special tokens included; None where there is none."""
        data = text_bytes(text, "text")
        token = ffi.new("uint32_t *")
        check(lib.rt_tokenizer_find(self._pointer(), data, len(data), token))
        return _optional(token[0])

    def is_special(self, token: SupportsIndex) -> bool:
        """Whether a token is a special (control) token."""
        special = ffi.new("uint32_t *")
        check(lib.rt_tokenizer_is_special(self._pointer(), token_id(token), special))
        return bool(special[0])

    def stream_decoder(self, *, skip_special: bool = False) -> StreamDecoder:
        """A decoder for tokens that come one by one."""
        skip = flag(skip_special, "skip_special")
        return StreamDecoder(create(lib.rt_stream_decoder_create, "rt_stream_decoder", self._pointer(), skip))

    def __len__(self) -> int:
        return self.vocabulary_size

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocabulary_size={self.vocabulary_size})"


class StreamDecoder(Handle):
    """Turns tokens that come one by one into text that never ends inside a UTF-8 character."""

    __slots__ = ("_lock", "_text")
    _kind = "stream decoder"
    _release = "rt_stream_decoder_release"

    def __init__(self, native: Any) -> None:
        """Not called directly: see `Tokenizer.stream_decoder`."""
        super().__init__(native)
        self._text = text_decoder()
        self._lock = threading.RLock()

    def push(self, token: SupportsIndex) -> str:
        """Takes one token and returns the text that became complete, perhaps none."""
        return self._call(lib.rt_stream_decoder_push, token_id(token))

    def flush(self) -> str:
        """Returns what was held back, incomplete characters as U+FFFD, and starts anew."""
        return self._call(lib.rt_stream_decoder_flush)

    def _call(self, function: Callable[..., int], *token: SupportsIndex) -> str:
        data, size = ffi.new("char **"), ffi.new("uint64_t *")
        with self._lock:
            check(function(self._pointer(), *token, data, size))
            text = bytes(ffi.buffer(data[0], size[0])) if size[0] else b""
            return self._text.decode(text, final=not token)


def text_decoder() -> codecs.IncrementalDecoder:
    """Of bytes that come in pieces: the pieces of text together are bytes.decode("utf-8", "replace") of
    all of them."""
    return codecs.getincrementaldecoder("utf-8")("replace")
