//! The contract between the Haltkick guest and its VMM. Definitions only; both sides compile this crate.
//!
//! Read it file by file: the version here, how an image introduces itself (`image`, `flags`), the ports, the boot block, the
//! window (`control`), what each vCPU shares (`vcpu`), histograms. Every field says who writes it. A line
//! (64 bytes) written by one side is never written by the other, and lines of different writers are 128 bytes apart
//! (adjacent-line prefetch), because false sharing on the `preempted` flag is one of the things this project measures.
//!
//! Shared fields are atomics so that both sides may look at them at any time. The VMM believes none of what the
//! guest writes beyond the figure it prints.
#![no_std]

mod boot;
mod control;
mod flags;
mod histogram;
mod image;
mod ports;
mod vcpu;

pub use boot::*;
pub use control::*;
pub use flags::*;
pub use histogram::*;
pub use image::*;
pub use ports::*;
pub use vcpu::*;

use core::sync::atomic::AtomicU8;

/// Version of everything in this crate. The VMM refuses an image that was built for another one, and the guest a VMM.
pub const ABI_VERSION: u32 = 3;

/// The sources of this crate.
const SOURCES: &[(&str, &[u8])] = &[
    ("boot.rs", include_bytes!("boot.rs")),
    ("control.rs", include_bytes!("control.rs")),
    ("flags.rs", include_bytes!("flags.rs")),
    ("histogram.rs", include_bytes!("histogram.rs")),
    ("image.rs", include_bytes!("image.rs")),
    ("lib.rs", include_bytes!("lib.rs")),
    ("ports.rs", include_bytes!("ports.rs")),
    ("vcpu.rs", include_bytes!("vcpu.rs")),
];

/// A number that changes with every byte of these files, so that two sides which were built from different states of them do
/// not take each other for alike: FNV-1a. Both check it, see [`ImageNote::fingerprint`] and [`BootBlock::fingerprint`].
pub const ABI_FINGERPRINT: u64 = {
    let (mut hash, mut file) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while file < SOURCES.len() {
        let (text, mut at) = (SOURCES[file].1, 0);
        while at < text.len() {
            hash = (hash ^ text[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            at += 1;
        }
        file += 1;
    }
    hash
};

/// Filler of a structure that host and guest share. The other side may write there: atomic, like the rest, so that a
/// reference to the structure promises nothing about it.
type Padding<const BYTES: usize> = [AtomicU8; BYTES];

// Layout: what the other side relies on.
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<StealTime>() == 64);
    assert!(offset_of!(StealTime, preempted) == 16);
    assert!(size_of::<HostLine>() == 64);
    assert!(offset_of!(VcpuArea, identity) + offset_of!(Identity, this) == SELF_OFFSET);
    assert!(offset_of!(VcpuArea, identity) + offset_of!(Identity, cpu) == CPU_OFFSET);
    assert!(offset_of!(VcpuArea, identity) + offset_of!(Identity, exception_stack) == EXCEPTION_STACK_OFFSET);
    assert!(offset_of!(VcpuArea, activity).is_multiple_of(128));
    assert!(offset_of!(VcpuArea, invalidation).is_multiple_of(128));
    assert!(offset_of!(VcpuArea, results).is_multiple_of(128));
    assert!(size_of::<VcpuArea>().is_multiple_of(128) && !(size_of::<VcpuArea>() / 128).is_multiple_of(2));
    assert!(align_of::<VcpuArea>() == 128);
    assert!(!(ENTRIES_ROW_BYTES / 128).is_multiple_of(2));
    assert!(size_of::<WorkProbes>() == 128);
    assert!(offset_of!(VcpuArea, work).is_multiple_of(128));
    assert!(size_of::<Control>() == 512);
    assert!(size_of::<Queues>() == 128);
    assert!(offset_of!(Control, work_rate) == 256);
    assert!(offset_of!(Control, pair_ticks) == 280);
    assert!(size_of::<Oracle>() == 128);
    assert!(size_of::<Descriptor>() == 160 + 16 * TIMES);
    assert!(size_of::<ImageNote>() == 24);
    assert!(size_of::<LockCalls>() == 40);
    assert!(size_of::<CallSite>() == 24);
    assert!(size_of::<LockObject>() == 112);
    assert!(size_of::<LockObjects>() == 8 + 112 * MAX_OBJECTS);
    assert!(size_of::<Import>() == 40);
    assert!(size_of::<TraceSection>() == TRACE_SECTION_BYTES);
};

#[cfg(test)]
mod tests {
    extern crate std;

    use std::path::Path;

    #[test]
    fn every_source_counts_towards_the_fingerprint() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: std::vec::Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        let counted: std::vec::Vec<_> = super::SOURCES.iter().map(|(name, _)| *name).collect();
        assert_eq!(counted, names);
    }
}
