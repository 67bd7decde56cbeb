//! The command as its users meet it: what it refuses, runs, writes and survives. One file per concept.
//!
//! Tests that need guests say so and are skipped without a usable /dev/kvm.

mod disasm;
mod experiments;
mod full_disk;
mod help;
mod interrupted;
mod kernels;
mod merged;
mod perfetto;
mod qemu;
mod refused;
mod report;
mod results;
mod runs;
mod support;
mod tiny;
mod trace;
