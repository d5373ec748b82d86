"""Where the command line writes: results to stdout, remarks to stderr."""

from __future__ import annotations

import json
import sys
from typing import TextIO


class ReaderGone(Exception):
    """Nobody reads stdout or stderr any more."""


def write(text: str) -> None:
    """UTF-8 on stdout, whatever the locale says."""
    _write_bytes(sys.stdout, text)


def write_json(document: object) -> None:
    """One JSON document on stdout, on a line."""
    write(json.dumps(document, ensure_ascii=False) + "\n")


def note(line: str) -> None:
    """One line on stderr, without control characters of file names and such."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    _write_bytes(sys.stderr, line + "\n")


def _write_bytes(stream: TextIO, text: str) -> None:
    try:
        stream.buffer.write(text.encode("utf-8", "replace"))
        stream.buffer.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error
