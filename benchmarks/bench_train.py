"""Speed and memory of training, next to PyTorch on the CPU in the same minutes.

python benchmarks/bench_train.py [small gpt2 ...] [--threads N] [--repeats N] [--torch PYTHON] [--json]

small: 4 layers of width 256, 4 heads, 512 tokens, 8 sequences of 256. gpt2: GPT-2-124M, 1 sequence of 512. Both float32, with
AdamW over all parameters; PyTorch runs a plain module with its fused attention and its fused AdamW. Two processes, one for
each side, keep their model and take turns (A B A B ...); each figure is a median with its least and greatest value. Memory is
the peak of each process. PyTorch comes from an environment of its own in build-peers/, made at the first run, or from --torch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from peers.environments import TORCH, python_of


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    batch: int
    length: int
    steps: int
    """In one turn."""


SHAPES = {
    "small": Shape(4, 256, 4, 256, 512, 8, 256, steps=3),
    "gpt2": Shape(12, 768, 12, 1024, 50257, 1, 512, steps=1),
}


# --- the two sides: each a process that makes its model, then answers every line with the seconds of one turn ---


def riftco_side(shape: Shape, threads: int):
    import numpy as np
    from riftco_transformer.model import Model, ModelConfig
    from riftco_transformer.training import Trainer

    config = ModelConfig(
        vocabulary_size=shape.vocabulary,
        maximum_context=shape.context,
        layer_count=shape.layers,
        width=shape.width,
        head_count=shape.heads,
        kv_head_count=shape.heads,
        head_width=shape.width // shape.heads,
        mlp_width=4 * shape.width,
        activation="gelu_tanh",
        biases=frozenset({"q", "k", "v", "o", "up", "down", "norms"}),
        tied_head=True,
    )
    trainer = Trainer(Model.create(config, threads=threads), learning_rate=1e-4)
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, shape.vocabulary, (2, shape.batch, shape.length))
    return lambda: trainer.step(tokens, targets).loss


def torch_side(shape: Shape, threads: int):
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    width, heads = shape.width, shape.heads

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, width)
            x = x + self.out(y)
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(shape.vocabulary, width)
            self.positions = nn.Embedding(shape.context, width)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
            self.norm = nn.LayerNorm(width)

        def forward(self, ids):
            x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.norm(x) @ self.tokens.weight.T

    network = Network()
    for parameter in network.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, 0, 0.02)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    ids, targets = torch.randint(0, shape.vocabulary, (2, shape.batch, shape.length))

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(network(ids).view(-1, shape.vocabulary), targets.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0, foreach=True)
        optimizer.step()
        return loss.item()

    return step


def serve_turns(side: str, name: str, threads: int) -> None:
    """The worker: one JSON line a turn, then the peak of its memory."""
    import time

    shape = SHAPES[name]
    step = {"riftco": riftco_side, "torch": torch_side}[side](shape, threads)
    step()
    for _ in sys.stdin:
        start = time.perf_counter()
        for _ in range(shape.steps):
            loss = step()
        speed = shape.steps * shape.batch * shape.length / (time.perf_counter() - start)
        with open("/proc/self/status") as status:
            peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
        print(json.dumps({"speed": speed, "loss": loss, "megabytes": peak}), flush=True)


# --- the comparison ---


def compare(name: str, threads: int, repeats: int, torch: str) -> dict[str, object]:
    def start(python: str, side: str) -> subprocess.Popen[str]:
        command = [python, str(Path(__file__).resolve()), name, "--threads", str(threads), "--side", side]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(process: subprocess.Popen[str]) -> dict[str, float]:
        process.stdin.write("turn\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    def summary(values: list[float]) -> dict[str, float]:
        return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}

    sides = {"riftco": start(sys.executable, "riftco"), "torch": start(torch, "torch")}
    for process in sides.values():  # both have their memory, and are warm
        turn(process)
    turns = [{side: turn(process) for side, process in sides.items()} for _ in range(repeats)]
    for process in sides.values():
        process.stdin.close()
        process.wait()
    return {
        "shape": SHAPES[name]._asdict(),
        **{f"{side}_tokens_per_second": summary([t[side]["speed"] for t in turns]) for side in sides},
        "ratio": summary([t["riftco"]["speed"] / t["torch"]["speed"] for t in turns]),
        **{f"{side}_megabytes": summary([turns[-1][side]["megabytes"]]) for side in sides},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="*", choices=[*SHAPES, []], default=[])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--torch", help="a python that has torch")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve_turns(arguments.side, arguments.shapes[0], arguments.threads)
        return
    torch = arguments.torch or str(python_of("torch"))
    results = {
        name: compare(name, arguments.threads, arguments.repeats, torch)
        for name in arguments.shapes or SHAPES
    }
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "torch": TORCH, "results": results}))
        return
    for name, result in results.items():
        print(name)
        for key, values in result.items():
            if key != "shape":
                print("  {:28} {median:9.2f}  ({least:.2f} .. {greatest:.2f})".format(key, **values))


if __name__ == "__main__":
    main()
