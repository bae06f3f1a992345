#!/usr/bin/env python3
"""Does the conformance suite find bugs? Seeds each bug of bugs.toml into a copy of the core and runs the suite on it.

  run.py                      try all bugs, one at a time, and print a table (Markdown)
  run.py --only ID [ID ...]   try some of them
  run.py --check              only check that the list fits the sources and that every bug compiles
  run.py --list FILE          try the bugs in a different list, in the same format; those that do not fit or compile are named and left out
  run.py --jobs N             try N bugs at a time
  run.py --lean               judge by the suite without the scenarios from the documents, which builds in a third of the time
  run.py --pack DIR           build, put the programs and what they read into DIR, and try nothing
  run.py --prebuilt DIR       try the bugs in a folder made by --pack; this needs no Rust, so it can run on a different machine (Linux, Python 3.10)

A bug is tried with the laws at 250 cases, quick ones first. If they pass, it is tried with the entire suite as `parkade conform` runs it,
with the core's own tests, and with the recorded answers of the real allocator. Each of these must also pass without a bug. A run that takes
longer than --limit is a hang and counts as caught. The output ends with two rates: the share of bugs that the suite catches, and
the share that the suite and the tests catch together.

Exit code: 0 if the suite catches every bug, or the recorded answers catch those that no law can see according to the list; 1 if not, or if
the list does not fit the sources; 2 if a bug does not compile.
"""

import argparse
import concurrent.futures
import json
import pathlib
import sys
import threading

import prebuilt
import switch

OWN_LIST = switch.ROOT / "conformance/mutants/bugs.toml"
# The judges that try a bug, one after the other, until one catches it: quick ones first.
JUDGES = [
    ("reference law", ["conform", "--cases", "250", "--json", "--filter", "law/reference"]),
    ("settings law", ["conform", "--cases", "250", "--json", "--filter", "law/settings"]),
    ("laws", ["conform", "--cases", "250", "--json", "--filter", "law/"]),
    ("whole suite", ["conform", "--json"]),
]


def read_list(path, only):
    """Reads a list of bugs. Returns those whose old text occurs exactly once in their file, and what is wrong with the others."""
    import tomllib  # Python 3.11; judging a packed folder does not need it

    listed = tomllib.loads(path.read_text())["bug"]
    names = [entry["id"] for entry in listed]
    wrong = [f"{name} is in the list twice" for name in sorted(set(names)) if names.count(name) > 1]
    wrong += [f"{name} is not in the list" for name in only if name not in names]
    bugs = []
    for number, entry in enumerate(listed, start=1):
        file = switch.ROOT / entry["file"]
        text = file.read_text() if file.is_file() else ""
        if text.count(entry["old"]) != 1:
            wrong.append(f"{entry['id']}: its old text occurs {text.count(entry['old'])} times in {entry['file']}")
            continue
        start = text.index(entry["old"])
        bug = switch.Bug(
            entry["id"], entry["file"], start, start + len(entry["old"]), entry["new"], entry["says"], number
        )
        bugs.append((bug, entry.get("unseen")))
    return bugs, wrong


def failures(output):
    """Returns the entries that failed in a run of the suite, with the reasons."""
    rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"group"')]
    return [(f"{row['group']}/{row['name']}", row["reason"]) for row in rows if row["status"] == "fail"]


def law_names(found):
    """Returns the names of failed laws without their variants, each once."""
    names = [name.removeprefix("law/") for name, _ in found]
    short = [
        "/".join(name.split("/")[:2])
        if name.startswith(("faults", "monotone", "endings/dropped", "policy"))
        else name.split("/")[0]
        for name in names
    ]
    return list(dict.fromkeys(short))


def ask_suite(programs, arguments, number, limit_s):
    """Returns (caught by, first reason, seconds); the first is empty if nothing caught the bug."""
    code, output, seconds = switch.run([programs["parkade"], *arguments], number, limit_s)
    if code is None:
        return "a hang", f"did not finish within {limit_s} s", seconds
    found = failures(output)
    if code == 1 and found:
        names = law_names(found)
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return ", ".join(names[:4]) + more, found[0][1].splitlines()[0], seconds
    if code == 0:
        return "", "", seconds
    return "a crash", output.strip().splitlines()[-1] if output.strip() else f"exit code {code}", seconds


def ask_tests(programs, number, limit_s):
    """Returns the test programs that fail, and the seconds that all of them took."""
    caught, seconds = [], 0.0
    for name, path in programs.items():
        if name == "parkade":
            continue
        is_core = name.startswith("core")
        # Of the suite's tests, those that compare with the real allocator's answers, and the programs that once broke a law.
        chosen, room = ([], "") if is_core else (["recordings::golden::", "corpus::"], "conformance")
        code, _, took = switch.run([path, "-q", *chosen], number, limit_s, switch.WORK / room)
        seconds += took
        if code != 0:
            caught.append(name)
    return caught, seconds


class Baseline:
    """Whether a judge passes without any bug; this is determined when it is first needed."""

    def __init__(self):
        self.known, self.lock = {}, threading.Lock()

    def check(self, name, ask):
        with self.lock:
            if name not in self.known:
                self.known[name] = ask()
            if self.known[name]:
                raise SystemExit(f"the suite fails even without a bug: {name}: {self.known[name]}")


def try_bug(programs, baseline, bug, unseen, limit_s):
    """Tries a bug with one judge after the other. Returns (whether the suite catches it, whether anything does, the row of the table)."""
    total, row = 0.0, lambda caught, reason: f"| `{bug.id}`: {bug.says} | {caught} | {short(reason)} | {total:.0f} |"
    for name, arguments in JUDGES:
        caught, reason, seconds = ask_suite(programs, arguments, bug.number, limit_s)
        total += seconds
        if caught:
            baseline.check(name, lambda: ask_suite(programs, arguments, 0, limit_s * 4)[0])
            return True, True, row(f"{caught} (whole suite)" if name == "whole suite" else caught, reason)
    tests, seconds = ask_tests(programs, bug.number, limit_s)
    total += seconds
    if tests:
        baseline.check("tests", lambda: ask_tests(programs, 0, limit_s * 4)[0])
    return False, bool(tests), row(f"**not the suite**: {', '.join(tests) or 'nothing'}", unseen or "")


def short(reason):
    reason = reason.replace("|", "/")
    return reason if len(reason) <= 160 else reason[:157] + "..."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="ID", help="bugs to try, by their ids in the list")
    parser.add_argument(
        "--list",
        type=pathlib.Path,
        default=OWN_LIST,
        metavar="FILE",
        help="the bugs (default: bugs.toml beside this program)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="the number of bugs to try at the same time (default: %(default)s)",
    )
    parser.add_argument("--check", action="store_true", help="only check the list")
    parser.add_argument(
        "--limit",
        type=float,
        default=180,
        metavar="SECONDS",
        help="time limit for a run (default: %(default)s)",
    )
    parser.add_argument("--lean", action="store_true", help="skip the scenarios")
    parser.add_argument("--pack", type=pathlib.Path, metavar="DIR", help="only build the bugs into this folder")
    parser.add_argument(
        "--prebuilt", type=pathlib.Path, metavar="DIR", help="try the bugs that were built into this folder"
    )
    options = parser.parse_args()
    if options.prebuilt:
        with prebuilt.opened(options.prebuilt) as (programs, bugs):
            return judge(programs, bugs, options, is_own=False)
    listed, wrong = read_list(options.list, options.only)
    is_own = options.list == OWN_LIST
    if wrong and is_own:
        sys.exit("\n".join(wrong))
    switch.copy_workspace()
    bugs, refused = switch.without_those_that_do_not_compile([bug for bug, _ in listed])
    wrong += [f"{name}: {why}" for name, why in refused.items()]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
    if refused and is_own:
        return 2
    if options.check:
        print(f"{len(bugs)} bugs fit and compile")
        return 0
    programs = switch.build(lean=options.lean)
    kept = {bug.number for bug in bugs}
    left = [(bug, unseen) for bug, unseen in listed if bug.number in kept]
    if options.pack:
        prebuilt.write(options.pack, programs, left)
        print(f"{len(left)} bugs built into {options.pack}")
        return 0
    return judge(programs, left, options, is_own)


def judge(programs, bugs, options, is_own):
    """Tries all bugs, or those that the options name, and prints the table. Returns the exit code."""
    chosen = [(bug, unseen) for bug, unseen in bugs if not options.only or bug.id in options.only]
    baseline = Baseline()
    print("| bug | caught by | first reason | s |\n|---|---|---|---|", flush=True)
    by_suite, by_any, survivors = 0, 0, []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        tries = [pool.submit(try_bug, programs, baseline, bug, unseen, options.limit) for bug, unseen in chosen]
        for (bug, unseen), tried in zip(chosen, tries):
            suite, anything, row = tried.result()
            by_suite, by_any = by_suite + suite, by_any + anything
            if not suite and not (anything and (unseen or not is_own)):
                survivors.append(bug.id)
            print(row, flush=True)
    rate = lambda count: f"{count} of {len(chosen)}, {100 * count / max(len(chosen), 1):.1f} %"
    print(f"\ncaught by the suite: {rate(by_suite)}; by the suite and the tests: {rate(by_any)}")
    print(f"survivors: {', '.join(survivors) or 'none'}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
