//! Whether the process began without standard output. Before `main` Rust opens `/dev/null` in place of a closed one, and takes every
//! write for a success.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, fcntl_getfd};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether what is written to standard output is lost.
pub(super) fn is_stdout_closed() -> bool {
    // Relaxed: written before there are threads.
    WAS_CLOSED.load(Ordering::Relaxed)
}

#[used]
#[expect(unsafe_code, reason = "nothing else runs before Rust does")]
// SAFETY: the section holds functions without results that the C library calls, once, before `main`. This one makes a system call
// and a store, and relies on nothing that `main` sets up.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    let is_closed = fcntl_getfd(rustix::stdio::stdout()) == Err(Errno::BADF);
    WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}
