#!/usr/bin/env bash
# usage: with_isa.sh LEVEL TERN TEST_BINARY
# Runs a test binary with TERN_ISA=LEVEL; exit code 77 (skipped) when this machine can't run the level.
set -euo pipefail
export TERN_ISA=$1
reason=$("$2" --isa 2>&1) || { echo "skipped: $reason"; exit 77; }
exec "$3"
