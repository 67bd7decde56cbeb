//! The page that Xen shares with a guest, as far as event channels need it.

use core::sync::atomic::{AtomicU64, Ordering::*};

/// Words of 64 ports each.
const WORDS: usize = 64;
/// How many event channels the page knows.
pub(super) const PORTS: u32 = WORDS as u32 * u64::BITS;

/// `struct shared_info` of 64-bit x86, up to its event channels of two levels.
///
/// Xen's own guides name the fields and not their places. What is checked against: the reference of the crate `libxen-sys` on docs.rs
/// (`shared_info_t`), generated from the public interface, which has 32 `vcpu_info` and then 64 words each of `evtchn_pending` and
/// `evtchn_mask`. By `vcpu_info_t` and `vcpu_time_info_t` there, a `vcpu_info` is two flags and a selector (16 bytes), two words of the
/// architecture (16), and the time (32). That the architecture has two words is not in that reference: it is from memory.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct SharedInfo {
    vcpus: [[AtomicU64; 8]; 32],
    pending: [AtomicU64; WORDS],
    masked: [AtomicU64; WORDS],
}

const _: () = assert!(core::mem::offset_of!(SharedInfo, pending) == 2048);
const _: () = assert!(core::mem::offset_of!(SharedInfo, masked) == 2560);

impl SharedInfo {
    /// A page for Xen's to appear at.
    #[expect(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self {
            vcpus: [const { [const { AtomicU64::new(0) }; 8] }; 32],
            pending: [const { AtomicU64::new(0) }; WORDS],
            masked: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Makes `port` one that is polled, and delivered to nobody.
    pub(super) fn mask(&self, port: u32) {
        let (word, bit) = place(port);
        // SeqCst, as all of this is to the hypervisor, whose orderings nobody here knows: it is a slow path.
        self.masked[word].fetch_or(bit, SeqCst);
    }

    /// Whether an event was pending on `port`; none is, then.
    pub(super) fn take(&self, port: u32) -> bool {
        let (word, bit) = place(port);
        // SeqCst: the caller looks at what the event is about afterwards.
        self.pending[word].fetch_and(!bit, SeqCst) & bit != 0
    }
}

const fn place(port: u32) -> (usize, u64) {
    ((port / u64::BITS) as usize, 1 << (port % u64::BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_one_bit_of_each_kind() {
        assert_eq!(PORTS, 4096);
        for (port, word, bit) in [(1, 0, 1), (63, 0, 63), (64, 1, 0), (4095, 63, 63)] {
            let page = SharedInfo::new();
            page.mask(port);
            page.pending[word].store(!0, Relaxed);
            assert!(page.take(port) && !page.take(port), "an event is taken once");
            assert_eq!(page.pending[word].load(Relaxed), !(1_u64 << bit), "and other ports keep theirs");
            assert_eq!(page.masked[word].load(Relaxed), 1_u64 << bit);
            let others = (0..WORDS).filter(|other| *other != word);
            assert!(
                others
                    .clone()
                    .all(|other| page.masked[other].load(Relaxed) == 0
                        && page.pending[other].load(Relaxed) == 0)
            );
        }
    }
}
