#!/usr/bin/env bash
# Compares a lock in C with its version in another Git revision, and prints Markdown for a comment on a change: the verdict of
# `haltkick check`, and how fast the lock is now, over that revision, with intervals.
#
#     lock-against.sh LOCK.c REVISION [OPTION...]
#
# Run it in the lock's repository, on a machine with /dev/kvm, or with `--set engine=sim --set machine=skylake-8s --set cpus=0-3`.
# The options are those of `haltkick bench`. Exit code: that of the check if the lock is at fault, else that of the measurement.
set -euo pipefail
(($# >= 2)) || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
source=$1 revision=$2
shift 2
haltkick=${HALTKICK:-haltkick}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work"/{include,now,before}
"$haltkick" check --print-header >"$work/include/haltkick.h"
git archive "$revision" -- "$(dirname "$source")" | tar -x -C "$work/before"
compile() { ${CC:-cc} -O2 -ffreestanding -mgeneral-regs-only -mno-red-zone -fno-pic -c "$1" -I"$work/include" -o "$2"; }
(cd "$work/before" && compile "$source" "$work/before.o")
compile "$source" "$work/now.o"

form=off
nm "$work/now.o" | grep -q ' T hk_lock$' || form=on
cat >"$work/against.toml" <<END
format = 1
name = "against"
title = "$(basename "$source") now and in $revision"
blocks = 10
retry-disturbed = 1

[settings]
pv = "$form"
window = "200ms"

[grid]
ratio = [1, 2, 4]

[[arm]]
name = "now"
lock = "file:$work/now.o"

[[arm]]
name = "before"
lock = "file:$work/before.o"

[[compare]]
name = "now/before"
arm = "now"
baseline = "before"
END

code=0
"$haltkick" check "$work/now.o" --time "${CHECK_TIME:-30s}" >"$work/verdict" 2>&1 || code=$?
echo "### $(basename "$source"), now over $revision"
printf '\n```\n%s\n```\n\n' "$(sed "s|$work/||g" "$work/verdict")"
((code != 5 && code != 6)) || exit "$code"
"$haltkick" bench "$work/against.toml" --export markdown="$work/table.md" -o "$work/results" "$@" >"$work/log" 2>&1 || code=$?
if [ -e "$work/table.md" ]; then sed "s|$work/||g" "$work/table.md"; else cat "$work/log" >&2; fi
exit "$code"
