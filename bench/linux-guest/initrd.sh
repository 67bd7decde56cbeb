#!/usr/bin/env bash
# Builds an initial RAM disk for Linux guests: an `init` of ours, the loops beside this script, and any static programs that are
# named. Needs a C compiler with a static C library (Debian: gcc and libc6-dev; Fedora: gcc and glibc-static; Alpine: gcc and
# musl-dev), and nothing else.
#
#   initrd.sh FILE [PROGRAM...]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
say() { echo "initrd.sh: $*" >&2; }
(($# >= 1)) || { say "which file? see the head of $0"; exit 2; }
out=$1
shift
for program in "$@"; do
    [[ -f $program && -x $program ]] || { say "$program is no program"; exit 2; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build() {
    ${CC:-cc} -std=gnu11 -O2 -Wall -Wextra -Werror -static -pthread -s -o "$work/$1" "$here/$1.c" || {
        say "$1.c cannot be built: install a C compiler with a static C library (see the head of $0)"
        exit 4
    }
}

# entry NAME MODE [FILE [MAJOR MINOR]]: a file as cpio archives of the format `newc` have it, which kernels unpack.
inode=0
entry() {
    local name=$1 mode=$2 file=${3-} major=${4-0} minor=${5-0} bytes=0
    if [[ -n $file ]]; then bytes=$(stat -Lc %s "$file"); fi
    inode=$((inode + 1))
    printf '070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x' \
        "$inode" "$mode" 0 0 1 0 "$bytes" 0 0 "$major" "$minor" $((${#name} + 1)) 0
    printf '%s\0' "$name"
    pad $((110 + ${#name} + 1))
    if [[ -n $file ]]; then
        cat "$file"
        pad "$bytes"
    fi
}
# Everything begins at a multiple of four bytes.
pad() { head -c $(((4 - $1 % 4) % 4)) /dev/zero; }

archive() {
    entry bin $((8#040755))
    entry dev $((8#040755))
    # Where the first program finds its console.
    entry dev/console $((8#020600)) '' 5 1
    entry init $((8#100755)) "$work/init"
    local program
    for program in page-loop copy-loop futex-loop spin-loop; do
        entry "bin/$program" $((8#100755)) "$work/$program"
    done
    for program in "$@"; do entry "bin/$(basename "$program")" $((8#100755)) "$program"; done
    entry 'TRAILER!!!' 0
}

for program in init page-loop copy-loop futex-loop spin-loop; do build "$program"; done
mkdir -p "$(dirname "$out")"
archive "$@" >"$work/initrd"
mv "$work/initrd" "$out"
say "$out: $(stat -c %s "$out") bytes"
