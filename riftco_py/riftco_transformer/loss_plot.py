"""A picture of how the loss went; needs matplotlib, which the extra [plot] installs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .errors import InvalidArgumentError, InvalidStateError
from .training import StepRecord


def check_plot(path: str | os.PathLike[str]) -> Any:
    """A figure for such a file. `InvalidStateError` says how to install matplotlib where it is not,
    `InvalidArgumentError` names a suffix that it does not write."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise InvalidStateError(
            "a plot needs matplotlib; install it with: pip install 'riftco-transformer[plot]'"
        ) from None
    figure: Any = Figure(figsize=(8, 4.5), layout="constrained")
    kinds = figure.canvas.get_supported_filetypes()
    if os.path.splitext(path)[1].removeprefix(".") not in kinds:
        raise InvalidArgumentError(f"{os.fspath(path)}: a plot is one of {', '.join(sorted(kinds))}")
    return figure


def plot_loss(history: Sequence[StepRecord], path: str | os.PathLike[str]) -> None:
    """Draws the loss of each step, and of the held-out data where it was evaluated, into a file of the kind that its
    suffix names (.png, .svg, .pdf)."""
    figure = check_plot(path)
    axes = figure.add_subplot()
    axes.plot(
        [one["step"] for one in history], [one["loss"] for one in history], linewidth=1, label="training"
    )
    held_out = [one for one in history if "held_out_loss" in one]
    if held_out:
        steps, losses = [one["step"] for one in held_out], [one["held_out_loss"] for one in held_out]
        axes.plot(steps, losses, marker="o", label="held out")
        axes.legend()
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a token)")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
