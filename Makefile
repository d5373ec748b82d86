# The targets and what they do: make. Everything lives in .venv/ and build*/ of this folder.
SHELL := /bin/sh
.DEFAULT_GOAL := help
VENV := .venv/bin
export PATH := $(CURDIR)/.venv/bin:$(PATH)

CPP_FILES = $(shell git ls-files -co --exclude-standard -- '*.h' '*.hpp' '*.c' '*.cc' '*.cpp')
MODEL ?= smollm2-135m
PROMPT ?= The capital of France is

.PHONY: help setup setup-test build build-test demo pipeline test check lint sanitize threads fuzz neon oracle bench format clean

help: ## print the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

setup: ## install what building needs: system packages (apt) and .venv
	@scripts/setup.sh demo

setup-test: setup
	@scripts/setup.sh test

build: setup ## build the library and install the Python package into .venv, editable
	@scripts/build.sh demo

build-test: setup-test
	@scripts/build.sh test

demo: build ## fetch a real model (98 MB) and answer with it
	@riftco pull $(MODEL)
	riftco generate $(MODEL) "$(PROMPT)" --max-new-tokens 32 --temperature 0

pipeline: build ## make a tiny model in all stages from the Python library's own documentation: results/stages/*.rift
	python scripts/pipeline.py results/stages

test: build-test ## build once and run every test: C++, Python, examples, ABI
	meson test -C build --no-rebuild --print-errorlogs
	python abi_tests/run.py build/prefix
	RIFTCO_WHEEL_DIR=$(CURDIR)/build/wheel pytest -q -n auto --maxprocesses 4 --dist worksteal

check: lint sanitize threads ## sanitizers, formatting, lint, types, include directions

lint: build-test
	clang-format --dry-run -Werror $(CPP_FILES)
	python tests/check_includes.py
	python tests/check_kernel_symbols.py build
	ruff check .
	ruff format --check .
	mypy

# Unoptimised enough to be exact about lines, optimised enough to be quick.
SANITIZED := -Dbuildtype=plain -Doptimization=1 -Db_lundef=false -Db_ndebug=false -Dwerror=false -Dtests=enabled
SANITIZED_ARGS := -g1 -fno-omit-frame-pointer -fno-sanitize-recover=all

# Without the comparisons of whole sessions: the same code runs in the other tests, and under sanitizers they take minutes.
sanitize: export GTEST_FILTER := -*Exactness*
sanitize: setup-test ## unit tests under ASan and UBSan, with the widest instruction set and, where it matters, scalar
	@[ -f build-asan/build.ninja ] || meson setup build-asan -Db_sanitize=address,undefined $(SANITIZED) -Dcpp_args='$(SANITIZED_ARGS)'
	meson test -C build-asan --print-errorlogs --timeout-multiplier 4
	RIFTCO_CPU_ISA=scalar GTEST_FILTER='$(GTEST_FILTER):Speculation*' \
	  meson test -C build-asan --no-rebuild --print-errorlogs --timeout-multiplier 4 model serve

threads: setup-test ## the unit tests that start threads, under TSan
	@[ -f build-tsan/build.ninja ] || meson setup build-tsan -Db_sanitize=thread $(SANITIZED) -Dcpp_args='$(SANITIZED_ARGS)'
	meson test -C build-tsan --suite threads --print-errorlogs --timeout-multiplier 4 --test-args='--gtest_filter=*Threads*'

FUZZ_SECONDS ?= 60

fuzz: setup-test ## run every fuzz target for a minute (FUZZ_SECONDS) and keep what it found in tests/fuzz/corpus
	@[ -f build-fuzz/build.ninja ] || CC=clang CXX=clang++ meson setup build-fuzz -Db_sanitize=address,undefined $(SANITIZED) -Dfuzzer=true \
	  -Dcpp_args='$(SANITIZED_ARGS) -fsanitize=fuzzer-no-link -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION'
	ninja -C build-fuzz tests/cc/riftco_fuzz
	scripts/fuzz.sh $(FUZZ_SECONDS)

# Each test that runs a NEON kernel, on processors with products of int8 matrices, with dot products only, and with neither.
# Scalar kernels are not rerun.
neon: export GTEST_FILTER := -*/scalar
neon: setup ## cross-build the kernels for 64-bit Arm and run their tests under qemu-user
	@scripts/setup.sh neon
	@scripts/aarch64/sysroot.sh build-neon-sysroot
	@[ -f build-neon/build.ninja ] || meson setup build-neon --cross-file build-neon-sysroot/cross.ini -Dtests=enabled
	ninja -C build-neon tests/cc/test_base tests/cc/test_core tests/cc/test_cpu
	QEMU_CPU=max meson test -C build-neon --no-rebuild --print-errorlogs --timeout-multiplier 4 base core cpu
	for cpu in neoverse-n1 cortex-a72; do \
	  QEMU_CPU=$$cpu meson test -C build-neon --no-rebuild --print-errorlogs --timeout-multiplier 4 cpu || exit; done

oracle: build-test ## make the golden files again from the packages that own the truth (torch, transformers: gigabytes)
	python3 -m venv build/oracle
	build/oracle/bin/pip install -q -r tests/golden/requirements.txt
	RIFTCO_SMOLLM2_GGUF=$$(riftco pull smollm2-135m --json | python -c 'import json, sys; print(json.load(sys.stdin)["path"])'); \
	export RIFTCO_SMOLLM2_GGUF; for script in tests/golden/*/make_*.py; do build/oracle/bin/python $$script || exit; done
	git diff --stat -- tests/golden

bench: build ## speed and memory: a model, speculation, growth, kernels, training, and all next to other engines (hours)
	@riftco pull $(MODEL)
	riftco bench $(MODEL)
	python benchmarks/bench_speculation.py "$$(riftco pull $(MODEL))"
	python benchmarks/bench_growth.py "$$(riftco pull $(MODEL))"
	ninja -C build bench_kernels bench_limits
	build/benchmarks/bench_kernels
	pip install -q 'matplotlib>=3.6'
	python benchmarks/plot_roofline.py results/roofline.svg
	python benchmarks/bench_train.py
	python benchmarks/bench_peers.py --out results/peers.json

format: setup-test ## rewrite the sources in the project's style
	clang-format -i $(CPP_FILES)
	ruff check --fix .
	ruff format .

clean: ## remove what was built; .venv stays
	rm -rf build build-asan build-tsan build-fuzz build-neon build-neon-sysroot
