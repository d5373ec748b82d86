"""Models of the Hugging Face hub by the name hf:OWNER/REPO, or hf:OWNER/REPO/FILE for one file. The package
huggingface_hub fetches and keeps them; its settings (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE, ...) hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import InputOutputError, InvalidArgumentError, InvalidStateError

PREFIX = "hf:"
# What a folder needs to run; not the same weights once more in other formats.
_FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
]


def fetch(name: str, *, offline: bool = False, show_progress: bool = False) -> Path:
    """The folder of a repository, or one file of it, after fetching what is not here; with `offline`, only
    what is here."""
    hub = _hub()
    repository, file = _parse(name)
    if not show_progress:
        hub.utils.disable_progress_bars()
    with _errors(hub, name, offline):
        if file:
            return Path(hub.hf_hub_download(repository, file, local_files_only=offline))
        return Path(hub.snapshot_download(repository, allow_patterns=_FILES, local_files_only=offline))


def repositories() -> dict[str, Any]:
    """The model repositories that are here, by name; none where huggingface_hub or its cache is not."""
    try:
        hub = _hub()
    except InvalidStateError:
        return {}
    try:
        repos = hub.scan_cache_dir().repos
    except hub.errors.CacheNotFound:
        return {}
    return {PREFIX + repo.repo_id: repo for repo in repos if repo.repo_type == "model"}


def remove(name: str) -> int:
    """Deletes a repository that is here and returns the bytes that were freed."""
    here = repositories()
    if name not in here:
        raise InvalidStateError(f"{name} is not here")
    repo = here[name]
    strategy = _hub().scan_cache_dir().delete_revisions(*(r.commit_hash for r in repo.revisions))
    strategy.execute()
    return int(strategy.expected_freed_size)


def _hub() -> Any:
    try:
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise InvalidStateError(
            "names that begin with hf: need huggingface_hub; install it with: "
            "pip install 'riftco-transformer[hub]'"
        ) from None
    return huggingface_hub


def _parse(name: str) -> tuple[str, str]:
    parts = name.removeprefix(PREFIX).split("/", 2)
    if len(parts) < 2 or not all(parts):
        raise InvalidArgumentError(f"{name!r} is neither hf:OWNER/REPO nor hf:OWNER/REPO/FILE")
    return "/".join(parts[:2]), "/".join(parts[2:])


@contextmanager
def _errors(hub: Any, name: str, offline: bool) -> Iterator[None]:
    """What the hub raises, as ours."""
    try:
        yield
    except hub.errors.HFValidationError as error:
        raise InvalidArgumentError(f"{name}: {_line(error)}") from error
    except (hub.errors.LocalEntryNotFoundError, hub.errors.OfflineModeIsEnabled) as error:
        if offline:
            raise InvalidStateError(f"{name} is not here yet; fetch it with: riftco pull {name}") from error
        raise InputOutputError(f"{name} is not here and cannot be fetched: {_line(error)}") from error
    except (hub.errors.HfHubHTTPError, OSError) as error:
        raise InputOutputError(f"{name} cannot be fetched: {_line(error)}") from error


def _line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
