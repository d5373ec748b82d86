#!/bin/sh
# usage: scripts/fuzz.sh SECONDS
# Runs every target of the fuzzer that long, two at a time, and adds what led somewhere new to tests/fuzz/corpus, at its
# smallest. A crash ends it with the input beside the log in build-fuzz/.
set -eu
cd "$(dirname "$0")/.."
program=build-fuzz/tests/cc/riftco_fuzz
corpus=tests/fuzz/corpus
fuzz() {
  target=$1
  mkdir -p "build-fuzz/$target/found" "$corpus/$target"
  export RIFTCO_FUZZ_TARGET="$target"
  $program "build-fuzz/$target/found" "$corpus/$target" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -max_len=32768 \
    -artifact_prefix="build-fuzz/$target/" >"build-fuzz/$target/log" 2>&1 || { echo "FAIL $target"; tail -n 30 "build-fuzz/$target/log"; return 1; }
  $program -merge=1 -max_len=32768 "$corpus/$target" "build-fuzz/$target/found" >>"build-fuzz/$target/log" 2>&1
  echo "ok $target: $(sed -n 's/^Done \([0-9]*\) runs.*/\1 runs/p' "build-fuzz/$target/log"), corpus of $(ls "$corpus/$target" | wc -l)"
}
targets=$(ls $corpus)
# shellcheck disable=SC2086
set -- "$1" $targets
seconds=$1
shift
failed=0
while [ $# -gt 0 ]; do
  fuzz "$1" "$seconds" & first=$!
  second=
  if [ $# -gt 1 ]; then shift; fuzz "$1" "$seconds" & second=$!; fi
  shift
  wait $first || failed=1
  [ -z "$second" ] || wait $second || failed=1
done
exit $failed
