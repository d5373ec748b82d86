"""Speed and memory of one model: prefill, decode, batch, against a plain read of as many bytes as its weights have.

python benchmarks/bench_model.py MODEL [--threads N] [--repeats N] [--json]

The measurements take turns, because a shared machine's speed drifts; each figure is a median with its least and greatest
value. Decode is 128 tokens after 32, prefill 512 tokens, the batch 8 sequences of one token each. "of read" is the share of
the time that reading the weights once, on as many threads, takes. Memory is the peak of a fresh process that makes a pool of
2,048 tokens, prefills 32 and decodes 128.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.kv_cache import KvCacheFactory
from riftco_transformer.session import step_many

CONTEXT, PROMPT, NEW, LONG, BATCH = 2048, 32, 128, 512, 8


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def plain_read(data: np.ndarray, threads: int) -> None:
    parts = np.array_split(data, threads)
    workers = [threading.Thread(target=np.maximum.reduce, args=(part,)) for part in parts[1:]]
    for worker in workers:
        worker.start()
    np.maximum.reduce(parts[0])
    for worker in workers:
        worker.join()


def peak_memory(path: str, threads: int) -> int:
    """VmHWM in bytes, of a process of its own."""
    command = [sys.executable, os.path.abspath(__file__), path, "--threads", str(threads), "--memory-only"]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def memory_only(path: str, threads: int) -> None:
    with ModelBundle.load(path).instantiate("cpu", threads) as runtime:
        factory = KvCacheFactory.paged(runtime.model, maximum_context=CONTEXT)
        with runtime.model.decode_session(factory=factory) as session:
            logits = session.prefill(np.arange(PROMPT) % runtime.model.config.vocabulary_size)
            for _ in range(NEW):
                logits = session.step(int(np.argmax(logits)))
    with open("/proc/self/status") as status:
        print(next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM")))


def measure(path: str, threads: int, repeats: int) -> dict[str, list[float]]:
    load_seconds = seconds(lambda: ModelBundle.load(path).instantiate("cpu", threads).close())
    results: dict[str, list[float]] = {"load_seconds": [load_seconds]}

    def note(name: str, value: float) -> None:
        results.setdefault(name, []).append(value)

    with ModelBundle.load(path).instantiate("cpu", threads) as runtime:
        model = runtime.model
        weight_bytes = model.info.weight_bytes
        weights = np.ones(weight_bytes // 8, dtype=np.uint64)
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, model.config.vocabulary_size, LONG)
        sessions = [model.decode_session(maximum_context=CONTEXT) for _ in range(BATCH)]
        first, out = sessions[0], np.empty(model.config.vocabulary_size, dtype=np.float32)

        def decode() -> None:
            for token in tokens[:NEW]:
                first.step(token, out=out)

        for turn in range(repeats + 1):
            read = min(seconds(lambda: plain_read(weights, threads)) for _ in range(3))
            first.reset()
            first.prefill(tokens[:PROMPT])
            step = seconds(decode) / NEW
            first.reset()
            long = seconds(lambda: first.prefill(tokens))
            for session in sessions:
                session.reset()
                session.prefill(tokens[:PROMPT])
            batch = seconds(lambda: [step_many(sessions, tokens[i : i + BATCH]) for i in range(16)] and None)
            if turn == 0:
                continue  # warm-up
            note("read_gb_per_second", weight_bytes / read / 1e9)
            note("decode_tokens_per_second", 1 / step)
            note("decode_of_read", read / step)
            note("prefill_tokens_per_second", LONG / long)
            note("batch_tokens_per_second", 16 * BATCH / batch)
    results["weight_megabytes"] = [weight_bytes / 1e6]
    results["peak_memory_megabytes"] = [peak_memory(path, threads) / 1e6]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_only:
        memory_only(arguments.model, arguments.threads)
        return
    results = measure(arguments.model, arguments.threads, arguments.repeats)
    summary = {
        name: {"median": statistics.median(values), "least": min(values), "greatest": max(values)}
        for name, values in results.items()
    }
    if arguments.json:
        print(json.dumps({"model": arguments.model, "threads": arguments.threads, **summary}))
        return
    for name, values in summary.items():
        print(f"{name:28} {values['median']:10.3f}  ({values['least']:.3f} .. {values['greatest']:.3f})")


if __name__ == "__main__":
    main()
