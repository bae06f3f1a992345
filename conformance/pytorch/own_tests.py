#!/usr/bin/env python3
"""Runs PyTorch's allocator tests on its own allocator and on parkade, and lists every difference.

  own_tests.py OUT --tests FOLDER              the memory tests in test_cuda.py and inductor/test_cudagraph_trees.py
  own_tests.py OUT --tests FOLDER --quick
  own_tests.py OUT --tests FOLDER --all        every test in the two files
  own_tests.py OUT --tests FOLDER --ids FILE   the tests that FILE names, one per line, as pytest names them

FOLDER is test/ in the sources of the installed PyTorch release; neither PyTorch's package nor this repository contains it.
The tests need pytest, pytest-xdist, pytest-timeout, expecttest and hypothesis.
Several tests run at the same time; those that do not pass on both sides are run again, one at a time, and then only that counts.
Exit codes: 0 the same tests pass, 1 some pass on only one side, 2 nothing could be run.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree

import allocators

FILES = ("test_cuda.py", "inductor/test_cudagraph_trees.py")
# Names of classes and tests in test_cuda.py; all tests in the other file run.
MEMORY = [
    "TestBlockStateAbsorption",
    "TestMemPool",
    "TestCudaMallocAsync",
    "TestCudaAllocator",
    "TestFXMemoryProfiler",
    "memory",
    "alloc",
    "cach",
    "graph",
    "pool",
    "snapshot",
    "oom",
    "block",
    "segment",
    "stream",
    "free",
    "stats",
    "garbage",
    "expandable",
    "pinned",
    "ipc",
]
QUICK = ["TestBlockStateAbsorption", "TestMemPool"]


class Side:
    """Runs tests on one allocator."""

    def __init__(self, name, options):
        self.name, self.options = name, options

    def environment(self):
        folders = [str(self.options.tests), os.environ.get("PYTHONPATH", "")]
        if self.name == "parkade":
            folders.insert(0, str(pathlib.Path(__file__).resolve().parent / "first"))
        path = os.pathsep.join(folder for folder in folders if folder)
        return allocators.environment(
            self.options.setting,
            PYTHONPATH=path,
            TORCHINDUCTOR_CACHE_DIR=self.options.out.resolve() / f"compiled-{self.name}",
        )

    def run(self, what, selection, jobs, seconds):
        """Returns the outcome of each test by its id. `what` names the run, `selection` is passed to pytest."""
        report = self.options.out.resolve() / f"{what}.{self.name}.xml"
        report.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
            f"--junitxml={report}",
        ]
        command += ["--rootdir", str(self.options.tests)]
        # A test that hangs in CUDA can only be ended with its process; xdist then starts another.
        command += [
            "--timeout",
            str(self.options.test_seconds),
            "--timeout-method",
            "thread",
            "-n",
            str(jobs),
            "--max-worker-restart",
            "500",
        ]
        with open(report.with_suffix(".log"), "w") as log:
            try:
                subprocess.run(
                    [*command, *selection],
                    cwd=self.options.tests,
                    env=self.environment(),
                    stdout=log,
                    stderr=log,
                    timeout=seconds,
                )
            except subprocess.TimeoutExpired:
                print(f"{what} on {self.name} took more than {seconds} s", flush=True)
        return outcomes(report) if report.exists() else {}


def outcomes(report):
    """Returns {id: "passed", "failed" or "skipped"} from a JUnit report, and a second dictionary with the reasons."""
    result = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        module, _, group = case.get("classname", "").rpartition(".")
        if not module:
            # A file that could not be imported.
            module, group = case.get("name", ""), ""
        name = f"{module.replace('.', '/')}.py::{group}::{case.get('name')}"
        failure = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        skipped = case.find("skipped")
        if failure is not None:
            result[name] = ("failed", first_line(failure))
        elif skipped is not None:
            result.setdefault(name, ("skipped", first_line(skipped)))
        else:
            result.setdefault(name, ("passed", ""))
    return result


def first_line(element):
    text = element.get("message") or element.text or ""
    return (text.strip().splitlines() or [""])[0][:160]


def selections(options):
    """Returns what to run: a name for the run, and pytest's arguments."""
    if options.ids:
        ids = [
            line.strip() for line in options.ids.read_text().splitlines() if line.strip() and not line.startswith("#")
        ]
        return [("ids", ids)]
    result = []
    for file in options.files:
        words = QUICK if options.quick else MEMORY
        chosen = [] if options.all or not file.endswith("test_cuda.py") else ["-k", " or ".join(words)]
        result.append((pathlib.Path(file).stem, [file, *chosen]))
    return result if not options.quick else result[:1]


def run_all(options, sides):
    found = {side.name: {} for side in sides}
    for what, selection in selections(options):
        for side in sides:
            started = time.monotonic()
            result = side.run(what, selection, options.jobs, options.seconds)
            found[side.name].update(result)
            print(f"{what} on {side.name}: {len(result)} tests in {time.monotonic() - started:.0f} s", flush=True)
    again = unsettled(found)
    if again and len(again) <= options.again:
        for side in sides:
            # One worker, so that a crash ends the worker and not the run.
            found[side.name].update(side.run("alone", again, 1, options.seconds))
    return found, again


def unsettled(found):
    """Returns the tests that did not pass on all sides and were not skipped on all sides: they may have disturbed each other."""
    names = sorted({name for result in found.values() for name in result if "::" in name})
    return [
        name
        for name in names
        if len({state(result, name) for result in found.values()}) > 1
        or state(next(iter(found.values())), name) == "failed"
    ]


def state(result, name):
    return result.get(name, ("not run", ""))[0]


def table(found):
    """Prints how many tests passed, failed and were skipped, and every test whose outcome differs or is a failure."""
    names = sorted({name for result in found.values() for name in result})
    print("| file | allocator | passed | failed | skipped | not run |\n|---|---|---|---|---|---|")
    for file in sorted({name.partition("::")[0] for name in names}):
        inside = [name for name in names if name.partition("::")[0] == file]
        for side, result in found.items():
            states = [state(result, name) for name in inside]
            counts = " | ".join(str(states.count(kind)) for kind in ("passed", "failed", "skipped", "not run"))
            print(f"| {file} | {side} | {counts} |")
    first = next(iter(found.values()))
    differ = [name for name in names if len({state(result, name) for result in found.values()}) > 1]
    for title, listed in (
        ("differ", differ),
        ("fail on all", [name for name in names if name not in differ and state(first, name) == "failed"]),
    ):
        print(f"\n{len(listed)} {title}")
        for name in listed:
            whys = "; ".join(
                f"{side}: {state(result, name)} {result.get(name, ('', ''))[1]}".strip()
                for side, result in found.items()
            )
            print(f"  {name}: {whys}")
    return len(differ)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT", help="the folder for reports and logs")
    parser.add_argument(
        "--tests",
        type=pathlib.Path,
        metavar="FOLDER",
        required=True,
        help="the folder test/ in the sources of the installed PyTorch release",
    )
    parser.add_argument("--files", nargs="+", default=FILES, help="test files in that folder (default: %(default)s)")
    parser.add_argument("--ids", type=pathlib.Path, help="a file with the ids of tests")
    parser.add_argument("--all", action="store_true", help="run every test in the files")
    parser.add_argument("--quick", action="store_true", help=f"run only {' and '.join(QUICK)} in the first file")
    parser.add_argument("--only", choices=allocators.NAMES, help="run on only one allocator")
    parser.add_argument(
        "--setting",
        default="",
        help="PYTORCH_CUDA_ALLOC_CONF for the tests, such as expandable_segments:True; some tests read it",
    )
    parser.add_argument("--jobs", type=int, default=8, help="tests that run at the same time (default: %(default)s)")
    parser.add_argument(
        "--again", type=int, default=80, help="rerun at most this many tests on their own (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=int, default=240, help="time limit for one file on one allocator (default: %(default)s)"
    )
    parser.add_argument("--test-seconds", type=int, default=90, help="time limit for one test (default: %(default)s)")
    options = parser.parse_args()
    for file in options.files:
        if not options.ids and not (options.tests / file).exists():
            parser.error(f"{options.tests / file} is not there: --tests takes the folder test/ of PyTorch's sources")
    options.tests = options.tests.resolve()
    allocators.need_torch(parser)
    if options.only != "native":
        allocators.need_parkade(parser)
    return options


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    found, again = run_all(options, [Side(name, options) for name in allocators.NAMES if options.only in (None, name)])
    if not any(found.values()):
        print("no test ran: see the logs in OUT")
        return 2
    if len(again) > options.again:
        print(
            f"{len(again)} tests did not pass on both; not run again on their own, because --again is {options.again}"
        )
    return int(table(found) > 0)


if __name__ == "__main__":
    sys.exit(main())
