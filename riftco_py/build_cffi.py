"""Turns the public C headers into the module `_riftco_cffi` (cffi, out-of-line ABI mode: no compiler, any
Python).

python build_cffi.py INCLUDE_DIRECTORY OUTPUT.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cffi  # type: ignore[import-untyped]

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'#include "(riftco/\w+\.h)"')
INTEGER = re.compile(r"#define (RT_\w+) (-?\w+)$")


def declarations(include: Path, header: str, seen: set[str]) -> list[str]:
    """The lines of a header and of those it includes that cffi reads: no directive but integer
    constants."""
    if header in seen:
        return []
    seen.add(header)
    lines: list[str] = []
    conditions: list[bool] = []
    for line in COMMENT.sub("", (include / header).read_text(encoding="utf-8")).splitlines():
        line = line.strip()
        if line.startswith("#if"):
            conditions.append(line.startswith("#ifndef"))  # include guards; not C++ and not Windows
        elif line.startswith("#endif"):
            conditions.pop()
        elif not all(conditions):
            continue
        elif match := INCLUDE.match(line):
            lines += declarations(include, match[1], seen)
        elif (match := INTEGER.match(line)) and re.fullmatch(r"-?(0x)?[0-9a-fA-F]+[uUlL]*", match[2]):
            lines.append(f"#define {match[1]} {match[2]}")
        elif not line.startswith("#"):
            lines.append(re.sub(r"\bRT_(API|CALL)\b", "", line))
    return lines


def main() -> None:
    """Write the module."""
    include, output = map(Path, sys.argv[1:])
    builder = cffi.FFI()
    builder.set_source("_riftco_cffi", None)
    builder.cdef("\n".join(declarations(include, "riftco/riftco.h", set())))
    builder.emit_python_code(str(output))


if __name__ == "__main__":
    main()
