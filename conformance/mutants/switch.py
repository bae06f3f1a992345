"""Builds the workspace once with many bugs, each behind an environment switch.

The workspace is copied to target/mutants/work. In the copy, the body of every function that has bugs becomes
`match parkade::mutant::active() { 17 => { the body with bug 17 }, ..., _ => { the unchanged body } }`. The module `mutant` is added to the
core, on which every other crate depends; it reads the number from PARKADE_MUTANT. A hundred bugs therefore cost one build, and only one is
active in a run. The compiler's errors name the lines of the bugs that do not compile, and those bugs are left out.

run.py and sample.py use this module; it is not a command.
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The copy of the workspace is in work/ of this folder, what cargo builds from it in built/. prebuilt.py names another folder.
HOME = ROOT / "target" / "mutants"

# Without debug assertions and overflow checks, so that a bug must be found by testing the outcome, not by the core itself.
PROFILE = {
    "inherits": '"dev"',
    "opt-level": "1",
    "debug": "false",
    "debug-assertions": "false",
    "overflow-checks": "false",
    "incremental": "false",
}

# What is built and tested: all but the Python module, which needs a Python to be linked with.
EVERYTHING = ["--workspace", "--exclude", "parkade-python"]

# A constant function stays constant: where the compiler evaluates it, no bug is active. That needs features of the nightly compiler, which
# RUSTC_BOOTSTRAP allows the crates named parkade.
FEATURES = "#![feature(core_intrinsics, const_eval_select)] #![allow(internal_features)] "
SWITCH = """
#[allow(missing_docs, unreachable_pub)]
pub mod mutant {
    extern crate std;
    use core::sync::atomic::{AtomicU32, Ordering};
    pub use std::boxed::Box;
    static ACTIVE: AtomicU32 = AtomicU32::new(u32::MAX);
    #[inline]
    pub const fn active() -> u32 {
        core::intrinsics::const_eval_select((), none, selected)
    }
    const fn none() -> u32 {
        0
    }
    #[inline]
    fn selected() -> u32 {
        match ACTIVE.load(Ordering::Relaxed) {
            u32::MAX => {
                let number = std::env::var("PARKADE_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
                ACTIVE.store(number, Ordering::Relaxed);
                number
            }
            number => number,
        }
    }
}
"""


@dataclasses.dataclass
class Bug:
    """One change in one place: `new` replaces the file's text from `start` to `end`."""

    id: str
    file: str
    start: int
    end: int
    new: str
    says: str
    number: int = 0

    @property
    def crate(self):
        """The folder of the crate."""
        return self.file.split("src/")[0].rstrip("/") or "core"


@dataclasses.dataclass
class Program:
    """A test program of a crate; `path` and `room`, the folder that it runs in, are relative to HOME."""

    name: str
    crate: str
    path: str
    room: str


@dataclasses.dataclass
class Built:
    """What judges a bug: the binary with the suite, relative to HOME; the test programs; and each crate followed by those that depend on it, the
    nearest first."""

    suite: str
    tests: list
    dependents: dict


@dataclasses.dataclass
class Function:
    """Positions in the text of the word `fn` and the body's braces."""

    word: int
    open: int
    close: int


def blanked(text):
    """Returns the text with comments, strings and characters blanked, so that all positions stay the same."""
    token = re.compile(
        r"""//[^\n]*|/\*.*?\*/|\bb?r(\#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])'""", re.S
    )
    return token.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def functions(text):
    """Returns every function that has a body."""
    code, found = blanked(text), []
    for word in re.finditer(r"\bfn\s+\w+", code):
        depth, at = 0, word.end()
        while at < len(code) and not (depth == 0 and code[at] in "{;"):
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(code[at], 0)
            at += 1
        if at == len(code) or code[at] == ";":
            continue
        open_, depth = at, 0
        while True:
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            if depth == 0:
                break
            at += 1
        found.append(Function(word.start(), open_, at))
    return found


def around(functions, bug):
    """Returns the outermost function whose body contains the bug."""
    inside = [f for f in functions if f.open <= bug.start and bug.end <= f.close + 1]
    return min(inside, key=lambda f: f.open, default=None)


def named_lifetime(head: str) -> str:
    """Returns a function's signature with one lifetime for all its references."""
    name, parameters = head.split("(", 1)
    name = name.replace("<", "<'all, ", 1) if "<" in name else name + "<'all>"
    return name + "(" + re.sub("&(?!')", "&'all ", parameters)


def switched(text, bugs, mutant):
    """Returns the text with all bugs behind switches, the lines of each bug, and the bugs that are not in a function.

    `mutant` is the path of the module that reads the switch.
    """
    every, groups, outside = functions(text), {}, []
    for bug in bugs:
        function = around(every, bug)
        if function is None:
            outside.append(bug)
        else:
            groups.setdefault(function.word, (function, []))[1].append(bug)
    # From the last to the first, so that earlier positions stay valid.
    marks = []
    for function, own in sorted(groups.values(), key=lambda group: -group[0].word):
        head, body = text[function.word : function.open], text[function.open : function.close + 1]
        returned = re.search(r"->\s*impl\s+(?P<kind>.*?)\s*(?P<where>\bwhere\b.*)?$", head, re.S)
        wrap = "{}"
        if returned:
            # The arms' types differ, so they are boxed.
            kind = re.sub(r"\s*\+\s*use<[^>]*>", "", returned["kind"])
            given = head[: returned.start()]
            # A lifetime within a type, as in `Iterator<Item = LiveBlock<'_>>`, is no bound.
            if not re.search(r"\+\s*'|'(?!_)", kind) and kind == returned["kind"]:
                if given.count("&") > 1:
                    # An omitted lifetime would be only that of `self`.
                    given = named_lifetime(given)
                    kind += " + 'all"
                else:
                    kind += " + '_"
            boxed = f"{mutant}::Box<dyn {kind}>"
            head = f"{given}-> {boxed} " + (returned["where"] or "")
            wrap = "{{ let boxed: " + boxed + f" = {mutant}::Box::new({{}}); boxed }}}}"
        arms = []
        for bug in own:
            a, b = bug.start - function.open, bug.end - function.open
            changed = body[:a] + bug.new + body[b:]
            changed = changed if changed.lstrip().startswith("{") else "{" + changed + "}"
            arms.append(f"/*<{bug.number}*/{bug.number}u32 => {wrap.format(changed)}/*{bug.number}>*/\n")
        whole = head + "{\nmatch " + mutant + "::active() {\n" + "".join(arms) + f"_ => {wrap.format(body)}\n}}\n}}"
        text = text[: function.word] + whole + text[function.close + 1 :]
    for bug in bugs:
        begin, end = text.find(f"/*<{bug.number}*/"), text.find(f"/*{bug.number}>*/")
        if begin >= 0:
            marks.append((text.count("\n", 0, begin) + 1, text.count("\n", 0, end) + 1, bug))
    return text, marks, outside


def write_copy(bugs):
    """Copies the workspace with the bugs behind switches. Build output remains, and unchanged files keep their times.

    Returns the lines of each bug by file, and the bugs that are not in a function.
    """
    copy, places, outside = HOME / "work", {}, []
    here = [path for top in ROOT.iterdir() if top.name not in ("target", ".git") for path in [top, *top.rglob("*")]]
    names = {path.relative_to(ROOT) for path in here if path.is_file() and "target" not in path.relative_to(ROOT).parts}
    for name in sorted(names):
        content, own = (ROOT / name).read_bytes(), [bug for bug in bugs if bug.file == str(name)]
        if own:
            mutant = "crate::mutant" if own[0].crate == "core" else "::parkade::mutant"
            text, places[str(name)], left = switched(content.decode(), own, mutant)
            content, outside = text.encode(), outside + left
        if str(name) == "src/lib.rs":
            content = FEATURES.encode() + content + SWITCH.encode()
        if str(name) in ("conformance/src/program/search.rs", "conformance/src/drawn.rs"):
            # It matters only whether a sequence fails, not how short it can be made.
            content = content.replace(b"const SHRINKS: u32 = 4000;", b"const SHRINKS: u32 = 100;")
        if not (copy / name).exists() or (copy / name).read_bytes() != content:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(content)
    for path in copy.rglob("*"):
        if path.is_file() and path.relative_to(copy) not in names:
            path.unlink()
    return places, outside


def cargo(*arguments):
    """Runs a cargo command in the copy, with the profile above."""
    config = [word for key, value in PROFILE.items() for word in ("--config", f"profile.mutants.{key}={value}")]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(HOME / "built"), "RUSTC_BOOTSTRAP": "parkade"}
    command = ["cargo", *arguments, "--profile", "mutants", "--message-format", "json", *config]
    return subprocess.run(command, cwd=HOME / "work", env=environment, capture_output=True, text=True)


def compiled(bugs, *arguments):
    """Runs a cargo command on the bugs that compile. Returns those, {bug id: what is wrong} of the others, and cargo's messages."""
    left, refused = list(bugs), {}
    while True:
        places, outside = write_copy(left)
        answer = cargo(*arguments)
        messages = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
        wrong, strange = {bug.id: "it is not inside a function" for bug in outside}, []
        for message in (entry["message"] for entry in messages if entry["reason"] == "compiler-message"):
            if message["level"] != "error":
                continue
            # The first location that the compiler names is the cause.
            lines = [(span["file_name"], span["line_start"]) for span in all_spans(message)]
            found = [bug for file, line in lines for first, last, bug in places.get(file, []) if first <= line <= last]
            if found:
                wrong.setdefault(found[0].id, message["message"])
            else:
                strange.append(message["rendered"])
        if answer.returncode == 0 and not wrong:
            return left, refused, messages
        if not wrong:
            raise SystemExit("the switched workspace does not compile:\n" + "".join(strange) + answer.stderr[-3000:])
        refused |= wrong
        left = [bug for bug in left if bug.id not in refused]


def all_spans(message):
    """Returns the spans of a compiler message, primary ones first."""
    own = sorted(message["spans"], key=lambda span: not span["is_primary"])
    return own + [span for child in message["children"] for span in child["spans"]]


def check(bugs):
    """Checks the crates that have bugs. Returns the bugs that compile, and {bug id: what is wrong} of the others."""
    crates = sorted({bug.crate for bug in bugs})
    packages = ["parkade" if crate == "core" else f"parkade-{crate}" for crate in crates]
    left, refused, _ = compiled(bugs, "check", "--keep-going", *(word for name in packages for word in ("-p", name)))
    return left, refused


def build(bugs):
    """Builds the suite and all test programs. Returns the bugs that compile, {bug id: what is wrong} of the others, and what was built."""
    left, refused = check(bugs)
    left, more, messages = compiled(left, "test", "--no-run", *EVERYTHING)
    suite, tests = "", []
    for message in messages:
        if message.get("executable"):
            target, room = message["target"]["name"], pathlib.Path(message["manifest_path"]).parent
            path, crate = str(pathlib.Path(message["executable"]).relative_to(HOME)), crate_in(room)
            if message["profile"]["test"]:
                tests.append(Program(f"{crate}:{target}", crate, path, str(room.relative_to(HOME))))
            elif target == "parkade":
                suite = path
    return left, refused | more, Built(suite, tests, dependents())


def crate_in(folder):
    """Returns the name of the crate in a folder of the copy."""
    name = str(pathlib.Path(folder).relative_to(HOME / "work"))
    return "core" if name == "." else name


def dependents():
    """Returns each crate of the workspace followed by those that depend on it, the nearest first."""
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    answer = subprocess.run(command, cwd=HOME / "work", check=True, capture_output=True, text=True)
    uses = {
        crate_in(pathlib.Path(package["manifest_path"]).parent): {
            crate_in(dependency["path"]) for dependency in package["dependencies"] if "path" in dependency
        }
        for package in json.loads(answer.stdout)["packages"]
    }
    order = {}
    for crate in uses:
        order[crate] = [crate]
        for known in order[crate]:
            order[crate] += [other for other in uses if known in uses[other] and other not in order[crate]]
    return order
