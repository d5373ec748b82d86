"""The command line, as a process."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle_support import GOLDEN
from riftco_transformer import cli
from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.model import Model
from riftco_transformer.serving import TextGenerator
from riftco_transformer.tokenizer import Tokenizer

Riftco = Callable[..., tuple[int, str, str]]
RIFTCO = [sys.executable, "-m", "riftco_transformer"]


def riftco(*arguments: object, prompt: bytes = b"", **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    result = subprocess.run(
        [*RIFTCO, *map(str, arguments)],
        input=prompt,
        capture_output=True,
        timeout=120,
        env={**os.environ, "LC_ALL": "C", **environment},
    )
    return result.returncode, result.stdout.decode(), result.stderr.decode()


@pytest.fixture
def in_process(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., tuple[int, str, str]]:
    """The same without the start of a process."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli._run([str(argument) for argument in arguments])
        captured = capfdbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return run


def document(out: str) -> Any:
    """The one JSON document on stdout."""
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.fixture(scope="module")
def expected(rift_path: Path) -> str:
    with ModelBundle.load(rift_path).instantiate() as runtime:
        return TextGenerator(runtime.model).generate("Tensor:", max_new_tokens=8).text


def test_text_alone_on_stdout(rift_path: Path, expected: str) -> None:
    code, out, err = riftco("generate", rift_path, "Tensor:", "--max-new-tokens", 8, "--temperature", 0)
    assert (code, out) == (0, expected + "\n")
    assert err.startswith("prompt: 7 tokens, ")
    assert "new: 8 tokens" in err
    assert err.endswith("finished: length\n")


@pytest.mark.parametrize(("arguments", "prompt"), [([], b"Tensor:"), (["-"], b"Tensor:\n")])
def test_prompt_from_stdin(rift_path: Path, expected: str, arguments: list[str], prompt: bytes) -> None:
    code, out, _ = riftco("generate", rift_path, *arguments, "--max-new-tokens=8", prompt=prompt)
    assert (code, out) == (0, expected + "\n")


def test_prompt_that_is_not_text(rift_path: Path) -> None:
    """Its bytes arrive as they are."""
    with ModelBundle.load(rift_path).instantiate() as runtime:
        expected = TextGenerator(runtime.model).generate(b"a\xff", max_new_tokens=8).tokens
    command: list[str | bytes] = [*RIFTCO, "generate", str(rift_path), b"a\xff", "--max-new-tokens=8"]
    command.append("--json")
    assert json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))["tokens"] == expected


def test_json(rift_path: Path, expected: str) -> None:
    code, out, _ = riftco("generate", rift_path, "Tensor:", "--max-new-tokens=8", "--json")
    result = document(out)
    assert (code, result["text"], result["finish_reason"]) == (0, expected, "length")
    assert len(result["tokens"]) == len(result["log_probabilities"]) == result["stats"]["new_tokens"] == 8


def test_options_reach_the_generator(in_process: Riftco, rift_path: Path) -> None:
    with ModelBundle.load(rift_path).instantiate() as runtime:
        result = TextGenerator(runtime.model).generate(
            "a", max_new_tokens=30, temperature=1.5, top_k=100, top_p=0.95, min_p=0.001, seed=9
        )
        stop = result.bytes[20:22].decode("ascii", "ignore") or "none"
    common = [
        "generate",
        rift_path,
        "a",
        "--max-new-tokens=30",
        "--temperature=1.5",
        "--top-k=100",
        "--top-p=0.95",
    ]
    common += ["--min-p=0.001", "--seed=9", "--json"]
    for caches in ([], ["--cache=contiguous"], ["--block-size=3", "--threads=2", "--backend=cpu"]):
        assert document(in_process(*common, *caches)[1])["tokens"] == result.tokens
    stopped = document(in_process(*common, "--stop", stop, "--stop", "never ever")[1])
    assert stopped["text"] == result.text.split(stop)[0]


def test_types(in_process: Riftco, rift_path: Path, tmp_path: Path) -> None:
    with Model.load(rift_path) as model:
        model.save(tmp_path / "model.rift", type="q4_0")
    command = ["generate", "a", "--max-new-tokens=30", "--json"]
    command = [command[0], rift_path, *command[1:]]
    kept = document(in_process(*command)[1])["tokens"]
    converted = document(in_process(*command, "--type=q4_0")[1])["tokens"]
    command[1] = tmp_path / "model.rift"
    assert converted == document(in_process(*command)[1])["tokens"] != kept


def test_compute(in_process: Riftco, rift_path: Path) -> None:
    command = ["generate", rift_path, "a", "--max-new-tokens=20", "--alternatives=2", "--json", "--type=bf16"]
    exact, rounding = (
        document(in_process(*command, f"--compute={name}")[1])["alternatives"] for name in ("exact", "bf16")
    )
    assert exact == document(in_process(*command)[1])["alternatives"] != rounding
    for command in (["generate", rift_path, "a"], ["chat", rift_path], ["bench", rift_path]):
        code, _, err = in_process(*command, "--compute=bf16")
        assert code == 1
        assert "load it with type bf16" in err


def test_rules_and_cache_types_reach_the_generator(in_process: Riftco, rift_path: Path) -> None:
    with ModelBundle.load(rift_path).instantiate() as runtime:
        result = TextGenerator(runtime.model, kv_cache_type="f16").generate(
            "aaa", 20, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.25, penalty_window=7,
            min_new_tokens=2, logit_bias={97: 3.0, 98: -float("inf")}, alternatives=2,
        )  # fmt: skip
    found = document(
        in_process(
            "generate", rift_path, "aaa", "--max-new-tokens=20", "--repetition-penalty=1.4",
            "--presence-penalty=0.5", "--frequency-penalty=0.25", "--penalty-window=7", "--min-new-tokens=2",
            "--logit-bias=97=3", "--logit-bias", "98=-inf", "--alternatives=2", "--cache-type=f16", "--json",
            "--speculation=8",
        )[1]
    )  # fmt: skip
    assert found["tokens"] == result.tokens
    assert found["processed_log_probabilities"] == pytest.approx(result.processed_log_probabilities)
    assert [[one["token"] for one in place] for place in found["alternatives"]] == [
        [one.token for one in place] for place in result.alternatives
    ]


def test_speculation_is_told(in_process: Riftco, rift_path: Path) -> None:
    common = ["generate", rift_path, "aaa", "--max-new-tokens=30", "--logit-bias=97=100"]
    plain, guessed = in_process(*common), in_process(*common, "--speculation=8")
    assert guessed[:2] == plain[:2] == (0, "a" * 30 + "\n")
    assert " guessed; " not in plain[2]
    assert ", 23 of 23 guessed; " in guessed[2]
    assert in_process(*common, "--speculation=65")[0] == 2


def test_streams_on_a_terminal(rift_path: Path, expected: str) -> None:
    code, out = on_terminal("generate", rift_path, "Tensor:", "--max-new-tokens=8")
    assert code == 0
    assert out.startswith(expected.encode().replace(b"\n", b"\r\n") + b"\r\nprompt: 7 tokens")


def on_terminal(*arguments: object) -> tuple[int, bytes]:
    """Exit code and what a terminal showed, stdout and stderr."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*RIFTCO, *map(str, arguments)], {**os.environ, "TERM": "xterm"})
    shown = b""
    try:
        while chunk := os.read(descriptor, 65536):
            shown += chunk
    except OSError:  # EIO: the other side is closed
        pass
    os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "no-such-file.gguf", "a"], "no-such-file.gguf"),
        (["inspect", "no-such-file.gguf"], "no-such-file.gguf"),
        (["inspect", "no\nsuch\x1b[31mfile"], "No such file"),
        (["generate", "TINY", ""], "the prompt has no token"),
        (["generate", "TINY", "a", "--temperature=-1"], "temperature"),
        (["generate", "TINY", "a", "--temperature=nan"], "temperature"),
        (["generate", "TINY", "a", "--backend=cuda"], "cuda"),
        (["pull", "no-such-model"], "no model is called 'no-such-model'; there are: smollm2-135m"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_failure_is_one_line_and_code_1(
    in_process: Riftco, rift_path: Path, arguments: list[str], message: str, as_json: bool
) -> None:
    arguments = [str(rift_path) if argument == "TINY" else argument for argument in arguments]
    code, out, err = in_process(*arguments, *(["--json"] if as_json else []))
    assert code == 1
    assert err.startswith("riftco: ")
    assert message in err
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    if as_json:
        assert f"riftco: {document(out)['error']}"[:12] == err[:12]
    else:
        assert out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate"],
        ["generate", "a", "b", "c"],
        ["generate", "a", "b", "--no-such-option"],
        ["generate", "a", "b", "--max-new-tokens=0"],
        ["generate", "a", "b", "--max-new-tokens=x"],
        ["generate", "a", "b", "--threads=-1"],
        ["generate", "a", "b", "--backend=abacus"],
        ["generate", "a", "b", "--cache=none"],
        ["generate", "a", "b", "--cache-type=q8_0"],
        ["generate", "a", "b", "--logit-bias=7"],
        ["generate", "a", "b", "--alternatives=65"],
        ["no-such-command"],
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_wrong_usage_is_one_line_and_code_2(in_process: Riftco, arguments: list[str], as_json: bool) -> None:
    code, out, err = in_process(*arguments, *(["--json"] if as_json else []))
    assert code == 2
    assert err.startswith("riftco: ")
    assert err.count("\n") == 1
    if as_json:
        assert list(document(out)) == ["error"]
    else:
        assert out == ""


def test_help_and_version(in_process: Riftco) -> None:
    for arguments in ([], ["--help"], ["generate", "--help"], ["pull", "--help"], ["inspect", "--help"]):
        code, out, err = in_process(*arguments)
        assert (code, err) == (0, "")
        assert "Usage: riftco" in out
    code, out, err = in_process("--version")
    assert (code, err) == (0, "")
    assert out.startswith("riftco 2.")


def test_reader_that_goes_away(rift_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [*RIFTCO, "generate", str(rift_path), "a", "--max-new-tokens=2"]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (result.returncode, result.stderr) == (141, b"")


def test_closed_standard_streams(rift_path: Path) -> None:
    command = " ".join([*RIFTCO, "generate", str(rift_path), "a", "--max-new-tokens=2"])
    assert subprocess.run(["sh", "-c", f"{command} <&- >&-"], stderr=subprocess.PIPE).returncode == 0
    result = subprocess.run(["sh", "-c", f"{command} 2>&-"], stdout=subprocess.PIPE)
    assert result.returncode == 0
    assert result.stdout


@pytest.mark.parametrize("as_json", [False, True])
def test_full_disk(rift_path: Path, as_json: bool) -> None:
    command = [*RIFTCO, "inspect", str(rift_path), *(["--json"] if as_json else [])]
    with open("/dev/full", "wb") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 1
    assert result.stderr.count(b"\n") == 1
    assert b"No space left" in result.stderr


def test_inspect(in_process: Riftco, rift_path: Path) -> None:
    info = ModelBundle.load(rift_path).info
    code, out, err = in_process("inspect", rift_path, "--json")
    assert (code, err) == (0, "")
    assert document(out) == info
    code, out, err = in_process("inspect", rift_path)
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    for tensor in info["tensors"]:
        assert tensor["name"] in out
    code, shown = on_terminal("inspect", rift_path)
    assert code == 0
    assert b"\x1b[" in shown


def test_pulled_name_works_as_a_path(smollm2_path: Path) -> None:
    command = [
        "generate",
        "smollm2-135m",
        "The capital of France is",
        "--max-new-tokens=8",
        "--temperature=0",
    ]
    code, out, _ = riftco(*command)
    assert code == 0
    assert "Paris" in out
    code, out, _ = riftco("inspect", "smollm2-135m", "--json")
    assert code == 0
    assert document(out)["config"]


def test_convert(in_process: Riftco, tmp_path: Path) -> None:
    source = Path(__file__).parent.parent / "golden/models/llama-gqa-untied"
    target = tmp_path / "model.gguf"
    code, out, err = in_process("convert", source, target, "--type", "f16", "--json")
    assert (code, err) == (0, "")
    assert document(out) == {"path": str(target), "bytes": target.stat().st_size}
    code, out, err = in_process("convert", target, tmp_path / "folder")
    assert (code, out) == (0, "")
    assert err.startswith(f"{tmp_path / 'folder'}: ")
    assert ModelBundle.load(tmp_path / "folder").info["tensors"][0]["type"] == "F16"
    code, out, err = in_process("convert", target, tmp_path / "x", "--type=q8_0", "--json")
    assert code == 1
    assert "q8_0" in document(out)["error"]
    assert in_process("convert", target, tmp_path / "y.any", "--format", "rift")[0] == 0
    assert ModelBundle.load(tmp_path / "y.any").info["format"] == "rift"
    assert in_process("convert", target, tmp_path / "z.rift", "--type=q7")[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "model.gguf", "y.any"]


def test_convert_merges_adapters(in_process: Riftco, tmp_path: Path) -> None:
    base, adapter = GOLDEN / "models" / "llama-gqa-untied", GOLDEN / "lora" / "llama"
    target = tmp_path / "merged.rift"
    assert in_process("convert", base, target, "--adapter", adapter)[0] == 0
    with Model.load(target) as merged, Model.load(base) as model:
        model.load_lora(adapter)
        np.testing.assert_allclose(merged.logits([3, 4]), model.logits([3, 4]), atol=1e-4)
    assert in_process("convert", base, tmp_path / "small.rift", "--type=q8_0")[0] == 0
    code, _, err = in_process("convert", tmp_path / "small.rift", tmp_path / "x.rift", "--adapter", adapter)
    assert code == 1
    assert "layers.0.q.weight is q8_0" in err
    assert not (tmp_path / "x.rift").exists()


def test_convert_shows_a_bar_on_a_terminal(rift_path: Path, tmp_path: Path) -> None:
    code, shown = on_terminal("convert", rift_path, tmp_path / "copy.rift")
    assert code == 0
    assert b"Writing" in shown
    assert f"{tmp_path / 'copy.rift'}: 1,".encode() in shown
    assert (tmp_path / "copy.rift").read_bytes() == rift_path.read_bytes()


def test_inspect_tokens(in_process: Riftco, rift_path: Path) -> None:
    code, out, _ = in_process("inspect", rift_path, "--tokens", "aé", "--json")
    assert code == 0
    assert document(out) == {
        "tokens": [
            {"id": 97, "piece": "a", "bytes": "61"},
            {"id": 195, "piece": "\ufffd", "bytes": "c3"},
            {"id": 169, "piece": "\ufffd", "bytes": "a9"},
        ]
    }
    code, out, _ = in_process("inspect", rift_path, "--tokens", "aé")
    assert (code, "tokens (3)" in out, "c3" in out) == (0, True, True)


def test_shell_completion(tmp_path: Path) -> None:
    """What bash is offered for the model of `riftco generate`."""
    (tmp_path / "some.gguf").write_bytes(b"")
    result = subprocess.run(
        RIFTCO, capture_output=True, cwd=tmp_path, timeout=120, check=False,
        env={
            **os.environ,
            "RIFTCO_CACHE": str(tmp_path / "none"),
            "_RIFTCO_COMPLETE": "complete_bash",
            "COMP_WORDS": "riftco generate so",
            "COMP_CWORD": "2",
        },
    )  # fmt: skip
    assert (result.returncode, result.stdout.decode().split()) == (0, ["some.gguf"])


def test_tokenizer_train(tmp_path: Path) -> None:
    corpus, out = tmp_path / "a.txt", tmp_path / "tokenizer.json"
    corpus.write_text("the lighthouse and the lamp of the lighthouse " * 20, "utf-8")
    arguments = ["tokenizer", "train", str(corpus), "--out", str(out), "--vocabulary-size", "280"]
    code, output, errors = riftco(*arguments, "--special-token", "<end>", "--json")
    assert code == 0, errors
    size = json.loads(output)["vocabulary_size"]
    assert 257 < size <= 280
    with Tokenizer.load(out) as tokenizer:
        assert tokenizer.vocabulary_size == size
        assert tokenizer.find("<end>") == 0
        assert len(tokenizer.encode(" lighthouse")) == 1
    code, output, errors = riftco("tokenizer", "train", tmp_path / "no.txt", "--out", out)
    assert (code, output) == (1, "")
    assert "no.txt" in errors
