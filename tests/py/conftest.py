"""Fixtures: a tiny model of our own, its file, and the real model."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from riftco_transformer.artifacts import ModelBundle, Runtime
from riftco_transformer.model import Model, ModelConfig
from riftco_transformer.pull import pull
from riftco_transformer.serving import TextGenerator
from riftco_transformer.tokenizer import Tokenizer

CONFIG = ModelConfig(maximum_context=64, layer_count=2)
"""Learned positions, so that generation rolls over."""


def pytest_configure() -> None:
    # A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("PYTHONUNBUFFERED", None)  # a last flush that fails must be seen


@pytest.fixture(scope="session")
def smollm2_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M in the user's cache, where it stays between runs."""
    with open(tmp_path_factory.getbasetemp().parent / "pull.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the processes that share the tests fetches it
        return pull("smollm2-135m")


@pytest.fixture(scope="session")
def rift_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.rift"
    with Tokenizer.byte() as tokenizer, Model.create(CONFIG, seed=7, tokenizer=tokenizer) as model:
        model.save(path)
    return path


@pytest.fixture
def runtime(rift_path: Path) -> Iterator[Runtime]:
    with ModelBundle.load(rift_path).instantiate("cpu", threads=1) as runtime:
        yield runtime


@pytest.fixture
def model(runtime: Runtime) -> Model:
    return runtime.model


@pytest.fixture
def generator(runtime: Runtime) -> Iterator[TextGenerator]:
    with TextGenerator(runtime.model, runtime.tokenizer) as generator:
        yield generator


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Runtime]:
    with ModelBundle.load(smollm2_path).instantiate("cpu") as runtime:
        yield runtime
