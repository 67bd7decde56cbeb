#!/usr/bin/env python3
"""Writes the figures of kept records, docs/results/NAME, into README.md and the pages of docs: `git diff` shows what changed.

    docs.py            write; a line FILE:LINE for each fault, which is what cannot be written, and exit code 1 if there is one
    docs.py --check    write nothing: print what would change, and end with 1 if something would or if there is a fault

A figure stays if the record's value rounds to the digits that the page prints. Otherwise it is written with three significant digits,
or three decimals next to 1. These comments tie figures to records:

    <!-- hostile: grace (tas) @ ratio=8; slice end @ ratio=8 -->
        The figures before it in this paragraph, list item or table row, in their order. `A to B times` is the smallest and the largest
        of all that the record has of the name and setting.
    <!-- published -->
        This figure is one that `haltkick reproduce` knows as published; may stand between others.
    <!-- table hostile: grace (tas); slice end | @ ratio=2; @ ratio=8 -->
        The table before it: what its rows are, then what its last columns are, a `*` standing for the other's name. `-` skips one;
        `a & b` are two figures of one cell. `bold excludes 1` or `bold above 2` behind another `|` says what is bold.
    <!-- lines of overcommit -->
        Each line of the block of text before it is one of the record's table, perhaps with columns left out.
    <!-- box of hostile -->
        The quoted lines before it are what the record says of the host and the runs.

Words are the author's. A sentence is a fault if it says "no difference is shown" and the intervals of all its figures exclude 1, or if
it says "is faster" or "is slower" and no interval lies on that side. A sentence with "Holm", "except" or "but for" is not judged, nor
is one with a figure that is no comparison. A figure without a record, a page of figures without a box and a broken link are faults.
"""

import argparse
import bisect
import difflib
import json
import re
import sys
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Pages whose links are checked, besides README and those of docs.
AT_THE_TOP = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
# Figures without a record where each figure needs one: page, figure, and why.
UNRECORDED = (
    ("measuring.md", "5.0", "bench aa, 22 November 2026"),
    ("osq.md", "15 to 23", "published, 1.150 to 1.227"),
    ("simulated-truth.md", "25", "the margin"),
    ("simulated-truth.md", "30", "the margin"),
    ("simulated-truth.md", "76.9", "bench predict, 26 November 2026"),
    ("simulated-truth.md", "80", "the goal"),
    ("simulated-truth.md", "80.6", "the same"),
    ("simulated-truth.md", "82.6", "docs/results/curves/points.tsv"),
    ("tutorial.md", "1.8 to 3.2", "the page's table"),
)
# Pages of figures of which no record is kept. Their box says so in the author's words.
WITHOUT_RECORD = "engines explain harm linux-guest lock-objects locks measuring simulated-truth tutorial".split()
MONTHS = "January February March April May June July August September October November December".split()

# A number as a page prints it, and what may stand around it in its word.
DIGITS, OPENING, CLOSING = r"\d+(?:\.\d+)?", r"[(*\[>]*", r"[*),.:;\]]*"
INTERVAL = rf"\({OPENING}(?P<low>{DIGITS}){CLOSING}\s+to\s+{OPENING}(?P<high>{DIGITS})(?=\S*\)){CLOSING}(?!\S)"
# `4.66 times (3.71 to 5.88)`, `1.19 (1.14 to 1.27)`, `8 times`, `86 %`, `1.07 to 1.56 times`, `0.89 to 0.99 of the ideal`; not
# `95 % intervals`, which is the level of all of them.
FIGURE = re.compile(
    rf"""(?<!\S){OPENING}(?!95\s+%\s+interval)(?P<first>{DIGITS})(?:
        (?:{CLOSING}|\**\s+(?:times|%)[*.,:;)]*)\s+{INTERVAL}
        | \**\s+(?:times|%)[*.,:;)]*(?!\S)
        | \**\s+to\s+{OPENING}(?P<last>{DIGITS})\**\s+(?:times|%|of)[*.,:;)]*(?!\S))""",
    re.VERBOSE,
)
# The figure that a part of a cell begins with, whatever its unit.
IN_CELL = re.compile(
    rf"\s*{OPENING}(?P<first>{DIGITS})(?:{CLOSING}\s+{INTERVAL}|(?P<rate>/s)?{CLOSING}(?!\S)(?:\s+(?P<unit>\S+))?)"
)
BEGINNING_IN_CELL = re.compile(r"[(/]")
UNITS = {"%": 0.01, "M/s": 1e6, "k/s": 1e3, "s": 1e9, "ms": 1e6, "us": 1e3}

# Comments, blocks of code and code in a line: no prose.
NO_PROSE = re.compile(r"<!--.*?(?:-->|\Z)|^```.*?(?:\n```|\Z)|`.*?(?:`|\Z)", re.DOTALL | re.MULTILINE)
BEGINNING_OF_BLOCK = re.compile(r"\n[^\S\n]*\n\s*|^\s*(?:[-*] |\||\d+\. )", re.MULTILINE)
# A sentence may also end with its list item, its paragraph or its cell of a table.
END_OF_SENTENCE = re.compile(r"[.!?][*)]*\s|\n\s*\n|\n\s*(?:[-*]|\d+\.) |\|")
NO_DIFFERENCE = re.compile(r"\bno\s+difference(?:\s+[^\s,;:]+){0,6}?\s+shown\b|\bshows?\s+no\s+difference\b", re.IGNORECASE)
SIDE = re.compile(r"\b(?:is|are|was|were)\s+(faster|slower)\b")
NOT_JUDGED = re.compile(r"\b(?:Holm|except|but\s+for)\b", re.IGNORECASE)
# The name of a column of a printed table.
COLUMN = re.compile(r"\S+(?: \S+)*")

# A number in a page.
Number = namedtuple("Number", "at digits")
# A figure in a page: a number, perhaps with an interval, or the smallest and the largest of several; and the size of its unit.
Figure = namedtuple("Figure", "first low high last unit")
# A figure of a record, in its base unit (ratio, per second, nanoseconds).
Kept = namedtuple("Kept", "name settings value interval")
Record = namedtuple("Record", "figures facts table")
# All records by name, and the published figures.
Known = namedtuple("Known", "records published")


def read_record(folder):
    def text(name):
        path = folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    figures = []
    for line in text("figures.tsv").splitlines():
        name, settings, value, *ends = line.split("\t")
        figures.append(Kept(name, set(settings.split()), float(value), tuple(map(float, ends))))
    return Record(figures, json.loads(text("record.json") or "{}"), text("table.txt"))


def read_published(root):
    """The published figures in the experiments' files: of rows and of their controls."""
    texts = [path.read_text(encoding="utf-8") for path in root.glob("bench/experiments/*.toml")]
    values = [value for text in texts for value in re.findall(r"\bvalue = (\[[^]]*\]|[\d.]+)", text)]
    return [float(number) for value in values for number in re.findall(r"[\d.]+", value)]


def found(record, reference):
    """All figures of the name whose settings contain those of the reference, NAME @ SETTINGS."""
    name, _, settings = reference.partition("@")
    return [kept for kept in record.figures if kept.name == name.strip() and kept.settings >= set(settings.split())]


def figure_of(match):
    """The figure that FIGURE or IN_CELL has found."""
    groups = match.groupdict()
    numbers = [groups.get(name) and Number(match.start(name), groups[name]) for name in ("first", "low", "high", "last")]
    unit = (groups["unit"] or "").strip("*,)") if "unit" in groups else "%" if "%" in match[0] else ""
    return Figure(*numbers, UNITS.get(unit, 1.0))


def end_of(figure):
    last = figure.last or figure.high or figure.first
    return last.at + len(last.digits)


def figures_of_cell(text, start, end):
    """The figures in the cell of a table: `50.4 ms (8.8 %)` has two, `1.26 (1.14 to 1.27)` one."""
    figures, at = [], start
    while at < end:
        match = IN_CELL.match(text, at, end)
        if match:
            figures.append(figure_of(match))
            at = end_of(figures[-1]) + 1
        following = BEGINNING_IN_CELL.search(text, at, end)
        at = following.end() if following else end
    if figures and text[start:end].rstrip().endswith("%"):
        # The unit behind `82 / 85 %` is that of both.
        figures = [figure._replace(unit=min(figure.unit, figures[-1].unit)) for figure in figures]
    return figures


def decimals(digits):
    return len(digits.partition(".")[2])


def rounds_to(value, digits):
    """Whether a value rounds to the digits that are printed. Zeros at the end of thousands count as rounding."""
    zeros = len(digits) - len(digits.rstrip("0"))
    last = 10.0 ** (zeros if digits.isdigit() and len(digits) >= 4 else -decimals(digits))
    return abs(value - float(digits)) <= last * 0.500_001


def significant(value):
    """Three significant digits; three decimals next to 1, where the third is what it is about."""
    if value == 0 or 0.9 <= value < 1.1:
        return f"{value:.3f}" if value else "0"
    rounded = f"{value:.2e}"
    return f"{float(rounded):.{max(0, 2 - int(rounded.partition('e')[2]))}f}"


def excludes_1(interval):
    return interval[0] > 1 or interval[1] < 1


def shown(interval):
    return f"an interval of {significant(interval[0])} to {significant(interval[1])} in the record"


def one_line(text):
    return " ".join(text.split())


class Page:
    """A page with the comments that tie its figures to records: what is to be written, and what is wrong with it."""

    def __init__(self, known, text):
        self.known, self.text = known, text
        # Blanks for code and comments, so that places stay.
        self.prose = NO_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
        self.ends_of_sentences = [0] + [match.end() for match in END_OF_SENTENCE.finditer(self.prose)] + [len(text)]
        self.faults, self.edits = [], []
        # Parts whose figures name a record; and by sentence what the records have, None for a figure that is no comparison.
        self.tied, self.sentences = [], {}
        kinds = {"table ": write_table, "lines of ": write_lines, "box of ": write_box, "": write_figures}
        for match in NO_PROSE.finditer(text):
            if match[0].startswith("<!--"):
                inner = one_line(match[0][4:-3])
                kind = next(kind for kind in kinds if inner.startswith(kind))
                kinds[kind](self, match.start(), inner[len(kind) :])
        self.judge_sentences()

    def fault(self, at, message):
        self.faults.append((self.text.count("\n", 0, at) + 1, message))

    def write(self, start, end, new):
        if self.text[start:end] != new:
            self.edits.append((start, end, new))

    def written(self):
        """The text with what the records say."""
        text = self.text
        for start, end, new in sorted(set(self.edits), reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def printed(self, figure):
        return one_line(self.text[figure.first.at : end_of(figure)])

    def record(self, at, name):
        if name not in self.known.records:
            self.fault(at, f"no record '{name}': name a folder of docs/results")
        return self.known.records.get(name)

    def untied(self, start, end):
        """The figures in a part of the page that no comment ties."""
        figures = map(figure_of, FIGURE.finditer(self.prose, start, end))
        return [figure for figure in figures if not any(first <= figure.first.at < last for first, last in self.tied)]

    def compare(self, figure, record, reference):
        """Writes the figure that a reference names. Returns the record's, if it is one comparison."""
        at, printed = figure.first.at, self.printed(figure)
        if reference == "published":
            if end_of(figure) > at + len(figure.first.digits) or not any(
                rounds_to(value / figure.unit, figure.first.digits) for value in self.known.published
            ):
                self.fault(at, f"'{printed}' is no published figure: correct it, or name its record")
            return None
        record = self.record(at, record)
        if not record:
            return None
        meant = found(record, reference)
        if len(meant) < 2 if figure.last else len(meant) != 1:
            self.fault(at, f"'{printed}': the record has {len(meant)} of '{reference}': correct the name or its setting")
            return None
        values = [kept.value / figure.unit for kept in meant]
        if figure.last:
            self.write_number(figure.first, min(values))
            self.write_number(figure.last, max(values))
            return None
        self.write_number(figure.first, values[0])
        if figure.high and not meant[0].interval:
            self.fault(at, f"'{printed}': the record has no interval of '{reference}': take it out")
        for number, end in zip((figure.low, figure.high) if figure.high else (), meant[0].interval):
            self.write_number(number, end / figure.unit, is_end=True)
        # Figures of one lock are named after it, `efficiency of tas`, and comparisons are not.
        return meant[0] if meant[0].interval and " of " not in meant[0].name else None

    def write_number(self, number, value, is_end=False):
        # "1.00" hides on which side of 1 an interval ends, which decides whether a difference is shown.
        hides_side = is_end and float(number.digits) == 1 != value and decimals(number.digits) < 3
        if hides_side or not rounds_to(value, number.digits):
            self.write(number.at, number.at + len(number.digits), significant(value))

    def judge_sentences(self):
        """Finds sentences that contradict the intervals of all their figures."""
        for (start, end), figures in self.sentences.items():
            sentence = self.prose[start:end]
            if NOT_JUDGED.search(sentence) or not all(kept for _, kept in figures):
                continue
            (at, first), intervals = figures[0], [kept.interval for _, kept in figures]
            repair = "correct the sentence, or move words without a figure to another"
            if NO_DIFFERENCE.search(sentence) and all(map(excludes_1, intervals)):
                self.fault(at, f"'no difference', with {shown(first.interval)}: {repair}")
            for side in SIDE.findall(sentence):
                if not any(low > 1 if side == "faster" else high < 1 for low, high in intervals):
                    self.fault(at, f"'{side}', with {shown(first.interval)}: {repair}")


def write_figures(page, at, inner):
    """Writes the figures between the last comment, or the beginning of the block, and the comment at a place."""
    if not page.text[:at].rpartition("\n")[2].strip():
        page.fault(at, "a comment that begins a line ends the paragraph: put it behind a word")
    blocks = [match.start() for match in BEGINNING_OF_BLOCK.finditer(page.prose, 0, at)]
    start = max([0] + blocks + [end for _, end in page.tied if end <= at])
    figures = [figure_of(match) for match in FIGURE.finditer(page.prose, start, at)]
    page.tied.append((start, at))
    references = [reference.strip() for reference in inner.split(";")]
    if len(figures) != len(references):
        printed = ", ".join(map(page.printed, figures)) or "none"
        return page.fault(at, f"{len(references)} references '{inner}' for the figures {printed}: name each figure once")
    record = ""
    for figure, reference in zip(figures, references):
        # Names of figures may have a colon, too.
        named, colon, rest = reference.partition(": ")
        if colon and (named in page.known.records or not record):
            record, reference = named, rest
        kept = page.compare(figure, record, reference)
        following = bisect.bisect_right(page.ends_of_sentences, figure.first.at)
        sentence = tuple(page.ends_of_sentences[following - 1 : following + 1])
        page.sentences.setdefault(sentence, []).append((figure.first.at, kept))


def write_table(page, at, inner):
    """Writes the cells of the table before a comment."""
    name, _, parts = inner.partition(": ")
    rows, columns, rule = ([each.strip() for each in part.split(";")] for part in (parts + "||").split("|")[:3])
    table = re.search(r"(?:^\|.*\n)*\s*\Z", page.prose[:at], re.MULTILINE)
    page.tied.append((table.start(), at))
    # A header and the line below it come first.
    lines = list(re.finditer(r"^\|.*\n", table[0], re.MULTILINE))[2:]
    record = page.record(at, name)
    if len(lines) != len(rows):
        return page.fault(at, f"{len(rows)} rows in the comment for a table of {len(lines)}: name each row, or skip it with `-`")
    for line, row in zip(lines, rows):
        bars = [table.start() + line.start() + bar.start() for bar in re.finditer(r"\|", line[0])]
        cells = list(zip(bars, bars[1:]))[-len(columns) :]
        if len(bars) - 1 <= len(columns):
            page.fault(bars[0], f"too few columns: the comment names {len(columns)}, and the row needs a name before them")
            continue
        for (bar, end), column in zip(cells, columns):
            if record and "-" not in (row, column):
                references = [each for each in references_of_cell(row, column) if found(record, each)]
                write_cell(page, bar + 1, end, name, references, rule[0])


def references_of_cell(row, column):
    """NAME @ SETTINGS of each figure in a cell, from its row and its column, of which either may have both parts."""
    (row, _, at_row), (column, _, at_column) = row.partition("@"), column.partition("@")
    row, column = row.strip(), column.strip()
    if "*" in column:
        name = column.replace("*", row)
    else:
        name = row.replace("*", column) if "*" in row else column + row
    return [one_line(f"{part} @ {at_row} {at_column}") for part in name.split("&")]


def write_cell(page, start, end, record, references, rule):
    text = page.prose[start:end]
    figures = figures_of_cell(page.prose, start, end)
    # There may be words instead of figures that the record does not have, such as "not done".
    if len(references) != len(figures):
        return page.fault(start, f"the cell '{text.strip()}' for {len(references)} figures of the record: correct it or the comment")
    compared = [page.compare(figure, record, reference) for figure, reference in zip(figures, references)]
    if not compared or not compared[0] or not figures[0].high:
        return None
    interval = compared[0].interval
    if "difference" in text and ("no difference shown" in text) == excludes_1(interval):
        page.fault(start, f"'{text.strip()}', with {shown(interval)}: correct the words")
    bold = re.fullmatch(rf"(?:bold (?:excludes 1|above ({DIGITS})))?", rule)
    if not bold:
        return page.fault(start, f"no rule for bold figures: '{rule}': write `bold excludes 1` or `bold above 2`")
    if rule and not (interval[0] > float(bold[1]) if bold[1] else excludes_1(interval)):
        for mark in re.finditer(r"\*\*", text):
            page.write(start + mark.start(), start + mark.end(), "")
    elif rule and "**" not in text:
        for place in (figures[0].first.at, figures[0].first.at + len(figures[0].first.digits)):
            page.write(place, place, "**")
    return None


def write_lines(page, at, name):
    """Writes the rows of the record's table into the block of text before a comment, which may leave out rows and columns. Other
    lines of the block have to be in the table, in its order."""
    record = page.record(at, name)
    end = page.text.rfind("\n```", 0, at)
    begin = page.text.rfind("```text\n", 0, max(end, 0)) + len("```text\n")
    if not record or begin > end:
        return page.fault(at, "no block of text before it: begin one with ```text") if record else None
    block, table = page.text[begin:end].split("\n"), record.table.split("\n")
    # The header of the table comes after its title.
    header = table[table.index("") + 1] if "" in table[:-1] else ""
    header_here = next((line for line in block if line and is_part(line, header)), "")
    rows, following = {label: row for label, row in zip(labels_of(table, header), table) if label}, 0
    for line, label in zip(block, labels_of(block, header_here)):
        if label in rows:
            if not is_part(line, rows[label]):
                page.write(begin, begin + len(line), with_columns(rows[label], header, header_here))
        elif line.strip():
            same = [place for place in range(following, len(table)) if is_part(line, table[place])]
            following = same[0] + 1 if same else following
            if not same:
                page.fault(begin, f"'{line.strip()}' is not in docs/results/{name}/table.txt: quote a line of it")
        begin += len(line) + 1
    return None


def is_part(line, whole):
    """Whether the words of a line are among those of another, in that order."""
    words = iter(whole.split())
    return all(word in words for word in line.split())


def labels_of(lines, header):
    """The setting and the lock of each row of a printed table, None for other lines. A blank setting repeats the one above."""
    labels, setting, at = [], "", header.rfind("  lock  ") + 2
    for line in lines:
        is_row = at > 1 and line[at - 2 : at] == "  " and line[at : at + 1].strip()
        setting = is_row and one_line(line[:at]) or setting
        labels.append((setting, line[at:].split("  ")[0]) if is_row else None)
    return labels


def with_columns(row, header, header_here):
    """A row with the columns of the second header alone. Figures end below their column's name; the first of them always stays."""
    here = [column[0] for column in COLUMN.finditer(header_here)]
    columns = list(COLUMN.finditer(header))
    first = max(place for place, column in enumerate(columns) if column[0] == "lock") + 1
    pieces = [row[: columns[first].end()]]
    for before, column in zip(columns[first:], columns[first + 1 :]):
        if column[0] in here:
            pieces.append(row[before.end() : None if column is columns[-1] else column.end()])
    return "".join(pieces).rstrip()


def write_box(page, at, inner):
    """Writes the box below a page's title, which ends before a comment: where and how the figures were measured."""
    start = page.prose.rfind("\n\n", 0, at) + 2
    page.tied.append((start, at))
    records = [page.record(at, name) for name in inner.split(", ")]
    if not all(records):
        return
    try:
        text = f"**Measured:** {conditions([record.facts for record in records])}"
    except KeyError as key:
        page.fault(at, f"a record.json of {inner} has no {key}: keep the record again")
        return
    if [word for word in page.text[start:at].split() if word != ">"] == text.split():
        return
    lines = [">"]
    for word in text.split():
        if len(lines[-1]) + len(word) >= 140:
            lines.append(">")
        lines[-1] += f" {word}"
    page.write(start, at, "\n".join(lines) + " ")


def conditions(records):
    """The facts of records. Those of several stand behind the host and the scheduler that they share."""
    if len(records) == 1:
        (facts,) = records
        machines = f" ({', '.join(facts['machine'])})" if facts["machine"] else ""
        share = 100 * facts["invalid"] / max(facts["runs"], 1)
        share = f"{share:.1f}" if 0 < share < 10 else f"{share:.0f}"
        when = f"{start_of(facts)}. Invalid runs: {facts['invalid']} of {facts['runs']} ({share} %)."
        return f"{host_of(facts)}{machines}, {schedulers_of(facts)}, {when}"
    hosts = {}
    for facts in records:
        parts = [*facts["machine"], start_of(facts), f"{facts['invalid']} of {facts['runs']} runs invalid"]
        runs = hosts.setdefault(host_of(facts), {}).setdefault(schedulers_of(facts), [])
        runs.append(f"`{facts['experiment']}` ({', '.join(parts)})")
    sentences = []
    for host, by_schedulers in hosts.items():
        for place, runs in by_schedulers.items():
            sentences.append(f"{host[0].upper()}{host[1:]}, {place}: {', '.join(runs)}.")
            host = "the same"
    return " ".join(sentences)


def host_of(facts):
    if facts["machine"]:
        return "simulated machines"
    return (
        f"{' or '.join(map(str, facts['pcpus']))} pCPUs of a {'virtual' if facts['nested'] else 'physical'} machine "
        f"({facts['cpu']}), Linux {facts['kernel'].split('-')[0]}, `{facts['kvm_module']}`, guest in ring "
        f"{' or '.join(map(str, facts['ring']))}, {'with' if facts['pause_loop_exits'] else 'no'} pause-loop exits"
    )


def schedulers_of(facts):
    slices = " or ".join(f"{ns / 1e6:g} ms" for ns in facts["slice_ns"])
    names = {"vmm": f"the VMM's scheduler with slices of {slices}"}
    return " and ".join(names.get(name, f"the {name}'s scheduler") for name in facts["sched"])


def start_of(facts):
    year, month, day = map(int, facts["started"][:10].split("-"))
    commit = facts["commit"][:7] + (" with changes" if facts["commit"].endswith("-dirty") else "")
    return f"{day} {MONTHS[month - 1]} {year}, commit {commit}"


def check_untied(name, page):
    """Finds figures that name no record where each has to: up to the first heading, and in the findings of README."""
    findings = page.text.find("\n## What we found") + 1
    parts = [(start, page.text.find("\n## ", start)) for start in ([0, findings] if findings and name == "README.md" else [0])]
    untied = [figure for start, end in parts for figure in page.untied(start, end if end >= 0 else len(page.text))]
    listed = {figure for where, figure, _ in UNRECORDED if where == name}
    for figure in untied:
        if page.printed(figure) not in listed:
            page.fault(figure.first.at, f"'{page.printed(figure)}' names no record: put a comment behind it")
    for gone in listed.difference(map(page.printed, untied)):
        page.fault(0, f"'{gone}' is no longer there: take it out of UNRECORDED in bench/scripts/docs.py")


def check_box(name, page):
    """Finds a page of figures that does not open with the conditions of their measurement."""
    # README names them in the captions of its tables.
    needs_record = name != "README.md" and "<!-- table " in page.text
    words = "no record" if name.removesuffix(".md") in WITHOUT_RECORD else "<!-- box of " if needs_record else ""
    below_title = (page.text.split("\n\n") + [""])[1]
    if words and not (below_title.startswith("> **Measured:**") and words in below_title):
        page.fault(0, f"no box below the title: put one there that begins `> **Measured:**` and has `{words.strip()}`")


def lines_without_code(text):
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_fence = line.lstrip().startswith("```")
        in_code ^= is_fence
        if not in_code and not is_fence:
            yield number, line


def anchors(text):
    """The anchors that GitHub makes of a page's headings."""
    headings = [line.lstrip("#").strip().lower() for _, line in lines_without_code(text) if line.startswith("#")]
    names = ["".join(c for c in heading.replace(" ", "-") if c.isalnum() or c in "-_") for heading in headings]
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return {f"{name}-{many}" if many else name for name, many in zip(names, before)}


def broken_links(path, text):
    """Links of a page that lead to no file or to no heading. Those that name a protocol are not looked at."""
    lines = list(lines_without_code(text))
    joined = "\n".join(line for _, line in lines)
    for match in re.finditer(r"\]\(([^)]*)\)", joined):
        number = lines[joined.count("\n", 0, match.start())][0]
        file, _, heading = match[1].partition("#")
        target = path.parent / file if file else path
        if "://" in match[1] or match[1].startswith("mailto:"):
            continue
        if not target.exists():
            yield number, f"'{match[1]}' leads to no file: correct the link"
        elif heading and target.suffix == ".md" and heading not in anchors(target.read_text(encoding="utf-8")):
            yield number, f"'{match[1]}' leads to no heading of {target.name}: correct the link"


def examine(root):
    """What to write, by page, and the faults of all pages as lines FILE:LINE."""
    folders = [path for path in root.glob("docs/results/*") if path.is_dir()]
    known = Known({path.name: read_record(path) for path in folders}, read_published(root))
    pages = sorted([root / "README.md", *root.glob("docs/*.md"), *root.glob("docs/studies/*.md")])
    changes, faults = {}, []
    for path in pages + [root / name for name in AT_THE_TOP if (root / name).exists()]:
        text = path.read_text(encoding="utf-8")
        of_page = list(broken_links(path, text))
        if path in pages:
            page = Page(known, text)
            check_untied(path.name, page)
            check_box(path.name, page)
            of_page += page.faults
            written = page.written()
            if written != text:
                changes[path] = (text, written)
        faults += [f"{path.relative_to(root)}:{line}: {message}" for line, message in sorted(of_page)]
    return changes, faults


def main(root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing: print what would change")
    arguments = parser.parse_args()
    changes, faults = examine(root)
    for path, (old, new) in changes.items():
        name = str(path.relative_to(root))
        if arguments.check:
            print(*difflib.unified_diff(old.split("\n"), new.split("\n"), name, "as its records say", lineterm="", n=0), sep="\n")
        else:
            path.write_text(new, encoding="utf-8")
            print(f"{name}: written; read each sentence that changed")
    if arguments.check and changes:
        faults.append("docs.py: these pages differ from their records: `just docs` writes them")
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
