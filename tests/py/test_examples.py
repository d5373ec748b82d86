"""The Python examples run as their first lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
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


def test_load_from_buffer(runtime: Runtime, rift_path: Path) -> None:
    done = run("load_from_buffer.py", rift_path, "Once", "8")
    assert done.returncode == 0, done.stderr
    with TextGenerator(runtime.model, runtime.tokenizer) as generator:
        assert done.stdout == generator.generate("Once", max_new_tokens=8).bytes + b"\n"


@pytest.mark.parametrize("name", ["branches", "load_from_buffer"])
def test_usage(tmp_path: Path, name: str) -> None:
    usage = run(f"{name}.py")
    assert usage.returncode == 2
    assert b"usage" in usage.stderr
    missing = run(f"{name}.py", tmp_path / "missing.gguf", "Once")
    assert missing.returncode == 1
    assert b"missing.gguf" in missing.stderr
    assert missing.stdout == b""
