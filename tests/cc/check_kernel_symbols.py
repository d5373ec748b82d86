"""Fails when a library of kernels defines anything but its table for the linker to share.

An inline function compiled with wide instructions could otherwise replace the baseline's copy of it.
"""

import subprocess
import sys

symbols = subprocess.run(["nm", "--demangle", sys.argv[1]], check=True, capture_output=True, text=True).stdout
shared = [line for line in symbols.splitlines() if line.split()[-2:-1] and line[17:18] in "BDRTVWu"]
wrong = [line for line in shared if not line.endswith("_table") and "DW.ref." not in line]
if wrong or not shared:
    sys.exit("\n".join(wrong or ["no table"]))
