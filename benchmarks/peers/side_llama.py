"""llama.cpp, by the low-level calls of llama-cpp-python. MODEL: a .gguf file."""

import ctypes

import llama_cpp
import llama_cpp.llama_cpp as api
import numpy as np
from side import prompt, serve, timed

LONGEST = 2048


@api.llama_log_callback
def quiet(level, text, data):
    pass


class Engine:
    version = f"llama-cpp-python {llama_cpp.__version__}"

    def __init__(self, path: str, threads: int, variant: str):
        api.llama_log_set(quiet, ctypes.c_void_p(0))
        api.llama_backend_init()
        options = api.llama_model_default_params()
        options.n_gpu_layers = 0
        self._threads = threads
        self._model = api.llama_model_load_from_file(path.encode(), options)
        assert self._model, path
        self._single = self._context(api.llama_model_n_ctx_train(self._model), 1)
        self._batch = api.llama_batch_init(LONGEST, 0, 1)
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._kept: list[int] = []  # tokens in the single context

    def _context(self, positions: int, sequences: int):
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = min(positions, LONGEST), LONGEST, 512
        options.n_seq_max, options.n_threads, options.n_threads_batch = (
            sequences,
            self._threads,
            self._threads,
        )
        if sequences > 1:
            options.n_ctx = 256 * sequences
        return api.llama_init_from_model(self._model, options)

    def _feed(self, context, tokens: list[tuple[int, int, int]], every_logits: bool) -> list[int]:
        """Tokens with positions and sequences; the most likely next ones, of the last token or of every one."""
        self._batch.n_tokens = len(tokens)
        wanted = range(len(tokens)) if every_logits else [len(tokens) - 1]
        for i, (token, position, sequence) in enumerate(tokens):
            self._batch.token[i], self._batch.pos[i] = token, position
            self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, sequence
            self._batch.logits[i] = i in wanted
        assert api.llama_decode(context, self._batch) == 0
        rows = (api.llama_get_logits_ith(context, i) for i in wanted)
        return [int(np.ctypeslib.as_array(row, shape=(self.vocabulary,)).argmax()) for row in rows]

    def _fill(self, count: int, seed: int) -> list[int]:
        api.llama_memory_clear(api.llama_get_memory(self._single), True)
        tokens = prompt(count, self.vocabulary, seed)
        return self._feed(self._single, [(t, i, 0) for i, t in enumerate(tokens)], False)

    def prefill(self, count: int):
        return {"seconds": timed(lambda: self._fill(count, seed=count))[0]}

    def decode(self, depth: int, count: int, batch: int):
        context = self._single if batch == 1 else self._context(0, batch)
        if batch == 1:
            last = self._fill(depth, seed=1)
        else:
            last = []
            for sequence in range(batch):
                tokens = prompt(depth, self.vocabulary, sequence + 1)
                last += self._feed(context, [(t, i, sequence) for i, t in enumerate(tokens)], False)
        tokens = [last[0]]

        def steps():
            nonlocal last
            for step in range(count):
                last = self._feed(context, [(t, depth + step, s) for s, t in enumerate(last)], True)
                tokens.append(last[0])

        seconds, _ = timed(steps)
        if batch > 1:
            api.llama_free(context)
        return {"seconds": seconds, "tokens": tokens}


serve(Engine)
