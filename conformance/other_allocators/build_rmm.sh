#!/usr/bin/env bash
# build_rmm.sh [DEST]     RMM 26.10.0, the library of the package librmm-cu13, as DEST/rmm_peer. Downloads 12 MB; needs no GPU and no CUDA.
set -euo pipefail
. "$(dirname "$0")/common.sh"
need_compiler
need_pip
enter "${1:-}"
if [ ! -f rmm/complete ]; then
  echo "downloading RMM 26.10.0, its logger and CUDA headers with pip: 12 MB"
  download dl-rmm librmm-cu13==26.10.0 rapids-logger==0.3.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-crt==13.0.88
  for wheel in dl-rmm/*.whl; do unpack "$wheel" rmm ""; done
  rm -rf dl-rmm
  touch rmm/complete
fi
g++ -std=c++20 -O3 -DNDEBUG -fno-access-control -w \
  -DRMM_LOG_ACTIVE_LEVEL=RAPIDS_LOGGER_LOG_LEVEL_INFO -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE -DCCCL_IGNORE_DEPRECATED_CPP_DIALECT \
  -Irmm/librmm/include -Irmm/librmm/include/rapids -Irmm/rapids_logger/include -Irmm/nvidia/cu13/include \
  -I"$harness" "$here/src/rmm_peer.cpp" "$here/src/fake_cudart.cpp" -o rmm_peer \
  -Lrmm/librmm/lib64 -lrmm -Lrmm/rapids_logger/lib64 -lrapids_logger -lpthread \
  -Wl,-rpath,'$ORIGIN/rmm/librmm/lib64' -Wl,-rpath,'$ORIGIN/rmm/rapids_logger/lib64'
echo "built $dest/rmm_peer"
