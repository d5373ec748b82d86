"""The commands `riftco chat` and `riftco tokenizer train`."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from .artifacts import ModelBundle
from .chat import ChatSession, ChatTerminal
from .command_options import (
    AdapterOption,
    Compute,
    ComputeOption,
    ElementType,
    FrequencyPenaltyOption,
    JsonOption,
    MinNewTokensOption,
    MinPOption,
    ModelArgument,
    PenaltyWindowOption,
    PresencePenaltyOption,
    RepetitionPenaltyOption,
    SeedOption,
    SpeculationOption,
    TemperatureOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
    TypeOption,
)
from .console import note, write, write_json
from .pull import resolve
from .tokenizer import Tokenizer

tokenizer_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Make tokenizers.")


class Cut(str, Enum):
    """How text is cut for a tokenizer, by name."""

    gpt2 = "gpt2"
    smollm = "smollm"
    llama3 = "llama3"
    qwen2 = "qwen2"


def chat(
    model: ModelArgument,
    system: Annotated[str | None, typer.Option(help="What the conversation begins with.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="End an answer after this many tokens.")] = 1024,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    seed: SeedOption = 0,
    min_new_tokens: MinNewTokensOption = 0,
    repetition_penalty: RepetitionPenaltyOption = 1.0,
    presence_penalty: PresencePenaltyOption = 0.0,
    frequency_penalty: FrequencyPenaltyOption = 0.0,
    penalty_window: PenaltyWindowOption = 0,
    speculation: SpeculationOption = 0,
    threads: ThreadsOption = 0,
    element_type: TypeOption = ElementType.keep,
    compute: ComputeOption = Compute.exact,
    adapter: AdapterOption = None,
) -> int:
    """Talk with a model, by its own chat template: answers on stdout, all else on stderr.

    Each line is a message; /help tells of commands. From a pipe, each line is answered in turn.
    """
    options = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "min_new_tokens": min_new_tokens,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "penalty_window": penalty_window,
        "speculation": speculation,
    }
    bundle = ModelBundle.load(resolve(model))
    with bundle.instantiate("cpu", threads, type=element_type.value, compute=compute.value) as runtime:
        if adapter is not None:
            runtime.model.load_lora(os.fsencode(adapter))
        with ChatSession(runtime.model, system=system) as session:
            return ChatTerminal(session, write, note, options).run()


@tokenizer_app.callback()
def _tokenizer() -> None:
    """Keeps `train` a command of its own while it is the only one."""


@tokenizer_app.command()
def train(
    corpus: Annotated[list[Path], typer.Argument(metavar="CORPUS...", help="Text files, UTF-8.")],
    out: Annotated[Path, typer.Option(help="The tokenizer.json to write.")],
    vocabulary_size: Annotated[
        int, typer.Option(min=256, help="Tokens in all, special ones and 256 bytes included.")
    ] = 8192,
    pre_tokenizer: Annotated[Cut, typer.Option(help="How text is cut into pieces.")] = Cut.gpt2,
    minimum_count: Annotated[
        int, typer.Option(min=0, help="Pairs that come less often do not become tokens.")
    ] = 0,
    special_token: Annotated[
        list[str] | None, typer.Option(help="A special token; may be repeated. They are the first ids.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Learn a byte-level BPE tokenizer from text and print how many tokens it has."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Training", total=None)
        tokenizer = Tokenizer.train(
            corpus,
            vocabulary_size=vocabulary_size,
            pre_tokenizer=pre_tokenizer.value,
            minimum_count=minimum_count,
            special_tokens=[token.encode("utf-8", "surrogateescape") for token in special_token or ()],
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    tokenizer.save(out)
    if as_json:
        write_json({"path": str(out), "vocabulary_size": tokenizer.vocabulary_size})
    else:
        write(f"{tokenizer.vocabulary_size} tokens\n")
