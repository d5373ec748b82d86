"""This engine next to others on this machine: every row of every group in turns (A B A B ...), as ratios to the best of them.

python benchmarks/bench_peers.py [GROUP ...] [--threads N ...] [--repeats N] [--sides TEXT,TEXT] [--json] [--out FILE.json]

The first run installs the others into build-peers/ (llama.cpp is compiled for this processor; several gigabytes in all) and
makes their model files. Each side is a process that keeps its model; while one works the others are stopped (SIGSTOP), so that
no thread of theirs spins. A ratio is that of one turn; the tables give medians with the least and greatest. `best` is the
peer with the best median in this run. Every turn also measures a plain read of the weights and the machine's own limits
(bench_limits): shared machines drift by a factor of two.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from peers.environments import ROOT, python_of
from peers.models import model_file, pulled
from rich.console import Console
from rich.progress import Progress
from rich.table import Table


class Side(NamedTuple):
    engine: str
    """Its script is peers/side_ENGINE.py; its environment has the same name."""
    file: str
    """A name of peers/models.py, or "pulled"."""
    variant: str = ""


class Group(NamedTuple):
    sides: dict[str, Side]
    """By the name in the tables; "riftco" is what the others are compared with."""
    deep: int
    """Position of the row of decoding far into a context."""
    prefills: tuple[int, ...]
    batches: tuple[int, ...] = (8, 16)
    targets: Mapping[str, float] = MappingProxyType({})
    """Ratio to the best peer, by row."""


def _against_llama(file: str) -> Group:
    sides = {"riftco": Side("riftco", file), "llama.cpp": Side("llama", file)}
    return Group(sides, 0, (512,), (), {"decode": 1.5, "prefill 512": 1.5})


GROUPS = {
    "smollm2": Group(
        {
            "riftco": Side("riftco", "pulled"),
            "llama.cpp": Side("llama", "pulled"),
            "torch f32": Side("torch", "smollm2", "float32"),
            "ctranslate2 int8": Side("ctranslate2", "smollm2-ctranslate2-int8", "int8"),
            "openvino q4_1": Side("openvino", "pulled"),
            "openvino int8": Side("openvino", "smollm2-openvino-int8"),
            "onnxruntime int4": Side("onnxruntime", "smollm2-onnxruntime-int4"),
        },
        1900,
        (512,),
        targets={
            "decode": 1.7,
            "decode at 1900": 1.8,
            "prefill 512": 1.3,
            "8 sequences": 3.0,
            "16 sequences": 2.5,
        },
    ),
    "gpt2-f32": Group(
        {
            "riftco": Side("riftco", "gpt2-f32.gguf"),
            "llama.cpp": Side("llama", "gpt2-f32.gguf"),
            "torch": Side("torch", "gpt2", "float32"),
            "ctranslate2": Side("ctranslate2", "gpt2-ctranslate2-float32", "float32"),
            "openvino": Side("openvino", "gpt2-openvino-fp32", "INFERENCE_PRECISION_HINT=f32"),
        },
        980,
        (512, 1000),
        targets={"decode": 1.2, "decode at 980": 1.2, "prefill 512": 1.1, "prefill 1000": 1.1}
        | {"8 sequences": 1.3, "16 sequences": 1.3},
    ),
    "gpt2-8bit": Group(
        {
            "riftco": Side("riftco", "gpt2-q8_0.gguf"),
            "llama.cpp": Side("llama", "gpt2-q8_0.gguf"),
            "ctranslate2 int8": Side("ctranslate2", "gpt2-ctranslate2-int8", "int8"),
            "openvino int8": Side("openvino", "gpt2-openvino-int8"),
        },
        980,
        (512, 1000),
        targets={"decode": 1.4, "decode at 980": 1.4, "prefill 512": 1.3, "prefill 1000": 1.2}
        | {"8 sequences": 1.5, "16 sequences": 1.5},
    ),
    "gpt2-bf16": Group(  # its own float32 takes the peer's place
        {"riftco": Side("riftco", "gpt2-f32.gguf", "bf16"), "riftco f32": Side("riftco", "gpt2-f32.gguf")},
        0,
        (512,),
        (),
        targets={"decode": 1.7},
    ),
    "gpt2-compute-bf16": Group(  # its own exact way takes the peer's place
        {
            "riftco": Side("riftco", "gpt2-f32.gguf", "bf16 bf16"),
            "riftco exact": Side("riftco", "gpt2-f32.gguf", "bf16"),
        },
        0,
        (512,),
        (),
    ),
    **{f"smollm2-{kind}": _against_llama(f"smollm2-{kind}.gguf") for kind in ("q4_0", "q8_0", "q6_k")},
    **{f"llama-1b-{kind}": _against_llama(f"llama-1b-{kind}.gguf") for kind in ("q4_k", "q5_k", "q6_k")},
}

Turn = dict[str, float]
"""Tokens per second by the side's name."""


class Process:
    """A side that runs, stopped but for its turns."""

    def __init__(self, side: Side, threads: int):
        python = sys.executable if side.engine == "riftco" else python_of(side.engine)
        path = pulled() if side.file == "pulled" else model_file(side.file)
        script = Path(__file__).resolve().parent / "peers" / f"side_{side.engine}.py"
        command = [python, script, path, str(threads), side.variant]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (close closes it)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
        )
        try:
            self.loaded = self._answer()
        except BaseException:
            self.close()
            raise
        self._process.send_signal(signal.SIGSTOP)

    def order(self, **order: Any) -> dict[str, Any]:
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        try:
            return self._answer()
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            command = " ".join(map(str, self._process.args))
            raise SystemExit(f"{command}: ended without an answer:\n{self._errors.read()[-2000:]}")
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()


def rows_of(group: Group) -> dict[str, tuple[int, dict[str, Any]]]:
    """Tokens and the order of a turn, by row."""
    rows = {"decode": (128, {"work": "decode", "depth": 32, "count": 128, "batch": 1})}
    if group.deep:
        rows[f"decode at {group.deep}"] = (
            20,
            {"work": "decode", "depth": group.deep, "count": 20, "batch": 1},
        )
    for count in group.prefills:
        rows[f"prefill {count}"] = (count, {"work": "prefill", "count": count})
    for batch in group.batches:
        rows[f"{batch} sequences"] = (
            32 * batch,
            {"work": "decode", "depth": 32, "count": 32, "batch": batch},
        )
    return rows


def build_limits() -> None:
    command = ["ninja", "-C", ROOT / "build", "benchmarks/bench_limits"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def limits(threads: int) -> dict[str, float]:
    return json.loads(subprocess.check_output([ROOT / "build" / "benchmarks" / "bench_limits", str(threads)]))


def chosen(group: Group, texts: str | None) -> Group:
    if not texts:
        return group
    wanted = ["riftco", *texts.split(",")]
    sides = {name: side for name, side in group.sides.items() if any(text in name for text in wanted)}
    return group._replace(sides=sides)


def run_group(group: Group, threads: int, repeats: int, progress: Progress) -> dict[str, Any]:
    rows = rows_of(group)
    task = progress.add_task("", total=len(rows) * (repeats + 1) * len(group.sides))
    result: dict[str, Any] = {"sides": {}, "rows": {}, "limits": []}
    with ExitStack() as stack:
        processes: dict[str, Process] = {}
        for name, side in group.sides.items():
            progress.update(task, description=f"loading {name}")
            processes[name] = Process(side, threads)
            stack.callback(processes[name].close)
            result["sides"][name] = {**side._asdict(), **processes[name].loaded}
        for row, (tokens, order) in rows.items():
            turns: list[Turn] = []
            reads: list[float] = []
            for turn in range(repeats + 1):  # the first one warms up
                speeds: Turn = {}
                for name, process in processes.items():
                    progress.update(task, description=f"{row}, {name}", advance=1)
                    answer = process.order(**order)
                    speeds[name] = tokens / answer["seconds"]
                    if not turns and row == "decode":  # nothing has been done before that takes more memory
                        peak = answer["peak_bytes"] / 1e6
                        result["sides"][name] |= {
                            "peak_megabytes": peak,
                            "first_tokens": answer["tokens"][:12],
                        }
                if turn > 0:
                    turns.append(speeds)
                    read = processes["riftco"].order(work="read")
                    reads.append(read["bytes"] / read["seconds"] / 1e9)
                    result["weight_bytes"] = read["bytes"]
                    result["limits"].append(limits(threads))
            result["rows"][row] = {"turns": turns, "read_gb_per_second": reads}
    progress.remove_task(task)
    return result


def spread(values: list[float], digits: int = 3) -> str:
    median, *ends = statistics.median(values), min(values), max(values)

    def text(value: float) -> str:
        return f"{value:.0f}" if value >= 100 else f"{value:.{digits}g}"

    return f"{text(median)} ({text(ends[0])} to {text(ends[1])})"


def best_peer(turns: list[Turn]) -> str:
    return max(
        (name for name in turns[0] if name != "riftco"), key=lambda n: statistics.median(t[n] for t in turns)
    )


def show(name: str, group: Group, result: dict[str, Any], threads: int, console: Console) -> None:
    table = Table(title=f"{name}, {threads} threads: tokens per second", title_justify="left")
    table.add_column("")
    for side in group.sides:
        table.add_column(side, justify="right")
    for column in ("best peer", "ratio", "target"):
        table.add_column(column, justify="right")
    for row, values in result["rows"].items():
        turns = values["turns"]
        best = best_peer(turns)
        cells = [spread([turn[side] for turn in turns]) for side in group.sides]
        target = group.targets.get(row)
        ratio = spread([turn["riftco"] / turn[best] for turn in turns])
        table.add_row(row, *cells, best, ratio, f"{target:.1f}" if target else "")
    for label, key, digits in (("load, s", "load_seconds", 2), ("peak, MB", "peak_megabytes", 0)):
        numbers = {side: result["sides"][side][key] for side in group.sides}
        best = min((side for side in numbers if side != "riftco"), key=lambda side: numbers[side])
        cells = [f"{numbers[side]:.{digits}f}" for side in group.sides]
        table.add_row(label, *cells, best, f"{numbers['riftco'] / numbers[best]:.2f}", "")
    console.print(table)
    decode = result["rows"]["decode"]
    share = [
        turn["riftco"] * result["weight_bytes"] / 1e9 / read
        for turn, read in zip(decode["turns"], decode["read_gb_per_second"], strict=True)
    ]
    console.print(
        f"Weights {result['weight_bytes'] / 1e6:.1f} MB; decode is {spread(share)} of a plain read of them."
    )
    for key in ("read_gb_per_second", "f32_gflop_per_second", "int8_gop_per_second", "round_trip_ns"):
        values = [limit[key] for limit in result["limits"] if limit.get(key)]
        if values:
            console.print(f"  {key:24}{spread(values)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], default=[], help="default: all")
    every = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({every, 1}, reverse=True))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--sides", help="only sides whose names have one of these texts; riftco is always there"
    )
    parser.add_argument("--json", action="store_true", help="print one document instead of tables")
    parser.add_argument("--out", type=Path, help="also write the document here, after every group")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json, width=None if sys.stdout.isatty() else 240)
    build_limits()
    results: list[dict[str, Any]] = []
    for threads in arguments.threads:
        for name in arguments.groups or GROUPS:
            group = chosen(GROUPS[name], arguments.sides)
            start = time.perf_counter()
            with Progress(console=Console(stderr=True), transient=True) as progress:
                result = run_group(group, threads, arguments.repeats, progress)
            results.append({"group": name, "threads": threads, **result})
            show(name, group, result, threads, console)
            console.print(f"({time.perf_counter() - start:.0f} s)\n")
            if arguments.out:
                arguments.out.parent.mkdir(parents=True, exist_ok=True)
                arguments.out.write_text(json.dumps(results, indent=1))
    if arguments.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
