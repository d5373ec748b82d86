"""CTranslate2. MODEL: a converted folder; variants: float32, int8. The time of a step is between calls of its callback."""

import json
import time
from pathlib import Path

import ctranslate2
from side import prompt, serve, timed


class Engine:
    version = f"ctranslate2 {ctranslate2.__version__}"

    def __init__(self, path: str, threads: int, variant: str):
        self._generator = ctranslate2.Generator(
            path, device="cpu", compute_type=variant, intra_threads=threads, inter_threads=1
        )
        self._words = json.loads((Path(path) / "vocabulary.json").read_text())
        self.vocabulary = len(self._words)

    def _generate(self, prompts: list[list[int]], count: int) -> tuple[list[float], list[int]]:
        """When each new token came, and the tokens of the first sequence."""
        times, tokens = [], []

        def each(result):
            times.append(time.perf_counter())
            if result.batch_id == 0:
                tokens.append(result.token_id)
            return False

        self._generator.generate_batch(
            [[self._words[t] for t in tokens] for tokens in prompts],
            max_length=count,
            min_length=count,
            sampling_topk=1,
            beam_size=1,
            include_prompt_in_result=False,
            callback=each,
            cache_static_prompt=False,
        )
        assert len(times) == len(prompts) * count
        return times, tokens

    def prefill(self, count: int):
        tokens = prompt(count, self.vocabulary, seed=count)
        return {"seconds": timed(lambda: self._generate([tokens], 1))[0]}

    def decode(self, depth: int, count: int, batch: int):
        prompts = [prompt(depth, self.vocabulary, seed + 1) for seed in range(batch)]
        times, tokens = self._generate(prompts, count + 1)
        return {"seconds": times[-1] - times[batch - 1], "tokens": tokens}


serve(Engine)
