"""Text that a program keeps up to date in a page, between two marks."""

import sys
from pathlib import Path


def parts(path: Path, program: str) -> tuple[str, str]:
    """A page up to and with the first mark of a program, and from its second mark on. Ends the program if they are not there."""
    first, second = f"<!-- what benches/{program} writes -->", f"<!-- the end of what benches/{program} writes -->"
    page = path.read_text() if path.exists() else ""
    if page.count(first) != 1 or page.count(second) != 1 or page.index(first) > page.index(second):
        sys.exit(f"{program}: {path} must have the line {first}, and after it {second}, once each")
    return page[: page.index(first)] + first, page[page.index(second) :]


def replace_marked(path: Path, program: str, text: str) -> None:
    """Puts the text between the marks of a program."""
    before, after = parts(path, program)
    path.write_text(f"{before}\n\n{text}\n\n{after}")
