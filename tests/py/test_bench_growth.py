"""How cost grows with the context, measured on a small model: the figures are there and memory is its pages."""

import json
import subprocess
import sys
from pathlib import Path

from riftco_transformer.model import Model, ModelConfig

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_growth.py"


def run(path, *arguments):
    command = [sys.executable, SCRIPT, path, "--threads", "1", "--repeats", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def save(path, maximum_context):
    config = ModelConfig(
        vocabulary_size=256, maximum_context=maximum_context, layer_count=1, width=64, head_count=2,
        kv_head_count=2, head_width=32, mlp_width=64,
    )  # fmt: skip
    with Model.create(config, seed=1) as model:
        model.save(path)
    return path


def test_figures_and_memory(tmp_path):
    done = run(save(tmp_path / "model.rift", 600), "--cache-type", "f16", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [m["tokens"] for m in result["memory"]] == [128, 512]
    for m in result["memory"]:
        assert m["allocated_bytes"] == m["pages"] * m["page_bytes"]
    assert 256 <= result["cache_bytes_per_token"] < 264  # and what a page keeps
    for median, least, greatest in result["figures"].values():
        assert least == median == greatest  # one turn
    assert result["figures"]["decode_ms_at_128"][0] > 0


def test_a_context_without_growth_is_refused(tmp_path):
    done = run(save(tmp_path / "model.rift", 200))
    assert done.returncode == 1
    assert "200" in done.stderr
