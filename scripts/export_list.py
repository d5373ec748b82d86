"""Write the linker's list of exported symbols from abi_tests/manifest.toml.

usage: export_list.py gnu|darwin MANIFEST OUTPUT
"""

import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def gnu_version_script(symbols: dict[str, str]) -> str:
    """One node per minor release, each inheriting the one before; everything else is local."""
    nodes = []
    parent = ""
    for since in sorted(set(symbols.values()), key=version_key):
        names = "".join(f"    {name};\n" for name in sorted(symbols) if symbols[name] == since)
        rest = "" if parent else "  local:\n    *;\n"
        nodes.append(f"RIFTCO_{since} {{\n  global:\n{names}{rest}}}{parent};\n")
        parent = f" RIFTCO_{since}"
    return "\n".join(nodes)


def darwin_export_list(symbols: dict[str, str]) -> str:
    return "".join(f"_{name}\n" for name in sorted(symbols))


def main() -> None:
    form, manifest, output = sys.argv[1:]
    headers = tomllib.loads(Path(manifest).read_text())
    symbols = {name: since for entries in headers.values() for name, since in entries.items()}
    write = {"gnu": gnu_version_script, "darwin": darwin_export_list}[form]
    Path(output).write_text(write(symbols))


if __name__ == "__main__":
    main()
