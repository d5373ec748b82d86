"""The wheel: one library, the package's own files, any Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "riftco_py" / "riftco_transformer"


@pytest.fixture(scope="module")
def wheel() -> Path:
    folder = os.environ.get("RIFTCO_WHEEL_DIR")
    if folder is None:
        pytest.skip("RIFTCO_WHEEL_DIR names no folder with the wheel (make test builds it)")
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


def test_tag(wheel: Path) -> None:
    assert re.fullmatch(r"riftco_transformer-2\.\d+\.\d+-py3-none-(?!any)\w+\.whl", wheel.name)


def test_no_stray_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    library = "libriftco.2.dylib" if sys.platform == "darwin" else "libriftco.so.2"
    expected = {path.name for path in PACKAGE.iterdir() if path.suffix in {".py", ".pyi", ".typed"}}
    assert names == {f"riftco_transformer/{name}" for name in expected | {"_riftco_cffi.py", library}}


def test_installed_wheel_generates(wheel: Path, rift_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    environment = {**os.environ, "PYTHONPATH": str(target)}

    def python(*arguments: str) -> str:
        return subprocess.check_output([sys.executable, *arguments], env=environment, cwd=tmp_path, text=True)

    python("-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    assert python("-m", "riftco_transformer", "generate", str(rift_path), "a", "--max-new-tokens=3")
    where = "import riftco_transformer; print(riftco_transformer.__file__)"
    assert Path(python("-c", where).strip()).is_relative_to(target)
