"""What `riftco inspect` prints."""

from __future__ import annotations

import shutil
import sys
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .artifacts import ModelBundle


def render(bundle: ModelBundle) -> str:
    """Tables of everything in `bundle.info`; plain text unless stdout is a terminal."""
    console, out = _console()
    console.print(_cell(bundle.path), style="bold")
    for title, section in bundle.info.items():
        if isinstance(section, dict):
            console.print(_pairs(title, section))
        elif isinstance(section, list):
            console.print(_rows(title, section))
        else:
            console.print(_cell(f"{title}: {section}"))
    return out.getvalue()


def render_tokens(rows: list[dict[str, Any]]) -> str:
    """A table of tokens: id, text, bytes."""
    console, out = _console()
    console.print(_rows("tokens", rows))
    return out.getvalue()


def _console() -> tuple[Console, StringIO]:
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else 120
    out = StringIO()
    return Console(file=out, width=width, force_terminal=terminal, highlight=False), out


def _cell(value: object) -> Text:
    """A value from a file: no markup, no control characters."""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return Text("".join(c if c.isprintable() else repr(c)[1:-1] for c in text), overflow="fold")


def _pairs(title: str, section: dict[str, Any]) -> Table:
    table = Table(title=_cell(title), title_justify="left", show_header=False)
    for name, value in section.items():
        table.add_row(_cell(name), _cell(value))
    return table


def _rows(title: str, rows: list[dict[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=_cell(f"{title} ({len(rows)})"), title_justify="left")
    for name in names:
        table.add_column(_cell(name), justify="right" if name == "bytes" else "left")
    for row in rows:
        table.add_row(*(_cell(row.get(name, "")) for name in names))
    return table
