#!/usr/bin/env python3
"""How well simulated runs predict real ones of the same experiment: cell by cell, and whether both put the arms into the same order.

    predict.py REAL SIMULATED... [--all]

REAL and each SIMULATED are results directories of `haltkick bench`; `just bench-predict` makes them. Efficiency is compared, throughput
over that of lock-free runs of the same engine: the cost of a section alone depends on the host and on the machine file, and is not
predicted. The worst simulation stands first, and the tables are about it. Null predictors know nothing of cache lines: what they get
right, a simulation of lines need not. Exit code 1: some runs failed; 2: there is nothing to compare.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from itertools import combinations, product
from math import floor, log, log10, sqrt
from pathlib import Path
from statistics import fmean, median

# A prediction that is off by at most this share of what was measured is near. Sniper, a simulator of many cores, states this for itself
# (docs/sources.md).
NEAR = 0.25
# One pCPU has no other one to move lines to, and at ratio 1 each vCPU has a pCPU to itself.
GROUPS = {
    "all": lambda cell: True,
    "1 pCPU, ratio 1": lambda cell: cell["pcpus"] == 1 and cell["vcpus"] <= cell["pcpus"],
    "1 pCPU, above": lambda cell: cell["pcpus"] == 1 and cell["vcpus"] > cell["pcpus"],
    "more pCPUs, ratio 1": lambda cell: cell["pcpus"] > 1 and cell["vcpus"] <= cell["pcpus"],
    "more pCPUs, above": lambda cell: cell["pcpus"] > 1 and cell["vcpus"] > cell["pcpus"],
}
LEGEND = """tau: Kendall's tau-b of measured and predicted estimates, 1 if both put the arms into the same order;
of runs: of single blocks of either side (mean); host: of two measured blocks (mean), which is what
'of runs' would be for a second host of the same kind; told apart: pairs of arms whose measured 95 %
intervals do not overlap; near: arms within 25 %; factor: median of predicted over measured.
Efficiency: throughput over that of lock-free runs. Nulls take the median of the simulation, of all arms at a
setting or of all cells at a ratio, or are simulated with socket-ns 0."""


def refuse(message):
    print(f"predict.py: {message}", file=sys.stderr)
    sys.exit(2)


class Side:
    """The figures of a results directory: an estimate for each arm at each setting, and efficiencies by setting, block and arm."""

    def __init__(self, path, simulated):
        self.path = path
        manifest, summary = (json.loads((Path(path) / name).read_text()) for name in ("manifest.json", "summary.json"))
        self.axes = manifest["outline"]["axes"]
        self.experiment = manifest["outline"]["experiment"]
        self.failed = [f"{run['cell_id']}, block {run['block']}: {run['message']}" for run in manifest.get("failed", [])]
        rows = (row for row in summary["rows"] if row["role"] == "arm")
        self.rows = {(setting(row["setting"]), row["arm"]): row for row in rows}
        records = [json.loads(line) for line in (Path(path) / "runs.jsonl").read_text().splitlines()]
        replaced = {run for record in records for run in record["place"].get("replaces", [])}
        self.blocks = defaultdict(lambda: defaultdict(dict))
        self.is_null = False
        for record in records:
            if (record["settings"]["engine"] == "sim") != simulated:
                belongs = "simulated" if simulated else "real"
                refuse(f"{path} holds a run with engine {record['settings']['engine']}: {belongs} runs belong there (predict.py REAL SIMULATED)")
            machine = manifest.get("files", {}).get(record["settings"].get("machine_sha256"), "")
            self.is_null |= bool(re.search(r"^socket-ns = \{ value = 0(\.0*)?[ ,]", machine, re.M))
            place, figures = record["place"], record["figures"]
            sections, window, ideal = (figures.get(name) for name in ("acquisitions", "window_ns", "ideal_per_second"))
            # A run without any section counts as half a one: left out, it would flatter the lock.
            rate = figures.get("acquisitions_per_second") if sections else 0.5e9 / window
            if place["role"] == "arm" and record["run_id"] not in replaced and sections is not None and rate and ideal:
                self.blocks[setting(place["setting"])][place["block"]][place["arm"]] = rate / ideal

    def rank(self, of):
        return [axis["values"].index(dict(of)[axis["key"]]) for axis in self.axes if axis["key"] in dict(of)]

    def efficiency(self, key):
        return ((self.rows[key]["figures"].get("efficiency") or {}).get("estimate")) if key in self.rows else None


def setting(of):
    return tuple(sorted(of.items()))


def predicted(cell, value):
    factor = value / cell["measured"]["hodges_lehmann"]
    return {**cell, "predicted": value, "factor": factor, "near": abs(factor - 1) <= NEAR}


def compared(real, simulated):
    """Cells with an efficiency on both sides, and the number of those without."""
    cells, both = [], [key for key in real.rows if key in simulated.rows]
    for key in both:
        measured, other = real.efficiency(key), simulated.efficiency(key)
        if measured and other:
            row = {"setting": key[0], "arm": key[1], "pcpus": real.rows[key]["pcpus"], "vcpus": real.rows[key]["vcpus"]}
            cells.append(predicted({**row, "measured": measured}, other["hodges_lehmann"]))
    return cells, len(both) - len(cells)


def with_medians(cells, key):
    """The cells with the median prediction of all with the same key."""
    groups = defaultdict(list)
    for cell in cells:
        groups[key(cell)].append(cell["predicted"])
    return [predicted(cell, median(groups[key(cell)])) for cell in cells]


def concordance(a, b):
    sign = [(x > y) - (x < y) for x, y in zip(a, b)]
    return sign[0] * sign[1]


def tau_b(pairs):
    """Kendall's tau-b of pairs of figures; none where all of one side are equal."""
    agreement = sum(concordance(a, b) for a, b in combinations(pairs, 2))
    differ = [sum(a[side] != b[side] for a, b in combinations(pairs, 2)) for side in (0, 1)]
    return agreement / sqrt(differ[0] * differ[1]) if all(differ) else None


def mean_tau(pairs):
    """The mean tau-b of pairs of blocks, over the arms that both have."""
    taus = [tau_b([(a[arm], b[arm]) for arm in a if arm in b]) for a, b in pairs]
    taus = [tau for tau in taus if tau is not None]
    return fmean(taus) if taus else None


def are_told_apart(a, b):
    a, b = a["measured"]["interval"], b["measured"]["interval"]
    return bool(a and b) and (a["high"] < b["low"] or b["high"] < a["low"])


def order(cells, real, simulated):
    """The line of a setting."""
    here, there = (list(side.blocks[cells[0]["setting"]].values()) for side in (real, simulated))
    figures = [(cell["measured"]["hodges_lehmann"], cell["predicted"]) for cell in cells]
    apart = [
        concordance(figures[a], figures[b]) for a, b in combinations(range(len(cells)), 2) if are_told_apart(cells[a], cells[b])
    ]
    taus = [tau_b(figures), mean_tau(product(here, there)), mean_tau(combinations(here, 2))]
    shown = [two(tau) for tau in taus]
    told = [f"{len(apart)} pairs", two(sum(apart) / len(apart) if apart else None)]
    near = [str(sum(cell["near"] for cell in cells)), two(median(cell["factor"] for cell in cells))]
    return taus[0], [words(cells[0]["setting"]), str(len(cells)), *shown, *told, *near]


def two(value):
    return "-" if value is None else f"{round(value, 2) + 0.0:.2f}"


def words(of):
    return ", ".join(f"{key} {value}" for key, value in of)


def significant(value):
    """Three significant digits, no exponent."""
    if not value:
        return "0"
    decimals = max(0, 2 - floor(log10(abs(float(f"{value:.2e}")))))
    return f"{value:.{decimals}f}"


def measured(estimate):
    interval = estimate["interval"]
    if not interval:
        return significant(estimate["hodges_lehmann"])
    half = (sqrt(interval["high"] / interval["low"]) - 1) * 100
    # Too few blocks, or a host too noisy, to say anything: the digits would say as little.
    return f"{significant(estimate['hodges_lehmann'])} +- {'>999' if half > 999 else f'{half:.{1 if half < 9.95 else 0}f}'} %"


def table(header, lines):
    widths = [max(map(len, column)) for column in zip(header, *lines)]
    for line in [header, *lines]:
        first, *rest = (f"{field:{'<' if i == 0 else '>'}{width}}" for i, (field, width) in enumerate(zip(line, widths)))
        print("  ".join([first, *rest]).rstrip())
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real")
    parser.add_argument("simulated", nargs="+")
    parser.add_argument("--all", action="store_true", help="show near cells too")
    args = parser.parse_args()
    real, sides = Side(args.real, False), [Side(path, True) for path in args.simulated]
    for side in sides:
        if side.experiment != real.experiment:
            refuse(
                f"{real.path} holds experiment '{real.experiment}' and {side.path} holds '{side.experiment}': "
                "simulate the experiment that was measured"
            )
    found = [(side, *compared(real, side)) for side in sides]
    for side, cells, _ in found:
        if not cells:
            refuse(f"{real.path} and {side.path} have no cell with an efficiency in common")
    found.sort(key=lambda it: (it[0].is_null, sum(cell["near"] for cell in it[1]) / len(it[1])))
    simulated, cells, without = found[0]
    if simulated.is_null:
        refuse("all simulated machines have socket-ns 0: give a directory of one in which lines cost something")

    print("Efficiency, measured and predicted, farthest off first")
    off = sorted((cell for cell in cells if args.all or not cell["near"]), key=lambda cell: -abs(log(cell["factor"])))
    lines = [[words(c["setting"]), c["arm"], measured(c["measured"]), significant(c["predicted"]), significant(c["factor"])] for c in off]
    table(["setting", "arm", "measured", "predicted", "predicted/measured"], lines)
    print("The order of the arms at each setting")
    settings = sorted({cell["setting"] for cell in cells}, key=real.rank)
    orders = [order([cell for cell in cells if cell["setting"] == each], real, simulated) for each in settings]
    table(["setting", "arms", "tau", "of runs", "host", "told apart", "of those", "near", "factor"], [line for _, line in orders])
    print("What a null predictor gets right, a simulation of lines need not")
    predictors = [(f"{'null: ' * side.is_null}{side.path}", of) for side, of, _ in found]
    predictors.append(("null: all arms equal", with_medians(cells, lambda cell: cell["setting"])))
    predictors.append(("null: the ratio alone", with_medians(cells, lambda cell: cell["vcpus"] / cell["pcpus"])))
    lines = []
    for name, of in predictors:
        groups = [[cell["near"] for cell in of if is_in(cell)] for is_in in GROUPS.values()]
        lines.append([name, *(f"{fmean(near) * 100:.1f} % of {len(near)}" if near else "-" for near in groups)])
    table(["within 25 %, by predictor", *GROUPS], lines)
    near = sum(cell["near"] for cell in cells)
    print(f"{near} of {len(cells)} cells ({significant(near / len(cells) * 100)} %) are within 25 %")
    if taus := [tau for tau, _ in orders if tau is not None]:
        print(f"the least tau of a setting is {min(taus):.2f}")
    if without:
        print(f"{without} more cells have no efficiency on one side")
    print(LEGEND)
    failed = [f"{side.path}: {failure}" for side in [real, *sides] for failure in side.failed]
    for failure in failed:
        print(f"warning: {failure}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
