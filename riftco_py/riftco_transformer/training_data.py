"""Data to train on: texts as windows of tokens, and examples that say what is to be answered.

Both are a `DataSet`: batches by the numbers of their rows, in an order that is a function of a seed and a position.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import pairwise
from os import PathLike
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ._native import TokenArray, Tokens, instance, integer, token_array
from .chat_template import ChatTemplate
from .errors import CorruptDataError, InvalidArgumentError, InvalidStateError
from .tokenizer import Tokenizer
from .trainer import NO_TARGET

Indices = npt.NDArray[np.int64]


class Batch(NamedTuple):
    """Rows of a data set, as `Trainer.step` takes them."""

    tokens: TokenArray
    """uint32 [B, T]."""
    targets: TokenArray
    """uint32 [B, T]: the token after each, or `NO_TARGET`."""


class DataSet(Protocol):
    """Rows to learn from."""

    def __len__(self) -> int:
        """Rows."""
        ...

    def batch(self, rows: Indices) -> Batch:
        """Some rows, padded on the right to the longest of them."""
        ...

    def digest(self) -> str:
        """The same for the same rows only."""
        ...


class TokenWindows:
    """A text as rows of `length` tokens: each token but the first is the target of exactly one position."""

    def __init__(self, tokens: Tokens, length: int) -> None:
        """tokens: [N], two at least."""
        self._tokens = token_array(tokens)
        self._length = integer(length, "length")
        if self._length == 0:
            raise InvalidArgumentError("length must be at least 1")
        if len(self._tokens) < 2:
            raise InvalidArgumentError(f"there is nothing to predict in a text of {len(self._tokens)} tokens")

    def __len__(self) -> int:
        return -(-(len(self._tokens) - 1) // self._length)

    def batch(self, rows: Indices) -> Batch:
        """See `DataSet`; only the last row of the text can be shorter."""
        begins = rows * self._length
        length = min(self._length, len(self._tokens) - 1 - int(begins.min()))
        at = begins[:, None] + np.arange(length + 1)
        there = at < len(self._tokens)
        ids = np.where(there, self._tokens[np.where(there, at, 0)], 0)
        targets = np.where(there[:, 1:], ids[:, 1:], NO_TARGET)
        return Batch(ids[:, :-1].astype(np.uint32), targets.astype(np.uint32))

    def digest(self) -> str:
        """See `DataSet`."""
        hasher = hashlib.blake2b(str(self._length).encode(), digest_size=16)
        hasher.update(self._tokens.tobytes())
        return hasher.hexdigest()


class Example(NamedTuple):
    """Tokens of which only some are to be predicted."""

    tokens: TokenArray
    """uint32 [n]."""
    counted: npt.NDArray[np.bool_]
    """[n]: whether a token is a target. The first never is."""


class Examples:
    """Examples as rows, each of its own length."""

    def __init__(self, examples: Iterable[Example]) -> None:
        """At least one, each with a token that counts."""
        self._examples = list(examples)
        if not self._examples:
            raise InvalidArgumentError("there is no example")
        for number, example in enumerate(self._examples):
            if len(example.tokens) != len(example.counted) or not example.counted[1:].any():
                raise InvalidArgumentError(f"example {number} has no token to predict")

    def __len__(self) -> int:
        return len(self._examples)

    def batch(self, rows: Indices) -> Batch:
        """See `DataSet`."""
        chosen = [self._examples[row] for row in rows]
        length = max(len(example.tokens) for example in chosen) - 1
        tokens = np.zeros((len(chosen), length), dtype=np.uint32)
        targets = np.full((len(chosen), length), NO_TARGET, dtype=np.uint32)
        for row, (ids, counted) in enumerate(chosen):
            tokens[row, : len(ids) - 1] = ids[:-1]
            targets[row, : len(ids) - 1] = np.where(counted[1:], ids[1:], NO_TARGET)
        return Batch(tokens, targets)

    def digest(self) -> str:
        """See `DataSet`."""
        hasher = hashlib.blake2b(digest_size=16)
        for tokens, counted in self._examples:
            hasher.update(len(tokens).to_bytes(8, "little") + tokens.tobytes() + counted.tobytes())
        return hasher.hexdigest()


def rows_at(position: int, count: int, size: int, seed: int) -> Indices:
    """The rows of a data set of `size` that come at position .. position + count: in each pass over them all rows,
    in an order drawn for this pass. A function of its arguments on every machine (Philox counters: Salmon and others
    2011)."""
    first, last = position // size, (position + count - 1) // size
    passes = np.concatenate([_pass_order(number, size, seed) for number in range(first, last + 1)])
    begin = position - first * size
    return passes[begin : begin + count]


@lru_cache(maxsize=2)
def _pass_order(number: int, size: int, seed: int) -> Indices:
    draws = np.random.Philox(key=np.array([seed, number], dtype=np.uint64)).random_raw(size)
    return np.argsort(draws, kind="stable").astype(np.int64)


# --- texts ---


def read_documents(paths: Iterable[str | PathLike[str]]) -> Iterator[str]:
    """The texts of files: of a .jsonl file, the "text" of each line; of a folder, its files in the order of their
    paths, without hidden ones; of any other file, all of it.

    `CorruptDataError` names a file that is not UTF-8, or a line that is not such an object.
    """
    for path in paths:
        for file in _files(pathlib.Path(path)):
            if file.suffix == ".jsonl":
                for where, record in read_records(file):
                    yield _text(record, "text", where)
            else:
                yield _decoded(file.read_bytes(), str(file))


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    if not path.is_dir():
        return [path]
    inside = (file for file in path.rglob("*") if file.is_file())
    return sorted(
        file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts)
    )


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{where}: not UTF-8 at byte {error.start}") from None


def encode_documents(
    documents: Iterable[str], tokenizer: Tokenizer, progress: Callable[[int], object] | None = None
) -> TokenArray:
    """Documents as one text, uint32 [N]: each begins with the BOS token where the tokenizer adds it, and ends with
    the end token where it has one. `InvalidArgumentError` where they hold no text. progress: called with the
    documents done."""
    prefix, suffix = (np.array(ids, dtype=np.uint32) for ids in _ends(tokenizer))
    pieces = []
    for done, document in enumerate(documents):
        if document:
            pieces += [prefix, tokenizer._encode(document), suffix]
        if progress is not None:
            progress(done + 1)
    if not pieces:
        raise InvalidArgumentError("the documents hold no text")
    return np.concatenate(pieces)


def _ends(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """What begins a text, and what ends it."""
    begin = [tokenizer.bos_token] if tokenizer.adds_bos and tokenizer.bos_token is not None else []
    return begin, [] if tokenizer.eos_token is None else [tokenizer.eos_token]


# --- examples ---


def read_records(path: str | PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON objects of a file's lines, each with "file:line"; lines without anything are left out.
    `CorruptDataError` names what is no object."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}:{number}"
            text = _decoded(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, where)
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise CorruptDataError(f"{where}: not JSON: {error}") from None
            if not isinstance(record, dict):
                raise CorruptDataError(f"{where}: a {type(record).__name__}, not an object")
            yield where, record


def _text(record: Mapping[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        there = f"a {type(value).__name__}" if key in record else "missing"
        raise CorruptDataError(f'{where}: "{key}" must be a text; it is {there}')
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise CorruptDataError(f'{where}: "{key}" holds half of a surrogate pair') from None
    return value


class ExampleReader:
    """Lines of JSON to examples: {"prompt": …, "response": …}, or {"messages": [{"role": …, "content": …}, …]} by the
    chat template. Only responses, and the answers of the assistant, count; each with the token that ends it."""

    def __init__(self, tokenizer: Tokenizer, length: int, *, skip_long: bool = False) -> None:
        """length: tokens that an example may have. skip_long: leave longer ones out (`skipped` counts them) instead
        of refusing them."""
        self._tokenizer = instance(tokenizer, "tokenizer", Tokenizer)
        self._length = integer(length, "length")
        self._skip_long = skip_long
        self._stack = ExitStack()
        self._template: ChatTemplate | None = None
        self.skipped = 0

    def read(self, paths: Iterable[str | PathLike[str]]) -> list[Example]:
        """All examples of some files. `CorruptDataError` names the line of one that cannot be one, and says why."""
        examples = []
        for path in paths:
            for where, record in read_records(path):
                example = self.example(record, where)
                if len(example.tokens) <= self._length:
                    examples.append(example)
                elif self._skip_long:
                    self.skipped += 1
                else:
                    raise CorruptDataError(
                        f"{where}: {len(example.tokens)} tokens are more than the {self._length} that fit"
                    )
        return examples

    def example(self, record: Mapping[str, Any], where: str = "the example") -> Example:
        """One example; `where` is for messages of errors."""
        if "messages" in record:
            return self._conversation(record["messages"], where)
        prompt, response = _text(record, "prompt", where), _text(record, "response", where)
        if not response:
            raise CorruptDataError(f'{where}: "response" is empty')
        tokenizer = self._tokenizer
        start, end = _ends(tokenizer)
        before, after = _encode_segments(tokenizer, (prompt + response).encode(), [len(prompt.encode())])
        tokens = [*start, *before, *after, *end]
        counted = np.arange(len(tokens)) >= len(start) + len(before)
        return self._checked(tokens, counted, where)

    def _checked(self, tokens: list[int], counted: npt.NDArray[np.bool_], where: str) -> Example:
        if not counted[1:].any():
            raise CorruptDataError(f"{where}: there is no token before an answer, or none in it")
        counted[0] = False  # nothing is before it
        return Example(token_array(tokens), counted)

    def _conversation(self, messages: object, where: str) -> Example:
        """Each answer counts from where the template asks for it to where it ends."""
        turns = _messages(messages, where)
        answers = [number for number, turn in enumerate(turns) if turn["role"] == "assistant"]
        if not answers:
            raise CorruptDataError(f'{where}: no message has the role "assistant"')
        template = self._chat_template(where)
        try:
            text, ranges = template.render(turns[: answers[-1] + 1], add_generation_prompt=False)
            cuts = []
            for number in answers:
                asked, _ = template.render(turns[:number])
                answered, _ = template.render(turns[: number + 1], add_generation_prompt=False)
                if not (answered.startswith(asked) and text.startswith(answered)):
                    raise CorruptDataError(
                        f"{where}: the chat template changes message {number} when others follow; give each answer "
                        "an example of its own, as its last message"
                    )
                cuts += [len(asked.encode()), len(answered.encode())]
        except InvalidArgumentError as error:
            raise CorruptDataError(f"{where}: {error}") from None
        segments = _encode_segments(self._tokenizer, text.encode(), cuts[:-1], ranges)
        counted = [np.zeros(len(segment), dtype=np.bool_) for segment in segments]
        for answer, marks in zip(segments[1::2], counted[1::2], strict=True):
            marks[: self._end(answer)] = True
        return self._checked(
            [token for segment in segments for token in segment], np.concatenate(counted), where
        )

    def _chat_template(self, where: str) -> ChatTemplate:
        if self._template is None:
            try:
                self._template = self._stack.enter_context(ChatTemplate(self._tokenizer))
            except InvalidStateError as error:
                raise InvalidStateError(f'{where}: "messages", but {error}') from None
        return self._template

    def _end(self, answer: Sequence[int]) -> int:
        """Tokens of an answer, its end token the last, without what the template puts after that."""
        ends = [at for at, token in enumerate(answer) if token == self._tokenizer.eos_token]
        return ends[-1] + 1 if ends else len(answer)

    def close(self) -> None:
        """Ends the process of the chat template."""
        self._template = None
        self._stack.close()

    def __enter__(self) -> ExampleReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _messages(messages: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise CorruptDataError(f'{where}: "messages" must be a list of messages')
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise CorruptDataError(f"{where}: message {number} is a {type(message).__name__}, not an object")
        for key in ("role", "content"):
            _text(message, key, f"{where}: message {number}")
    return messages


def _encode_segments(
    tokenizer: Tokenizer, text: bytes, cuts: Sequence[int], plain: Sequence[tuple[int, int]] | None = None
) -> list[list[int]]:
    """The tokens of a text between cuts, each segment encoded by itself, as a prompt is before its answer. plain:
    ranges of bytes without special tokens; None: there are none anywhere."""

    def encode(begin: int, end: int) -> list[int]:
        ranges = [
            (max(a, begin) - begin, min(b, end) - begin) for a, b in plain or () if a < end and b > begin
        ]
        return tokenizer.encode(text[begin:end], parse_special=plain is not None, plain_ranges=ranges)

    bounds = [0, *cuts, len(text)]
    if tokenizer.kind != "sentencepiece":
        return [encode(begin, end) for begin, end in pairwise(bounds)]
    segments, done, whole = (
        [],
        0,
        encode(0, len(text)),
    )  # a space goes before whatever is encoded: begin at the start
    for cut in cuts:
        same = max(done, _common_prefix(whole, encode(0, cut)))
        segments.append(whole[done:same])
        done = same
    return [*segments, whole[done:]]


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
