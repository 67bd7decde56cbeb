#!/usr/bin/env python3
"""Predicts contended words and locks on machines that nobody here has, known by their shape alone (set-up P0).

    predict.py [-j 2] [--blocks 3] HALTKICK OUT.tsv

Block 0 is the machine as its file says; each other one is a machine like it, with another seed. The interval is that of all blocks.
"""
import argparse
import re
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from curves import HERE, run, wall_ns

PRESETS = HERE.parents[2] / "vmm/sim/machines"

COLUMNS = "set-up\tthreads\tfigure\tunit\tlow\tpredicted\thigh\tdirection\tknown or blind\treason\n"
# Name: built-in machine that it is made of, what differs, and a line.
MACHINES = {
    "a": ("skylake-2s", {"sockets": 1, "cores-per-socket": 24, "hops-ns": None, "upgrade-hops": None}, "1 x 24 x 2 Skylake-SP class"),
    "b": ("broadwell-2s", {"cores-per-socket": 10, "socket-ns": 39, "hops-ns": [118]}, "2 x 10 x 2 Broadwell class"),
    "c": ("nehalem-2s", {}, "2 x 4 x 2 Nehalem-EP, unbound"),
    "d": ("sandybridge-2s", {"cores-per-socket": 8, "socket-ns": 32, "hops-ns": [114]}, "2 x 8 x 2 Sandy Bridge-EP"),
    "e": ("broadwell-2s", {"cores-per-socket": 14, "socket-ns": 45, "hops-ns": [127]}, "2 x 14 x 2 Broadwell"),
    "f": ("skylake-2s", {"sockets": 1, "cores-per-socket": 18, "socket-ns": 43, "hops-ns": None, "upgrade-hops": None}, "1 x 18 x 2 Skylake-D"),
    "g": ("sapphirerapids-2s", {"cores-per-socket": 48, "socket-ns": 55}, "2 x 48 x 2 Sapphire Rapids"),
    "h": ("skylake-8s", {}, "8 x 28 x 2 Skylake, sockets in order"),
}
# Hold, think, and how much longer a think lasts beside a sibling that works (the empty loops of H88 and H64).
LOADS = [(0, 0, 1.0), (200, 1000, 1.2), (1000, 5000, 1.1)]
SEVEN = ["pair", "cas-ref", "rw-read", "swap-tas", "ticket", "qspinlock", "osq"]
# What each is compared with: the direction says which of the two takes longer.
BESIDE = {"ticket": "qspinlock", "swap-tas": "ticket", "cas-ref": "rw-read", "rw-read": "pair", "osq": "qspinlock"}
REASONS = {
    "pair": "a visit is one operation and lasts half a move; while a request crosses, the owner goes on if it has something to do",
    "line-pair": "as pair, without a call between: an owner does at most five operations while a request crosses",
    "line-add": "one operation a visit, half a move each; crossings are filled with the owner's own operations",
    "cas-ref": "any waiter may be next, so a success takes visits in proportion to the root of the threads; on two sockets after a "
               "think 1.3 to 1.9 times too high on what was learned from",
    "rw-read": "as cas-ref, with an addition for every second step",
    "line-load-cas": "as cas-ref; beyond the CPUs nothing changes, since no thread holds anything while it is off its CPU",
    "swap-tas": "the holder's release waits for as many visits as there are threads",
    "ticket": "each waiter reads the line once more: 5 ns each; 1.4 to 1.7 times too high on two sockets without work on what was "
              "learned from",
    "qspinlock": "four or five moves a hand-over, however many wait; a second socket makes about half of them cross",
    "osq": "as qspinlock, and all waiters poll a line that is written twice (a guess): 10 ns a waiter",
}


def explained(rows):
    """The rows with direction and reason."""
    at = {(row[0], row[1], row[2]): row for row in rows}
    for row in rows:
        operation, load = row[2].split(", ", 1)
        other = at.get((row[0], row[1], f"{BESIDE.get(operation)}, {load}"))
        if other:
            longer = operation if float(row[4]) > float(other[6]) else BESIDE[operation] if float(row[6]) < float(other[4]) else None
            shorter = BESIDE[operation] if longer == operation else operation
            row[7] = f"{longer} takes longer than {shorter}" if longer else f"undetermined: {operation} or {BESIDE[operation]}"
        row[9] = REASONS[operation]
    return rows


def write_machine(name, directory):
    preset, changes, _ = MACHINES[name]
    text = (PRESETS / f"{preset}.toml").read_text()
    for key, value in changes.items():
        number = f"[{{ value = {value[0]}, source = \"E\" }}]" if isinstance(value, list) else \
            f"{{ value = {value}, source = \"E\" }}" if key.endswith("-ns") else value
        text = re.sub(rf"(?m)^{key} = .*\n", "" if value is None else f"{key} = {number}\n", text)
    Path(directory, f"{name}.toml").write_text(text)


def topology(directory, name):
    text = Path(directory, f"{name}.toml").read_text()
    return [int(re.search(rf"(?m)^{key} = (\d+)", text)[1]) for key in ("sockets", "cores-per-socket", "threads-per-core")]


def cpus(order, shape, threads):
    sockets, cores_each, per_core = shape
    cores = sockets * cores_each
    if order == "siblings":
        all_cpus = [core + thread * cores for core in range(cores) for thread in range(per_core)]
    elif order == "spread":
        all_cpus = [socket * cores_each + core + thread * cores
                    for thread in range(per_core) for core in range(cores_each) for socket in range(sockets)]
    else:
        all_cpus = list(range(cores * per_core))
    return all_cpus[:threads]


def points():
    for name in "ab":
        most = 48 if name == "a" else 40
        for hold, think, longer in LOADS:
            for operation in SEVEN:
                for threads in (2, 4, 8, 12, 16, 20, 24, 32, 40, 48):
                    if threads <= most:
                        yield name, operation, hold, round(think * longer), threads, "siblings", f"hold {hold} think {think}"
    for threads in (2, 4, 8, 16):
        yield "c", "line-add", 0, 0, threads, "spread", "hold 0 think 0"
    for threads in (2, 8, 16, 32, 64):
        yield "d", "rw-read", 0, 0, threads, "order", "hold 0 think 0"
    for name, think, counts in (("e", 600, (56, 64, 128)), ("f", 1200, (36, 64, 128))):
        for threads in counts:
            yield name, "line-load-cas", 0, think, threads, "order", f"think {think}"
    for threads in (48, 96, 192):
        yield "g", "qspinlock", 0, 0, threads, "order", "a short section"
    for threads in (28, 56, 112, 192):
        yield "h", "line-pair", 0, 0, threads, "order", "hold 0 think 0"


def simulate(haltkick, directory, point, block, blocks):
    name, operation, hold, think, threads, order, _ = point
    places = cpus(order, topology(directory, name), threads)
    machine = f"{directory}/{name}.toml" + (f"~{block}/{blocks - 1}" if block else "")
    each = 5000 if threads <= 8 else 1500 if threads <= 64 else 300
    record = run(haltkick, machine, ",".join(map(str, places)), operation, hold, think if operation.startswith("line-") else think or 3,
                 "--vcpus", threads, "--seed", block + 1, "--window", "4s", "--slice", "3ms", "--each", each)
    return record and wall_ns(record)


def arguments(doc, setups=None):
    parser = argparse.ArgumentParser(description=doc)
    if setups:
        parser.add_argument("setup", choices=setups)
    parser.add_argument("haltkick")
    parser.add_argument("out")
    parser.add_argument("-j", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--only", default="")
    return parser.parse_args()


def main():
    asked = arguments(__doc__)
    directory = tempfile.mkdtemp()
    for name in MACHINES:
        write_machine(name, directory)
    wanted = [point for point in points() if re.search(asked.only, "/".join(map(str, point)))]
    jobs = [(point, block) for point in wanted for block in range(asked.blocks)]
    with ThreadPoolExecutor(asked.j) as pool:
        found = list(pool.map(lambda job: simulate(asked.haltkick, directory, *job, asked.blocks), jobs))
    rows = []
    with open(asked.out, "w") as out:
        out.write(COLUMNS)
        for index, point in enumerate(wanted):
            name, operation, _, _, threads, _, load = point
            all_ns = [ns for ns in found[index * asked.blocks:(index + 1) * asked.blocks] if ns]
            if not all_ns:
                continue
            rows.append([f"P0{name}: {MACHINES[name][2]}", str(threads), f"{operation}, {load}", "wall ns an operation",
                                 f"{min(all_ns):.1f}", f"{statistics.median(all_ns):.1f}", f"{max(all_ns):.1f}", "", "blind", ""])
        out.writelines("\t".join(row) + "\n" for row in explained(rows))


if __name__ == "__main__":
    main()
