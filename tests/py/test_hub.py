"""Models of the Hugging Face hub, from a cache folder as huggingface_hub keeps it; nothing is fetched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import huggingface_hub.constants
import pytest
from riftco_transformer import cli, hub, library
from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.errors import InputOutputError, InvalidArgumentError, InvalidStateError
from riftco_transformer.pull import resolve

GOLDEN = Path(__file__).parent.parent / "golden"
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one repository: a folder that runs, and a file beside it."""
    root = tmp_path / "hub"
    snapshot = root / "models--tiny--llama" / "snapshots" / REVISION
    shutil.copytree(GOLDEN / "models/llama-gqa-untied", snapshot)
    shutil.copy(GOLDEN / "gguf/llama-q8_0-tied.gguf", snapshot / "tiny.Q8_0.gguf")
    (root / "models--tiny--llama/refs").mkdir()
    (root / "models--tiny--llama/refs/main").write_text(REVISION)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for function in ("snapshot_download", "hf_hub_download", "scan_cache_dir"):
        real = getattr(huggingface_hub, function)
        monkeypatch.setattr(
            huggingface_hub, function, lambda *a, _real=real, **k: _real(*a, cache_dir=root, **k)
        )
    monkeypatch.setenv("RIFTCO_CACHE", str(tmp_path / "own"))
    return root


def test_folder_and_file(cache: Path) -> None:
    folder = hub.fetch("hf:tiny/llama")
    assert folder == cache / "models--tiny--llama/snapshots" / REVISION
    assert resolve("hf:tiny/llama") == str(folder)
    file = hub.fetch("hf:tiny/llama/tiny.Q8_0.gguf", offline=True)
    assert file.name == "tiny.Q8_0.gguf"
    assert ModelBundle.load(resolve("hf:tiny/llama")).info["format"] == "huggingface"


def test_in_a_fresh_process(cache: Path) -> None:
    """With the hub's own settings."""
    settings = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    for name, code in (("hf:tiny/llama", 0), ("hf:no/body", 1)):
        run = subprocess.run(
            [sys.executable, "-m", "riftco_transformer", "pull", name, "--json"],
            capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **settings},
        )  # fmt: skip
        assert run.returncode == code, run.stderr
        document = json.loads(run.stdout)
        if code == 0:
            assert Path(document["path"]).parent.parent == cache / "models--tiny--llama"
        else:
            assert "is not here and cannot be fetched" in document["error"]


def test_what_is_not_here() -> None:
    with pytest.raises(InvalidStateError, match=r"not here yet; fetch it with: riftco pull hf:no/body"):
        resolve("hf:no/body")
    with pytest.raises(InputOutputError, match="hf:no/body is not here and cannot be fetched"):
        hub.fetch("hf:no/body")
    for wrong in ("hf:", "hf:alone", "hf:a//b"):
        with pytest.raises(InvalidArgumentError, match="is neither hf:OWNER/REPO nor"):
            hub.fetch(wrong)
    with pytest.raises(InvalidArgumentError):
        hub.fetch("hf:a b/c")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InvalidStateError, match=r"pip install 'riftco-transformer\[hub\]'"):
        hub.fetch("hf:tiny/llama")
    assert library.pulled() == []


def test_ls_rm_and_completion(
    cache: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"x" * 1000)
    assert cli._run(["ls", "--json"]) == 0
    models = json.loads(capfdbinary.readouterr().out)["models"]
    assert [model["name"] for model in models] == ["hf:tiny/llama", "smollm2-135m"]
    assert models[1] == {"name": "smollm2-135m", "bytes": 1000, "path": str(own)}
    assert models[0]["bytes"] > 100_000
    assert cli._run(["ls"]) == 0
    assert b"smollm2-135m" in capfdbinary.readouterr().out

    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.gguf").write_bytes(b"")
    (tmp_path / "small.txt").write_bytes(b"")
    assert library.complete_model("sm") == ["smollm2-135m", "small.gguf"]
    assert library.complete_model("hf:") == ["hf:tiny/llama"]
    assert library.complete_model("o") == ["own/"]

    assert cli._run(["rm", "smollm2-135m", "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out) == {"name": "smollm2-135m", "bytes": 1000}
    assert not own.parent.exists()
    assert cli._run(["rm", "hf:tiny/llama"]) == 0
    assert not (cache / "models--tiny--llama").exists()
    capfdbinary.readouterr()
    for name in ("smollm2-135m", "hf:tiny/llama", "../x"):
        assert cli._run(["rm", name]) == 1
        assert b"is not here" in capfdbinary.readouterr().err
    assert cli._run(["ls"]) == 0
    assert capfdbinary.readouterr() == (b"", b"no model was pulled yet\n")
