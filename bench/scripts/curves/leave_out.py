#!/usr/bin/env python3
"""Says how far off each curve is with the figures that are best for all others: leave_out.py POINTS.tsv OTHER.tsv ...

Each file is curves.py's, the first with the figures of the machine files, the others each with one of them changed (`--set`).
"""
import math
import sys
from pathlib import Path


def read(path):
    """Measured and simulated nanoseconds by curve and threads."""
    rows = [line.split("\t") for line in Path(path).read_text().splitlines()[1:]]
    return {(tuple(row[:4]), row[4]): (float(row[5]), float(row[6])) for row in rows}


def errors(points, keys):
    return [abs(math.log(points[key][1] / points[key][0])) for key in keys]


def told(found):
    near = sum(error <= math.log(1.3) for error in found)
    return f"{near} of {len(found)} within 30 %, typical factor {math.exp(sum(found) / len(found)):.3f}"


def main():
    choices = {path: read(path) for path in sys.argv[1:]}
    keys = sorted(set.intersection(*(set(points) for points in choices.values())))
    for path, points in choices.items():
        print(f"{path}: {told(errors(points, keys))}")
    for what, part in ("curve", lambda key: key[0]), ("operation", lambda key: key[0][1]):
        found = []
        for left_out in {part(key) for key in keys}:
            others = [key for key in keys if part(key) != left_out]
            best = min(choices.values(), key=lambda points: sum(errors(points, others)))
            found += errors(best, [key for key in keys if part(key) == left_out])
        print(f"each {what} left out: {told(found)}")


if __name__ == "__main__":
    main()
