"""What a step costs in instructions of the AVX2 kernels, which no other program on the machine changes.

A limit is what gcc 12 needed at the time it was set, and 15 % for other compilers. Who makes a step dearer on purpose sets it
anew: `pytest tests/py/test_instructions.py -s` prints the counts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "tests" / "cc" / "count_steps"
LIMITS = {"decode": 248_356, "prefill": 2_109_426, "train": 19_894_201}
"""Of one step of tests/cc/count_steps.cc."""
MARGIN = 1.15


def has_avx2() -> bool:
    cpu = Path("/proc/cpuinfo")
    return cpu.exists() and "avx2" in cpu.read_text()


def instructions(what: str, steps: int) -> int:
    """Of the whole program."""
    result = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(PROGRAM), what, str(steps)],
        env={**os.environ, "RIFTCO_CPU_ISA": "avx2"},
        check=True,
        capture_output=True,
        text=True,
    )
    found = re.search(r"Collected : (\d+)", result.stderr)
    assert found, result.stderr
    return int(found[1])


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not here")
@pytest.mark.skipif(not has_avx2(), reason="the machine has no AVX2 to count")
@pytest.mark.parametrize("what", LIMITS)
def test_a_step_is_not_dearer_than_it_was(what: str) -> None:
    one_step = instructions(what, 2) - instructions(what, 1)
    print(f"\n{what}: {one_step} instructions")
    assert LIMITS[what] / 2 < one_step < LIMITS[what] * MARGIN
