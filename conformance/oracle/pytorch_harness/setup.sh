#!/usr/bin/env bash
# Builds programs that run the real PyTorch CUDA caching allocator, the compiled libc10_cuda.so of the published wheels, on a
# fake CUDA driver. It needs no GPU.
#
#   setup.sh [DEST] [RELEASE]...     DEST: target/oracle of this repository unless given
#
# A RELEASE is 2.7.1, or 2.7 or 7 for 2.7.0, or all; releases.txt lists them. The default is 2.11.0. Makes DEST/oracle-RELEASE
# and DEST/timed-RELEASE, and DEST/settings_probe-2.11.0: see README.md. It does not download again what is already there.
set -euo pipefail

usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; }
fail() { echo "setup.sh: $1" >&2; exit 1; }

here=$(cd "$(dirname "$0")" && pwd)
dest=$here/../../../target/oracle
known() { sed -n 's/^\([0-9][0-9.]*\) .*/\1/p' "$here/releases.txt"; }
releases=()
for argument in "$@"; do
  case $argument in
    -h|--help) usage; exit ;;
    all) readarray -t releases < <(known) ;;
    [0-9]*)
      release=$argument
      [[ $release == *.* ]] || release=2.$release
      [[ $release == *.*.* ]] || release=$release.0
      known | grep -qxF "$release" || fail "PyTorch $argument is not in releases.txt, which has $(known | tac | paste -sd ' '); how a release is added is in docs/releases.md"
      releases+=("$release") ;;
    *) dest=$argument ;;
  esac
done
[ ${#releases[@]} -gt 0 ] || releases=(2.11.0)

command -v g++ > /dev/null && command -v gcc > /dev/null || fail "g++ is missing: install GCC with C++20 (Debian: apt install g++)"
command -v python3 > /dev/null || fail "python3 is missing (Debian: apt install python3)"
python3 -m pip --version > /dev/null 2>&1 || fail "pip is missing for $(command -v python3) (Debian: apt install python3-pip)"
[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || fail "the wheels' libraries are for Linux on x86-64, this is $(uname -s) on $(uname -m)"

mkdir -p "$dest"
cd "$dest"
dest=$PWD
src=$here/src
fetch() { "$here/fetch.py" "$@"; }

# cuda MAJOR: the toolkit's headers in cuda-MAJOR/include, and the fake driver compiled with them in fake-MAJOR. Minor versions have the same interface.
cuda() {
  local at=cuda-$1 fake=fake-$1 runtime crt folder headers
  case $1 in
    12) runtime=nvidia-cuda-runtime-cu12==12.8.90 crt=nvidia-cuda-nvcc-cu12==12.8.93 folder=nvidia/cuda_runtime/include/ headers=nvidia/cuda_nvcc/include/crt/ ;;
    13) runtime=nvidia-cuda-runtime==13.0.96 crt=nvidia-cuda-crt==13.0.88 folder=nvidia/cu13/include/ headers=nvidia/cu13/include/crt/ ;;
  esac
  if [ ! -f "$at/complete" ]; then
    echo "downloading the headers of CUDA $1 with pip: 1 MB"
    fetch "$runtime" "$at.runtime" "$folder"
    fetch "$crt" "$at.crt" "$headers"
    mkdir -p "$at/include/crt"
    cp -r "$at.runtime/$folder." "$at/include"
    cp -r "$at.crt/$headers." "$at/include/crt"
    rm -rf "$at.runtime" "$at.crt"
    touch "$at/complete"
  fi
  mkdir -p "$fake/nvml"
  # Each file is built beside its destination and then moved there, so that running programs keep the old file.
  echo "libcudart.so.$1 { global: *; };" > "$fake/libcudart.map"
  g++ -std=c++17 -O2 -fPIC -shared -I"$at/include" "$src/fakecuda.cpp" -o "$fake/new" -Wl,-soname,"libcudart.so.$1" -Wl,--version-script="$fake/libcudart.map" -lpthread
  mv "$fake/new" "$fake/libcudart.so.$1"
  # 2.9 and older look for the driver's functions in an already loaded libcuda.so.1 (2.1: libcuda.so); these libraries lead to
  # the runtime's functions.
  gcc -shared -fPIC -x c /dev/null -o "$fake/new" -Wl,-soname,libcuda.so.1 -Wl,--no-as-needed -L"$fake" -l:"libcudart.so.$1" -Wl,-rpath,'$ORIGIN'
  mv "$fake/new" "$fake/libcuda.so.1"
  ln -sf libcuda.so.1 "$fake/libcuda.so"
  gcc -shared -fPIC -O2 "$src/fakenvml.c" -o "$fake/new" -Wl,-soname,libnvidia-ml.so.1
  mv "$fake/new" "$fake/nvml/libnvidia-ml.so.1"
}

# program NAME SOURCE RELEASE MAJOR
program() {
  local torch=torch-$3/torch minor standard=c++17 abi=1 driver=
  minor=${3#2.}
  minor=${minor%.*}
  [ "$minor" -ge 12 ] && standard=c++20
  # The published wheels before 2.7 use the pre-C++11 std::string.
  [ "$minor" -lt 7 ] && abi=0
  [ "$4" -lt 13 ] && driver=-l:libcuda.so.1
  g++ -std=$standard -O2 -DTORCH_MINOR="$minor" -D_GLIBCXX_USE_CXX11_ABI=$abi -DNDEBUG -I"$torch/include" -I"cuda-$4/include" "$src/$2" -o "$1.new" \
    -Wl,--no-as-needed -L"fake-$4" -l:"libcudart.so.$4" $driver -L"$torch/lib" -lc10 -lc10_cuda -lpthread \
    -Wl,--disable-new-dtags -Wl,-rpath,"\$ORIGIN/fake-$4" -Wl,-rpath,"\$ORIGIN/fake-$4/nvml" -Wl,-rpath,"\$ORIGIN/$torch/lib"
  mv "$1.new" "$1"
  echo "built $dest/$1"
}

made=
for release in "${releases[@]}"; do
  toolkit=$(sed -n "s/^$release //p" "$here/releases.txt")
  major=${toolkit%.*}
  [[ $made == *"<$major>"* ]] || cuda "$major"
  made+="<$major>"
  if [ ! -f "torch-$release/complete" ]; then
    echo "downloading a part of torch $release with pip: 5 MB"
    minor=${release#2.} more=
    # From 2.8 on c10's headers include some of these.
    [ "${minor%.*}" -lt 8 ] || more=torch/include/torch/headeronly/
    fetch "torch==$release" "torch-$release" torch/lib/libc10.so torch/lib/libc10_cuda.so torch/version.py torch/include/c10/ $more
  fi
  # The wheel states the toolkit that it was built with.
  said=$(sed -n "s/^cuda.*= '\(.*\)'.*/\1/p" "torch-$release/torch/version.py")
  [ "$said" = "$toolkit" ] || fail "torch $release was built with CUDA ${said:-of no version}, and releases.txt says $toolkit: make its line \"$release $said\""
  program "oracle-$release" oracle.cpp "$release" "$major"
  program "timed-$release" timed.cpp "$release" "$major"
  # It reads the fields of 2.11's configuration; other versions have different fields.
  [ "$release" = 2.11.0 ] && program settings_probe-2.11.0 settings_probe.cpp "$release" "$major"
done
exit 0
