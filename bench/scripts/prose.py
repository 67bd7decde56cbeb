#!/usr/bin/env python3
"""Words and pictures of each page, and their totals against the limits that the project has set itself.

A word is what `wc -w` counts, without HTML comments, which no reader sees. A long sentence has more than 25 words; tables, code
and headings have no sentences.
"""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_WORDS, MOST_IN_A_PAGE, LEAST_PICTURES = 45_000, 2_500, 15
# Pages that are looked things up in, not read.
REFERENCES = {"experiment-files.md", "glossary.md", "troubleshooting.md", "architecture.md"}


def visible(text):
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def long_sentences(text):
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line for line in text.split("\n") if not line.startswith(("|", "#", "!", ">"))]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    sentences = [s for p in paragraphs for s in re.split(r"(?<=[.!?:;])\**\s+", p)]
    return sum(len(s.split()) > 25 for s in sentences)


def main():
    listed = subprocess.run(["git", "ls-files", "README.md", "docs/*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    pages = [ROOT / name for name in listed.stdout.split()]
    drawn, words_of_docs, long_of_all = set(), 0, 0
    print(f"{'words':>6} {'pictures':>9} {'long sentences':>15}  page")
    for page in pages:
        text = visible(page.read_text(encoding="utf-8"))
        words, long = len(text.split()), long_sentences(text)
        pictures = re.findall(r"!\[[^\]]*\]\(([^)]+\.svg)\)", text)
        drawn |= {(page.parent / picture).resolve() for picture in pictures}
        over = page.parent.name == "docs" and page.name not in REFERENCES and words > MOST_IN_A_PAGE
        note = f"  over {MOST_IN_A_PAGE}" if over else ""
        print(f"{words:6} {len(pictures):9} {long:15}  {page.relative_to(ROOT)}{note}")
        words_of_docs += words if page.parent.name == "docs" else 0
        long_of_all += long
    print(f"{words_of_docs} words in docs (limit {MOST_WORDS}), {len(drawn)} pictures (at least {LEAST_PICTURES}), "
          f"{long_of_all} sentences of more than 25 words")


if __name__ == "__main__":
    main()
