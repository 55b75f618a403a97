#!/usr/bin/env bash
# Builds the fuzzers (clang, ASan, UBSan) and runs each from its corpus.
# usage: scripts/fuzz.sh [SECONDS_EACH]
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seconds=${1:-10}
install_packages "${build_packages[@]}" "${test_packages[@]}"
cd "$root"
step "building the fuzzers"
cmake --preset fuzz >&2
cmake --build --preset fuzz >&2 || die "the fuzzers do not build; the compiler's message is above"
ran=0
for source in fuzz/*_fuzz.cc; do
  name=$(basename "$source" .cc)
  corpus=fuzz/corpus/${name%_fuzz}
  [ -d "$corpus" ] || die "$name has no seed corpus $corpus"
  step "fuzzing $name for $seconds s"
  found=$(mktemp -d)
  build/fuzz/fuzz/"$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$found/" "$found" "$corpus" >"$found/log" 2>&1 ||
    { tail -n 40 "$found/log" >&2; die "$name found a failure; its input: $(ls "$found" | grep -m1 -- - || true) in $found"; }
  grep -a 'stat::number_of_executed_units' "$found/log" | sed "s/^/$name /"
  rm -rf "$found"
  ran=$((ran + 1))
done
[ "$ran" -gt 0 ] || die "there are no fuzzers"
echo "fuzz.sh: $ran fuzzers, no failure"
