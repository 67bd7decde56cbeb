#!/usr/bin/env python3
"""Whether a preemption breaks a built-in lock: `haltkick worst --find-bugs` for every lock in each of its forms.

    worst_bugs.py HALTKICK [--budget TIME] [--output DIR] [LOCK...]

One line for each form: silent, BROKEN, or why it was not searched. Exit code 0: silent everywhere; 1: some form broke, or a search failed.
Files that do a failure again are in DIR.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("haltkick")
parser.add_argument("--budget", default="30s")
parser.add_argument("--output", type=Path, default=Path("target/worst-bugs"))
parser.add_argument("locks", nargs="*", metavar="LOCK")
args = parser.parse_intermixed_args()

listing = subprocess.run([args.haltkick, "list", "locks", "--format", "json"], check=True, capture_output=True, text=True)
entries = json.loads(listing.stdout)["entries"]
known = [entry["name"] for entry in entries]
if unknown := set(args.locks) - set(known):
    sys.exit(f"no lock {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
shutil.rmtree(args.output, ignore_errors=True)
args.output.mkdir(parents=True)
failed = searched = 0
for entry in entries:
    lock = entry["name"]
    if args.locks and lock not in args.locks:
        continue
    for pv in entry["pv"]:
        command = [args.haltkick, "worst", "--find-bugs", "--lock", lock, "--pv", pv, "--machine", "skylake-8s", "--cpus", "0-3",
                   "--budget", args.budget, "--output", args.output / f"{lock.replace('/', '-')}-pv-{pv}"]
        done = subprocess.run(command, capture_output=True, text=True)
        texts = (done.stdout + done.stderr).splitlines()
        if done.returncode == 0:
            verdict, why = "silent", ""
        elif done.returncode == 2:
            verdict, why = "not searched:", texts[-1]
        else:
            verdict, why = "BROKEN", next((line for line in texts if "BROKEN" in line or "without a preemption" in line), texts[-1:])
        searched += done.returncode != 2
        failed += done.returncode not in (0, 2)
        print(f"{lock:24} pv {pv:4} {verdict} {why}", flush=True)
print(f"{searched} forms searched, {failed} broken")
sys.exit(1 if failed or not searched else 0)
