"""This project. Variants: empty, or the type that the matrices become at load, and a way of computing behind a space."""

import numpy as np
from riftco_transformer import __version__
from riftco_transformer.benchmark import plain_read
from riftco_transformer.model import Model
from riftco_transformer.session import step_many
from side import prompt, serve, timed


class Engine:
    version = __version__

    def __init__(self, path: str, threads: int, variant: str):
        options = dict(zip(("type", "compute"), variant.split(), strict=False))
        self._model = Model.load(path, "cpu", threads, **options)
        self.vocabulary = self._model.config.vocabulary_size
        self._words = None

    def read(self):
        """A plain read of as many bytes as the weights have, on all threads."""
        info = self._model.info
        if self._words is None:
            self._words = np.ones(info.weight_bytes // 8, dtype=np.uint64)
        best = min(timed(lambda: plain_read(self._words, info.threads))[0] for _ in range(3))
        return {"seconds": best, "bytes": info.weight_bytes}

    def prefill(self, count: int):
        with self._model.decode_session() as session:
            tokens = prompt(count, self.vocabulary, seed=count)
            return {"seconds": timed(lambda: int(np.argmax(session.prefill(tokens))))[0]}

    def decode(self, depth: int, count: int, batch: int):
        sessions = [self._model.decode_session() for _ in range(batch)]
        last = [
            int(np.argmax(session.prefill(prompt(depth, self.vocabulary, seed))))
            for seed, session in enumerate(sessions, 1)
        ]
        tokens = [last[0]]
        out = np.empty((batch, self.vocabulary), dtype=np.float32)

        def steps():
            nonlocal last
            for _ in range(count):
                if batch == 1:
                    sessions[0].step(last[0], out=out[0])
                else:
                    step_many(sessions, last, out=out)
                last = out.argmax(axis=1).tolist()
                tokens.append(last[0])

        seconds, _ = timed(steps)
        for session in sessions:
            session.close()
        return {"seconds": seconds, "tokens": tokens}


serve(Engine)
