#!/usr/bin/env bash
# Boots a kernel in QEMU: `cargo run`. ACCEL=kvm for KVM (tcg: the emulator, anywhere); CPU is a model of QEMU's, for hosts that refuse the default.
# The kernel ends QEMU by its debug-exit device: status 33 is success.
set -uo pipefail
timeout "${SECONDS_AT_MOST:-300}" qemu-system-x86_64 \
    -accel "${ACCEL:-tcg}" -cpu "${CPU:-max}" -smp 2,sockets=1 -m 64M -display none -serial stdio -monitor none -no-reboot -nodefaults \
    -device isa-debug-exit,iobase=0xf4,iosize=4 -kernel "$1"
status=$?
[ "$status" -eq 33 ] || { echo "the kernel has failed: QEMU ended with $status" >&2; exit 1; }
