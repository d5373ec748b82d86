"""The snippets of the documentation, as they are printed there."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest

SNIPPET = """
from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.serving import TextGenerator
bundle = ModelBundle.load("results/stages/tiny_post_trained.rift")   # a .gguf file or a Hugging Face folder loads the same way
with bundle.instantiate("cpu") as runtime:
    generator = TextGenerator(runtime.model, runtime.tokenizer, kv_cache="paged", kv_cache_block_size=16)
    print(generator.generate("Tensor:", max_new_tokens=32).text)
with bundle.instantiate("cpu") as runtime:
    with runtime.model.decode_session(cache="paged", block_size=16) as session:
        for token in runtime.tokenizer.encode("Tensor:"):
            logits = session.step(token)        # numpy float32 [vocabulary], a fresh array (or step(token, out=buffer))
"""


def test_artifact_snippet(
    rift_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "results" / "stages" / "tiny_post_trained.rift"
    target.parent.mkdir(parents=True)
    shutil.copy(rift_path, target)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(SNIPPET, names)
    assert len(capsys.readouterr().out) > 1
    logits = names["logits"]
    assert (getattr(logits, "dtype", None), getattr(logits, "shape", None)) == ("float32", (256,))


def test_package_snippet(
    rift_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import riftco_transformer

    shutil.copy(rift_path, tmp_path / "model.gguf")  # formats are told by content
    monkeypatch.chdir(tmp_path)
    snippet = (riftco_transformer.__doc__ or "").partition("\n\n")[2]
    exec(textwrap.dedent(snippet), {})
    assert len(capsys.readouterr().out) > 1


def python_blocks(page: str) -> list[str]:
    text = (Path(__file__).parents[2] / page).read_text("utf-8")
    return [part.split("```")[0] for part in text.split("```python\n")[1:]]


def test_readme_snippet(
    rift_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Python of the README, with a model that can be written as GGUF."""
    shutil.copy(Path(__file__).parent.parent / "golden/gguf/llama-q8_0-tied.gguf", tmp_path / "model.gguf")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for snippet in python_blocks("README.md"):
        exec(snippet, names)
    assert len(capsys.readouterr().out) > 1
    assert (tmp_path / "copy.gguf").read_bytes()[:4] == b"GGUF"
    assert (tmp_path / "adapter" / "adapter_config.json").exists()


def test_training_snippets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.txt").write_text("Once upon a time there was a lamp. " * 50)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for snippet in python_blocks("docs/training.md"):
        exec(snippet, names)
    assert len(capsys.readouterr().out.splitlines()) >= 13
