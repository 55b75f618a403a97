#!/usr/bin/env bash
# Builds llama.cpp's llama-bench, llama-batched-bench, llama-perplexity and llama-quantize from the PyPI
# source package llama-cpp-python, twice: for this machine (.cache/peers/native) and without AVX-512
# (.cache/peers/avx2). Takes about 15 minutes for each on two cores, once; never part of CI.
# With --models it also makes the models that tern is compared on: SmolLM2 in Q4_0 and IQ4_NL, and
# the random-weight GGUF twin of tests/data/configs/bench-moe-6l.json.
# --variant builds only one of the two.
# usage: scripts/peers.sh [--jobs N] [--variant native|avx2] [--models]
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

package=llama-cpp-python==0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
jobs=$(nproc)
models=
variants=(native avx2)
while [ $# -gt 0 ]; do
  case "$1" in
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    --models) models=1 ;;
    --variant)
      case "${2:-}" in native | avx2) ;; *) die "--variant needs native or avx2" ;; esac
      variants=("$2")
      shift
      ;;
    *) die "unknown option '$1' (usage: scripts/peers.sh [--jobs N] [--variant native|avx2] [--models])" ;;
  esac
  shift
done

install_packages g++ cmake ninja-build ccache python3 python3-venv ca-certificates
peers="$root/.cache/peers"
mkdir -p "$peers"
cd "$peers"
[ -x "$root/.venv/bin/python" ] || python3 -m venv "$root/.venv" || die "python3 -m venv failed"
python="$root/.venv/bin/python"

archive=llama_cpp_python-0.3.36.tar.gz
if [ ! -e "$archive" ]; then
  step "fetching the source of $package from PyPI"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
    -d . "$package" >&2 || die "pip could not download $package: is PyPI reachable?"
fi
step "checking $archive"
echo "$sha256  $archive" | sha256sum -c --quiet >&2 ||
  { rm -f "$archive"; die "$archive does not have the expected SHA-256; it was removed, run again"; }
if [ ! -e source/CMakeLists.txt ]; then
  step "unpacking $archive"
  rm -rf source.part && mkdir source.part
  tar xzf "$archive" -C source.part --strip-components=3 llama_cpp_python-0.3.36/vendor/llama.cpp
  rm -rf source && mv source.part source
fi

# build NAME CMAKE_OPTION...
build() {
  local name=$1 programs=(llama-bench llama-batched-bench llama-perplexity llama-quantize)
  shift
  if [ "$(cat "$name/built" 2>/dev/null)" = "${programs[*]}" ]; then return 0; fi
  step "configuring llama.cpp ($name)"
  cmake -S source -B "$name" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON \
    -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@" >&2
  step "building llama.cpp ($name)"
  nice -n 19 ninja -C "$name" -j "$jobs" "${programs[@]}" >&2
  echo "${programs[*]}" > "$name/built"
}
for variant in "${variants[@]}"; do
  case "$variant" in
    native) build native -DGGML_NATIVE=ON ;;
    avx2)
      build avx2 -DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON \
        -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX_VNNI=OFF -DGGML_AVX512=OFF
      ;;
  esac
done

if [ -n "$models" ]; then
  q4_1=$("$root/scripts/fetch_smollm2.sh")
  for type in Q4_0 IQ4_NL; do
    out="SmolLM2-135M-Instruct.$type.gguf"
    [ -e "$out" ] && continue
    step "requantizing SmolLM2 to $type"
    "${variants[0]}/bin/llama-quantize" --allow-requantize --pure "$q4_1" "$out.part" "$type" >&2
    mv "$out.part" "$out"
  done
  for type in q4_0 iq4_nl; do
    out="bench-moe-6l.$type.gguf"
    [ -e "$out" ] && continue
    step "writing $out"
    "$python" -m pip install -q --disable-pip-version-check gguf numpy >&2 || die "pip could not install gguf"
    "$python" "$root/tests/bench/make_gguf.py" "$out.part" "$type" >&2
    mv "$out.part" "$out"
  done
fi
find "${variants[@]/%//bin}" -maxdepth 1 -name 'llama-*' -type f -printf "$peers/%p\n" | sort
