"""One side of a comparison: a process that keeps a model and does what the driver orders, a line of JSON at a time.

An engine has `version`, `vocabulary` (size) and the methods below; each order names one, and is answered with what it returned.

    decode(depth, count, batch) -> {"seconds": of `count` greedy steps of `batch` sequences after `depth` tokens, "tokens": of the first}
    prefill(count) -> {"seconds": of `count` tokens up to the next token}
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any


def prompt(count: int, vocabulary: int, seed: int = 1) -> list[int]:
    """Random tokens, the same on every side; without the ends of the vocabulary, where special tokens are."""
    return random.Random(seed).choices(range(100, vocabulary - 300), k=count)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what the work returned."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def peak_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def serve(load: Callable[[str, int, str], Any]) -> None:
    """usage: side_NAME.py MODEL THREADS VARIANT; `load` takes the three."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what engines print is no answer

    def answer(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    path, threads, variant = sys.argv[1:]
    seconds, engine = timed(lambda: load(path, int(threads), variant))
    answer({"load_seconds": seconds, "version": engine.version})
    for line in sys.stdin:
        order = json.loads(line)
        work = order.pop("work")
        answer({**getattr(engine, work)(**order), "peak_bytes": peak_bytes()})
    answers.close()
    os._exit(0)  # some engines do not survive their own teardown
