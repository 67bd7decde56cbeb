//! What runs a guest: our own VMM, on KVM or in this process; QEMU; and our own VMM again, under a Linux kernel instead of our guest.

pub(crate) mod linux;
pub(crate) mod qemu;
pub(crate) mod vmm;
