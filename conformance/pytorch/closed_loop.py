#!/usr/bin/env python3
"""Lets programs run out of memory, has `parkade advise` read their snapshots, and tries each remedy that it names: does the program complete?

  closed_loop.py OUT                                       programs 216 to 227, which no probability was calibrated on
  closed_loop.py OUT 300 301 --times 1.02 1.1 --jobs 4     other programs, in other amounts of memory

Each program in `programs/varied.py` runs with all of the GPU's memory, and then in slightly more than its tensors take, under PyTorch's default
settings. OUT receives the snapshots of the programs that die, advise's answers for them, and a line for each run in runs.jsonl. Exit codes: 0 the
remedy that is named first completes 95 % of the runs that any remedy completes; 1 it does not; 2 something could not be run.
"""

import argparse
import concurrent.futures
import json
import pathlib
import shlex
import subprocess
import sys

import allocators

PROGRAMS = range(216, 228)
TIMES = (1.02, 1.04, 1.08, 1.16)
# Settings and policies that are tried in addition to the remedies, to find out whether any of them would have completed the program.
OTHERS = {
    "expandable_segments:True": ("settings", "expandable_segments:True"),
    "compaction": ("policy", "compaction"),
}
FEWEST = 0.95
POLICY = 'parkade.enable(policy="'
RESCUE = "parkade.enable(rescue=True"


def attempt(options):
    """Runs the program in this process. Returns a dictionary: how it ended, and its peaks."""
    if options.policy:
        allocators.choose("parkade", options.policy)
    import torch
    from programs import varied

    if options.limit:
        torch.cuda.set_per_process_memory_fraction(options.limit / torch.cuda.get_device_properties(0).total_memory)
    if options.snapshot:
        torch.cuda.memory._record_memory_history(max_entries=3_000_000, stacks="python")
    ending = "completes"
    try:
        steps, step = varied.start(options.child)
        for index in range(steps):
            step(index)
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        ending = "out of memory"
        if options.snapshot:
            torch.cuda.memory._dump_snapshot(options.snapshot)
    stats = torch.cuda.memory_stats()
    return {"ending": ending, **{kind: stats[f"{kind}_bytes.all.peak"] for kind in ("allocated", "reserved")}}


def run(number, settings="", policy="", limit_bytes=0, snapshot=""):
    """Runs the program in a new process."""
    command = [
        sys.executable,
        __file__,
        "-",
        "--child",
        str(number),
        "--limit",
        str(limit_bytes),
        "--policy",
        policy,
        "--snapshot",
        str(snapshot),
    ]
    child = subprocess.run(command, capture_output=True, text=True, env=allocators.environment(settings), timeout=300)
    if child.returncode:
        raise RuntimeError(f"program {number}: {(child.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(child.stdout.strip().splitlines()[-1])


def advise(options, snapshot, limit_bytes):
    command = [options.parkade, "advise", str(snapshot), "--json", "--limit", f"{limit_bytes}B"]
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode not in (0, 1, 3):
        raise RuntimeError(f"{snapshot}: {child.stderr.strip()}")
    return json.loads(child.stdout)


def tried(remedy):
    """Returns how to try a remedy: whether with settings or with a policy, and with which one."""
    if remedy["kind"] == "policy":
        return "policy", "pytorch-rescue" if RESCUE in remedy["line"] else remedy["line"].removeprefix(POLICY).split(
            '"'
        )[0]
    words = shlex.split(remedy["line"])
    return "settings", words[1].partition("=")[2] if words[0] == "export" else ""


def loop(options, number, times, live_bytes):
    """Runs a program that may die, and then its remedies. Returns their outcomes, or None if the program completes."""
    limit_bytes = int(live_bytes * times)
    snapshot = options.out / f"{number}-{times}.pickle"
    if run(number, limit_bytes=limit_bytes, snapshot=snapshot)["ending"] == "completes":
        return None
    advice = advise(options, snapshot, limit_bytes)
    (options.out / f"{number}-{times}.json").write_text(json.dumps(advice))
    remedies = [remedy for remedy in advice["remedies"] if remedy["kind"] != "program"]
    means = [tried(remedy) for remedy in remedies]
    completes = {
        way: run(number, **{way[0]: way[1]}, limit_bytes=limit_bytes)["ending"] == "completes"
        for way in {*means, *OTHERS.values()}
    }
    said = [{**remedy, "completes": completes[way]} for remedy, way in zip(remedies, means)]
    others = {name: completes[way] for name, way in OTHERS.items()}
    return {
        "program": number,
        "times": times,
        "limit_bytes": limit_bytes,
        "outcome": advice["outcome"],
        "remedies": said,
        "others": others,
    }


def report(runs):
    """Prints the table. Returns whether the first remedy completes enough runs."""
    print(
        "| program | times its tensors | outcome | first remedy | likely | completes | second | likely | completes | something completes |"
    )
    print("|---|--:|---|---|--:|---|---|--:|---|---|")
    yes = lambda is_so: "yes" if is_so else "no"
    for found in runs:
        cells = [str(found["program"]), f"{found['times']:g}", found["outcome"]]
        for remedy in [*found["remedies"], {}, {}][:2]:
            likely = remedy.get("completes_probability")
            cells += [
                remedy.get("kind", "-"),
                "-" if likely is None else f"{likely:.2f}",
                yes(remedy["completes"]) if remedy else "-",
            ]
        print("| " + " | ".join([*cells, yes(something(found))]) + " |")
    possible = [found for found in runs if something(found)]
    first = sum(bool(found["remedies"]) and found["remedies"][0]["completes"] for found in possible)
    print(
        f"\n{len(runs)} runs ran out of memory; {len(possible)} of them complete with some remedy, {first} with the first remedy in the answer"
    )
    for kind in ("settings", "policy", "first"):
        of_kind = lambda found: (
            found["remedies"][:1]
            if kind == "first"
            else [remedy for remedy in found["remedies"] if remedy["kind"] == kind]
        )
        pairs = [(remedy["completes_probability"], remedy["completes"]) for found in runs for remedy in of_kind(found)]
        pairs = [(likely, is_so) for likely, is_so in pairs if likely is not None]
        if pairs:
            rate = sum(is_so for _, is_so in pairs) / len(pairs)
            brier = sum((likely - is_so) ** 2 for likely, is_so in pairs) / len(pairs)
            print(
                f"{kind}: {rate:.2f} of {len(pairs)} complete; Brier score {brier:.3f} (always {rate:.2f}: {rate * (1 - rate):.3f})"
            )
    wrong = sum(found["outcome"] == "fits" and not found["remedies"][0]["completes"] for found in runs)
    print(f'"fits" was predicted for {sum(found["outcome"] == "fits" for found in runs)}, of which {wrong} die again')
    return first >= FEWEST * len(possible)


def something(found):
    return any(found["others"].values()) or any(remedy["completes"] for remedy in found["remedies"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="a folder")
    parser.add_argument(
        "programs", type=int, nargs="*", default=list(PROGRAMS), metavar="NUMBER", help="default: 216 to 227"
    )
    parser.add_argument(
        "--times",
        type=float,
        nargs="+",
        default=TIMES,
        help="memory limits, as multiples of what the tensors take (default: %(default)s)",
    )
    parser.add_argument("--jobs", type=int, default=6, help="programs that run at the same time (default: %(default)s)")
    parser.add_argument("--parkade", default="target/release/parkade", help="the binary (default: %(default)s)")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--policy", default="", help=argparse.SUPPRESS)
    parser.add_argument("--snapshot", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(attempt(options)))
        return 0
    allocators.need_torch(parser)
    allocators.need_parkade(parser)
    options.out.mkdir(parents=True, exist_ok=True)
    runs = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        try:
            free = dict(zip(options.programs, pool.map(run, options.programs)))
            pairs = [(number, times) for number in options.programs for times in options.times]
            for found in pool.map(lambda pair: loop(options, *pair, free[pair[0]]["allocated"]), pairs):
                runs += [found] if found else []
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            print(error, file=sys.stderr)
            return 2
    (options.out / "runs.jsonl").write_text("".join(json.dumps(found) + "\n" for found in runs))
    return 0 if report(runs) else 1


if __name__ == "__main__":
    sys.exit(main())
