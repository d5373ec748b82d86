"""Ctrl-C during native calls: the call is cancelled, everything is as before, KeyboardInterrupt comes out."""

from __future__ import annotations

import os
import pty
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from riftco_transformer.cancel import CancelFlag, interruptible
from riftco_transformer.model import Model, ModelConfig
from riftco_transformer.serving import TextGenerator
from riftco_transformer.tokenizer import Tokenizer
from riftco_transformer.training import Trainer, evaluate

SLOW = ModelConfig(width=256, head_width=64, mlp_width=1024, layer_count=8, maximum_context=8192)


@pytest.fixture(scope="module")
def slow() -> Model:
    """A model whose longest prefill takes many seconds."""
    return Model.create(SLOW, threads=1)


def interrupted(call: Callable[[], object], after: float = 0.3) -> float:
    """Seconds from a SIGINT within call() to its KeyboardInterrupt."""
    sent = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, send)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
        return time.monotonic() - sent[0]
    finally:
        timer.join()


def test_prefill(slow: Model) -> None:
    with slow.decode_session() as session:
        first = session.prefill([1, 2, 3])
        interrupted(lambda: session.prefill([5] * 8000))
        assert session.size == 3
        session.reset()
        assert np.array_equal(session.prefill([1, 2, 3]), first)


def test_logits(slow: Model) -> None:
    interrupted(lambda: slow.logits([5] * 8000))
    assert slow.logits([1]).shape == (1, 256)


def test_generation(slow: Model) -> None:
    with Tokenizer.byte() as tokenizer, TextGenerator(slow, tokenizer) as generator:
        interrupted(lambda: generator.generate("x" * 8000))
        interrupted(lambda: generator.generate("x", max_new_tokens=10**6))
        assert len(generator.generate("x", max_new_tokens=3).tokens) == 3


def test_training_step(slow: Model) -> None:
    tokens = np.full((1, 3000), 5)
    before = slow.parameters["layers.0.q.weight"]
    with Trainer(slow) as trainer:
        interrupted(lambda: trainer.step(tokens, tokens))
        assert trainer.info.step == 0
        assert np.array_equal(slow.parameters["layers.0.q.weight"], before)
        interrupted(lambda: evaluate(slow, tokens.repeat(8, axis=0), tokens.repeat(8, axis=0), "flash"))
        assert trainer.step(tokens[:, :8], tokens[:, :8]).step == 1


def test_flag_of_the_user_stays_as_it_was(slow: Model) -> None:
    cancel = CancelFlag()
    with Tokenizer.byte() as tokenizer, TextGenerator(slow, tokenizer) as generator:
        interrupted(lambda: generator.generate("x" * 8000, cancel=cancel))
        assert not cancel.is_set
        assert len(generator.generate("x", max_new_tokens=3, cancel=cancel).tokens) == 3


def test_two_in_a_row(slow: Model) -> None:
    """The second comes while the first is being dealt with."""
    with slow.decode_session() as session:
        second = threading.Timer(0.301, os.kill, (os.getpid(), signal.SIGINT))
        second.start()
        try:
            interrupted(lambda: session.prefill([5] * 8000))
            second.join()
        except KeyboardInterrupt:
            second.join()
        assert session.size == 0
        session.prefill([1, 2, 3])


def test_helper_hands_results_and_errors_over() -> None:
    assert interruptible(lambda: 5) == 5
    with pytest.raises(LookupError, match="inside"):
        interruptible(raise_lookup_error)
    assert interruptible(threading.current_thread).name == "riftco-calls"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(interruptible, threading.current_thread).result().name != "riftco-calls"


def raise_lookup_error() -> None:
    raise LookupError("inside")


def test_child_of_a_fork_has_a_helper_of_its_own() -> None:
    interruptible(lambda: 1)
    child = os.fork()
    if child == 0:
        os._exit(interruptible(lambda: 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_process_ends_with_130(rift_path: Path) -> None:
    """The command line, interrupted while it generates."""
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "riftco_transformer", "generate", str(rift_path), "a"]
        os.execv(sys.executable, [*command, "--max-new-tokens=100000000"])
    shown = os.read(terminal, 1)
    os.kill(pid, signal.SIGINT)
    try:
        while chunk := os.read(terminal, 65536):
            shown += chunk
    except OSError:  # EIO: the other side is closed
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert shown.endswith(b"\r\nriftco: interrupted\r\n")
