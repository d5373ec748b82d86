"""The command `riftco bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from . import __version__
from .benchmark import Figure, cpu_isa, measure
from .command_options import (
    Compute,
    ComputeOption,
    ElementType,
    JsonOption,
    ModelArgument,
    ThreadsOption,
    TypeOption,
)
from .console import write_json
from .errors import CorruptDataError
from .pull import resolve

_DIGITS = 4  # of a figure


def bench(
    source: ModelArgument,
    threads: ThreadsOption = 0,
    element_type: TypeOption = ElementType.keep,
    compute: ComputeOption = Compute.exact,
    repeats: Annotated[int, typer.Option(min=1, help="Turns that count; one before them warms up.")] = 5,
    compare: Annotated[
        Path | None, typer.Option(metavar="OLD.json", help="Also show ratios to what --json printed before.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a model's speed and memory on this machine.

    Each figure is the median of several turns with its least and greatest value. Machines drift: compare with a plain read of
    the weights, taken in the same turns, or as ratios.
    """
    old = _read_figures(compare) if compare else {}
    figures = _measure_with_bar(resolve(source), threads, element_type.value, compute.value, repeats)
    document = {
        "version": __version__,
        "model": source,
        "threads": threads,
        "type": element_type.value,
        "compute": compute.value,
        "isa": cpu_isa(),
        "figures": {name: figure._asdict() for name, figure in figures.items()},
    }
    if as_json:
        ratios = {name: figure.median / old[name] for name, figure in figures.items() if old.get(name)}
        write_json({**document, **({"ratios": ratios} if compare else {})})
        return
    table = Table(title=f"{source}, kernels {document['isa']}", title_justify="left")
    for column in ("", "median", "least", "greatest", *(["to old"] if compare else [])):
        table.add_column(column, justify="left" if not column else "right")
    for name, figure in figures.items():
        ratio = [f"{figure.median / old[name]:.2f} x" if old.get(name) else ""] if compare else []
        table.add_row(name.replace("_", " "), *(f"{v:.{_DIGITS}g}" for v in figure), *ratio)
    Console().print(table)


def _measure_with_bar(
    path: Any, threads: int, element_type: str, compute: str, repeats: int
) -> dict[str, Figure]:
    console = Console(stderr=True)
    if not console.is_terminal:
        return measure(path, threads, element_type, compute, repeats)
    with Progress(console=console, transient=True) as bars:
        task = bars.add_task("Measuring", total=repeats + 1)
        return measure(
            path,
            threads,
            element_type,
            compute,
            repeats,
            lambda done, total: bars.update(task, completed=done, total=total),
        )


def _read_figures(path: Path) -> dict[str, float]:
    """Medians by name."""
    try:
        figures = json.loads(path.read_text())["figures"]
        return {str(name): float(figure["median"]) for name, figure in figures.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(f"{path}: not what `riftco bench --json` prints: {error!r}") from None
