"""How the cost of a token grows with the context: decode against a plain read, prefill against its attention, memory against pages.

python benchmarks/bench_growth.py [MODEL] [--cache-type f32|f16|bf16] [--threads N] [--repeats N] [--json]

Every turn measures decode steps at several contexts, alternating with each other and with a plain read of as many bytes as the
keys and values of the longest context have, then the chunks of a prefill. Lines are fitted by least squares in each turn; a figure is the median of the turns with the least
and the greatest.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.benchmark import plain_read
from riftco_transformer.kv_cache import KvCacheFactory
from riftco_transformer.model import Model
from riftco_transformer.pull import pull

CONTEXTS, STEPS, CHUNK = (128, 512, 1024, 1900), 20, 128


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def line(x: list[float], y: list[float]) -> tuple[float, float]:
    """Slope and value at 0 of the nearest line."""
    slope, start = np.polyfit(x, y, 1)
    return float(slope), float(start)


def measure(model: Model, cache_type: str, repeats: int) -> dict[str, object]:
    config, threads = model.config, model.info.threads
    contexts = [n for n in CONTEXTS if n + STEPS <= config.maximum_context]
    if len(contexts) < 2:
        raise SystemExit(f"a context of {config.maximum_context} tokens is too short to see growth")
    tokens = np.random.default_rng(0).integers(0, config.vocabulary_size, contexts[-1])
    memory = []
    sessions = {}
    for n in contexts:
        pool = KvCacheFactory.paged(model, cache_type=cache_type)
        sessions[n] = model.decode_session(factory=pool)
        sessions[n].prefill(tokens[:n])
        usage = pool.usage()
        pages = -(-n // usage.block_size)
        memory.append({"tokens": n, "pages": pages, "page_bytes": usage.block_bytes,
                       "allocated_bytes": usage.allocated_bytes})  # fmt: skip
    bytes_per_token = memory[0]["page_bytes"] / sessions[contexts[0]].block_size
    read_bytes = int(bytes_per_token * contexts[-1])
    plain = np.ones(read_bytes // 8, dtype=np.uint64)
    out = np.empty(config.vocabulary_size, dtype=np.float32)
    attention_macs = config.layer_count * config.head_count * config.head_width * 2
    starts = range(0, contexts[-1] - CHUNK + 1, CHUNK)

    def decode_and_read() -> tuple[list[float], float]:
        """Medians of steps and reads that alternate."""
        spent: list[list[float]] = []
        for _ in range(STEPS):
            steps = [seconds(lambda n=n: sessions[n].step(1, out=out)) for n in contexts]
            spent.append([*steps, seconds(lambda: plain_read(plain, threads))])
        for n in contexts:
            sessions[n].truncate(n)
        *steps, read = (statistics.median(column) for column in zip(*spent, strict=True))
        return steps, read

    values: dict[str, list[float]] = {}
    with model.decode_session(factory=KvCacheFactory.paged(model, cache_type=cache_type)) as session:
        for turn in range(repeats + 1):
            steps, read = decode_and_read()
            session.reset()
            chunks = [
                seconds(lambda at=at: session.prefill(tokens[at : at + CHUNK])) / CHUNK for at in starts
            ]
            bandwidth = read_bytes / read
            if turn == 0:  # warms up
                continue
            middles = [at + CHUNK / 2 for at in starts]
            slope, start = line(contexts, steps)
            prefill_slope, prefill_start = line(middles, chunks)
            half = len(chunks) // 2
            early, late = line(middles[:half], chunks[:half])[0], line(middles[half:], chunks[half:])[0]
            figures = {
                "read_gb_per_second": bandwidth / 1e9,
                **{f"decode_ms_at_{n}": 1e3 * s for n, s in zip(contexts, steps, strict=True)},
                "decode_ns_per_key": 1e9 * slope,
                "decode_ns_per_key_of_a_read": 1e9 * bytes_per_token / bandwidth,
                "decode_slope_of_read": slope * bandwidth / bytes_per_token,
                "decode_off_the_line": max(
                    abs(s - start - slope * n) / s for n, s in zip(contexts, steps, strict=True)
                ),
                "prefill_ms_per_token_first": 1e3 * chunks[0],
                "prefill_ms_per_token_last": 1e3 * chunks[-1],
                "prefill_ns_per_key": 1e9 * prefill_slope,
                "prefill_late_slope_of_early": late / early,
                "prefill_attention_gmac_per_second": attention_macs / prefill_slope / 1e9,
                "prefill_attention_share_last": prefill_slope * middles[-1] / chunks[-1],
                "prefill_matrices_ms_per_token": 1e3 * prefill_start,
            }
            for name, value in figures.items():
                values.setdefault(name, []).append(value)
    for used in sessions.values():
        used.close()
    return {
        "cache_bytes_per_token": bytes_per_token,
        "memory": memory,
        "figures": {name: (statistics.median(v), min(v), max(v)) for name, v in values.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a file; the default is smollm2-135m, fetched")
    parser.add_argument("--cache-type", choices=("f32", "f16", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    path = arguments.model or pull("smollm2-135m")
    with ModelBundle.load(path).instantiate("cpu", arguments.threads) as runtime:
        result = measure(runtime.model, arguments.cache_type, arguments.repeats)
    if arguments.json:
        print(json.dumps({**vars(arguments), **result}))
        return
    for name, (median, least, greatest) in result["figures"].items():
        print(f"{name:34} {median:9.3f}  ({least:.3f} .. {greatest:.3f})")
    for m in result["memory"]:
        print(f"{m['tokens']:5} tokens: {m['pages']} pages of {m['page_bytes']} bytes, "
              f"{m['allocated_bytes'] - m['pages'] * m['page_bytes']:+} bytes beside them")  # fmt: skip


if __name__ == "__main__":
    main()
