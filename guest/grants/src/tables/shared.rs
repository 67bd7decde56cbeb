//! Shared entries: what the granting domain writes and everybody else distrusts.
//!
//! ```text
//! word    bits 31 to 16          bits 4, 3, 2                      bits 1, 0
//!         domain that may map    writing, reading, readonly        type: none, permit access, accept transfer
//! frame   the granter's frame number
//! ```
//!
//! Flags and domain are one word, so that a check and a change of both are one compare-exchange.

use haltkick_locks::mutant::mutant;

use crate::interface::Status;
use crate::locking::{AtomicU32, Ordering::*};

/// Mask of the type.
pub const TYPE: u32 = 0b11;
/// The frame may be mapped by the domain.
pub const PERMIT_ACCESS: u32 = 1;
/// The domain may give a page to this entry, and map none: refused here, for pages are never given away.
pub const ACCEPT_TRANSFER: u32 = 2;
/// With [`PERMIT_ACCESS`]: for reading only.
pub const READONLY: u32 = 1 << 2;
/// Mapped. Set and cleared by the mapping side.
pub const READING: u32 = 1 << 3;
/// Mapped for writing. Set and cleared by the mapping side.
pub const WRITING: u32 = 1 << 4;

/// Number of times that the mapping side follows an entry that changes meanwhile. Without a bound, a granter
/// that keeps changing it could hold a CPU in a loop, with locks held.
pub const TRIES: usize = 5;

/// One entry of the shared table: eight bytes, 512 to a page.
#[derive(Debug)]
pub struct SharedEntry {
    word: AtomicU32,
    frame: AtomicU32,
}

impl SharedEntry {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU32::new(0), frame: AtomicU32::new(0) }
    }

    /// Grants `domain` what `flags` say for `frame`.
    pub fn publish(&self, domain: u16, flags: u32, frame: u32) {
        // Relaxed: published by the store below.
        self.frame.store(frame, Relaxed);
        // Release: a vCPU that sees the flags finds the frame. Pairs with the acquire in `set_in_use`.
        let release = mutant!("grants-relaxed-publish": Release => Relaxed);
        self.word.store(flags | u32::from(domain) << 16, release);
    }

    /// Takes the grant back; `false` if it is in use.
    pub fn revoke(&self) -> bool {
        // Acquire: what the mapping side did to the page comes before its clearing of the flags. Relaxed on failure:
        // the loop looks again.
        let acquire = mutant!("grants-relaxed-revoke": AcqRel => Relaxed);
        let unless_marked = |seen| (seen & (READING | WRITING) == 0).then_some(0);
        self.word.fetch_update(acquire, Relaxed, unless_marked).is_ok()
    }

    /// Flags and domain. A granter may write anything here at any time.
    pub fn word(&self) -> u32 {
        // Acquire: a granter that sees "not in use" may use the page.
        self.word.load(mutant!("grants-relaxed-look": Acquire => Relaxed))
    }

    /// Writes flags and domain without asking anybody: what a hostile granter does.
    pub fn overwrite(&self, word: u32) {
        // Relaxed: hostile.
        self.word.store(word, Relaxed);
    }

    /// Writes the frame without asking anybody.
    pub fn overwrite_frame(&self, frame: u32) {
        // Relaxed: as above.
        self.frame.store(frame, Relaxed);
    }

    /// The frame that the granter named.
    pub fn frame(&self) -> u32 {
        // Relaxed: ordered by the acquire of the word.
        self.frame.load(Relaxed)
    }

    /// Marks the entry as in use by `domain`, if it permits that, and gives the granter's frame.
    ///
    /// The entry may change between check and mark: the compare-exchange fails then, [`TRIES`] times at most. `unstable`
    /// counts.
    pub(crate) fn set_in_use(&self, domain: u16, write: bool, unstable: impl Fn()) -> Result<u32, Status> {
        let marks = READING | if write { WRITING } else { 0 };
        for _ in 0..TRIES {
            // Acquire: pairs with the release in `publish`.
            let seen = self.word.load(mutant!("grants-relaxed-mark": Acquire => Relaxed));
            if seen & TYPE != PERMIT_ACCESS || seen >> 16 != u32::from(domain) {
                return Err(Status::GeneralError);
            }
            if write && seen & READONLY != 0 {
                return Err(Status::PermissionDenied);
            }
            // AcqRel: acquire as above; release: the mark comes before the accesses to the page that it announces.
            let acquire = mutant!("grants-relaxed-mark": AcqRel => Relaxed);
            let mark = || self.word.compare_exchange(seen, seen | marks, acquire, Relaxed);
            if mutant!("grants-mark-blindly": mark() => Ok(self.word.fetch_or(marks, acquire))).is_ok() {
                return Ok(self.frame());
            }
            unstable();
        }
        Err(Status::GeneralError)
    }

    /// Clears marks. Release: the accesses to the page come before. Pairs with the acquire in `revoke` and `word`.
    pub(crate) fn clear(&self, marks: u32) {
        self.word.fetch_and(!marks, mutant!("grants-relaxed-clear": Release => Relaxed));
    }

    /// Exchanges the contents of two unmapped entries.
    pub(crate) fn swap(&self, other: &Self) {
        // Relaxed: a granter that writes meanwhile gets what it deserves; the mapping side is kept out by the locks.
        for (mine, theirs) in [(&self.frame, &other.frame), (&self.word, &other.word)] {
            let (a, b) = (mine.load(Relaxed), theirs.load(Relaxed));
            mine.store(b, Relaxed);
            theirs.store(a, Relaxed);
        }
    }
}

const _: () = assert!(cfg!(any(loom, shuttle)) || size_of::<SharedEntry>() == 8);
