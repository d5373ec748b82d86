"""A run that is killed at any moment leaves its last complete checkpoint."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from riftco_transformer.model import Model
from riftco_transformer.training import Trainer, checkpoint_state

RUN = """
import sys
import numpy as np
from riftco_transformer.model import Model
from riftco_transformer.training import Trainer

with Model.load(sys.argv[1], threads=1) as model, Trainer(model) as trainer:
    tokens = np.arange(16, dtype=np.uint32).reshape(2, 8)
    for step in range(1, 10_000):
        trainer.step(tokens, tokens + 1)
        trainer.save(sys.argv[2], str(step))
"""


@pytest.mark.parametrize("pause", [0.0, 0.013, 0.05, 0.11, 0.3])
def test_a_killed_run_leaves_the_last_checkpoint(rift_path: Path, tmp_path: Path, pause: float) -> None:
    checkpoint = tmp_path / "run.checkpoint"
    with subprocess.Popen([sys.executable, "-c", RUN, rift_path, checkpoint]) as run:
        deadline = time.monotonic() + 60
        while not checkpoint.exists():
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(pause)
        run.kill()
    step = int(checkpoint_state(checkpoint))
    assert step >= 1
    tokens = np.arange(16, dtype=np.uint32).reshape(2, 8)
    with Model.load(rift_path, threads=1) as model, Trainer(model) as trainer:
        trainer.load(checkpoint)
        assert trainer.info.step == step
        resumed = trainer.step(tokens, tokens + 1)
    with Model.load(rift_path, threads=1) as model, Trainer(model) as trainer:  # a run that was not stopped
        for _ in range(step):
            trainer.step(tokens, tokens + 1)
        assert trainer.step(tokens, tokens + 1) == resumed
