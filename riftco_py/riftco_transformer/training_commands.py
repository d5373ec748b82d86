"""The commands `riftco train`, `riftco finetune` and `riftco evaluate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from . import training_options as given
from .artifacts import ModelBundle
from .command_options import AdapterOption, JsonOption, ModelArgument, ThreadsOption
from .console import note, write, write_json
from .errors import InvalidArgumentError, UnsupportedError
from .library import complete_model
from .loss_plot import check_plot, plot_loss
from .model import Model, ModelConfig
from .progress_view import progress_bar
from .pull import resolve
from .tokenizer import Tokenizer
from .training import (
    DataSet,
    ExampleReader,
    Examples,
    TokenWindows,
    TrainingResult,
    encode_documents,
    evaluate_data,
    read_documents,
    read_records,
)
from .training import train as train_on
from .training_view import TrainingView

END_OF_TEXT = "<|endoftext|>"
LONGEST_ROW = 512
"""Tokens of a row of text where --length does not say it: attention costs its square."""


class Method(str, Enum):
    """What a fine-tuning trains, by name."""

    lora = "lora"
    full = "full"


class EvaluationAttention(str, Enum):
    """How an evaluation computes, by name."""

    serving = "serving"
    flash = "flash"
    materialized = "materialized"


OutOption = Annotated[
    Path, typer.Option(metavar="FILE", help="The .rift file to write; riftco convert makes others.")
]
LengthOption = Annotated[
    int | None,
    typer.Option(min=1, help=f"Tokens of a row; default the model's context, at most {LONGEST_ROW}."),
]
SkipLongOption = Annotated[
    bool, typer.Option("--skip-long", help="Leave out examples that are longer than --length.")
]


def train(
    corpus: Annotated[
        list[Path],
        typer.Argument(metavar="CORPUS...", help='Text files, folders of them, or .jsonl with {"text": …}.'),
    ],
    out: OutOption,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Go on with this one.", autocompletion=complete_model),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Of the new model: a file or folder with one, or 'bytes'."),
    ] = None,
    vocabulary_size: Annotated[
        int | None, typer.Option(min=257, help="Of the tokenizer learnt from the corpus; default 4096.")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Of the new model; default 4.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Of the new model; default 256.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Of the new model; default 4.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Of the new model; default 256.")] = None,
    length: LengthOption = None,
    steps: given.StepsOption = None,
    epochs: given.EpochsOption = None,
    batch: given.BatchOption = 8,
    micro_batch: given.MicroBatchOption = 0,
    learning_rate: Annotated[float, typer.Option(min=0, help="After the warm-up.")] = 1e-3,
    warmup: given.WarmupOption = None,
    schedule: given.ScheduleOption = given.Schedule.cosine,
    weight_decay: given.WeightDecayOption = 0.01,
    clip: given.ClipOption = 1.0,
    recompute: given.RecomputeOption = False,
    attention: given.AttentionOption = given.Attention.flash,
    seed: given.TrainingSeedOption = 0,
    held_out: given.HeldOutOption = None,
    evaluate_every: given.EvaluateEveryOption = 0,
    checkpoint: given.CheckpointOption = None,
    checkpoint_every: given.CheckpointEveryOption = 100,
    resume: given.ResumeOption = False,
    metrics: given.MetricsOption = None,
    plot: given.PlotOption = None,
    threads: ThreadsOption = 0,
    as_json: given.JsonLinesOption = False,
) -> None:
    """Make a model that goes on with text as a corpus does, or teach one more. 1000 steps unless told."""
    settings = given.TrainingSettings(
        steps=1000 if steps is None and epochs is None else steps, epochs=epochs, batch=batch,
        micro_batch=micro_batch, learning_rate=learning_rate, warmup=warmup, schedule=schedule,
        weight_decay=weight_decay, clip=clip, recompute=recompute, attention=attention, seed=seed,
        evaluate_every=evaluate_every, checkpoint=checkpoint, checkpoint_every=checkpoint_every, resume=resume,
    )  # fmt: skip
    geometry = {"layers": layers, "width": width, "heads": heads, "context": context}
    new = {**geometry, "tokenizer": tokenizer, "vocabulary-size": vocabulary_size}
    if model is not None and (named := [name for name, value in new.items() if value is not None]):
        raise typer.BadParameter("it is of a new model, not of --model's", param_hint=f"'--{named[0]}'")
    _check_outputs(settings, out, plot)
    documents = list(read_documents(corpus))
    if model is None:
        text = _tokenizer(tokenizer, vocabulary_size or 4096, documents)
        learner = Model.create(_config(text, geometry), seed, tokenizer=text, threads=threads)
    else:
        learner = _load(model, threads)
        text = learner.tokenizer()
    row = length or min(learner.config.maximum_context, LONGEST_ROW)
    with Console(stderr=True).status("Encoding"):
        data = TokenWindows(encode_documents(documents, text), row)
    del documents
    result = _run(learner, data, settings, held_out, row, metrics, plot, as_json)
    learner.save(os.fsencode(out), stage="pretrained", parent="" if model is None else _parent(model))
    _tell(result, {"path": str(out)}, as_json)


def finetune(
    model: ModelArgument,
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA...", help='Lines of {"prompt": …, "response": …} or {"messages": […]}.'),
    ],
    method: Annotated[Method, typer.Option(help="Train adapters, or all parameters.")] = Method.lora,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The .rift file to write, adapters merged.")
    ] = None,
    adapter_out: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Write the adapters alone: a folder (PEFT's), or .safetensors."),
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Of the adapters.")] = 8,
    alpha: Annotated[float, typer.Option(help="Adapters count alpha / rank times.")] = 16.0,
    targets: Annotated[
        str, typer.Option(help="Matrices with adapters, of q, k, v, o, up, gate, down, head.")
    ] = "q,v",
    length: Annotated[
        int | None, typer.Option(min=2, help="Tokens that an example may have; default the model's context.")
    ] = None,
    skip_long: SkipLongOption = False,
    steps: given.StepsOption = None,
    epochs: given.EpochsOption = None,
    batch: given.BatchOption = 8,
    micro_batch: given.MicroBatchOption = 0,
    learning_rate: Annotated[
        float | None, typer.Option(min=0, help="After the warm-up; default 5e-4, with --method full 5e-5.")
    ] = None,
    warmup: given.WarmupOption = None,
    schedule: given.ScheduleOption = given.Schedule.cosine,
    weight_decay: given.WeightDecayOption = 0.01,
    clip: given.ClipOption = 1.0,
    recompute: given.RecomputeOption = False,
    attention: given.AttentionOption = given.Attention.flash,
    seed: given.TrainingSeedOption = 0,
    held_out: given.HeldOutOption = None,
    evaluate_every: given.EvaluateEveryOption = 0,
    checkpoint: given.CheckpointOption = None,
    checkpoint_every: given.CheckpointEveryOption = 100,
    resume: given.ResumeOption = False,
    metrics: given.MetricsOption = None,
    plot: given.PlotOption = None,
    threads: ThreadsOption = 0,
    as_json: given.JsonLinesOption = False,
) -> None:
    """Teach a model to answer: low-rank adapters (LoRA), or all its parameters. 3 epochs unless told.

    Only responses count, and the assistant's messages. A quantised model is trained through adapters, which
    --adapter-out writes and --adapter of generate, chat and evaluate reads.
    """
    lora = method is Method.lora
    rate = (5e-4 if lora else 5e-5) if learning_rate is None else learning_rate
    settings = given.TrainingSettings(
        steps=steps, epochs=3.0 if steps is None and epochs is None else epochs, batch=batch,
        micro_batch=micro_batch, learning_rate=rate, warmup=warmup,
        schedule=schedule, weight_decay=weight_decay, clip=clip, recompute=recompute, attention=attention,
        seed=seed, evaluate_every=evaluate_every, checkpoint=checkpoint, checkpoint_every=checkpoint_every,
        resume=resume,
    )  # fmt: skip
    if out is None and adapter_out is None:
        raise typer.BadParameter("one of the two is needed", param_hint="'--out' or '--adapter-out'")
    if adapter_out is not None and not lora:
        raise typer.BadParameter("only --method lora makes adapters", param_hint="'--adapter-out'")
    _check_outputs(settings, out, plot, adapter_out)
    learner = _load(model, threads)
    if lora:
        learner.attach_lora(rank=rank, alpha=alpha, targets=targets.split(","), seed=seed)
        _check_adapters(learner, out, adapter_out)
    limit = length or learner.config.maximum_context
    examples = _examples(data, learner.tokenizer(), limit, skip_long)
    result = _run(learner, examples, settings, held_out, limit, metrics, plot, as_json)
    if adapter_out is not None:
        learner.save_lora(os.fsencode(adapter_out))
    if out is not None:
        if lora:
            learner.merge_lora()
        learner.save(os.fsencode(out), stage="post_trained", parent=_parent(model))
    paths = {
        "path": None if out is None else str(out),
        "adapter": None if adapter_out is None else str(adapter_out),
    }
    _tell(result, {name: path for name, path in paths.items() if path is not None}, as_json)


def evaluate(
    model: ModelArgument,
    data: Annotated[
        list[Path], typer.Argument(metavar="DATA...", help="What train or finetune take: texts, or examples.")
    ],
    adapter: AdapterOption = None,
    length: LengthOption = None,
    skip_long: SkipLongOption = False,
    batch: given.BatchOption = 8,
    attention: Annotated[
        EvaluationAttention, typer.Option(help="serving: as generate computes; others: as train.")
    ] = EvaluationAttention.serving,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Print how well a model predicts: the mean loss of a token in nats, and its perplexity."""
    predictor = _load(model, threads, adapter)
    rows = _data_set(data, predictor, length, skip_long)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Evaluating", total=len(rows))
        found = evaluate_data(
            predictor, rows, batch=batch, attention=attention.value,
            progress=lambda done, total: bar.update(task, completed=done),
        )  # fmt: skip
    if as_json:
        write_json({**found._asdict(), "perplexity": found.perplexity})
    else:
        write(f"loss {found.loss:.4f}, perplexity {found.perplexity:.4g}, {found.target_count} targets\n")


# --- what goes in ---


def _load(model: str, threads: int, adapter: str | None = None) -> Model:
    with progress_bar("Reading") as progress:
        loaded = Model.load(resolve(model), threads=threads, progress=progress)
    if adapter is not None:
        loaded.load_lora(os.fsencode(adapter))
    return loaded


def _tokenizer(name: str | None, vocabulary_size: int, documents: Sequence[str]) -> Tokenizer:
    if name is not None:
        return Tokenizer.byte() if name == "bytes" else Tokenizer.load(os.fsencode(name))
    with progress_bar("Learning tokens") as progress:
        return Tokenizer.train(
            documents,
            vocabulary_size=vocabulary_size,
            special_tokens=[END_OF_TEXT],
            eos_token=0,
            progress=progress,
        )


def _config(tokenizer: Tokenizer, geometry: dict[str, int | None]) -> ModelConfig:
    defaults = {"layers": 4, "width": 256, "heads": 4, "context": 256}
    size = {name: value or defaults[name] for name, value in geometry.items()}
    if size["width"] % size["heads"]:
        raise typer.BadParameter(
            f"{size['heads']} do not divide a width of {size['width']}", param_hint="'--heads'"
        )
    return ModelConfig(
        vocabulary_size=tokenizer.vocabulary_size,
        maximum_context=size["context"],
        layer_count=size["layers"],
        width=size["width"],
        head_count=size["heads"],
        kv_head_count=size["heads"],
        head_width=size["width"] // size["heads"],
        mlp_width=4 * size["width"],
    )


def _examples(paths: Sequence[Path], tokenizer: Tokenizer, length: int, skip_long: bool) -> Examples:
    with (
        ExampleReader(tokenizer, length, skip_long=skip_long) as reader,
        Console(stderr=True).status("Encoding"),
    ):
        examples = reader.read(paths)
    if reader.skipped:
        note(f"{reader.skipped} examples with more than {length} tokens are left out")
    if not examples:
        raise InvalidArgumentError(f"{', '.join(map(str, paths))}: no example is left")
    return Examples(examples)


def _data_set(paths: Sequence[Path], model: Model, length: int | None, skip_long: bool) -> DataSet:
    """Examples where the first file is lines of JSON without a "text"; else text."""
    tokenizer, context = model.tokenizer(), model.config.maximum_context
    first = next(read_records(paths[0]), None) if paths[0].suffix == ".jsonl" else None
    if first is not None and "text" not in first[1]:
        return _examples(paths, tokenizer, length or context, skip_long)
    row = length or min(context, LONGEST_ROW)
    return TokenWindows(encode_documents(read_documents(paths), tokenizer), row)


# --- what comes out ---


def _check_outputs(
    settings: given.TrainingSettings, out: Path | None, plot: Path | None, adapter: Path | None = None
) -> None:
    """Refuses before the training what would fail after it."""
    if out is not None and out.suffix != ".rift":
        raise typer.BadParameter(
            f"{out} is no .rift file; riftco convert makes others of it", param_hint="'--out'"
        )
    if adapter is not None and adapter.suffix not in ("", ".safetensors"):
        raise typer.BadParameter(
            f"{adapter} is neither a folder nor .safetensors", param_hint="'--adapter-out'"
        )
    checkpoint = settings.checkpoint
    for path in (out, plot, adapter, checkpoint):
        if path is not None and not os.access(path.absolute().parent, os.W_OK | os.X_OK):
            raise InvalidArgumentError(f"{path}: nothing can be written in {path.parent}")
    if plot is not None:
        check_plot(plot)
    if checkpoint is not None and checkpoint.exists() and not settings.resume:
        raise InvalidArgumentError(f"{checkpoint} is there: --resume goes on from it, or remove it")


def _check_adapters(model: Model, out: Path | None, adapter: Path | None) -> None:
    """The same, once the adapters are there."""
    if adapter is not None:
        if adapter.is_dir() and any(adapter.iterdir()):
            raise InvalidArgumentError(f"{adapter}: it is there and not empty")
        with TemporaryDirectory() as folder:  # not every model has names in PEFT's folders
            model.save_lora(Path(folder, f"adapter{adapter.suffix}"))
    if out is None:
        return
    types = {name: info.type for name, info in model.parameters.info.items()}
    for matrix in (name.removesuffix(".lora_a") + ".weight" for name in types if name.endswith(".lora_a")):
        kind = types.get(matrix, "also the embedding")  # the head, where it is tied
        if kind not in ("f32", "f16", "bf16"):
            raise UnsupportedError(
                f"--out would add the adapters to {matrix}, which is {kind}: write them with --adapter-out"
                + (", or make a float model first (riftco convert --type f32)" if matrix in types else "")
            )


def _parent(model: str) -> str:
    """The file's name, and its checksum where it has one."""
    path = resolve(model)
    checksum = ModelBundle.load(path).metadata.get("riftco.checksum")
    name = os.path.basename(os.path.normpath(path))
    return name if checksum is None else f"{name} {checksum}"


def _run(
    model: Model,
    data: DataSet,
    settings: given.TrainingSettings,
    held_out: Sequence[Path] | None,
    length: int,
    metrics: Path | None,
    plot: Path | None,
    as_json: bool,
) -> TrainingResult:
    """Trains and tells of it."""
    others = _data_set(held_out, model, length, skip_long=False) if held_out else None
    steps = settings.step_count(len(data))
    options = settings.options(len(data))
    if not as_json:
        note(f"{len(data):,} rows, {steps:,} steps of {settings.batch}")
    view = TrainingView(steps, as_json=as_json, metrics=metrics, append=settings.resume)
    options["held_out"], options["on_step"] = others, view
    try:
        with view:
            result = train_on(model, data, **options)
    except KeyboardInterrupt:
        if settings.checkpoint is not None and settings.checkpoint.exists():
            note(f"{settings.checkpoint} holds what was done; --resume goes on from it")
        raise
    if plot is not None:
        plot_loss(result.history, plot)
    return result


def _tell(result: TrainingResult, paths: dict[str, str], as_json: bool) -> None:
    last: Any = result.history[-1] if result.history else {}
    if as_json:
        kept = {name: value for name, value in last.items() if name.endswith("loss")}
        write_json({**paths, "steps": result.steps, "seconds": result.seconds, **kept})
        return
    loss = f", loss {last['loss']:.4f}" if last else ""
    held_out = f", held out {last['held_out_loss']:.4f}" if "held_out_loss" in last else ""
    note(f"{', '.join(paths.values())}: {result.steps} steps in {result.seconds:.1f} s{loss}{held_out}")
