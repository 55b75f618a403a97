#!/usr/bin/env bash
# From a fresh clone to an answer: installs, builds, fetches SmolLM2, serves it and asks it
# "What is the capital of France?" through the OpenAI API.
# usage: scripts/quickstart.sh [--once]
#   --once   stop after the answer, which is the last line; exit 0 only if it names Paris
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

once=0
case "${1:-}" in
  --once) once=1 ;;
  "") ;;
  *) die "unknown option '$1' (usage: scripts/quickstart.sh [--once])" ;;
esac

cd "$root"
step "building"
scripts/build.sh >&2 || die "scripts/build.sh failed; its last line says why"
model=$(scripts/fetch_smollm2.sh) || die "scripts/fetch_smollm2.sh failed; its last line says why"

step "starting the server"
port=0  # a free one
log=$(mktemp)
server=
stop_server() {
  [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; } || true
  rm -f "$log"
}
trap stop_server EXIT
trap 'exit 130' INT TERM
build/release/tern serve --model-path "$model" --served-model-name smollm2 --host 127.0.0.1 --port "$port" 2>"$log" &
server=$!
for _ in $(seq 600); do
  url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$log" | head -n 1)
  [ -z "$url" ] || break
  kill -0 "$server" 2>/dev/null || { tail -n 5 "$log" >&2; die "the server did not start: $(tail -n 1 "$log")"; }
  sleep 0.1
done
[ -n "${url:-}" ] || die "the server was not ready after 60 s: $(tail -n 1 "$log")"

step "asking it: What is the capital of France?"
answer=$(python3 - "$url" <<'PY'
import json, sys, urllib.request
body = {"model": "smollm2", "temperature": 0, "max_tokens": 64,
        "messages": [{"role": "user", "content": "What is the capital of France?"}]}
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
reply = json.load(urllib.request.urlopen(request, timeout=120))
print(reply["choices"][0]["message"]["content"].strip().replace("\n", " "))
PY
) || die "the request to $url failed"

if [ "$once" = 1 ]; then
  stop_server; server=
  case "$answer" in
    *Paris*) echo "$answer" ;;
    *) die "the answer does not name Paris: $answer" ;;
  esac
  exit 0
fi

cat <<TEXT

$answer

The server runs at $url until Ctrl-C. Go on with:

  curl $url/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Name three rivers."}]}'

  build/release/tern chat --url $url

  python: openai.OpenAI(base_url="$url/v1", api_key="none").chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "Name three rivers."}])
TEXT
wait "$server"
