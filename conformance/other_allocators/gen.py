#!/usr/bin/env python3
"""Writes a random script of requests to standard output.

Sizes are log-uniform from 512 B, or --smallest, to LARGEST_BYTES. With --waves, nearly everything is freed at regular intervals, and the sizes change
to a different octave, up to LIVE_BYTES. The same arguments always produce the same script.
"""

import argparse
import math
import random


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", metavar="SEED", type=int, help="the seed of the random numbers")
    parser.add_argument("operations", metavar="OPERATIONS", type=int, help="the number of requests and frees")
    parser.add_argument("streams", metavar="STREAMS", type=int, help="the number of streams")
    parser.add_argument("live_bytes", metavar="LIVE_BYTES", type=int, help="the maximum number of live bytes")
    parser.add_argument(
        "largest",
        metavar="LARGEST_BYTES",
        type=int,
        nargs="?",
        default=64 << 20,
        help="the largest request (default: 64 MiB)",
    )
    parser.add_argument(
        "--smallest", metavar="BYTES", type=int, default=512, help="the smallest request (default: 512)"
    )
    parser.add_argument(
        "--resident",
        metavar="BYTES",
        type=int,
        help="begin with a block of this size on stream 0, which is never freed",
    )
    parser.add_argument(
        "--waves",
        metavar="OPERATIONS",
        type=int,
        default=0,
        help="the number of operations in a wave (default: no waves)",
    )
    options = parser.parse_args()
    streams, live_bytes, largest, smallest = options.streams, options.live_bytes, options.largest, options.smallest
    r = random.Random(options.seed)
    live, total, made, kept = [], 0, 0, None
    if options.resident:
        print("a", 0, options.resident, 0)
    for number in range(options.operations):
        if options.waves and number % options.waves == 0:
            kept = r.choice([0, 0, 1, 3])
            largest = int(math.exp(r.uniform(math.log(4096), math.log(live_bytes))))
            smallest = largest // 2
        if kept is not None and len(live) <= kept:
            kept = None
        size = int(math.exp(r.uniform(math.log(smallest), math.log(largest))))
        if live and (kept is not None or total + size > live_bytes or r.random() < 0.35):
            # Any block, one of the newest or one of the oldest.
            place = r.choice(
                [r.randrange(len(live)), len(live) - 1 - r.randrange(min(8, len(live))), r.randrange(min(8, len(live)))]
            )
            name, size = live.pop(place)
            total -= size
            print("f", name)
        else:
            made += 1
            stream = 0 if streams == 1 or r.random() < 0.5 else r.randrange(streams)
            print("a", made, size, stream)
            live.append((made, size))
            total += size


if __name__ == "__main__":
    main()
