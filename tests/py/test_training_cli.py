"""`riftco train`, `finetune` and `evaluate`, as a process and in one."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from riftco_transformer import cli, loss_plot
from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.errors import InvalidStateError
from riftco_transformer.training import checkpoint_state
from test_cli import on_terminal
from test_documented_snippets import SNIPPET

GOLDEN = Path(__file__).parents[1] / "golden"
RIFTCO = [sys.executable, "-m", "riftco_transformer"]
TINY = [
    "--tokenizer",
    "bytes",
    "--layers=1",
    "--width=16",
    "--heads=2",
    "--context=16",
    "--batch=2",
    "--threads=1",
]
PAIRS = [{"prompt": f"{a} is", "response": f" {a * 3}"} for a in "abcdefgh"]


def run(capfdbinary: pytest.CaptureFixture[bytes], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process."""
    code = cli._run([str(argument) for argument in arguments])
    captured = capfdbinary.readouterr()
    return code, captured.out.decode(), captured.err.decode()


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("the lamp of the lighthouse turns and the sea is dark; " * 20, "utf-8")
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS), "utf-8")
    return path


@pytest.fixture
def base(tmp_path: Path, corpus: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Path:
    out = tmp_path / "base.rift"
    code, _, err = run(capfdbinary, "train", corpus, "--out", out, *TINY, "--steps=2")
    assert code == 0, err
    return out


def test_train(tmp_path: Path, corpus: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    out, metrics, plot = tmp_path / "base.rift", tmp_path / "metrics.jsonl", tmp_path / "loss.png"
    code, told, err = run(
        capfdbinary, "train", corpus, "--out", out, "--vocabulary-size=270", *TINY[2:], "--steps=6",
        "--held-out", corpus, "--evaluate-every=3", "--metrics", metrics, "--plot", plot, "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    *steps, last = lines(told)
    assert [one["step"] for one in steps] == [1, 2, 3, 4, 5, 6]
    assert ["held_out_loss" in one for one in steps] == [False, False, True] * 2
    assert lines(metrics.read_text()) == steps
    assert last["path"] == str(out)
    assert (last["steps"], last["held_out_loss"]) == (6, steps[-1]["held_out_loss"])
    assert plot.read_bytes().startswith(b"\x89PNG")
    bundle = ModelBundle.load(out)
    assert bundle.metadata["riftco.stage"] == "pretrained"
    assert "riftco.parent" not in bundle.metadata
    assert bundle.info["config"]["width"] == 16
    with bundle.instantiate() as runtime:
        assert runtime.tokenizer.decode([runtime.tokenizer.eos_token or 0]) == "<|endoftext|>"
        assert len(runtime.tokenizer.encode(" lighthouse")) < 11
    code, told, _ = run(capfdbinary, "evaluate", out, corpus, "--json")
    assert json.loads(told)["loss"] == pytest.approx(last["held_out_loss"], rel=1e-6)


def test_evaluate(base: Path, corpus: Path, pairs: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    code, out, err = run(capfdbinary, "evaluate", base, corpus)
    assert (code, err) == (0, "")
    assert out.startswith("loss ")
    assert f", {len(corpus.read_bytes()) - 1} targets\n" in out
    code, out, _ = run(capfdbinary, "evaluate", base, pairs, "--attention=flash", "--json")
    found = json.loads(out)
    assert found["target_count"] == 8 * 4
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))


def test_the_same_seed_gives_the_same_file(
    tmp_path: Path, base: Path, corpus: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(
        capfdbinary, "train", corpus, "--out", tmp_path / "again.rift", *TINY[:-1], "--threads=2", "--steps=2"
    )
    assert (tmp_path / "again.rift").read_bytes() == base.read_bytes()
    run(capfdbinary, "train", corpus, "--out", tmp_path / "other.rift", *TINY, "--steps=2", "--seed=1")
    assert (tmp_path / "other.rift").read_bytes() != base.read_bytes()


def test_resume(tmp_path: Path, corpus: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """6 steps, against 3 and 3: the same file."""
    common = ["train", corpus, *TINY, "--schedule=constant", "--warmup=2", "--metrics", tmp_path / "metrics"]
    assert run(capfdbinary, *common, "--out", tmp_path / "whole.rift", "--steps=6")[0] == 0
    parts = [*common, "--out", tmp_path / "parts.rift", "--checkpoint", tmp_path / "checkpoint"]
    assert run(capfdbinary, *parts, "--steps=3")[0] == 0
    assert (tmp_path / "whole.rift").read_bytes() != (tmp_path / "parts.rift").read_bytes()
    assert run(capfdbinary, *parts, "--steps=6", "--resume")[0] == 0
    assert (tmp_path / "whole.rift").read_bytes() == (tmp_path / "parts.rift").read_bytes()
    assert [one["step"] for one in lines((tmp_path / "metrics").read_text())] == [1, 2, 3, 4, 5, 6]


def start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*RIFTCO, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def endless(corpus: Path, tmp_path: Path) -> list[object]:
    """A training that does not end by itself, with a checkpoint each step."""
    files = ["--out", tmp_path / "out.rift", "--checkpoint", tmp_path / "checkpoint"]
    return ["train", corpus, *files, *TINY, "--steps=1000000", "--schedule=constant", "--checkpoint-every=1"]


def test_killed_at_any_moment(
    tmp_path: Path, corpus: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    command, checkpoint = endless(corpus, tmp_path), tmp_path / "checkpoint"
    position = 0
    for attempt in range(3):
        process = start(*command, *(["--resume"] if attempt else []))
        before = position
        while position == before:  # until it has gone on
            assert process.poll() is None
            wait_for(checkpoint, process)
            position = json.loads(checkpoint_state(checkpoint))["position"]
        time.sleep(0.03 * attempt)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        position = json.loads(checkpoint_state(checkpoint))["position"]
        assert position > before
        assert position % 2 == 0
    assert not (tmp_path / "out.rift").exists()
    steps = f"--steps={position // 2 + 1}"
    assert run(capfdbinary, *command, "--resume", steps)[0] == 0
    assert ModelBundle.load(tmp_path / "out.rift").metadata["riftco.stage"] == "pretrained"


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ctrl_c(tmp_path: Path, corpus: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    process = start(
        *endless(corpus, tmp_path), "--checkpoint-every=1000000", "--metrics", tmp_path / "metrics"
    )
    wait_for(tmp_path / "metrics", process)
    while not (tmp_path / "metrics").read_bytes():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == b""
    assert f"{checkpoint} holds what was done".encode() in err
    assert err.endswith(b"riftco: interrupted\n")
    assert json.loads(checkpoint_state(checkpoint))["position"] > 0
    assert not (tmp_path / "out.rift").exists()


def test_shows_a_bar_on_a_terminal(tmp_path: Path, corpus: Path) -> None:
    code, shown = on_terminal("train", corpus, "--out", tmp_path / "out.rift", *TINY, "--steps=30")
    assert code == 0
    for part in (b"Training", b"30/30", b"loss ", b" tok/s"):
        assert part in shown
    assert b"out.rift: 30 steps in" in shown


@pytest.mark.parametrize("method", ["full", "lora"])
def test_finetune(
    method: str, tmp_path: Path, base: Path, pairs: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    out = tmp_path / "tuned.rift"
    code, told, err = run(
        capfdbinary, "finetune", base, pairs, "--method", method, "--out", out, "--steps=40",
        "--learning-rate=3e-2", "--targets=q,k,v,o,up,down", "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    *steps, last = lines(told)
    assert last["loss"] < (0.7 if method == "full" else 0.97) * steps[0]["loss"]
    metadata = ModelBundle.load(out).metadata
    assert metadata["riftco.stage"] == "post_trained"
    checksum = ModelBundle.load(base).metadata["riftco.checksum"]
    assert metadata["riftco.parent"] == f"base.rift {checksum}"


def test_adapters(
    tmp_path: Path, base: Path, pairs: Path, corpus: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Saved alone and given to generate and evaluate, they are what the merged model is."""
    adapter, out = tmp_path / "adapter.safetensors", tmp_path / "tuned.rift"
    code, _, err = run(
        capfdbinary, "finetune", base, pairs, "--out", out, "--adapter-out", adapter, "--steps=20",
        "--learning-rate=3e-2", "--rank=4", "--alpha=8",
    )  # fmt: skip
    assert code == 0, err
    assert f"{out}, {adapter}: 20 steps" in err
    losses = []
    for arguments in ((base,), (base, "--adapter", adapter), (out,)):
        code, told, err = run(capfdbinary, "evaluate", *arguments, pairs, "--json")
        assert code == 0, err
        losses.append(json.loads(told)["loss"])
    assert losses[1] < losses[0]
    assert losses[1] == pytest.approx(losses[2], rel=1e-4)
    texts = [
        run(capfdbinary, "generate", *arguments, "a is", "--max-new-tokens=8")[1]
        for arguments in ((base, "--adapter", adapter), (out,))
    ]
    assert texts[0] == texts[1]
    code, told, _ = run(
        capfdbinary, "train", corpus, "--model", out, "--out", tmp_path / "more.rift", "--steps=1"
    )
    assert code == 0
    assert ModelBundle.load(tmp_path / "more.rift").metadata["riftco.parent"].startswith("tuned.rift ")


def test_finetune_of_a_quantised_model(
    tmp_path: Path, base: Path, pairs: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    quantised, adapter = tmp_path / "q8.rift", tmp_path / "adapter.safetensors"
    wide = tmp_path / "wide.rift"
    assert (
        run(
            capfdbinary,
            "train",
            pairs.with_name("corpus.txt"),
            "--out",
            wide,
            *TINY,
            "--width=32",
            "--steps=1",
        )[0]
        == 0
    )
    assert run(capfdbinary, "convert", wide, quantised, "--type=q8_0")[0] == 0
    for arguments, message in (
        (["--out", tmp_path / "no.rift"], "layers.0.q.weight, which is q8_0"),
        (["--out", tmp_path / "no.rift", "--method=full"], "q8_0"),
    ):
        code, _, err = run(capfdbinary, "finetune", quantised, pairs, *arguments, "--steps=1")
        assert code == 1
        assert message in err
    assert not (tmp_path / "no.rift").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    for path, message in (("full", "not empty"), ("folder", "PEFT")):  # told before the training
        code, _, err = run(
            capfdbinary, "finetune", quantised, pairs, "--adapter-out", tmp_path / path, "--steps=1000000"
        )
        assert code == 1
        assert message in err
    tied = GOLDEN / "models" / "llama-bf16"
    arguments = ["finetune", tied, pairs, "--out", tmp_path / "no.rift", "--targets=head", "--steps=1000000"]
    code, _, err = run(capfdbinary, *arguments)
    assert code == 1
    assert "head.weight, which is also the embedding" in err
    code, _, err = run(capfdbinary, "finetune", quantised, pairs, "--adapter-out", adapter, "--steps=2")
    assert code == 0, err
    assert adapter.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "CORPUS", "--out", "x.gguf"], "no .rift file"),
        (["train", "CORPUS", "--out", "OUT", "--heads=3", "--width=16"], "3 do not divide"),
        (["train", "CORPUS", "--out", "OUT", "--model", "BASE", "--layers=2"], "it is of a new model"),
        (["train", "CORPUS", "--out", "OUT", "--steps=1", "--epochs=1"], "the same as --steps"),
        (["train", "CORPUS", "--out", "OUT", "--resume"], "it needs --checkpoint"),
        (["train", "CORPUS", "--out", "OUT", "--schedule=square"], "schedule"),
        (["train", "--out", "OUT"], "CORPUS"),
        (["train", "CORPUS"], "--out"),
        (["finetune", "BASE", "PAIRS"], "one of the two is needed"),
        (["finetune", "BASE", "PAIRS", "--adapter-out", "a.bin"], "neither a folder nor .safetensors"),
        (["finetune", "BASE", "PAIRS", "--method=full", "--adapter-out", "a"], "only --method lora"),
        (["finetune", "BASE", "PAIRS", "--method=half", "--out", "OUT"], "method"),
    ],
)
def test_wrong_usage(
    arguments: list[str], message: str, base: Path, corpus: Path, pairs: Path,
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes],
) -> None:  # fmt: skip
    names = {"BASE": base, "CORPUS": corpus, "PAIRS": pairs, "OUT": tmp_path / "out.rift"}
    code, out, err = run(capfdbinary, *(names.get(one, one) for one in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "none.txt", "--out", "OUT"], "none.txt"),
        (["train", "EMPTY", "--out", "OUT"], "no text"),
        (["train", "CORPUS", "--out", "no/folder/out.rift"], "nothing can be written in no/folder"),
        (
            ["train", "CORPUS", "--out", "OUT", "--checkpoint", "no/folder/c"],
            "nothing can be written in no/folder",
        ),
        (["train", "CORPUS", "--out", "OUT", "--checkpoint", "CORPUS"], "is there: --resume goes on from it"),
        (["train", "CORPUS", "--out", "OUT", "--plot", "loss.xyz"], "loss.xyz: a plot is one of "),
        (["train", "CORPUS", "--out", "OUT", "--model", "none.rift"], "none.rift"),
        (["train", "CORPUS", "--out", "OUT", "--tokenizer", "none.json"], "none.json"),
        (["train", "CORPUS", "--out", "OUT", "--checkpoint", "none", "--resume"], "none"),
        (["finetune", "BASE", "CORPUS", "--out", "OUT"], "corpus.txt:1: not JSON"),
        (["finetune", "BASE", "EMPTY", "--out", "OUT"], "no example is left"),
        (
            ["finetune", "BASE", "PAIRS", "--out", "OUT", "--length=5"],
            "pairs.jsonl:1: 8 tokens are more than the 5",
        ),
        (["finetune", "BASE", "PAIRS", "--out", "OUT", "--targets=q,w"], "a target must be one of"),
        (["finetune", "BASE", "PAIRS", "--out", "OUT", "--targets=gate"], "gate"),
        (["finetune", "BASE", "PAIRS", "--out", "OUT", "--rank=100"], "rank"),
        (["evaluate", "BASE", "EMPTY"], "no text"),
        (["evaluate", "BASE", "none.jsonl"], "none.jsonl"),
        (["evaluate", "BASE", "CORPUS", "--adapter", "none.safetensors"], "none.safetensors"),
        (["generate", "BASE", "a", "--adapter", "none.safetensors"], "none.safetensors"),
    ],
)
def test_failures(
    arguments: list[str], message: str, base: Path, corpus: Path, pairs: Path,
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes],
) -> None:  # fmt: skip
    (tmp_path / "empty.jsonl").write_bytes(b"\n")
    names = {"BASE": base, "CORPUS": corpus, "PAIRS": pairs, "OUT": tmp_path / "out.rift"}
    names["EMPTY"] = tmp_path / "empty.jsonl"
    code, out, err = run(capfdbinary, *(names.get(one, one) for one in arguments))
    assert (code, out) == (1, "")
    assert message in err
    assert err.endswith("\n")
    assert not (tmp_path / "out.rift").exists()


def test_plot_without_matplotlib(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Said before the training, not after it."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidStateError, match=r"riftco-transformer\[plot\]"):
        loss_plot.plot_loss([], tmp_path / "loss.png")
    out = tmp_path / "out.rift"
    code, _, err = run(
        capfdbinary, "train", corpus, "--out", out, *TINY, "--steps=1", "--plot", tmp_path / "loss.png"
    )
    assert code == 1
    assert "pip install 'riftco-transformer[plot]'" in err
    assert not out.exists()


def test_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make pipeline`, smaller: all stages, and the snippets of the design run on what it makes."""
    script = Path(__file__).parents[2] / "scripts" / "pipeline.py"
    stages = tmp_path / "results" / "stages"
    done = subprocess.run(
        [sys.executable, script, stages, "--modules=12", "--steps=8", "--width=32"], capture_output=True,
        timeout=120, env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n$ riftco ") == 8
    stage = {path.name: ModelBundle.load(path).metadata["riftco.stage"] for path in stages.glob("*.rift")}
    assert stage == {"tiny_pretrained.rift": "pretrained", "tiny_post_trained.rift": "post_trained"}
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(SNIPPET, names)
    assert len(capsys.readouterr().out) > 1
    assert names["logits"].shape == (1024,)
