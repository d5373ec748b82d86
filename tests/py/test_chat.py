"""Conversations: sessions, and `riftco chat` in a terminal and from a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from riftco_transformer.artifacts import Runtime
from riftco_transformer.chat import ChatSession
from riftco_transformer.errors import InvalidStateError

COMMAND = [
    sys.executable,
    "-m",
    "riftco_transformer",
    "chat",
    "smollm2-135m",
    "--speculation",
    "4",
    "--max-new-tokens",
    "24",
]


@pytest.fixture
def session(smollm2: Runtime) -> Iterator[ChatSession]:
    with ChatSession(smollm2.model, system="You are helpful.") as session:
        yield session


def test_turns_reuse_the_cache(session: ChatSession) -> None:
    first = "".join(session.send("What is the capital of France?", max_new_tokens=16))
    assert "Paris" in first
    before = session.stats
    assert before is not None
    assert before.reused_tokens == 0
    second = "".join(session.send("And of Italy?", max_new_tokens=16))
    after = session.stats
    assert after is not None
    # All that was decoded: the prompt and the answer less its last token.
    assert after.reused_tokens >= before.prompt_tokens + before.new_tokens - 2
    assert after.prompt_tokens > after.reused_tokens
    assert [message["role"] for message in session.messages] == ["system"] + ["user", "assistant"] * 2
    assert [session.messages[2]["content"], session.messages[4]["content"]] == [first, second]


def test_same_conversation_without_the_cache(session: ChatSession, smollm2: Runtime) -> None:
    """Reuse changes nothing: a fresh session with the same messages answers alike."""
    first = "".join(session.send("Count to three.", max_new_tokens=12))
    second = "".join(session.send("Go on.", max_new_tokens=12))
    with ChatSession(smollm2.model) as fresh:
        fresh.messages.extend(session.messages[:3])
        assert fresh.messages[2]["content"] == first
        assert "".join(fresh.send("Go on.", max_new_tokens=12)) == second


def test_stopped_and_refused_answers(session: ChatSession, tmp_path: Path) -> None:
    answer = session.send("Tell me a long story.", max_new_tokens=50)
    begin = next(answer) + next(answer)
    answer.close()
    assert session.messages[-1] == {"role": "assistant", "content": begin}
    session.save(tmp_path / "talk.json")
    assert json.loads((tmp_path / "talk.json").read_text("utf-8")) == {"messages": session.messages}
    length = len(session.messages)
    with pytest.raises(TypeError):
        session.send(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        session.send("x", temperature="hot")
    assert len(session.messages) == length
    session.clear()
    assert session.messages == [{"role": "system", "content": "You are helpful."}]


def test_model_without_template(runtime: Runtime) -> None:
    with pytest.raises(InvalidStateError, match="no chat template"):
        ChatSession(runtime.model)


def run(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=text, capture_output=True, encoding="utf-8", timeout=120, check=False
    )


@pytest.mark.usefixtures("smollm2_path")
def test_pipe(tmp_path: Path) -> None:
    out = tmp_path / "talk.json"
    text = f'What is the\\\ncapital of France?\n\n"""\nAnd\nof Italy?\n"""\n/save {out}\n/clear\n/nothing\nHi'
    result = run(text, "--system", "Be kind.")
    assert result.returncode == 0, result.stderr
    messages = json.loads(out.read_text("utf-8"))["messages"]
    assert [m["content"] for m in messages if m["role"] != "assistant"] == [
        "Be kind.",
        "What is the\ncapital of France?",
        "And\nof Italy?",
    ]
    assert "Paris" in messages[2]["content"]
    answers = [m["content"] for m in messages if m["role"] == "assistant"]
    assert result.stdout.startswith("\n".join(answers) + "\n")
    assert "> " not in result.stdout
    assert "/nothing: no such command" in result.stderr


@pytest.mark.usefixtures("smollm2_path")
def test_pipe_fails_with_a_reason() -> None:
    result = run("/save /nowhere/talk.json\nHi\n")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "/nowhere/talk.json" in result.stderr


@pytest.fixture
def terminal(smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pexpect.spawn]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TERM", "dumb")
    with pexpect.spawn(COMMAND[0], [*COMMAND[1:-1], "2000"], encoding="utf-8", timeout=60) as child:
        child.expect_exact("> ")
        yield child


def test_terminal_ctrl_c_and_history(terminal: pexpect.spawn, tmp_path: Path) -> None:
    terminal.sendline("Write a very long story about the sea.")
    terminal.expect_exact("sea.\r\n")
    terminal.expect(r"\w+ \w+")  # it answers
    terminal.sendintr()
    terminal.expect_exact("Ctrl-C again leaves")
    terminal.expect_exact("> ")
    terminal.sendline("/help")
    terminal.expect_exact("begin anew")
    terminal.expect_exact("> ")
    terminal.sendline(f"/save {tmp_path}/talk.json")
    terminal.expect_exact("> ")
    messages = json.loads((tmp_path / "talk.json").read_text("utf-8"))["messages"]
    assert [m["role"] for m in messages][-2:] == ["user", "assistant"]
    assert messages[-1]["content"]
    terminal.sendintr()
    terminal.expect_exact("Ctrl-C again leaves")
    terminal.expect_exact("> ")
    terminal.sendintr()
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 130
    history = (tmp_path / "riftco" / "chat_history").read_text("utf-8")
    assert history.splitlines()[:2] == ["Write a very long story about the sea.", "/help"]


def test_terminal_ctrl_d(terminal: pexpect.spawn) -> None:
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0
