#!/usr/bin/env bash
# Runs the end-to-end tests against a built tern.
# usage: tests/e2e/run.sh TERN [pytest options]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${TERN_E2E_PYTHON:-$root/.venv/bin/python}
[ $# -ge 1 ] || { echo "usage: run.sh TERN [pytest options]" >&2; exit 2; }
"$python" -c 'import openai, httpx, pytest' 2>/dev/null ||
  { echo "run.sh: $python lacks the packages of tests/e2e/requirements.txt; scripts/test.sh installs them" >&2; exit 1; }
export TERN_BINARY=$1
shift
exec "$python" -m pytest -q -p no:cacheprovider "$root/tests/e2e" "$@"
