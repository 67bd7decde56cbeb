//! A domain whose memory is lent to it at run time: for kernels that learn how many CPUs there can be when they boot.
//!
//! It begins without any memory, in a static, and the locks work: to take one that is free needs no node. Memory is lent once, for
//! as many CPUs as there can ever be, before the second one starts; those that are plugged in later find their share ready.
#![expect(unsafe_code, reason = "the memory is written once, and read after that")]

use core::{fmt, mem::MaybeUninit};

use super::{
    domain::{Memory, PerCpu, Shared, queues_in_memory},
    table::{Line, Table},
};
use crate::{
    contract::{Domain, Platform, Queues},
    faults::mutant::mutant,
    memory::sync::{AtomicU8, MODELLED, Ordering::*, UnsafeCell, const_unless_loom},
};

/// The memory that all queue spinlocks of one kernel share, as a [`QSpinDomain`](super::QSpinDomain), but borrowed.
///
/// A CPU that has to queue, for a lock or at the table, and for which there is no memory, panics.
pub struct BorrowedQSpinDomain<'m, P> {
    platform: P,
    /// [`NOTHING`], [`BEING_LENT`] or [`LENT`].
    state: AtomicU8,
    /// Written by the CPU that has set the state to `BEING_LENT`; immutable once the state is `LENT`.
    lent: UnsafeCell<Lent<'m>>,
}

#[derive(Clone, Copy)]
struct Lent<'m> {
    cpus: &'m [PerCpu],
    table: &'m [Line],
}

const NOTHING: u8 = 0;
const BEING_LENT: u8 = 1;
const LENT: u8 = 2;

/// As many as the smallest tail of all layouts can name.
const MOST_CPUS: usize = (1 << 14) - 1;

// SAFETY: `lent` is written once, by one CPU, which releases it by the state; others read it when they have acquired that.
unsafe impl<P: Sync> Sync for BorrowedQSpinDomain<'_, P> {}

impl<'m, P> BorrowedQSpinDomain<'m, P> {
    const_unless_loom! {
        /// A domain without memory.
        pub const fn new(platform: P) -> Self {
            let lent = UnsafeCell::new(Lent { cpus: &[], table: &[] });
            Self { platform, state: AtomicU8::new(NOTHING), lent }
        }
    }

    /// Lends it memory for `cpus.len()` CPUs, whatever is in it, and for the table in which sleeping queue heads are found.
    /// Before a second CPU takes a lock.
    ///
    /// # Panics
    ///
    /// If memory was lent before; if `table` is not a power of two lines, at least as many as CPUs and at least 64; or if there
    /// are more than 16,383 CPUs.
    pub fn lend(
        &self,
        cpus: &'m mut [MaybeUninit<super::QSpinCpu>],
        table: &'m mut [MaybeUninit<super::QSpinLine>],
    ) {
        let lines = table.len();
        assert!(cpus.len() <= MOST_CPUS, "the tail of a lock cannot name {} CPUs", cpus.len());
        // As for `QSpinDomain::new`: the table cannot fill.
        assert!(
            lines.is_power_of_two() && lines >= cpus.len() && (MODELLED || lines >= 64),
            "a table of {lines} lines does not do for {} CPUs",
            cpus.len()
        );
        // Relaxed: who succeeds has nothing to see of others, for it is the first.
        let first = self.state.compare_exchange(NOTHING, BEING_LENT, Relaxed, Relaxed);
        assert!(first.is_ok(), "memory was lent to this domain before");
        for cpu in &mut *cpus {
            cpu.write(PerCpu::new());
        }
        for line in &mut *table {
            line.write(Line::new());
        }
        // SAFETY: all of both has just been written.
        let lent = unsafe { Lent { cpus: cpus.assume_init_ref(), table: table.assume_init_ref() } };
        // SAFETY: the cell is this call's, which has made the state `BEING_LENT`.
        self.lent.with_mut(|cell| unsafe { *cell = lent });
        // Release: pairs with the acquire in `lent`.
        self.state.store(LENT, mutant!("lend-relaxed": Release => Relaxed));
    }

    /// Memory that it has been lent: empty at first.
    #[inline]
    fn lent(&self) -> Lent<'m> {
        // Acquire: pairs with the release in `lend`.
        if self.state.load(mutant!("lent-relaxed": Acquire => Relaxed)) == LENT {
            // SAFETY: it is immutable from now on.
            self.lent.with(|lent| unsafe { *lent })
        } else {
            Lent { cpus: &[], table: &[] }
        }
    }

    /// For how many CPUs it has memory.
    pub fn cpus(&self) -> usize {
        self.lent().cpus.len()
    }

    /// As [`QSpinDomain::sleeping_heads`](super::QSpinDomain::sleeping_heads).
    pub fn sleeping_heads(&self) -> usize {
        Table::new(self.lent().table).len()
    }
}

impl<P: Platform> Memory for BorrowedQSpinDomain<'_, P> {
    type Platform = P;

    const MOST_CPUS: usize = MOST_CPUS;

    #[inline]
    fn shared(&self) -> Shared<'_, P> {
        let Lent { cpus, table } = self.lent();
        Shared { platform: &self.platform, cpus, table: Table::new(table) }
    }
}

impl<P: Platform> Domain for BorrowedQSpinDomain<'_, P> {
    type Platform = P;

    #[inline(always)]
    fn platform(&self) -> &P {
        &self.platform
    }

    fn queues(&self) -> Option<Queues> {
        let Lent { cpus, table } = self.lent();
        (!cpus.is_empty()).then(|| queues_in_memory(cpus, table))
    }
}

impl<P: fmt::Debug> fmt::Debug for BorrowedQSpinDomain<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BorrowedQSpinDomain")
            .field("platform", &self.platform)
            .field("cpus", &self.cpus())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    extern crate std;

    use std::boxed::Box;

    use super::*;
    use crate::{contract::test_platform::IDLE, memory::sync::AtomicU32, waiting::nesting::Code};

    #[test]
    fn what_was_in_memory_before_it_was_lent_is_forgotten() {
        let (mut cpus, mut table) = (Box::new_uninit_slice(2), Box::new_uninit_slice(64));
        for _ in 0..2 {
            let domain = BorrowedQSpinDomain::new(IDLE);
            domain.lend(&mut cpus, &mut table);
            assert_eq!(domain.sleeping_heads(), 0);
            let shared = domain.shared();
            assert_eq!(shared.cpu(1).nesting().enter(), 0, "no node is in use");
            shared.register(&AtomicU32::new(0), Code::new(1, 0));
            assert_eq!(domain.sleeping_heads(), 1);
        }
    }
}
