//! The guest by itself, under a monitor that knows nothing of Haltkick: QEMU, Firecracker, cloud-hypervisor.
//!
//! Work that our VMM does elsewhere is done here: the boot CPU lays out memory, starts the other CPUs and keeps
//! the measuring window, all as the image's request says; the others are the vCPUs of the run, from 0 on.
//! The boot CPU takes no locks, so that no timer interrupts a vCPU. It sleeps by HLT between its looks at the
//! clock. vCPUs sleep as in `halt`. When the window has closed they are stopped where they are, by INIT. Their
//! results in shared memory go out through the debug console, for the same program on the host to judge.
//!
//! `monitor::hypercall` does what the VMM would have done for a hypercall, and `monitor::record` writes all that goes out.

mod boot;
mod ground;
mod start;
mod tables;
