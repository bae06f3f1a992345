#!/usr/bin/env bash
# Compiles PyTorch's bridge to parkade for releases whose programs setup.sh has built: target/oracle/bridge-RELEASE.so, and
# runs src/bridge_checks.cpp on it. It needs no GPU.
#
#   bridge.sh RELEASE...     a RELEASE is 2.11.0, or 2.11 or 11 for short; without one, every release in target/oracle
#
# First run: cargo build --release -p parkade-capi. Then run: differential/run.py --release 2.11.0 --bridge
# target/oracle/bridge-2.11.0.so
set -euo pipefail
case ${1:-} in -h|--help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../../.."
library=target/release/libparkade_capi.so
[ -f $library ] || { echo "bridge.sh: $library is missing: cargo build --release -p parkade-capi" >&2; exit 1; }
releases=("$@")
if [ ${#releases[@]} -eq 0 ]; then
  for torch in target/oracle/torch-*/; do release=${torch#*torch-}; releases+=("${release%/}"); done
fi
for release in "${releases[@]}"; do
  [[ $release == *.* ]] || release=2.$release
  [[ $release == *.*.* ]] || release=$release.0
  minor=${release#2.} minor=${minor%.*} toolkit=13 standard=c++17
  torch=target/oracle/torch-$release/torch
  [ -d "$torch" ] || { echo "bridge.sh: $torch is missing: conformance/oracle/pytorch_harness/setup.sh $release" >&2; exit 1; }
  [ "$minor" -ge 8 ] || { echo "bridge.sh: the bridge is for PyTorch 2.8 and later, not $release" >&2; continue; }
  [ "$minor" -ge 12 ] && standard=c++20
  [ "$minor" -le 10 ] && toolkit=12
  # The programs find the fake driver's runtime by their own paths.
  g++ -std=$standard -O2 -fPIC -shared -fvisibility=hidden -fno-plt -Wall -Wextra -Wno-unused-parameter -Wno-deprecated-declarations -DNDEBUG -DTORCH_MINOR="$minor" \
    -Icapi/include -isystem "$torch/include" -isystem "target/oracle/cuda-$toolkit/include" python/parkade/bridge/bridge.cpp -o "target/oracle/bridge-$release.new" \
    -Ltarget/release -lparkade_capi -Ltarget/oracle/fake-$toolkit -l:libcudart.so.$toolkit -L"$torch/lib" -lc10 -lc10_cuda -Wl,-rpath,"$PWD/target/release"
  mv "target/oracle/bridge-$release.new" "target/oracle/bridge-$release.so"
  echo "built target/oracle/bridge-$release.so"
  driver=
  [ "$toolkit" -lt 13 ] && driver=-l:libcuda.so.1
  g++ -std=$standard -O1 -DTORCH_MINOR="$minor" -DNDEBUG -isystem "$torch/include" -isystem "target/oracle/cuda-$toolkit/include" \
    conformance/oracle/pytorch_harness/src/bridge_checks.cpp -o "target/oracle/bridge_checks-$release" \
    -Wl,--no-as-needed -Ltarget/oracle/fake-$toolkit -l:libcudart.so.$toolkit $driver -L"$torch/lib" -lc10 -lc10_cuda -lpthread -Wl,--disable-new-dtags \
    -Wl,-rpath,"\$ORIGIN/fake-$toolkit" -Wl,-rpath,"\$ORIGIN/fake-$toolkit/nvml" -Wl,-rpath,"\$ORIGIN/torch-$release/torch/lib"
  ORACLE_BRIDGE=target/oracle/bridge-$release.so "target/oracle/bridge_checks-$release"
done
