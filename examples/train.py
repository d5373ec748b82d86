"""A tiny language model from a text: tokenizer, training, a file, a continuation.

python examples/train.py corpus.txt tiny.rift 200
"""

import sys
from pathlib import Path

from riftco_transformer import Model, ModelConfig, RiftcoError, TextGenerator, Tokenizer
from riftco_transformer.training import StepRecord, encode_documents, pretrain, read_documents


def show(record: StepRecord) -> None:
    """Every tenth step."""
    if record["step"] % 10 == 0:
        print(f"step {record['step']}: loss {record['loss']:.3f}, {record['tokens_per_second']:.0f} tok/s")


def run(corpus: str, out: str, steps: int) -> None:
    """Trains, saves and generates."""
    tokenizer = Tokenizer.train(
        [Path(corpus)], vocabulary_size=512, special_tokens=["<|endoftext|>"], eos_token=0
    )
    config = ModelConfig(vocabulary_size=tokenizer.vocabulary_size, maximum_context=128)
    with Model.create(config, seed=1, tokenizer=tokenizer) as model:
        tokens = encode_documents(read_documents([corpus]), tokenizer)
        pretrain(
            model,
            tokens,
            length=64,
            batch=8,
            steps=steps,
            learning_rate=1e-3,
            schedule="cosine",
            on_step=show,
        )
        model.save(out, stage="pretrained")
        print(TextGenerator(model).generate("The", max_new_tokens=32, temperature=0.8, seed=1).text)


def main() -> int:
    """Returns the exit status."""
    arguments = sys.argv[1:]
    if len(arguments) not in (2, 3) or not (arguments[2:] or ["200"])[0].isdigit():
        print("usage: train CORPUS OUT.rift [STEPS]", file=sys.stderr)
        return 2
    try:
        run(arguments[0], arguments[1], int((arguments[2:] or ["200"])[0]))
    except (RiftcoError, OSError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
