#!/usr/bin/env python3
"""Takes a few files out of a published package without downloading all of it: `fetch.py torch==2.7.1 FOLDER torch/lib/libc10.so torch/include/c10/`.

  fetch.py REQUIREMENT FOLDER PREFIX...      the files of the package's wheel whose names begin with one of the prefixes, under FOLDER

A wheel of torch has 530 to 900 MB, of which the harness needs 5. pip finds the wheel, with the index, the proxy and the certificates that it is configured for, and
reads its table of contents and the wanted files by range requests. If this pip or the server does not support that, the entire wheel is downloaded.
Every file's length and checksum are checked. If FOLDER/complete exists, all files are there and nothing is downloaded.
"""

import argparse
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
PYTHON = ("--no-deps", "--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp")
TARGET = [*PYTHON, *(word for platform in PLATFORMS for word in ("--platform", platform))]
# Bytes of one range request: the headers of a wheel lie together, and fetching them one by one would take hundreds of
# requests.
CHUNK = 1 << 20


def by_ranges(requirement, take):
    """Calls take(archive) with the wheel opened over HTTP. This uses pip's internal modules, which may be missing in other releases of pip."""
    from pip._internal.cli.cmdoptions import make_target_python
    from pip._internal.commands.download import DownloadCommand
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP
    from pip._vendor.packaging.requirements import Requirement

    command = DownloadCommand("download", "")
    options, _ = command.parse_args(["--quiet", *TARGET])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(
            options=options, session=session, target_python=make_target_python(options)
        )
        wanted = Requirement(requirement)
        found = finder.find_best_candidate(wanted.name, wanted.specifier).best_candidate
        if found is None:
            raise LookupError(
                f"the package index has no wheel of {requirement} for CPython 3.11 on x86-64, or it cannot be reached"
            )
        link = found.link
        with (
            open(link.file_path, "rb")
            if link.is_file
            else LazyZipOverHTTP(link.url_without_fragment, session, chunk_size=CHUNK) as file
        ):
            with zipfile.ZipFile(file) as archive:
                take(archive)


def whole(requirement, take):
    """Calls take(archive) with the wheel downloaded."""
    print(f"fetch.py: this pip cannot read a part of a wheel: downloading all of {requirement}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--disable-pip-version-check",
                *TARGET,
                "-d",
                folder,
                requirement,
            ],
            check=True,
        )
        with zipfile.ZipFile(glob.glob(os.path.join(folder, "*.whl"))[0]) as archive:
            take(archive)


def fetch(requirement, folder, prefixes):
    part = f"{folder}.part"
    shutil.rmtree(part, ignore_errors=True)

    def take(archive):
        for prefix in prefixes:
            if not any(name.startswith(prefix) for name in archive.namelist()):
                raise LookupError(f"the wheel of {requirement} has no {prefix}")
        # In the order of their positions in the wheel, so that one request serves many.
        members = sorted(
            (member for member in archive.infolist() if member.filename.startswith(tuple(prefixes))),
            key=lambda member: member.header_offset,
        )
        for member in members:
            path = archive.extract(member, part)
            if not member.is_dir() and os.path.getsize(path) != member.file_size:
                raise LookupError(
                    f"{member.filename} of {requirement} has {os.path.getsize(path)} bytes instead of {member.file_size}"
                )

    try:
        by_ranges(requirement, take)
    except LookupError:
        raise
    except Exception as error:  # any exception of a pip release whose interface has changed
        from_pip = f"{type(error).__name__}: {error}"
        shutil.rmtree(part, ignore_errors=True)
        try:
            whole(requirement, take)
        except subprocess.CalledProcessError as failed:
            raise LookupError(
                f"{requirement} cannot be downloaded ({from_pip}; pip download ended with status {failed.returncode}): is there a network?"
            ) from None
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(part, folder)
    with open(os.path.join(folder, "complete"), "w", encoding="utf-8") as file:
        file.write(requirement + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirement", help="what pip calls it, such as torch==2.7.1")
    parser.add_argument("folder", help="the folder for the files")
    parser.add_argument("prefixes", nargs="+", metavar="PREFIX", help="the beginnings of their names")
    options = parser.parse_args()
    if os.path.exists(os.path.join(options.folder, "complete")):
        return
    try:
        fetch(options.requirement, options.folder, options.prefixes)
    except LookupError as error:
        sys.exit(f"fetch.py: {error}")


if __name__ == "__main__":
    main()
