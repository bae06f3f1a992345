#!/usr/bin/env bash
# check.sh [--built DIR] [--peer PROGRAM] [SEEDS]     Random scripts through RMM's pool and TensorFlow's BFC, and through the
# policies rmm-pool, bfc, bfc:kind=one-region, bfc:kind=xla and bfc:kind=xla-growth. Prints the scripts whose placements or
# driver calls differ, and how many are identical; the exit code is 1 if any differs. DIR is target/peers, PROGRAM
# target/release/examples/peer, SEEDS 3 unless given.
set -euo pipefail
. "$(dirname "$0")/common.sh"
built=$root/target/peers
peer=$root/target/release/examples/peer
seeds=3
while [ $# -gt 0 ]; do
  case $1 in
    --built) built=${2:?}; shift 2 ;;
    --peer) peer=${2:?}; shift 2 ;;
    *) seeds=$1; shift ;;
  esac
done
[ -x "$built/rmm_peer" ] || fail "$built/rmm_peer is missing: run conformance/other_allocators/build_rmm.sh"
[ -x "$built/bfc_peer" ] || fail "$built/bfc_peer is missing: run conformance/other_allocators/build_bfc.sh"
[ -x "$peer" ] || fail "$peer is missing: run cargo build --release -p parkade-benches --example peer"
export TF_CPP_MIN_LOG_LEVEL=3
t=$(mktemp -d)
trap 'rm -rf "$t"' EXIT
count=0
same=0

# agree NAME: compares the outputs $t/real and $t/policy.
agree() {
  count=$((count + 1))
  if line=$(python3 "$here/compare.py" "$t/real" "$t/policy"); then same=$((same + 1)); else echo "$1: $line"; fi
}

for streams in 1 3 8; do
  for seed in $(seq "$seeds"); do
    # Capacity, maximum, largest request. The last two release segments.
    for configuration in "2147483648 - 67108864" "2000000000 - 67108864" "1999999999 - 67108864" "2147483648 1899999744 67108864" \
      "2147483648 1500000000 67108864" "268435456 199999744 150000000" "268435456 268435200 268435456"; do
      read -r capacity maximum largest <<< "$configuration"
      # RMM needs multiples of 256; its initial size is half of the device, or the maximum if that is less.
      initial=$((capacity / 2 / 256 * 256))
      available=$capacity
      rounded=-
      limit=-
      if [ "$maximum" != - ]; then
        rounded=$((maximum / 256 * 256))
        available=$rounded
        # RMM may exceed its maximum by up to 255 bytes.
        limit=$((rounded + 255))
        if [ $initial -gt $rounded ]; then initial=$rounded; fi
      fi
      for live in 50 97; do
        python3 "$here/gen.py" "$seed" 10000 $streams $((available / 100 * live)) "$largest" > "$t/script"
        "$built/rmm_peer" pool "$capacity" $initial $rounded "$t/script" > "$t/real"
        "$peer" rmm-pool "$capacity" $limit "$t/script" > "$t/policy"
        agree "rmm-pool, $streams streams, capacity $capacity, maximum $maximum, largest $largest, live $live%, seed $seed"
      done
    done
  done
done

for streams in 1 3; do
  for seed in $(seq "$seeds"); do
    for capacity in 2147483648 2000000000; do
      for live in 50 97; do
        python3 "$here/gen.py" "$seed" 8000 $streams $((capacity / 100 * live)) > "$t/script"
        # BFC has no streams.
        "$built/bfc_peer" grow $capacity $capacity "$t/script" > "$t/real" 2> /dev/null
        "$peer" bfc $capacity - "$t/script" one > "$t/policy"
        agree "bfc, $streams streams as one, capacity $capacity, live $live%, seed $seed"
        "$built/bfc_peer" prealloc $capacity $((capacity * 3 / 4)) "$t/script" > "$t/real" 2> /dev/null
        "$peer" bfc:kind=xla $capacity - "$t/script" one > "$t/policy"
        agree "bfc:kind=xla, $streams streams as one, capacity $capacity, live $live%, seed $seed"
        python3 "$here/gen.py" "$seed" 8000 $streams $((capacity / 100 * live)) --waves 40 > "$t/waves"
        for kind in "grow bfc" "one bfc:kind=one-region"; do
          read -r real policy <<< "$kind"
          "$built/bfc_peer" "$real" $((capacity * 2)) $capacity "$t/waves" > "$t/real" 2> /dev/null
          "$peer" "$policy" $((capacity * 2)) $capacity "$t/waves" one > "$t/policy"
          agree "$policy, $streams streams as one, limit $capacity, live $live%, waves, seed $seed"
        done
        "$built/bfc_peer" grow-keep $capacity $((capacity * 3 / 4)) "$t/waves" > "$t/real" 2> /dev/null
        "$peer" bfc:kind=xla-growth $capacity - "$t/waves" one > "$t/policy"
        agree "bfc:kind=xla-growth, $streams streams as one, capacity $capacity, live $live%, waves, seed $seed"
      done
    done
  done
done
echo "$same of $count scripts identical"
[ $same = $count ]
