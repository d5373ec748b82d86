"""ONNX Runtime GenAI. MODEL: a folder that its builder wrote."""

import json

import numpy as np
import onnxruntime_genai
from side import prompt, serve, timed


class Engine:
    version = f"onnxruntime-genai {onnxruntime_genai.__version__}"

    def __init__(self, path: str, threads: int, variant: str):
        config = onnxruntime_genai.Config(path)
        session_options = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session_options}}}))
        self._model = onnxruntime_genai.Model(config)
        with open(f"{path}/genai_config.json") as file:
            self.vocabulary = json.load(file)["model"]["vocab_size"]

    def _start(self, prompts: list[list[int]], count: int):
        """A generator with its prompt, which is not run before the first token is asked for."""
        options = onnxruntime_genai.GeneratorParams(self._model)
        length = len(prompts[0]) + count
        options.set_search_options(
            max_length=length, min_length=length, batch_size=len(prompts), do_sample=False
        )
        return onnxruntime_genai.Generator(self._model, options)

    def _first(self, generator, prompts: list[list[int]]) -> None:
        ids = np.array(prompts, dtype=np.int32)
        generator.append_tokens(ids if len(prompts) > 1 else ids[0])
        generator.generate_next_token()

    def prefill(self, count: int):
        prompts = [prompt(count, self.vocabulary, seed=count)]
        generator = self._start(prompts, 2)
        return {"seconds": timed(lambda: self._first(generator, prompts))[0]}

    def decode(self, depth: int, count: int, batch: int):
        prompts = [prompt(depth, self.vocabulary, seed + 1) for seed in range(batch)]
        generator = self._start(prompts, count + 2)
        self._first(generator, prompts)

        def steps():
            for _ in range(count):
                generator.generate_next_token()

        seconds, _ = timed(steps)
        return {"seconds": seconds, "tokens": [int(t) for t in generator.get_sequence(0)[depth:]]}


serve(Engine)
