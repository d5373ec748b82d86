"""One model's trainer and evaluation: token arrays in, numbers out."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from ._native import (
    FloatArray,
    Handle,
    Path,
    Text,
    TokenArray,
    check,
    choice,
    create,
    ffi,
    flag,
    float_output,
    float_pointer,
    instance,
    integer,
    lib,
    options,
    output,
    path_bytes,
    real,
    text_bytes,
    token_matrix,
    token_pointer,
)
from .cancel import CancelFlag, interruptible
from .errors import InvalidArgumentError, OutOfRangeError
from .model import Model

if TYPE_CHECKING:
    from typing_extensions import Unpack

NO_TARGET: int = ffi.integer_const("RT_NO_TARGET")
"""Of a position that does not count: a prompt's, padding."""
ATTENTIONS: dict[str, int] = {
    name: getattr(lib, f"RT_ATTENTION_{name.upper()}") for name in ("flash", "materialized", "serving")
}
SCHEDULES: dict[str, int] = {
    name: getattr(lib, f"RT_SCHEDULE_{name.upper()}") for name in ("constant", "linear", "cosine")
}
TokenMatrix = npt.NDArray[np.integer[Any]]
"""[B, T]: B sequences of T tokens."""


class TrainerOptions(TypedDict, total=False):
    """What a `Trainer` takes beside the model. The optimizer is AdamW (Loshchilov and Hutter 2019)."""

    learning_rate: float
    """After the warm-up. Default 3e-4."""
    beta1: float
    """Decay of the gradients' mean a step. Default 0.9."""
    beta2: float
    """Decay of their squares' mean a step. Default 0.999."""
    epsilon: float
    """Added to the root of the squares' mean. Default 1e-8."""
    weight_decay: float
    """Decoupled, times the rate of the step; not on biases, norms and embeddings. Default 0.01."""
    maximum_gradient_norm: float
    """Gradients are scaled down to this norm of all together; 0: never. Default 1."""
    schedule: str
    """Of the rate after the warm-up: "constant" (default), "linear" or "cosine"."""
    warmup_steps: int
    """The rate rises linearly over these. Default 0."""
    total_steps: int
    """Where linear and cosine reach final_rate."""
    final_rate: float
    """As a share of learning_rate. Default 0."""
    attention: str
    """"flash" (default: keeps row statistics) or "materialized" (keeps [B, heads, T, T] probabilities)."""
    micro_batch: int
    """Sequences worked on at a time, while gradients add up: less memory. 0, the default: all."""
    recompute: bool
    """Keep only what enters a block and compute its inside again: less memory, the same bits, a third more time."""


class TrainingMetrics(NamedTuple):
    """One update."""

    step: int
    """Updates made, this one included."""
    loss: float
    """Mean cross-entropy over the counted targets before the update, nats."""
    gradient_norm: float
    """Of all gradients together, before clipping."""
    learning_rate: float
    target_count: int
    """Targets that counted."""


class Evaluation(NamedTuple):
    """How well a model predicts."""

    loss: float
    """Mean cross-entropy over the counted targets, nats."""
    target_count: int

    @property
    def perplexity(self) -> float:
        """exp(loss): the number of equally likely tokens that would be as hard to tell; inf where it is too large."""
        return math.exp(self.loss) if self.loss < 709 else math.inf


class TrainerInfo(NamedTuple):
    """What a trainer did and takes."""

    step: int
    """Updates made."""
    trained_count: int
    """Elements of the trained parameters."""
    optimizer_bytes: int
    """Gradients and moments."""
    activation_bytes: int
    """Kept and scratch memory, of the largest batch so far."""


def _batch(tokens: object, targets: object, cancel: CancelFlag) -> tuple[Any, tuple[TokenArray, TokenArray]]:
    """The struct, and the arrays that it points into."""
    arrays = token_matrix(tokens), token_matrix(targets)
    if arrays[0].shape != arrays[1].shape:
        raise InvalidArgumentError(
            f"tokens have the shape {arrays[0].shape}, their targets {arrays[1].shape}"
        )
    batch = output("rt_training_batch")
    batch.tokens, batch.targets = map(token_pointer, arrays)
    batch.sequences, batch.length = arrays[0].shape
    batch.cancel = cancel._pointer()
    return batch, arrays


def evaluate(
    model: Model,
    tokens: TokenMatrix,
    targets: TokenMatrix,
    attention: str = "serving",
    *,
    cancel: CancelFlag | None = None,
) -> Evaluation:
    """Mean cross-entropy of what a model predicts after each of tokens [B, T] against targets [B, T], where
    `NO_TARGET` does not count.

    attention: "serving" computes as generation does (int8 activations on quantised weights), "flash" and
    "materialized" as training. Changes nothing.
    """
    native, kind = instance(model, "model", Model)._pointer(), choice(attention, "attention", ATTENTIONS)
    flag_ = CancelFlag() if cancel is None else instance(cancel, "cancel", CancelFlag)
    batch, kept = _batch(tokens, targets, flag_)
    loss, count = ffi.new("double *"), ffi.new("uint64_t *")
    interruptible(lambda: check(lib.rt_model_evaluate(native, batch, kind, loss, count)), flag_)
    del kept
    return Evaluation(loss[0], count[0])


class Trainer(Handle):
    """Trains a model's adapters where it has some, else all its parameters, in place: what is made from the model
    after a step sees it. Safe from any thread: calls on one trainer wait for each other.

    While decode sessions of the model are alive, `step` and `load` raise `InvalidStateError`. The trainer keeps what
    it needs of the model alive.
    """

    __slots__ = ("_lock", "_shapes")
    _kind = "trainer"
    _release = "rt_trainer_release"

    def __init__(self, model: Model, **options: Unpack[TrainerOptions]) -> None:
        """Makes float16 and bfloat16 matrices float32 where all parameters are trained. `UnsupportedError` for
        quantised matrices without adapters: attach adapters, or convert the model to a float type."""
        native, settings = instance(model, "model", Model)._pointer(), _native_options(options)
        super().__init__(interruptible(lambda: create(lib.rt_trainer_create, "rt_trainer", native, settings)))
        self._shapes = {name: info.shape for name, info in model.parameters.info.items()}
        self._lock = threading.RLock()

    def step(
        self, tokens: TokenMatrix, targets: TokenMatrix, *, cancel: CancelFlag | None = None
    ) -> TrainingMetrics:
        """One update from integers [B, T]: after each of tokens the model is to predict the one of targets;
        `NO_TARGET` does not count. All or nothing, also when Ctrl-C or `cancel` ends it.

        `NonFiniteError`: the loss or a gradient is not finite. `InvalidStateError`: sessions are alive, or
        adapters were attached, detached or merged since the trainer was made.
        """
        flag_ = CancelFlag() if cancel is None else instance(cancel, "cancel", CancelFlag)
        batch, kept = _batch(tokens, targets, flag_)
        metrics = output("rt_training_metrics")

        def call() -> None:
            with self._lock:
                check(lib.rt_trainer_step(self._pointer(), batch, metrics))

        interruptible(call, flag_)
        del kept
        return TrainingMetrics(
            metrics.step, metrics.loss, metrics.gradient_norm, metrics.learning_rate, metrics.target_count
        )

    def gradient(self, name: str) -> FloatArray:
        """The gradient of a trained parameter in the last step, before clipping: float32 of its shape.
        `InvalidStateError` before the first step."""
        if name not in self._shapes:
            raise OutOfRangeError(f"there is no parameter {name!r}")
        values = float_output(None, self._shapes[name])
        key, required = name.encode(), ffi.new("uint64_t *")
        with self._lock:
            check(
                lib.rt_trainer_read_gradient(
                    self._pointer(), key, len(key), float_pointer(values), values.size, required
                )
            )
        return values

    @property
    def info(self) -> TrainerInfo:
        """Updates made, and memory."""
        struct = output("rt_trainer_info")
        with self._lock:
            check(lib.rt_trainer_get_info(self._pointer(), struct))
        return TrainerInfo(*(getattr(struct, name) for name in TrainerInfo._fields))

    def save(self, path: Path, state: Text = "") -> None:
        """Writes a checkpoint, complete or not at all: what is trained, both moments, the step, and `state`, a text
        of the caller's (`checkpoint_state` gives it back)."""
        name, text, cancel = path_bytes(path), text_bytes(state, "state"), CancelFlag()

        def call() -> None:
            with self._lock:
                check(
                    lib.rt_trainer_save(self._pointer(), name, len(name), text, len(text), cancel._pointer())
                )

        interruptible(call, cancel)

    def load(self, path: Path) -> None:
        """Goes on from a checkpoint of a trainer of the same parameters: the steps after it give the bits of a run
        that was not stopped. The options are this trainer's."""
        name, cancel = path_bytes(path), CancelFlag()

        def call() -> None:
            with self._lock:
                check(lib.rt_trainer_load(self._pointer(), name, len(name), cancel._pointer()))

        interruptible(call, cancel)


def checkpoint_state(path: Path) -> str:
    """The text that `Trainer.save` was given."""
    name, required = path_bytes(path), ffi.new("uint64_t *")
    check(lib.rt_checkpoint_state(name, len(name), ffi.NULL, 0, required))
    text = ffi.new("char[]", required[0] + 1)
    check(lib.rt_checkpoint_state(name, len(name), text, required[0], required))
    return bytes(ffi.buffer(text, required[0])).decode("utf-8")


def _native_options(given: TrainerOptions) -> Any:
    if unknown := given.keys() - TrainerOptions.__annotations__.keys():
        raise TypeError(f"there is no option {min(unknown)!r}")
    settings = options("rt_trainer_options")
    for name in given:
        value = given[name]  # type: ignore[literal-required]
        if name == "schedule":
            settings.schedule = choice(value, name, SCHEDULES)
        elif name == "attention":
            settings.attention = choice(value, name, ATTENTIONS)
        elif name == "recompute":
            settings.recompute = flag(value, name)
        elif name in ("warmup_steps", "total_steps", "micro_batch"):
            setattr(settings, name, integer(value, name))
        else:
            setattr(settings, name, real(value, name))
    return settings
