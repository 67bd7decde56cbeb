#!/usr/bin/env python3
"""Prints the licences of everything that is compiled into haltkick and its guest: licences.py TARGET, in a checkout."""

import json
import subprocess
import sys
from pathlib import Path

GUEST = "x86_64-unknown-none"
TEXTS = ("license", "licence", "copying", "notice", "copyright", "unlicense")
MUSL = """musl, the C library of the static program: MIT

Copyright (c) 2005-2020 Rich Felker, et al.

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the
"Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge, publish,
distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so, subject
to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR
ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH
THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def compiled_in(root, target):
    """Packages that `root` needs at run time on `target`, by id."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found, wanted = {}, [next(id for id, package in packages.items() if package["name"] == root)]
    while wanted:
        node = wanted.pop()
        if node not in found:
            found[node] = packages[node]
            deps = nodes[node]["deps"]
            wanted += [dep["pkg"] for dep in deps if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    return found


def texts(package):
    """What the package says of its licence, by file name."""
    files = sorted(Path(package["manifest_path"]).parent.iterdir())
    named = [file for file in files if file.is_file() and file.name.lower().startswith(TEXTS)]
    return {file.name: file.read_text(errors="replace") for file in named}


def main():
    packages = compiled_in("haltkick", sys.argv[1]) | compiled_in("haltkick-guest", GUEST)
    others = [package for package in packages.values() if package["source"]]
    print(f"Compiled into haltkick and its guest, beside the Rust standard library (MIT OR Apache-2.0): {len(others)} crates.\n")
    print(MUSL)
    known = {}
    for package in sorted(others, key=lambda package: (package["name"], package["version"])):
        print("=" * 100)
        print(f"{package['name']} {package['version']}: {package['license'] or 'see the text'}\n")
        for name, text in texts(package).items():
            # Most have the same text of the Apache licence.
            where = known.setdefault(" ".join(text.split()), f"{package['name']}, {name}")
            same = where != f"{package['name']}, {name}"
            print(f"{name}: the same text as of {where}\n" if same else f"{name}:\n\n{text.rstrip()}\n")


if __name__ == "__main__":
    main()
