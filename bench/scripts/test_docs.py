#!/usr/bin/env python3
"""Tests of docs.py: faults in a small copy of the repository, one page and one record, that it has to find or to correct."""

import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

# Git would see the folder of bytecode.
sys.dont_write_bytecode = True
import docs

FILES = {
    "README.md": "",
    "bench/experiments/s.toml": '[[published]]\nname = "of 1.25"\nvalue = [7.34, 8]\n',
    "docs/results/r/record.json": """{"started": "2026-11-24T08", "commit": "581e7ae0", "machine": ["m"], "sched": ["host"],
        "slice_ns": [], "runs": 4, "invalid": 1}""",
    "docs/results/r/figures.tsv": """gain	ratio=2	1.529	1.411	1.668
gain	ratio=8	4.663	3.714	5.876
even	ratio=2	1.001	0.98	1.02
share of tas		0.8637	0.852	0.871
share of PV		0.5
""",
    "docs/results/r/table.txt": """Title

ratio  lock      throughput  fairness     gain
    2  tas   583 k/s +- 3 %      1.00        -
       PV    891 k/s +- 2 %     0.980  1.53x +

A/A pair: 1.01x
""",
}
BOX = (
    "> **Measured:** simulated machines (m), the host's scheduler, 24 November 2026, commit 581e7ae. "
    "Invalid runs: 1 of 4 (25 %). <!-- box of r -->"
)
PAGE = f"""# Page

{BOX}

It is 4.66 times (3.71
to 5.88) as fast <!-- r: gain @ ratio=8 -->. The shares are 86 % and 50 % <!-- r: share of tas; share of PV -->. It was 7.34 times as
fast <!-- published -->. Both are 1.53 to 4.66 times as fast <!-- r: gain -->.
No difference is shown, 1.001 times (0.98 to 1.02) <!-- r: even -->. See [above](page.md#page).

## Tables

| lock | 2 | 8 |
|---|---|---|
| tas | **1.53** (1.41 to 1.67) | **4.66** (3.71 to 5.88) |
| fair | 1.00 (0.98 to 1.02), no difference shown | |

<!-- table r: gain; even | @ ratio=2; @ ratio=8 | bold excludes 1 -->

```text
ratio  lock      throughput     gain
    2  tas   583 k/s +- 3 %        -
       PV    891 k/s +- 2 %  1.53x +
A/A pair: 1.01x
```
<!-- lines of r -->
"""


class Docs(unittest.TestCase):
    def examined(self, page):
        """The page as it would be written, and its faults."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**FILES, "docs/page.md": page}.items():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).write_text(text, encoding="utf-8")
            changes, faults = docs.examine(Path(folder))
            with mock.patch("sys.argv", ["docs.py", "--check"]), mock.patch("sys.stdout"), mock.patch("sys.stderr"):
                self.assertEqual(docs.main(Path(folder)), int(bool(changes or faults)))
            self.assertEqual((Path(folder) / "docs/page.md").read_text(encoding="utf-8"), page, "a check wrote")
            with mock.patch("sys.argv", ["docs.py"]), mock.patch("sys.stdout"), mock.patch("sys.stderr"):
                self.assertEqual(docs.main(Path(folder)), int(bool(faults)))
            return (Path(folder) / "docs/page.md").read_text(encoding="utf-8"), faults

    def assert_rewritten(self, *replacements):
        for right, wrong in replacements:
            self.assertIn(right, PAGE)
            self.assertEqual(self.examined(PAGE.replace(right, wrong, 1)), (PAGE, []), wrong)

    def assert_fault(self, words, *replacements):
        for old, new in replacements:
            self.assertIn(old, PAGE)
            faults = self.examined(PAGE.replace(old, new, 1))[1]
            self.assertEqual(len(faults), 1, f"{new}: {faults}")
            self.assertRegex(faults[0], rf"^docs/page.md:\d+: .*{words}.*: ")

    def test_a_page_that_agrees_with_its_records_stays(self):
        self.assertEqual(self.examined(PAGE), (PAGE, []))

    def test_a_wrong_figure_in_a_sentence_is_rewritten(self):
        self.assert_rewritten(("4.66 times", "4.67 times"), ("to 5.88) as", "to 5.89) as"), ("1.53 to 4.66", "1.54 to 4.67"))
        self.assertIn("are 86.4 % and", self.examined(PAGE.replace("86 %", "87 %"))[0])

    def test_a_comment_without_its_figure_or_record_is_a_fault(self):
        self.assert_fault("no record 's'", ("<!-- r: gain @", "<!-- s: gain @"))
        self.assert_fault("record has [02] of", ("<!-- r: even", "<!-- r: evne"), ("<!-- r: gain @ ratio=8", "<!-- r: gain"))
        self.assert_fault("references", ("4.66 times (3.71\nto 5.88)", "More"), ("86 % and", "Now"))
        self.assert_fault("no interval", ("50 %", "50 % (40 to 60)"))
        self.assert_fault("begins a line", ("fast <!-- published", "fast\n<!-- published"))
        self.assert_fault("no published figure", ("7.34", "7.35"), ("7.34", "1.25"))

    def test_words_against_all_intervals_of_a_sentence_are_a_fault(self):
        self.assert_fault("'no difference'", ("as fast <!-- r: gain @", "as fast; no difference is shown <!-- r: gain @"))
        self.assert_fault("'slower'", ("It is 4.66", "PV is slower, 4.66"), ("No difference is shown", "PV is slower"))
        self.assert_fault("'1.00 .*, difference'", ("no difference shown |", "difference |"))
        for words in ("But for one setting, no difference is shown:", "No difference is shown, not even in 86 % <!-- r: share of tas -->,"):
            self.assertEqual(self.examined(PAGE.replace("It is", words))[1], [])

    def test_a_wrong_cell_or_its_bold_marks_are_rewritten(self):
        self.assert_rewritten(("1.67)", "1.68)"), ("**1.53**", "1.53"), ("**4.66**", "4.76"), ("| 1.00 (", "| **1.00** ("))

    def test_a_missing_row_or_cell_of_a_table_is_a_fault(self):
        self.assert_fault("too few columns", ("| tas | **1.53**", "| **1.53**"))
        self.assert_fault("2 rows in the comment for a table of 1", ("| fair | 1.00 (0.98 to 1.02), no difference shown | |\n", ""))

    def test_a_quoted_row_is_rewritten_and_another_line_a_fault(self):
        self.assert_rewritten(("583 k/s", "584 k/s"), ("2 %  1.53x +", "2 %  1.54x +"))
        self.assert_fault("table.txt", ("A/A pair: 1.01x", "A/A pair: 1.02x"), ("       PV  ", "       mcs "))

    def test_a_wrong_box_is_rewritten_and_a_missing_one_a_fault(self):
        self.assert_rewritten(("24 November", "23 November"), ("(25 %)", "(2 %)"))
        self.assert_fault("no box below the title", (BOX, "Here."))

    def test_a_box_of_several_records_names_their_host_once(self):
        facts = json.loads(FILES["docs/results/r/record.json"]) | {"experiment": "s"}
        self.assertEqual(
            docs.conditions([facts, facts, facts | {"sched": ["vmm"], "slice_ns": [1e6]}]),
            "Simulated machines, the host's scheduler: `s` (m, 24 November 2026, commit 581e7ae, 1 of 4 runs invalid), "
            "`s` (m, 24 November 2026, commit 581e7ae, 1 of 4 runs invalid). The same, the VMM's scheduler with slices of 1 ms: "
            "`s` (m, 24 November 2026, commit 581e7ae, 1 of 4 runs invalid).",
        )

    def test_a_figure_that_names_no_record_is_a_fault(self):
        self.assert_fault(r"'2.5 times \(2 to 3' names no record", ("See [", "Now 2.5 times (2 to 3). See ["))
        self.assertEqual(self.examined(PAGE.replace("See [", "With 95 % intervals, `3 times`. See ["))[1], [])
        with mock.patch.object(docs, "UNRECORDED", [("page.md", "3", "the goal")]):
            self.assert_fault("'3' is no longer there", ("See", "See"))

    def test_a_link_to_no_file_or_heading_is_a_fault(self):
        self.assert_fault("leads to no", ("page.md#page", "gone.md"), ("page.md#page", "page.md#gone"), ("page.md#page", "#gone"))

    def test_values_round_to_printed_or_three_significant_digits(self):
        for value, digits, rounds in [(4.6649, "4.66", True), (4.6651, "4.66", False), (3652, "3650", True), (12, "10", False)]:
            self.assertEqual(docs.rounds_to(value, digits), rounds, digits)
        page = docs.Page(docs.Known({}, []), "1.00")
        page.write_number(docs.Number(0, "1.00"), 1.002, is_end=True)
        self.assertEqual(page.written(), "1.002")
        self.assertEqual([docs.significant(value) for value in (1.0449, 31.68, 3652, 0.0447)], ["1.045", "31.7", "3650", "0.0447"])


if __name__ == "__main__":
    unittest.main()
