#!/usr/bin/env bash
# Tests against PyTorch and transformers, in a Python environment that this script makes (several GB from PyPI). Not part of
# CI. usage: scripts/test_reference.sh [TERN]        TERN: default build/release/tern
# REFERENCE_PYTHON: an interpreter that has tests/reference_requirements.txt already.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tern=${1:-$root/build/release/tern}
[ -x "$tern" ] || die "$tern is not there: run scripts/build.sh first"
python=${REFERENCE_PYTHON:-}
if [ -z "$python" ]; then
  install_packages python3 python3-venv ca-certificates
  venv "$root/tests/reference_requirements.txt"
fi
cd "$root"
for test in tests/quantize/reference_test.py; do
  step "$test"
  "$python" "$test" "$tern"
done
