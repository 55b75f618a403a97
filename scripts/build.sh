#!/usr/bin/env bash
# Installs what building needs and builds build/release/tern (tests included with --tests).
# usage: scripts/build.sh [--tests]
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tests=OFF
case "${1:-}" in
  --tests) tests=ON ;;
  "") ;;
  *) die "unknown option '$1' (usage: scripts/build.sh [--tests])" ;;
esac

install_packages "${build_packages[@]}"
cd "$root"
step "configuring build/release"
cmake --preset release -DTERN_TESTS=$tests >&2
step "building build/release"
cmake --build --preset release >&2 || die "the build failed; the compiler's message is above"
echo "built build/release/tern ($(build/release/tern --version))"
