"""Times how fast parkade loads decompressed recordings, compared with CPython's pickle.load in the same run.

python3 benches/load.py RECORDING... [--rounds N] [--load PATH]

Each round loads the same bytes from memory three times: with pickle.load and the garbage collector on, as
programs use it; with
pickle.load and the collector off; and with parkade (target/release/examples/load, from cargo build --release
-p parkade-benches --example load). Processor time is measured, and the best round of each method counts. The
exit code is 1 if parkade is not at least 8 times as fast as pickle.load with the
collector on.
"""

import argparse
import gc
import io
import lzma
import pickle
import subprocess
import sys
import tempfile
import time


def python_seconds(data: bytes, collect: bool) -> float:
    gc.collect()
    (gc.enable if collect else gc.disable)()
    start = time.process_time()
    loaded = pickle.load(io.BytesIO(data))
    seconds = time.process_time() - start
    gc.enable()
    del loaded
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("recordings", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", default="target/release/examples/load")
    arguments = parser.parse_args()
    slow = False
    print(f"CPython {sys.version.split()[0]}, best of {arguments.rounds} rounds, milliseconds")
    print(f"{'recording':<30} {'MB':>7} {'pickle.load':>12} {'gc off':>9} {'parkade':>9} {'ratio':>7} {'gc off':>7}")
    for path in arguments.recordings:
        with open(path, "rb") as file:
            data = file.read()
        if path.endswith(".xz"):
            data = lzma.decompress(data)
        with tempfile.NamedTemporaryFile(suffix=".pickle") as unpacked:
            unpacked.write(data)
            unpacked.flush()
            loader = subprocess.Popen(
                [arguments.load, unpacked.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            with_gc, without_gc, ours = [], [], []
            for _ in range(arguments.rounds):
                with_gc.append(python_seconds(data, collect=True))
                without_gc.append(python_seconds(data, collect=False))
                loader.stdin.write("\n")
                loader.stdin.flush()
                ours.append(float(loader.stdout.readline().split()[0]))
            loader.stdin.close()
            loader.wait()
        python, off, parkade = min(with_gc), min(without_gc), min(ours)
        slow |= python < 8 * parkade
        name = path.rsplit("/", 1)[-1].removesuffix(".pickle.xz")
        print(
            f"{name:<30} {len(data) / 1e6:>7.1f} {python * 1e3:>12.1f} {off * 1e3:>9.1f} {parkade * 1e3:>9.2f} {python / parkade:>7.1f} {off / parkade:>7.1f}"
        )
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
