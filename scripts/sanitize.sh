#!/usr/bin/env bash
# Builds and runs unit tests under sanitizers: of the areas that are named, or of all that the preset is for.
# usage: scripts/sanitize.sh asan-ubsan|tsan [AREA...]
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=${1:-}
case "$preset" in
  asan-ubsan) areas=(base net tensor kernels checkpoint jinja text kv pd models engine sim server) ;;
  tsan) areas=(base net kernels kv pd engine sim server) ;;
  *) die "usage: scripts/sanitize.sh asan-ubsan|tsan [AREA...]" ;;
esac
cd "$root"
[ $# -eq 1 ] || areas=("${@:2}")
for area in "${areas[@]}"; do
  compgen -G "src/$area/*_test.cc" >/dev/null || die "$area is not an area with unit tests: see src/"
done
install_packages "${build_packages[@]}"
step "building the unit tests with $preset"
cmake --preset "$preset" >&2
cmake --build --preset "$preset" --target $(printf '%s_test ' "${areas[@]}") >&2 || die "the build failed; the compiler's message is above"
export ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
for area in "${areas[@]}"; do
  step "running ${area}_test under $preset"
  start=$SECONDS
  # SmolLM2's suites ask for load time and peak memory, which sanitizers change; the small models take the same paths.
  "build/$preset/${area}_test" --gtest_brief=1 --gtest_filter='-SmolLm2*' >&2 || die "${area}_test failed under $preset"
  echo "${area}_test: $((SECONDS - start)) s" >&2
done
echo "sanitize.sh: ${#areas[@]} test binaries clean under $preset"
