//! Activities of a CPU with locks, as the host sees them.

/// Activity of a CPU as seen by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Activity {
    /// Work that concerns no lock.
    Other = 0,
    /// Owns a lock: is in a section.
    Holder = 1,
    /// Waits for a lock, behind others or in no particular order. Set by the lock.
    Waiter = 2,
    /// Waits for a lock and is the next to be served. Set by the lock.
    Head = 3,
}

impl Activity {
    /// Returns the activity of a CPU that has announced this one and is in `sections` critical sections.
    ///
    /// A CPU that waits for a lock while it holds another one is a holder first, because others wait for it. A CPU that
    /// is about to kick has released a lock that its user still counts.
    #[inline(always)]
    pub const fn among(self, sections: u32) -> Self {
        let still_counted = matches!(self, Self::Other) as u32;
        if sections > still_counted { Self::Holder } else { self }
    }
}
