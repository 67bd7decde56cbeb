#!/usr/bin/env python3
"""How good `haltkick check` is: deletes one instruction after the other from lock objects, and has `check` judge each mutant.

    mutants_objects.py --binary HALTKICK [--time 60s] [--cpu N] [--every K] [-j N] [--resume] [OBJECT...]

An object is part of a name that --list prints, such as `ticket` or `words.c:READERS`; --function chooses functions in the same way. With
--cpu N the deletion strikes vCPU N alone. A mutant is killed by what `check` itself says: exit code 5 or 6, or 2 (refused, counted
apart). Those that a reader calls the same program are in mutants_objects.same, beside this file, and are not judged, unless --same-too.
Exits 1 if a mutant survived that is not listed there, or if a listed one was killed; survivors are printed as lines for that list.
"""

import argparse
import hashlib
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLANTED = ROOT / "bench/tests/command/planted"
LIST = Path(__file__).with_suffix(".same")
GCC = ["gcc", "-O2", "-ffreestanding", "-mgeneral-regs-only", "-mno-red-zone", "-fno-pic", f"-I{ROOT / 'include'}"]
RUSTC = ["rustc", "--edition", "2024", "-O", "--target", "x86_64-unknown-none", "--crate-type", "staticlib", "-C", "panic=abort",
         "-C", "relocation-model=static", "-C", "debuginfo=line-tables-only", "--emit", "asm"]
ENDS = ["exclusion", "fault", "hang", "refused", "same", "survived", "error"]
KILLED = ENDS[:4]


def sources():
    """Name, file and define of each object: the examples, and those of the tests that have readers, sleepers or tokens."""
    found = [(path.name, path, None) for path in sorted((ROOT / "examples/locks").iterdir()) if path.suffix in (".c", ".S", ".rs")]
    found += [(path.name, path, None) for path in sorted(PLANTED.glob("*.c")) if path.name not in ("words.c", "queue.c")]
    return found + [(f"words.c:{define}", PLANTED / "words.c", define) for define in ("PENDING", "READERS", "FUTEX")]


def assembly(path, define):
    """The object as assembly text, with the lines of its source."""
    if path.suffix == ".rs":
        command = [*RUSTC, "-o", "-", str(path)]
    else:
        command = [*GCC, "-E" if path.suffix == ".S" else "-S", "-g1", *([f"-D{define}"] if define else []), str(path), "-o", "-"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Object:
    """The lines of an object, and its instructions: (line, function, text, ordinal among equal texts there, line of the source)."""

    def __init__(self, name, text):
        # Rust's names end with a hash of the compiler's.
        text = re.sub(r"17h[0-9a-f]{16}E\b", "", text)
        self.name, self.lines, self.instructions = name, text.splitlines(), []
        functions = set(re.findall(r"\.type\s+([\w.$]+),\s*@function", text))
        files = dict(re.findall(r'\.file\s+(\d+)\s.*?([^"/]+)"(?:\s+md5.*)?\s*$', text, re.MULTILINE))
        at, source, self.body = None, 0, {}
        for number, line in enumerate(self.lines):
            if marker := re.match(r'# (\d+) "[^"<]*\.S"', line):
                source = int(marker[1]) - 1
                continue
            source += name.endswith(".S")
            labels, rest = re.match(r"((?:\s*[\w.$]+:)*)\s*(.*?)\s*$", line).groups()
            for label in labels.replace(":", " ").split():
                # A label of other data ends a function; a local one stands in it.
                at = label if label in functions else at if label[0] in ".0123456789" else None
                if at:
                    self.body.setdefault(at, []).append(label)
            if loc := re.match(r"\.loc\s+(\d+)\s+(\d+)", rest):
                source = int(loc[2]) if name.startswith(files.get(loc[1], "?")) else source
            # An assembler of before 2023 cannot read what rustc writes here.
            if re.match(r"\.(loc|file)\s+\d", rest):
                self.lines[number] = ""
            if not at or not rest or rest[0] in ".#":
                continue
            instruction = " ".join(rest.split("#")[0].split())
            ordinal = 1 + sum(it[1:3] == (at, instruction) for it in self.instructions)
            self.instructions.append((number, at, instruction, ordinal, source))
            self.body[at].append(" " + instruction)
        reached, asked = set(), [it for it in functions if it.startswith("hk_")]
        while asked:
            reached.add(function := asked.pop())
            words = set(re.findall(r"[\w.$]+", " ".join(self.body.get(function, []))))
            asked += (words & functions) - reached
            # What is split off is reached by a label within.
            asked += [it for it in functions - reached if words & set(self.body.get(it, []))]
        self.instructions = [it for it in self.instructions if it[1] in reached]

    def hash(self, function):
        """Of the function's text, whatever its local labels are called."""
        body, names = " ".join(self.body[function]), {}
        used = set(re.findall(r"[\w.$]+", " ".join(it for it in self.body[function] if it[0] == " ")))
        local = r"\.?L[\w.$]+|\d+(?=[ ]|$)"
        body = " ".join(it for it in self.body[function] if it[0] == " " or it == function or it in used or it.isdigit())
        body = re.sub(local, lambda it: names.setdefault(it[0], f"L{len(names)}") if it[0].startswith((".L", "L")) else it[0], body)
        return hashlib.sha256(body.encode()).hexdigest()[:10]

    def without(self, instruction, cpu):
        """The text without the instruction: for all vCPUs, or for one. The test for that changes no flag and no register."""
        lines = list(self.lines)
        number, text = instruction[0], self.lines[instruction[0]]
        labels, rest = re.match(r"((?:\s*[\w.$]+:)*)\s*(.*)$", text).groups()
        skipping = [labels, "pushq %rcx", "movl %gs:hk_cpu_at, %ecx", f"leal -{cpu}(%rcx), %ecx", "jrcxz .Lmutant", "popq %rcx", rest,
                    "jmp .Lmutant_next", ".Lmutant: popq %rcx", ".Lmutant_next:"]
        lines[number] = labels if cpu is None else "\n".join(skipping)
        return "\n".join(lines) + "\n"


def judge(args, text, folder, name):
    """What `check` says of an assembly text: how it ended, exit code, seconds, and its words."""
    path = Path(folder) / re.sub(r"\W+", "-", name)
    path.with_suffix(".s").write_text(text)
    made = subprocess.run(["gcc", "-c", path.with_suffix(".s"), "-o", path.with_suffix(".o")], capture_output=True, text=True)
    if made.returncode:
        return {"end": "error", "code": None, "seconds": 0, "said": f"the assembler: {made.stderr.strip().splitlines()[-1]}"}
    begun = time.monotonic()
    command = [args.binary.resolve(), "check", path.with_suffix(".o"), "--time", args.time, *shlex.split(args.check_options)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    try:
        _, said = child.communicate(timeout=5 * seconds(args.time) + args.patience)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return {"end": "error", "code": None, "seconds": time.monotonic() - begun, "said": "check did not end"}
    finally:
        for suffix in (".s", ".o"):
            path.with_suffix(suffix).unlink(missing_ok=True)
    last = (said.strip().splitlines() or [""])[-1].replace(str(path.with_suffix(".o")), "it")
    excludes = re.search("mutual exclusion violated", last)
    ends = {0: "survived", 2: "refused", 5: "exclusion" if excludes else "fault", 6: "hang"}
    trial = re.search(r"^found with (.*?);", said, re.MULTILINE)
    return {"end": ends.get(child.returncode, "error"), "code": child.returncode, "seconds": round(time.monotonic() - begun, 2),
            "trial": trial and trial[1], "said": last}


def seconds(text):
    number, unit = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", text).groups()
    return float(number) * {"ms": 0.001, "s": 1, "m": 60}[unit]


def listed(path):
    """The list of same programs: (object, function, hash) to {(instruction, ordinal, form): reason}. A section may name several objects."""
    said, section = {}, {}
    for line in path.read_text().splitlines() if path.exists() else []:
        if head := re.fullmatch(r"\[(\S+) (\S+) (\S+)\]", line.strip()):
            section = {}
            said |= {(name, *head.groups()[1:]): section for name in head[1].split(",")}
        elif entry := re.fullmatch(r"(.+?) #(\d+|\*)( all| one)?: (.+)", line.strip()):
            section[entry[1], entry[2], (entry[3] or "").strip()] = entry[4]
        elif line.strip() and line[0] != "#":
            sys.exit(f"{path}: cannot read `{line}`")
    return said


def mutants(args):
    """Those that are asked for, as (object, instruction, key, reason why it is the same program or None)."""
    same, changed = listed(LIST), set()
    anywhere = same.pop(("*", "*", "*"), {})
    for name, path, define in sources():
        if args.objects and not any(part in name for part in args.objects):
            continue
        it = Object(name, assembly(path, define))
        for number, instruction in enumerate(it.instructions):
            _, function, text, ordinal, line = instruction
            is_struck = any(part in function for part in args.function) if args.function else True
            # hk_init runs on vCPU 0.
            if not is_struck or number % args.every or (args.cpu and function == "hk_init"):
                continue
            digest = it.hash(function)
            reasons = same.get((name, function, digest), {})
            if not reasons and any(key[:2] == (name, function) for key in same) and (name, function) not in changed:
                changed.add((name, function))
                print(f"{name} {function}: is not what a reader judged (now {digest}): read it again")
            form = "all" if args.cpu is None else "one"
            reason = reasons.get((text, str(ordinal), "")) or reasons.get((text, str(ordinal), form)) or anywhere.get((text, "*", ""))
            key = f"{name} {function} {digest} {text} #{ordinal}" + (f" cpu {args.cpu}" if args.cpu is not None else "")
            yield it, instruction, key, reason


def table(done):
    """Counts for each object and function, and the time to kill."""
    print(f"\n{'object and function':<34}{'mutants':>8}" + "".join(f"{end:>10}" for end in ENDS) + f"{'median s':>10}{'max s':>7}")
    groups = {}
    for (it, instruction, _, _), result in done:
        for group in ((it.name, instruction[1]), (it.name, ""), ("all", "")):
            groups.setdefault(group, []).append(result)
    for (name, function), results in sorted(groups.items(), key=lambda group: (group[0][0] == "all", group[0])):
        times = [result["seconds"] for result in results if result["end"] in KILLED]
        counts = "".join(f"{sum(result['end'] == end for result in results):>10}" for end in ENDS)
        took = f"{statistics.median(times):>10.1f}{max(times):>7.1f}" if times else ""
        print(f"{'  ' + function if function else name:<34.34}{len(results):>8}{counts}{took}")


def run(args):
    chosen = list(mutants(args))
    if args.list:
        print("\n".join(f"{key}{': the same, ' + reason if reason else ''}" for *_, key, reason in chosen))
        return 0
    if not args.binary.exists():
        sys.exit(f"{args.binary} is not there: `just build` makes it, and --binary names another")
    digest = hashlib.sha256(args.binary.read_bytes()).hexdigest()[:12]
    known = {}
    if args.resume and args.results.exists():
        for line in args.results.read_text().splitlines():
            old = json.loads(line)
            if old["binary"] == digest and (old["end"] in KILLED or old["time"] == args.time):
                known[old["key"]] = old
    args.results.parent.mkdir(parents=True, exist_ok=True)
    results, lock = args.results.open("a" if args.resume else "w"), threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        for it in {mutant[0].name: mutant[0] for mutant in chosen}.values():
            sound = judge(args, "\n".join(it.lines) + "\n", folder, it.name)
            if sound["code"] != 0:
                print(f"{it.name}: {sound['said'] or sound['code']}, without a mutation", file=sys.stderr)
                return 2

        def one(mutant):
            it, instruction, key, reason = mutant
            if reason and not args.same_too:
                return {"end": "same", "seconds": 0, "said": reason}
            if key in known:
                return known[key]
            result = judge(args, it.without(instruction, args.cpu), folder, key)
            if reason and result["end"] == "survived":
                result |= {"end": "same"}
            with lock:
                print(f"{result['end']:<10}{result['seconds']:>7.1f} s  {key}, line {instruction[4]}: {result['said'] or ''}", flush=True)
                if result["end"] != "error":
                    results.write(json.dumps({"key": key, "binary": digest, "time": args.time} | result) + "\n")
                    results.flush()
            return result

        with ThreadPoolExecutor(args.j) as pool:
            try:
                done = list(zip(chosen, pool.map(one, chosen)))
            except KeyboardInterrupt:
                # The commands that run have the signal, too.
                pool.shutdown(cancel_futures=True)
                raise
    table(done)
    bad = 0
    for ends, title in ((["survived"], "survived"), (["error"], "recipe errors"), (KILLED, "killed, although listed as the same program")):
        found = [(mutant, it) for mutant, it in done if it["end"] in ends and (mutant[3] or ends is not KILLED)]
        bad += len(found)
        if found:
            print(f"\n{title}:")
        for (it, (_, function, text, ordinal, line), _, _), result in found:
            print(f"[{it.name} {function} {it.hash(function)}] line {line}\n{text} #{ordinal}: {result['said'] if result['end'] != 'survived' else '?'}")
    return int(bad > 0)


def self_test(args):
    """Whether this program tells what it should of a lock and of commands that it knows."""
    text = (ROOT / "examples/locks/exchange.S").read_text().replace("    ret\n1:", "    nop\n    ret\n1:")
    it = Object("exchange.S", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
    by_text = {(function, text, ordinal): (number, function, text, ordinal, line) for number, function, text, ordinal, line in it.instructions}
    assert len(it.instructions) == 19, it.instructions
    other = Object("other.S", "\n".join(it.lines).replace("2b", "7b").replace("2:", "7:").replace("movb", "  movb "))
    assert it.hash("hk_unlock") == other.hash("hk_unlock") and it.hash("hk_lock") != it.hash("hk_unlock")
    expected = [(("hk_lock", "jne 1f", 1), None, ["exclusion"]), (("hk_lock", "xchgb %al, (%rdi)", 2), None, ["hang"]), (("hk_unlock", "movb $0, (%rdi)", 1), None, ["hang"]),
                (("hk_unlock", "movb $0, (%rdi)", 1), 2, ["hang"]), (("hk_unlock", "movb $0, (%rdi)", 1), 1000, ["survived"]),
                (("hk_lock", "nop", 1), None, ["survived"]), (("hk_lock", "popq %rdi", 1), None, ["fault", "hang", "refused"])]
    with tempfile.TemporaryDirectory() as folder:
        for key, cpu, ends in expected:
            result = judge(args, it.without(by_text[key], cpu), folder, "self-test")
            assert result["end"] in ends, f"{key}, cpu {cpu}: {result}"
        slow = Path(folder) / "slow"
        slow.write_text("#!/bin/sh\nexec sleep 100\n")
        slow.chmod(0o755)
        stuck = argparse.Namespace(binary=slow, time="10ms", patience=0.1, check_options="")
        assert judge(stuck, text, folder, "slow")["end"] == "error"
        path = Path(folder) / "list"
        path.write_text("[a.c f 12]\nmovl $1, %eax #2: a reason: long\nret #1 one: another\n")
        assert listed(path) == {("a.c", "f", "12"): {("movl $1, %eax", "2", ""): "a reason: long", ("ret", "1", "one"): "another"}}
    print("the recipe tells what it should")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objects", nargs="*", metavar="OBJECT")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/haltkick")
    parser.add_argument("--function", action="append", default=[])
    parser.add_argument("--time", default="60s", help="--time of check for each mutant")
    parser.add_argument("--cpu", type=int, help="strike this vCPU alone")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only each K-th instruction of an object: a quick look")
    parser.add_argument("-j", type=int, default=1, help="mutants at a time; more than one spoils the times")
    parser.add_argument("--patience", type=float, default=120, help="seconds, beyond five times --time, after which it is a recipe error")
    parser.add_argument("--check-options", default="", help="further options of check")
    parser.add_argument("--results", type=Path, default=ROOT / "target/mutants-objects/results.jsonl")
    parser.add_argument("--resume", action="store_true", help="what the results file has of this binary and --time is not judged again")
    parser.add_argument("--same-too", action="store_true", help="judge also what the list calls the same program")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_intermixed_args()
    return self_test(args) if args.self_test else run(args)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
