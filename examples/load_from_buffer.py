"""Runs a model that is in memory, as it would be in a program that carries one.

python examples/load_from_buffer.py model.gguf "The capital of France is" 8
"""

import sys
from pathlib import Path

from riftco_transformer import ModelBundle, RiftcoError
from riftco_transformer.serving import TextGenerator


def main() -> int:
    """Returns the exit status."""
    arguments = sys.argv[1:]
    if len(arguments) not in (2, 3) or not (arguments[2:] or ["64"])[0].isdigit():
        print("usage: load_from_buffer MODEL PROMPT [NEW_TOKENS]", file=sys.stderr)
        return 2
    try:
        bundle = ModelBundle.load(Path(arguments[0]).read_bytes())
        with bundle.instantiate("cpu") as runtime:
            del bundle  # and with it the bytes: the model has copied what it needs
            generator = TextGenerator(runtime.model, runtime.tokenizer)
            result = generator.generate(arguments[1], int((arguments[2:] or ["64"])[0]))
            sys.stdout.buffer.write(result.bytes + b"\n")
    except (OSError, RiftcoError) as error:
        print(f"load_from_buffer: {arguments[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
