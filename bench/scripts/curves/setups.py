#!/usr/bin/env python3
"""Predicts what others measured with more threads or vCPUs than CPUs (set-ups P1 and P3 to P7; predict.py has P0).

    setups.py [-j 2] [--blocks 3] SETUP HALTKICK OUT.tsv

Block 0 is the machine as its file says; each other one is a machine like it, with another seed. The interval is that of all blocks.
"""
import json
import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, NamedTuple

from curves import HERE
from predict import COLUMNS, PRESETS, arguments

ACCEPTANCE = HERE.parents[1] / "acceptance"


class Ask(NamedTuple):
    threads: int
    figure: str
    unit: str
    runs: list      # words of `haltkick run`, machine first
    value: Callable  # of the records of these runs, a list for each run: a guest each
    known: str
    reason: str


def guests_rate(records):
    return sum(record["figures"]["acquisitions_per_second"] for record in records)


def ratio(runs):
    above, below = (guests_rate(records) for records in runs)
    return above / below if below else None


def changed(preset, directory, name, changes):
    """A file like a built-in one, with other figures: its path."""
    text = preset.read_text()
    for key, value in changes.items():
        number = value if isinstance(value, str) else f'{{ value = {value}, source = "E" }}'
        text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {number}", text)
    path = Path(directory, f"{name}.toml")
    path.write_text(text)
    return str(path)


def threads_beyond_cpus(directory):
    """P1. A thread is a vCPU whose exits cost what a system call costs, and whose wake-ups what a futex's do. Hold and think give
    the six published figures of `mcs-tas` at 12 and 24 threads within 3 %."""
    machine = changed(PRESETS / "icelake-2s.toml", directory, "P1", {
        "cores-per-socket": "24", "threads-per-core": "1", "clock-ghz": 2.1, "core-ghz": 2.8, "exit-ns": 300, "timer-ns": 300,
        "kick-ns": 1000, "wake-ns": 1500, "switch-ns": 1500})
    loads = {"LRU cache behind one mutex": ["--hold", "718ns", "--think", "10500ns/exponential"],
             "hash store behind 16 slot locks": ["--locks", "16", "--zipf", "0.99", "--hold", "152ns", "--think", "30ns"],
             "second key-value store": ["--hold", "292ns", "--think", "4900ns/exponential"]}
    reasons = {
        "mcs": "a queue hands its lock to threads that have no CPU: from one thread more than CPUs on, each of these costs a slice",
        "mcs-tas": "whoever runs takes the lock past the queue; what costs is a holder without a CPU, and spinners that keep it away",
        "gcr-futex": "four are let in and the rest sleeps, so nobody keeps a holder from its CPU; each turn of the passive queue "
                     "costs a futex",
        "flexguard": "waiters sleep while the holder or the head has no CPU, and spin otherwise; ours decides for each lock"}
    for load, words in loads.items():
        for threads, window in ((48, "15ms"), (96, "45ms"), (192, "90ms")):
            for lock, reason in reasons.items():
                which = ["--lock-object", str(HERE / f"locks/{lock}.c")] if lock in ("mcs-tas", "gcr-futex") else ["--lock", lock]
                run = ["--machine", machine, "--cpus", "0-47", "--sched", "host", "--host", "linux-7.3", "--halt-poll", "0ns",
                       "--pause-exits", "off", "--oracle", "off", "--stamps", "plain", "--vcpus", threads, "--duration", window,
                       "--warmup", "5ms", *which, *words]
                yield Ask(threads, f"{load}, {lock}", "k/s", [run], lambda runs: guests_rate(runs[0]) / 1e3, "blind", reason)


def early_sleep(directory):
    """P3. Lock and load are short ones: one lock in sections of 2 us, not ebizzy."""
    of_sleeps = {
        "share of sleeps that are early": lambda events: events["pv_wait_early"] / max(1, events["pv_wait_node"] + events["pv_wait_head"]),
        "longest row of sleepers, one behind the other, at least": lambda events: max(
            [int(name.split("_")[1]) for name, count in events.items() if name.startswith("cascade_") and count], default=0)}
    for host, boosts in (("host-kick-none", "a host that does not boost kicked vCPUs"), ("host-kick-yields", "a host that does")):
        def run(how):
            return ["--machine", "skylake-2s", "--cpus", "0-79", "--sched", "host", "--host", str(ACCEPTANCE / f"{host}.toml"),
                    "--guests", 3, "--vcpus", 80, "--lock-object", str(HERE / "locks/pv-early.c"), "--lock-parameter", how,
                    "--spin-threshold", "linux", "--oracle", "off", "--hold", "2us", "--think", "100us", "--duration", "100ms"]
        yield Ask(240, f"without a look at the preempted flag over with it, on {boosts}", "ratio", [run(1), run(2)], ratio, "known",
                  "an early sleeper sends all behind it to sleep, and each of these costs a kick and a wake-up at its turn")
        for how, name in ((2, "with"), (1, "without")):
            for figure, of in of_sleeps.items():
                yield Ask(240, f"{figure}, {name} the flag, on {boosts}", "share" if "share" in figure else "vCPUs", [run(how)],
                          lambda runs, of=of: statistics.mean(of(record["lock_events"]) for record in runs[0]), "blind",
                          "nobody waits for the threshold: a vCPU behind a sleeper sleeps within 256 rounds, and so does the next")


def shootdown(directory):
    """P4. A think of 1.33 ms gives 46,800 calls a second with one guest."""
    machine = changed(PRESETS / "skylake-2s.toml", directory, "P4", {"cores-per-socket": "16"})
    hosts = [changed(ACCEPTANCE / "host-kick-none.toml", directory, how, {"invalidations": f'{{ value = "{how}", source = "E" }}'})
             for how in ("pv", "wait")]
    for guests in (1, 2, 3):
        runs = [["--machine", machine, "--cpus", "0-63", "--sched", "host", "--host", host, "--guests", guests, "--vcpus", 64,
                 "--workload", "call-all", "--lock", "none", "--think", "1330us", "--duration", "100ms"] for host in hosts]
        yield Ask(64 * guests, f"a flag over waiting for preempted vCPUs, {guests} guest{'s' * (guests > 1)}", "ratio", runs, ratio,
                  "known", "each call waits for the last vCPU without a CPU; here 64 calls wait side by side, and ebizzy's wait "
                  "behind one semaphore, so the published gain is larger")


def adaptive(directory):
    """P5. The load is that of bench/acceptance/kernel-build.toml, a guess."""
    for machine, cpus, name in (("westmere-ex-4s", 32, "Westmere"), ("haswell-2s", 40, "Haswell")):
        for vcpus in (cpus, cpus * 3 // 2):
            runs = [["--machine", machine, "--cpus", f"0-{cpus - 1}", "--sched", "host", "--host", "cfs-2015", "--vcpus", vcpus,
                     "--workload", "mixed", "--locks", 4, "--hold", "1us", "--long-hold", "10us/20", "--think", "100us",
                     "--oracle", "off", "--lock-object", str(HERE / "locks/pv-early.c"), "--lock-parameter", how,
                     "--spin-threshold", "linux", "--duration", "60ms"] for how in (1, 0)]
            yield Ask(vcpus, f"kernel build on {cpus} CPUs of {name}: waiters that look whether the one before sleeps, over others",
                      "ratio", runs, ratio, "known",
                      "with a CPU for each vCPU nobody sleeps; beyond, a waiter behind a sleeper leaves its CPU at once")


def stolen(directory):
    """P6, its first half: the second is arithmetic. Every CPU that is missing is time that the host steals: 8, 33 and 36 % here."""
    for cpus, percent in ((33, 9), (24, 33), (23, 37)):
        run = ["--machine", "icelake-2s", "--cpus", f"0-{cpus - 1}", "--slice", "3ms", "--vcpus", 36, "--workload", "mixed",
               "--lock", "qspinlock", "--pv", "on", "--spin-threshold", "linux", "--locks", 80, "--hold", "300ns", "--long-hold",
               "30us/2000", "--think", "3us", "--oracle", "off", "--duration", "60ms"]
        yield Ask(36, f"acquisitions that steal past a non-empty queue, PV on, {percent} % stolen", "share", [run],
                  lambda runs: runs[0][0]["lock_events"]["pv_lock_stealing"] / runs[0][0]["figures"]["acquisitions"], "blind",
                  "who finds the lock held tries once more before it queues, and takes it if the head does not spin: a part of the "
                  "contended ones, larger where heads are preempted; at most this, as steals from an empty queue count too")


POLLED = (0, 0.5, 1, 2, 4, 8, 16)


def idle_poll(directory):
    """P7. A round trip is an exit, a kick and a wake-up."""
    for factor in (5, 10, 20):
        machine = changed(PRESETS / "genoa-2s.toml", directory, f"P7-{factor}",
                          {"exit-ns": 600 * factor, "timer-ns": 1500 * factor, "kick-ns": 1200 * factor})
        trip_rounds = (1800 * factor + 4000) / 21
        for piece in ("20us", "100us"):
            def runs(guests):
                return [["--machine", machine, "--cpus", "0-32", "--sched", "host", "--host", "linux-6.12", "--vcpus", 33, "--guests",
                         guests, "--lock-object", str(HERE / "locks/pool.c"), "--lock-parameter", round(trips * trip_rounds),
                         "--workload", "critical-section", "--oracle", "off", "--stamps", "plain", "--hold", f"{piece}/20%",
                         "--think", "3ns", "--duration", f"{20 * guests ** 2}ms"] for trips in POLLED]

            def best(records):
                rates = [guests_rate(of_run) for of_run in records]
                return next(trips for trips, rate in zip(POLLED, rates) if rate >= 0.95 * max(rates))

            def cost(records):
                alone, shared = records[:len(POLLED)], records[len(POLLED):]
                return guests_rate(shared[POLLED.index(best(alone))]) / guests_rate(shared[0])

            what = f"exits {factor} times as dear, pieces of {piece}"
            yield Ask(33, f"{what}: shortest poll within 5 % of the best rate", "round trips", runs(1), best, "blind",
                      "a poll has to outlast the gap between two pieces, and that is the serial piece plus one kick for each sleeper")
            if factor == 10:
                yield Ask(66, f"{what}: two guests that poll as long over two that do not poll", "ratio", runs(1) + runs(2), cost,
                          "blind", "a vCPU that polls keeps the other guest's from the CPU; one that halts pays its exit")


SETUPS = {
    "P1": (threads_beyond_cpus, "48 cores of Ice Lake without SMT, threads under EEVDF"),
    "P3": (early_sleep, "3 guests of 80 vCPUs on 80 threads of Skylake"),
    "P4": (shootdown, "guests of 64 vCPUs on 64 threads of Skylake"),
    "P5": (adaptive, "guests on 32 Westmere and 40 Haswell threads"),
    "P6": (stolen, "PV queue spinlock, 36 vCPUs, the host steals 9, 33 and 37 %, bimodal holds"),
    "P7": (idle_poll, "a thread that hands work to 32 others, guests whose exits are dear"),
}


def simulate(haltkick, run, block, blocks):
    machine = run[1] + (f"~{block}/{blocks - 1}" if block else "")
    words = [haltkick, "run", "--engine", "sim", "--machine", machine, *run[2:], "--seed", block + 1, "--no-ideal", "--format", "json"]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode not in (0, 7):
        sys.stderr.write(f"{' '.join(map(str, words))}: {done.stderr[-300:]}\n")
        return None
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    asked = arguments(__doc__, SETUPS)
    of_setup, title = SETUPS[asked.setup]
    asks = [ask for ask in of_setup(tempfile.mkdtemp()) if re.search(asked.only, ask.figure)]
    jobs = list({(tuple(run), block): None for ask in asks for run in ask.runs for block in range(asked.blocks)})
    with ThreadPoolExecutor(asked.j) as pool:
        found = dict(zip(jobs, pool.map(lambda job: simulate(asked.haltkick, *job, asked.blocks), jobs)))
    rows = []
    for ask in asks:
        of_blocks = [[found[(tuple(run), block)] for run in ask.runs] for block in range(asked.blocks)]
        values = [ask.value(records) for records in of_blocks if all(records)]
        if values:
            rows.append((ask, min(values), statistics.median(values), max(values)))
    with open(asked.out, "w") as out:
        out.write(COLUMNS)
        for ask, low, middle, high in rows:
            direction = "" if ask.unit != "ratio" else "above 1" if low > 1 else "below 1" if high < 1 else "undetermined"
            if ask.unit == "k/s":
                same = [row[2] for row in rows if row[0].threads == ask.threads and row[0].figure.split(",")[0] == ask.figure.split(",")[0]]
                direction = f"{1 + sum(other > middle for other in same)} of {len(same)}"
                direction += ", nearly stops" if middle < 0.05 * max(same) else ""
            out.write("\t".join([f"{asked.setup}: {title}", str(ask.threads), ask.figure, ask.unit, f"{low:.4g}", f"{middle:.4g}",
                                 f"{high:.4g}", direction, ask.known, ask.reason]) + "\n")


if __name__ == "__main__":
    main()
