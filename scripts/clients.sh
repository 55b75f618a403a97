#!/usr/bin/env bash
# Runs lm-eval and genai-bench, each from its own Python environment, against a tern that it starts with the tiny model of tests/data.
# Takes about 700 MB from PyPI for lm-eval and more for genai-bench, once; never part of CI.
# usage: scripts/clients.sh [lm-eval|genai-bench]        both by default; results are printed, logs go to build/clients
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-all}" in
  all) clients=(lm-eval genai-bench) ;;
  lm-eval | genai-bench) clients=("$1") ;;
  *) die "unknown argument '$1' (usage: scripts/clients.sh [lm-eval|genai-bench])" ;;
esac
lm_eval="lm-eval[api]==0.4.13"
genai_bench="genai-bench==0.0.5"

cd "$root"
install_packages python3 python3-venv ca-certificates
tern=build/release/tern out=build/clients model=tests/data/tiny/model
[ -x "$tern" ] || die "$tern is not built: run scripts/build.sh"
mkdir -p "$out"

# environment NAME PACKAGE...: a Python environment under .cache/clients with the packages.
environment() {
  local at=".cache/clients/$1"
  shift
  [ -e "$at/bin/python" ] || python3 -m venv "$at" || die "python3 -m venv failed"
  step "installing $1 into $at"
  "$at/bin/pip" install -q --disable-pip-version-check "$@" >&2 || die "pip could not install $1: is PyPI reachable?"
}

for client in "${clients[@]}"; do
  case "$client" in
    lm-eval) environment lm-eval "$lm_eval" "transformers==5.24.0" ;;  # transformers for the tokenizer alone: no torch
    genai-bench) environment genai-bench "$genai_bench" ;;
  esac
done

step "starting the server"
"$tern" serve --model-path "$model" --served-model-name tiny --port 0 2> "$out/serve.log" &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
for _ in $(seq 600); do
  url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$out/serve.log" | head -n 1)
  [ -z "$url" ] || break
  kill -0 "$server" 2>/dev/null || die "the server did not start: $(tail -n 1 "$out/serve.log")"
  sleep 0.1
done
[ -n "${url:-}" ] || die "the server was not ready after 60 s"

for client in "${clients[@]}"; do
  case "$client" in
    lm-eval)
      step "running lm-eval (local-completions: token ids, echo, logprobs)"
      python3 tests/clients/make_lm_eval_data.py "$out/tasks"
      HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$out/hf" .cache/clients/lm-eval/bin/lm_eval run \
        --model local-completions --include_path "$out/tasks" --tasks tern_choice,tern_prose,tern_ask --batch_size 8 \
        --model_args "model=tiny,base_url=$url/v1/completions,tokenizer_backend=huggingface,tokenizer=$model,max_length=512,num_concurrent=4" \
        > "$out/lm-eval.txt" 2> "$out/lm-eval.log" || die "lm-eval failed: $(tail -n 1 "$out/lm-eval.log")"
      cat "$out/lm-eval.txt"
      ;;
    genai-bench)
      step "running genai-bench"
      rm -rf "$out/genai"
      HF_HUB_OFFLINE=1 .cache/clients/genai-bench/bin/genai-bench benchmark --api-backend openai --api-base "$url" --api-key none \
        --api-model-name tiny --model-tokenizer "$model" --task text-to-text --max-time-per-run 1 --max-requests-per-run 40 \
        --num-concurrency 1 --num-concurrency 8 --traffic-scenario "D(100,50)" --experiment-base-dir "$out/genai" --log-dir "$out" \
        > "$out/genai-bench.log" 2>&1 || die "genai-bench failed: $(tail -n 1 "$out/genai-bench.log")"
      python3 tests/clients/check_genai_bench.py "$out"/genai/* 40 || die "genai-bench saw errors; its log is $out/genai-bench.log"
      ;;
  esac
done
echo "clients.sh: ${clients[*]} ended well"
