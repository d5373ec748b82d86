"""The Python examples run as their first lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from riftco_transformer.artifacts import ModelBundle, Runtime
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


def test_train(tmp_path: Path) -> None:
    out = tmp_path / "tiny.rift"
    done = run("train.py", Path(__file__).parents[1] / "golden" / "tiny_corpus.txt", out, "20")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith(b"step 10: loss ")
    assert float(first.split()[3].strip(b",")) > float(second.split()[3].strip(b","))
    with ModelBundle.load(out).instantiate() as runtime:
        assert runtime.tokenizer.eos_token == 0


def test_finetune_lora(tmp_path: Path, rift_path: Path) -> None:
    pairs, adapter = tmp_path / "pairs.jsonl", tmp_path / "adapter.safetensors"
    pairs.write_text('{"prompt": "1, 2,", "response": " 3, 4"}\n')
    done = run("finetune_lora.py", rift_path, pairs, adapter, "20")
    assert done.returncode == 0, done.stderr
    before, loss, after = (
        done.stdout.split(b"\nloss ")[0],
        *done.stdout.split(b"\nloss ")[1].split(b"\nafter:"),
    )
    first, last = map(float, loss.split(b" -> "))
    assert last < 0.9 * first
    assert before.removeprefix(b"before:").strip() != after.strip()
    assert adapter.exists()


@pytest.mark.parametrize(
    ("name", "more"), [("branches", []), ("load_from_buffer", []), ("train", []), ("finetune_lora", ["x"])]
)
def test_usage(tmp_path: Path, name: str, more: list[str]) -> None:
    usage = run(f"{name}.py")
    assert usage.returncode == 2
    assert b"usage" in usage.stderr
    missing = run(f"{name}.py", tmp_path / "missing.gguf", "Once", *more)
    assert missing.returncode == 1
    assert b"missing.gguf" in missing.stderr
    assert missing.stdout == b""
