"""The picture of kernels under the limits of a machine, from documents of two programs."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "plot_roofline.py"


def test_draws_every_family_and_limit(tmp_path):
    case = {"operations": 2e9, "bytes": 1e9, "median_s": 0.1}
    kernels = {
        "isa": "avx2",
        "threads": 2,
        "results": [
            {**case, "name": "small q4_1 rows 1"},
            {**case, "name": "small q4_1 rows 8", "operations": 16e9},
            {**case, "name": "attention rows 1 keys 128"},
            {"name": "norm", "operations": None, "bytes": 10, "median_s": 1},  # not a product
        ],
    }
    limits = {"read_gb_per_second": 20.0, "f32_gflop_per_second": 180.0, "int8_gop_per_second": None}
    paths = {"--kernels": kernels, "--limits": limits}
    arguments = []
    for option, document in paths.items():
        path = tmp_path / f"{option[2:]}.json"
        path.write_text(json.dumps(document))
        arguments += [option, path]
    out = tmp_path / "new" / "roofline.svg"
    done = subprocess.run([sys.executable, SCRIPT, out, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    picture = out.read_text()
    for text in ("small q4_1", "attention", "limit, float32", "Kernels (avx2, 2 threads)"):
        assert f"<!-- {text}" in picture, text
    assert "limit, bytes" not in picture
    assert "norm" not in picture
