"""Decoding with speculation against decoding without, on texts that copy and edit and on texts that do not.

python benchmarks/bench_speculation.py MODEL [--speculation N] [--threads N] [--repeats N] [--json]

MODEL has a chat template. Every text is generated without and with speculation in turn; the two must be the same tokens. A ratio is
the time of all decode steps without over that with, in the same turn: median, least and greatest.
"""

import argparse
import json
import os
import statistics

from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.chat_template import ChatTemplate
from riftco_transformer.serving import GenerationResult, TextGenerator

STORY = """The lighthouse keeper, Thomas Bell, woke before dawn and climbed the two hundred steps to the lamp. He trimmed \
the wick, polished the great lens, and wrote the weather into his book. At noon the supply boat came with bread, oil, and letters \
from the mainland. In the evening a storm rose from the west, and the waves broke over the rocks. Thomas kept the lamp burning \
all night, and in the morning three ships were safe in the bay."""

CODE = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
        return self.balance
"""

MESSAGES = {
    "edit a text": "Repeat this text word for word, but write John Smith instead of Thomas Bell.\n\n" + STORY,
    "edit code": "Rename the class to Wallet and print the whole file.\n\n" + CODE,
    "summarise": "Summarise this text in a few sentences.\n\n" + STORY,
    "essay": "Write an essay about the history of bread.",
    "story": "Tell a story about a healer in a village by the sea.",
    "explain": "Explain photosynthesis to a student.",
    "sampled story": "Tell a story about a healer in a village by the sea.",
}


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    results: dict[str, dict[str, float]] = {}
    with ModelBundle.load(arguments.model).instantiate("cpu", arguments.threads) as runtime:
        template = ChatTemplate(runtime.tokenizer)
        generator = TextGenerator(runtime.model)
        for name, message in MESSAGES.items():
            prompt = template.apply([{"role": "user", "content": message}])

            def generate(speculation: int, name: str = name, prompt: list[int] = prompt) -> GenerationResult:
                return generator.generate(
                    prompt,
                    arguments.max_new_tokens,
                    speculation=speculation,
                    temperature=1.0 if name.startswith("sampled") else 0.0,
                )

            generate(0)  # the prefill, and the pages
            ratios = []
            for _ in range(arguments.repeats):
                plain, guessed = generate(0), generate(arguments.speculation)
                assert guessed.tokens == plain.tokens
                ratios.append(plain.stats.decode_seconds / guessed.stats.decode_seconds)
            stats = guessed.stats
            results[name] = {
                "median": statistics.median(ratios),
                "least": min(ratios),
                "greatest": max(ratios),
                "new_tokens": stats.new_tokens,
                "drafted_tokens": stats.drafted_tokens,
                "accepted_tokens": stats.accepted_tokens,
            }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--speculation", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = measure(arguments)
    if arguments.json:
        print(json.dumps({**vars(arguments), "results": results}))
        return
    print(f"{'':14} {'times as fast':>13} {'least':>6} {'most':>6} {'tokens':>7} {'guessed':>8} {'right':>6}")
    for name, r in results.items():
        right = r["accepted_tokens"] / max(r["drafted_tokens"], 1)
        print(
            f"{name:14} {r['median']:13.2f} {r['least']:6.2f} {r['greatest']:6.2f} "
            f"{r['new_tokens']:7} {r['drafted_tokens']:8} {right:6.0%}"
        )


if __name__ == "__main__":
    main()
