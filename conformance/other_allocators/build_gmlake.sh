#!/usr/bin/env bash
# build_gmlake.sh REPOSITORY [DEST]     GMLake's allocator (glake, commit 0274a9c) over the c10 library of torch 2.0.1 as DEST/gmlake_peer.
# REPOSITORY is a clone of https://github.com/intelligent-machine-learning/glake. Downloads 620 MB, of which two libraries and c10's headers are kept.
# It runs on the fake driver of conformance/oracle/pytorch_harness and uses the CUDA headers that its setup.sh downloads into target/oracle (or ORACLE=DIR).
set -euo pipefail
. "$(dirname "$0")/common.sh"
need_compiler
need_pip
[ $# -ge 1 ] || fail "needs a clone of https://github.com/intelligent-machine-learning/glake as its first argument"
repository=$(cd "$1" && pwd) || fail "$1 is no folder"
oracle=$(cd "${ORACLE:-$root/target/oracle}" 2> /dev/null && pwd) || fail "the oracle is not built: run conformance/oracle/pytorch_harness/setup.sh"
cuda=$oracle/cuda-13/include
[ -f "$cuda/cuda.h" ] || fail "$cuda has no CUDA headers: run conformance/oracle/pytorch_harness/setup.sh"
enter "${2:-}"
mkdir -p gm/inc/c10/cuda gm/fake
if [ ! -f gm/t/complete ]; then
  echo "downloading torch 2.0.1 from PyPI: 620 MB"
  download dl-gm --only-binary=:all: --python-version 3.10 --implementation cp --platform manylinux1_x86_64 torch==2.0.1
  unpack dl-gm/torch-2.0.1-*.whl gm/t torch/include/c10/ torch/lib/libc10.so torch/lib/libc10_cuda.so
  rm -rf dl-gm
  touch gm/t/complete
fi
source_file "$repository" 0274a9c GMLake/src/CUDACachingAllocator.cpp > gm/CUDACachingAllocator.cpp
source_file "$repository" 0274a9c GMLake/include/cuda_vmm_allocator.h > gm/inc/c10/cuda/cuda_vmm_allocator.h
cd gm
echo 'libcudart.so.11.0 { global: *; };' > cudart11.map
g++ -std=c++17 -O2 -fPIC -shared -I"$cuda" "$here/../oracle/pytorch_harness/src/fakecuda.cpp" -o fake/libcudart.so.11.0 \
  -Wl,-soname,libcudart.so.11.0 -Wl,--version-script=cudart11.map -lpthread
flags="-std=c++17 -O2 -DNDEBUG -D_GLIBCXX_USE_CXX11_ABI=0 -w -Iinc -It/torch/include -I$cuda"
g++ $flags -c CUDACachingAllocator.cpp -o gm.o
g++ $flags "$here/src/gmlake_peer.cpp" "$here/src/gmlake_extra.cpp" gm.o -o ../gmlake_peer -Lt/torch/lib -lc10_cuda -lc10 -Lfake -l:libcudart.so.11.0 -lpthread \
  -Wl,--disable-new-dtags -Wl,-rpath,'$ORIGIN/gm/t/torch/lib' -Wl,-rpath,'$ORIGIN/gm/fake' -Wl,--allow-shlib-undefined
echo "built $dest/gmlake_peer"
