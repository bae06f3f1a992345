# The build scripts source this file: the build folder, the prerequisites, and unpacking of a part of a wheel.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
harness=$root/conformance/oracle/pytorch_harness/src  # timed.hpp

usage() { sed -n '2,/^[^#]/{/^[^#]/d;s/^# \{0,1\}//p}' "$0"; }
fail() { echo "$(basename "$0"): $1" >&2; exit 1; }
case ${1:-} in -h|--help) usage; exit ;; esac

need_compiler() { command -v g++ > /dev/null || fail "g++ is missing (Debian: apt install g++)"; }
need_pip() {
  command -v python3 > /dev/null || fail "python3 is missing (Debian: apt install python3)"
  python3 -m pip --version > /dev/null 2>&1 || fail "pip is missing for $(command -v python3) (Debian: apt install python3-pip)"
  [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || fail "the wheels' libraries are for Linux on x86-64, this is $(uname -s) on $(uname -m)"
}

# enter DEST: changes to the build folder, target/peers unless given.
enter() {
  dest=${1:-$root/target/peers}
  mkdir -p "$dest"
  cd "$dest"
  dest=$PWD
}

# download FOLDER ARGUMENT...: pip download of wheels into a folder.
download() { local folder=$1; shift; python3 -m pip download -q --disable-pip-version-check --no-deps -d "$folder" "$@"; }

# unpack WHEEL FOLDER PREFIX...: extracts the files of a wheel whose names begin with one of the prefixes.
unpack() {
  python3 - "$@" <<'PYTHON'
import sys, zipfile
wheel, folder, *prefixes = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder, [name for name in archive.namelist() if name.startswith(tuple(prefixes))])
PYTHON
}
