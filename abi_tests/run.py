"""Tests of an installed prefix, through nothing but its headers, its library and pkg-config.

    python3 abi_tests/run.py PREFIX [--update-baseline]

Checks the exported symbols, soname and version node; every header alone and twice, in C99 and C++20, with gcc and clang;
the layout of every struct, the constants and prototypes against baseline/; and builds and runs the programs in c/, cpp/ and
the examples. Compilers that are not there are left out, but at least one must be.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
DOCUMENT = HERE.parent / "docs" / "abi.md"
BASELINE = HERE / "baseline" / "abi.txt"
C_FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
CPP_FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
COMPILERS = {
    c: cpp for c, cpp in {"gcc": "g++", "clang": "clang++"}.items() if shutil.which(c) and shutil.which(cpp)
}
EXAMPLE_GROUPS = (
    ("generate.c", "serving_stack.cpp", "load_from_buffer.c", "load_from_buffer.cpp"),
    ("branches.c", "branches.cpp"),
    ("adapters.c", "adapters.cpp"),
)
# What the library may need at run time, by the start of the name.
ALLOWED_LIBRARIES = (
    "libc.",
    "libm.",
    "libpthread.",
    "libdl.",
    "ld-linux",
    "libstdc++.",
    "libgcc_s.",
    "libpcre2-8.",
    "libutf8proc.",
)


class Failure(Exception):
    pass


def run(command: list[str | Path], **keywords) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, **keywords
    )
    if done.returncode != 0:
        raise Failure(
            f"{' '.join(map(str, command))}\nexit status {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


class Prefix:
    def __init__(self, root: Path) -> None:
        found = sorted(root.rglob("riftco.pc"))
        if len(found) != 1:
            raise SystemExit(f"{root} has {len(found)} files named riftco.pc, not one")
        self._environment = {**os.environ, "PKG_CONFIG_PATH": str(found[0].parent)}
        self.cflags = self.pkg_config("--cflags").split()
        self.libs = self.pkg_config("--libs").split()
        self.version = self.pkg_config("--modversion").strip()
        self.include = Path(self.pkg_config("--variable=includedir").strip())
        library_folder = Path(self.pkg_config("--variable=libdir").strip())
        self.library = library_folder / (
            "libriftco.2.dylib" if sys.platform == "darwin" else "libriftco.so.2"
        )
        paths = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
        self.environment = {**os.environ, paths: str(library_folder)}

    def pkg_config(self, *options: str) -> str:
        return run(["pkg-config", *options, "riftco"], env=self._environment)

    def headers(self, pattern: str) -> list[Path]:
        return sorted(path.relative_to(self.include) for path in self.include.glob(pattern))


# --- the library file -------------------------------------------------------------------------------------------------


def manifest() -> dict[str, str]:
    entries = re.findall(r'^(rt_\w+) = "(\d+\.\d+)"$', (HERE / "manifest.toml").read_text(), re.MULTILINE)
    return dict(entries)


def check_exports(prefix: Prefix) -> None:
    expected = {f"{name}@@RIFTCO_{since}" for name, since in manifest().items()}
    nodes = {f"RIFTCO_{since}" for since in manifest().values()}
    found = set()
    for line in run(["nm", "-D", "--defined-only", "--with-symbol-versions", prefix.library]).splitlines():
        _, kind, name = line.split(maxsplit=2)
        if not (kind == "A" and name.split("@")[0] in nodes):
            found.add(name)
    if found != expected:
        raise Failure(
            f"not exported: {sorted(expected - found)}; exported beyond the manifest: {sorted(found - expected)}"
        )


def check_dynamic_section(prefix: Prefix) -> None:
    text = run(["readelf", "-d", prefix.library])
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", text)
    if soname != ["libriftco.so.2"]:
        raise Failure(f"soname {soname}")
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    surprising = [name for name in needed if not name.startswith(ALLOWED_LIBRARIES)]
    if surprising:
        raise Failure(f"needs {surprising}")
    if "TEXTREL" in text:
        raise Failure("has text relocations")


def check_manifest_names_header_functions(prefix: Prefix) -> None:
    declared = {name for _, name, _ in prototypes(prefix)}
    if declared != set(manifest()):
        raise Failure(f"headers and manifest differ in {sorted(declared ^ set(manifest()))}")


# --- headers ----------------------------------------------------------------------------------------------------------


def check_headers(prefix: Prefix, work: Path) -> None:
    c_headers, cpp_headers = prefix.headers("riftco/*.h"), prefix.headers("riftco_transformer/**/*.hpp")
    if not c_headers or not cpp_headers:
        raise Failure("headers are missing")
    jobs = []
    for c, cpp in COMPILERS.items():
        jobs += [(c, C_FLAGS, "c", header) for header in c_headers]
        jobs += [(cpp, CPP_FLAGS, "cpp", header) for header in c_headers]
    # One compiler will do: the programs in cpp/ include them all with each.
    jobs += [(cpp, CPP_FLAGS, "cpp", header) for header in cpp_headers]

    def compile_header(job) -> None:
        compiler, flags, suffix, header = job
        source = work / f"{compiler}-{str(header).replace('/', '-')}.{suffix}"
        source.write_text(f'#include "{header}"\n#include "{header}"\nint main(void) {{ return 0; }}\n')
        run([compiler, *flags, *prefix.cflags, "-fsyntax-only", source])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_header, jobs))


def header_text(prefix: Prefix) -> str:
    text = "\n".join((prefix.include / header).read_text() for header in prefix.headers("riftco/*.h"))
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def prototypes(prefix: Prefix) -> list[tuple[str, str, str]]:
    found = re.findall(r"RT_API ([\w* ]+?) RT_CALL (\w+)\(([^)]*)\);", header_text(prefix))
    return sorted((result, name, " ".join(arguments.split())) for result, name, arguments in found)


def describe_abi(prefix: Prefix, work: Path) -> str:
    """Structs with sizes and offsets, constants with values, and prototypes, as lines of text."""
    text = header_text(prefix)
    structs = re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.DOTALL)
    constants = [
        name
        for body in re.findall(r"enum \{(.*?)\}", text, re.DOTALL)
        for name in re.findall(r"RT_\w+", body)
    ]
    constants += re.findall(r"#define (RT_\w+) \w+ *$", text, re.MULTILINE)
    lines = []
    for name, body in structs:
        lines.append(f'printf("{name}: %u bytes\\n", (unsigned)sizeof({name}));')
        for field in re.findall(r"(\w+)(?:\[\w+\])?;", body):
            size = f"sizeof((({name}*)0)->{field})"
            lines.append(
                f'printf("{name}.{field}: %u bytes at %u\\n", (unsigned){size}, (unsigned)offsetof({name}, {field}));'
            )
    lines += [f'printf("{name} = %lld\\n", (long long){name});' for name in sorted(constants)]
    source = work / "layout.c"
    body = "\n".join(lines)
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include <riftco/riftco.h>\nint main(void) {{\n{body}\nreturn 0;\n}}\n"
    )
    layouts = set()
    for c in COMPILERS:
        run([c, "-std=c99", *prefix.cflags, source, "-o", work / "layout"])
        layouts.add(run([work / "layout"]))
    if len(layouts) != 1:
        raise Failure("compilers disagree about the layout of structs")
    calls = "".join(f"{result} {name}({arguments})\n" for result, name, arguments in prototypes(prefix))
    return layouts.pop() + calls


def check_baseline(prefix: Prefix, work: Path) -> None:
    found, expected = describe_abi(prefix, work).splitlines(), BASELINE.read_text().splitlines()
    if found != expected:
        gone = [f"- {line}" for line in expected if line not in found]
        new = [f"+ {line}" for line in found if line not in expected]
        raise Failure(
            "\n".join(
                [f"differs from {BASELINE.name} (after a wanted change: --update-baseline)", *gone, *new]
            )
        )


# --- programs ---------------------------------------------------------------------------------------------------------


def build(prefix: Prefix, work: Path, compiler: str, source: Path) -> Path:
    flags = C_FLAGS if source.suffix == ".c" else CPP_FLAGS
    program = work / f"{source.stem}-{compiler}"
    run(
        [compiler, *flags, *prefix.cflags, "-I", HERE, source, "-o", program, *prefix.libs, "-pthread", "-lm"]
    )
    return program


def check_program(prefix: Prefix, work: Path, compilers: list[str], source: Path) -> None:
    """Builds it with each compiler and runs the last as PROGRAM REPORT SCRATCH_FOLDER: it says in the report what is wrong,
    and prints nothing."""
    program = [build(prefix, work, compiler, source) for compiler in compilers][-1]
    report, scratch = work / f"{program.name}.report", work / f"{program.name}.scratch"
    scratch.mkdir()
    done = subprocess.run(
        [program, report, scratch], capture_output=True, text=True, timeout=300, env=prefix.environment
    )
    if done.stdout or done.stderr:
        raise Failure(f"printed {done.stdout!r} {done.stderr!r}")
    if done.returncode != 0:
        raise Failure(f"exit status {done.returncode}\n{report.read_text() if report.exists() else ''}")


def example(prefix: Prefix, program: Path, *arguments: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run([program, *arguments], capture_output=True, timeout=300, env=prefix.environment)


MODEL_LOCK = Lock()


def small_model(prefix: Prefix, work: Path) -> Path:
    model = work / "model.rift"
    with MODEL_LOCK:
        if not model.exists():
            maker = build(prefix, work, list(COMPILERS)[-1], HERE / "c" / "make_model.c")
            run([maker, model], env=prefix.environment)
    return model


def check_examples(prefix: Prefix, work: Path, group: tuple[str, ...]) -> None:
    """The C and the C++ examples of a group print the same, and know how they are used."""
    texts = {check_example(prefix, work, EXAMPLES / name) for name in group}
    if len(texts) != 1:
        raise Failure(f"they wrote different texts: {texts}")


def check_example(prefix: Prefix, work: Path, source: Path) -> bytes:
    model = small_model(prefix, work)
    compilers = list(COMPILERS) if source.suffix == ".c" else list(COMPILERS.values())
    program = [build(prefix, work, compiler, source) for compiler in compilers][-1]
    done = example(prefix, program, model, "Once upon a time", "8")
    if done.returncode != 0 or not done.stdout:
        raise Failure(
            f"{source.name} {model}: exit status {done.returncode}, {done.stdout!r} {done.stderr!r}"
        )
    usage = example(prefix, program)
    if usage.returncode != 2 or b"usage" not in usage.stderr or usage.stdout:
        raise Failure(f"{source.name} without arguments: {usage}")
    missing = example(prefix, program, work / "missing.gguf", "Once")
    if missing.returncode != 1 or b"missing.gguf" not in missing.stderr or missing.stdout:
        raise Failure(f"{source.name} with a missing file: {missing}")
    return done.stdout


def check_static_library(prefix: Prefix, work: Path) -> None:
    """The archive is enough for a C program: libriftco is not looked for when it runs."""
    archive = prefix.library.parent / "libriftco.a"
    program = work / "static"
    libraries = prefix.pkg_config("--static", "--libs").split()
    libraries[libraries.index("-lriftco")] = str(archive)
    c = next(iter(COMPILERS))
    run([c, *C_FLAGS, *prefix.cflags, EXAMPLES / "generate.c", "-o", program, *libraries])
    if "riftco" in run(["readelf", "-d", program]):
        raise Failure("it needs the shared library")
    done = subprocess.run([program, small_model(prefix, work), "Once", "8"], capture_output=True, timeout=300)
    if done.returncode != 0 or not done.stdout:
        raise Failure(f"{done}")


def check_documented_program(prefix: Prefix, work: Path) -> None:
    """The program in docs/abi.md compiles as it stands, and writes text or says what is wrong."""
    source = work / "documented.c"
    source.write_text(re.findall(r"^```c\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)[0])
    program = build(prefix, work, list(COMPILERS)[-1], source)
    done = example(prefix, program, small_model(prefix, work), "Once")
    if done.returncode != 0 or not done.stdout or done.stderr:
        raise Failure(f"{done}")
    missing = example(prefix, program, work / "missing.gguf", "Once")
    if missing.returncode != 1 or b"missing.gguf" not in missing.stderr or missing.stdout:
        raise Failure(f"{missing}")


def check_version(prefix: Prefix, work: Path) -> None:
    source = work / "version.c"
    source.write_text(
        "#include <stdio.h>\n#include <riftco/riftco.h>\n"
        'int main(void) { return printf("%s %u\\n", rt_version_string(), rt_abi_version()) < 0; }\n'
    )
    program = build(prefix, work, next(iter(COMPILERS)), source)
    version, abi = run([program], env=prefix.environment).split()
    major, minor = (int(part) for part in prefix.version.split(".")[:2])
    if version != prefix.version or int(abi) != major << 16 | minor:
        raise Failure(f"the library says {version} and ABI {abi}, pkg-config {prefix.version}")


def checks(prefix: Prefix, work: Path):
    if sys.platform != "darwin":
        yield "exports are the manifest's", lambda: check_exports(prefix)
        yield "soname and needed libraries", lambda: check_dynamic_section(prefix)
    yield "headers declare the manifest's calls", lambda: check_manifest_names_header_functions(prefix)
    yield "headers alone and twice", lambda: check_headers(prefix, work)
    yield "baseline of structs, constants and prototypes", lambda: check_baseline(prefix, work)
    yield "version", lambda: check_version(prefix, work)
    for source in sorted((HERE / "c").glob("test_*.c")):
        yield source.name, lambda source=source: check_program(prefix, work, list(COMPILERS), source)
    for source in sorted((HERE / "cpp").glob("test_*.cpp")):
        yield source.name, lambda source=source: check_program(prefix, work, list(COMPILERS.values()), source)
    if sys.platform != "darwin":
        yield "a program with the static library", lambda: check_static_library(prefix, work)
    for group in EXAMPLE_GROUPS:
        yield f"examples {' '.join(group)}", lambda group=group: check_examples(prefix, work, group)
    yield "the program in docs/abi.md", lambda: check_documented_program(prefix, work)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prefix", type=Path)
    parser.add_argument(
        "--update-baseline", action="store_true", help="write baseline/ from the prefix instead"
    )
    arguments = parser.parse_args()
    if not COMPILERS:
        raise SystemExit("neither gcc and g++ nor clang and clang++ are here")
    prefix = Prefix(arguments.prefix.resolve())
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if arguments.update_baseline:
            BASELINE.write_text(describe_abi(prefix, work))
            return 0
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = [(name, pool.submit(check)) for name, check in checks(prefix, work)]
            for name, result in results:
                try:
                    result.result()
                except (Failure, subprocess.TimeoutExpired) as failure:
                    failed += 1
                    print(f"FAILED {name}\n{failure}", flush=True)
                else:
                    print(f"ok     {name}", flush=True)
    print(f"{failed} failed" if failed else "all ABI checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
