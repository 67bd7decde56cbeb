//! A choice that is in the code: where a lock asks, there is an instruction of a native lock, which may be a NOP, or a jump (a static key).
//!
//! No load and no compare: an answer costs what a NOP of five bytes costs. A native unlock of the
//! layout [`Packed`](super::Packed) does not cost even that, for its place is the store that releases the lock. The
//! places lie in a section of the image, and a kernel that boots as a virtual machine writes a jump into each of them.
//! Only the kernel knows how to write code: its text may be mapped read-only, or at another address.
//!
//! ```
//! use haltkick_qspin::{Chosen, QSpinLock, patched_choice};
//!
//! patched_choice! {
//!     /// What this kernel's locks are: native, until they are made paravirtual.
//!     pub Form;
//! }
//!
//! static LOCK: QSpinLock<Chosen<Form>> = QSpinLock::new();
//!
//! /// On the boot CPU, before another one runs; the text of this kernel is writable.
//! fn boot(hypervisor_kicks: bool) {
//!     if hypervisor_kicks {
//!         // SAFETY: no other CPU runs, no lock has been taken, and what is written is seen by all who run.
//!         unsafe { Form::make_paravirtual(|place, jump| place.cast::<[u8; 5]>().write_unaligned(jump)) };
//!     }
//! }
//! ```
//!
//! The section is called `haltkick_choices`. Linkers for ELF say where a section with such a name begins and ends, and keep it; a linker
//! script of a kernel keeps it with `KEEP(*(haltkick_choices))` in an output section of that name, in read-only data.
#![expect(unsafe_code, reason = "the table of places is made by the assembler and the linker")]

use core::{arch::asm, ptr, slice};

/// One place in the code at which a lock asks for its form, as the assembler lays it out: distances from each field, so that
/// no address is relocated.
#[repr(C)]
struct CallSite {
    /// To the five bytes.
    code: i32,
    /// To what runs if the locks are paravirtual.
    paravirtual: i32,
    /// To the byte that stands for the choice.
    choice: i32,
}

/// Opcode and length of a jump with a distance of four bytes.
const JUMP: (u8, usize) = (0xe9, 5);

fn pointed_to(field: &i32) -> *const u8 {
    ptr::from_ref(field).cast::<u8>().wrapping_offset(*field as isize)
}

impl CallSite {
    /// The five bytes of code.
    fn address(&self) -> *mut u8 {
        pointed_to(&self.code).cast_mut()
    }

    /// Returns the bytes of the place for paravirtual locks.
    fn jump(&self) -> [u8; 5] {
        let distance =
            pointed_to(&self.paravirtual).addr().wrapping_sub(self.address().addr() + JUMP.1) as i32;
        let [a, b, c, d] = distance.to_le_bytes();
        [JUMP.0, a, b, c, d]
    }
}

/// All places of all choices in this image.
#[inline(never)]
fn places() -> &'static [CallSite] {
    unsafe extern "C" {
        #[link_name = "__start_haltkick_choices"]
        static FIRST: CallSite;
        #[link_name = "__stop_haltkick_choices"]
        static END: CallSite;
    }
    // SAFETY: adds a place of no choice to the table, so that there is a table in an image without places; touches nothing.
    unsafe {
        asm!(
            ".pushsection haltkick_choices, \"aR\", @progbits",
            ".p2align 2",
            ".long 0, 0, 0",
            ".popsection",
            options(nomem, nostack, preserves_flags),
        );
    }
    let (first, end) = (&raw const FIRST, &raw const END);
    // SAFETY: the linker puts the entries of all objects there one after the other, and nothing else; they are never
    // written.
    unsafe { slice::from_raw_parts(first, (end.addr() - first.addr()) / size_of::<CallSite>()) }
}

/// Writes a jump into each place of the choice that `choice` stands for; how many there were.
///
/// # Safety
///
/// As of `make_paravirtual` of [`patched_choice!`](crate::patched_choice).
#[doc(hidden)]
pub unsafe fn make_paravirtual(choice: *const u8, mut write: impl FnMut(*mut u8, [u8; 5])) -> usize {
    let of_this = places().iter().filter(|place| ptr::eq(pointed_to(&place.choice), choice));
    of_this.map(|place| write(place.address(), place.jump())).count()
}

/// Declares types that choose for [`Chosen`](crate::Chosen) locks by code that is patched: `patched_choice! { pub Name; }`. The locks are
/// native until `Name::make_paravirtual` has patched them. For x86-64 and linkers for ELF; [`choice!`](crate::choice) is for all.
#[macro_export]
macro_rules! patched_choice {
    ($($(#[$attribute:meta])* $visibility:vis $name:ident;)+) => {$(
        $(#[$attribute])*
        #[derive(Debug)]
        $visibility enum $name {}

        const _: () = {
            /// Its address stands for the choice.
            static CHOICE: u8 = 0;

            impl $name {
                /// Makes the locks paravirtual: `write(place, jump)` for each place in the code that asks, and how many there were.
                /// It puts these five bytes there, through whatever mapping can be written. Doing it again changes nothing.
                ///
                /// # Safety
                ///
                /// No lock of this choice is held or waited for, and no CPU is where one asks: the boot CPU calls this before it takes
                /// such a lock, and before it starts another CPU. When this returns, each CPU executes what was written (on
                /// x86-64, one that begins later does, and the CPU that wrote does after the next jump).
                $visibility unsafe fn make_paravirtual(write: impl FnMut(*mut u8, [u8; 5])) -> usize {
                    // SAFETY: the caller promises it.
                    unsafe { $crate::make_paravirtual(&raw const CHOICE, write) }
                }
            }

            #[allow(unsafe_code, reason = "all places are changed, by a promise, while nobody asks")]
            // SAFETY: all places say native, until `make_paravirtual` has changed them all; who calls it promises that no lock
            // that asks is held or waited for.
            unsafe impl $crate::Choice for $name {
                #[inline(always)]
                fn is_paravirtual() -> bool {
                    // SAFETY: does nothing, or jumps to the block.
                    unsafe {
                        ::core::arch::asm!(
                            "2: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00", // nopl 0(%rax,%rax)
                            ".pushsection haltkick_choices, \"aR\", @progbits",
                            ".p2align 2",
                            ".long 2b - ., {paravirtual} - ., {choice} - .",
                            ".popsection",
                            paravirtual = label { return true },
                            choice = sym CHOICE,
                            options(nomem, nostack, preserves_flags),
                        );
                    }
                    false
                }

                #[inline(always)]
                unsafe fn clear_unless_paravirtual(byte: *mut u8) -> bool {
                    // The store has a distance of four bytes, which makes it long enough for a jump to lie in it.
                    // SAFETY: does what the caller asks for, or jumps to the block.
                    unsafe {
                        ::core::arch::asm!(
                            "2: {{disp32}} mov byte ptr [{byte}], 0",
                            ".pushsection haltkick_choices, \"aR\", @progbits",
                            ".p2align 2",
                            ".long 2b - ., {paravirtual} - ., {choice} - .",
                            ".popsection",
                            byte = in(reg) byte,
                            paravirtual = label { return true },
                            choice = sym CHOICE,
                            options(nostack, preserves_flags),
                        );
                    }
                    false
                }
            }
        };
    )+};
}
