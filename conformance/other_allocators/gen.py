#!/usr/bin/env python3
"""Writes a random script of requests: gen.py SEED OPERATIONS STREAMS LIVE_BYTES [LARGEST_BYTES]

Sizes are log-uniform from 512 B to LARGEST_BYTES (64 MiB unless given); about LIVE_BYTES are live.
"""
import math
import random
import sys


def main():
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    seed, operations, streams, live_bytes = (int(word) for word in sys.argv[1:5])
    largest = int(sys.argv[5]) if len(sys.argv) > 5 else 64 << 20
    r = random.Random(seed)
    live, total, made = [], 0, 0
    for _ in range(operations):
        size = int(math.exp(r.uniform(math.log(512), math.log(largest))))
        if live and (total + size > live_bytes or r.random() < 0.35):
            # Any block, one of the newest or one of the oldest.
            place = r.choice([r.randrange(len(live)), len(live) - 1 - r.randrange(min(8, len(live))), r.randrange(min(8, len(live)))])
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
