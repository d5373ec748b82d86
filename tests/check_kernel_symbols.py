"""Fail when a kernel object, optimised or not, has a weak or a second global symbol.

An inline function compiled with wide instructions would otherwise replace the baseline's copy when the library is linked.

usage: check_kernel_symbols.py BUILD_FOLDER
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path


def global_symbols(path: Path) -> list[str]:
    lines = subprocess.run(
        ["nm", "-gC", "--defined-only", path], check=True, capture_output=True, text=True
    ).stdout
    symbols = [line.split(maxsplit=1)[1] for line in lines.splitlines() if line]
    return [symbol for symbol in symbols if symbol != "V DW.ref.__gxx_personality_v0"]  # a pointer, not code


def main() -> int:
    build = Path(sys.argv[1])
    commands = json.loads((build / "compile_commands.json").read_text())
    kernels = [entry for entry in commands if re.search(r"/libriftco_cpu_\w+\.a\.p/", entry["output"])]
    problems = [] if kernels else ["no kernel object in compile_commands.json"]
    with tempfile.TemporaryDirectory() as folder:
        unoptimised = Path(folder, "kernel.o")
        for entry in kernels:
            command = shlex.split(entry["command"])
            command[command.index("-o") + 1] = str(unoptimised)
            subprocess.run([*command, "-O0"], cwd=entry["directory"], check=True)
            for path in (build / entry["output"], unoptimised):
                symbols = global_symbols(path)
                if len(symbols) != 1 or not re.fullmatch(r"[DR] riftco::\w+_table", symbols[0]):
                    problems.append(f"{entry['output']}: {path.name} has {symbols}")
    print("\n".join(problems) or f"{len(kernels)} kernel objects export their table alone")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
