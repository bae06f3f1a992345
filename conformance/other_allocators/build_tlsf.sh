#!/usr/bin/env bash
# build_tlsf.sh REPOSITORY [DEST]     Matthew Conte's TLSF at commit deff9ab as DEST/tlsf_peer.
# REPOSITORY is a clone of https://github.com/mattconte/tlsf. One constant is changed: FL_INDEX_MAX, from 32 to 40, for pools beyond 4 GiB.
set -euo pipefail
. "$(dirname "$0")/common.sh"
need_compiler
[ $# -ge 1 ] || fail "needs a clone of https://github.com/mattconte/tlsf as its first argument"
repository=$(cd "$1" && pwd) || fail "$1 is no folder"
enter "${2:-}"
mkdir -p tlsf
for file in tlsf.c tlsf.h; do source_file "$repository" deff9ab "$file" > "tlsf/$file"; done
sed -i 's/FL_INDEX_MAX = 32,/FL_INDEX_MAX = 40,/' tlsf/tlsf.c
gcc -O3 -DNDEBUG -c tlsf/tlsf.c -o tlsf/tlsf.o
g++ -std=c++17 -O3 -DNDEBUG -Itlsf "$here/src/tlsf_peer.cpp" tlsf/tlsf.o -o tlsf_peer
echo "built $dest/tlsf_peer"
