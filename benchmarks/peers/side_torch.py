"""PyTorch with transformers' own model code. MODEL: a Hugging Face folder; variants: float32, bfloat16."""

import torch
import transformers
from side import prompt, serve, timed
from transformers import AutoModelForCausalLM, DynamicCache


class Engine:
    version = f"torch {torch.__version__}, transformers {transformers.__version__}"

    def __init__(self, path: str, threads: int, variant: str):
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, variant)).eval()
        self.vocabulary = self._model.config.vocab_size

    def _forward(self, ids, cache):
        """The most likely next tokens: [batch, 1]."""
        logits = self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def _cache(self):
        return DynamicCache(config=self._model.config)

    def prefill(self, count: int):
        ids = torch.tensor([prompt(count, self.vocabulary, seed=count)])
        cache = self._cache()
        return {"seconds": timed(lambda: self._forward(ids, cache))[0]}

    def decode(self, depth: int, count: int, batch: int):
        cache = self._cache()
        prompts = [prompt(depth, self.vocabulary, seed + 1) for seed in range(batch)]
        last = self._forward(torch.tensor(prompts), cache)
        tokens = [int(last[0])]

        def steps():
            nonlocal last
            for _ in range(count):
                last = self._forward(last, cache)
                tokens.append(int(last[0]))

        return {"seconds": timed(steps)[0], "tokens": tokens}


serve(Engine)
