#!/usr/bin/env python3
"""Simulates the published curves of contended words and locks, and says how far off each point is.

    curves.py [-j 2] [--only REGEX] [--threads 2,8,24] HALTKICK OUT.tsv
"""
import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
HARNESS_NS = {"hold": 0, "think": 3}
OBJECTS = {"pair", "cas-ref", "rw-read", "swap-tas", "osq"}
LOCKS = {"ticket", "qspinlock"}
# Those of the small machines: a loop around one operation.
WORDS = {"atomic-add": "line-add", "cas-add": "line-load-cas"}
# A holder whose sibling waits is faster than both were when its hold was calibrated; with think, siblings work mostly.
HELD = {"H88": 0.83, "H64": 0.92}
MACHINES = []
# Time of an empty loop, by machine, hold, think and threads.
EMPTY = {}
SIBLINGS = {"h88": (44, 22 * 2), "h64": (32, 32)}


def cpus(machine, threads):
    if machine not in SIBLINGS:
        return ",".join(str(n) for n in range(threads))
    cores = SIBLINGS[machine][0]
    return ",".join(str(n // 2 + (n % 2) * cores) for n in range(threads))


def run(haltkick, machine, cpus, operation, hold, think, *more):
    """Simulates an operation on these CPUs, a vCPU each: the settings of the record, and its figures; None if it fails."""
    arguments = [haltkick, "run", "--engine", "sim", "--machine", machine, "--cpus", cpus, "--no-ideal", "--format", "json",
                 "--warmup", "50us", "--think", f"{think}ns", *more]
    if operation.startswith("line-"):
        arguments += ["--workload", operation, "--lock", "none"]
    else:
        lock = ["--lock-object", HERE / f"locks/{operation}.c"] if operation in OBJECTS else ["--lock", operation]
        arguments += ["--workload", "line-lock", *lock, "--hold", f"{hold}ns"]
    done = subprocess.run([str(word) for word in arguments], capture_output=True, text=True)
    if done.returncode not in (0, 7):
        sys.stderr.write(f"{operation} on {machine}: {done.stderr[:300]}\n")
        return None
    record = json.loads(done.stdout)
    if record["figures"]["completion_ns"] is None:
        sys.stderr.write(f"{operation} on {machine}: {record['why'].get('completion_ns')}\n")
        return None
    return record


def wall_ns(record):
    """Nanoseconds between two operations anywhere."""
    return record["figures"]["completion_ns"] / record["settings"]["work_sections"]


def simulate(haltkick, point, seed):
    machine, operation, hold, think, threads, _ = point
    name = machine.lower()
    # Holds and thinks were calibrated beside busy siblings, and last longer then than alone.
    longer = max(1.0, EMPTY.get((machine, hold, think, threads), 0) * threads / (hold + think)) if think else 1.0
    hold = round(hold * (HELD.get(machine, 1) if threads > 1 and not think else 1)) or HARNESS_NS["hold"]
    each = 5000 if threads <= 16 else 2000 if think < 1000 else 1000
    think = 0 if operation in WORDS else round(think * longer) or HARNESS_NS["think"]
    record = run(haltkick, f"{MACHINES[0]}/{name}.toml", cpus(name, threads), WORDS.get(operation, operation), hold, think,
                 "--vcpus", threads, "--seed", seed, "--window", "2s", "--slice", "100ms", "--each", each)
    if record is None:
        return None
    ran = sum(vcpu["run_ns"] for vcpu in record["per_vcpu"])
    return wall_ns(record), ran / record["figures"]["completion_ns"] / threads


def within(pairs):
    """Share of pairs of figures that lie within 30 % of each other, in words."""
    near = sum(abs(math.log(one / other)) <= math.log(1.3) for one, other in pairs)
    return f"{near} of {len(pairs)}, {100 * near / max(len(pairs), 1):.1f} %"


def at(curve, threads):
    """A curve at a number of threads, between its points by their logarithms, and flat behind the last one."""
    points = sorted(curve.items())
    for (before, low), (behind, high) in zip(points, points[1:]):
        if before <= threads <= behind:
            return low * (high / low) ** (math.log(threads / before) / math.log(behind / before))
    return points[-1][1]


def print_nulls(results):
    """Ours beside two predictors that simulate nothing, on the curves that both big machines have."""
    curves = defaultdict(dict)
    for (*key, threads, measured), ns in results:
        curves[tuple(key)][threads] = (measured, ns)
    ours, nearest, no_lines = [], [], []
    for (machine, *load), curve in curves.items():
        other = curves.get(("H64" if machine == "H88" else "H88", *load))
        if machine not in HELD or not other:
            continue
        operation, hold, think = load
        for threads, (measured, ns) in curve.items():
            ours.append((ns, measured))
            nearest.append((at({n: pair[0] for n, pair in other.items()}, threads), measured))
            alone = EMPTY.get((machine, hold, think, threads)) or (hold + think + 18) / threads
            held = hold * (HELD[machine] if threads > 1 else 1) if operation in LOCKS | {"swap-tas", "osq"} else 0
            no_lines.append((max(alone, held), measured))
    print(f"curves of both: ours {within(ours)}; nearest curve {within(nearest)}; no lines {within(no_lines)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("haltkick")
    parser.add_argument("out")
    parser.add_argument("-j", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--threads", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a figure of all machine files")
    asked = parser.parse_args()
    MACHINES.append(tempfile.mkdtemp())
    for file in (HERE / "machines").iterdir():
        text = file.read_text()
        for key, value in (word.split("=") for word in asked.set):
            text = re.sub(rf"(?m)^({key} = \{{ value = )[0-9.]+", rf"\g<1>{value}", text)
        Path(MACHINES[0], file.name).write_text(text)
    wanted = {int(n) for n in asked.threads.split(",") if n}
    points = []
    for line in (HERE / "measured.tsv").read_text().splitlines()[1:]:
        machine, operation, hold, think, threads, ns = line.split("\t")
        point = (machine, operation, int(hold), int(think), int(threads), float(ns))
        if operation == "empty-loop":
            EMPTY[(machine, int(hold), int(think), int(threads))] = float(ns)
        known = operation in OBJECTS or operation in LOCKS or operation in WORDS
        if known and re.search(asked.only, "/".join(line.split("\t")[:4])) and (not wanted or point[4] in wanted):
            points.append(point)
    with ThreadPoolExecutor(asked.j) as pool:
        found = list(pool.map(lambda point: simulate(asked.haltkick, point, asked.seed), points))
    curves, pairs = defaultdict(list), []
    with open(asked.out, "w") as out:
        out.write("machine\toperation\thold_ns\tthink_ns\tthreads\tmeasured\tsimulated\tat_work\n")
        for point, result in zip(points, found):
            if result is None:
                curves[point[:4]].append((point[4], point[5], math.nan))
                pairs.append((math.inf, 1))
                continue
            ns, share = result
            out.write("\t".join(str(word) for word in (*point, f"{ns:.1f}", f"{share:.2f}")) + "\n")
            curves[point[:4]].append((point[4], point[5], ns))
            pairs.append((ns, point[5]))
    for key, rows in curves.items():
        known = [(ns, measured) for _, measured, ns in rows if ns == ns]
        factor = math.exp(sum(abs(math.log(ns / measured)) for ns, measured in known) / max(len(known), 1))
        print(f"{'/'.join(map(str, key)):26} within 30 %: {within(known):18} typical factor {factor:.2f}  ",
              " ".join(f"{n}:{ns:.0f}({ns / measured:.2f})" for n, measured, ns in rows))
    print(f"within 30 %: {within(pairs)}")
    print_nulls([(point, result[0]) for point, result in zip(points, found) if result])


if __name__ == "__main__":
    main()
