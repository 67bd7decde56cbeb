//! Code of the running program that is rewritten, as a kernel does when it boots.
#![expect(unsafe_code, reason = "code is written")]

use std::sync::Mutex;

use rustix::mm::{MprotectFlags, mprotect};

const PAGE: usize = 4096;

/// Writes five bytes of this program's code.
///
/// # Panics
/// If the kernel does not allow code to be writable for a moment.
///
/// # Safety
/// No thread executes these bytes meanwhile, and executing what is written is sound.
pub unsafe fn write_code(place: *mut u8, bytes: [u8; 5]) {
    /// If two threads wrote to one page, the first would take away the protection that the other needs.
    static WRITING: Mutex<()> = Mutex::new(());
    let _alone = WRITING.lock();
    let within = place.addr() % PAGE;
    let (page, length) = (place.wrapping_sub(within), (within + bytes.len()).next_multiple_of(PAGE));
    let protect = |flags| {
        // SAFETY: these pages of code stay executable and readable, for other threads that go on in them.
        unsafe { mprotect(page.cast(), length, MprotectFlags::READ | MprotectFlags::EXEC | flags) }
            .expect("code may be made writable");
    };
    protect(MprotectFlags::WRITE);
    // SAFETY: the page is writable; the rest is the caller's promise.
    unsafe { place.cast::<[u8; 5]>().write_unaligned(bytes) };
    protect(MprotectFlags::empty());
}
