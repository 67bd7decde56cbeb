#!/usr/bin/env python3
"""Draws the first picture of a report again from its directory: throughput over the ratio, or over what else varies.

    headline.py DIR                    a window, or with --output FILE a .png, .svg or .pdf
    headline.py DIR --points           the points that would be drawn, as CSV; needs no matplotlib

Every estimate is computed from the raw values in runs.csv, by the definition in docs/measuring.md; the script ends with an
error if one differs from that in summary.csv. Intervals are those of summary.csv.
"""

import argparse
import csv
import json
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path

METRIC = "acquisitions_per_second"


def rows(path):
    with open(path, newline="") as file:
        yield from csv.DictReader(file)


def axis_of(outline):
    """The setting that the picture is over: the ratio if that varies, else the one that varies fastest."""
    varying = [axis for axis in outline["axes"] if len(axis["values"]) > 1]
    ratio = [axis for axis in varying if axis["key"] == "ratio"]
    return (ratio or varying[-1:] or outline["axes"][-1:] or [{"key": "", "values": [""]}])[0]


def hodges_lehmann(values):
    """Median of the means of all pairs of logarithms, each value with itself included."""
    logs = [math.log(value) for value in values]
    means = [(a + b) / 2 for i, a in enumerate(logs) for b in logs[i:]]
    return math.exp(statistics.median(means))


def estimates_of_runs(directory, keys):
    """Estimates by setting and arm, from the raw values; none where half of the runs completed no section."""
    runs = defaultdict(dict)
    for row in rows(directory / "runs.csv"):
        if row["role"] != "control" and row["value"]:
            cell = (tuple(row[key] for key in keys), row["arm"])
            runs[cell].setdefault((row["run_id"], row["block"]), {})[row["metric"]] = float(row["value"])
    estimates = {}
    for cell, of_runs in runs.items():
        # A run without a section counts as half of one.
        values = [run[METRIC] or 0.5 / (run["window_ns"] / 1e9) for run in of_runs.values()]
        seen = sum(1 for run in of_runs.values() if run["acquisitions"])
        if 2 * seen > len(values):
            estimates[cell] = hodges_lehmann(values)
    return estimates


def points(directory, outline):
    """Every point of every panel: its setting, arm, estimate and interval."""
    keys = [axis["key"] for axis in outline["axes"]]
    of_runs = estimates_of_runs(directory, keys)
    for row in rows(directory / "summary.csv"):
        if row["metric"] != METRIC or row["arm"].endswith(" (control)"):
            continue
        cell = (tuple(row[key] for key in keys), row["arm"])
        if not row["hodges_lehmann"]:
            continue
        told, computed = float(row["hodges_lehmann"]), of_runs.get(cell, math.nan)
        if not math.isclose(told, computed, rel_tol=1e-9):
            sys.exit(f"{cell}: summary.csv has {told}, and the runs give {computed}")
        low, high = (float(row[end]) if row[end] else math.nan for end in ("low", "high"))
        yield dict(zip(keys, cell[0])), row["arm"], computed, low, high


def draw(directory, outline, output):
    try:
        import matplotlib

        if output:
            matplotlib.use("Agg")
        import matplotlib.pyplot as plot
    except ModuleNotFoundError:
        sys.exit("this needs matplotlib (pip install matplotlib); --points prints the points without it")
    axis = axis_of(outline)
    panels = defaultdict(lambda: defaultdict(list))
    for setting, arm, *figures in points(directory, outline):
        at = axis["values"].index(setting.pop(axis["key"], ""))
        panels[tuple(setting.items())][arm].append((at, *figures))
    if not panels:
        sys.exit("no arm has a figure")
    figure, all_axes = plot.subplots(len(panels), squeeze=False, figsize=(9.6, 4.2 * len(panels)))
    for axes, (fixed, arms) in zip(all_axes[:, 0], panels.items()):
        for (arm, curve), marker in zip(arms.items(), "os^DvP*Xd<>ph" * len(arms)):
            curve.sort()
            xs, ys, lows, highs = zip(*curve)
            errors = [[y - low for y, low in zip(ys, lows)], [high - y for y, high in zip(ys, highs)]]
            colour = "grey" if arm.startswith("lock-free") else None
            axes.errorbar(xs, ys, errors, label=arm, marker=marker, capsize=3, color=colour)
        axes.set_yscale("log")
        axes.set_xticks(range(len(axis["values"])), axis["values"])
        axes.set_xlabel("vCPUs per pCPU" if axis["key"] == "ratio" else axis["key"])
        axes.set_ylabel("acquisitions per second")
        axes.set_title(", ".join([outline["title"], *(f"{key} {value}" for key, value in fixed)]))
        axes.legend()
    figure.tight_layout()
    if output:
        figure.savefig(output)
    else:
        plot.show()


def main():
    about, _, usage = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=usage, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path, metavar="DIR", help="a directory that `haltkick bench` made")
    parser.add_argument("--output", metavar="FILE", help="write the picture to a file")
    parser.add_argument("--points", action="store_true", help="print the points as CSV instead")
    arguments = parser.parse_args()
    outline = json.loads((arguments.directory / "manifest.json").read_text())["outline"]
    if not arguments.points:
        draw(arguments.directory, outline, arguments.output)
        return
    writer = csv.writer(sys.stdout)
    writer.writerow([*(axis["key"] for axis in outline["axes"]), "arm", "estimate", "low", "high"])
    for setting, arm, *figures in points(arguments.directory, outline):
        writer.writerow([*setting.values(), arm, *figures])


if __name__ == "__main__":
    main()
