#!/usr/bin/env bash
# The last lines of `just test`: on what the end-to-end tests ran, best engine first. A failed test ends `just test` before
# that. Reads what the tests noted in the file $HALTKICK_RAN_ON (vmm/tests/support/src/trials.rs).
set -euo pipefail

names=(kvm "/dev/kvm" qemu-kvm "QEMU with KVM" qemu-tcg "QEMU with TCG" threads "threads of the host" nested "KVM with hardware semantics, emulated")
ran="ran on"
for ((i = 0; i < ${#names[@]}; i += 2)); do
    engine=${names[i]} name=${names[i + 1]}
    # The last line counts: somebody may have run a part again.
    read -r _ verdict rest < <(grep "^$engine " "$HALTKICK_RAN_ON" 2>/dev/null | tail -n 1) || verdict=none
    case $verdict in
        passed)
            echo "just test: end-to-end tests $ran $name${rest:+: $rest passed}"
            ran="ran too on"
            ;;
        skipped) echo "just test: end-to-end tests did not run on $name: $rest" ;;
        *) echo "just test: end-to-end tests did not run on $name" ;;
    esac
done
