//! A grant table: shared entries, active entries, and the lock that keeps their number.

use haltkick_locks::{CachePadded, PerCpuRwDomain, ReaderSlot, RwLock, mutant::mutant};

use super::{SharedEntry, maptrack::List};

use crate::{
    interface::{Access, Status},
    locking::{Guarded, Kernel, MaptrackLocking, Readers, Scheme, Taken},
    machine::{Memory, Sizes, Vcpu},
};

/// Entries per page of the shared table.
pub const ENTRIES_PER_PAGE: usize = 512;

/// A table's lock, and what shares its line.
pub(crate) struct Line<S: Scheme> {
    table: S::TableLock,
    /// The free handles of the domain, where its maptrack lock is not padded.
    handles: Option<List<S::Kernel>>,
}

pub(crate) struct Table<S: Scheme> {
    line: &'static CachePadded<Line<S>>,
    /// Readers in the slots of all tables.
    pub(crate) readers: Readers<S::Kernel>,
    /// The domain that grants by this table.
    owner: u16,
    /// Entries that there are. Protected by the lock: changed by a writer only.
    pub(crate) count: Guarded,
    /// Entries that the domain writes as it likes, beyond the end of the table too.
    pub(crate) shared: &'static [SharedEntry],
    pub(crate) active: &'static [Active<S::Kernel>],
}

/// Both sides of one entry.
pub(crate) struct Entry<'a, S: Scheme> {
    pub(crate) reference: u32,
    pub(crate) shared: &'a SharedEntry,
    pub(crate) active: &'a Active<S::Kernel>,
}

impl<S: Scheme> Table<S> {
    /// `owner`'s table of as many entries as `sizes` says, whose readers use `slots`.
    pub(crate) fn new(memory: &impl Memory, owner: u16, sizes: Sizes, slots: &'static [ReaderSlot]) -> Self {
        let most = sizes.most_references;
        assert!(sizes.references <= most);
        let line = |_| {
            let handles =
                (S::MAPTRACK == MaptrackLocking::Beside).then(|| List::new(0, sizes.handles as u32));
            CachePadded::new(Line { table: S::new_table_lock(), handles })
        };
        Self {
            line: &memory.slice(1, line)[0],
            readers: PerCpuRwDomain::new(S::Kernel::domain(), slots),
            owner,
            count: Guarded::new(sizes.references as u32),
            shared: memory.slice(most, |_| SharedEntry::new()),
            active: memory.slice(most, |_| Active::new()),
        }
    }

    /// Returns the free handles that lie next to the lock, if any do.
    pub(crate) fn handles(&self) -> Option<&'static List<S::Kernel>> {
        self.line.handles.as_ref()
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(&self.line.table).addr()
    }

    /// Does `section` while the table keeps its size.
    #[inline(always)]
    pub(crate) fn read<R>(&self, vcpu: &Vcpu, section: impl FnOnce() -> R) -> R {
        let (lock, domain) = (&self.line.table, S::table_domain(&self.readers));
        let taken = (Taken::TableRead(self.owner), self.address());
        let unlock = |token| lock.read_unlock(domain, token);
        vcpu.under::<S::Kernel, _, _>(taken, || lock.read(domain), section, unlock)
    }

    /// Runs `section` with the table to itself.
    #[inline(always)]
    pub(crate) fn write<R>(&self, vcpu: &Vcpu, section: impl FnOnce() -> R) -> R {
        let (lock, domain) = (&self.line.table, S::table_domain(&self.readers));
        let taken = (Taken::TableWrite(self.owner), self.address());
        let unlock = |token| lock.write_unlock(domain, token);
        vcpu.under::<S::Kernel, _, _>(taken, || lock.write(domain), section, unlock)
    }

    /// Does `section`, which makes or removes a mapping of one of the pages: as [`read`](Self::read), but where the IOMMU is
    /// strict, as [`write`](Self::write).
    #[inline(always)]
    pub(crate) fn map<R>(&self, vcpu: &Vcpu, section: impl FnOnce() -> R) -> R {
        if mutant!("grants-strict-shares": S::STRICT_IOMMU => false) {
            self.write(vcpu, section)
        } else {
            self.read(vcpu, section)
        }
    }

    /// Does `section` while both tables keep their size; once if they are one, else lower address first.
    #[inline(always)]
    pub(crate) fn read_both<R>(&self, other: &Self, vcpu: &Vcpu, section: impl FnOnce() -> R) -> R {
        if mutant!("grants-one-table-twice": self.address() == other.address() => false) {
            return self.read(vcpu, section);
        }
        let in_order = mutant!("grants-tables-as-given": self.address() < other.address() => true);
        let (first, second) = if in_order { (self, other) } else { (other, self) };
        first.read(vcpu, || second.read(vcpu, section))
    }

    /// Entry `reference`, under the lock.
    #[inline(always)]
    pub(crate) fn entry(&self, reference: u32) -> Result<Entry<'_, S>, Status> {
        if reference >= self.count.get() {
            return Err(Status::BadReference);
        }
        let index = reference as usize;
        Ok(Entry { reference, shared: &self.shared[index], active: &self.active[index] })
    }

    /// Grows to `count` entries, under the lock for writing. Growing to less than there is changes nothing.
    pub(crate) fn grow_to(&self, count: u32) -> Result<(), Status> {
        if count as usize > self.shared.len() {
            return Err(Status::NoSpace);
        }
        self.count.set(count.max(self.count.get()));
        Ok(())
    }
}

impl<S: Scheme> Entry<'_, S> {
    /// Does `section` alone with this entry.
    #[inline(always)]
    pub(crate) fn locked<R>(&self, vcpu: &Vcpu, section: impl FnOnce() -> R) -> R {
        if mutant!("grants-no-entry-lock": !S::ENTRY_LOCKS => true) {
            return section();
        }
        let taken = (Taken::Entry(self.reference), core::ptr::from_ref(self.active).addr());
        vcpu.locked::<S::Kernel, _>(taken, &self.active.lock, section)
    }
}

// Active entries: what the mapping side knows of a grant, out of the granter's reach.

/// One entry. But for its lock, protected by that lock, or by the table's where the scheme has no locks here.
#[repr(align(32))]
pub(crate) struct Active<K: Kernel> {
    lock: K::Lock,
    /// Four 8-bit counters, see [`Access::increment`].
    pub(crate) pin: Guarded,
    /// Domain that has pinned it, while the pin is not 0.
    pub(crate) domain: Guarded,
    /// The machine frame that the grant named when it was first pinned.
    pub(crate) frame: Guarded,
}

/// Pins for writing: host and device.
const WRITE_PINS: u32 = 0x00ff_00ff;

impl<K: Kernel> Active<K> {
    pub(crate) fn new() -> Self {
        Self { lock: K::new_lock(), pin: Guarded::new(0), domain: Guarded::new(0), frame: Guarded::new(0) }
    }

    /// Whether there are pins for writing.
    pub(crate) fn is_written(&self) -> bool {
        self.pin.get() & WRITE_PINS != 0
    }

    /// Whether pinning for `access` would overflow a counter.
    pub(crate) fn is_full_for(&self, access: Access) -> bool {
        let (pin, increment) = (self.pin.get(), access.increment());
        (0..4).any(|counter| {
            let shift = counter * 8;
            let full = increment >> shift & 0xff != 0 && pin >> shift & 0xff == 0xff;
            mutant!("grants-full-counter": full => false)
        })
    }
}
