"""`python -m riftco_transformer` is `riftco`."""

from .cli import main

main()
