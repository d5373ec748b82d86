"""Draws what bench_kernels measured under the machine's limits: operations a byte read against operations a second.

python benchmarks/plot_roofline.py OUT.svg [--threads N] [--seconds S] [--kernels KERNELS.json --limits LIMITS.json]

Runs build/benchmarks/bench_kernels and bench_limits unless their documents are given; limits are the best of several runs before
and after, because machines are slowed down by others at times. Bytes are those that a case must read
once (weights, or keys and values); operations count two for a multiply-add. Needs matplotlib.
"""

import argparse
import json
import subprocess
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

PROGRAMS = Path(__file__).resolve().parent.parent / "build" / "benchmarks"


def document(given: Path | None, program: str, *arguments: str):
    text = given.read_text() if given else subprocess.check_output([PROGRAMS / program, *arguments])
    return json.loads(text)


def best_limits(threads: str, runs: int):
    found = [document(None, "bench_limits", threads) for _ in range(runs)]
    return {key: max(limits[key] or 0 for limits in found) for key in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--seconds", default="1")
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--limits", type=Path)
    arguments = parser.parse_args()
    limits = (
        json.loads(arguments.limits.read_text()) if arguments.limits else best_limits(arguments.threads, 8)
    )
    kernels = document(
        arguments.kernels,
        "bench_kernels",
        "--json",
        "--threads",
        arguments.threads,
        "--seconds",
        arguments.seconds,
    )
    if not arguments.limits:
        limits |= {key: max(value, limits[key]) for key, value in best_limits(arguments.threads, 8).items()}
    cases = [case for case in kernels["results"] if case["operations"] and case["bytes"]]
    families: dict[str, list] = {}
    for case in cases:
        families.setdefault(case["name"].split(" rows")[0], []).append(case)
    intensity = np.geomspace(0.3, 2e3)
    figure, axes = plt.subplots(figsize=(8, 5))
    read = limits["read_gb_per_second"]
    for key, label, style in (
        ("int8_gop_per_second", "bytes", "-"),
        ("f32_gflop_per_second", "float32", "--"),
    ):
        if limits.get(key):
            roof = np.minimum(intensity * read, limits[key])
            axes.plot(
                intensity,
                roof,
                style,
                color="0.4",
                label=f"limit, {label}: {limits[key]:.0f} Gop/s, {read:.0f} GB/s",
            )
    for name, members in families.items():
        x = [case["operations"] / case["bytes"] for case in members]
        y = [case["operations"] / case["median_s"] / 1e9 for case in members]
        axes.plot(x, y, "o", markersize=5, label=name)
        for case, at_x, at_y in zip(members, x, y, strict=True):
            rows = case["name"].split(" rows ")[1].split(" ")[0]
            axes.annotate(rows, (at_x, at_y), textcoords="offset points", xytext=(5, -9), fontsize=7)
    axes.set(
        xscale="log", yscale="log", xlabel="operations per byte read", ylabel="10⁹ operations per second"
    )
    axes.set_title(
        f"Kernels ({kernels['isa']}, {kernels['threads']} threads); numbers: rows of a step", fontsize=10
    )
    axes.grid(alpha=0.3, which="both", linewidth=0.4)
    axes.legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out)


if __name__ == "__main__":
    main()
