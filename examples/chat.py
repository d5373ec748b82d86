"""A conversation from a program: python examples/chat.py MODEL MESSAGE..."""

import sys

from riftco_transformer.artifacts import ModelBundle
from riftco_transformer.chat import ChatSession


def main() -> None:
    """Answer each message in turn."""
    path, *messages = sys.argv[1:]
    with ModelBundle.load(path).instantiate("cpu") as runtime, ChatSession(runtime.model) as session:
        for message in messages:
            print(">", message)
            for piece in session.send(message, max_new_tokens=64):
                print(piece, end="", flush=True)
            print()


if __name__ == "__main__":
    main()
