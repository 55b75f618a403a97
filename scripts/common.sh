# Shared by the scripts in this folder; sourced, never run. Gives: step, die, install_packages, venv.
set -Eeuo pipefail
export DEBIAN_FRONTEND=noninteractive

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
self=$(basename "$0")
current_step="starting"

# The last line of a failing script names the cause.
step() { current_step=$1; echo "== $1" >&2; }
die() { echo "$self: $1" >&2; trap - ERR; exit 1; }
trap 'code=$?; echo "$self: failed while $current_step (exit code $code)" >&2; exit $code' ERR

# Debian 12 packages that building needs, and those that only the tests need.
build_packages=(
  g++ cmake ninja-build ccache pkg-config
  libboost1.81-dev libssl-dev nlohmann-json3-dev libsimdjson-dev libfmt-dev libspdlog-dev libcli11-dev
  libyaml-cpp-dev prometheus-cpp-dev libxxhash-dev libutf8proc-dev libpcre2-dev
  libgtest-dev libgmock-dev librapidcheck-dev
  python3 python3-venv ca-certificates
)
test_packages=(clang-14 clang-format-14 libclang-rt-14-dev binutils)

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@" || die "sudo needs a password: run as root or allow sudo without one"; else
    die "packages are missing and this is neither root nor a machine with sudo: $*"
  fi
}

# Installs those of "$@" that are missing; asks apt for nothing when none is.
install_packages() {
  local missing=() package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "apt-get not found: tern's scripts install on Debian 12; install by hand: ${missing[*]}"
  step "installing Debian packages: ${missing[*]}"
  as_root apt-get -q update >&2 || die "apt-get update failed: is the package mirror reachable?"
  as_root apt-get -q -y --no-install-recommends install "${missing[@]}" >&2 || die "apt-get could not install: ${missing[*]}"
}

# A private Python environment with the given requirements file, in $root/.venv; sets $python.
venv() {
  local requirements=$1 stamp
  stamp="$root/.venv/$(sha256sum "$requirements" | cut -c1-16).installed"
  python="$root/.venv/bin/python"
  if [ ! -e "$stamp" ]; then
    step "installing Python packages of ${requirements#"$root"/} into .venv"
    [ -x "$python" ] || python3 -m venv "$root/.venv" || die "python3 -m venv failed"
    "$python" -m pip install -q --disable-pip-version-check -r "$requirements" >&2 || die "pip could not install ${requirements#"$root"/}"
    touch "$stamp"
  fi
}
