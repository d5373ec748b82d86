#!/bin/sh
# usage: scripts/aarch64/sysroot.sh FOLDER
# Unpacks the headers and static libraries that riftco needs, for 64-bit Arm, into FOLDER/sysroot and writes FOLDER/cross.ini
# for meson. Debian's packages, fetched with a package state of the folder's own: the system's stays as it is.
set -eu
packages="libpcre2-dev libutf8proc-dev libxxhash-dev nlohmann-json3-dev libgtest-dev"
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
if cmp -s "$here/sysroot.sh" .done && cmp -s "$here/cross.ini" .cross.ini; then exit 0; fi

rm -rf apt sysroot
mkdir -p apt/lists/partial apt/cache/archives/partial sysroot
: > apt/status
set -- -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$PWD/apt" -o Dir::Cache="$PWD/apt/cache" \
  -o Dir::State::status="$PWD/apt/status" -o APT::Sandbox::User=
apt-get "$@" update
# shellcheck disable=SC2086
(cd apt && apt-get "$@" download $packages)
for package in apt/*.deb; do dpkg-deb -x "$package" sysroot; done
rm -rf apt
sed "s|@SYSROOT@|$PWD/sysroot|g" "$here/cross.ini" > cross.ini
cp "$here/cross.ini" .cross.ini
cp "$here/sysroot.sh" .done
