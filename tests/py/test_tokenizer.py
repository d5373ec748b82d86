"""Tokenizers from Python."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from riftco_transformer.artifacts import Runtime
from riftco_transformer.errors import InvalidStateError, OutOfRangeError, RiftcoError, UnsupportedError
from riftco_transformer.tokenizer import Tokenizer

TEXT = "Tensor: naïve 日本語 👩\u200d👩\u200d👧 \r\n\t end"


def test_byte_tokenizer() -> None:
    with Tokenizer.byte() as tokenizer:
        assert tokenizer.kind == "byte"
        assert tokenizer.vocabulary_size == len(tokenizer) == 256
        assert type(tokenizer.vocabulary_size) is int
        assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.adds_bos) == (None, None, False)
        ids = tokenizer.encode(TEXT)
        assert ids == list(TEXT.encode())
        assert all(type(token) is int for token in ids)
        assert tokenizer.decode(ids) == TEXT
        assert tokenizer.encode(b"\xff\x00") == [255, 0]
        assert tokenizer.encode(bytearray(b"a")) == tokenizer.encode(memoryview(b"a")) == [97]
        assert tokenizer.decode_bytes([255, 0]) == b"\xff\x00"
        assert tokenizer.decode([97, 255, 98]) == "a\ufffdb"
        assert tokenizer.decode(np.array([97, 98])) == "ab"
        assert tokenizer.encode("") == []
        assert tokenizer.decode([]) == ""
        assert tokenizer.find("a") == 97
        assert tokenizer.find("ab") is None
        assert not tokenizer.is_special(0)
        assert repr(tokenizer) == "Tokenizer(kind='byte', vocabulary_size=256)"


GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizers"


def test_sentencepiece_tokenizer(tmp_path: Path) -> None:
    with Tokenizer.load(GOLDEN / "llama2.tokenizer.json") as tokenizer:
        assert tokenizer.kind == "sentencepiece"
        assert tokenizer.chat_template is None
        ids = tokenizer.encode(TEXT)
        assert tokenizer.decode(ids) == TEXT  # without the space that was put before it
        assert tokenizer.decode(ids[1:]).strip() == tokenizer.decode(ids[1:])
        decoder = tokenizer.stream_decoder()
        for _ in range(2):  # the second text loses its first space as well
            assert "".join(decoder.push(token) for token in ids) + decoder.flush() == TEXT
        begin = tokenizer.find("<s>")
        assert tokenizer.encode("a", add_special=True) == [begin, *tokenizer.encode("a")]
        assert begin not in tokenizer.encode("<s>")
        assert tokenizer.encode("<s>", parse_special=True) == [begin]
        tokenizer.save(tmp_path / "tokenizer.json")
        with Tokenizer.load(tmp_path / "tokenizer.json") as again:
            assert again.encode(TEXT, add_special=True) == tokenizer.encode(TEXT, add_special=True)


def test_sentencepiece_tokenizer_of_a_gguf_file() -> None:
    cases = json.loads((GOLDEN / "sentencepiece.json").read_text())["cases"]
    with Tokenizer.load(GOLDEN / "sentencepiece.gguf") as tokenizer:
        assert (tokenizer.kind, tokenizer.bos_token, tokenizer.eos_token) == ("sentencepiece", 1, 2)
        assert tokenizer.adds_bos
        for case in cases:
            assert tokenizer.encode(case["text"]) == case["ids"]
            assert tokenizer.decode(case["ids"]) == case["text"]


def test_byte_tokenizer_has_no_file(tmp_path: Path) -> None:
    with Tokenizer.byte() as tokenizer, pytest.raises(UnsupportedError, match="byte tokenizer"):
        tokenizer.save(tmp_path / "tokenizer.json")
    assert not list(tmp_path.iterdir())


def test_long_text_on_the_helper_thread() -> None:
    text = "x" * 1_000_000
    with Tokenizer.byte() as tokenizer:
        assert len(tokenizer.encode(text)) == 1_000_000


def test_misuse() -> None:
    with Tokenizer.byte() as tokenizer:
        with pytest.raises(OutOfRangeError, match="256"):
            tokenizer.decode([256])
        with pytest.raises(OutOfRangeError, match="token -5"):
            tokenizer.decode([-5])
        with pytest.raises(OutOfRangeError, match="256"):
            tokenizer.is_special(256)
        with pytest.raises(TypeError, match="text must be str or bytes, not int"):
            tokenizer.encode(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="strict must be a bool, not int"):
            tokenizer.encode("a", strict=1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not float"):
            tokenizer.decode([1.5])  # type: ignore[list-item]
        with pytest.raises(UnicodeEncodeError):
            tokenizer.encode("\ud800")
        with pytest.raises(TypeError, match="cannot be copied"):
            copy.copy(tokenizer)
        assert tokenizer.encode("ok") == [111, 107]
    with pytest.raises(InvalidStateError, match="the tokenizer is closed"):
        tokenizer.encode("a")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing") as caught:
        Tokenizer.load(tmp_path / "missing")
    assert isinstance(caught.value, RiftcoError)
    assert caught.value.status == 13


def test_stream_decoder_holds_characters_back() -> None:
    with Tokenizer.byte() as tokenizer, tokenizer.stream_decoder() as decoder:
        assert [decoder.push(byte) for byte in "aé".encode()] == ["a", "", "é"]
        assert [decoder.push(byte) for byte in "日".encode()[:2]] == ["", ""]
        assert decoder.flush() == "\ufffd"
        assert decoder.push(98) == "b"
        assert decoder.flush() == ""
        with pytest.raises(OutOfRangeError):
            decoder.push(256)
        assert decoder.push(99) == "c"


def test_stream_decoder_pieces_are_the_whole() -> None:
    data = bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)) + "日本語é".encode() * 50
    with Tokenizer.byte() as tokenizer, tokenizer.stream_decoder() as decoder:
        pieces = [decoder.push(byte) for byte in data] + [decoder.flush()]
        assert "".join(pieces) == data.decode("utf-8", "replace")


def test_stream_decoder_outlives_its_tokenizer() -> None:
    tokenizer = Tokenizer.byte()
    decoder = tokenizer.stream_decoder()
    tokenizer.close()
    assert decoder.push(97) == "a"


def test_tokenizer_of_a_rift_file(rift_path: Path, runtime: Runtime) -> None:
    with Tokenizer.load(rift_path) as tokenizer:
        assert tokenizer.encode(TEXT) == runtime.tokenizer.encode(TEXT)


def test_special_tokens_only_where_asked_for(smollm2: Runtime) -> None:
    tokenizer = smollm2.tokenizer
    start = tokenizer.find("<|im_start|>")
    assert start is not None
    assert tokenizer.is_special(start)
    assert start not in tokenizer.encode("<|im_start|>")
    assert tokenizer.encode("<|im_start|>", parse_special=True) == [start]
    assert tokenizer.decode([start]) == "<|im_start|>"
    assert tokenizer.decode([start], skip_special=True) == ""
    assert tokenizer.kind == "bpe"
    assert tokenizer.vocabulary_size == smollm2.model.config.vocabulary_size
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_train(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"low lower lowest \xff" * 10)
    reports: list[tuple[int, int]] = []
    with Tokenizer.train(
        [path, "new newer newest", b"wide"],
        vocabulary_size=270,
        special_tokens=["<end>"],
        eos_token=0,
        progress=lambda done, total: reports.append((done, total)),
    ) as tokenizer:
        assert tokenizer.vocabulary_size == 270
        assert (tokenizer.special_tokens, tokenizer.eos_token) == ([0], 0)
        assert len(tokenizer.encode(" lower")) < 3
        assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
        tokenizer.save(path)
        with Tokenizer.load(path) as again:
            assert again.encode(TEXT) == tokenizer.encode(TEXT)
    assert reports[-1][0] == reports[-1][1] == 2 * (180 + 16 + 4)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama3", "unknown", "qwen2", "custom", "llama2", "mistral", "metaspace"]
)
def test_saved_files_are_read_by_the_tokenizers_package(name: str, tmp_path: Path) -> None:
    with Tokenizer.load(GOLDEN / f"{name}.tokenizer.json") as tokenizer:
        tokenizer.save(tmp_path / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for case in json.loads((GOLDEN / f"{name}.ids.json").read_text())["cases"]:
        ids = case.get("added_ids", case.get("special_ids", case["ids"]))
        assert theirs.encode(case["text"]).ids == ids


def test_trained_files_are_read_by_the_tokenizers_package(tmp_path: Path) -> None:
    texts = json.loads((GOLDEN / "trained.json").read_text())["texts"]
    with Tokenizer.train(texts, vocabulary_size=1000, special_tokens=["<end>"]) as tokenizer:
        tokenizer.save(tmp_path / "tokenizer.json")
        theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        for text in texts[:60]:
            assert theirs.encode(text).ids == tokenizer.encode(text, parse_special=True)


def test_train_misuse() -> None:
    with pytest.raises(TypeError, match="iterable of texts, not str"):
        Tokenizer.train("text")
    with pytest.raises(TypeError, match="a text must be str or bytes, not int"):
        Tokenizer.train([1])  # type: ignore[list-item]
    with pytest.raises(OutOfRangeError, match="vocabulary_size of 10"):
        Tokenizer.train(["a"], vocabulary_size=10)
    with pytest.raises(RiftcoError, match="pre_tokenizer must be one of gpt2"):
        Tokenizer.train(["a"], pre_tokenizer="other")
    with pytest.raises(OutOfRangeError, match="the end token 1 is none of the 1"):
        Tokenizer.train(["a"], special_tokens=["<end>"], eos_token=1)


def test_plain_ranges() -> None:
    with Tokenizer.load(GOLDEN / "qwen2.tokenizer.json") as tokenizer:
        end = tokenizer.find("<|im_end|>")
        text = "a<|im_end|>ö<|im_end|>"
        begin = len("a<|im_end|>ö".encode())
        assert tokenizer.encode(text, parse_special=True).count(end) == 2
        ids = tokenizer.encode(text, parse_special=True, plain_ranges=[(begin, begin + 1)])
        assert ids.count(end) == 1
        assert tokenizer.decode(ids) == text
        with pytest.raises(OutOfRangeError, match="plain range"):
            tokenizer.encode(text, parse_special=True, plain_ranges=[(3, 2)])
