#!/usr/bin/env bash
# Weighs the house: lines, files, crates, commands, recipes, words; with a built command, that too.
set -u
cd "$(dirname "$0")/../.." || exit 1
lines() { git ls-files "$@" | grep '\.rs$' | tr '\n' '\0' | xargs -0 cat 2>/dev/null | wc -l; }
row() { printf '%-34s %9s\n' "$1" "$2"; }
row "Rust, all" "$(lines)"
row "  bench" "$(lines bench)"
row "  vmm without sim" "$(( $(lines vmm) + $(lines fuzz) - $(lines vmm/sim) ))"
row "  vmm/sim" "$(lines vmm/sim)"
row "  guest, its crates" "$(lines guest)"
row "  hypercalls, include, examples" "$(lines hypercalls include examples)"
tests=$(git ls-files '*.rs' | grep -E '(^|/)(tests?|testing|trials|fuzz|fuzzing)(/|\.rs$)|_tests\.rs$' | tr '\n' '\0' | xargs -0 cat | wc -l)
inline=$(git ls-files '*.rs' | grep -vE '(^|/)(tests?|testing|trials|fuzz|fuzzing)(/|\.rs$)|_tests\.rs$' | tr '\n' '\0' | xargs -0 awk 'FNR == 1 { on = seen = 0 } on { n++ } /^ *#\[cfg\(.*test.*\)\]/ { seen = FNR } seen == FNR - 1 && /^ *(pub )?mod .*\{/ { on = 1 } END { print n + 0 }')
row "  of all that, tests" "$((tests + inline))"
row "other code (C, shell, Python, just)" "$(git ls-files '*.c' '*.h' '*.S' '*.sh' '*.py' justfile '*.just' .ci/run | tr '\n' '\0' | xargs -0 cat | wc -l)"
row "files with Rust" "$(git ls-files '*.rs' | wc -l)"
row "  of at most 30 lines" "$(git ls-files '*.rs' | xargs wc -l | awk '$2 != "total" && $1 <= 30' | wc -l)"
row "crates" "$(git ls-files '*Cargo.toml' | xargs grep -l '^\[package\]' | wc -l)"
recipes() { cat "$@" 2>/dev/null | grep -cE '^[a-z][a-z0-9-]*( [A-Za-z*+$"=0-9.]+)*:'; }
row "recipes, all justfiles" "$(recipes $(git ls-files justfile '*.just' '*/justfile'))"
row "  in justfile itself" "$(recipes justfile)"
row "experiments built in" "$(git ls-files 'bench/experiments/*.toml' | wc -l)"
row "words, all Markdown" "$(git ls-files '*.md' | tr '\n' '\0' | xargs -0 cat | wc -w)"
row "  words of README and docs" "$(git ls-files README.md 'docs/*.md' 'docs/**/*.md' | sort -u | xargs cat | wc -w)"
row "lines of stored JSON schemas" "$(git ls-files '*/schemas/*.json' | tr '\n' '\0' | xargs -0 cat 2>/dev/null | wc -l)"
row "files in the tree" "$(git ls-files | wc -l)"
hk=target/release/haltkick
if [ -x "$hk" ]; then
    row "commands" "$("$hk" --help | awk '/^Commands:/{on=1; next} /^$/{on=0} on && $1 != "help"' | grep -cE '^  [a-z]')"
    row "settings of run" "$("$hk" run --help | grep -cE '^ +--[a-z]')"
    row "locks" "$("$hk" list locks | wc -l)"
    row "workloads without selftest-" "$("$hk" list workloads | grep -vc '^selftest-')"
    stripped=$(mktemp) && strip -o "$stripped" "$hk" 2>/dev/null && row "stripped binary, bytes" "$(stat -c %s "$stripped")"
    rm -f "$stripped"
fi
