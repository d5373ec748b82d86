"""A picture of how the loss went; needs matplotlib, which the extra [plot] installs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .errors import InvalidStateError
from .training import StepRecord


def figure_class() -> Any:
    """matplotlib's; `InvalidStateError` says how to install it where it is not."""
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise InvalidStateError(
            "a plot needs matplotlib; install it with: pip install 'riftco-transformer[plot]'"
        ) from None
    return Figure


def plot_loss(history: Sequence[StepRecord], path: str | os.PathLike[str]) -> None:
    """Draws the loss of each step, and of the held-out data where it was evaluated, into a file of the kind that its
    suffix names (.png, .svg, .pdf)."""
    figure = figure_class()(figsize=(8, 4.5), layout="constrained")
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
