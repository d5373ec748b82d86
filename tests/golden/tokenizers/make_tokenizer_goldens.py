"""Trains small BPE tokenizers, byte-level and SentencePiece, and records what the `tokenizers` and `sentencepiece`
packages make of many texts.

    pip install tokenizers sentencepiece gguf
    python make_tokenizer_goldens.py [SmolLM2-135M-Instruct.Q4_1.gguf]

Writes NAME.tokenizer.json and NAME.ids.json beside itself and, with the GGUF file, smollm2_ids.json. A case is
{"text", "ids", "special_ids", "added_ids"}: plain, with special tokens parsed (only where that differs), and with
the post-processor's tokens added (only where that differs). sentencepiece.json also has what a GGUF file holds of such
a tokenizer.
"""

import importlib.metadata
import io
import json
import pathlib
import random
import sys
import unicodedata

import sentencepiece
import tokenizers
from gguf import GGUFReader, GGUFWriter
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# No one's: look-behind, gaps between matches, matches of nothing, line ends.
CUSTOM_PATTERN = r"(?<=[a-z])[A-Z]\w*|^\s+|\d{2}|[\s\p{P}]+$|x*"

SENTENCES = [  # one per script
    "The keeper's lamp burned all night; we'd seen it, they'll see it, I'M sure YOU'RE right.",
    "Η θάλασσα ήταν ήρεμη και ο φάρος έλαμπε.",
    "Маяк светил всю ночь, и корабль вернулся домой.",
    "Ծովը հանգիստ էր, և փարոսը վառվում էր։",
    "הים היה שקט והמגדלור האיר כל הלילה. שָׁלוֹם",
    "كان البحر هادئًا وأضاء المنار طوال الليل.",
    "ܫܠܡܐ ܥܠܡܐ",
    "समुद्र शांत था और प्रकाशस्तंभ रात भर जलता रहा। १२३",
    "সমুদ্র শান্ত ছিল এবং বাতিঘর সারারাত জ্বলছিল। ৪৫৬",
    "ਸਮੁੰਦਰ ਸ਼ਾਂਤ ਸੀ।",
    "સમુદ્ર શાંત હતો.",
    "ସମୁଦ୍ର ଶାନ୍ତ ଥିଲା।",
    "கடல் அமைதியாக இருந்தது.",
    "సముద్రం ప్రశాంతంగా ఉంది.",
    "ಸಮುದ್ರ ಶಾಂತವಾಗಿತ್ತು.",
    "കടൽ ശാന്തമായിരുന്നു.",
    "මුහුද නිසල විය.",
    "ทะเลสงบและประภาคารส่องแสงตลอดคืน ๗๘๙",
    "ທະເລສະຫງົບ.",
    "རྒྱ་མཚོ་ཞི་འཇགས་ཡིན།",
    "ပင်လယ်သည် ငြိမ်သက်နေသည်။",
    "ზღვა მშვიდი იყო და შუქურა ანათებდა.",
    "ባሕሩ ጸጥ ያለ ነበር።",
    "សមុទ្រស្ងប់ស្ងាត់។",
    "ᠳᠠᠯᠠᠢ ᠲᠠᠶᠢᠪᠤᠩ",
    "海很平静，灯塔整夜亮着。一二三",
    "うみはしずかで、とうだいがひかっていた。",
    "カタカナ テスト ﾊﾝｶｸ",
    "바다는 고요했고 등대는 밤새 빛났다.",
    "ᎠᎺᏉᎯ ᎤᏙᎯᏳ",
    "ᐃᓄᒃᑎᑐᑦ ᑕᕆᐅᖅ",
    "𐌼𐌰𐌲 𐌲𐌻𐌴𐍃",
    "𒀀𒁀 𒈗",
]
SNIPPETS = [
    "👩‍👩‍👧‍👦 family, 👍🏽 thumbs, 🇫🇷🇩🇪 flags, ❤️‍🔥 heart, 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "e\u0301 a\u030a\u0323 n\u0303 Z̷̡͎a̸͉͝l̴̙̈́g̵o",
    "0 1 12 123 1234 12345 1,234.56 -7e-10 0xFFAA 1/2 ½ ¾ Ⅻ ² ④ ٣٤٥",
    "def f(x, *, y=1):\n    if x > y:\n\treturn {'a': [x, y]}  # note\n\n\nclass A: pass\n",
    '#include <stdio.h>\r\nint main(void) {\r\n  printf("%d\\n", 42);\r\n}\r\n',
    "a  b   c    d     e" + " " * 40 + "f" + " " * 17,
    "\t\ttabs\t and \t spaces \t\n\n\n",
    "line one\r\nline two\r\r\n\n line three \n \n  \r",
    "   leading and trailing   ",
    "nbsp\u00a0\u00a0thin\u2009ideographic\u3000\u3000ogham\u1680line\u2028para\u2029nel\u0085mvs\u180e\u180ezwsp\u200bbom\ufeff",
    "don't DON'T it's IT'S we'Ve I'Ll 'tis 's 'S 'ſ 'x ''' ’s",
    "https://example.org/a?b=c&d=%20#e user@example.com C:\\path\\file.txt",
    "...!!!???---===///***((([[[{{{ \n ]]]}}} $100 €20 £5 ¥3 ± × ÷ ≠ ≤ ∞ ∫ √",
    "\x00\x01\x02\x07\x1b[0m\x7f\u0080\u009f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbb abababababababab",
    "",
    " ",
    "\n",
    "x",
]
SPECIAL_SNIPPETS = [
    "<|endoftext|>",
    "<|im_start|>user\nHello <|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|><|endoftext|> b <|im_start|><|im_end|>",
    "<|im_start|",
    "<<|im_end|>> <|im_end||>",
    "one  <mask>  two <mask>\n<mask>x <word> a<word> <word>b é<word> <word>9 _<word> <word>- <word>\u0301 <word>",
    "[ordinary][ordinary] [ordinary]s  <|strip|>  end \u00a0<|strip|>\u3000\n<|strip|><|strip|> <|strip|>",
    "abc abcd abcde <a><a>b<a>bc",
    "  <mask><|strip|>  <mask>   <|strip|>",
]


def texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    plain = SENTENCES + SNIPPETS
    mixed = [
        "".join(
            rng.choice(plain + SPECIAL_SNIPPETS)[: rng.randint(1, 40)]
            + rng.choice(["", " ", "  ", "\n", "1", "'s"])
            for _ in range(6)
        )
        for _ in range(count)
    ]
    # Characters that Unicode had early: the tables of any two libraries agree on them.
    old = [chr(c) for c in range(0x30000) if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs", "Co")]
    spaces = [c for c in old if c.isspace()] + ["\u180e", "\u200b", "'", "\u200d"]
    unusual = [
        "".join(rng.choice(old if rng.random() < 0.7 else spaces) for _ in range(40)) for _ in range(count)
    ]
    return plain + SPECIAL_SNIPPETS + mixed + unusual


def cases(tokenizer: Tokenizer, seed: int, count: int) -> list[dict]:
    result = []
    for text in texts(seed, count):
        tokenizer.encode_special_tokens = True
        case = {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
        tokenizer.encode_special_tokens = False
        special = tokenizer.encode(text, add_special_tokens=False).ids
        added = tokenizer.encode(text, add_special_tokens=True).ids
        if special != case["ids"]:
            case["special_ids"] = special
        if added != special:
            case["added_ids"] = added
        result.append(case)
    return result


def made_by() -> str:
    packages = ("tokenizers", "sentencepiece", "gguf")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return f"make_tokenizer_goldens.py: {versions}"


def write(name: str, document: object) -> None:
    path = HERE / name
    path.write_text(json.dumps(document, ensure_ascii=True, separators=(",", ":")) + "\n", "utf-8")
    print(f"{path.name}: {path.stat().st_size} bytes")


def byte_level(use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def train(pre_tokenizer, size: int, special: list[str], all_bytes: bool, **model) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if all_bytes else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator((SENTENCES + SNIPPETS) * 3, trainer)
    return tokenizer


def gpt2() -> Tokenizer:
    tokenizer = train(byte_level(True), 1000, ["<|endoftext|>"], True)
    tokenizer.add_special_tokens(
        [AddedToken("<mask>", lstrip=True, special=True), "<|im_start|>", "<|im_end|>"]
    )
    tokenizer.add_tokens(
        [
            AddedToken("<word>", single_word=True),
            AddedToken("<|strip|>", rstrip=True, normalized=False),
            "[ordinary]",
            "<a>",
            "<a>b",
            AddedToken("abcd", single_word=True, lstrip=True, rstrip=True),
        ]
    )
    return tokenizer


def llama3() -> Tokenizer:
    pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated", invert=False), byte_level(False)]
    )
    tokenizer = train(pre_tokenizer, 1200, [], True)
    state = json.loads(tokenizer.to_str())
    state["model"]["ignore_merges"] = True
    # Tokens that no merge reaches: only ignore_merges finds them.
    for token in ["Ġlighthouse", "Ġkeeper", "éĥ½"]:
        state["model"]["vocab"].setdefault(token, len(state["model"]["vocab"]))
    tokenizer = Tokenizer.from_str(json.dumps(state))
    specials = ["<|begin_of_text|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens(specials + [f"<|reserved_special_token_{i}|>" for i in range(12)])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                special_tokens=[("<|begin_of_text|>", bos)],
            ),
        ]
    )
    return tokenizer


def smollm() -> Tokenizer:
    """Like SmolLM2: special tokens first, and not every byte has a token."""
    pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)])
    return train(pre_tokenizer, 900, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], False)


def unknown() -> Tokenizer:
    """An unknown token stands for the bytes without a token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = byte_level(True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        SENTENCES[:3], trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False)
    )
    return tokenizer


def split_by(pattern: str) -> Tokenizer:
    pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False), byte_level(False)]
    )
    tokenizer = train(pre_tokenizer, 700, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], True)
    return tokenizer


def qwen2() -> Tokenizer:
    tokenizer = split_by(QWEN2_PATTERN)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken("e\u0301", normalized=True), AddedToken("n\u0303", normalized=False)])
    return tokenizer


def tekken() -> Tokenizer:
    return split_by(TEKKEN_PATTERN)


def custom() -> Tokenizer:
    return split_by(CUSTOM_PATTERN)


def write_trained() -> None:
    """What the trainer learns: all tokens by id, and the merges as ids."""
    corpus = (SENTENCES + SNIPPETS) * 3 + SENTENCES[:2] * 5
    split = {
        "gpt2": byte_level(True),
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]),
    }
    cases = []
    for name, size, least in [("gpt2", 1500, 0), ("smollm", 900, 0), ("gpt2", 5000, 4), ("gpt2", 100000, 0)]:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = split[name]
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=least,
            special_tokens=["<end>", "aa"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(corpus, trainer)
        model = json.loads(tokenizer.to_str())["model"]
        merges = [[model["vocab"][token] for token in merge] for merge in model["merges"]]
        tokens = sorted(model["vocab"], key=model["vocab"].get)
        cases.append(
            {"pre_tokenizer": name, "vocabulary_size": size, "minimum_count": least, "merges": merges[:1200]}
            | {"merge_count": len(merges), "last_token": tokens[-1], "token_count": len(tokens)}
        )
    write("trained.json", {"made_by": made_by(), "texts": corpus, "cases": cases})


def sentencepiece_model(**options) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((SENTENCES + [s for s in SNIPPETS if "\0" not in s]) * 3),
        model_writer=model,
        model_type="bpe",
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        byte_fallback=True,
        vocab_size=1000,
        character_coverage=0.98,
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_types(model: sentencepiece.SentencePieceProcessor) -> list[int]:
    """tokenizer.ggml.token_type."""
    types = []
    for i in range(len(model)):
        if model.is_unknown(i):
            types.append(2)
        elif model.is_control(i):
            types.append(3)
        elif model.is_unused(i):
            types.append(5)
        else:
            types.append(6 if model.is_byte(i) else 1)
    return types


def write_sentencepiece() -> None:
    model = sentencepiece_model()
    ids = range(len(model))
    gguf = GGUFWriter(HERE / "sentencepiece.gguf", "llama")
    gguf.add_tokenizer_model("llama")
    gguf.add_token_list([model.id_to_piece(i) for i in ids])
    gguf.add_token_scores([model.get_score(i) for i in ids])
    gguf.add_token_types(sentencepiece_types(model))
    gguf.add_unk_token_id(0)
    gguf.add_bos_token_id(1)
    gguf.add_eos_token_id(2)
    gguf.write_header_to_file()
    gguf.write_kv_data_to_file()
    gguf.close()
    write(
        "sentencepiece.json",
        {
            "made_by": made_by(),
            "tokens": [model.id_to_piece(i) for i in ids],
            "scores": [model.get_score(i) for i in ids],
            "token_types": sentencepiece_types(model),
            "cases": [{"text": t, "ids": model.encode(t)} for t in texts(200, 20)],
        },
    )


def of_sentencepiece() -> Tokenizer:
    """The model as converters write it: merges made from the scores."""
    model = sentencepiece_model()
    vocab = {model.id_to_piece(i): i for i in range(len(model))}
    types = sentencepiece_types(model)
    merges = []
    for piece, i in sorted(vocab.items(), key=lambda item: -model.get_score(item[1])):
        if types[i] == 1:
            pairs = [(piece[:k], piece[k:]) for k in range(1, len(piece))]
            known = [pair for pair in pairs if all(types[vocab.get(p, 0)] == 1 for p in pair)]
            merges += sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def llama2() -> Tokenizer:
    tokenizer = of_sentencepiece()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")]
    )
    tokenizer.add_tokens(
        [AddedToken("<mask>", normalized=True, lstrip=True), AddedToken("abc", normalized=False)]
    )
    return tokenizer


def mistral() -> Tokenizer:
    tokenizer = of_sentencepiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>", "<|im_end|>")]
    )
    tokenizer.add_tokens([AddedToken("<mask>", rstrip=True)])
    return tokenizer


def metaspace() -> Tokenizer:
    tokenizer = of_sentencepiece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.add_special_tokens(["<s>", "<|im_end|>"])
    return tokenizer


def smollm2(path: str) -> Tokenizer:
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    types = fields["tokenizer.ggml.token_type"].contents()
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level(True)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([t for t, kind in zip(tokens, types, strict=True) if kind == 3])
    return tokenizer


def main() -> None:
    for seed, make in enumerate(
        [gpt2, llama3, smollm, unknown, qwen2, tekken, custom, llama2, mistral, metaspace]
    ):
        tokenizer = make()
        write(f"{make.__name__}.tokenizer.json", json.loads(tokenizer.to_str()))
        write(
            f"{make.__name__}.ids.json",
            {"made_by": made_by(), "cases": cases(tokenizer, seed, 60 if seed < 4 else 20)},
        )
    write_sentencepiece()
    write_trained()
    if len(sys.argv) > 1:
        write("smollm2_ids.json", {"made_by": made_by(), "cases": cases(smollm2(sys.argv[1]), 100, 60)})


if __name__ == "__main__":
    print(made_by(), "tokenizers", tokenizers.__version__)
    main()
