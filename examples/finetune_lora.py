"""Low-rank adapters for a model, also a quantised one: trained on pairs, saved alone, attached again.

    python examples/finetune_lora.py model.gguf pairs.jsonl adapter 30

pairs.jsonl has a line {"prompt": "…", "response": "…"} for each pair.
"""

import json
import sys

from riftco_transformer import Model, RiftcoError, TextGenerator
from riftco_transformer.training import ExampleReader, post_train


def run(path: str, data: str, adapter: str, steps: int) -> None:
    """Prints what the model says to the first prompt before and after."""
    with Model.load(path) as model, open(data, encoding="utf-8") as file:
        prompt = json.loads(file.readline())["prompt"]
        with ExampleReader(model.tokenizer(), 256) as reader:
            examples = reader.read([data])
        generator = TextGenerator(model)
        print("before:", generator.generate(prompt, max_new_tokens=16).text)

        model.attach_lora(rank=8, alpha=16, targets=["q", "v"])
        result = post_train(model, examples, batch=4, steps=steps, learning_rate=1e-3)
        print(f"loss {result.history[0]['loss']:.3f} -> {result.history[-1]['loss']:.3f}")
        model.save_lora(adapter)
        model.detach_lora()  # the model is as it was

        model.load_lora(adapter)
        print("after:", generator.generate(prompt, max_new_tokens=16).text)


def main() -> int:
    """Returns the exit status."""
    arguments = sys.argv[1:]
    if len(arguments) not in (3, 4) or not (arguments[3:] or ["30"])[0].isdigit():
        print("usage: finetune_lora MODEL PAIRS.jsonl ADAPTER [STEPS]", file=sys.stderr)
        return 2
    try:
        run(*arguments[:3], int((arguments[3:] or ["30"])[0]))
    except (RiftcoError, OSError) as error:
        print(f"finetune_lora: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
