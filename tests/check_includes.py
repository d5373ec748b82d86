"""Fail on an include that goes against the layers of CONTRIBUTING.md: base <- core <- backend/*, base <- text and so on."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What the files of a layer may include beside their own layer.
LAYERS = {
    "csrc/base": set(),
    "csrc/core": {"base"},
    "csrc/backend/cpu": {"base", "core"},
    "csrc/backend": {"base", "core", "backend/cpu"},
    "csrc/text": {"base"},
    "csrc/io": {"base", "core"},
    "csrc/model": {"base", "core", "text", "io", "backend/registry.h"},
    "csrc/train": {"base", "core", "text", "io", "backend/registry.h", "model"},
    "csrc/serve": {"base", "core", "text", "io", "backend/registry.h", "model"},
    "csrc/capi": {
        "base",
        "core",
        "text",
        "io",
        "backend/registry.h",
        "backend/cpu/isa.h",
        "model",
        "train",
        "serve",
        "riftco",
    },
    "include/riftco": set(),
    "include/riftco_transformer": {"riftco"},
}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]', re.MULTILINE)


def layer_of(path: str) -> str | None:
    """The longest layer that holds this path, for instance csrc/backend/cpu."""
    return max((layer for layer in LAYERS if path.startswith(layer + "/")), key=len, default=None)


def problems_of(path: Path) -> list[str]:
    name = path.relative_to(ROOT).as_posix()
    layer = layer_of(name)
    if layer is None:
        return [f"{name}: is in no layer"]
    own = layer.split("/", 1)[1]
    problems = []
    for quote, target in INCLUDE.findall(path.read_text()):
        roots = [root for root in ("csrc", "include") if (ROOT / root / target).exists()]
        if not roots:
            if quote == '"':
                problems.append(f'{name}: "{target}" is not a path below csrc or include')
            continue
        target_layer = layer_of(f"{roots[0]}/{target}")
        target_name = target_layer.split("/", 1)[1] if target_layer else target
        if quote == "<":
            problems.append(f"{name}: <{target}> is ours: use quotes")
        elif target_name != own and target_name not in LAYERS[layer] and target not in LAYERS[layer]:
            problems.append(f'{name}: {own} must not include "{target}"')
    return problems


def main() -> int:
    files = sorted(
        path
        for root in ("csrc", "include")
        for path in (ROOT / root).rglob("*")
        if path.suffix in {".h", ".hpp", ".cc", ".inc"}
    )
    problems = [problem for path in files for problem in problems_of(path)]
    print("\n".join(problems) or f"includes of {len(files)} files are in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
