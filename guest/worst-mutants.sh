#!/usr/bin/env bash
# Puts one fault at a time into the locks of the guest, and lets `haltkick worst --find-bugs` look for a preemption that shows it.
#
#   guest/worst-mutants.sh [name...]
#
# One line for each fault: found (with the line of the preemption, or without one), unreached (no run came to the fault's lines), or
# missed. A control is sound code as compiled for x86, so that an alarm is false. Exits 1 if a control raises an alarm, or if a fault is
# missed that was found before. HALTKICK names the command, HALTKICK_BUDGET the time for each fault. `missed` in the table stands for
# faults that were not found, or not tried yet: finding one is no failure.

set -euo pipefail
cd "$(dirname "$0")"

# fault, what is expected (found, missed, control), lock, other arguments.
table='
t2-head-halts              found    qspinlock     --pv on
t4-kick-first              found    qspinlock     --pv on
forget-successor           found    qspinlock     --pv on
pv-miss-the-gift           found    qspinlock     --pv on
pv-leave-the-entry         found    qspinlock     --pv on
pv-wake-forgets-hash       missed   qspinlock-v16 --pv on
table-stops-at-a-hole      missed   qspinlock     --pv on
mcs-forget-late-link       found    mcs
mcs-pass-the-second        found    mcs
wc-wake-without-kick       found    qspinlock-wc  --pv on
packed-unlock-wipes-tail   found    qspinlock     --pv off
packed-stale-rest          found    qspinlock     --pv off
packed-steal-past-pending  found    qspinlock     --pv on
head-ignores-pending       found    qspinlock     --pv off
leave-pending              found    qspinlock     --pv off
unfair-ticket-half-unlock  found    unfair-ticket
rwsem-ignore-thief         missed   rwsem
rwsem-no-second-wake       found    rwsem
futex-no-look              found    futex-mutex
pv-ticket-no-second-look   missed   ticket        --pv on
osq-copy-the-link          found    mutex
t1-no-fence-in-owner       control  qspinlock     --pv on
relaxed-pv-unlock          control  qspinlock     --pv on
'
haltkick=$(realpath "${HALTKICK:-../target/release/haltkick}")
target=$(realpath "${CARGO_TARGET_DIR:-../target}")/worst-mutants
tree=$target/tree
rm -rf "$tree" && mkdir -p "$tree" "$target/found"
tar --create --directory .. --exclude ./target --exclude ./.git . | tar --extract --touch --directory "$tree"

# Flags of the guest, as vmm/build.rs has them.
common="-Crelocation-model=static -Csymbol-mangling-version=v0 -Cllvm-args=-align-all-functions=6"
wrapper=$target/rustc-mutant
printf '#!/bin/sh\nexec "$@" ${MUTANT:+--cfg "mutant=\\"$MUTANT\\""}\n' >"$wrapper"
chmod +x "$wrapper"

# File and line of a fault, as the debugging data of the guest has them.
site() {
    local patch=mutants/$1.patch
    if [[ -e $patch ]]; then
        # The first hunk begins three lines before the fault.
        awk '/^\+\+\+ b\// { file = substr($2, 3) } /^@@/ { split($3, at, /[+,]/); print file, at[2] + 3; exit }' "$patch"
    else
        grep -rnm1 --include='*.rs' "mutant!(\"$1\"" locks/src | awk -F: '{ print "guest/" $1, $2; exit }'
    fi
}

# Whether the answer in $2 names lines around the fault $1 among those that were never executed.
is_unreached() {
    local file line
    read -r file line < <(site "$1")
    jq --exit-status --arg file "$file" --argjson line "${line:-0}" '
        [.coverage.unreached[] | split(":") | select(.[0] == $file) | .[1] | tonumber | select(. >= $line - 2 and . <= $line + 2)]
        | length > 0' "$2" >/dev/null
}

unexpected=0
while read -r name expected lock arguments; do
    [[ -n $name ]] || continue
    (($# == 0)) || [[ " $* " == *" $name "* ]] || continue
    export MUTANT=$name
    patch=mutants/$name.patch
    [[ ! -e $patch ]] || patch --directory "$tree" --strip 1 --fuzz 0 --silent --no-backup-if-mismatch <"$patch"
    # What the wrapper adds is nothing that cargo knows of: each file is new.
    find "$tree/guest/locks/src" "$tree/guest/src" -name '*.rs' -exec touch {} +
    RUSTC_WORKSPACE_WRAPPER=$wrapper RUSTFLAGS="$common --remap-path-prefix=$tree/=" \
        cargo build --quiet --locked --manifest-path "$tree/Cargo.toml" --package haltkick-guest --profile guest \
        --target x86_64-unknown-none --target-dir "$target/build"
    [[ ! -e $patch ]] || patch --directory "$tree" --strip 1 --fuzz 0 --silent --no-backup-if-mismatch --reverse <"$patch"
    rm -rf "$target/found/$name"
    status=0
    # shellcheck disable=SC2086
    answer=$("$haltkick" worst --guest "$target/build/x86_64-unknown-none/guest/haltkick-guest" --lock "$lock" $arguments \
        --machine skylake-8s --cpus 0-3 --find-bugs --budget "${HALTKICK_BUDGET:-2m}" --output "$target/found/$name" 2>&1) || status=$?
    case $status in
    0)
        came=missed why=
        if is_unreached "$name" "$target/found/$name/worst.json"; then why="unreached: no run came to $(site "$name" | tr ' ' :)"; fi
        ;;
    5 | 6) came=found why=$(grep -m1 -e BROKEN -e 'without a preemption' <<<"$answer" || true) ;;
    *) came=failed why=$answer ;;
    esac
    printf '%-28s %-14s %-8s %s\n' "$name" "$lock" "$came" "$why"
    case $expected:$came in
    found:found | missed:* | control:missed) [[ $came != failed ]] || unexpected=1 ;;
    *) unexpected=1 ;;
    esac
done <<<"$table"
exit "$unexpected"
