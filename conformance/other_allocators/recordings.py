#!/usr/bin/env python3
"""The requests of PyTorch memory snapshots through RMM's pool and arenas and through the policies rmm-pool and rmm-arena.

  recordings.py [--built DIR] [--peer PROGRAM] SNAPSHOT.pickle[.xz]...

Each with 300, 110 and 102 % of the largest load: the pool on a device of that size, the pool with that maximum on one of twice the size, and arenas
of that size. Prints what differs, and how many are identical; exit code 1 if any differs. Unpickling runs code, so the files must come from you.
"""
import argparse
import os
import subprocess
import sys
import tempfile

from paths import BUILT, PEER, check

HERE = os.path.dirname(os.path.abspath(__file__))


def commands(real, peer, size):
    """What to compare: (name, the real one's command, the policy's, how to compare), the script left out."""
    whole, twice = size // 256 * 256, 2 * size
    yield "rmm-pool", [real, "pool", size, size // 2 // 256 * 256, "-"], [peer, "rmm-pool", size, "-"], []
    yield "rmm-pool with a maximum", [real, "pool", twice, whole, whole], [peer, "rmm-pool", twice, whole + 255], []
    yield "rmm-arena", [real, "arena", 1 << 50, whole, "-"], [peer, "rmm-arena", 1 << 50, whole], ["--no-waits"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", default=BUILT, help="the folder of the real allocators (default: target/peers)")
    parser.add_argument("--peer", default=PEER, help="the program that runs parkade's policies (default: target/release/examples/peer)")
    parser.add_argument("snapshots", nargs="+", metavar="SNAPSHOT", help="snapshots taken with the history on")
    options = parser.parse_args()
    real = os.path.join(options.built, "rmm_peer")
    check(real, "conformance/other_allocators/build_rmm.sh")
    check(options.peer, "cargo build --release -p parkade-research --example peer")
    count = same = 0
    with tempfile.TemporaryDirectory() as folder:
        script, answers, ours = (os.path.join(folder, name) for name in ("script", "real", "policy"))
        for snapshot in options.snapshots:
            made = subprocess.run([sys.executable, os.path.join(HERE, "rec2script.py"), snapshot], capture_output=True, text=True, check=True)
            with open(script, "w") as file:
                file.write(made.stdout)
            load = int(made.stderr.split()[1])
            for percent in (300, 110, 102) if load else ():
                for name, theirs, policy, how in commands(real, options.peer, load * percent // 100):
                    for command, output in ((theirs, answers), (policy, ours)):
                        with open(output, "w") as file:
                            subprocess.run([*map(str, command), script], stdout=file, check=True)
                    compared = subprocess.run([sys.executable, os.path.join(HERE, "compare.py"), answers, ours, *how], capture_output=True, text=True)
                    count += 1
                    same += compared.returncode == 0
                    if compared.returncode:
                        print(f"{os.path.basename(snapshot)}, {name}, {percent} %: {compared.stdout}{compared.stderr}", end="", flush=True)
    print(f"{same} of {count} identical")
    sys.exit(same != count)


if __name__ == "__main__":
    main()
