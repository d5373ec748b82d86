#!/bin/sh
# usage: scripts/build.sh demo|test
# Builds the library in build/ and installs the package into .venv, editable, out of that same folder. With "test" also the
# unit tests, an installed prefix (build/prefix) and a wheel (build/wheel).
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
if [ "$1" = test ]; then tests=enabled; else tests=disabled; fi
set -- "--prefix=$PWD/build/prefix" --libdir=lib -Dtests=$tests -Ddefault_library=both
pip_settings="--disable-pip-version-check -q --no-build-isolation -Cbuild-dir=build"
for setting; do pip_settings="$pip_settings -Csetup-args=$setting"; done

# The package is installed again when its metadata or the place of this folder has changed; build/.installed says with what.
key=$(pwd; cat pyproject.toml scripts/build.sh)
if ! [ -f build/build.ninja ] || ! echo "$key" | cmp -s - "build/.installed-$tests"; then
  rm -f build/.installed-*
  meson setup build --reconfigure -Dpython_package=true "$@"
  ninja -C build
  pip install $pip_settings -e '.[dev]'
  echo "$key" > build/.installed-disabled
  if [ $tests = enabled ]; then echo "$key" > build/.installed-enabled; fi
fi
ninja -C build
if [ $tests = enabled ]; then
  rm -rf build/prefix build/wheel
  meson install -C build --no-rebuild --quiet --tags runtime,devel
  pip wheel $pip_settings --no-deps -w build/wheel .
fi
