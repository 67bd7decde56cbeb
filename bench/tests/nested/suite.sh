#!/usr/bin/env bash
# The end-to-end tests on KVM with hardware semantics (see nested.sh). Where that cannot be set up, says why and
# passes nothing.
#
# Under QEMU 7.2 emulated machines die or hang now and then (see nested.sh). So the suite goes through several short-lived ones;
# one that dies or hangs says nothing about the tests, and its shard starts over in a new one. Time in the machine is no time
# at all, and now and then a vCPU stands still for seconds or triple-faults, nobody knows why: tests that failed, and these
# alone, get two more machines, and the summary says so. What fails in each of them has failed. A shard that no machine lived
# through is reported as not tested.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../../.."

# What `just test` says at its end, see ran-on.sh.
note() { [[ -z ${HALTKICK_RAN_ON-} ]] || echo "nested $1" >>"$HALTKICK_RAN_ON"; }

"$here/nested.sh" setup || {
    code=$?
    ((code == 4)) || exit "$code"
    echo "test-nested: skipped, not tested: see the line above"
    note "skipped cannot be set up here, see above"
    exit 0
}

shards=16
ipi_shards=4
linux_shards=2
deaths=0
passed=0
repeated=()
untested=()
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What a shard takes beside its arguments:
package=haltkick-vmm
tests=guests # the test program
options=()   # more options for nested.sh

# shard NAME SECONDS VARIABLE=VALUE...: runs what the variables select until a machine has lived to tell, and what failed there
# again, test by test (the program takes one name at a time).
shard() {
    local name=$1 seconds=$2 variables=("${@:3}") code failed test
    in_machines "${filter[@]}"
    case $code in
        0) return ;;
        "$no_machine") untested+=("$name"); return ;;
    esac
    mapfile -t failed < <(sed -n 's/^---- \(.*\) ----$/\1/p' "$work/output")
    # Without a test that failed it is the program itself.
    if ((${#failed[@]} == 0)); then exit "$code"; fi
    repeated+=("$name")
    for test in "${failed[@]}"; do
        for _ in 1 2; do
            in_machines --exact "$test"
            if ((code == 0 || code == no_machine)); then break; fi
        done
        case $code in
            0) ;;
            "$no_machine") untested+=("$name: $test") ;;
            *) exit "$code" ;;
        esac
    done
}

# in_machines ARGUMENT...: runs the test program with these in one machine after the other, until one has lived to tell. Sets
# `code` of the shard to what the program ended with, and leaves what it printed.
no_machine=125
in_machines() {
    local machines=6
    # SECONDS since the suite began: a host on which every machine hangs would take hours.
    while ((machines-- && SECONDS < 3000)); do
        echo "test-nested: $name"
        code=0
        env "${variables[@]}" \
            CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$here/nested.sh run --timeout $seconds ${options[*]}" \
            cargo test --quiet --package "$package" --test "$tests" -- "$@" | tee "$work/output" || code=$?
        case $code in
            124 | 125) deaths=$((deaths + 1)) ;;
            *)
                count_passed
                return
                ;;
        esac
    done
    code=$no_machine
    echo "test-nested: $name: no machine lived through it"
}

# count_passed: adds the tests that passed in the last machine. What was ignored or filtered out has not.
count_passed() {
    local count
    while read -r count; do passed=$((passed + count)); done < <(sed -n 's/^test result: .* \([0-9]*\) passed;.*/\1/p' "$work/output")
}

filter=("$@")
for ((i = 1; i <= shards; i++)); do
    shard "shard $i of $shards" 180 "HALTKICK_SHARD=$i/$shards"
done
filter=(ipi)
options=(--emulator multi)
for ((i = 1; i <= ipi_shards; i++)); do
    shard "shard $i of $ipi_shards, woken by interrupts" 120 HALTKICK_NESTED_IPI=1 "HALTKICK_SHARD=$i/$ipi_shards"
done

# QEMU with KVM, in the machine. QEMU finds its files there where it has them here.
filter=("$@")
tests=qemu
qemu=$(command -v qemu-system-x86_64)
options=(--memory 1536 --file "$qemu")
for directory in $("$qemu" -L help); do
    for file in pvh.bin bios-microvm.bin; do
        if [[ -e $directory/$file ]]; then options+=(--file "$(realpath --no-symlinks "$directory/$file")"); fi
    done
done
shard "QEMU with KVM" 180 "HALTKICK_QEMU=$qemu"

# The machine's own kernel under haltkick in the machine, with a user space of one static program. Such a kernel's own IPIs
# need a thread for each of the emulator's CPUs, too. With those, QEMU 7.2's nested paging lets Linux triple-fault under stress
# (in eight minutes of eight, on a busy host); with KVM's shadow paging it does not.
mkdir -p "$work"/initrd/{bin,dev,proc}
cp "$(command -v busybox)" "$work/initrd/bin/busybox"
cp "$here/linux-init" "$work/initrd/init"
(cd "$work/initrd" && find . | busybox cpio -o -H newc -R 0:0 2>/dev/null) >"$work/initrd.cpio"
kernel=$(realpath "${CARGO_TARGET_DIR:-target}")/nested/kernel/vmlinuz
package=haltkick
tests=linux
options=(--emulator multi --modparam kvm_amd.npt=0 --memory 1536 --file "$kernel:/linux/vmlinuz" --file "$work/initrd.cpio:/linux/initrd")
for ((i = 1; i <= linux_shards; i++)); do
    shard "shard $i of $linux_shards, a Linux guest" 400 HALTKICK_LINUX=/linux "HALTKICK_SHARD=$i/$linux_shards"
done

list() { (($#)) && printf '%s, ' "$@" | sed 's/, $//' || echo none; }
echo "test-nested: machines that died or hung: $deaths"
echo "test-nested: shards with a test that passed only in another machine: $(list "${repeated[@]}")"
echo "test-nested: shards not tested, since no machine lived through them: $(list "${untested[@]}")"
echo "test-nested: tests that passed: $passed"
# A suite that has tested nothing has not passed, nor has one of which a part could not be tested.
if ((passed == 0)); then
    echo "test-nested: FAILED: nothing was tested"
    exit 1
fi
if ((${#untested[@]})); then
    echo "test-nested: FAILED: see the shards that were not tested"
    exit 1
fi
note "passed $passed tests"
