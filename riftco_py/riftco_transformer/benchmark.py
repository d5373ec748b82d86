"""Speed and memory of one model, next to a plain read of as many bytes as its weights have.

The measurements take turns, because a shared machine's speed drifts; each figure is a median with its least and greatest value.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ._native import check, ffi, lib
from .kv_cache import KvCacheFactory
from .model import Model
from .session import step_many

PROMPT, NEW, LONG, DEEP, BATCHES = 32, 128, 512, 1900, (8, 16)


class Figure(NamedTuple):
    """What several turns gave."""

    median: float
    least: float
    greatest: float


class Sizes(NamedTuple):
    """Tokens of the measurements, where the model has room for them."""

    prompt: int
    new: int
    """Decoded after the prompt."""
    long: int
    """Of the prefill."""
    deep: int
    """The position of decoding far into a context."""

    @classmethod
    def of(cls, context: int) -> Sizes:
        """For a model of so many positions."""
        prompt = max(1, min(PROMPT, context // 4))
        new = max(1, min(NEW, (context - prompt) // 2))
        return cls(prompt, new, min(LONG, context), min(DEEP, context - new))


def measure(
    path: str,
    threads: int = 0,
    element_type: str = "keep",
    compute: str = "exact",
    repeats: int = 5,
    turn_done: Callable[[int, int], None] | None = None,
) -> dict[str, Figure]:
    """Figures by name, in tokens per second unless the name says otherwise.

    Decode is after a prompt of 32 tokens, and far into a context (1,900 tokens, or what the model has); prefill of 512; batches
    are sessions of one token each a step. decode_of_read is the share of a step that reading the weights once, on as many
    threads, takes. peak_memory_megabytes is that of a fresh process that decodes. turn_done is called with the turns done and
    in all.
    """
    values: dict[str, list[float]] = {}
    start = time.perf_counter()
    with Model.load(path, "cpu", threads, type=element_type, compute=compute) as model:
        values["load_seconds"] = [time.perf_counter() - start]
        for turn in range(repeats + 1):
            for name, value in _turn(model):
                if turn > 0:  # the first one warms up
                    values.setdefault(name, []).append(value)
            if turn_done:
                turn_done(turn + 1, repeats + 1)
        values["weight_megabytes"] = [model.info.weight_bytes / 1e6]
    memory = _peak_of_fresh_process(path, threads, element_type, compute)
    if memory is not None:
        values["peak_memory_megabytes"] = [memory]
    return {name: Figure(statistics.median(v), min(v), max(v)) for name, v in values.items()}


def cpu_isa() -> str:
    """The instruction set of the kernels."""
    number = ffi.new("int32_t *")
    check(lib.rt_cpu_isa(number))
    names = {
        getattr(lib, f"RT_CPU_ISA_{name.upper()}"): name for name in ("scalar", "avx2", "avx512", "neon")
    }
    return names[number[0]]


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def plain_read(data: np.ndarray[Any, np.dtype[np.uint64]], threads: int) -> None:
    """Reads all of it once, a part on each thread."""
    parts = np.array_split(data, threads)
    workers = [threading.Thread(target=np.maximum.reduce, args=(part,)) for part in parts[1:]]
    for worker in workers:
        worker.start()
    np.maximum.reduce(parts[0])
    for worker in workers:
        worker.join()


def _turn(model: Model) -> Iterator[tuple[str, float]]:
    sizes, vocabulary, info = Sizes.of(model.config.maximum_context), model.config.vocabulary_size, model.info
    tokens = np.random.default_rng(0).integers(0, vocabulary, max(sizes.long, sizes.deep, *BATCHES))
    weights = np.ones(info.weight_bytes // 8, dtype=np.uint64)
    read = min(_seconds(lambda: plain_read(weights, info.threads)) for _ in range(3))
    yield "read_gb_per_second", info.weight_bytes / read / 1e9
    out = np.empty(vocabulary, dtype=np.float32)
    with model.decode_session() as session:

        def decode() -> float:
            return (
                _seconds(lambda: [session.step(token, out=out) for token in tokens[: sizes.new]]) / sizes.new
            )

        session.prefill(tokens[: sizes.prompt])
        step = decode()
        yield "decode_tokens_per_second", 1 / step
        yield "decode_of_read", read / step
        session.reset()
        long = _seconds(lambda: session.prefill(tokens[: sizes.long]))
        yield "prefill_tokens_per_second", sizes.long / long
        if sizes.deep > sizes.long:
            session.prefill(tokens[sizes.long : sizes.deep])
            yield "deep_decode_tokens_per_second", 1 / decode()
    for batch in BATCHES:
        yield f"batch_{batch}_tokens_per_second", _batch_speed(model, tokens[:batch], sizes)


def _batch_speed(model: Model, tokens: np.ndarray[Any, np.dtype[np.int64]], sizes: Sizes) -> float:
    sessions = [model.decode_session() for _ in tokens]
    for session in sessions:
        session.prefill(np.resize(tokens, sizes.prompt))
    steps = min(16, sizes.new)
    seconds = _seconds(lambda: [step_many(sessions, tokens) for _ in range(steps)])
    for session in sessions:
        session.close()
    return steps * len(tokens) / seconds


def _peak_of_fresh_process(path: str, threads: int, element_type: str, compute: str) -> float | None:
    """Megabytes; None where the system does not say."""
    if not os.path.exists("/proc/self/status"):
        return None
    command = [sys.executable, "-m", __name__, path, str(threads), element_type, compute]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) / 1e6


def _print_peak(path: str, threads: int, element_type: str, compute: str) -> None:
    with Model.load(path, "cpu", threads, type=element_type, compute=compute) as model:
        sizes, vocabulary = Sizes.of(model.config.maximum_context), model.config.vocabulary_size
        with model.decode_session(factory=KvCacheFactory.paged(model)) as session:
            logits = session.prefill(np.arange(sizes.prompt) % vocabulary)
            for _ in range(sizes.new):
                logits = session.step(int(np.argmax(logits)))
    with open("/proc/self/status") as status:
        print(next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM")))


if __name__ == "__main__":
    _print_peak(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
