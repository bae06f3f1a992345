#!/usr/bin/env python3
"""Runs programs on PyTorch's own allocator and on parkade, and compares everything that the allocator decided.

  same.py OUT                                  all programs, all settings; reports and snapshots go to the folder OUT
  same.py OUT --quick                          three programs, two settings, few steps
  same.py OUT --programs gpt2 streams --steps 20
  same.py OUT --control                        PyTorch's allocator twice: is each program deterministic?
  same.py OUT --verify PARKADE                 `parkade verify` of the snapshots in OUT, with this binary; needs no GPU

Each run is a separate process that records its history from the start. The limit is a share of the program's peak of allocated memory
without a limit, so that it runs out of memory. Garbage collection is tried only with a limit, because without one it does nothing.
Exit codes: 0 equal, 1 something differs, 2 something could not be run.
"""

import argparse
import concurrent.futures
import json
import lzma
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time

import allocators
import comparison
import named_pools
import programs

SETTINGS = {
    "default": "",
    "expandable": "expandable_segments:True",
    "split": "max_split_size_mb:64",
    "gc": "garbage_collection_threshold:0.6",
}
COMPILES = "compile_reduce_overhead"
QUICK = ("gpt2", "cuda_graph", "fails")
# The share of the peak of allocated bytes without a limit: the largest steps fail, the others pass.
LIMIT_SHARE = 0.85
SECONDS_A_RUN = 240


def record(options):
    """Runs a program in this process, and writes its report and its snapshot."""
    rank = int(os.environ.get("RANK", "0"))
    programs.settle()
    allocators.choose(options.allocator)
    import torch

    if options.name_pools:
        named_pools.tell()

    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.cuda.init()
    total_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if options.limit_bytes:
        torch.cuda.set_per_process_memory_fraction(options.limit_bytes / total_bytes)
    torch.cuda.memory._record_memory_history(max_entries=5_000_000, stacks="python", context=None)
    errors, losses, ended = [], [], ""
    try:
        losses = programs.run(options.one, options.steps, errors.append)
    except Exception as error:  # Both sides must end in the same way; the recordings up to then are compared too.
        ended = f"{type(error).__name__}: {comparison.normal_text(str(error))[:300]}"
    torch.cuda.synchronize()
    stats, summary = dict(torch.cuda.memory_stats()), torch.cuda.memory_summary()
    report = {"snapshot": torch.cuda.memory._snapshot(), "stats": stats, "summary": summary, "losses": losses}
    report.update({"errors": errors, "ended": ended, "total_bytes": total_bytes, "allocator": allocators.chosen()})
    write(options.folder, f"{options.name}{f'.rank{rank}' if rank else ''}", report, options.name_pools)
    # The next run with a limit needs only this.
    (options.folder / f"{options.name}.peak").write_text(str(stats.get("allocated_bytes.all.peak", 0)))


def write(folder, name, report, name_pools=False):
    """Writes the full report for the comparison and, next to it, the snapshot and the statistics as `parkade verify` reads them."""
    with open(folder / f"{name}.report", "wb") as file:
        pickle.dump(report, file)
    with lzma.open(folder / f"{name}.pickle.xz", "wb", preset=0) as file:
        pickle.dump(named_pools.named(report["snapshot"]) if name_pools else report["snapshot"], file)
    (folder / f"{name}.stats.json").write_text(json.dumps(report["stats"]))


def name_of(program, setting, limit_bytes, total_bytes):
    if not limit_bytes:
        return f"{program}.{setting}"
    # PyTorch multiplies the fraction by the total again, which may give one byte less.
    return f"{program}.{setting}.limit{limit_bytes >> 20}-{int(limit_bytes / total_bytes * total_bytes)}"


class Runs:
    """Runs programs in child processes, several at the same time."""

    def __init__(self, options, world):
        self.options, self.world, self.failed = options, world, []
        self.pool = concurrent.futures.ThreadPoolExecutor(options.jobs)

    def child(self, side, program, setting, limit_bytes, name):
        """Runs a program on one side, which names the folder of its report. Returns True if there is a report."""
        allocator = "native" if side != "parkade" else "parkade"
        folder = self.options.out / side
        # Delete the output of earlier runs, so that a failed run leaves nothing to compare with.
        for old in folder.glob(f"{name}.*"):
            if old.name.removeprefix(f"{name}.").split(".")[0] in ("report", "pickle", "stats", "rank1"):
                old.unlink()
        command = [
            sys.executable,
            __file__,
            str(self.options.out),
            "--one",
            program,
            "--folder",
            str(folder),
            "--name",
            name,
        ]
        command += ["--allocator", allocator, "--steps", str(self.options.steps), "--limit-bytes", str(limit_bytes)]
        command += ["--name-pools"] if self.options.name_pools else []
        world = min(self.world, 2) if program == "fsdp" else 1
        with tempfile.TemporaryDirectory() as meeting:
            children = [
                subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=self.environment(setting, rank, world, meeting),
                )
                for rank in range(world)
            ]
            outputs = [self.output(child) for child in children]
        (folder / f"{name}.log").write_text("\n".join(outputs))
        if any(child.returncode for child in children):
            last = "".join(outputs).strip().splitlines()[-1:] or ["no output"]
            self.failed.append(f"{name} on {side}: status {[child.returncode for child in children]}: {last[0]}")
            return False
        return True

    def environment(self, setting, rank, world, meeting):
        more = {"RANK": rank, "WORLD_SIZE": world, "PARKADE_MEETING": pathlib.Path(meeting) / "meeting"}
        # Runs share the compilation results: after the first run of a program every run finds the same kernels.
        more["TORCHINDUCTOR_CACHE_DIR"] = self.options.out.resolve() / "compiled"
        return allocators.environment(SETTINGS[setting], **more)

    def output(self, child):
        try:
            return child.communicate(timeout=SECONDS_A_RUN)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            return child.communicate()[0] + f"\nkilled after {SECONDS_A_RUN} s"

    def both(self, program, setting, limit_bytes, total_bytes):
        """Submits the two runs for comparison. The result is a row of the table."""
        name = name_of(program, setting, limit_bytes, total_bytes)
        other = "control" if self.options.control else "parkade"
        return name, [
            self.pool.submit(self.child, side, program, setting, limit_bytes, name) for side in ("native", other)
        ]


def run_all(options, world, total_bytes):
    """Returns all runs: first those without a limit, which determine the limits. Names are in the order of the table."""
    runs, names, limited, first = Runs(options, world), [], [], []

    def submit(program):
        limit_bytes = programs.LIMIT_BYTES.get(program, 0)
        for setting in options.settings if limit_bytes else unlimited(options):
            first.append((program, setting, runs.both(program, setting, limit_bytes, total_bytes)))

    # Compile once beforehand, so that the compared runs find the same kernels.
    warm = (
        runs.pool.submit(runs.child, "warm", COMPILES, "default", 0, COMPILES) if COMPILES in options.programs else None
    )
    for program in options.programs:
        if program != COMPILES:
            submit(program)
    if warm:
        warm.result()
        submit(COMPILES)
    for program, setting, (name, futures) in first:
        [future.result() for future in futures]
        names.append(name)
        peak = options.out / "native" / f"{program}.default.peak"
        if setting == "default" and options.limits and programs.is_limited(program) and peak.exists():
            limit_bytes = int(int(peak.read_text()) * LIMIT_SHARE)
            limited += [runs.both(program, each, limit_bytes, total_bytes) for each in options.settings]
    for name, futures in limited:
        [future.result() for future in futures]
        names.append(name)
    return names, runs.failed


def unlimited(options):
    """Returns the settings of the runs without a limit. Garbage collection does nothing without one; the default's peak determines the limit."""
    chosen = [setting for setting in options.settings if setting != "gc"]
    return chosen if "default" in chosen or not options.limits else ["default", *chosen]


def compare_files(files):
    """Returns the differences between two reports, and what the table shows of the reports. Reports are large, so several processes read them at the same time."""
    left, right = (pickle.loads(path.read_bytes()) for path in files)
    return (
        comparison.compare(left, right),
        comparison.entries_of(left),
        len(left["errors"]),
        left["ended"],
        (left["allocator"], right["allocator"]),
    )


def compare_all(options, names):
    """Compares the reports and prints the table. Returns how many runs differ, and how many could not be compared."""
    other, differ, missing, lines, pairs = "control" if options.control else "parkade", 0, 0, [], []
    for name in names:
        reports = sorted((options.out / "native").glob(f"{name}.report")) + sorted(
            (options.out / "native").glob(f"{name}.rank*.report")
        )
        there = [
            (ours, options.out / other / ours.name) for ours in reports if (options.out / other / ours.name).exists()
        ]
        missing += max(len(reports), 1) - len(there)
        pairs += there
    print(
        f"| program, settings | entries | OOM | trace | heap | stats | summary | losses | errors |   (native and {other})"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        for (ours, _), (found, entries, errors, ended, ran_on) in zip(pairs, pool.map(compare_files, pairs)):
            name = ours.name.removesuffix(".report")
            if not options.control and ran_on[0] == ran_on[1]:
                lines.append(f"{name}: both runs were on the allocator {ran_on[0]}: parkade was not enabled")
            differ += comparison.differences(found) > 0
            row = [
                entries,
                errors,
                *(found[kind] for kind in ("trace", "heap", "stats", "summary", "losses", "errors")),
            ]
            print(f"| {name} | {' | '.join(map(str, row))} |", flush=True)
            lines += [f"{name}: {text}" for text in found["texts"]]
            if ended:
                lines.append(f"{name} ended with {ended}")
    print("\n".join(["", *lines]))
    return differ, missing


def verify(options):
    """Runs `parkade verify` on parkade's snapshots, with the program that verifies recordings."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "record_on_gpu"))
    import record as recordings

    # Pools in entries make a file look as if a later release had written it.
    release = ["--profile", "2.11"] if options.name_pools else []
    verified, differing = recordings.verify_all(options.out / "parkade", options.verify, release)
    return 2 if not verified else int(differing > 0)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument(
        "--programs",
        nargs="+",
        choices=programs.NAMES,
        metavar="NAME",
        help=f"{' '.join(programs.NAMES)} (default: all; without a second GPU, all except {' '.join(programs.ON_TWO_GPUS)})",
    )
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME", help=" ".join(SETTINGS)
    )
    parser.add_argument("--steps", type=int, default=12, help="steps of each program (default: %(default)s)")
    parser.add_argument("--no-limits", dest="limits", action="store_false", help="skip the runs with a memory limit")
    parser.add_argument("--jobs", type=int, default=8, help="runs at the same time (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help=f"run only {', '.join(QUICK)}, with default and expandable, for 4 steps"
    )
    parser.add_argument("--control", action="store_true", help="compare PyTorch's allocator with itself")
    parser.add_argument(
        "--name-pools",
        action="store_true",
        help="write the pools into the entries of snapshots, as PyTorch 2.12 and later do; with --verify: the entries have them",
    )
    parser.add_argument("--verify", metavar="PARKADE", help="verify the snapshots in OUT with this binary")
    for hidden in ("--one", "--name", "--allocator"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit-bytes", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 1 or options.jobs < 1:
        parser.error("--steps and --jobs must be at least 1")
    if options.quick:
        options.programs, options.settings, options.steps = QUICK, ["default", "expandable"], 4
    return parser, options


def main():
    parser, options = arguments()
    if options.one:
        record(options)
        return 0
    if options.verify:
        return verify(options)
    world = allocators.need_torch(parser)
    options.programs = options.programs or [
        name for name in programs.NAMES if world > 1 or name not in programs.ON_TWO_GPUS
    ]
    if not options.control:
        allocators.need_parkade(parser)
    for side in ("native", "control" if options.control else "parkade", "warm"):
        (options.out / side).mkdir(parents=True, exist_ok=True)
    total_bytes = int(
        subprocess.check_output(
            [sys.executable, "-c", "import torch; print(torch.cuda.get_device_properties(0).total_memory)"], text=True
        )
    )
    started = time.monotonic()
    names, failed = run_all(options, world, total_bytes)
    differ, missing = compare_all(options, names)
    print("\n".join(failed))
    print(
        f"{len(names)} pairs of runs in {time.monotonic() - started:.0f} s: {differ} differ, {missing} could not be compared"
    )
    return 2 if missing or failed else int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
