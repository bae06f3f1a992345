#!/usr/bin/env bash
# Builds programs that run the real PyTorch CUDA caching allocator, the compiled libc10_cuda.so of the PyPI wheels, on a fake CUDA driver. No GPU needed.
#
#   setup.sh [DEST] [11] [15]     DEST: target/oracle of this repository unless given; 11 and 15: PyTorch 2.11.0 and 2.15.0, 2.11.0 alone unless given
#
# Makes DEST/oracle211, DEST/timed211 and DEST/settings_probe211, or DEST/oracle215 and DEST/timed215: see README.md. Whatever is already there is not downloaded again.
set -euo pipefail

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; }
fail() { echo "setup.sh: $1" >&2; exit 1; }

here=$(cd "$(dirname "$0")" && pwd)
dest=$here/../../../target/oracle
versions=()
for argument in "$@"; do
  case $argument in
    -h|--help) usage; exit ;;
    11|15) versions+=("$argument") ;;
    [0-9]*) fail "PyTorch 2.$argument is not supported: 11 and 15 are" ;;
    *) dest=$argument ;;
  esac
done
[ ${#versions[@]} -gt 0 ] || versions=(11)

command -v g++ > /dev/null && command -v gcc > /dev/null || fail "g++ is missing: install GCC with C++20 (Debian: apt install g++)"
command -v python3 > /dev/null || fail "python3 is missing (Debian: apt install python3)"
python3 -m pip --version > /dev/null 2>&1 || fail "pip is missing for $(command -v python3) (Debian: apt install python3-pip)"
[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || fail "the wheels' libraries are for Linux on x86-64, this is $(uname -s) on $(uname -m)"

mkdir -p "$dest/dl"
cd "$dest"
dest=$PWD
trap 'rm -rf "$dest/dl"' EXIT

# unpack WHEEL FOLDER PREFIX...: the files of a wheel whose names begin with one of the prefixes.
unpack() {
  python3 - "$@" <<'PYTHON'
import sys, zipfile
wheel, folder, *prefixes = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(folder, [name for name in archive.namelist() if name.startswith(tuple(prefixes))])
PYTHON
}

if [ ! -f inc/complete ]; then
  echo "downloading the CUDA 13.0 headers from PyPI: 2 MB"
  python3 -m pip download -q --disable-pip-version-check --no-deps -d dl nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88
  for wheel in dl/nvidia*.whl; do unpack "$wheel" inc nvidia/cu13/include/; done
  touch inc/complete
fi
for v in "${versions[@]}"; do
  if [ ! -f "t2$v/complete" ]; then
    echo "downloading torch 2.$v.0 from PyPI: 530 MB, of which 5 MB are kept"
    python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d dl \
      --python-version 3.11 --implementation cp --platform manylinux_2_28_x86_64 "torch==2.$v.0"
    unpack dl/torch-2."$v".0-*.whl "t2$v" torch/lib/libc10.so torch/lib/libc10_cuda.so torch/version.py torch/include/c10/ torch/include/torch/headeronly/
    rm -f dl/torch-2."$v".0-*.whl
    touch "t2$v/complete"
  fi
done

src=$here/src
cuda=inc/nvidia/cu13/include
mkdir -p fake/nvml
g++ -std=c++17 -O2 -fPIC -shared -I$cuda "$src/fakecuda.cpp" -o fake/libcudart.so.13 -Wl,-soname,libcudart.so.13 -Wl,--version-script="$src/fakecuda.map" -lpthread
# Linked against, and never opened: libc10_cuda.so takes the driver's functions from the runtime.
gcc -shared -fPIC -x c /dev/null -o fake/libcuda.so.1 -Wl,-soname,libcuda.so.1 -Wl,--no-as-needed -Lfake -l:libcudart.so.13 -Wl,-rpath,'$ORIGIN'
gcc -shared -fPIC -O2 "$src/fakenvml.c" -o fake/nvml/libnvidia-ml.so.1 -Wl,-soname,libnvidia-ml.so.1

# program NAME SOURCE VERSION
program() {
  local standard=c++17
  [ "$3" -ge 12 ] && standard=c++20
  g++ -std=$standard -O2 -DTORCH_MINOR="$3" -DNDEBUG -I"t2$3/torch/include" -I$cuda "$src/$2" -o "$1" \
    -Wl,--no-as-needed -Lfake -l:libcudart.so.13 -L"t2$3/torch/lib" -lc10 -lc10_cuda -lpthread \
    -Wl,--disable-new-dtags -Wl,-rpath,'$ORIGIN/fake' -Wl,-rpath,'$ORIGIN/fake/nvml' -Wl,-rpath,"\$ORIGIN/t2$3/torch/lib"
  echo "built $dest/$1"
}
for v in "${versions[@]}"; do
  program "oracle2$v" oracle.cpp "$v"
  program "timed2$v" timed.cpp "$v"
  # It reads the fields of 2.11's configuration; later versions have others.
  [ "$v" = 11 ] && program settings_probe211 settings_probe.cpp "$v"
done
exit 0
