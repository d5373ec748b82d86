#!/bin/sh
# usage: scripts/setup.sh demo|test|neon
# Installs what the target needs: system packages (only those that are missing) and .venv with the build tools.
# Does nothing when it has already run with this content.
set -eu
cd "$(dirname "$0")/.."
purpose=$1
done_file=.venv/.setup-$purpose
if cmp -s scripts/setup.sh "$done_file"; then exit 0; fi

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "riftco needs Python 3.10 or newer" >&2; exit 1; }

has_header() { echo "#include <$1>" | c++ -E -x c++ -DPCRE2_CODE_UNIT_WIDTH=8 - >/dev/null 2>&1; }
missing=
need() { package=$1; shift; "$@" >/dev/null 2>&1 || missing="$missing $package"; }
need g++ command -v c++
need gcc command -v cc
need python3-venv "$python" -c 'import ensurepip, venv'
need pkg-config command -v pkg-config
need libpcre2-dev has_header pcre2.h
need libutf8proc-dev has_header utf8proc.h
need libxxhash-dev has_header xxhash.h
need nlohmann-json3-dev has_header nlohmann/json.hpp
if [ "$purpose" = test ]; then
  need libgtest-dev has_header gtest/gtest.h
  need clang command -v clang++
  need clang-format command -v clang-format
  need valgrind command -v valgrind
elif [ "$purpose" = neon ]; then
  need g++-aarch64-linux-gnu command -v aarch64-linux-gnu-g++
  need qemu-user command -v qemu-aarch64
fi

if [ -n "$missing" ]; then
  if [ "$(id -u)" = 0 ]; then as_root=; else as_root=sudo; fi
  if ! command -v apt-get >/dev/null || ! { [ -z "$as_root" ] || command -v sudo >/dev/null; }; then
    echo "These packages are missing (Debian's names):$missing" >&2
    echo "Install them and run make again." >&2
    exit 1
  fi
  echo "Installing$missing"
  $as_root apt-get update -qq
  # shellcheck disable=SC2086
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi

[ -x .venv/bin/pip ] || "$python" -m venv --clear .venv
# pip 23.1 is the first that passes several settings of one name on to the build.
.venv/bin/pip install -q --disable-pip-version-check 'pip>=23.1' 'meson-python>=0.16' 'meson>=1.2' ninja wheel cffi
cp scripts/setup.sh "$done_file"
