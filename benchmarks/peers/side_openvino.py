"""OpenVINO GenAI. MODEL: a .gguf file or an exported folder; variants: key=value properties, by commas.

A step's time is the mean time per output token that the library reports, a prefill's the time to the first token.
"""

import itertools

import numpy as np
import openvino
import openvino_genai
from side import prompt, serve, timed


class Engine:
    version = f"openvino-genai {openvino_genai.__version__.split('-')[0]}"

    def __init__(self, path: str, threads: int, variant: str):
        properties = dict(pair.split("=") for pair in variant.split(",") if pair)
        self._pipeline = openvino_genai.LLMPipeline(
            path,
            "CPU",
            INFERENCE_NUM_THREADS=threads,
            PERFORMANCE_HINT="LATENCY",
            NUM_STREAMS="1",
            **properties,
        )
        self.vocabulary = len(self._pipeline.get_tokenizer().get_vocab())
        self._fresh = itertools.count(1000)  # it keeps what it has seen: a new prompt every time

    def _generate(self, prompts: list[list[int]], count: int):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = count
        config.ignore_eos, config.do_sample, config.apply_chat_template = True, False, False
        ids = np.array(prompts, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        result = self._pipeline.generate(inputs, config)
        assert len(result.tokens[0]) == count
        return result

    def prefill(self, count: int):
        result = self._generate([prompt(count, self.vocabulary, next(self._fresh))], 2)
        return {"seconds": result.perf_metrics.get_ttft().mean / 1e3}

    def decode(self, depth: int, count: int, batch: int):
        prompts = [prompt(depth, self.vocabulary, seed + 1) for seed in range(batch)]
        whole, result = timed(lambda: self._generate(prompts, count + 1))
        metrics = result.perf_metrics
        # Of several sequences the reported time per token is not that of a step.
        seconds = (
            metrics.get_tpot().mean / 1e3 * count if batch == 1 else whole - metrics.get_ttft().mean / 1e3
        )
        return {"seconds": seconds, "tokens": [int(t) for t in result.tokens[0]]}


serve(Engine)
