#!/usr/bin/env bash
# Installs, builds and runs the tests.
# usage: scripts/test.sh [--fast]
#   --fast   only the tests labelled `fast` (under 10 minutes on 2 cores)
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

label=full
case "${1:-}" in
  --fast) label=fast ;;
  "") ;;
  *) die "unknown option '$1' (usage: scripts/test.sh [--fast])" ;;
esac

install_packages "${build_packages[@]}" "${test_packages[@]}"
cd "$root"
step "building"
scripts/build.sh --tests >&2 || die "scripts/build.sh --tests failed; its last line says why"
scripts/fetch_smollm2.sh >/dev/null || die "scripts/fetch_smollm2.sh failed; its last line says why"
venv "$root/tests/e2e/requirements.txt"
# 200 MB: the routers of the tests labelled `full`.
[ "$label" = fast ] || venv "$root/tests/e2e/requirements_routers.txt"
export TERN_TEST_REQUIRE_SMOLLM2=1  # its absence is a failure here, not a skipped test
step "running the tests labelled $label"
ctest --test-dir build/release -L "^$label\$" --output-on-failure --no-tests=error --timeout 1800 ||
  die "tests failed; ctest's list is above"
echo "test.sh: all tests labelled $label passed"
