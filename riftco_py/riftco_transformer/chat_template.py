"""Chat templates: conversations to token ids, as the model's file says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ._native import instance
from .errors import InvalidArgumentError, InvalidStateError
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate"]

SECONDS = 10.0
"""What a template may take to render."""
_PRIVATE_USE = range(0xF0000, 0xFFFFE)
"""Characters that mean nothing: they stand for those of a message that could become a special token."""


class ChatTemplate:
    """Renders conversations with a template in Jinja2's language and encodes them.

    The template runs in jinja2's immutable sandbox, in a process of its own with limits on time, memory and text.
    Words of messages are never read as special tokens: only the template's own text is.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None) -> None:
        """source: None for the tokenizer's; `InvalidStateError` where it has none."""
        self._tokenizer = instance(tokenizer, "tokenizer", Tokenizer)
        template = tokenizer.chat_template if source is None else instance(source, "source", str)
        if template is None:
            raise InvalidStateError("the model's file has no chat template")
        self._source = template
        self._special = {token: tokenizer.decode([token]) for token in tokenizer.special_tokens}
        self._renderer = _Renderer()

    def apply(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The token ids of a conversation: messages with "role", "content" and what else the template knows.

        add_generation_prompt: end with what begins an answer. variables: more names for the template.
        `InvalidArgumentError` says why a template refuses.
        """
        text, ranges = self.render(messages, add_generation_prompt=add_generation_prompt, **variables)
        return self._tokenizer.encode(text, parse_special=True, plain_ranges=ranges)

    def render(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text, and the ranges of its UTF-8 bytes that hold words of messages like special tokens."""
        conversation = [dict(message) for message in messages]
        for message in conversation:
            if any(token in str(message.get("role")) for token in self._special.values()):
                raise InvalidArgumentError(f"the role {message['role']!r} holds a special token")
        given = json.dumps([self._source, conversation, variables], ensure_ascii=False)
        disguise = _Disguise(list(self._special.values()), given)
        request = {
            "template": self._source,
            "variables": {
                "bos_token": self._name(self._tokenizer.bos_token),
                "eos_token": self._name(self._tokenizer.eos_token),
                "messages": disguise.put_on(conversation),
                "add_generation_prompt": add_generation_prompt,
                "tools": None,
                "documents": None,
                **disguise.put_on(variables),
            },
        }
        return disguise.take_off(self._renderer.render(request))

    def _name(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.decode([token])

    def close(self) -> None:
        """End the process that renders; the next call starts another."""
        self._renderer.close()

    def __enter__(self) -> ChatTemplate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Disguise:
    """Replaces characters of messages that could be part of a special token, alone or with text beside them, by
    private ones, so that a template can trim and join them and they are still known afterwards."""

    def __init__(self, special: list[str], given: str) -> None:
        used = set(given)
        self._free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        self._masks: dict[str, str] = {}
        self._special = special
        alternatives = "|".join(re.escape(text) for text in sorted(special, key=len, reverse=True))
        self._inside = re.compile(f"(?={alternatives and f'({alternatives})'})") if special else None

    def put_on(self, value: Any) -> Any:
        """The same with every text of it disguised."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {k: item if k in ("role", "type") else self.put_on(item) for k, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.put_on(item) for item in value]
        return value

    def _text(self, text: str) -> str:
        marked = bytearray(len(text))
        if self._inside:
            for match in self._inside.finditer(text):
                marked[match.start(1) : match.end(1)] = b"\1" * (match.end(1) - match.start(1))
        begin = len(text) - len(text.lstrip())
        for first, last in ((0, len(text)), (begin, len(text.rstrip()))):
            self._mark_edges(text, first, max(first, last), marked)
        return "".join(
            self._mask(c) if mark and not c.isspace() else c for c, mark in zip(text, marked, strict=True)
        )

    def _mark_edges(self, text: str, first: int, last: int, marked: bytearray) -> None:
        """Where text that a template puts beside text[first:last] could complete a special token."""
        for token in self._special:
            if text[first:last] and text[first:last] in token:
                marked[first:last] = b"\1" * (last - first)
            for size in range(min(len(token) - 1, last - first), 0, -1):
                if text[first : first + size] == token[-size:]:
                    marked[first : first + size] = b"\1" * size
                if text[last - size : last] == token[:size]:
                    marked[last - size : last] = b"\1" * size

    def _mask(self, character: str) -> str:
        if character not in self._masks:
            mask = next(self._free, None)
            if mask is None:
                raise InvalidArgumentError("the messages use up all private characters")
            self._masks[character] = mask
        return self._masks[character]

    def take_off(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The true text, and the ranges of its bytes that were disguised."""
        true = {mask: character for character, mask in self._masks.items()}
        pieces: list[str] = []
        ranges: list[tuple[int, int]] = []
        at = 0
        pattern = f"([{''.join(true)}]+)" if true else "(?!)()"
        for i, piece in enumerate(re.split(pattern, text)):
            if i % 2:
                piece = "".join(true[c] for c in piece)
                ranges.append((at, at + len(piece.encode())))
            pieces.append(piece)
            at += len(piece.encode())
        return "".join(pieces), ranges


class _Renderer:
    """The process that renders, started when needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def render(self, request: dict[str, Any]) -> str:
        with self._lock:
            answer = self._ask(json.dumps(request))
        if "error" in answer:
            raise InvalidArgumentError(f"the chat template: {answer['error']}")
        return answer["text"]

    def _ask(self, line: str) -> dict[str, str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__).with_name("_render_chat.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is not for it
            )
        process, answers = self._process, SimpleQueue[str]()
        threading.Thread(target=_converse, args=(process, line, answers), daemon=True).start()
        try:
            answer = answers.get(timeout=SECONDS)
        except BaseException as error:
            self.close()
            if isinstance(error, Empty):
                raise InvalidArgumentError(f"the chat template takes more than {SECONDS:g} s") from None
            raise
        if not answer:
            self.close()
            return {"error": "its process has ended; jinja2 may be missing, or memory ran out"}
        document: dict[str, str] = json.loads(answer)
        return document

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __del__(self) -> None:
        self.close()


def _converse(process: subprocess.Popen[str], line: str, answers: SimpleQueue[str]) -> None:
    """One request and its answer; an empty one when the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
        answers.put(process.stdout.readline())
    except (OSError, ValueError):
        answers.put("")
