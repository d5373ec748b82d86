"""Saving: what is written is what the packages that own the formats read, and what we read back."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import quantize
from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.errors import (
    InputOutputError,
    InvalidArgumentError,
    InvalidStateError,
    UnsupportedError,
)
from riftco_transformer.model import Model, ModelConfig
from riftco_transformer.tokenizer import Tokenizer
from safetensors import safe_open

GOLDEN = Path(__file__).parent.parent / "golden"
MODELS = sorted(path for path in (GOLDEN / "models").iterdir() if path.is_dir())
MODELS += sorted((GOLDEN / "gguf").glob("*.gguf"))
IDS = [1, 5, 40, 3, 17, 2]
TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}


REASONS = (
    "sliding window|llama3 scaling|yarn with an attention factor|gelu_tanh|matrices of q|factors of rotary"
    "|other biases|is not a float32"
)


@pytest.fixture(scope="module")
def llama() -> Model:
    return Model.load(GOLDEN / "models/llama-gqa-untied")


def named(reader: gguf.GGUFReader) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in reader.tensors}


def without_tokenizer(folder: Path, copy: Path) -> Path:
    """Few of the tokenizers of our test models have a name in GGUF files."""
    shutil.copytree(folder, copy)
    (copy / "tokenizer.json").unlink()
    return copy


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Half-split rotary pairs side by side: how the format keeps the rows of q and k."""
    parts = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return parts.swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
@pytest.mark.parametrize("target", ["model.gguf", "folder"])
def test_exact_or_refused_by_name(path: Path, target: str, tmp_path: Path) -> None:
    """Each of our test models to each format: the same bits when it comes back, or nothing."""
    source = path
    if path.is_dir() and target == "model.gguf":
        source = without_tokenizer(path, tmp_path / "source")
    with Model.load(source) as model:
        if source != path:
            shutil.rmtree(source)
        try:
            model.save(tmp_path / target)
        except UnsupportedError as error:
            reason = str(error)
        else:
            reason = ""
        if reason:
            assert list(tmp_path.iterdir()) == []
            assert re.search(REASONS, reason), reason
            return
        assert [item.name for item in tmp_path.iterdir()] == [target]
        with ModelBundle.load(tmp_path / target).instantiate() as again:
            assert np.array_equal(again.model.logits(IDS), model.logits(IDS))
            assert again.model.config.biases == model.config.biases
            text = "Hello  world 12 \t é\n"
            if source != path:
                return
            assert again.tokenizer.encode(text) == model.tokenizer().encode(text)


def test_most_models_are_written(tmp_path: Path) -> None:
    """The test above must not pass by refusing everything."""
    for name in ("llama-gqa-untied", "llama-bf16", "llama-linear", "qwen3", "qwen2-biases", "gpt2-tied"):
        source = without_tokenizer(GOLDEN / "models" / name, tmp_path / name)
        Model.load(source).save(tmp_path / f"{name}.gguf")
        Model.load(GOLDEN / "models" / name).save(tmp_path / f"{name}-folder")
    for name in ("mistral-window", "qwen2-window-layers", "llama-llama3", "qwen3-yarn-mscale"):
        Model.load(GOLDEN / "models" / name).save(tmp_path / f"{name}-folder")


@pytest.mark.parametrize("kind", TYPES)
def test_gguf_package_reads_it(llama: Model, kind: str, tmp_path: Path) -> None:
    llama.save(tmp_path / "model.gguf", type=kind)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    config, parameters, tensors = llama.config, llama.parameters, named(reader)
    assert len(tensors) == len(parameters)
    for name, ours, heads in (
        ("token_embd.weight", "embedding.token", 0),
        ("output.weight", "head.weight", 0),
        ("blk.1.attn_q.weight", "layers.1.q.weight", config.head_count),
        ("blk.0.attn_k.weight", "layers.0.k.weight", config.kv_head_count),
        ("blk.0.attn_v.weight", "layers.0.v.weight", 0),
        ("blk.1.ffn_down.weight", "layers.1.down.weight", 0),
    ):
        values = interleaved(parameters[ours], heads) if heads else parameters[ours]
        assert tensors[name].tensor_type == TYPES[kind]
        assert np.array_equal(tensors[name].data.view(np.uint8), quantize(values, TYPES[kind]).view(np.uint8))
    norm = tensors["blk.0.attn_norm.weight"]
    assert norm.tensor_type == gguf.GGMLQuantizationType.F32
    assert np.array_equal(norm.data, parameters["layers.0.attention_norm.weight"])
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama"
    assert fields["llama.attention.head_count_kv"] == config.kv_head_count
    assert fields["llama.rope.freq_base"] == config.rotary_base
    assert len(fields["tokenizer.ggml.tokens"]) == config.vocabulary_size
    assert fields["tokenizer.ggml.model"] == "gpt2"


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_quantised_blocks_are_the_packages_own(kind: str, tmp_path: Path) -> None:
    """Rows with zeros, ties, one large value, tiny and huge values."""
    config = ModelConfig(
        width=64, head_count=2, kv_head_count=2, head_width=32, mlp_width=96, layer_count=1,
        activation="silu_gated", norm="rms", position="rotary", rotary_width=32, biases=frozenset(),
        vocabulary_size=300,
    )  # fmt: skip
    random = np.random.default_rng(3)
    with Model.create(config, seed=9) as model:
        model.save(tmp_path / "a")
        file = tmp_path / "a/model.safetensors"
        data = bytearray(file.read_bytes())
        start = 8 + int.from_bytes(data[:8], "little")
        values = random.standard_normal((300, 64)).astype(np.float32)
        values *= np.exp(random.uniform(-60, 8, (300, 1))).astype(np.float32)
        values[0] = 0
        values[1, :3] = (127, 0.5, -1.5)
        values[2] = np.float32(1e-42)
        values[3, ::2] = -values[3, 1::2]
        header = json.loads(data[8:start])
        begin, end = header["model.embed_tokens.weight"]["data_offsets"]
        data[start + begin : start + end] = values.tobytes()
        file.write_bytes(data)
    with Model.load(tmp_path / "a") as model:
        assert np.array_equal(model.parameters["embedding.token"], values)
        model.save(tmp_path / "b.gguf", type=kind)
        model.save(tmp_path / "b.rift", type=kind)
    written = named(gguf.GGUFReader(tmp_path / "b.gguf"))["token_embd.weight"].data
    with np.errstate(all="ignore"):
        expected = quantize(values, TYPES[kind])
    normal = np.abs(values).max(axis=1) > 1e-37  # below, the package divides by what it cannot invert
    assert np.array_equal(written[normal], expected[normal])
    with Model.load(tmp_path / "b.gguf") as one, Model.load(tmp_path / "b.rift") as two:
        assert np.array_equal(one.logits(IDS), two.logits(IDS))
        assert one.parameters.info["embedding.token"].type == kind


@pytest.mark.parametrize("source", ["gpt2-untied", "llama-bias-padded-vocab", "llama-bf16"])
def test_safetensors_package_reads_folders(source: str, tmp_path: Path) -> None:
    """A folder that transformers wrote comes out of us with the same tensors."""
    original = GOLDEN / "models" / source
    with Model.load(original) as model:
        model.save(tmp_path / "folder", shard_bytes=50_000)
    index = json.loads((tmp_path / "folder/model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    total = 0
    with safe_open(original / "model.safetensors", "np") as expected:
        for name in expected.keys():  # noqa: SIM118
            file = tmp_path / "folder" / index["weight_map"][name]
            with safe_open(file, "np") as ours:
                if "bf16" in source:
                    assert ours.get_slice(name).get_dtype() == expected.get_slice(name).get_dtype() == "BF16"
                    assert ours.get_slice(name).get_shape() == expected.get_slice(name).get_shape()
                    continue
                assert np.array_equal(ours.get_tensor(name), expected.get_tensor(name))
                total += ours.get_tensor(name).nbytes
        assert set(index["weight_map"]) == set(expected.keys())
    assert total in (0, index["metadata"]["total_size"])
    config, before = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "folder", original)
    )
    for key in ("model_type", "architectures", "vocab_size", "tie_word_embeddings"):
        assert config[key] == before[key]
    others = {file.name for file in (tmp_path / "folder").iterdir()} - set(index["weight_map"].values())
    assert others == {
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_save_leaves_nothing_behind(llama: Model, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise LookupError("enough")

    for name in ("model.rift", "model.gguf", "folder"):
        with pytest.raises(LookupError, match="enough"):
            llama.save(tmp_path / name, progress=stop)
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    with pytest.raises(InputOutputError, match="not empty"):
        llama.save(tmp_path / "full")
    assert [item.name for item in tmp_path.rglob("*")] == ["full", "mine.txt"]
    with pytest.raises(InvalidArgumentError, match="the suffix names no format"):
        llama.save(tmp_path / "model.bin")
    with pytest.raises(InvalidArgumentError, match="type must be one of keep, f32"):
        llama.save(tmp_path / "model.gguf", type="q3")
    with pytest.raises(UnsupportedError, match=r"48 values, not whole blocks of 32 as q8_0 needs"):
        Model.load(GOLDEN / "models/gpt2-tied").save(tmp_path / "model.rift", type="q8_0")


def test_values_that_a_type_cannot_hold(tmp_path: Path) -> None:
    with Model.load(GOLDEN / "models/llama-gqa-untied") as model:
        model.save(tmp_path / "a")
    file = tmp_path / "a/model.safetensors"
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    begin = json.loads(data[8:start])["model.embed_tokens.weight"]["data_offsets"][0]
    data[start + begin : start + begin + 4] = np.float32(1e20).tobytes()
    file.write_bytes(data)
    with Model.load(tmp_path / "a") as model:
        model.save(tmp_path / "b.gguf", type="bf16")
        for kind in ("f16", "q8_0", "q4_0"):
            with pytest.raises(UnsupportedError, match=f"row 0 of embedding.token .* too large for {kind}"):
                model.save(tmp_path / "c.gguf", type=kind)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a", "b.gguf"]


def test_parameters(llama: Model) -> None:
    parameters = llama.parameters
    assert len(parameters) == len(parameters.info) == llama.info.tensor_count
    assert parameters.info["final_norm.weight"] == ("f32", (llama.config.width,))
    assert sum(values.size for values in parameters.values()) == llama.info.parameter_count
    with safe_open(GOLDEN / "models/llama-gqa-untied/model.safetensors", "np") as expected:
        for ours, theirs in (("head.weight", "lm_head.weight"), ("final_norm.weight", "model.norm.weight")):
            assert np.array_equal(parameters[ours], expected.get_tensor(theirs))
    with pytest.raises(KeyError):
        parameters["q"]
    quantised = Model.load(GOLDEN / "gguf/llama-q4_1-tied.gguf").parameters
    tensor = named(gguf.GGUFReader(GOLDEN / "gguf/llama-q4_1-tied.gguf"))["blk.0.attn_v.weight"]
    assert quantised.info["layers.0.v.weight"].type == "q4_1"
    assert np.array_equal(
        quantised["layers.0.v.weight"], gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    )


TOKENIZERS = {  # why a GGUF file cannot hold them; None: it does
    "custom": "pattern",
    "gpt2": "strips white space",
    "llama2": "merges and no scores",
    "llama3": "are not its BOS and EOS",
    "mistral": "merges and no scores",
    "smollm": None,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_come_back_the_same_or_are_refused(name: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(GOLDEN / f"tokenizers/{name}.tokenizer.json")
    config = ModelConfig(
        vocabulary_size=tokenizer.vocabulary_size + 3, layer_count=1, width=32, head_count=1, kv_head_count=1,
        mlp_width=32, activation="silu_gated", norm="rms", position="rotary", rotary_width=32,
        biases=frozenset(),
    )  # fmt: skip
    texts = ["Hello  world 12345 \t é\n don't", "  two\n\n\nlines <|im_end|> x", "wörld 漢字 🙂", ""]
    with Model.create(config, tokenizer=tokenizer) as model:
        model.save(tmp_path / "folder")
        written = ["folder"]
        if TOKENIZERS[name] is None:
            model.save(tmp_path / "model.gguf")
            written.append("model.gguf")
        else:
            with pytest.raises(UnsupportedError, match=TOKENIZERS[name]):
                model.save(tmp_path / "model.gguf")
    for target in written:
        again = Tokenizer.load(tmp_path / target)
        for text in texts:
            for special in (False, True):
                how = {"add_special": special, "parse_special": special}
                assert again.encode(text, **how) == tokenizer.encode(text, **how)
        assert again.vocabulary_size == tokenizer.vocabulary_size + (3 if target == "model.gguf" else 0)


def rewrite(source: Path, target: Path, write_tokenizer: Callable[[gguf.GGUFWriter], None]) -> None:
    """A llama file by the gguf package, with another tokenizer."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for key, field in reader.fields.items():
        if key.startswith("llama."):
            writer.add_key_value(key, field.contents(), field.types[0])
    write_tokenizer(writer)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_file_may_say_that_it_has_no_tokenizer(llama: Model, tmp_path: Path) -> None:
    llama.save(tmp_path / "bytes.gguf")
    rewrite(
        tmp_path / "bytes.gguf", tmp_path / "none.gguf", lambda writer: writer.add_tokenizer_model("none")
    )
    with Model.load(tmp_path / "none.gguf") as model:
        assert np.array_equal(model.logits([1, 2, 3]), llama.logits([1, 2, 3]))
        with pytest.raises(InvalidStateError):
            model.tokenizer()


def test_sentencepiece_scores_come_back(llama: Model, tmp_path: Path) -> None:
    """A file with such a tokenizer, made by the gguf package."""
    llama.save(tmp_path / "bytes.gguf")
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", *"abcdefghil.", "he", "▁he", "ll", "▁a", "hell", "▁hell", "ab", "abc", "▁abc", "[INST]"]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 260) + [4]
    pieces += [f"[PAD{i}]" for i in range(len(pieces), llama.config.vocabulary_size)]
    types += [5] * (len(pieces) - len(types))
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces) - 259)]

    def write_tokenizer(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(pieces)
        writer.add_token_scores(scores)
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    rewrite(tmp_path / "bytes.gguf", tmp_path / "spm.gguf", write_tokenizer)
    with Model.load(tmp_path / "spm.gguf") as model:
        model.save(tmp_path / "again.gguf")
        model.save(tmp_path / "folder")
    tokenizer = Tokenizer.load(tmp_path / "spm.gguf")
    assert tokenizer.kind == "sentencepiece"
    assert pieces[tokenizer.encode("hell")[0]] == "▁hell"
    fields = [
        {key: field.contents() for key, field in gguf.GGUFReader(tmp_path / name).fields.items()}
        for name in ("spm.gguf", "again.gguf")
    ]
    for key in (
        "model",
        "tokens",
        "scores",
        "token_type",
        "bos_token_id",
        "eos_token_id",
        "unknown_token_id",
    ):
        assert fields[0][f"tokenizer.ggml.{key}"] == fields[1][f"tokenizer.ggml.{key}"]
    for target in ("again.gguf", "folder"):
        again = Tokenizer.load(tmp_path / target)
        for text in ("hell abc  a.", "[INST] hé\n", " héllo", "", "  "):
            for special in (False, True):
                how = {"add_special": special, "parse_special": special}
                ids = tokenizer.encode(text, **how)
                assert again.encode(text, **how) == ids
                assert again.decode(ids) == tokenizer.decode(ids)


def test_stage_and_parent(llama: Model, tmp_path: Path) -> None:
    llama.save(tmp_path / "a.rift", stage="pretrained", parent="nothing é")
    metadata = ModelBundle.load(tmp_path / "a.rift").metadata
    assert (metadata["riftco.stage"], metadata["riftco.parent"]) == ("pretrained", "nothing é")
    llama.save(tmp_path / "b.rift")
    assert "riftco.stage" not in ModelBundle.load(tmp_path / "b.rift").metadata
    for options in ({"stage": "pretrained"}, {"parent": "b"}):
        with pytest.raises(UnsupportedError, match=r"only .rift files"):
            llama.save(tmp_path / "c.gguf", **options)
    with pytest.raises(TypeError, match="stage"):
        llama.save(tmp_path / "c.rift", stage=1)  # type: ignore[arg-type]
