"""Builds the core once with many bugs, each behind an environment switch.

The workspace is copied to target/mutants/. In the copy, the body of every function that has bugs becomes
`match crate::mutant::active() { 17 => { the body with bug 17 }, ..., _ => { the unchanged body } }`, and the core reads the number from
PARKADE_MUTANT. A hundred bugs therefore cost one build, and only one is active in a run. `cargo check` finds the bugs that do not compile;
its errors name the lines, and those bugs are left out.

run.py and sample.py use this module; it is not a command.
"""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "mutants" / "work"
# Everything except build output and git's own files.
PARTS = (
    [path.name for path in sorted(ROOT.iterdir()) if path.name not in ("target", ".git")]
    if (ROOT / "Cargo.toml").exists()
    else []
)

# Without debug assertions and overflow checks, so that a bug must be found by testing the outcome, not by the core itself.
PROFILE = {
    "inherits": '"dev"',
    "opt-level": "1",
    "debug": "false",
    "debug-assertions": "false",
    "overflow-checks": "false",
    "incremental": "false",
}

# Functions that constants call. The compiler evaluates them, so they cannot read a switch.
EVALUATED = {"mib"}

SWITCH = """
#[allow(missing_docs, unreachable_pub)]
mod mutant {
    use core::sync::atomic::{AtomicU32, Ordering};
    extern crate std;
    static ACTIVE: AtomicU32 = AtomicU32::new(u32::MAX);
    #[inline]
    pub(crate) fn active() -> u32 {
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


@dataclasses.dataclass
class Function:
    """Positions in the text of the word `fn` and the body's braces."""

    word: int
    open: int
    close: int


def blanked(text):
    """Returns the text with comments, strings and characters blanked, so that all positions stay the same."""
    token = re.compile(
        r"""//[^\n]*|/\*.*?\*/|r\#"(?:.*?)"\#|b?"(?:\\.|[^"\\])*"|b?'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\\n])'""", re.S
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


def switched(text, bugs):
    """Returns the text with all bugs behind switches, the lines of each bug, and the bugs that are not in a function that runs."""
    every, groups, outside = functions(text), {}, []
    for bug in bugs:
        function = around(every, bug)
        if function is None or text[function.word :].split("(")[0].split()[1] in EVALUATED:
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
            if "'" not in kind and kind == returned["kind"]:
                if given.count("&") > 1:
                    # An omitted lifetime would be only that of `self`.
                    given = named_lifetime(given)
                    kind += " + 'all"
                else:
                    kind += " + '_"
            boxed = f"alloc::boxed::Box<dyn {kind}>"
            head = f"{given}-> {boxed} " + (returned["where"] or "")
            wrap = "{{ let boxed: " + boxed + " = alloc::boxed::Box::new({}); boxed }}"
        arms = []
        for bug in own:
            a, b = bug.start - function.open, bug.end - function.open
            changed = body[:a] + bug.new + body[b:]
            changed = changed if changed.lstrip().startswith("{") else "{" + changed + "}"
            arms.append(f"/*<{bug.number}*/{bug.number}u32 => {wrap.format(changed)}/*{bug.number}>*/\n")
        whole = head + "{\nmatch crate::mutant::active() {\n" + "".join(arms) + f"_ => {wrap.format(body)}\n}}\n}}"
        before = text[: function.word]
        # A function that reads the switch cannot be const.
        before = re.sub(r"\bconst\s+$", "", before)
        text = before + whole + text[function.close + 1 :]
    for bug in bugs:
        begin, end = text.find(f"/*<{bug.number}*/"), text.find(f"/*{bug.number}>*/")
        if begin >= 0:
            marks.append((text.count("\n", 0, begin) + 1, text.count("\n", 0, end) + 1, bug))
    return text, marks, outside


def copy_workspace():
    """Copies everything except the core's Rust files, which write_switched writes. Build output remains, and unchanged files keep their times."""
    here = [path for part in PARTS for path in [ROOT / part, *(ROOT / part).rglob("*")]]
    names = {path.relative_to(ROOT) for path in here if path.is_file() and "target" not in path.relative_to(ROOT).parts}
    for name in sorted(names):
        content = (ROOT / name).read_bytes()
        if str(name) in ("conformance/src/program/search.rs", "conformance/src/core_laws/run.rs"):
            # It matters only whether a sequence fails, not how short it can be made.
            content = content.replace(b"const SHRINKS: u32 = 4000;", b"const SHRINKS: u32 = 100;")
        if name.parts[0] != "src" or name.suffix != ".rs":
            put(WORK / name, content)
    for path in WORK.rglob("*"):
        if path.is_file() and path.relative_to(WORK) not in names:
            path.unlink()


def put(path, content):
    """Writes a file unless it already has this content."""
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def cargo(*arguments):
    """Runs a cargo command in the copy, with the profile above."""
    config = [word for key, value in PROFILE.items() for word in ("--config", f"profile.mutants.{key}={value}")]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(WORK.parent / "built")}
    command = ["cargo", *arguments, "--profile", "mutants", *config]
    return subprocess.run(command, cwd=WORK, env=environment, capture_output=True, text=True)


def write_switched(bugs):
    """Writes the core with the bugs behind switches. Returns the lines of each bug by file, and the bugs that were left out."""
    places, outside = {}, []
    by_file = {}
    for bug in bugs:
        by_file.setdefault(bug.file, []).append(bug)
    for path in sorted((ROOT / "src").rglob("*.rs")):
        name = str(path.relative_to(ROOT))
        text, marks, left = switched(path.read_text(), by_file.get(name, []))
        outside += left
        if name == "src/lib.rs":
            text += SWITCH
        places[name] = marks
        put(WORK / name, text.encode())
    return places, outside


def without_those_that_do_not_compile(bugs):
    """Writes the switched core without the bugs that do not compile. Returns the others, and {bug id: compiler's message}."""
    left, refused = list(bugs), {}
    while True:
        places, outside = write_switched(left)
        refused |= {bug.id: "not inside a function that runs" for bug in outside}
        left = [bug for bug in left if bug.id not in refused]
        answer = cargo("check", "-p", "parkade", "--message-format", "json")
        wrong, strange = {}, []
        for line in answer.stdout.splitlines():
            message = json.loads(line).get("message") if line.startswith("{") else None
            if not isinstance(message, dict) or message.get("level") != "error":
                continue
            spans = [span for span in all_spans(message) if span["file_name"] in places]
            found = [
                bug
                for span in spans
                for first, last, bug in places[span["file_name"]]
                if first <= span["line_start"] <= last
            ]
            # The first location that the compiler names is the cause.
            if found:
                wrong.setdefault(found[0].id, message["message"])
            elif spans:
                strange.append(f"{spans[0]['file_name']}:{spans[0]['line_start']}: {message['message']}")
        if answer.returncode == 0:
            return left, refused
        if not wrong:
            raise SystemExit("the switched core does not compile:\n" + "\n".join(strange) + answer.stderr[-3000:])
        refused |= wrong
        left = [bug for bug in left if bug.id not in refused]


def all_spans(message):
    """Returns the spans of a compiler message, primary ones first."""
    own = sorted(message["spans"], key=lambda span: not span["is_primary"])
    return own + [span for child in message["children"] for span in child["spans"]]


def build(lean=False):
    """Builds the binary and the test programs that may catch a bug. Returns {name: path}.

    `lean` builds a smaller binary with the suite but without the scenarios from the documents.
    """
    programs = {}
    jobs = [
        (
            "parkade",
            ["build", "-p", "parkade-conformance", "--example", "suite", "--no-default-features"]
            if lean
            else ["build", "-p", "parkade-cli"],
        ),
        ("core", ["test", "-p", "parkade", "--no-run", "--lib", "--tests"]),
        ("tests", ["test", "-p", "parkade-conformance", "--no-run", "--test", "laws"]),
    ]
    for name, arguments in jobs:
        answer = cargo(*arguments, "--message-format", "json")
        if answer.returncode != 0:
            errors = [
                json.loads(line)["message"]["rendered"]
                for line in answer.stdout.splitlines()
                if '"level":"error"' in line
            ]
            raise SystemExit(f"cargo {' '.join(arguments)} failed:\n" + "".join(errors)[-4000:] + answer.stderr[-1500:])
        artifacts = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
        for artifact in artifacts:
            path, target = artifact.get("executable"), artifact.get("target", {})
            if path and (name == "parkade") == bool({"bin", "example"} & set(target["kind"])):
                programs[name if name != "core" else f"core:{target['name']}"] = path
    return programs


def run(command, number, limit_s, room=None):
    """Runs a program with one bug switched on. Returns (exit code, or None after the time limit; output; seconds)."""
    start = time.monotonic()
    environment = {**os.environ, "PARKADE_MUTANT": str(number), "RUST_BACKTRACE": "0"}
    process = subprocess.Popen(
        command,
        cwd=room or WORK,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output, time.monotonic() - start
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output, time.monotonic() - start
