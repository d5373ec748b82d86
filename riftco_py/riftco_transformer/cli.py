"""The command line `riftco`.

Exit codes: 0 done; 1 it failed, and one line on stderr says why; 2 wrong usage; 130 Ctrl-C; 141 the reader
of the output has gone.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from enum import Enum
from typing import Annotated, Any

import typer
from rich.console import Console

from . import __version__, hub
from .artifacts import ModelBundle
from .bench_command import bench
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
from .console import ReaderGone, note, write, write_json
from .errors import RiftcoError
from .model_commands import convert, ls, rm
from .pull import MODELS, cached_path, pull, resolve
from .serving import GenerationResult, GenerationStats, TextGenerator
from .text_commands import chat, tokenizer_app
from .token_view import token_rows
from .tokenizer import Tokenizer
from .training_commands import evaluate, finetune, train

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


class Backend(str, Enum):
    """Back ends by name."""

    cpu = "cpu"
    metal = "metal"
    cuda = "cuda"
    tpu = "tpu"


class Cache(str, Enum):
    """Kinds of key/value cache by name."""

    paged = "paged"
    contiguous = "contiguous"


class CacheType(str, Enum):
    """Element types of a key/value cache by name."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"


app.command()(train)
app.command()(finetune)
app.command()(evaluate)
app.command()(bench)
app.command()(chat)
app.command()(convert)
app.command()(ls)
app.command()(rm)
app.add_typer(tokenizer_app, name="tokenizer")


def _version(wanted: bool) -> None:
    if wanted:
        write(f"riftco {__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def riftco(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Load a language model, look into it, generate text with it, train it."""
    if context.invoked_subcommand is None:
        write(context.get_help() + "\n")


@app.command("generate")
def generate_command(
    model: ModelArgument,
    prompt: Annotated[
        str,
        typer.Argument(help="What to go on with; without it, or '-': stdin, less a final newline."),
    ] = "-",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Stop after this many tokens.")] = 256,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    seed: SeedOption = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")
    ] = None,
    min_new_tokens: MinNewTokensOption = 0,
    repetition_penalty: RepetitionPenaltyOption = 1.0,
    presence_penalty: PresencePenaltyOption = 0.0,
    frequency_penalty: FrequencyPenaltyOption = 0.0,
    penalty_window: PenaltyWindowOption = 0,
    speculation: SpeculationOption = 0,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=BIAS", help="Add to a token's logit; -inf bars it; may be repeated."),
    ] = None,
    alternatives: Annotated[
        int, typer.Option(min=0, max=64, help="With --json: tell the N most likely tokens at each place.")
    ] = 0,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Read special tokens written in the prompt as such.")
    ] = False,
    backend: Annotated[Backend, typer.Option(help="Where to run.")] = Backend.cpu,
    threads: ThreadsOption = 0,
    element_type: TypeOption = ElementType.keep,
    compute: ComputeOption = Compute.exact,
    adapter: AdapterOption = None,
    cache: Annotated[Cache, typer.Option(help="Kind of key/value cache.")] = Cache.paged,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per page of a paged cache.")] = 16,
    cache_type: Annotated[
        CacheType, typer.Option(help="f16 and bf16 halve the cache's memory and round what it holds.")
    ] = CacheType.f32,
    as_json: JsonOption = False,
) -> None:
    """Print how a model goes on with a prompt: the text alone on stdout, statistics on stderr."""
    biases = dict(_bias(one) for one in logit_bias or ())
    text = _argument(prompt) if prompt != "-" else sys.stdin.buffer.read().removesuffix(b"\n")
    streaming = sys.stdout.isatty() and not as_json
    bundle = ModelBundle.load(resolve(model))
    with bundle.instantiate(
        backend.value, threads, type=element_type.value, compute=compute.value
    ) as runtime:
        if adapter is not None:
            runtime.model.load_lora(os.fsencode(adapter))
        generator = TextGenerator(
            runtime.model,
            kv_cache=cache.value,
            kv_cache_block_size=block_size,
            kv_cache_type=cache_type.value,
        )
        stream = generator.stream(
            text,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            stop=[_argument(one) for one in stop or ()],
            min_new_tokens=min_new_tokens,
            repetition_penalty=repetition_penalty,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            penalty_window=penalty_window,
            speculation=speculation,
            logit_bias=biases,
            alternatives=alternatives,
            parse_special=parse_special,
        )
        try:
            for piece in stream:
                if streaming:
                    write(piece)
        finally:
            if streaming:
                write("\n")
    if as_json:
        write_json(_result_document(stream.result))
    elif not streaming:
        write(stream.result.text + "\n")
    note(_statistics(stream.result.stats, stream.result.finish_reason))


@app.command("pull")
def pull_command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help=f"One of: {', '.join(MODELS)}; or hf:OWNER/REPO, or one file of it: hf:OWNER/REPO/FILE.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Fetch a model into the cache, unless it is there, and print its path.

    The cache is RIFTCO_CACHE, else riftco/ in XDG_CACHE_HOME, else ~/.cache/riftco. Names that begin with hf:
    are fetched and kept by huggingface_hub (HF_HOME and its other settings hold).
    """
    console = Console(stderr=True)
    if name.startswith(hub.PREFIX):
        path = hub.fetch(name, show_progress=console.is_terminal and not as_json)
    elif console.is_terminal and name in MODELS and not cached_path(name).exists():
        with console.status(f"Fetching {name}, {MODELS[name].size / 1e6:.0f} MB"):
            path = pull(name)
    else:
        path = pull(name)
    if as_json:
        write_json({"path": str(path)})
    else:
        write(f"{path}\n")


@app.command("inspect")
def inspect_command(
    model: ModelArgument,
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="TEXT", help="Show the tokens of a text instead.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a model file holds: config, tensors, tokenizer, and an estimate of the memory it takes."""
    from .inspect_view import render, render_tokens

    path = resolve(model)
    if tokens is not None:
        with Tokenizer.load(path) as tokenizer:
            rows = token_rows(tokenizer, _argument(tokens))
        write_json({"tokens": rows}) if as_json else write(render_tokens(rows))
        return
    bundle = ModelBundle.load(path)
    if as_json:
        write_json(bundle.info)
    else:
        write(render(bundle))


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not ID=BIAS", param_hint="'--logit-bias'") from None


def _argument(text: str) -> bytes:
    """UTF-8 of an argument; of one that was not text, its bytes."""
    return text.encode("utf-8", "surrogateescape")


def _result_document(result: GenerationResult) -> dict[str, Any]:
    stats = dataclasses.asdict(result.stats)
    stats["prefill_tokens_per_second"] = result.stats.prefill_tokens_per_second
    stats["decode_tokens_per_second"] = result.stats.decode_tokens_per_second
    return {
        "text": result.text,
        "tokens": result.tokens,
        "log_probabilities": result.log_probabilities,
        "processed_log_probabilities": result.processed_log_probabilities,
        "alternatives": [
            [
                {name: None if value == -math.inf else value for name, value in one._asdict().items()}
                for one in place
            ]
            for place in result.alternatives
        ],
        "finish_reason": result.finish_reason,
        "stats": stats,
    }


def _statistics(stats: GenerationStats, finish_reason: str) -> str:
    rollovers = f", {stats.rollovers} rollovers" if stats.rollovers else ""
    guesses = f", {stats.accepted_tokens} of {stats.drafted_tokens} guessed" if stats.drafted_tokens else ""
    return (
        f"prompt: {stats.prompt_tokens} tokens, {stats.prefill_tokens_per_second:.0f} tok/s; "
        f"new: {stats.new_tokens} tokens, {stats.decode_tokens_per_second:.0f} tok/s{rollovers}{guesses}; "
        f"finished: {finish_reason}"
    )


def _fail(code: int, message: str, as_json: bool) -> int:
    if as_json:
        write_json({"error": message})
    note(f"riftco: {message}")
    return code


def _run(arguments: list[str]) -> int:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = "--json" in options
    try:
        code = app(arguments, prog_name="riftco", standalone_mode=False)
    except typer.TyperException as error:
        return _fail(error.exit_code, error.format_message(), as_json)
    except RiftcoError as error:
        return _fail(1, str(error), as_json)
    except MemoryError:
        return _fail(1, "out of memory", as_json)
    except OSError as error:
        return _fail(1, str(error), as_json)
    if code == 130:  # how typer reports Ctrl-C
        return _fail(130, "interrupted", as_json)
    return code if isinstance(code, int) else 0


def main() -> None:
    """Run `riftco` with the arguments of the process and exit."""
    sys.stdin, sys.stdout, sys.stderr = (  # a closed one is None
        stream or open(os.devnull, mode)  # noqa: SIM115
        for stream, mode in ((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w"))
    )
    try:
        code = _run(sys.argv[1:])
    except ReaderGone:
        code = 141
    except OSError as error:  # while it told of another error
        code = 1
        note(f"riftco: {error}")
    except KeyboardInterrupt:
        code = 130
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # told already; what could not be written must not fail again when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)
