"""Training: a model learns from texts (`pretrain`) or from examples (`post_train`), whole or through adapters.

from riftco_transformer.training import Trainer, encode_documents, pretrain, read_documents

tokens = encode_documents(read_documents(["corpus.txt"]), tokenizer)
pretrain(model, tokens, length=128, batch=8, steps=100, learning_rate=1e-3)
model.save("base.rift", stage="pretrained")
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from ._native import Path, Tokens, choice, instance, integer, path_bytes, real
from .errors import CorruptDataError, InvalidArgumentError
from .model import Model
from .trainer import (
    ATTENTIONS,
    NO_TARGET,
    Evaluation,
    Trainer,
    TrainerInfo,
    TrainerOptions,
    TrainingMetrics,
    checkpoint_state,
    evaluate,
)
from .training_data import (
    Batch,
    DataSet,
    Example,
    ExampleReader,
    Examples,
    TokenWindows,
    encode_documents,
    read_documents,
    read_records,
    rows_at,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "NO_TARGET",
    "Batch",
    "DataSet",
    "Evaluation",
    "Example",
    "ExampleReader",
    "Examples",
    "StepRecord",
    "TokenWindows",
    "Trainer",
    "TrainerInfo",
    "TrainerOptions",
    "TrainingMetrics",
    "TrainingOptions",
    "TrainingResult",
    "checkpoint_state",
    "encode_documents",
    "evaluate",
    "evaluate_data",
    "post_train",
    "pretrain",
    "read_documents",
    "read_records",
    "rows_at",
    "train",
]


class StepRecord(TypedDict, total=False):
    """What is told about a step: a line of JSON where metrics are written to a file."""

    step: int
    """Updates made, this one included."""
    loss: float
    """Mean cross-entropy over the counted targets before the update, nats."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    target_count: int
    seconds: float
    """That the update took."""
    tokens_per_second: float
    """Positions of the batch, padding included, over these seconds."""
    held_out_loss: float
    """After the update, where it was evaluated."""
    held_out_perplexity: float


class TrainingOptions(TrainerOptions, total=False):
    """What `pretrain`, `post_train` and `train` take, beside the options of a `Trainer`."""

    batch: int
    """Rows of the data in an update. Default 8."""
    steps: int
    """Updates in all, those before a checkpoint included."""
    epochs: float
    """Instead of steps: how often to go over the data. Default 1."""
    seed: int
    """Of the order of the rows. Default 0."""
    held_out: DataSet | None
    """Evaluated every `evaluate_every` steps, and at the end."""
    evaluate_every: int
    """0, the default: at the end only."""
    checkpoint: Path | None
    """A file, replaced whole every `checkpoint_every` steps, at the end, and when Ctrl-C ends the training."""
    checkpoint_every: int
    """Default 100."""
    resume: bool
    """Go on from the checkpoint: with the bits of a run that was not stopped."""
    on_step: Callable[[StepRecord], object] | None
    """Called after each step. What it raises ends the training."""


@dataclass(frozen=True)
class TrainingResult:
    """A training that came to its end."""

    steps: int
    """Updates in all."""
    history: list[StepRecord]
    """Of the steps of this run."""
    seconds: float


def pretrain(
    model: Model, tokens: Tokens, *, length: int = 0, **options: Unpack[TrainingOptions]
) -> TrainingResult:
    """Teaches a model to go on with a text: tokens [N], in rows of `length` (0: the model's maximum context).

    A new model (`Model.create`) learns a language, a trained one goes on.
    """
    length = integer(length, "length") or instance(model, "model", Model).config.maximum_context
    return train(model, TokenWindows(tokens, length), **options)


def post_train(
    model: Model, examples: Iterable[Example], **options: Unpack[TrainingOptions]
) -> TrainingResult:
    """Teaches a model to answer: only the tokens that count in an example are learnt. Trains the adapters where the
    model has some."""
    return train(model, Examples(examples), **options)


def evaluate_data(
    model: Model,
    data: DataSet,
    *,
    batch: int = 8,
    attention: str = "serving",
    progress: Callable[[int, int], object] | None = None,
) -> Evaluation:
    """`evaluate` over all rows of a data set, in batches. progress: called with the rows done and in all."""
    count, size = _at_least_1(batch, "batch"), len(data)
    choice(attention, "attention", ATTENTIONS)
    total, targets = 0.0, 0
    for begin in range(0, size, count):
        end = min(begin + count, size)
        part = evaluate(model, *data.batch(np.arange(begin, end)), attention)
        total += part.loss * part.target_count
        targets += part.target_count
        if progress is not None:
            progress(end, size)
    return Evaluation(total / targets, targets)


def train(model: Model, data: DataSet, **options: Unpack[TrainingOptions]) -> TrainingResult:
    """Trains on rows of a data set, in an order drawn anew for each pass over them (`rows_at`). With a schedule that
    falls, the rate reaches its end with the last step.

    Ctrl-C ends it between two updates, with a checkpoint where one was asked for.
    """
    trainer_options: Any = {
        name: options.pop(name)  # type: ignore[misc]
        for name in TrainerOptions.__annotations__
        if name in options
    }
    return _Training(model, data, trainer_options, **options).run()  # type: ignore[misc]


class _Training:
    """A run over a data set."""

    def __init__(
        self,
        model: Model,
        data: DataSet,
        trainer_options: TrainerOptions,
        *,
        batch: int = 8,
        steps: int | None = None,
        epochs: float | None = None,
        seed: int = 0,
        held_out: DataSet | None = None,
        evaluate_every: int = 0,
        checkpoint: Path | None = None,
        checkpoint_every: int = 100,
        resume: bool = False,
        on_step: Callable[[StepRecord], object] | None = None,
    ) -> None:
        self._model, self._data, self._trainer_options = model, data, trainer_options
        self._batch = _at_least_1(batch, "batch")
        self._steps = step_count(steps, epochs, len(data), self._batch)
        if trainer_options.get("schedule", "constant") != "constant":
            trainer_options.setdefault("total_steps", max(1, self._steps))
        self._seed = integer(seed, "seed")
        self._held_out = held_out
        self._evaluate_every = integer(evaluate_every, "evaluate_every")
        self._checkpoint = None if checkpoint is None else path_bytes(checkpoint)
        self._checkpoint_every = _at_least_1(checkpoint_every, "checkpoint_every")
        if resume and checkpoint is None:
            raise InvalidArgumentError("resume needs the path of a checkpoint")
        self._resume = resume
        self._on_step = on_step
        self._digest = data.digest() if checkpoint is not None else ""
        self._position = 0  # rows that the model has seen
        self._history: list[StepRecord] = []

    def run(self) -> TrainingResult:
        begin = time.perf_counter()
        with Trainer(self._model, **self._trainer_options) as trainer:
            done = self._load(trainer) if self._resume else 0
            saved = done
            try:
                while done < self._steps:
                    record = self._step(trainer)
                    done = record["step"]
                    if done % self._checkpoint_every == 0 or done == self._steps:
                        self._save(trainer)
                        saved = done
                    self._tell(record)
            except KeyboardInterrupt:
                if trainer.info.step > saved:
                    self._save(trainer)
                raise
        return TrainingResult(done, self._history, time.perf_counter() - begin)

    def _step(self, trainer: Trainer) -> StepRecord:
        rows = rows_at(self._position, self._batch, len(self._data), self._seed)
        batch = self._data.batch(rows)
        begin = time.perf_counter()
        metrics = trainer.step(*batch)
        seconds = time.perf_counter() - begin
        self._position += self._batch
        return {
            "step": metrics.step,
            "loss": metrics.loss,
            "gradient_norm": metrics.gradient_norm,
            "learning_rate": metrics.learning_rate,
            "target_count": metrics.target_count,
            "seconds": seconds,
            "tokens_per_second": batch.tokens.size / seconds,
        }

    def _tell(self, record: StepRecord) -> None:
        last = record["step"] == self._steps
        if self._held_out is not None and (last or _is_due(record["step"], self._evaluate_every)):
            found = evaluate_data(self._model, self._held_out, batch=self._batch)
            record["held_out_loss"], record["held_out_perplexity"] = found.loss, found.perplexity
        self._history.append(record)
        if self._on_step is not None:
            self._on_step(record)

    def _save(self, trainer: Trainer) -> None:
        if self._checkpoint is not None:
            state = {"position": self._position, "seed": self._seed, "data": self._digest}
            trainer.save(self._checkpoint, json.dumps(state))

    def _load(self, trainer: Trainer) -> int:
        """Updates before the checkpoint."""
        assert self._checkpoint is not None
        path = self._checkpoint.decode("utf-8", "replace")
        try:
            state = json.loads(checkpoint_state(self._checkpoint))
            position, seed, data = integer(state["position"], "position"), state["seed"], state["data"]
        except (ValueError, TypeError, KeyError):
            raise CorruptDataError(f"{path}: its state is not that of a training of this kind") from None
        if seed != self._seed:
            raise InvalidArgumentError(f"{path} was made with the seed {seed}, not {self._seed}")
        if data != self._digest:
            raise InvalidArgumentError(f"{path} was made with other data, or with rows of another length")
        trainer.load(self._checkpoint)
        self._position = position
        return trainer.info.step


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _at_least_1(value: object, name: str) -> int:
    number = integer(value, name)
    if number == 0:
        raise InvalidArgumentError(f"{name} must be at least 1")
    return number


def step_count(steps: int | None, epochs: float | None, size: int, batch: int) -> int:
    if steps is not None:
        if epochs is not None:
            raise InvalidArgumentError("steps and epochs say the same; give one of them")
        return integer(steps, "steps")
    passes = real(1 if epochs is None else epochs, "epochs")
    if not 0 <= passes < math.inf:
        raise InvalidArgumentError(f"epochs must be a number from 0 on, not {passes}")
    return math.ceil(passes * size / batch)
