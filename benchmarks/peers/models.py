"""Files of the models that are compared, each engine's own, made at the first use in build-peers/models."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .environments import FOLDER, python_of

_HERE = Path(__file__).resolve().parent
_OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}


def model_file(name: str) -> Path:
    """The path of NAME below, which is made unless it is there."""
    path = FOLDER / "models" / name
    if not path.exists():
        print(f"Making {path}", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name("part-" + path.name)  # a killed run leaves nothing that looks whole
        shutil.rmtree(part, ignore_errors=True)  # converters refuse a folder that is there
        _MAKERS[name](part)
        part.rename(path)
    return path


def pulled() -> Path:
    """SmolLM2-135M-Instruct, q4_1."""
    command = [sys.executable, "-m", "riftco_transformer", "pull", "smollm2-135m", "--json"]
    return Path(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["path"])


def _run(environment: str, *arguments: object) -> None:
    command = [python_of(environment), *map(str, arguments)]
    done = subprocess.run(command, env=_OFFLINE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-3000:]}"
        )


def _script(environment: str, script: str, *arguments: object) -> None:
    _run(environment, _HERE / script, *arguments)


def _quantised(source: str | None, kind: str) -> Callable[[Path], None]:
    return lambda out: _script("llama", "quantise.py", model_file(source) if source else pulled(), out, kind)


def _ctranslate2(source: str, kind: str) -> Callable[[Path], None]:
    options = ["--quantization", kind] if kind != "float32" else []
    return lambda out: _run(
        "torch",
        "-m",
        "ctranslate2.converters.transformers",
        "--model",
        model_file(source),
        "--output_dir",
        out,
        *options,
    )


def _openvino(source: str, kind: str) -> Callable[[Path], None]:
    task = ["--task", "text-generation-with-past", "--weight-format", kind]
    return lambda out: _run(
        "openvino_export",
        "-m",
        "optimum.commands.optimum_cli",
        "export",
        "openvino",
        "--model",
        model_file(source),
        *task,
        out,
    )


def _onnxruntime(source: str) -> Callable[[Path], None]:
    options = ["-p", "int4", "-e", "cpu", "--extra_options", "int4_accuracy_level=4"]
    return lambda out: _run(
        "onnxruntime", "-m", "onnxruntime_genai.models.builder", "-i", model_file(source), "-o", out, *options
    )


_MAKERS: dict[str, Callable[[Path], None]] = {
    "smollm2": lambda out: _script("torch", "make_folders.py", "smollm2", pulled(), out),
    "gpt2": lambda out: _script("torch", "make_folders.py", "gpt2", out),
    "gpt2-f32.gguf": lambda out: _script("torch", "make_gguf.py", "gpt2", model_file("gpt2"), out),
    "llama-1b-f16.gguf": lambda out: _script("torch", "make_gguf.py", "llama-1b", out),
    "gpt2-q8_0.gguf": _quantised("gpt2-f32.gguf", "Q8_0"),
    "smollm2-q8_0.gguf": _quantised(None, "Q8_0"),
    **{f"smollm2-{kind.lower()}.gguf": _quantised("smollm2-q8_0.gguf", kind) for kind in ("Q4_0", "Q6_K")},
    **{
        f"llama-1b-{kind.lower()}.gguf": _quantised("llama-1b-f16.gguf", kind)
        for kind in ("Q4_K", "Q5_K", "Q6_K")
    },
    **{
        f"{model}-ctranslate2-{kind}": _ctranslate2(model, kind)
        for model, kind in (("smollm2", "int8"), ("gpt2", "float32"), ("gpt2", "int8"))
    },
    **{
        f"{model}-openvino-{kind}": _openvino(model, kind)
        for model, kind in (("smollm2", "int8"), ("gpt2", "fp32"), ("gpt2", "int8"))
    },
    "smollm2-onnxruntime-int4": _onnxruntime("smollm2"),
}
