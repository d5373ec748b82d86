"""How a training is told while it runs: a bar on a terminal, lines of JSON for programs, some lines for logs."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .console import note, write_json
from .training import StepRecord


class TrainingView:
    """Takes each step of a training, as its `on_step`."""

    def __init__(self, steps: int, *, as_json: bool, metrics: Path | None, append: bool) -> None:
        """steps: in all. metrics: a file for lines of JSON, after those that are there with `append`."""
        self._steps, self._as_json = steps, as_json
        self._stack = ExitStack()
        self._file = self._stack.enter_context(metrics.open("a" if append else "w")) if metrics else None
        console = Console(stderr=True)
        self._bar = None
        if console.is_terminal:
            columns = (
                TextColumn("Training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[told]}"),
                TimeRemainingColumn(),
            )
            self._bar = self._stack.enter_context(Progress(*columns, console=console, transient=True))
            self._task = self._bar.add_task("", total=steps, told="")

    def __call__(self, record: StepRecord) -> None:
        """One step."""
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        if self._as_json:
            write_json(record)
        if self._bar is not None:
            told = f"loss {record['loss']:.3f}, {record['tokens_per_second']:,.0f} tok/s"
            self._bar.update(self._task, completed=record["step"], told=told)
        elif not self._as_json and (
            record["step"] % max(1, self._steps // 20) == 0 or "held_out_loss" in record
        ):
            note(_line(record, self._steps))

    def __enter__(self) -> TrainingView:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _line(record: StepRecord, steps: int) -> str:
    held_out = f", held out {record['held_out_loss']:.4f}" if "held_out_loss" in record else ""
    return (
        f"step {record['step']}/{steps}: loss {record['loss']:.4f}{held_out}, "
        f"{record['tokens_per_second']:,.0f} tok/s"
    )
