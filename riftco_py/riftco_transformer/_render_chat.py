"""Renders chat templates, as a program of its own: a template is code that a model file brings.

Reads one JSON request a line and answers each with one line: {"text": …} or {"error": …}. The parent ends it when
an answer takes too long; memory and processor time are limited here.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 1 << 30
SECONDS = 20
"""Longer than the parent waits: it may be gone."""
MAX_TEXT = 8 << 20
"""Characters of a rendered conversation."""


class _Generation(Extension):
    """{% generation %} marks an assistant's words for training; here it only lets them through."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node | list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Without jinja2's escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _render(environment: ImmutableSandboxedEnvironment, request: dict[str, Any]) -> str:
    pieces, size = [], 0
    for piece in environment.from_string(request["template"]).generate(request["variables"]):
        size += len(piece)
        if size > MAX_TEXT:
            raise jinja2.TemplateError(f"the text has more than {MAX_TEXT} characters")
        pieces.append(piece)
    return "".join(pieces)


def _answer(environment: ImmutableSandboxedEnvironment, line: str) -> dict[str, str]:
    try:
        return {"text": _render(environment, json.loads(line))}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error.message}"}
    except MemoryError:
        return {"error": "out of memory"}
    except Exception as error:  # whatever a template can raise
        return {"error": str(error) or type(error).__name__}


def main() -> None:
    """Answer requests until stdin ends."""
    with contextlib.suppress(OSError, ValueError):  # not every system limits it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    environment = _environment()
    for line in sys.stdin:
        signal.alarm(SECONDS)
        answer = json.dumps(_answer(environment, line))
        signal.alarm(0)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
