#!/usr/bin/env python3
"""Whether KVM and a simulated machine rank the named points of the paravirtual qspinlock alike, by what a preemption there costs.

    worst_order.py HALTKICK --machine FILE [--cpus LIST] [--blocks N] [--quick]

FILE describes this host (`haltkick doctor --write-machine FILE`). Both sides run one experiment: 11 points, a run without
preemptions, and that run once more (A/A), in shuffled blocks. The loss at a point is (1 - sections / sections without) x window x
pCPUs, over the time that vCPUs were taken off for, block by block. The criterion was fixed before the first run: no two points whose
intervals are disjoint on both sides are in opposite order, and tau-b of the points over such pairs is at least 0.9. A/A must lie
within its own interval of zero. Exit code 0: it holds; 1: it does not; 2: it could not be tried.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import median

PLACE = Path("target/worst-order")
POINTS = [
    "node-claimed", "tail-published", "halted-published", "before-sleep", "handed-over", "successor-hashed",
    "head-spinning", "slow-seen", "entry-removed", "slow-released", "head-hashed",
]
LENGTH_MS = 1.0
NONE, AGAIN = "none", "none again"

HEAD = """format = 1
name = "worst-order"
title = "A preemption at each named point of the paravirtual qspinlock"
blocks = {blocks}

[settings]
lock = "qspinlock-points"
pv = "on"
ratio = 2
slice = "1ms"
hold = "1us"
think = "2us"
window = "{window}"
warmup = "{warmup}"
"""


def experiment(blocks, window, warmup):
    text = HEAD.format(blocks=blocks, window=window, warmup=warmup)
    for name in [NONE, AGAIN]:
        text += f'\n[[arm]]\nname = "{name}"\n'
    for point in POINTS:
        text += f'\n[[arm]]\nname = "{point}"\ndeschedule = "random,at={point},rate=250,for=1ms"\n'
    return text + f'\n[[compare]]\nname = "A/A"\narm = "{AGAIN}"\nbaseline = "{NONE}"\n'


def measured(haltkick, side, text, more):
    """Records of one side."""
    place = PLACE / side
    shutil.rmtree(place, ignore_errors=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    file = PLACE / f"{side}.toml"
    file.write_text(text)
    done = subprocess.run([haltkick, "bench", file, "--output", place, *more])
    # 7: some figure is invalid, which the intervals will tell.
    if done.returncode not in (0, 7):
        sys.exit(2)
    records = [json.loads(line) for line in (place / "runs.jsonl").read_text().splitlines()]
    return [record for record in records if record["figures"].get("acquisitions")]


def losses(records):
    """By arm, the loss in each block, in pCPU time over the time that vCPUs were off."""
    rates, injected, window, pcpus = defaultdict(dict), {}, {}, 0
    for record in records:
        arm, block = record["place"]["arm"], record["place"]["block"]
        rates[arm][block] = record["figures"]["acquisitions_per_second"]
        injected[arm, block] = record["figures"]["injected"] or 0
        window[arm, block] = record["figures"]["window_ns"] / 1e6
        pcpus = len(record["settings"]["cpus"])
    found = {}
    for arm, of_blocks in rates.items():
        if arm == NONE:
            continue
        values = []
        for block, rate in of_blocks.items():
            if block not in rates[NONE]:
                continue
            gone = (1 - rate / rates[NONE][block]) * window[arm, block] * pcpus
            count = injected[arm, block] if arm != AGAIN else window[arm, block] / 4
            if count:
                values.append(gone / (count * LENGTH_MS))
        found[arm] = values
    return found


def interval(values, draws=4000):
    """Median, and the 95 % interval of it by drawing blocks again."""
    chance = random.Random(1)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(draws))
    return median(values), medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("haltkick")
    parser.add_argument("--machine", required=True)
    parser.add_argument("--cpus", default="0-1")
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["kvm", "sim"], help="measure one side, and print it")
    args = parser.parse_args()
    blocks = 4 if args.quick else args.blocks
    cpus = ["--cpus", args.cpus]
    simulated = [*cpus, "--set", "engine=sim", "--set", f"machine={args.machine}"]
    sides = {
        "sim": lambda: measured(args.haltkick, "sim", experiment(min(blocks, 12), "100ms", "10ms"), simulated),
        "kvm": lambda: measured(args.haltkick, "kvm", experiment(blocks, "1s", "100ms"), cpus),
    }
    found = {}
    for side, measure in sides.items():
        if args.only in (None, side):
            of_side = losses(measure())
            found[side] = {arm: interval(values) for arm, values in of_side.items() if len(values) >= 3}
    names = sorted(set().union(*found.values()), key=lambda arm: -next(iter(found.values())).get(arm, (0,))[0])
    for arm in names:
        cells = []
        for side in found:
            it = found[side].get(arm)
            cells.append(f"{side} {it[0]:6.2f} ({it[1]:.2f} to {it[2]:.2f})" if it else f"{side} never reached")
        print(f"{arm:18}", "   ".join(cells))
    if len(found) < 2:
        return 0
    return judged(found["sim"], found["kvm"])


def judged(simulated, real):
    both = [point for point in POINTS if point in simulated and point in real]
    agree = inverted = 0
    for one, other in combinations(both, 2):
        signs = [apart(side[one], side[other]) for side in (simulated, real)]
        if all(signs):
            agree += signs[0] == signs[1]
            inverted += signs[0] != signs[1]
            if signs[0] != signs[1]:
                print(f"opposite: {one} and {other}")
    decided = agree + inverted
    tau = (agree - inverted) / decided if decided else 0.0
    print(f"{len(both)} points on both sides, {decided} pairs apart on both: {inverted} in opposite order, tau-b {tau:.2f}")
    _, low, high = real.get(AGAIN, (0, 1, -1))
    is_calm = low <= 0 <= high
    print("A/A " + ("is zero within its interval" if is_calm else "is not zero: the host was not quiet, measure again"))
    return 0 if is_calm and decided and not inverted and tau >= 0.9 else 1


def apart(one, other):
    """1 or -1: the intervals are disjoint, and `one` is above or below; 0: they are not."""
    return (one[1] > other[2]) - (one[2] < other[1])


sys.exit(main())
