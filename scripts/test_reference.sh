#!/usr/bin/env bash
# Tests against other implementations, in a Python environment that this script makes: text against tokenizers, tiktoken and
# jinja2 (30 MB from PyPI), quantizing against PyTorch and transformers (several GB). Not part of CI.
# usage: scripts/test_reference.sh [--text] [TERN]        TERN: default build/release/tern
#   --text   only the tests of text
# REFERENCE_PYTHON: an interpreter that has the packages of the requirements files below already.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

text_only=0
if [ "${1:-}" = --text ]; then text_only=1; shift; fi
tern=${1:-$root/build/release/tern}
[ -x "$tern" ] || die "$tern is not there: run scripts/build.sh first"
cd "$root"

# tests REQUIREMENTS TEST...
tests() {
  local requirements=$1 test
  shift
  python=${REFERENCE_PYTHON:-}
  if [ -z "$python" ]; then
    install_packages python3 python3-venv ca-certificates
    venv "$root/$requirements"
  fi
  for test in "$@"; do
    step "$test"
    "$python" "$test" "$tern" || die "$test failed; what differs is above"
  done
}

scripts/fetch_smollm2.sh > /dev/null || die "scripts/fetch_smollm2.sh failed; its last line says why"
tests tests/reference/requirements_text.txt tests/reference/tokenizers_test.py tests/reference/templates_test.py
[ "$text_only" = 1 ] || tests tests/reference_requirements.txt tests/quantize/reference_test.py
echo "test_reference.sh: no difference"
