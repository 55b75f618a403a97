#!/usr/bin/env bash
# Quantizes tiny and SmolLM2 in every way and evaluates each result against the file that it was made from.
# usage: scripts/accuracy.sh [--out DIR] [--tern FILE] [tiny|smollm2]...
# Prints a Markdown table for docs/accuracy.md; DIR (default build/accuracy) keeps all results, pictures and commands.
# A row that is there already is not computed again: remove its .json to do so.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

out=build/accuracy tern=build/release/tern models=()
while [ $# -gt 0 ]; do
  case "$1" in
    --out) out=$2; shift ;;
    --tern) tern=$2; shift ;;
    tiny | smollm2) models+=("$1") ;;
    *) die "unknown argument '$1' (usage: scripts/accuracy.sh [--out DIR] [--tern FILE] [tiny|smollm2]...)" ;;
  esac
  shift
done
[ ${#models[@]} -gt 0 ] || models=(tiny smollm2)

cd "$root"
install_packages python3 bible-kjv
[ -x "$tern" ] || die "$tern is not built: run scripts/build.sh"
mkdir -p "$out"

# Verses of the King James Bible that are not in tests/data/tiny/perplexity_dev.txt (Hebrews 9:20 to 2 John 1:9).
verses() { bible -f "$1" | sed 's/^[^ ]* //'; }

# calibration FILE TASKS KIND VERSES ITEMS: text of the kinds that is evaluated, but none of the evaluated text and items.
calibration() {
  local seed=77
  verses "$4" > "$out/calibration_text.txt"
  python3 tests/tasks/make_tasks.py --for "$3" --items "$5" --seed $seed > "$out/calibration_tasks.jsonl"
  python3 - "$out/calibration_text.txt" "$out/calibration_tasks.jsonl" "$2" > "$1" <<'PY'
import json, sys
text, tasks, evaluated = sys.argv[1:]
lines = open(text).read().splitlines()
for at in range(0, len(lines), 40): print(json.dumps({"text": "\n".join(lines[at:at + 40])}))
known = {json.dumps(json.loads(line)["messages"]) for line in open(evaluated)}
for item in map(json.loads, open(tasks)):
    if json.dumps(item["messages"]) in known: continue
    print(json.dumps({"messages": item["messages"] + [{"role": "assistant", "content": item["expect"]}]}))
PY
}

run() { printf '%s\n' "$(printf '%q ' "$@")" >> "$out/commands.txt"; "$@"; }

# row NAME MODEL [eval options]: evaluates MODEL, against $base if there is one.
row() {
  local name=$1 model=$2
  shift 2
  [ ! -e "$out/$name.json" ] || return 0
  step "evaluating $name"
  run "$tern" eval --model-path "$model" --perplexity "$text" --tasks "$tasks" --json "$out/$name.json" \
    --plot "$out/$name.svg" "${limits[@]}" "$@" > "$out/$name.txt" || die "tern eval of $name failed"
}

# quantized NAME [quantize options]: makes a checkpoint of $base_model and evaluates it.
quantized() {
  local name=$1 made="$out/$1.checkpoint"
  shift
  [ ! -e "$out/$name.json" ] || return 0
  step "quantizing $name"
  rm -rf "$made"
  run "$tern" quantize --model-path "$base_model" --output "$made" "$@" || die "tern quantize of $name failed"
  row "$name" "$made" --kl-against "$base_model" --baseline "$out/$base.json"
}

# served NAME MODEL [serving options]: the checkpoint as it is, served otherwise.
served() {
  local name=$1 model=$2
  shift 2
  row "$name" "$model" "$@" --kl-kv-cache-dtype bf16 --kl-activation-dtype auto --kl-against "$base_model" \
    --baseline "$out/$base.json"
}

# all_kv_formats ROW MODEL FORMAT...: what an FP8 KV cache does to ROW, which is MODEL with BF16 rows.
all_kv_formats() {
  local of=$1 model=$2
  shift 2
  for format in "$@"; do
    row "${of}_kv_$format" "$model" --kv-cache-dtype "$format" --kl-kv-cache-dtype bf16 --kl-against "$model" \
      --baseline "$out/$of.json"
  done
}

# apart MODEL_NAME PREFILL DECODE FORMAT...: prompts by checkpoint PREFILL with BF16 rows, answers by DECODE with FORMAT's.
apart() {
  local of=$1 prefill=$2 decode=$3
  shift 3
  for format in "$@"; do
    row "${of}_apart_${prefill}_${decode}_$format" "$out/${of}_$decode.checkpoint" --disaggregation-mode local \
      --prefill-model-path "$out/${of}_$prefill.checkpoint" --kv-cache-dtype "$format" --kl-kv-cache-dtype bf16 \
      --kl-against "$base_model" --baseline "$out/$base.json"
  done
}

# conversations MODEL_NAME KIND ITEMS FORMAT...: eight turns each, in which a fact of an earlier one is asked back.
conversations() {
  local model=$1 kind=$2 items=$3
  shift 3
  python3 tests/tasks/make_tasks.py --kinds "$kind" --items "$items" > "$out/${model}_talks.jsonl"
  for format in bf16 "$@"; do
    local name="${model}_talks_kv_$format" against=()
    [ ! -e "$out/$name.json" ] || continue
    [ "$format" = bf16 ] || against=(--baseline "$out/${model}_talks_kv_bf16.json")
    step "evaluating $name"
    run "$tern" eval --model-path "$base_model" --tasks "$out/${model}_talks.jsonl" --json "$out/$name.json" \
      "${limits[@]}" --kv-cache-dtype "$format" "${against[@]}" > "$out/$name.txt" || die "tern eval of $name failed"
  done
}

# all_methods PREFIX RECIPE
all_methods() {
  for method in rtn search calibrated; do
    local text_of=()
    [ "$method" != calibrated ] || text_of=(--calibration "$out/$1_calibration.jsonl")
    quantized "$1_int4_$2_$method" --format int4 --recipe "$2" --method "$method" "${text_of[@]}"
  done
}

for model in "${models[@]}"; do
  tasks="$out/${model}_tasks.jsonl"
  if [ "$model" = tiny ]; then
    base_model=tests/data/tiny/model text=tests/data/tiny/perplexity_dev.txt base=tiny_own limits=()
    python3 tests/tasks/make_tasks.py --for tiny --items 20000 > "$tasks"
  else
    base_model=$(scripts/fetch_smollm2.sh) || die "scripts/fetch_smollm2.sh failed"
    base_model=${base_model#"$root"/}
    text="$out/smollm2_text.txt" base=smollm2_own limits=(--max-new-tokens 16 --page-size 16)
    cat tests/data/tiny/perplexity_dev.txt tests/data/smollm2/docs_text.txt > "$text"
    python3 tests/tasks/make_tasks.py --for smollm2 --items 2000 > "$tasks"
  fi
  # Of SmolLM2 a quarter: a token costs it 30 times as much.
  if [ "$model" = tiny ]; then calibrate=(rom1:1-heb8:13 400); else calibrate=(rom1:1-rom8:39 60); fi
  calibration "$out/${model}_calibration.jsonl" "$tasks" "$model" "${calibrate[@]}"
  row "$base" "$base_model"
  quantized "${model}_fp8" --format fp8 --recipe all-linear
  [ "$model" != tiny ] || all_methods "$model" kimi
  all_methods "$model" all-linear
  served "${model}_int4_all-linear_search_int8" "$out/${model}_int4_all-linear_search.checkpoint" --activation-dtype int8
  formats=(fp8_e4m3 fp8_tiled)
  [ "$model" != tiny ] || formats+=(fp8_ds_mla)
  all_kv_formats "${model}_own" "$base_model" "${formats[@]}"
  weights=(fp8 int4_all-linear_calibrated)
  [ "$model" != tiny ] || weights+=(int4_kimi_calibrated)
  for made in "${weights[@]}"; do
    all_kv_formats "${model}_$made" "$out/${model}_$made.checkpoint" "${formats[@]}"
  done
  [ "$model" != tiny ] || for made in int4_kimi_calibrated int4_all-linear_calibrated; do
    apart tiny fp8 "$made" "${formats[@]}"
  done
  if [ "$model" = tiny ]; then conversations tiny talk:3 2000 "${formats[@]}"
  else conversations smollm2 e-talk 400 "${formats[@]}"; fi
done
python3 scripts/accuracy_table.py "$out" "${models[@]}"
