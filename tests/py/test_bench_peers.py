"""The comparison with other engines, with this engine on both sides: turns, ratios, tables and the document."""

import json
import sys
from pathlib import Path

import pytest
from riftco_transformer.model import Model, ModelConfig

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bench_peers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import bench_peers

    monkeypatch.setattr(bench_peers, "build_limits", lambda: None)
    monkeypatch.setattr(
        bench_peers, "limits", lambda threads: {"read_gb_per_second": 10.0, "round_trip_ns": None}
    )
    return bench_peers


def test_both_sides_work_in_turns_and_give_one_document(bench_peers, monkeypatch, tmp_path, capsys):
    config = ModelConfig(
        vocabulary_size=512, maximum_context=256, layer_count=1, width=64, head_count=2, kv_head_count=2,
        head_width=32, mlp_width=64,
    )  # fmt: skip
    path = tmp_path / "model.rift"
    with Model.create(config, seed=1) as model:
        model.save(path)
    side = bench_peers.Side("riftco", str(path))
    sides = {"riftco": side, "same": side, "bf16": side._replace(variant="bf16 bf16")}
    group = bench_peers.Group(sides, 200, (64,), (2,), {"decode": 1.0})
    monkeypatch.setattr(bench_peers, "GROUPS", {"tiny": group})
    out = tmp_path / "out" / "result.json"
    arguments = [
        "bench_peers.py",
        "tiny",
        "--threads",
        "1",
        "--repeats",
        "2",
        "--sides",
        "same",
        "--out",
        str(out),
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", arguments)
    bench_peers.main()
    printed = capsys.readouterr()
    (result,) = json.loads(printed.out)
    assert result == json.loads(out.read_text())[0]
    assert list(result["sides"]) == ["riftco", "same"]  # bf16 was not asked for
    assert list(result["rows"]) == ["decode", "decode at 200", "prefill 64", "2 sequences"]
    for row in result["rows"].values():
        assert len(row["turns"]) == len(row["read_gb_per_second"]) == 2
        assert all(speed > 0 for turn in row["turns"] for speed in turn.values())
    ours, same = result["sides"].values()
    assert ours["first_tokens"] == same["first_tokens"]
    assert ours["peak_megabytes"] > 10
    assert "best peer" in printed.err
    assert "same" in printed.err


def test_a_side_that_ends_is_named(bench_peers, tmp_path):
    missing = tmp_path / "no.rift"
    missing.write_bytes(b"not a model")
    with pytest.raises(SystemExit, match=r"side_riftco\.py.*no\.rift.*ended without an answer"):
        bench_peers.Process(bench_peers.Side("riftco", str(missing)), 1)


def test_the_best_peer_is_that_of_this_run(bench_peers):
    turns = [
        {"riftco": 9.0, "a": 1.0, "b": 2.0},
        {"riftco": 9.0, "a": 5.0, "b": 2.0},
        {"riftco": 9.0, "a": 1.5, "b": 2.0},
    ]
    assert bench_peers.best_peer(turns) == "b"
    assert bench_peers.spread([1.0, 3.0, 2.0]) == "2 (1 to 3)"
