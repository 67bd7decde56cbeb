#!/usr/bin/env python3
"""Prints what is compiled into haltkick and its guest, in a checkout: its licences (licences.py TARGET), or a bill of materials in
CycloneDX (licences.py TARGET --bill)."""

import json
import subprocess
import sys
import tomllib
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


def print_bill(packages, others):
    """A CycloneDX document: each crate with its version, licence and the sum that Cargo.lock has of it. No time and no serial
    number: it is the same for the same commit."""
    locked = tomllib.loads(Path("Cargo.lock").read_text())["package"]
    sums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    version = next(package["version"] for package in packages.values() if package["name"] == "haltkick")
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:cargo/{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:cargo/{name}@{version}",
            "hashes": [{"alg": "SHA-256", "content": sums[name, version]}],
            "licenses": [{"expression": package["license"].replace("/", " OR ")}],
        }
        for package in others
        for name, version in [(package["name"], package["version"])]
    ]
    musl = {"type": "library", "name": "musl", "licenses": [{"expression": "MIT"}]}
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "haltkick", "version": version}},
        "components": components + [musl],
    }
    print(json.dumps(bill, indent=1))


def main():
    packages = compiled_in("haltkick", sys.argv[1]) | compiled_in("haltkick-guest", GUEST)
    others = sorted((p for p in packages.values() if p["source"]), key=lambda package: (package["name"], package["version"]))
    if "--bill" in sys.argv[2:]:
        return print_bill(packages, others)
    print(f"Compiled into haltkick and its guest, beside the Rust standard library (MIT OR Apache-2.0): {len(others)} crates.\n")
    print(MUSL)
    known = {}
    for package in others:
        print("=" * 100)
        print(f"{package['name']} {package['version']}: {package['license'] or 'see the text'}\n")
        for name, text in texts(package).items():
            # Most have the same text of the Apache licence.
            where = known.setdefault(" ".join(text.split()), f"{package['name']}, {name}")
            same = where != f"{package['name']}, {name}"
            print(f"{name}: the same text as of {where}\n" if same else f"{name}:\n\n{text.rstrip()}\n")


if __name__ == "__main__":
    main()
