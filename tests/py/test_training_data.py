"""Data to train on: windows, examples, chat messages, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from riftco_transformer.errors import CorruptDataError, InvalidArgumentError, InvalidStateError
from riftco_transformer.tokenizer import Tokenizer
from riftco_transformer.training import (
    NO_TARGET,
    Example,
    ExampleReader,
    Examples,
    TokenWindows,
    encode_documents,
    read_documents,
    rows_at,
)

GOLDEN = Path(__file__).parents[1] / "golden"
TEMPLATES = {
    model["tokenizer"]: model["template"]
    for model in json.loads((GOLDEN / "chat" / "chat.json").read_text())["models"]
}


@pytest.fixture(scope="module")
def ending() -> Iterator[Tokenizer]:
    """With an end token, 0."""
    with Tokenizer.train(
        ["the lamp of the lighthouse "] * 3, vocabulary_size=280, special_tokens=["<end>"], eos_token=0
    ) as made:
        yield made


# --- windows ---


@pytest.mark.parametrize(("count", "length"), [(2, 1), (2, 8), (9, 4), (10, 4), (12, 4), (13, 4), (100, 7)])
def test_each_token_but_the_first_is_a_target_once(count: int, length: int) -> None:
    text = np.arange(1000, 1000 + count)
    windows = TokenWindows(text, length)
    seen = []
    for row in range(len(windows)):
        tokens, targets = windows.batch(np.array([row]))
        assert tokens.shape == targets.shape
        assert tokens.shape[1] <= length
        for before, token in zip(tokens[0], targets[0], strict=True):
            if token != NO_TARGET:
                assert token == before + 1
                seen.append(token)
    assert seen == list(range(1001, 1000 + count))


def test_windows_of_a_batch() -> None:
    tokens, targets = TokenWindows(range(10), 4).batch(np.array([0, 2]))
    assert tokens.dtype == targets.dtype == np.uint32
    assert tokens.tolist() == [[0, 1, 2, 3], [8, 9, 0, 0]]
    assert targets.tolist() == [[1, 2, 3, 4], [9, NO_TARGET, NO_TARGET, NO_TARGET]]
    for tokens, length in (([1], 4), ([], 4), ([1, 2], 0)):
        with pytest.raises(InvalidArgumentError):
            TokenWindows(tokens, length)


def test_digest_tells_rows_apart() -> None:
    digests = {TokenWindows(text, n).digest() for text in ([1, 2, 3], [1, 2, 4], [1, 2]) for n in (1, 2)}
    assert len(digests) == 6
    assert TokenWindows([1, 2, 3], 1).digest() == TokenWindows(np.array([1, 2, 3]), 1).digest()
    one, two = (Example(np.array(t, np.uint32), np.array([False, True])) for t in ([1, 2], [1, 3]))
    assert Examples([one]).digest() != Examples([two]).digest()


# --- order ---


def test_order_is_a_function_of_seed_and_position() -> None:
    whole = rows_at(0, 250, 100, 7)
    for begin, count in ((0, 8), (95, 10), (199, 51), (100, 100)):
        assert np.array_equal(rows_at(begin, count, 100, 7), whole[begin : begin + count])
    for start in (0, 100):  # each pass has each row, in an order of its own
        assert sorted(whole[start : start + 100]) == list(range(100))
    assert not np.array_equal(whole[:100], whole[100:200])
    assert not np.array_equal(whole[:100], rows_at(0, 100, 100, 8))
    large = [rows_at(0, 100, 100, 2**63 + n) for n in (1, 2)]
    assert not np.array_equal(*large)
    assert rows_at(5, 4, 1, 0).tolist() == [0, 0, 0, 0]


def test_order_is_the_same_everywhere() -> None:
    """Philox counters as numpy has them since 1.17; a checkpoint names a position in it."""
    assert rows_at(0, 10, 10, 42).tolist() == [7, 1, 6, 4, 3, 5, 9, 0, 2, 8]


# --- texts ---


def test_documents(tmp_path: Path, ending: Tokenizer) -> None:
    folder = tmp_path / "folder"
    (folder / "b").mkdir(parents=True)
    (folder / ".git").mkdir()
    for name, text in (("z.txt", "last"), ("b/a.txt", "first é"), (".hidden", "no"), (".git/x", "no")):
        (folder / name).write_text(text, "utf-8")
    (tmp_path / "lines.jsonl").write_text('{"text": "one"}\n\n{"text": "", "n": 1}\n', "utf-8")
    paths = [folder, tmp_path / "lines.jsonl"]
    assert list(read_documents(paths)) == ["first é", "last", "one", ""]
    tokens = encode_documents(read_documents(paths), ending)
    assert ending.decode(tokens) == "first é<end>last<end>one<end>"
    with Tokenizer.byte() as plain:
        assert bytes(encode_documents(["ab", "c"], plain).astype(np.uint8)) == b"abc"
        with pytest.raises(InvalidArgumentError, match="no text"):
            encode_documents([""], plain)


def test_beginning_of_texts(ending: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer whose file asks for BOS gives it to each document and each prompt."""
    monkeypatch.setattr(Tokenizer, "adds_bos", True)
    monkeypatch.setattr(Tokenizer, "bos_token", 7)
    ids = ending.encode("lamp")
    assert encode_documents(["lamp", "lamp"], ending).tolist() == [7, *ids, 0] * 2
    example = ExampleReader(ending, 100).example({"prompt": "", "response": "lamp"})
    assert example.tokens.tolist() == [7, *ids, 0]
    assert example.counted.tolist() == [False] + [True] * (len(ids) + 1)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"ab\xff", r"a\.txt: not UTF-8 at byte 2"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}\n', r'a\.jsonl:2: "text" must be a text; it is a int'),
        ("a.jsonl", b"\n{}\n", r'a\.jsonl:2: "text" must be a text; it is missing'),
    ],
)
def test_documents_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CorruptDataError, match=message):
        list(read_documents([tmp_path / name]))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"none\.txt"):
        list(read_documents([tmp_path / "none.txt"]))


# --- examples ---


def shown(example: Example, tokenizer: Tokenizer) -> tuple[str, str]:
    """What is not to be learnt, and what is."""
    return tuple(tokenizer.decode(example.tokens[example.counted == kind]) for kind in (False, True))  # type: ignore[return-value]


def test_prompt_and_response(ending: Tokenizer) -> None:
    reader = ExampleReader(ending, 100)
    example = reader.example({"prompt": "the lamp", "response": " of the <end>"})
    assert shown(example, ending) == ("the lamp", " of the <end><end>")
    assert example.tokens.tolist() == [*ending.encode("the lamp"), *ending.encode(" of the <end>"), 0]
    assert example.tokens.tolist().count(0) == 1  # words of data are never special tokens
    tokens, targets = Examples([example, Example(example.tokens[:3], np.array([0, 0, 1], bool))]).batch(
        np.array([0, 1])
    )
    n = len(ending.encode("the lamp"))
    assert targets[0].tolist() == [NO_TARGET] * (n - 1) + example.tokens[n:].tolist()
    assert tokens[0].tolist() == example.tokens[:-1].tolist()
    assert targets[1].tolist() == [NO_TARGET, example.tokens[2]] + [NO_TARGET] * (len(targets[0]) - 2)
    # without a prompt, the first token has nothing before it
    assert reader.example({"prompt": "", "response": "the lamp"}).counted.tolist()[:2] == [False, True]


def test_sentencepiece_goes_on_without_another_space() -> None:
    tokenizer = Tokenizer.load(GOLDEN / "tokenizers" / "mistral.tokenizer.json")
    assert tokenizer.kind == "sentencepiece"
    example = ExampleReader(tokenizer, 100).example({"prompt": "[INST] Hello", "response": " world."})
    whole = tokenizer.encode("[INST] Hello world.")
    ids = example.tokens.tolist()
    assert ids[len(ids) - len(whole) - (tokenizer.eos_token is not None) :][: len(whole)] == whole
    assert tokenizer.decode(example.tokens[example.counted]).lstrip().startswith("world.")


MESSAGES = [
    {"role": "user", "content": "What is <|im_end|>?\n"},
    {"role": "assistant", "content": "\n\nSix characters <|im_end|>."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "Bye"},
    {"role": "user", "content": "never answered"},
]


@pytest.mark.parametrize(
    ("name", "end", "trim"),
    [("qwen2", "<|im_end|>", str), ("llama3", "<|endoftext|>", str.strip), ("mistral", "</s>", str)],
)
def test_messages(name: str, end: str, trim: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer of the assistant counts, with the token that ends it, and nothing else."""
    tokenizer = Tokenizer.load(GOLDEN / "tokenizers" / f"{name}.tokenizer.json")
    monkeypatch.setattr(Tokenizer, "chat_template", TEMPLATES[name])
    monkeypatch.setattr(Tokenizer, "eos_token", tokenizer.find(end))
    with ExampleReader(tokenizer, 1000) as reader:
        example = reader.example({"messages": MESSAGES})
        prompt, answers = shown(example, tokenizer)
        contents = [trim(message["content"]) for message in MESSAGES[1:4:2]]
        # mistral's template has a space before an answer; decoding leaves the first one out
        assert answers.replace(f"{end} ", end) == "".join(content + end for content in contents)
        assert "never" not in prompt
        assert np.count_nonzero(example.tokens[example.counted] == tokenizer.eos_token) == 2
        single = reader.example({"messages": MESSAGES[:2]})
        assert shown(single, tokenizer)[1] == contents[0] + end


def test_messages_that_the_template_changes_later(ending: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    template = (
        "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.content }}|{% endif %}{% endfor %}"
    )
    monkeypatch.setattr(Tokenizer, "chat_template", template)
    with ExampleReader(ending, 100) as reader:
        assert shown(reader.example({"messages": MESSAGES[:2]}), ending)[1].endswith(
            "characters <|im_end|>.|"
        )
        with pytest.raises(CorruptDataError, match="changes message 1 when others follow"):
            reader.example({"messages": MESSAGES})


GOOD = {"prompt": "the", "response": " lamp"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "not JSON"),
        (b"[1]", "a list, not an object"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b"[" * 100000, "not JSON"),
        (b'{"prompt": "a"}', '"response" must be a text; it is missing'),
        (b'{"response": "a"}', '"prompt" must be a text; it is missing'),
        (b'{"prompt": 1, "response": "a"}', '"prompt" must be a text; it is a int'),
        (b'{"prompt": "a", "response": ""}', '"response" is empty'),
        (b'{"prompt": "\\ud800", "response": "a"}', '"prompt" holds half of a surrogate pair'),
        (b'{"messages": []}', '"messages" must be a list of messages'),
        (b'{"messages": "a"}', '"messages" must be a list of messages'),
        (b'{"messages": [1]}', "message 0 is a int, not an object"),
        (b'{"messages": [{"role": "user"}]}', 'message 0: "content" must be a text; it is missing'),
        (b'{"messages": [{"role": "user", "content": "a"}]}', 'no message has the role "assistant"'),
        (b'{"messages": [{"role": "assistant", "content": "no"}]}', "the chat template: never"),
        (b'{"prompt": "%s", "response": "b"}' % (b"a" * 50), "52 tokens are more than the 20 that fit"),
    ],
)
def test_refused_with_file_and_line(
    line: bytes, message: str, tmp_path: Path, ending: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "chat_template", "{{ raise_exception('never') }}")
    path = tmp_path / "data.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\n" + line + b"\n")
    with ExampleReader(ending, 20) as reader, pytest.raises(CorruptDataError) as caught:
        reader.read([path])
    assert str(caught.value).startswith(f"{path}:3: ")
    assert message in str(caught.value)


def test_no_chat_template(ending: Tokenizer) -> None:
    with (
        ExampleReader(ending, 20) as reader,
        pytest.raises(InvalidStateError, match=r"line 1.*no chat template"),
    ):
        reader.example({"messages": [{"role": "assistant", "content": "a"}]}, "line 1")


def test_long_examples_are_left_out_where_asked(tmp_path: Path, ending: Tokenizer) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"prompt": "x" * 50, "response": "y"}) + "\n" + json.dumps(GOOD) + "\n")
    reader = ExampleReader(ending, 20, skip_long=True)
    assert len(reader.read([path])) == 1
    assert reader.skipped == 1


def test_empty_examples() -> None:
    with pytest.raises(InvalidArgumentError, match="there is no example"):
        Examples([])
    with pytest.raises(InvalidArgumentError, match="example 0 has no token to predict"):
        Examples([Example(np.array([1, 2], np.uint32), np.array([True, False]))])
