#!/usr/bin/env python3
"""Words and pictures of each page, turns of phrase that need a second reading, and totals against the limits that the project has
set itself.

A word is what `wc -w` counts, without HTML comments, which no reader sees. A long sentence has more than 25 words; tables, code
and headings have no sentences.
"""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_WORDS, MOST_IN_A_PAGE, MOST_IN_STUDIES, LEAST_PICTURES, MOST_TURNS = 45_000, 2_500, 6_000, 15, 250
# Pages that are looked things up in, not read.
REFERENCES = {"experiment-files.md", "glossary.md", "troubleshooting.md", "architecture.md"}


# A doc comment that begins like this says nothing to a reader who sees this line alone.
OPENINGS = re.compile(r"(What|Where|The same|Those|That of|Of (?!f)|Nobody|Nothing|None|Who|Whoever|So |Neither)\b")
WORDS = re.compile(
    r"\b(nobody|somebody|whoever|whom|lest|foretell|mended|for ever|no more than|any more|beside(?!s)|such as it is|in vain"
    r"|is none of|so many|so long)\b",
    re.IGNORECASE,
)


def turns(name, text):
    """Turns of phrase in the comments of a source or of settings, or in all that a reader sees of another file."""
    is_source, found, before = name.endswith(".rs"), 0, ""
    text = visible(text) if name.endswith(".md") else text
    for line in text.split("\n"):
        comment = re.match(r"\s*//[/!]? ?(.*)", line) if is_source else None
        words = comment.group(1) if comment else "" if is_source else line.strip()
        # Names of arms are data.
        words = "" if name.endswith(".toml") and re.match(r"(name|arm|baseline) = ", words) else words
        found += bool(is_source and words and not before and OPENINGS.match(words))
        found += len(WORDS.findall(words))
        before = words
    return found


def listed(*patterns):
    names = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def visible(text):
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def long_sentences(text):
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line for line in text.split("\n") if not line.startswith(("|", "#", "!", ">"))]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    sentences = [s for p in paragraphs for s in re.split(r"(?<=[.!?:;])\**\s+", p)]
    return sum(len(s.split()) > 25 for s in sentences)


def main():
    pages = listed("README.md", "docs/*.md")
    drawn, words_of_docs, words_of_studies, long_of_all = set(), 0, 0, 0
    print(f"{'words':>6} {'pictures':>9} {'long sentences':>15}  page")
    for page in pages:
        text = visible(page.read_text(encoding="utf-8"))
        words, long = len(text.split()), long_sentences(text)
        pictures = re.findall(r"!\[[^\]]*\]\(([^)]+\.svg)\)", text)
        drawn |= {(page.parent / picture).resolve() for picture in pictures}
        over = page.name not in REFERENCES and words > MOST_IN_A_PAGE
        note = f"  over {MOST_IN_A_PAGE}" if over else ""
        print(f"{words:6} {len(pictures):9} {long:15}  {page.relative_to(ROOT)}{note}")
        words_of_docs += words if page.parent != ROOT else 0
        words_of_studies += words if page.parent.name == "studies" else 0
        long_of_all += long
    print(f"{words_of_docs} words in docs (limit {MOST_WORDS}), {len(drawn)} pictures (at least {LEAST_PICTURES}), "
          f"{long_of_all} sentences of more than 25 words")
    print(f"{words_of_studies} words in docs/studies (limit {MOST_IN_STUDIES})")
    sources = listed("*.rs", "*.md", "*.toml", "justfile", "*.just")
    found = {path.relative_to(ROOT): turns(path.name, path.read_text(encoding="utf-8")) for path in sources}
    print(f"{sum(found.values())} turns of phrase that need a second reading (limit {MOST_TURNS}), most in:")
    for path, many in sorted(found.items(), key=lambda each: -each[1])[:5]:
        print(f"{many:6}  {path}")


if __name__ == "__main__":
    main()
