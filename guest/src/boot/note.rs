//! Note that the VMM reads before it runs the image: the ABI that it was built for, and where its vector stubs
//! are.
#![expect(unsafe_code, reason = "a note in a section of its own, with an address in it")]

use haltkick_hypercalls::{ABI_FINGERPRINT, ABI_VERSION, ImageNote, NOTE_OWNER, NOTE_TYPE};

use crate::traps::exceptions;

/// An ELF note: sizes, type, owner padded to four bytes, descriptor.
#[repr(C)]
struct Note {
    owner_bytes: u32,
    descriptor_bytes: u32,
    kind: u32,
    owner: [u8; NOTE_OWNER.len().next_multiple_of(4)],
    abi_version: u32,
    vector_stub_bytes: u32,
    vector_stubs: Unaligned,
    fingerprint: [u32; 2],
}

/// A pointer that an ELF note holds at four-byte alignment.
#[repr(C, packed(4))]
struct Unaligned(*const u8);

// SAFETY: an address in a note that only the VMM's loader reads.
unsafe impl Sync for Unaligned {}

#[used]
#[unsafe(link_section = ".note.haltkick")]
static NOTE: Note = Note {
    owner_bytes: NOTE_OWNER.len() as u32,
    descriptor_bytes: size_of::<ImageNote>() as u32,
    kind: NOTE_TYPE,
    owner: {
        let mut owner = [0; NOTE_OWNER.len().next_multiple_of(4)];
        let mut i = 0;
        while i < NOTE_OWNER.len() {
            owner[i] = NOTE_OWNER[i];
            i += 1;
        }
        owner
    },
    abi_version: ABI_VERSION,
    vector_stub_bytes: exceptions::STUB_BYTES,
    vector_stubs: Unaligned(&raw const exceptions::STUBS),
    fingerprint: [ABI_FINGERPRINT as u32, (ABI_FINGERPRINT >> 32) as u32],
};
