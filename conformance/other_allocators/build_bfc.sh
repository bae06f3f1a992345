#!/usr/bin/env bash
# build_bfc.sh [DEST]     The BFC allocator of TensorFlow 2.21.0, out of the package tensorflow-cpu, as DEST/bfc_peer. Downloads 274 MB; needs no GPU.
set -euo pipefail
. "$(dirname "$0")/common.sh"
need_compiler
need_pip
enter "${1:-}"
if [ ! -f tf/complete ]; then
  echo "downloading tensorflow-cpu 2.21.0 with pip: 274 MB, of which its framework library and headers are kept"
  download dl-tf --only-binary=:all: --python-version 3.11 --implementation cp --platform manylinux_2_27_x86_64 tensorflow-cpu==2.21.0
  include=tensorflow/include
  unpack dl-tf/tensorflow_cpu-2.21.0-*.whl tf tensorflow/libtensorflow_framework.so.2 $include/tsl/ $include/xla/tsl/ $include/absl/ $include/external/ \
    $include/google/ $include/tensorflow/core/platform/ $include/third_party/ $include/Eigen/ $include/unsupported/
  rm -rf dl-tf
  touch tf/complete
fi
g++ -std=c++17 -O3 -DNDEBUG -w -Itf/tensorflow/include -Itf/tensorflow/include/external/ml_dtypes_py -I"$harness" "$here/src/bfc_peer.cpp" -o bfc_peer \
  -Ltf/tensorflow -l:libtensorflow_framework.so.2 -lpthread -Wl,-rpath,'$ORIGIN/tf/tensorflow'
echo "built $dest/bfc_peer"
