#!/usr/bin/env python3
"""Lets each kind of system call of the command fail, as it may fail on a host that is out of something: faults.py HALTKICK [first|all]

The command ends by itself with a documented exit code and one line that says what failed, or does without what it did not get; no file
is half written. `first`: each kind fails at its first and at its last time, with the first of its errors; `all`: with all of them, and
at times between. strace counts the calls of each thread by itself: a fault may strike several threads, and strikes none at fewer calls of
a kind than the loader makes.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# The errors that a host may answer with, the likeliest first. Not here are futex, whose wake-ups are never interrupted, and prlimit64,
# by which a process may always ask for its own limits.
ERRORS = {
    "openat": "EMFILE ENOMEM EINTR", "read": "EIO EINTR", "pread64": "EIO EINTR", "write": "ENOSPC EINTR EIO",
    "ioctl": "ENOMEM EINTR EMFILE EIO", "mmap": "ENOMEM", "mprotect": "ENOMEM", "madvise": "ENOMEM", "clone3": "EAGAIN",
    "eventfd2": "EMFILE", "memfd_create": "EMFILE", "pipe2": "EMFILE", "fcntl": "EMFILE", "timer_create": "EAGAIN",
    "sched_setaffinity": "EINVAL", "sched_getaffinity": "EINVAL", "prctl": "EINVAL", "seccomp": "ENOMEM", "bpf": "ENOMEM",
    "perf_event_open": "EMFILE", "getrandom": "EINTR", "poll": "ENOMEM EINTR", "ppoll": "ENOMEM EINTR", "clock_nanosleep": "EINTR",
    "statx": "ENOMEM", "getdents64": "EIO", "lseek": "EIO", "ftruncate": "EIO", "flock": "ENOLCK", "fsync": "EIO",
    "rename": "ENOSPC", "renameat": "ENOSPC", "mkdir": "ENOSPC", "unlink": "EIO", "readlink": "ENOMEM",
}  # fmt: skip

RUN = ["run", "--no-ideal", "--vcpus", "3", "--duration", "20ms", "--format", "json", "--sched"]
COMMANDS = {
    "a run under sched vmm": [*RUN, "vmm"],
    "a run under sched host": [*RUN, "host"],
    "an experiment": ["bench", "tiny.toml", "--output", "results"],
}
TINY = """format = 1
name = "tiny"
title = "A tiny experiment"
blocks = 1
[settings]
vcpus = 3
window = "5ms"
warmup = "1ms"
watchdog = "10s"
[[arm]]
name = "tas"
lock = "tas"
[control]
arm = "tas"
"""

# Done; a fault of the system below; an output that cannot be written; the host lacks something; figures not valid.
DOCUMENTED = {0, 1, 2, 4, 7}
FINISHED = {0, 7}
# A command that has not ended by then hangs: it takes a second, and a busy host makes it take many.
PATIENCE = 180


class Launched:
    """A command that has ended, with the calls that it made."""

    def __init__(self, arguments, folder, trace, fault=None):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "tiny.toml").write_text(TINY)
        # The walls look at the call that a failed one is replaced by, and they let gettid through.
        inject = ["-e", f"inject={fault}:syscall=gettid"] if fault else []
        words = ["strace", "-f", "-qq", "-o", folder / "calls", "-e", f"trace={trace},sigaltstack", *inject, *arguments]
        with open(folder / "stdout", "w") as stdout, open(folder / "stderr", "w") as stderr:
            environment = {**os.environ, "RUST_BACKTRACE": "0"}
            strace = subprocess.Popen(
                words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
            )
            try:
                self.code = strace.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.code = None
                os.killpg(strace.pid, signal.SIGKILL)
                strace.wait()
        texts = ((folder / name).read_text(errors="replace") for name in ("stdout", "stderr", "calls"))
        self.stdout, self.stderr, self.calls = texts
        self.struck = self.calls.count("(INJECTED)")
        self.folder = folder


def faults_of(calls, every):
    """The faults to try of a command that has made these calls: when they strike, and whether they keep it from talking."""
    counts, kinds, before, begun = defaultdict(int), defaultdict(list), {}, False
    for line in calls.splitlines():
        found = re.match(r"(\d+) +(\w+)\(([^,)]*)(?:, ([A-Z_0-9x]+))?", line)
        if not found:
            continue
        thread, name, first, second = found.groups()
        # The runtime's last preparation before `main`.
        if name == "sigaltstack" and not begun:
            begun, before = True, {name: count for (_, name), count in counts.items()}
        counts[thread, name] += 1
        if begun and name in ERRORS:
            detail = second if name == "ioctl" else min(int(first), 3) if name == "write" else ""
            # Not one of the loader's calls, which the first thread makes before.
            kinds[name, detail].append(max(counts[thread, name], before.get(name, 0) + 1))
    for (name, detail), times in sorted(kinds.items(), key=str):
        last = len(times) - 1
        chosen = {0, last} | ({1, 2, last // 4, last // 2, last - 1} if every else set())
        for error in ERRORS[name].split()[: None if every else 1]:
            for when in sorted({times[i] for i in chosen if 0 <= i <= last}):
                yield f"{name}:error={error}:when={when}", f"{name} {detail}", (name, detail) == ("write", 2)
    # A storm: every other call, over and over.
    for name in sorted({name for name, _ in kinds if "EINTR" in ERRORS[name]}):
        yield f"{name}:error=EINTR:when={before.get(name, 0) + 2}+2", f"{name}, every other", False


def is_whole(path):
    text = path.read_text(errors="replace")
    try:
        match path.suffix:
            case ".jsonl":
                return [json.loads(line) for line in text.splitlines()] == [] or text.endswith("\n")
            case ".json":
                return json.loads(text) is not None
            case ".svg" | ".html":
                return text.rstrip().endswith(f"</{path.suffix[1:]}>")
            case ".csv":
                return text.endswith("\n")
    except json.JSONDecodeError:
        pass
    return False


def complaint_of_files(launched, writes):
    if writes:
        halves = [path.name for path in launched.folder.glob("results/*") if not is_whole(path)]
        return f"half written: {halves}" if halves else None
    if launched.code in FINISHED:
        try:
            json.loads(launched.stdout)
        except json.JSONDecodeError:
            return f"no record: {launched.stdout!r}"
    return None


def complaint(launched, writes, is_talk):
    code, said = launched.code, launched.stderr
    if code is None:
        return f"hung; it said: {said}"
    if (launched.struck or not writes) and (wrong := complaint_of_files(launched, writes)):
        return wrong
    # A Rust program without memory ends so, also if there is none for the stack on which a thread would take a stack overflow.
    if code == -signal.SIGABRT and ("memory allocation of" in said or "alternative stack" in said):
        return None
    for words in ("panicked at", "Unknown error"):
        if words in said:
            return f"{words}: {said}"
    if code not in DOCUMENTED:
        return f"ended with {code}: {said}"
    lines = [line for line in said.splitlines() if line.startswith("haltkick: ")]
    # A failed write to standard error cannot be reported.
    if code in FINISHED or is_talk or len(lines) == 1:
        return None
    return f"exit code {code} with {len(lines)} lines of the command: {said!r}"


def main():
    haltkick, every = Path(sys.argv[1]).resolve(), sys.argv[2:] != ["first"]
    failed = False
    with tempfile.TemporaryDirectory(prefix="haltkick-faults-") as scratch:
        for name, arguments in COMMANDS.items():
            writes, ends, had_an_effect = arguments[0] == "bench", defaultdict(int), 0
            launch = lambda trace, fault=None: Launched([haltkick, *arguments], Path(scratch) / "at", trace, fault)
            whole = launch(",".join(ERRORS))
            if whole.code not in FINISHED or (wrong := complaint_of_files(whole, writes)):
                sys.exit(f"{name}: without a fault it ended with {whole.code}: {wrong or whole.stderr}")
            faults = list(faults_of(whole.calls, every))
            for number, (fault, kind, is_talk) in enumerate(faults):
                if number % 50 == 0:
                    print(f"{name}: {number} of {len(faults)} launches", file=sys.stderr)
                launched = launch(fault.split(":")[0], fault)
                had_an_effect += launched.code not in FINISHED
                ends[kind, fault.split(":")[1], launched.code] += 1
                if wrong := complaint(launched, writes, is_talk):
                    failed = True
                    print(f"WRONG {name}: {fault}: {wrong}")
            print(f"{name}: {len(faults)} launches, {had_an_effect} ended otherwise")
            for (kind, error, code), count in ends.items():
                print(f"| {kind} | {error} | {count} | {'hung' if code is None else code} |")
            failed |= had_an_effect == 0
    sys.exit(failed)


if __name__ == "__main__":
    main()
