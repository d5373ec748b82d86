"""The real model: memory, and that caches, chunks and batches do not change a bit of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from riftco_transformer.artifacts import Runtime
from riftco_transformer.kv_cache import KvCacheFactory
from riftco_transformer.serving import TextGenerator
from riftco_transformer.session import step_many

PROMPT = "The history of the steam engine begins in the first century"

DECODE = """
import sys
from riftco_transformer import KvCacheFactory, ModelBundle
runtime = ModelBundle.load(sys.argv[1]).instantiate("cpu", threads=1)
pool = KvCacheFactory.paged(runtime.model, maximum_context=2048)
with runtime.model.decode_session(factory=pool) as session:
    logits = session.prefill(range(1000, 1032))
    for _ in range(128):
        logits = session.step(int(logits.argmax()))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory(smollm2_path: Path) -> None:
    """Decoding 32 + 128 tokens with a pool of 2,048 takes at most 160 MB in all, with a file of 98 MB."""
    peak = subprocess.check_output([sys.executable, "-c", DECODE, str(smollm2_path)], text=True)
    assert int(peak) * 1024 <= 160e6


def test_serving_is_exact(smollm2: Runtime) -> None:
    """Full sequence, steps, chunks over odd pages, a batch and a fork."""
    model, ids = smollm2.model, smollm2.tokenizer.encode(PROMPT)
    expected = model.logits(ids)
    with KvCacheFactory.paged(model, block_size=3, maximum_context=64) as pool:
        steps, chunks = model.decode_session(factory=pool), model.decode_session(factory=pool)
        assert all(np.array_equal(steps.step(token), row) for token, row in zip(ids, expected, strict=True))
        chunks.prefill(ids[:2])
        chunks.prefill(ids[2:-1])
        fork = chunks.fork()
        steps.truncate(len(ids) - 1)
        for row in step_many([fork, steps, chunks], [ids[-1]] * 3):
            assert np.array_equal(row, expected[-1])
    with model.decode_session(cache="contiguous", maximum_context=64) as session:
        assert np.array_equal(session.prefill(ids), expected[-1])


def test_stop_at_the_end_of_an_answer(smollm2: Runtime) -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    with TextGenerator(smollm2.model, maximum_context=256) as generator:
        answer = generator.generate(prompt, max_new_tokens=30, parse_special=True)
        assert answer.finish_reason == "eos"
        assert answer.tokens[-1] == smollm2.tokenizer.eos_token
        assert answer.text == "The capital of France is Paris."
        assert "<|" not in answer.text
        more = generator.generate(prompt, max_new_tokens=30, parse_special=True, ignore_eos=True)
        assert more.finish_reason == "length"
        assert more.tokens[: len(answer.tokens)] == answer.tokens


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_speculation_changes_nothing(smollm2: Runtime, temperature: float) -> None:
    text = "The lighthouse keeper woke before dawn and climbed the two hundred steps to the lamp. He trimmed the wick, "
    prompt = f"Original:\n{text}polished the great lens, and wrote the weather into his book.\n\nCorrected:\n{text[:21]}"
    with TextGenerator(smollm2.model, maximum_context=256) as generator:
        plain, guessed = (
            generator.generate(prompt, 40, temperature=temperature, seed=1, speculation=speculation)
            for speculation in (0, 8)
        )
        assert guessed.tokens == plain.tokens
        assert guessed.text == plain.text
        assert guessed.log_probabilities == plain.log_probabilities
        assert guessed.processed_log_probabilities == plain.processed_log_probabilities
        assert guessed.stats.accepted_tokens > 20
