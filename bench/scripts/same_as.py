#!/usr/bin/env python3
"""Compares what this tree's haltkick prints and writes with what another commit's does: a refactoring changes nothing.

    same_as.py REV                     exit code 0: all the same; 1: what differs is printed; 2: it could not be compared
    same_as.py REV --own-images        each side runs its own guest image, not both that of REV
    same_as.py REV --only TEXT         only commands whose names contain TEXT (later ones may need earlier ones)
    same_as.py REV --pairs N           only how fast locks are on KVM: N pairs of runs in turn for each cell, 20 or more for 95 %;
                                       exit code 1: slower. Each side runs its own guest image

Both sides run the commands below on simulated machines, each in a directory of its own: target/same-as/runs. Exit codes, both
streams and every file are compared but for run ids, times of day, commits, and what a manifest tells about the host. JSON and CSV are
compared value by value under the names of version 2 of the formats, so that a commit which wrote version 1 can be compared, too.
"""

import argparse
import collections
import csv
import difflib
import hashlib
import io
import itertools
import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "target/same-as"

# A line for each command: its name, the exit code that it must have with REV (else the comparison would be of mere refusals), its
# arguments. Those before the commands stand for longer ones.
SHORT = {
    "RUN": "run --engine sim --machine nehalem-2s --cpus 0-3 --ratio 2 --duration 2ms --warmup 1ms --guest guest",
    "HANG": "run --engine sim --machine nehalem-2s --cpus 0-3 --ratio 2 --duration 100ms --warmup 1ms --watchdog 10ms --guest guest",
    "JSON": "--no-ideal --format json",
    "SWEEP": "sweep --engine sim --machine nehalem-2s --cpus 0-3 --slice 100us --window 1ms --warmup 1ms --guest guest",
    "BENCH": "bench --set engine=sim --set machine=nehalem-2s --cpus 0-3 --window 1ms --set warmup=1ms --guest guest",
}
COMMANDS = """
table                   0 RUN --lock qspinlock --pv on
native                  0 RUN JSON --lock ticket --slice 100us --think 100us
four-sockets            0 run --engine sim --machine ivybridge-ex-4s --cpus 0-31 --ratio 2 --duration 1ms --warmup 1ms --guest guest JSON --lock mcs
work-conserving         0 RUN JSON --lock qspinlock-wc --pv on --spin-threshold linux --seed 7
owner-yield             0 RUN JSON --lock owner-yield --slice 200us
mutex                   0 RUN JSON --lock mutex --layout split --preempted-hint off
rwsem                   0 RUN JSON --lock rwsem --workload copy-256 --locks 2
fixed-work              0 RUN JSON --lock unfair-ticket --workload mixed --work 200us --long-hold 5us/20 --locks 4 --nested-one-in 16
shapes                  0 RUN JSON --lock tas --locks 8 --zipf 0.9 --hold 1us/20% --think 2us/exponential --footprint 4/2
arrivals                0 RUN JSON --lock qspinlock --pv on --arrivals 20000
readers                 0 RUN JSON --workload rwlock-per-cpu-fair --min-sections 100
read-shares             0 RUN JSON --lock rwsem --read-share 90%/2us
hash-table              0 RUN JSON --workload hash-table --locks 16 --read-share 50%/500ns
call-all                0 RUN JSON --workload call-all
page-faults             0 RUN JSON --workload fault-many --lock per-vma --memory 16MiB
grant                   0 RUN JSON --workload grant-split --locks 4
overtaking              0 RUN JSON --workload overtaking --lock clh
switches-off            0 RUN JSON --oracle off --stamps plain --patch off --attribution off --live on
holders-off             0 RUN JSON --lock tas --slice 200us --deschedule holder,rate=5000,for=50us
random-off              0 RUN JSON --lock qspinlock --pv on --deschedule random,rate=500,for=1ms --kick-yield on
points-off              0 RUN JSON --lock qspinlock-points --pv on --deschedule waiter,prob=0.5,for=100us,at=halted-published
extended                0 RUN JSON --lock slice-tas --slice 200us --grace 50us --slice-margin 20us
ideal                   0 RUN --lock ticket --format json
profile                 0 RUN JSON --lock qspinlock --pv on --profile
profile-table           0 RUN --lock mcs --profile --folded folded.txt
trace                   0 RUN JSON --lock qspinlock --pv on --trace one.pftrace
pair                    0 RUN JSON --vm name=a,lock=tas --vm name=b,lock=qspinlock,pv=on,seed=9 --share guest --profile --trace pair.pftrace
pair-table              0 RUN --vm lock=ticket --vm lock=unfair-ticket,hold=2us
guest-set               0 RUN JSON --guest-set guests.toml
repeat                  0 RUN --lock ticket --repeat 3
repeat-json             0 RUN --lock ticket --repeat 2 --format json
selftest-panic          5 RUN JSON --workload selftest-panic
selftest-exception      5 RUN --workload selftest-exception
selftest-exclusion      5 RUN JSON --workload selftest-exclusion
selftest-stack          5 RUN --workload selftest-stack
selftest-hang           6 HANG --workload selftest-hang
selftest-hang-json      6 HANG JSON --workload selftest-hang --lock qspinlock --pv on
selftest-lost-kick      0 RUN JSON --workload selftest-lost-kick --lock ticket --pv on
selftest-nonsense       5 RUN JSON --workload selftest-nonsense
selftest-liar           0 RUN JSON --workload selftest-liar --grace 1ms
selftest-memory         0 RUN JSON --workload selftest-memory --lock mmap-sem
selftest-pair           5 RUN JSON --vm name=good,lock=tas --vm name=bad,workload=selftest-panic
sweep                   0 SWEEP --vary lock=tas,qspinlock,mcs --vary ratio=1,2 --compare --of throughput --of lock-cpu --blocks 8 --save sweep.toml --output sweep --export markdown
sweep-of-hold           0 SWEEP --lock ticket --vary hold=1us,2us --blocks 2 --output holds
sweep-dry               0 SWEEP --vary lock=tas,mcs --dry-run
bench                   0 bench sweep.toml --guest guest --blocks 8 --seed 2 --output again
sweep-precise           0 SWEEP --vary lock=ticket,mcs --compare --ratio 1 --blocks 6 --target-precision 1% --output precise
bench-overcommit        0 BENCH overcommit --quick --ratios 1,4 --blocks 1 --output overcommit
bench-osq               0 BENCH osq --quick --blocks 1 --dry-run
bench-walls             0 BENCH grant-options --blocks 1 --set locks=2 --set hold=500ns --output grants
report                  0 report sweep
report-json             0 report sweep --format json --strict
merge                   0 merge sweep again --output both
compare                 0 compare sweep again
compare-arms            8 compare sweep:tas sweep:mcs --format json
compare-json            0 compare sweep again --format json --threshold 1%
compare-others          2 compare sweep holds
list-locks              0 list locks --guest guest
list-workloads          0 list workloads --guest guest --format json
list-points             0 list points --guest guest
list-experiments        0 list experiments --format json
list-machines           0 list machines
no-such-lock            2 RUN --lock tikcet
no-such-workload        2 RUN --workload critical-selection
no-such-machine         2 run --engine sim --machine nehalem
no-such-cpu             2 run --engine sim --machine nehalem-2s --cpus 0-99
no-machine              2 run --engine sim
no-model                2 RUN --sched host
no-kvm-there            2 RUN --pv-backend kvm
no-pv-form              2 RUN --lock tas --pv on
bad-slice               2 RUN --slice 1us
bad-duration            2 RUN --hold 5
bad-grace               2 RUN --grace 2ms
bad-policy              2 RUN --deschedule holder,rate=5,prob=1
bad-pair                2 RUN --vm lock=tas --vm lcok=mcs
wrong-workload          2 RUN --work 1ms
no-kernel-there         2 RUN --kernel vmlinux
no-such-experiment      2 bench overcomit
bad-experiment          3 bench bad.toml
no-arms                 3 bench empty.toml
bad-set                 2 BENCH overcommit --set hold=oops
bad-sweep               2 SWEEP --vary lock=tas --lock tas
no-such-directory       2 report nowhere
help                    0 --help
version                 0 --version
man                     0 man --dir man
completions             0 completions bash
""" + "".join(
    f"help-{name} 0 {name} --help\n"
    for name in "run bench sweep check top compare report merge reproduce doctor list schema".split()
) + "".join(
    f"schema-{name} 0 schema {name}\n"
    for name in "experiment run failure manifest summary comparison reproduction top doctor list".split()
)
FILES = {
    "guests.toml": 'format = 1\n[[vm]]\nname = "left"\nlock = "mcs"\n[[vm]]\nname = "right"\nlock = "clh"\nthink = "5us"\n',
    "bad.toml": 'format = 1\nname = "bad"\ntitle = "Bad"\n[settings]\nlokc = "tas"\n[[arm]]\nname = "a"\n',
    "empty.toml": 'format = 1\nname = "empty"\ntitle = "Empty"\n',
}


# Lines that are printed of a file, at most.
MOST_LINES = 60


class Cannot(Exception):
    """What stands in the way of a comparison."""


def built(tree, target):
    """Builds haltkick of a tree; its path, and that of its guest image."""
    cargo = ["cargo", "build", "--release", "--package", "haltkick", "--all-features", "--message-format=json-render-diagnostics"]
    output = subprocess.run(cargo, cwd=tree, env={**os.environ, "CARGO_TARGET_DIR": str(target)}, stdout=subprocess.PIPE, check=False)
    if output.returncode:
        raise Cannot(f"{tree} does not build")
    messages = [json.loads(line) for line in output.stdout.splitlines()]
    images = [dict(message["env"]).get("HALTKICK_GUEST_IMAGE") for message in messages if message.get("env")]
    programs = [message["executable"] for message in messages if message.get("executable")]
    return Path(programs[-1]), Path(next(image for image in images if image))


def tree_of(revision):
    """A worktree of the revision. There is one for all revisions: cargo builds again only what differs."""
    tree = PLACE / "base"
    if tree.exists():
        git = ["git", "-C", tree, "checkout", "--quiet", "--detach", revision]
    else:
        git = ["git", "-C", ROOT, "worktree", "add", "--force", "--quiet", "--detach", tree, revision]
    if subprocess.run(git, check=False).returncode:
        raise Cannot(f"git has no revision '{revision}'")
    return tree


def commands(only):
    """The commands: name, exit code, arguments."""
    for line in COMMANDS.strip().splitlines():
        name, code, arguments = line.split(maxsplit=2)
        words = [word for part in arguments.split() for word in shlex.split(SHORT.get(part, part))]
        if only in name:
            yield name, int(code), words


# Flags of programs before ABI version 3 for what stands behind a slash now.
OLD_FLAGS = {
    "--hold": "--hold-jitter",
    "--think": "--think-distribution",
    "--long-hold": "--long-one-in",
    "--footprint": "--dirty",
    "--read-share": "--read-hold",
}


def in_old_words(arguments):
    """The arguments as programs before ABI version 3 take them."""
    words = []
    for flag, word in zip([None, *arguments], arguments, strict=False):
        value, slash, behind = word.partition("/") if flag in OLD_FLAGS else (word, "", "")
        words += [value, OLD_FLAGS[flag], behind] if slash else [word]
    return words


def run_all(program, image, place, only):
    """Runs all commands in a new directory. Each leaves its streams and its exit code there, beside the files that it writes."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copy(image, place / "guest")
    for name, text in FILES.items():
        (place / name).write_text(text)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HALTKICK", "COLUMNS"))}
    help_text = subprocess.run([program, "run", "--help"], env=clean, capture_output=True, text=True, check=True).stdout
    for name, _, arguments in commands(only):
        if "--long-one-in" in help_text:
            arguments = in_old_words(arguments)
        output = subprocess.run(
            ["haltkick", *arguments],
            executable=program,
            cwd=place,
            env=clean,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        for ending, content in [("stdout", output.stdout), ("stderr", output.stderr)]:
            (place / f"{name}.{ending}").write_bytes(content)
        (place / f"{name}.code").write_text(f"{output.returncode}\n")


class Reader:
    """Reads the files of one side, without what may differ. A run id becomes its number in the first file that has it."""

    def __init__(self, place):
        self.place = place
        self.ids = {}
        version = place / "version.stdout"
        commit = re.search(r"commit ([^;)]+)", version.read_text()) if version.exists() else None
        self.commit = commit and commit[1]
        paths = sorted(path.relative_to(place) for path in place.rglob("*") if path.is_file() and path.name != "guest")
        self.files = {re.sub("[0-9a-f]{16}", "ID", str(path)): path for path in paths}
        for name, path in self.files.items():
            ids = re.findall(rb'(?:"run_id": ?"|\brun )([0-9a-f]{16})\b', (place / path).read_bytes())
            for number, run_id in enumerate(dict.fromkeys(ids)):
                self.ids.setdefault(run_id.decode(), f"RUN {number} of {name}")

    def read(self, name):
        path = self.files[name]
        content = (self.place / path).read_bytes()
        if path.suffix == ".pftrace":
            return without_clocks(content)
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return content
        if path.name == "manifest.json":
            text = json.dumps(without_host(json.loads(text)), indent=2)
        if self.commit:
            # A manual page has a backslash before each hyphen.
            text = text.replace(self.commit, "COMMIT").replace(self.commit.replace("-", "\\-"), "COMMIT")
        text = re.sub(r"\b[0-9a-f]{16}\b", lambda word: self.ids.get(word[0], word[0]), text)
        text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ?", "TIME", text)
        text = re.sub(r"cells in .* left\n", "cells in SOME left\n", text)
        # Facts of the host in a report, which have names such as memory.available.
        return re.sub(r'(scope="row">\w+\.[\w.]+</th><td class="text">).*?</td>', r"\1FACT</td>", text, flags=re.DOTALL)


def without_host(manifest):
    """A manifest that tells which facts of the host are known, and not which they are."""
    for part in ["facts", "noise_after"]:
        manifest[part] = {key: sorted(fact) for key, fact in (manifest.get(part) or {}).items()}
    return manifest


def without_clocks(trace):
    """A trace without the packet in which the host's clocks stand beside each other: the second one."""
    packets, at = [], 0
    while at < len(trace):
        start, size, shift = at, 0, 0
        at += 1
        while True:
            byte, at = trace[at], at + 1
            size, shift = size | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        at += size
        packets.append(trace[start:at])
    return b"".join(packets[:1] + packets[2:])


# Version 1's name of a value in a record, and version 2's. Reasons are compared as a set: version 2 gives one for a whole family.
ACTIVITY = "(holder|head|waiter|halted|other)"
RECORD_NAMES = [
    (r"config\.(.*)", r"settings.\1"),
    (r"timing\.preempted_flag", r"settings.preempted_flag"),
    (r"timing\.work_speed\.(.*)", r"figures.work_\1"),
    (r"(?:totals|timing|fairness)\.(.*)", r"figures.\1"),
    (r"closed_by_heads\.free_ns\.(.*)", r"times_ns.closed_free.\1"),
    (r"(wait|hold|unlock)_ns\.(.*)", r"times_ns.\1.\2"),
    (r"times_ns\.(\w+)\.buckets\.(.*)", r"distributions.\1.\2"),
    (r"times_ns\.(\w+)\.(count|pending)", r"figures.\1_\2"),
    (r"times_ns\.(\w+)\.(\w+)", r"figures.\1_\2_ns"),
    (r"lock_cost\.instrument\.oracle(.*)", r"figures.oracle\1"),
    (r"lock_cost\.instrument\.(.*)", r"figures.instrument_\1"),
    (r"lock_cost\.(\w+_tsc_cycles)", r"figures.pair_\1"),
    (r"lock_cost\.(.*)", r"figures.\1"),
    (rf"(preemptions|injected)\.{ACTIVITY}", r"figures.\1_\2"),
    (rf"(preempted|lost)_ns\.{ACTIVITY}", r"figures.\1_\2_ns"),
    (r"closed_by_heads\.(.*)", r"figures.closed_\1"),
    (r"throttled\.total_ns", r"figures.throttled_ns"),
    (r"throttled\.periods", r"figures.throttled_of_periods"),
    (r"throttled\.throttled_periods", r"figures.throttled_periods"),
    (r"switches\.switched_(.*)", r"figures.switches_\1"),
    (r"per_node\.(\d+)\.(.*)", r"figures.node_\1_\2"),
    (r"memory\.node_bytes\.(\d+)", r"figures.memory_node_\1_bytes"),
    (r"(hint|grace|throttled|switches|memory|pmu)\.(.*)", r"figures.\1_\2"),
    (r"(handed_over|skipped_losses)", r"figures.\1"),
]
# The same of a row of a summary.
ROW = r"(rows|together|lock_costs)\.(\d+)\."
SUMMARY_NAMES = [
    (ROW + r"mean_per_second", r"\1.\2.figures.acquisitions_per_second.mean"),
    (ROW + r"starved_vcpus", r"\1.\2.figures.starved_vcpus.median"),
    (ROW + r"(wait_longest_ns|overtaken_most)", r"\1.\2.figures.\3.most"),
    (ROW + r"(lock|cpu)_bytes", r"\1.\2.figures.\3_bytes.median"),
    (r"together\.(\d+)\.per_second\.(.*)", r"together.\1.figures.all_guests_per_second.estimate.\2"),
    (r"together\.(\d+)\.wait_p99_ns\.(.*)", r"together.\1.figures.worst_guest_wait_p99_ns.estimate.\2"),
    (r"lock_costs\.(\d+)\.(\w+_tsc_cycles)\.(.*)", r"lock_costs.\1.figures.pair_\2.estimate.\3"),
    (ROW + r"(\w+)\.(n|median|hodges_lehmann|interval\..*)", r"\1.\2.figures.\3.estimate.\4"),
]
METRICS = {"waits_pending": "wait_pending"}


def flat(value, path=""):
    """Values of JSON by their paths."""
    if isinstance(value, (dict, list)) and value:
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, part in parts for key, leaf in flat(part, f"{path}{name}.").items()}
    return {path[:-1]: value}


def named(path, names):
    """A path under the names of version 2."""
    for pattern, name in names:
        if re.fullmatch(pattern, path):
            return named(re.sub(pattern, name, path), names)
    return path


def values(document):
    """Values of a document by path, under the names of version 2."""
    if not isinstance(document, dict):
        return flat(document)
    schema, version = document.get("schema"), document.pop("schema_version", None)
    names = RECORD_NAMES if schema == "haltkick.run" else SUMMARY_NAMES if schema == "haltkick.summary" else []
    if schema == "haltkick.run":
        document["why"] = {reason: True for reason in document.get("why", {}).values()}
        times = {part: value for part, value in document.items() if part.endswith("_ns") and isinstance(value, dict)}
        bounds = [f"{part[:-3]}_{name}_ns" for part, value in times.items() for name in value.pop("at_least", [])]
        document["at_least"] = {name: True for name in document.get("at_least", bounds)}
        document.pop("files", None)
    for part, text in [(part, document.get("config", {}).get(part)) for part in ("machine", "host")] if version == 1 else []:
        if text:
            document["config"][part] = re.search(r'^name = "(.*)"', text, re.MULTILINE)[1]
            document["config"][f"{part}_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return {named(path, names if version == 1 else []): leaf for path, leaf in flat(document).items()}


def of_csv(text):
    """Values of a table by all that stands before them in a line."""
    rows = list(csv.reader(io.StringIO(text)))
    if not rows or "metric" not in rows[0]:
        return None
    at = rows[0].index("metric")
    name = lambda metric: METRICS.get(metric, metric.removeprefix("figure:"))
    return {",".join([*row[:at], name(row[at])]): ",".join(row[at + 1 :]) for row in rows}


def taken_apart(name, text):
    """Values of a file by path: of JSON and CSV; none of other texts."""
    if name.endswith(".csv"):
        return of_csv(text)
    try:
        documents = [json.loads(text)]
    except ValueError:
        try:
            documents = [json.loads(line) for line in text.splitlines()]
        except ValueError:
            return None
    of_all = [values(document) for document in documents]
    return {(f"{number}: {path}" if len(of_all) > 1 else path): leaf for number, of_one in enumerate(of_all) for path, leaf in of_one.items()}


def of_values(base, candidate):
    """How the values of a file differ: names that one side alone has, once each, and values that are others."""
    found = []
    for side, here, there in [("base", base, candidate), ("candidate", candidate, base)]:
        # Of a line of a CSV file the metric alone.
        bare = lambda path: re.sub(r"^\d+: |\b\d+\b(?=\.)", "", path.rsplit(",", 1)[-1] if path.count(",") > 3 else path)
        alone = collections.Counter(bare(path) for path, value in here.items() if path not in there and value not in (None, "", [], {}))
        found += [f"only the {side} has {path} ({times})" for path, times in sorted(alone.items())]
    both = [path for path in base if path in candidate]
    found += [f"{path}: {base[path]} and {candidate[path]}" for path in both if is_other(base[path], candidate[path])]
    return [line[:160] for line in found]


def is_other(one, other):
    """Whether two values differ: 1 and 1.0 do not."""
    try:
        return one != other and float(one) != float(other)
    except (TypeError, ValueError):
        return one != other


def shown(name, base, candidate):
    """How two contents of a file differ, in a few lines."""
    if isinstance(base, bytes) or isinstance(candidate, bytes):
        first = next((i for i, (one, other) in enumerate(zip(base, candidate)) if one != other), min(len(base), len(candidate)))
        return [f"{len(base)} and {len(candidate)} bytes, which differ from byte {first} on"]
    parts = taken_apart(name, base), taken_apart(name, candidate)
    if None not in parts:
        return of_values(*parts)
    found = list(difflib.unified_diff(base.splitlines(), candidate.splitlines(), lineterm="", n=0))[2:]
    found = [line for line in found if not line.startswith("@@")]
    if len(found) == 2:
        # One line, which may be long: where it differs.
        first = max(0, sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(found[0][1:], found[1][1:]))) - 40)
        found = [line[0] + line[1 + first :] for line in found]
    return [line[:160] for line in found] or ["other spaces or ends of lines"]


def compared(places):
    """Prints what differs; the number of files that do."""
    base, candidate = (Reader(place) for place in places)
    differ = 0
    for name in sorted({*base.files, *candidate.files}):
        missing = [side for side, reader in [("base", base), ("candidate", candidate)] if name not in reader.files]
        if missing:
            found = [f"not written by the {missing[0]}"]
        else:
            contents = base.read(name), candidate.read(name)
            found = shown(name, *contents) if contents[0] != contents[1] else []
        if found:
            differ += 1
            rest = [f"... {len(found) - MOST_LINES} lines more"] if len(found) > MOST_LINES else []
            print(f"{name}:\n" + "\n".join(f"    {line}" for line in [*found[:MOST_LINES], *rest]))
    return differ, len(base.files)


def check_codes(place, arguments):
    """Whether REV does what the table above says: else it would be refusals that are compared."""
    found = [(name, code, int((place / f"{name}.code").read_text())) for name, code, _ in commands(arguments.only)]
    wrong = [f"{name} ends with {is_now}, not {code}" for name, code, is_now in found if is_now != code]
    if wrong:
        raise Cannot(f"with {arguments.revision} {'; '.join(wrong)}: correct these lines of COMMANDS, see {place}/*.stderr")


# Lock and ratio of each cell whose speed is compared.
CELLS = [("qspinlock", 1), ("qspinlock", 2), ("qspinlock", 8), ("qspinlock-wc", 2), ("qspinlock-wc", 8)]
# Exit code of a run that measured something else than it was to.
INVALID = 7


def sections_a_second(program, lock, ratio):
    """Sections a second of a valid run of the program. A busy host spoils some runs: five are made at most."""
    words = f"run --lock {lock} --pv on --ratio {ratio} --hold 1us --think 2us --duration 500ms --no-ideal --format json".split()
    for _ in range(5):
        run = subprocess.run([program, *words], capture_output=True, check=False, text=True)
        if run.returncode != INVALID:
            break
    if run.returncode:
        raise Cannot(f"{program} {' '.join(words)} ends with {run.returncode}: {run.stderr.strip()}")
    record = json.loads(run.stdout)
    return (record.get("figures") or record["totals"])["acquisitions_per_second"]


def interval(logarithms):
    """Ratio, and the ends of its interval: 95 % if there are 20 or more logarithms, by Student's t."""
    mean = statistics.mean(logarithms)
    error = 2.1 * statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    return [math.exp(value) for value in (mean, mean - error, mean + error)]


def paired(programs, pairs):
    """Prints sections a second of the second program over the first's, cell for cell; whether it is slower over all of them."""
    found = {cell: [] for cell in CELLS}
    for pair, cell in itertools.product(range(pairs), CELLS):
        # The first program goes first in every other pair.
        order = programs if pair % 2 == 0 else programs[::-1]
        took = {program: sections_a_second(program, *cell) for program in order}
        found[cell].append(math.log(took[programs[1]] / took[programs[0]]))
    rows = [(f"{lock}, ratio {ratio}", logarithms) for (lock, ratio), logarithms in found.items()]
    rows.append(("all", [value for logarithms in found.values() for value in logarithms]))
    for name, logarithms in rows:
        print("{:24} {:.4f} ({:.4f} to {:.4f})".format(name, *interval(logarithms)))
    return interval(rows[-1][1])[2] < 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", metavar="REV")
    parser.add_argument("--own-images", action="store_true")
    parser.add_argument("--only", metavar="TEXT", default="")
    parser.add_argument("--pairs", metavar="N", type=int)
    arguments = parser.parse_args()
    if arguments.pairs is not None and arguments.pairs < 2:
        parser.error("--pairs: an interval needs 2 pairs or more")
    base, base_image = built(tree_of(arguments.revision), PLACE / "target")
    candidate, own_image = built(ROOT, ROOT / "target")
    if arguments.pairs:
        return int(paired([base, candidate], arguments.pairs))
    places = PLACE / "runs/base", PLACE / "runs/candidate"
    images = base_image, own_image if arguments.own_images else base_image
    sides = [
        threading.Thread(target=run_all, args=(program, image, place, arguments.only))
        for program, image, place in zip((base, candidate), images, places)
    ]
    for side in sides:
        side.start()
    for side in sides:
        side.join()
    differ, files = compared(places)
    check_codes(places[0], arguments)
    count = sum(1 for _ in commands(arguments.only))
    print(f"{count} commands, {files} files: " + (f"{differ} differ (see {PLACE / 'runs'})" if differ else "all the same"))
    return 1 if differ else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Cannot as reason:
        print(f"same_as.py: {reason}", file=sys.stderr)
        sys.exit(2)
