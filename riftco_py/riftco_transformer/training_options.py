"""Options that `riftco train` and `riftco finetune` share, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .training import TrainingOptions, step_count


class Attention(str, Enum):
    """How attention is computed for gradients, by name."""

    flash = "flash"
    materialized = "materialized"


class Schedule(str, Enum):
    """How the learning rate goes after the warm-up, by name."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


FINAL_RATE = 0.1
"""Of the learning rate, where linear and cosine end."""

StepsOption = Annotated[int | None, typer.Option(min=1, help="Updates in all.")]
EpochsOption = Annotated[
    float | None, typer.Option(min=0, help="Instead of --steps: how often to go over the data.")
]
BatchOption = Annotated[int, typer.Option(min=1, help="Rows of the data in an update.")]
MicroBatchOption = Annotated[
    int, typer.Option(min=0, help="Rows worked on at a time: fewer take less memory; 0: all.")
]
WarmupOption = Annotated[
    int | None, typer.Option(min=0, help="Steps over which the rate rises; default a tenth, at most 100.")
]
ScheduleOption = Annotated[
    Schedule,
    typer.Option(help=f"How the rate goes after that: linear and cosine end at {FINAL_RATE:g} of it."),
]
WeightDecayOption = Annotated[
    float, typer.Option(min=0, help="Decoupled; not on biases, norms and embeddings.")
]
ClipOption = Annotated[float, typer.Option(min=0, help="Largest norm of all gradients together; 0: any.")]
RecomputeOption = Annotated[
    bool, typer.Option("--recompute", help="Less memory, the same bits, a third more time.")
]
AttentionOption = Annotated[Attention, typer.Option(help="flash takes less memory.")]
TrainingSeedOption = Annotated[int, typer.Option(min=0, help="The same seed gives the same weights.")]
HeldOutOption = Annotated[
    list[Path] | None, typer.Option(metavar="DATA", help="Evaluate on this, not trained on; may be repeated.")
]
EvaluateEveryOption = Annotated[
    int, typer.Option(min=0, help="Steps between evaluations of --held-out; 0: only at the end.")
]
CheckpointOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Keep a checkpoint here, also when Ctrl-C ends it.")
]
CheckpointEveryOption = Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on from --checkpoint, as if the run had not stopped.")
]
MetricsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a line of JSON for each step here.")
]
PlotOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the loss here (.png, .svg, .pdf); needs matplotlib.")
]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON for each step on stdout, and one for the result.")
]


@dataclass(frozen=True)
class TrainingSettings:
    """The options of one run, under their names on the command line."""

    steps: int | None
    epochs: float | None
    batch: int
    micro_batch: int
    learning_rate: float
    warmup: int | None
    schedule: Schedule
    weight_decay: float
    clip: float
    recompute: bool
    attention: Attention
    seed: int
    evaluate_every: int
    checkpoint: Path | None
    checkpoint_every: int
    resume: bool

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise typer.BadParameter("it says the same as --steps; give one of them", param_hint="'--epochs'")
        if self.resume and self.checkpoint is None:
            raise typer.BadParameter("it needs --checkpoint", param_hint="'--resume'")

    def step_count(self, rows: int) -> int:
        """Updates in all over so many rows."""
        return step_count(self.steps, self.epochs, rows, self.batch)

    def options(self, rows: int) -> TrainingOptions:
        """As `train` takes them."""
        steps = self.step_count(rows)
        return {
            "steps": steps,
            "batch": self.batch,
            "micro_batch": self.micro_batch,
            "learning_rate": self.learning_rate,
            "warmup_steps": min(100, steps // 10) if self.warmup is None else self.warmup,
            "schedule": self.schedule.value,
            "final_rate": 0.0 if self.schedule is Schedule.constant else FINAL_RATE,
            "weight_decay": self.weight_decay,
            "maximum_gradient_norm": self.clip,
            "recompute": self.recompute,
            "attention": self.attention.value,
            "seed": self.seed,
            "evaluate_every": self.evaluate_every,
            "checkpoint": self.checkpoint,
            "checkpoint_every": self.checkpoint_every,
            "resume": self.resume,
        }
