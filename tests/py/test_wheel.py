"""The wheel: one library, the package's own files, any Python."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
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
    """In an environment of its own, which sees this one's dependencies but not its editable package."""
    venv.create(tmp_path / "venv", symlinks=True)
    bin = tmp_path / "venv" / "bin"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(bin / "python")]
    subprocess.check_output([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)])
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]}

    def output(program: str, *arguments: str) -> str:
        return subprocess.check_output([bin / program, *arguments], env=environment, cwd=tmp_path, text=True)

    assert output("riftco", "generate", str(rift_path), "a", "--max-new-tokens=3")
    where = output("python", "-c", "import riftco_transformer; print(riftco_transformer.__file__)")
    assert Path(where.strip()).is_relative_to(tmp_path / "venv")


@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file")
def test_library_needs_nothing_but_the_c_library(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("riftco_transformer/libriftco.so.2", tmp_path)
    dynamic = subprocess.check_output(["readelf", "-d", library], text=True)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert [name for name in needed if not name.startswith(("libc.", "libm.", "ld-linux"))] == []
