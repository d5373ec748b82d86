"""All stages of a model on text that every machine has: the documentation strings of the Python standard library.

    python scripts/pipeline.py results/stages

Collects the strings, learns a tokenizer and pretrains a tiny model (tiny_pretrained.rift), evaluates it on strings that
it has not seen, teaches it to tell what a function does from its name (tiny_post_trained.rift), and lets it try. Each stage is
a command of `riftco`, printed before it runs.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}


def docstrings(modules: int) -> Iterator[tuple[str, str]]:
    """Name and documentation of modules, classes and functions, by the order of files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in sorted(root.rglob("*.py")) if not SKIPPED & set(file.relative_to(root).parts)]
    for file in files[:modules]:
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):  # not every file there is meant for this Python
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if (text and text.isprintable()) or (text and "\n" in text):
                    yield getattr(node, "name", file.stem), text


def pairs(texts: list[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """What to teach: the first sentence of a documentation from the name."""
    for name, text in texts:
        sentence = re.split(r"(?<=\.)\s|\n\n", text)[0].replace("\n", " ").strip()
        if 10 <= len(sentence) <= 120 and not name.startswith("_"):
            yield {"prompt": f"{name}:", "response": f" {sentence}"}


def riftco(*arguments: object) -> None:
    words = [str(argument) for argument in arguments]
    print(f"\n$ riftco {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "riftco_transformer", *words], check=True)


def write_jsonl(path: Path, records: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="where the models and the data go")
    parser.add_argument("--modules", type=int, default=10**6, help="files of the library to read at most")
    parser.add_argument("--steps", type=int, default=300, help="of pretraining; of fine-tuning a quarter")
    parser.add_argument("--width", type=int, default=192)
    given = parser.parse_args()
    data: Path = given.folder / "data"
    data.mkdir(parents=True, exist_ok=True)

    texts = list(dict.fromkeys(docstrings(given.modules)))
    seen, unseen = [text for i, text in enumerate(texts) if i % 20], texts[::20]
    for name, part in (("corpus", seen), ("held_out", unseen)):
        write_jsonl(data / f"{name}.jsonl", [{"text": f"{title}: {text}"} for title, text in part])
        write_jsonl(data / f"{name}_pairs.jsonl", list(pairs(part)))
    print(f"{len(texts)} documentation strings, {sum(len(text) for _, text in texts):,} characters")

    base, tuned = given.folder / "tiny_pretrained.rift", given.folder / "tiny_post_trained.rift"
    riftco(
        "train", data / "corpus.jsonl", "--out", base, "--steps", given.steps, "--vocabulary-size", 1024,
        "--layers", 4, "--width", given.width, "--heads", 4, "--context", 128, "--batch", 16,
        "--learning-rate", 2e-3,
    )  # fmt: skip
    riftco("evaluate", base, data / "held_out.jsonl")
    riftco(
        "finetune", base, data / "corpus_pairs.jsonl", "--method", "full", "--out", tuned,
        "--steps", given.steps // 4, "--batch", 32, "--learning-rate", 1e-3,
    )  # fmt: skip
    for model in (base, tuned):
        riftco("evaluate", model, data / "held_out_pairs.jsonl")
    for prompt in ("Tensor:", "open_file:", "get_size:"):
        riftco("generate", tuned, prompt, "--max-new-tokens", 32)


if __name__ == "__main__":
    main()
