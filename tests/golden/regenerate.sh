#!/bin/sh
# Makes every golden again (`make oracle`). Needs RIFTCO_SMOLLM2_GGUF, the path of SmolLM2-135M-Instruct.Q4_1.gguf,
# which `riftco pull smollm2-135m` prints. RIFTCO_ORACLE_VENV: the environment to make or use (default .venv-oracle).
set -eu
: "${RIFTCO_SMOLLM2_GGUF:?set it to the path that riftco pull smollm2-135m prints}"
here=$(cd "$(dirname "$0")" && pwd)
venv=${RIFTCO_ORACLE_VENV:-$here/../../.venv-oracle}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --requirement "$here/requirements.txt"
for script in "$here"/*/make_*.py; do
  echo "== ${script#"$here/"}"
  "$venv/bin/python" "$script"
done
