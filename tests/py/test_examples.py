"""The Python examples run as their first lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from riftco_transformer.artifacts import Runtime
from riftco_transformer.serving import TextGenerator

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, EXAMPLES / name, *arguments], capture_output=True, timeout=60)


def test_branches(runtime: Runtime, rift_path: Path) -> None:
    done = run("branches.py", rift_path, "Once", "8")
    assert done.returncode == 0, done.stderr
    with TextGenerator(runtime.model, runtime.tokenizer) as generator:
        greedy = generator.generate("Once", max_new_tokens=8)
        [barred] = greedy.tokens[:1]
        second = generator.generate("Once", 1, logit_bias={barred: -1e9}).tokens
        rest = generator.generate([*b"Once", *second], 7)
    expected = b"first:" + greedy.bytes + b"\nsecond:" + bytes(second) + rest.bytes + b"\ncosine of their "
    assert done.stdout.startswith(expected)


def test_branches_usage(tmp_path: Path) -> None:
    usage = run("branches.py")
    assert usage.returncode == 2
    assert b"usage" in usage.stderr
    missing = run("branches.py", tmp_path / "missing.gguf", "Once")
    assert missing.returncode == 1
    assert b"missing.gguf" in missing.stderr
    assert missing.stdout == b""
