"""The models that were pulled: ours by name, and those in the cache of the Hugging Face hub."""

from __future__ import annotations

import os
import shutil
from typing import Any

from . import hub
from .errors import InvalidStateError
from .pull import MODELS, cache_directory, cached_path


def pulled() -> list[dict[str, Any]]:
    """Name, bytes and path of each, by name."""
    rows = []
    for name in MODELS:
        path = cached_path(name)
        if path.is_file():
            rows.append({"name": name, "bytes": path.stat().st_size, "path": str(path)})
    for name, repo in hub.repositories().items():
        rows.append({"name": name, "bytes": int(repo.size_on_disk), "path": str(repo.repo_path)})
    return sorted(rows, key=lambda row: str(row["name"]))


def remove(name: str) -> int:
    """Deletes a pulled model and returns the bytes that were freed."""
    if name.startswith(hub.PREFIX):
        return hub.remove(name)
    if name not in MODELS or not cached_path(name).is_file():
        raise InvalidStateError(f"{name} is not here")
    size = cached_path(name).stat().st_size
    shutil.rmtree(cache_directory() / name)
    return size


def complete_model(incomplete: str) -> list[str]:
    """What a shell offers for a model: pulled names, model files and folders."""
    names = [row["name"] for row in pulled() if row["name"].startswith(incomplete)]
    folder, start = os.path.split(incomplete)
    try:
        entries = sorted(os.scandir(folder or "."), key=lambda entry: entry.name)
    except OSError:
        entries = []
    for entry in entries:
        if entry.name.startswith(start) and (start or not entry.name.startswith(".")):
            path = os.path.join(folder, entry.name)
            if entry.is_dir():
                names.append(path + "/")
            elif entry.name.endswith((".gguf", ".rift")):
                names.append(path)
    return names
