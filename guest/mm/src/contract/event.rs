//! Events that the memory manager counts, under the names of the threads that it comes from.

/// One event; its discriminant indexes an array of [`Event::COUNT`] counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Event {
    /// Page faults of user addresses.
    PgFault,
    /// Faults handled speculatively.
    SpeculativePgfault,
    /// Given up: the area changed, is being changed, or does not cover the address.
    SpfVmaChanged,
    /// Given up: no `anon_vma` is attached yet.
    SpfVmaNoanon,
    /// Given up: an area or a page table of a kind that is not supported.
    SpfVmaNotsup,
    /// The access is wrong: an error at once.
    SpfVmaAccess,
    /// Given up: the entry that refers to the page table changed.
    SpfPmdChanged,
    /// Given up: the page-table lock is taken.
    SpfPteLock,
    /// Faults handled under the lock of one area.
    VmaLockSuccess,
    /// Given up: the area is locked by a writer, or is another one by now.
    VmaLockAbort,
    /// Given up after locking: needs what only `mmap_sem` protects.
    VmaLockRetry,
    /// The walk found an area that is gone, or a tree that changes; it is walked again.
    VmaLockMiss,
    /// A page that was there already when it was to be installed.
    PgFaultSpurious,
    /// Accesses where nothing is mapped, or of a kind that is not allowed.
    SegmentationFault,
    /// Requests for a page or an area when none was left.
    OutOfMemory,
    /// Invalidations of cached translations, on the CPU that takes the mapping away.
    TlbFlush,
    /// CPUs that were asked, and waited for, to do the same.
    TlbRemoteFlush,
    /// Areas that had to wait for faults to be over before they were given back.
    VmaDeferred,
    /// Times that all faults were found to be over.
    VmaGracePeriod,
}

impl Event {
    /// All events, in the order of their discriminants.
    pub const ALL: [Self; 19] = [
        Self::PgFault,
        Self::SpeculativePgfault,
        Self::SpfVmaChanged,
        Self::SpfVmaNoanon,
        Self::SpfVmaNotsup,
        Self::SpfVmaAccess,
        Self::SpfPmdChanged,
        Self::SpfPteLock,
        Self::VmaLockSuccess,
        Self::VmaLockAbort,
        Self::VmaLockRetry,
        Self::VmaLockMiss,
        Self::PgFaultSpurious,
        Self::SegmentationFault,
        Self::OutOfMemory,
        Self::TlbFlush,
        Self::TlbRemoteFlush,
        Self::VmaDeferred,
        Self::VmaGracePeriod,
    ];

    /// How many events there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PgFault => "pgfault",
            Self::SpeculativePgfault => "speculative_pgfault",
            Self::SpfVmaChanged => "spf_vma_changed",
            Self::SpfVmaNoanon => "spf_vma_noanon",
            Self::SpfVmaNotsup => "spf_vma_notsup",
            Self::SpfVmaAccess => "spf_vma_access",
            Self::SpfPmdChanged => "spf_pmd_changed",
            Self::SpfPteLock => "spf_pte_lock",
            Self::VmaLockSuccess => "vma_lock_success",
            Self::VmaLockAbort => "vma_lock_abort",
            Self::VmaLockRetry => "vma_lock_retry",
            Self::VmaLockMiss => "vma_lock_miss",
            Self::PgFaultSpurious => "pgfault_spurious",
            Self::SegmentationFault => "segmentation_fault",
            Self::OutOfMemory => "mm_out_of_memory",
            Self::TlbFlush => "tlb_flush",
            Self::TlbRemoteFlush => "tlb_remote_flush",
            Self::VmaDeferred => "vma_deferred",
            Self::VmaGracePeriod => "vma_grace_period",
        }
    }
}

const _: () = {
    let mut i = 0;
    while i < Event::COUNT {
        assert!(Event::ALL[i] as usize == i, "ALL is in the order of the discriminants");
        i += 1;
    }
};
