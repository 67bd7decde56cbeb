#!/usr/bin/env bash
# Puts one fault at a time into the locks, the memory manager and the grant tables, and checks that the test which guards
# the line fails.
#
#   guest/mutants.sh [--list | --check] [name...]
#
# A fault of one word stands in the source (`mutant!`); one that takes out or moves a statement is a patch in guest/mutants.
# --check sees that each name of the table is one of the two, that every patch applies, and that every filter names a test.
#
# One line for each mutant: caught (the test failed), hung (it did not come to an end in ten times what it takes without a
# fault: also caught), or SURVIVED. Exits 1 if one survived, if a listed test fails without a fault, or if a patch does not
# apply any more.

set -euo pipefail
cd "$(dirname "$0")"

# mutant, kind of test, filter. The kinds are the test binaries of haltkick-locks; `unit` is the crate's own tests, `mm-` are the memory
# manager's, and `grants-` the grant tables'.
table='
t1-no-fence-in-waiter       loom     qspinlock::v16_with_three
t1-no-fence-in-owner        loom     qspinlock::v16_with_three
p0a-relaxed-wake            loom     qspinlock::v16_with_two
t2-head-halts               host     t2_
t3-no-read-fence            loom     qspinlock::pv_with_two
t4-release-first            host     t4_
t4-kick-first               loom     qspinlock::pv_with_two
t5-init-after-publish       host     t5_
t6-claim-nothing            host     t6_
t7-endless-pending          host     t7_
t8-fetch-or-by-loop         unit     t8_
t9-share-a-node             host     t9_
t14-no-diagnosis            host     t14_
t18-stale-lock              host     t18_
forget-successor            loom     qspinlock::v16_with_three
head-ignores-pending        loom     qspinlock::native_with_three
leave-pending               shuttle  native
relaxed-hand-over           loom     qspinlock::native_with_four
relaxed-head                loom     qspinlock::native_with_three
relaxed-pending             loom     qspinlock::native_with_two
relaxed-unlock              loom     qspinlock::native_with_two
relaxed-pv-unlock           loom     qspinlock::pv_with_two
relaxed-slow                loom     qspinlock::pv_with_two
relaxed-spinning-head       loom     qspinlock::pv_with_two
relaxed-steal               loom     qspinlock::pv_with_three
v16-relaxed-head            loom     qspinlock::v16_with_two
pv-leave-the-entry          loom     qspinlock::pv_with_two
pv-miss-the-gift            loom     qspinlock::pv_with_two
pv-never-early              host     a_waiter_behind_a_sleeper
pv-steal-from-spinner       host     a_newcomer_queues_while_the_head_spins
pv-wake-forgets-hash        loom     qspinlock::v16_with_three
announce-forget-outer       host     is_a_holder_while_it_holds_another
slice-ignore-outer          host     a_slice_is_kept_by_who_holds
courtesy-ignore-outer       host     a_head_that_holds_another_lock
wc-guess-from-byte          host     a_head_that_the_owner_registers
wc-no-tenure                host     a_head_insists
wc-discourteous             host     a_head_leaves_a_lock_alone
wc-head-ignores-load        host     nobody_sleeps_while_nobody
wc-waiter-ignores-load      host     nobody_sleeps_while_nobody
wc-sleep-once               host     a_head_sleeps_again
wc-ignore-slice             host     a_slice_is_kept_by_who_holds
wc-trust-the-note           loom     qspinlock::wc_with_two
wc-wake-without-kick        loom     qspinlock::wc_with_three
wc-early-ignores-load       host     a_waiter_behind_a_sleeper_spins
wc-insist-at-the-end        host     a_head_gives_up_a_slice
relaxed-link                loom     qspinlock::pv_with_three
relaxed-tail                loom     qspinlock::pv_with_three
steal-past-pending          liveness no_cpu_overtakes_a_spinning_head
packed-stale-rest           unit     packed
packed-steal-past-pending   unit     packed
packed-unlock-wipes-tail    unit     packed
table-stops-at-a-hole       unit     qspinlock::domain
ticket-relaxed-unlock       loom     family::ticket::with_two
ticket-relaxed-try          loom     family::ticket::with_two
mcs-relaxed-hand-over       loom     family::mcs::with_two
mcs-forget-late-link        loom     family::mcs::with_two
mcs-relaxed-link            loom     family::mcs::with_three
mcs-relaxed-tail            loom     family::mcs::with_three
mcs-relaxed-unlock          loom     family::mcs::with_three
mcs-pass-the-second         host     waiters_of_strict_queues
gcr-relaxed-race            loom     family::gcr::with_two
gcr-relaxed-unlock          loom     family::gcr::with_two
gcr-relaxed-tail            loom     family::gcr::with_three
gcr-relaxed-flag            loom     family::gcr::with_two
gcr-relaxed-kick            loom     family::gcr::with_two
gcr-sleep-blindly           loom     family::gcr::with_two
gcr-forget-when-idle        loom     family::gcr::with_two
gcr-never-promote           host     the_first_of_the_queue
gcr-ignore-slice            host     gcr::a_slice_that_is_about_to_end
rq-relaxed-count            loom     rqspinlock::rq10_
rq-relaxed-wait             loom     family::rqspinlock::with_two
rq-keep-entry               loom     rqspinlock::a_lock_is_free_after
rq-keep-pending             loom     rqspinlock::a_lock_is_free_after
rq-cas-first                host     rq2_
rq-null-first               host     rq2_
rq-forget-own               host     rq3_
rq-forget-own               host     rq5_
rq-nmi-queues               host     rq1_an_nmi_does_not_queue
rq-nmi-never-queues         host     rq4_
rq-punish-the-queue         host     rq6_
rq-await-a-successor        host     rq9_
rq-no-circle                loom     two_cpus_in_a_circle
rq-await-a-newcomer         unit     a_head_does_not_await
rq-come-back-at-once        host     a_cpu_does_not_come_back
pv-ticket-relaxed-flag      loom     family::pv_ticket::with_two
pv-ticket-relaxed-unlock    loom     family::pv_ticket::with_two
pv-ticket-no-second-look    loom     family::pv_ticket::with_two
pv-ticket-any-lock          loom     each_unlock_wakes_the_sleeper
pv-ticket-relaxed-search    loom     a_slot_that_changes_its_lock
pv-ticket-relaxed-slot      loom     a_slot_that_changes_its_lock
unfair-ticket-half-unlock   shuttle  tickets
owner-yield-relaxed-unlock  loom     family::owner_yield::with_two
owner-yield-always-steal    host     a_newcomer_queues_at_once
owner-yield-always-steal    host     a_cpu_without_a_node
owner-yield-relaxed-tail    loom     family::owner_yield::with_three
owner-yield-relaxed-steal   loom     family::owner_yield::with_two
owner-yield-stale-owner     host     no_slice_goes
t16-relaxed-claim           loom     family::fair::with_two_writers
t17-reader-overtakes        host     t17_
t17-writer-overtakes        host     t17_
rw-unfair-relaxed-read      loom     family::unfair::with_two
rw-unfair-relaxed-write     loom     family::unfair::with_two
rw-unfair-relaxed-read-unlock loom   family::unfair::with_two
rw-unfair-relaxed-write-unlock loom  family::unfair::with_two
rw-fair-relaxed-read        loom     family::fair::with_two
rw-fair-relaxed-queued-read loom     family::fair::with_two
rw-fair-relaxed-read-unlock loom     family::fair::with_two
rw-fair-relaxed-write-unlock loom    family::fair::with_two
percpu-no-fence-in-reader   loom     family::per_cpu::with_two
percpu-no-fence-in-writer   loom     family::per_cpu::with_two
percpu-relaxed-flag         loom     family::per_cpu::with_two
percpu-relaxed-drain        loom     family::per_cpu::with_two
percpu-relaxed-leave        loom     family::per_cpu::with_two
percpu-relaxed-write-unlock loom     family::per_cpu::with_two
percpu-forget-outer         host     a_cpu_may_read_several
percpu-wait-for-own-writer  host     read_already_cannot_be_read_again
o1-relaxed-tail             loom     osq::packed::o1_
o2-relaxed-link             loom     osq::packed::o2_
osq-relaxed-hand-over       loom     osq::packed::one_of_two
osq-relaxed-relink          loom     osq::packed::one_of_three
osq-copy-the-link           shuttle  osq
sleep-no-fence              loom     sleeping::mutex_with_two_cpus_that_sleep
sleep-relaxed-list          loom     sleeping::mutex_with_two_cpus_that_sleep
mutex-relaxed-take          loom     sleeping::mutex_with_two_cpus_that_sleep
mutex-break-the-promise     loom     sleeping::mutex_is_handed
mutex-relaxed-unlock        loom     sleeping::mutex_with_two_cpus_that_sleep
rwsem-relaxed-read          loom     sleeping::rwsem_is_handed
rwsem-relaxed-read-unlock   loom     sleeping::rwsem_is_handed
rwsem-relaxed-write         loom     sleeping::rwsem_with_two_writers_that_sleep
rwsem-relaxed-write-unlock  loom     sleeping::rwsem_with_two_writers_that_sleep
rwsem-ignore-thief          shuttle  rwsem_with_six
rwsem-writer-never-insists  host     overtakes_a_writer_that_insists
rwsem-waker-never-promises  host     an_overdue_writer
rwsem-spin-on-nobody        unit     a_writer_does_not_spin
rwsem-spinner-past-handoff  host     no_writer_overtakes
rwsem-reader-past-handoff   host     no_reader_overtakes
rwsem-reader-never-insists  shuttle  rwsem_with_six
rwsem-keep-the-promise      shuttle  rwsem_with_six
rwsem-no-second-wake        loom     sleeping::rwsem_is_handed
rwsem-2018-reader-steals    host     and_slept_behind_it_in_2018
rwsem-2018-past-writers     host     and_up_to_it_in_2018
rwsem-2018-spins-on-readers host     and_did_not_in_2018
rwsem-2018-promises         host     and_was_not_in_2018
futex-no-look               loom     sleeping::futex
futex-relaxed-unlock        loom     sleeping::futex
sequence-no-fence-in-reader mm-loom  what_is_read_between
sequence-no-fence-in-writer mm-loom  a_change_that_has_begun
sequence-relaxed-read       mm-loom  what_is_read_between
sequence-relaxed-end        mm-loom  what_is_read_between
spf-no-reference            mm-host  a_page_that_is_unmapped_at_any_step
spf-ignore-odd              mm-host  a_change_is_noticed_at_the_next_look
spf-ignore-anon             mm-host  the_first_fault_of_an_area
spf-ignore-bounds           mm-host  memory_is_empty_at_first
spf-ignore-access           mm-host  a_wrong_access_is_an_error
spf-refuse-at-once          mm-host  what_an_area_said_before_it_changed
spf-make-tables             mm-host  the_first_fault_in_a_page_table
spf-no-look-after-walk      mm-host  a_change_is_noticed_at_the_next_look
spf-no-look-after-allocation mm-host a_change_is_noticed_at_the_next_look
spf-ignore-pmd              mm-host  a_page_table_that_goes
spf-wait-for-ptl            mm-host  a_page_table_lock_is_never_waited_for
spf-no-last-look            mm-host  a_page_that_is_unmapped_at_any_step
spf-no-last-look            mm-shuttle speculative::nothing_is_mapped_where_everything
spf-ignore-pte              mm-host  a_page_that_another_cpu_installs
spf-trust-held              mm-host  a_change_is_noticed_at_the_next_look
spf-no-mark                 mm-host  a_change_is_noticed_at_the_next_look
spf-no-mark                 mm-shuttle speculative::nothing_is_mapped_where_everything
spf-mark-too-late           mm-host  nothing_is_installed_where_pages_are_being
spf-mark-too-late           mm-shuttle speculative::nothing_is_lost_where
spf-unmark-what-is-gone     mm-host  a_change_is_noticed_at_the_next_look
srcu-no-wait                mm-host  an_area_that_a_fault_looks_at
vma-ignore-access           mm-host  protection_is_that_of_each_page
vma-ignore-anon             mm-host  an_area_without_a_page_table
vma-no-first-look           mm-host  an_area_that_is_locked_is_not_even_referred_to
vma-ignore-detached         mm-host  an_area_that_is_gone_before_it_is_locked
vma-ignore-writer           mm-host  an_area_that_a_writer_will_lock
vma-no-second-look          mm-host  an_area_that_a_writer_locks
vma-ignore-owner            mm-host  an_area_whose_slot_another_address_space
vma-ignore-bounds           mm-host  an_area_whose_slot_is_used_anew
vma-no-wait-for-readers     mm-shuttle per_vma::nothing_is_mapped_where_everything
vma-no-detach               mm-host  an_area_that_is_gone_before_it_is_locked
vma-no-write-lock           mm-shuttle per_vma::nothing_can_be_written
mm-ignore-pte               mm-shuttle mmap_sem::what_was_discarded
mm-no-ptl                   mm-shuttle speculative::nothing_is_mapped_where_everything
mm-ignore-neighbours        mm-host  neighbours_of_a_kind
mm-keep-table               mm-host  a_page_that_is_unmapped_and_mapped_anew
mm-no-invalidation          mm-host  every_page_is_the_right_one
grants-swap-as-given        grants-host    swapped_entries
grants-swap-as-given        grants-shuttle split::opposite_swaps
grants-swap-itself          grants-host    swapped_entries
grants-swap-mapped          grants-host    a_bad_request_gets_its_status
grants-one-table-twice      grants-host    domains_can_map_their_own
grants-tables-as-given      grants-host    domains_can_map_their_own
grants-steal-under-own      grants-host    a_domain_without_handles
grants-release-first        grants-host    as_posted_table_and_entry
grants-look-unlocked        grants-host    as_posted_table_and_entry
grants-put-under-entry      grants-host    as_posted_table_and_entry
grants-strict-shares        grants-host    with_a_strict_iommu
grants-strict-shares        grants-shuttle strict_split::devices_reach
grants-count-unlocked       grants-host    with_a_strict_iommu
grants-kernel-unlocked      grants-host    a_kernels_own_lock_is_taken
grants-no-entry-lock        grants-shuttle split::pins_add_up
grants-full-counter         grants-host    a_full_pin_counter
grants-forget-handle        grants-host    a_bad_request_gets_its_status
grants-keep-frame           grants-host    a_mapping_reaches
grants-keep-writing         grants-host    pins_and_flags_follow
grants-no-invalidation      grants-host    a_mapping_reaches
grants-no-invalidation      grants-shuttle split::a_page_that_was_taken_back
grants-no-second-look       grants-shuttle split::a_handle_that_two_cpus_unmap
grants-mark-blindly         grants-shuttle split::a_page_that_was_taken_back
grants-relaxed-publish      grants-loom    who_marks_an_entry
grants-relaxed-mark         grants-loom    who_marks_an_entry
grants-relaxed-clear        grants-loom    who_takes_a_grant_back
grants-relaxed-revoke       grants-loom    who_takes_a_grant_back
grants-relaxed-look         grants-loom    who_sees_that_a_page_is_not_in_use
grants-relaxed-install      grants-loom    who_finds_a_mapping
grants-relaxed-walk         grants-loom    who_finds_a_mapping
grants-relaxed-invalidate   grants-loom    what_was_removed_is_not_cached
grants-relaxed-epoch        grants-loom    what_was_removed_is_not_cached
grants-relaxed-assign       grants-loom    who_holds_a_frame
grants-relaxed-hold         grants-loom    who_holds_a_frame
'
table=$(sed '/^$/d' <<<"$table")

if [[ ${1-} == --list ]]; then
    echo "$table"
    exit
fi
only_check=0
if [[ ${1-} == --check ]]; then
    only_check=1
    shift
fi
for name in "$@"; do
    grep -q "^$name " <<<"$table" || { echo "no mutant is called $name" >&2; exit 2; }
done

target=${CARGO_TARGET_DIR:-../target}/mutants
mkdir -p "$target"
target=$(realpath "$target")
log=$target/last.log
export SHUTTLE_ITERATIONS=20000 SHUTTLE_RANDOM_SEED=1

# The sources that patches are applied to: a copy, in the order of which nothing can be left behind.
tree=$target/tree
rm -rf "$tree"
mkdir -p "$tree"
# Each file is as new as the copy: of a file that is older than what was built from its faulty form, nothing would be built.
tar --create --directory .. --exclude ./target --exclude ./.git . | tar --extract --touch --directory "$tree"

is_patch() { [[ -e mutants/$1.patch ]]; }

# patch_tree NAME ARGUMENT... : puts that fault into the copy. The lines around it must be as they were: no fuzz.
patch_tree() {
    local name=$1
    shift
    patch --directory "$tree" --strip 1 --fuzz 0 --forward --silent --no-backup-if-mismatch "$@" <"mutants/$name.patch"
}

# Nothing is run before all of them are known to be what they were.
bad=()
for name in $(cut -d ' ' -f 1 <<<"$table" | sort -u); do
    if is_patch "$name"; then
        patch_tree "$name" --dry-run >"$log" 2>&1 || { cat "$log" >&2; bad+=("the patch $name does not apply any more"); }
    elif ! grep -rqF "mutant!(\"$name\":" locks/src mm/src grants/src; then
        bad+=("$name is neither in the source nor a patch")
    fi
done
while read -r name _ filter; do
    grep -rqF "${filter##*::}" {locks,mm,grants}/{src,tests} || bad+=("no test for $name is called like $filter")
done <<<"$table"
for file in mutants/*.patch; do
    name=$(basename "$file" .patch)
    grep -q "^$name " <<<"$table" || bad+=("no test is listed for the patch $name")
done
if ((${#bad[@]})); then
    printf '%s\n' "${bad[@]}" >&2
    exit 1
fi
((only_check == 0)) || exit 0

# cargo_test KIND CARGO_ARGUMENT... : cargo with the flags of that kind of test, over the sources in $root. What is built from the
# copy has directories of its own: cargo names the programs of both trees alike, and would take the one for the other.
cargo_test() {
    local kind=$1 target=$target
    shift
    [[ $root == .. ]] || target+=/patched
    local arguments=(test -q --manifest-path "$root/Cargo.toml")
    case $kind in
    mm-host) cargo "${arguments[@]}" -p haltkick-mm --target-dir "$target" --test host "$@" ;;
    mm-*)
        # Longer schedules than the locks': fewer of them.
        SHUTTLE_ITERATIONS=4000 RUSTFLAGS="--cfg ${kind#mm-}" \
            cargo "${arguments[@]}" -p haltkick-mm --target-dir "$target/${kind#mm-}" --release --test "${kind#mm-}" "$@"
        ;;
    grants-host) cargo "${arguments[@]}" -p haltkick-grants --target-dir "$target" --test grants "$@" ;;
    grants-*)
        RUSTFLAGS="--cfg ${kind#grants-}" cargo "${arguments[@]}" -p haltkick-grants \
            --target-dir "$target/${kind#grants-}" --release --test "${kind#grants-}" "$@"
        ;;
    host) cargo "${arguments[@]}" -p haltkick-locks --target-dir "$target" --test host "$@" ;;
    unit) cargo "${arguments[@]}" -p haltkick-locks --target-dir "$target" --lib "$@" ;;
    *)
        RUSTFLAGS="--cfg $kind" \
            cargo "${arguments[@]}" -p haltkick-locks --target-dir "$target/$kind" --release --test "$kind" "$@"
        ;;
    esac
}

# A wrapper around rustc for this workspace's crates alone: the dependencies are built once. Of the faults in the source one
# program holds all, and MUTANT chooses when it runs.
wrapper=$target/rustc-any
printf '#!/bin/sh\nexec "$@" --cfg "mutant=\\"any\\""\n' >"$wrapper"
chmod +x "$wrapper"
export RUSTC_WORKSPACE_WRAPPER=$wrapper

selected() { (($# == 1)) || [[ " ${*:2} " == *" $1 "* ]]; }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }

echo "without a fault:"
failed=0
declare -A took
export MUTANT= root=..
while read -r kind filter; do
    cargo_test "$kind" --no-run >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
    begun=$(milliseconds)
    if WATCHDOG_SECONDS=120 cargo_test "$kind" "$filter" >"$log" 2>&1 && grep -q '[1-9][0-9]* passed' "$log"; then
        took[$kind $filter]=$(($(milliseconds) - begun))
        printf '  %-8s %-42s passes in %d ms\n' "$kind" "$filter" "${took[$kind $filter]}"
    else
        printf '  %-8s %-42s FAILS\n' "$kind" "$filter"
        tail -n 20 "$log"
        failed=1
    fi
done < <(while read -r name kind filter; do selected "$name" "$@" && echo "$kind $filter"; done <<<"$table" | sort -u)
((failed == 0)) || exit 1

echo "with a fault:"
caught=0 survivors=()
while read -r name kind filter; do
    selected "$name" "$@" || continue
    export MUTANT=$name root=..
    if is_patch "$name"; then
        root=$tree
        patch_tree "$name"
    fi
    if ! cargo_test "$kind" --no-run >"$log" 2>&1; then
        echo "$name does not compile:" >&2
        tail -n 20 "$log" >&2
        exit 1
    fi
    # Ten times as long as without the fault, and 20 s at least; half of that for a test that watches itself.
    seconds=$((took[$kind $filter] / 100))
    seconds=$((seconds > 20 ? seconds : 20))
    status=0
    WATCHDOG_SECONDS=$((seconds / 2)) timeout "$seconds" "$BASH" -c \
        "$(declare -f cargo_test); target='$target'; cargo_test $kind $filter" >"$log" 2>&1 || status=$?
    case $status in
    0) verdict=SURVIVED survivors+=("$name") ;;
    124) verdict=hung caught=$((caught + 1)) ;;
    *) verdict=caught caught=$((caught + 1)) ;;
    esac
    printf '  %-28s %-8s %-42s %s\n' "$name" "$kind" "$filter" "$verdict"
    ! is_patch "$name" || patch_tree "$name" --reverse
done <<<"$table"

echo "$caught caught, ${#survivors[@]} survived"
((${#survivors[@]} == 0))
