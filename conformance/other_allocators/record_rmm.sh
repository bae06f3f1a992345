#!/usr/bin/env bash
# record_rmm.sh [BUILT]     Writes recorded/rmm.txt.xz: the answers of RMM's pool to random scripts, for a test that needs no
# RMM. BUILT is target/peers unless given.
set -euo pipefail
. "$(dirname "$0")/common.sh"
built=${1:-$root/target/peers}
[ -x "$built/rmm_peer" ] || fail "$built/rmm_peer is missing: run conformance/other_allocators/build_rmm.sh"
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
capacity=268435456

script() { python3 "$here/gen.py" "$@" > "$t/script"; }
# pool MAXIMUM LIMIT: the answers to the script.
pool() {
  "$built/rmm_peer" pool $capacity $((capacity / 2)) "$1" "$t/script" > "$t/real"
  python3 "$here/record_run.py" rmm-pool $capacity "$2" "$t/script" "$t/real" >> "$t/rmm.txt"
}

for streams in 1 3 8; do
  script 1$streams 1400 $streams $((capacity / 100 * 97)) 16777216
  pool - -
  script 2$streams 1400 $streams 194000000 16777216
  pool 199999744 199999999
  # The first segment is in use throughout; the others are released to make room for larger ones.
  script 4$streams 1400 $streams 134000000 117000000 --smallest 1048576 --resident $((capacity / 2))
  pool 268435200 268435455
done
mkdir -p "$here/recorded"
xz -9e --stdout "$t/rmm.txt" > "$here/recorded/rmm.txt.xz"
echo "wrote $here/recorded/rmm.txt.xz"
