"""Arguments and options that several commands of `riftco` share."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from .library import complete_model


class ElementType(str, Enum):
    """Element types that matrices can be converted to, by name."""

    keep = "keep"
    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    q8_0 = "q8_0"
    q4_0 = "q4_0"


class Compute(str, Enum):
    """How steps multiply with matrices of bf16, by name."""

    exact = "exact"
    bf16 = "bf16"


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A .gguf or .rift file, a Hugging Face folder, or a pulled name.",
        autocompletion=complete_model,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document on stdout.")]
AdapterOption = Annotated[
    str | None,
    typer.Option("--adapter", metavar="PATH", help="Low-rank adapters: a folder (PEFT's), or .safetensors."),
]
ThreadsOption = Annotated[int, typer.Option(min=0, help="0: the CPUs that the process may use.")]

TypeOption = Annotated[
    ElementType, typer.Option("--type", help="What the matrices become as they are loaded.")
]
ComputeOption = Annotated[
    Compute,
    typer.Option(help="bf16: round what matrices of bf16 multiply too; faster with AVX512_BF16 only."),
]

# --- how tokens are chosen: names and meanings of `GenerationOptions` ---

TemperatureOption = Annotated[float, typer.Option(help="0: always the most likely token.")]
TopKOption = Annotated[int, typer.Option(min=0, help="Choose among the K most likely tokens; 0: all.")]
TopPOption = Annotated[float, typer.Option(help="Choose among the most likely that together have P.")]
MinPOption = Annotated[float, typer.Option(help="Choose among those P times as likely as the best.")]
SeedOption = Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")]
MinNewTokensOption = Annotated[int, typer.Option(min=0, help="Bar end and stop tokens before that many.")]
RepetitionPenaltyOption = Annotated[
    float, typer.Option(help="Divide (below 0: multiply) logits of tokens that were there; 1: off.")
]
PresencePenaltyOption = Annotated[
    float, typer.Option(help="Take this off logits of tokens that were generated.")
]
FrequencyPenaltyOption = Annotated[
    float, typer.Option(help="Take this off for every time that a token was generated.")
]
PenaltyWindowOption = Annotated[
    int, typer.Option(min=0, help="Penalties look at this many newest tokens; 0: all.")
]
SpeculationOption = Annotated[
    int,
    typer.Option(
        min=0, max=64, help="Guess N tokens ahead where text repeats: faster, the same text; 0: off."
    ),
]
