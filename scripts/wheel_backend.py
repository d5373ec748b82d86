"""The Python build backend: meson-python, with wheels tagged py3-none-<platform>.

meson-python takes a library inside the package for an extension module and names the one Python that built it; here cffi
opens the library by path, so that one wheel serves every Python.
"""

import subprocess
import sys
from pathlib import Path

import mesonpy
from mesonpy import (  # noqa: F401
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)


def build_wheel(directory: str, settings: dict | None = None, metadata: str | None = None) -> str:
    wheel = Path(directory, mesonpy.build_wheel(directory, settings, metadata))
    retag = [
        sys.executable,
        "-m",
        "wheel",
        "tags",
        "--python-tag=py3",
        "--abi-tag=none",
        "--remove",
        str(wheel),
    ]
    return subprocess.run(retag, check=True, capture_output=True, text=True).stdout.split()[-1]
