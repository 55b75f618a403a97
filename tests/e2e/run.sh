#!/usr/bin/env bash
# Runs the end-to-end tests against a built tern.
# usage: tests/e2e/run.sh TERN [pytest options] [files of this folder]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${TERN_E2E_PYTHON:-$root/.venv/bin/python}
[ $# -ge 1 ] || { echo "usage: run.sh TERN [pytest options]" >&2; exit 2; }
"$python" -c 'import openai, httpx, pytest' 2>/dev/null ||
  { echo "run.sh: $python lacks the packages of tests/e2e/requirements.txt; scripts/test.sh installs them" >&2; exit 1; }
export TERN_BINARY
TERN_BINARY=$(realpath "$1")
shift
cd "$root/tests/e2e"
exec "$python" -m pytest -q -p no:cacheprovider --rootdir . "$@"
