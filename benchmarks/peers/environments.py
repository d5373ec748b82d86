"""Other engines, each in an environment of its own in build-peers/, made at the first use."""

import os
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build-peers"

TORCH = "torch==2.13.0"
TRANSFORMERS = "transformers==5.24.0"
REQUIREMENTS = {
    "llama": ["llama-cpp-python==0.3.36"],
    "torch": [
        TORCH,
        TRANSFORMERS,
        "numpy",
        "gguf==0.19.0",
        "accelerate",
        "sentencepiece",
        "ctranslate2==4.8.5",
    ],
    "ctranslate2": ["ctranslate2==4.8.5", "numpy"],
    "openvino": ["openvino-genai==2026.4.1.0"],
    "openvino_export": [TORCH, "optimum-intel[openvino]==2.2.0"],  # writes what openvino reads
    "onnxruntime": [TORCH, TRANSFORMERS, "onnxruntime-genai==0.18.0", "onnx", "onnx-ir"],
}
# llama.cpp is compiled here, for this processor; wheels are for any.
_SETTINGS = {
    "llama": {
        "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0))),
    }
}
_OPTIONS = {"llama": ["--no-binary", "llama-cpp-python"]}
_UNWANTED = {"openvino_export": ["torchvision"]}  # a version for another torch; its import fails


def python_of(name: str) -> Path:
    """The interpreter of an environment, which is made or brought to the versions above first."""
    folder = FOLDER / name
    python, done = folder / "bin" / "python", folder / "requirements"
    wanted = "\n".join(REQUIREMENTS[name])
    if done.exists() and done.read_text() == wanted:
        return python
    print(
        f"Installing {name} into {folder}" + (" (a build of several minutes)" if name == "llama" else ""),
        flush=True,
    )
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "-q", *_OPTIONS.get(name, []), *REQUIREMENTS[name]],
        env={**os.environ, **_SETTINGS.get(name, {})},
        check=True,
    )
    if name in _UNWANTED:
        subprocess.run([*pip, "uninstall", "-q", "-y", *_UNWANTED[name]], check=True)
    done.write_text(wanted)
    return python
