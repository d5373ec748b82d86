"""`riftco bench` on a small model: what it measures and prints, not how fast."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from riftco_transformer import cli
from riftco_transformer.benchmark import Sizes, _peak_of_fresh_process, measure

NAMES = {
    "load_seconds",
    "read_gb_per_second",
    "decode_tokens_per_second",
    "decode_of_read",
    "prefill_tokens_per_second",
    "batch_8_tokens_per_second",
    "batch_16_tokens_per_second",
    "weight_megabytes",
    "peak_memory_megabytes",
}


@pytest.mark.parametrize("context", [2, 3, 31, 256, 700, 2048, 131072])
def test_the_sizes_fit_the_context(context: int) -> None:
    sizes = Sizes.of(context)
    assert min(sizes) >= 1
    assert max(sizes.prompt + sizes.new, sizes.long, sizes.deep + sizes.new) <= context
    assert context < 2048 or sizes == (32, 128, 512, 1900)


def test_figures_are_medians_of_the_turns(rift_path: Path) -> None:
    turns: list[tuple[int, int]] = []
    figures = measure(str(rift_path), repeats=3, turn_done=lambda done, total: turns.append((done, total)))
    assert turns == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert set(figures) == NAMES
    for figure in figures.values():
        assert 0 < figure.least <= figure.median <= figure.greatest


def test_compute_reaches_the_fresh_process(rift_path: Path) -> None:
    assert _peak_of_fresh_process(str(rift_path), 1, "bf16", "bf16") is not None
    with pytest.raises(subprocess.CalledProcessError):  # the file's matrices are float32
        _peak_of_fresh_process(str(rift_path), 1, "keep", "bf16")


def test_bench_prints_and_compares(
    rift_path: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    options = ["--type=bf16", "--compute=bf16"]
    assert cli._run(["bench", str(rift_path), "--repeats", "1", *options, "--json"]) == 0
    document = json.loads(capfdbinary.readouterr().out)
    assert (document["type"], document["compute"]) == ("bf16", "bf16")
    assert set(document["figures"]) == NAMES
    assert document["isa"] in ("scalar", "avx2", "avx512", "neon")
    document["figures"]["weight_megabytes"]["median"] *= 2
    old = tmp_path / "old.json"
    old.write_text(json.dumps(document))
    command = ["bench", str(rift_path), "--repeats", "1", *options, "--compare", str(old)]
    assert cli._run([*command, "--json"]) == 0
    ratios = json.loads(capfdbinary.readouterr().out)["ratios"]
    assert set(ratios) == NAMES
    assert ratios["weight_megabytes"] == 0.5
    assert cli._run(command) == 0
    assert "0.50 x" in capfdbinary.readouterr().out.decode()
    old.write_text("{}")
    assert cli._run(command) == 1
    assert "not what `riftco bench --json` prints" in capfdbinary.readouterr().err.decode()
