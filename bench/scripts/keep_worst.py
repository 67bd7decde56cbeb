#!/usr/bin/env python3
"""Keeps the tables of `just worst` in docs/results/worst: keep_worst.py DIR COMMIT. `just docs` reads figures.tsv."""

import json
import sys
from pathlib import Path

directory, commit = Path(sys.argv[1]), sys.argv[2]
kept = Path("docs/results/worst")
kept.mkdir(parents=True, exist_ok=True)
figures, runs = [], []
for path in sorted(directory.glob("*/worst.json")):
    worst = json.loads(path.read_text(encoding="utf-8"))
    lock, noise = worst["lock"].split("/")[0], worst["placebo"]
    names = ("lock", "pv", "machine", "pcpus", "vcpus", "for_us", "seeds", "seeds_asked", "attempts", "is_complete", "expected")
    runs.append({name: worst[name] for name in names} | {"noise": noise and noise["band"], "broken": len(worst["broken"])})
    for row in worst["rows"]:
        lines = [row["line"] or hex(row["address"])] + row["inlined_into"]
        at = " < ".join(line.rsplit("/", 1)[-1] for line in lines)
        interval = row["lost"]["interval"]
        ends = [f"{interval[end]:.4g}" for end in ("low", "high")] if interval else []
        settings = f"rank={row['rank']} n={row['lost']['n']} noise={int(not row['beyond_noise'])}"
        figures.append("\t".join([f"loss at {at} of {lock}", settings, f"{row['lost']['hodges_lehmann']:.4g}", *ends]))
        if row["held_out"] is not None:
            figures.append("\t".join([f"held-out loss at {at} of {lock}", settings, f"{row['held_out']:.4g}"]))
(kept / "figures.tsv").write_text("\n".join(figures) + "\n", encoding="utf-8")
(kept / "record.json").write_text(json.dumps({"commit": commit, "runs": runs}, indent=2) + "\n", encoding="utf-8")
