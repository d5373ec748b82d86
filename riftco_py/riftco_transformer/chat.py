"""Conversations with a model: `ChatSession` for programs, `ChatTerminal` for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from ._native import instance
from .chat_template import ChatTemplate
from .errors import RiftcoError
from .model import Model
from .serving import GenerationStats, GenerationStream, TextGenerator
from .tokenizer import Tokenizer

__all__ = ["ChatSession", "ChatTerminal"]


class ChatSession:
    """A conversation. What the generator's cache holds of it is not computed again."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None = None,
        *,
        system: str | None = None,
        generator: TextGenerator | None = None,
        template: str | None = None,
    ) -> None:
        """tokenizer, generator: None for the model's own and a new one. system: what the conversation begins with.
        template: None for the one of the model's file; `InvalidStateError` where it has none."""
        tokenizer = model.tokenizer() if tokenizer is None else tokenizer
        self._strips_space = tokenizer.kind == "sentencepiece"
        self._template = ChatTemplate(tokenizer, template)
        self._generator = TextGenerator(model, tokenizer) if generator is None else generator
        self._system = None if system is None else instance(system, "system", str)
        self._stats: GenerationStats | None = None
        self.clear()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation so far, each message with "role" and "content". It may be changed."""
        return self._messages

    @property
    def stats(self) -> GenerationStats | None:
        """Of the last answer that came to its end."""
        return self._stats

    def send(self, text: str, **options: Any) -> Generator[str, None, None]:
        """The pieces of the answer; options are those of `TextGenerator.stream`.

        Both messages become part of the conversation: the answer as far as it came when the iterator was closed or
        Ctrl-C ended it. Nothing changes when the answer does not begin.
        """
        message = {"role": "user", "content": instance(text, "text", str)}
        stream = self._generator.stream(self._template.apply([*self._messages, message]), **options)
        return self._answer(message, stream)

    def _answer(self, message: dict[str, str], stream: GenerationStream) -> Generator[str, None, None]:
        answer = ""
        self._messages.append(message)
        try:
            for piece in stream:
                if not answer and self._strips_space:  # which is before every word
                    piece = piece.removeprefix(" ")
                answer += piece
                if piece:
                    yield piece
            self._stats = stream.result.stats
        finally:
            self._messages.append({"role": "assistant", "content": answer})

    def clear(self) -> None:
        """Begin anew, with the system message if there is one."""
        self._messages = [] if self._system is None else [{"role": "system", "content": self._system}]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation as JSON: {"messages": […]}."""
        document = json.dumps({"messages": self._messages}, ensure_ascii=False, indent=1)
        Path(path).write_text(document + "\n", "utf-8")

    def close(self) -> None:
        """Give back the generator and the template's process."""
        self._generator.close()
        self._template.close()

    def __enter__(self) -> ChatSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_HELP = """\
/save FILE  write the conversation as JSON
/clear      begin anew
/help       this
Ctrl-D      leave; Ctrl-C stops an answer, twice leaves
Lines between two lines of \"\"\", or that end in \\, are one message.
"""


class ChatTerminal:
    """Reads messages from stdin and writes answers; with a prompt and a history where both are a terminal."""

    def __init__(
        self,
        session: ChatSession,
        write: Callable[[str], None],
        note: Callable[[str], None],
        options: dict[str, Any],
    ) -> None:
        """write: for answers. note: for one line about something else. options: of each answer."""
        self._session = session
        self._write = write
        self._note = note
        self._options = options
        self._interactive = sys.stdin.isatty() and sys.stdout.isatty()

    def run(self) -> int:
        """Until the input ends; the exit code."""
        interrupted = False
        with _history(self._interactive):
            while True:
                try:
                    message = self._read_message()
                    interrupted = False
                    self._do(message)
                except EOFError:
                    return 0
                except KeyboardInterrupt:
                    self._write("\n")
                    if interrupted:
                        return 130
                    interrupted = True
                    self._note("Ctrl-C again leaves")
                except (RiftcoError, OSError) as error:
                    if not self._interactive:
                        raise
                    self._note(f"riftco: {error}")

    def _do(self, message: str) -> None:
        command, _, argument = message.strip().partition(" ")
        if not message.strip():
            return
        if command == "/help":
            self._write(_HELP)
        elif command == "/clear":
            self._session.clear()
        elif command == "/save" and argument:
            self._session.save(argument.strip())
        elif command.startswith("/"):
            self._note(f"{command}: no such command, or no FILE; /help lists them")
        else:
            with closing(self._session.send(message, **self._options)) as answer:
                for piece in answer:
                    self._write(piece)
            self._write("\n")

    def _read_message(self) -> str:
        line = self._read_line("> ")
        if line.strip() == '"""':
            lines = []
            while (line := self._read_line(". ")).strip() != '"""':
                lines.append(line)
            return "\n".join(lines)
        while line.endswith("\\"):
            line = line[:-1] + "\n" + self._read_line(". ")
        return line

    def _read_line(self, prompt: str) -> str:
        if self._interactive:
            try:
                return input(prompt)
            except EOFError:
                self._write("\n")
                raise
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        return line.decode("utf-8", "replace").rstrip("\r\n")


@contextmanager
def _history(wanted: bool) -> Iterator[None]:
    """The lines typed before, for the arrow keys: in riftco/chat_history of XDG_STATE_HOME or ~/.local/state."""
    if not wanted:
        yield
        return
    import readline

    path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "riftco/chat_history"
    readline.set_history_length(1000)
    with suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
