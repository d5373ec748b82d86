"""Commands of `riftco` about model files: convert, ls, rm."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .command_options import AdapterOption, ElementType, JsonOption
from .console import note, write, write_json
from .library import complete_model, pulled, remove
from .model import Model
from .progress_view import progress_bar
from .pull import resolve


class FileFormat(str, Enum):
    """Formats that are written, by name."""

    rift = "rift"
    gguf = "gguf"
    huggingface = "huggingface"


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A .gguf or .rift file, a Hugging Face folder, or a pulled name.",
            autocompletion=complete_model,
        ),
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="A .gguf or .rift file, or a folder.")],
    element_type: Annotated[
        ElementType, typer.Option("--type", help="Element type of the matrices.")
    ] = ElementType.keep,
    file_format: Annotated[
        FileFormat | None, typer.Option("--format", help="What DST's suffix says otherwise.")
    ] = None,
    adapter: AdapterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a model in another format or element type: complete or not at all.

    What a format cannot hold exactly, other than by the rounding of --type, is refused. Adapters are merged.
    """
    with progress_bar("Reading") as progress:
        model = Model.load(resolve(source), progress=progress)
    if adapter is not None:
        model.load_lora(os.fsencode(adapter))
        model.merge_lora()
    with progress_bar("Writing") as progress:
        model.save(
            os.fsencode(target),
            format=file_format.value if file_format else "by path",
            type=element_type.value,
            progress=progress,
        )
    path = Path(target)
    size = sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size
    if as_json:
        write_json({"path": target, "bytes": size})
    else:
        note(f"{target}: {size:,} bytes")


def ls(as_json: JsonOption = False) -> None:
    """List the models that were pulled, with their sizes."""
    rows = pulled()
    if as_json:
        write_json({"models": rows})
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        write(f"{row['name']:{width}}  {row['bytes'] / 1e6:10,.1f} MB  {row['path']}\n")
    if not rows:
        note("no model was pulled yet")


def rm(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="As `riftco ls` shows it.",
            autocompletion=lambda incomplete: [
                row["name"] for row in pulled() if row["name"].startswith(incomplete)
            ],
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Delete a model that was pulled."""
    freed = remove(name)
    if as_json:
        write_json({"name": name, "bytes": freed})
    else:
        note(f"{name}: {freed / 1e6:,.1f} MB freed")
