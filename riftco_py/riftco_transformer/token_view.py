"""What `riftco inspect --tokens` shows: how a text is cut into tokens."""

from __future__ import annotations

from typing import Any

from .tokenizer import Tokenizer


def token_rows(tokenizer: Tokenizer, text: bytes) -> list[dict[str, Any]]:
    """Of each token its id, its text (U+FFFD for what is no character by itself) and its bytes in hex."""
    rows = []
    ids = tokenizer.encode(text)
    for token in ids:
        # Behind another token, because a first one may lose its space.
        before = tokenizer.decode_bytes([ids[0]])
        piece = tokenizer.decode_bytes([ids[0], token])[len(before) :]
        rows.append({"id": token, "piece": piece.decode("utf-8", "replace"), "bytes": piece.hex(" ")})
    return rows
