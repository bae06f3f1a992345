#!/usr/bin/env python3
"""Do the suite and the tests find bugs? Seeds each bug of bugs.toml into a copy of the workspace and tries what should find it.

  run.py                      try all bugs, one at a time, and print a table (Markdown)
  run.py --only ID [ID ...]   try some of them
  run.py --check              only check that the list fits the sources and that every bug compiles
  run.py --list FILE          try the bugs in a different list, in the same format; those that do not fit or compile are named and left out
  run.py --json FILE          also write the results to a file
  run.py --jobs N             try N bugs at a time
  run.py --pack DIR           build, put the programs and what they read into DIR, and try nothing
  run.py --prebuilt DIR       try the bugs in a folder made by --pack; this needs no Rust, so it can run on a different machine (Linux, Python 3.10)

A bug is tried with `parkade conform`, first at 100 cases. If that passes, it is tried with the test programs of its own crate, and then with
those of the crates that depend on it, until one fails. A test that fails without a bug does not count. A program that uses ten times the
processor time that it uses without a bug, or none for a minute, hangs: that counts as a failure too.

Exit code: 0 if every bug is caught; 1 if not, or if the list does not fit the sources; 2 if a bug does not compile.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import re
import sys
import threading

import child
import prebuilt
import switch

OWN_LIST = switch.ROOT / "conformance/mutants/bugs.toml"
# A quick run of the suite, which catches most bugs, before all of it.
QUICK = ["--cases", "100"]
# The crates whose bugs the suite is to catch alone.
ALLOCATORS = ("core", "policies", "sim")


@dataclasses.dataclass
class Result:
    """What became of a bug. `caught_by` is `conform`, `tests` or `nothing`, `program` what failed first, `failed` what failed in it."""

    id: str
    crate: str
    file: str
    says: str
    caught_by: str
    program: str = ""
    failed: list = dataclasses.field(default_factory=list)
    reason: str = ""
    cpu_s: float = 0.0

    def row(self):
        first = self.reason.replace("|", "/")
        first = ": ".join(text for text in (self.program, *self.failed[:1], first) if text)
        first = first if len(first) <= 200 else first[:197] + "..."
        return f"| `{self.id}`: {self.says} | {self.crate} | {self.caught_by} | {first} | {self.cpu_s:.0f} |"


def read_list(path, only):
    """Reads a list of bugs. Returns those whose old text occurs exactly once in their file, and what is wrong with the others."""
    import tomllib  # Python 3.11; judging a packed folder does not need it

    listed = tomllib.loads(path.read_text())["bug"]
    names = [entry["id"] for entry in listed]
    wrong = [f"{name} is in the list twice" for name in sorted(set(names)) if names.count(name) > 1]
    wrong += [f"{name} is not in the list" for name in only if name not in names]
    bugs = []
    for number, entry in enumerate(listed, start=1):
        name, old, new = entry["file"], entry["old"], entry["new"]
        file = switch.ROOT / name
        text = file.read_text() if file.is_file() else ""
        if text.count(old) != 1:
            wrong.append(f"{entry['id']}: its old text occurs {text.count(old)} times in {name}")
            continue
        start = text.index(old)
        bugs.append(switch.Bug(entry["id"], name, start, start + len(old), new, entry["says"], number))
    return bugs, wrong


def failures(output):
    """Returns {entry of the suite, or test: reason} of those that failed."""
    rows = [json.loads(line) for line in output.splitlines() if line.startswith('{"group"')]
    failed = {
        f"{row['group']}/{row['name']}": row["reason"].partition("\n")[0] for row in rows if row["status"] == "fail"
    }
    return failed | dict.fromkeys(re.findall(r"^test (.+?)(?: - should panic)? \.\.\. FAILED$", output, re.M), "")


class Judge:
    """The programs that judge a bug, and what each does without one, which is found out when it is first needed."""

    def __init__(self, built):
        self.built, self.plain, self.lock = built, {}, threading.Lock()

    def programs(self, crate):
        """Returns what tries a bug of a crate, in order: (kind of judge, name, command, folder that it runs in)."""
        suite = [str(switch.HOME / self.built.suite), "conform", "--json"]
        yield "conform", "conform at 100 cases", suite + QUICK, switch.HOME / "work"
        yield "conform", "conform", suite, switch.HOME / "work"
        for dependent in self.built.dependents[crate]:
            for test in self.built.tests:
                if test.crate == dependent:
                    yield "tests", test.name, [str(switch.HOME / test.path)], switch.HOME / test.room

    def without_bug(self, kind, name, command, room):
        with self.lock:
            if name not in self.plain:
                plain = self.plain[name] = child.run(command, room, 0)
                failed = ", ".join(failures(plain.output))
                if plain.code and (kind == "conform" or not failed):
                    raise SystemExit(f"{name} fails without a bug: {failed or plain.output[-2000:]}")
                note = f"; does not count, because it fails: {failed}" if failed else ""
                print(f"{name} takes {plain.cpu_s:.1f} s without a bug{note}", file=sys.stderr, flush=True)
            return self.plain[name]

    def judge(self, bug):
        """Tries a bug with one program after the other, until one catches it."""
        cpu_s = 0.0
        result = lambda *found: Result(bug.id, bug.crate, bug.file, bug.says, *found, cpu_s=cpu_s)
        for kind, name, command, room in self.programs(bug.crate):
            plain = self.without_bug(kind, name, command, room)
            ended = child.run(command, room, bug.number, child.limit_s(plain))
            cpu_s += ended.cpu_s
            if ended.hang:
                return result(kind, name, [], f"a hang: {ended.hang}")
            known, found = failures(plain.output), failures(ended.output)
            failed = [test for test in found if test not in known]
            if failed:
                return result(kind, name, failed, found[failed[0]])
            if ended.code != plain.code:
                said = [line for line in ended.output.splitlines() if line and not line.startswith("note: ")]
                return result(kind, name, [], f"a crash, exit code {ended.code}: {''.join(said[-1:])}")
        return result("nothing")


def rates(results):
    """Returns the shares of bugs that are caught, in words."""
    own = [result for result in results if result.crate in ALLOCATORS]

    def share(results, *judges):
        count = sum(result.caught_by in judges for result in results)
        return f"{count} of {len(results)}, {100 * count / max(len(results), 1):.1f} %"

    return {
        f"by conform alone, in {', '.join(ALLOCATORS)}": share(own, "conform"),
        "by conform alone, in all crates": share(results, "conform"),
        "by conform and tests": share(results, "conform", "tests"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    file = {"type": pathlib.Path, "metavar": "FILE"}
    folder = {"type": pathlib.Path, "metavar": "DIR"}
    add("--only", nargs="+", default=[], metavar="ID", help="bugs to try, by their ids in the list")
    add("--list", **file, default=OWN_LIST, help="the bugs (default: bugs.toml beside this program)")
    add("--json", **file, help="also write the results to this file")
    add("--jobs", type=int, default=1, metavar="N", help="bugs to try at the same time (default: %(default)s)")
    add("--check", action="store_true", help="only check the list")
    add("--pack", **folder, help="only build the bugs into this folder")
    add("--prebuilt", **folder, help="try the bugs that were built into this folder")
    options = parser.parse_args()
    if options.prebuilt:
        with prebuilt.opened(options.prebuilt) as (built, bugs):
            return try_all(built, bugs, options)
    bugs, wrong = read_list(options.list, options.only)
    is_own = options.list == OWN_LIST
    if wrong and is_own:
        sys.exit("\n".join(wrong))
    if options.check:
        bugs, refused = switch.check(bugs)
    else:
        bugs, refused, built = switch.build(bugs)
    wrong += [f"{name}: {why}" for name, why in refused.items()]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
    if refused and is_own:
        return 2
    if options.check:
        print(f"{len(bugs)} bugs fit and compile")
        return 0
    if options.pack:
        prebuilt.write(options.pack, built, bugs)
        print(f"{len(bugs)} bugs built into {options.pack}")
        return 0
    return try_all(built, bugs, options)


def try_all(built, bugs, options):
    """Tries all bugs, or those that the options name, and prints the table. Returns the exit code."""
    chosen = [bug for bug in bugs if not options.only or bug.id in options.only]
    judge, results = Judge(built), []
    print("| bug | crate | caught by | what failed first | s |\n|---|---|---|---|--:|", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(judge.judge, chosen):
            print(result.row(), flush=True)
            results.append(result)
            if options.json:
                content = {"rates": rates(results), "bugs": [dataclasses.asdict(result) for result in results]}
                options.json.write_text(json.dumps(content, indent=1) + "\n")
    print("\n" + "\n".join(f"caught {what}: {share}" for what, share in rates(results).items()))
    survivors = [result.id for result in results if result.caught_by == "nothing"]
    print(f"survivors: {', '.join(survivors) or 'none'}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
