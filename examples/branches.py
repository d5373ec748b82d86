"""Two continuations of one prompt, decoded as one batch: prefill, fork, step_many, final hidden states.

    python examples/branches.py model.gguf "The capital of France is" 8

The prompt is computed once; the second branch begins with the second most likely token. Decoding is greedy.
"""

import sys

import numpy as np
from riftco_transformer import ModelBundle, RiftcoError
from riftco_transformer.session import step_many


def run(path: str, prompt: str, count: int) -> None:
    """Prints both texts and how alike they end."""
    with ModelBundle.load(path).instantiate("cpu") as runtime:
        tokenizer = runtime.tokenizer
        first = runtime.model.decode_session()
        row = first.prefill(tokenizer.encode(prompt, add_special=True))
        second = first.fork()
        following = np.argsort(-row, kind="stable")[:2]
        tokens = []
        for _ in range(count):
            tokens.append(following)
            following = step_many([first, second], following).argmax(axis=1)
        chosen = np.stack(tokens, axis=1)  # [2, count]

        states = []
        for session, last in zip((first, second), chosen[:, -1], strict=True):
            session.truncate(session.size - 1)  # decode the last token again, for its state
            states.append(session.hidden_states([last])[0].astype(np.float64))
        a, b = states
        for name, ids in zip(("first", "second"), chosen, strict=True):
            sys.stdout.buffer.write(
                f"{name}:".encode() + tokenizer.decode_bytes(ids, skip_special=True) + b"\n"
            )
        sys.stdout.buffer.flush()
        print(f"cosine of their final hidden states: {a @ b / np.sqrt((a @ a) * (b @ b)):.4f}")


def main() -> int:
    """Returns the exit status."""
    arguments = sys.argv[1:]
    if len(arguments) not in (2, 3) or not (arguments[2:] or ["16"])[0].isdigit():
        print("usage: branches MODEL PROMPT [NEW_TOKENS]", file=sys.stderr)
        return 2
    try:
        run(arguments[0], arguments[1], int((arguments[2:] or ["16"])[0]))
    except RiftcoError as error:
        print(f"branches: {arguments[0]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
