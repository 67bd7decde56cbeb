//! Native or paravirtual, chosen when the kernel boots: one image for machines and for virtual machines.
//!
//! The fast path of `lock` is the same in both forms, so the choice costs something in `unlock` alone (a byte store, or
//! a compare-exchange), and in the slow path of `lock`. The kernel decides how the lock looks ([`Choice`]): on x86-64,
//! a kernel that can write its own code has an instruction of the native lock there, or a jump
//! ([`patched_choice!`](crate::patched_choice)). [`choice!`](crate::choice) is for all others: one load of a line that
//! is no longer written, and a compare.
//!
//! The two forms read the pending bit in two ways, so locks that are native for one CPU and paravirtual for another
//! would not exclude. The first look at an undecided [`Latch`] decides it for good.
//!
//! ```
//! use haltkick_qspin::{Chosen, QSpinLock, choice};
//!
//! choice! {
//!     /// What this kernel's locks are.
//!     pub Form;
//! }
//!
//! static LOCK: QSpinLock<Chosen<Form>> = QSpinLock::new();
//!
//! // Early, before there is anybody to wait for: CPUID says whether the hypervisor can wake a halted virtual CPU.
//! let hypervisor_kicks = true;
//! Form::choose(hypervisor_kicks).expect("no lock has been contended or released yet");
//! assert!(Form::choose(false).is_err(), "for good");
//! ```

use core::{error, fmt, marker::PhantomData};

use super::{
    choice::Choice,
    domain::Memory,
    mode::{Mode, sealed},
    native::Native,
    policy::{Policy, Pv},
    word::Word,
};
use crate::{
    faults::mutant::mutant,
    memory::sync::{AtomicU8, AtomicU32, Ordering::Relaxed, const_unless_loom},
};

/// As [`Native`], or as the paravirtual `P`, as `C` says.
pub struct Chosen<C, P = Pv>(PhantomData<fn() -> (C, P)>);

impl<C, P> fmt::Debug for Chosen<C, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chosen")
    }
}

impl<C: Choice, P: Policy> sealed::Sealed for Chosen<C, P> {}

impl<C: Choice, P: Policy> Mode for Chosen<C, P> {
    #[cold]
    #[inline(never)]
    fn lock_slow<W: Word, D: Memory>(word: &AtomicU32, domain: &D, seen: u32) {
        if C::is_paravirtual() {
            P::lock_slow::<W, D>(word, domain, seen);
        } else {
            Native::lock_slow::<W, D>(word, domain, seen);
        }
    }

    #[inline(always)]
    fn before_lock<D: Memory>(domain: &D) {
        if P::WORK_CONSERVING && C::is_paravirtual() {
            P::before_lock(domain);
        }
    }

    #[inline(always)]
    fn unlock<W: Word, D: Memory>(word: &AtomicU32, domain: &D) {
        if W::unlock_unless::<C>(word) {
            P::unlock::<W, D>(word, domain);
        }
    }
}

/// A choice that is made once, at the latest by who looks at it.
///
/// Relaxed throughout: it publishes nothing but itself, and all CPUs agree on the order of its two values.
#[derive(Debug)]
pub struct Latch(AtomicU8);

const UNDECIDED: u8 = 0;
const NATIVE: u8 = 1;
const PARAVIRTUAL: u8 = 2;

impl Latch {
    const_unless_loom! {
        /// Not decided yet.
        #[expect(clippy::new_without_default, reason = "it is made in a static, where Default cannot be used")]
        pub const fn new() -> Self {
            Self(AtomicU8::new(UNDECIDED))
        }
    }

    /// Decides, if there is no decision yet.
    ///
    /// # Errors
    ///
    /// If the decision was different, or a lock had to know before there was one: native then.
    pub fn choose(&self, paravirtual: bool) -> Result<(), TooLate> {
        let wanted = if paravirtual { PARAVIRTUAL } else { NATIVE };
        match self.0.compare_exchange(UNDECIDED, wanted, Relaxed, Relaxed) {
            Err(decided) if decided != wanted => Err(TooLate { paravirtual: decided == PARAVIRTUAL }),
            _ => Ok(()),
        }
    }

    /// Whether the locks are paravirtual. Undecided so far means native.
    #[inline(always)]
    pub fn is_paravirtual(&self) -> bool {
        match self.0.load(Relaxed) {
            NATIVE => false,
            PARAVIRTUAL => true,
            _ => mutant!("chosen-undecided": self.decide() => false),
        }
    }

    #[cold]
    #[inline(never)]
    fn decide(&self) -> bool {
        self.choose(false).is_err()
    }
}

/// The form of the locks was decided before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLate {
    paravirtual: bool,
}

impl fmt::Display for TooLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.paravirtual { "paravirtual" } else { "native" };
        write!(f, "locks are {form} already: one of them had to know, or somebody has decided")
    }
}

impl error::Error for TooLate {}

/// Declares types that choose for [`Chosen`] locks: `choice! { pub Name; }`. `Name::choose(paravirtual)` decides, once.
#[macro_export]
macro_rules! choice {
    ($($(#[$attribute:meta])* $visibility:vis $name:ident;)+) => {$(
        $(#[$attribute])*
        #[derive(Debug)]
        $visibility enum $name {}

        impl $name {
            #[inline(always)]
            fn latch() -> &'static $crate::Latch {
                static LATCH: $crate::Latch = $crate::Latch::new();
                &LATCH
            }

            /// Whether the locks are to be paravirtual.
            ///
            /// # Errors
            ///
            /// If that was decided otherwise, or a lock had to know before: native then.
            $visibility fn choose(paravirtual: bool) -> ::core::result::Result<(), $crate::TooLate> {
                Self::latch().choose(paravirtual)
            }
        }

        #[allow(unsafe_code, reason = "the latch keeps the promise")]
        // SAFETY: each call returns the decision or makes it, for all callers and for good.
        unsafe impl $crate::Choice for $name {
            #[inline(always)]
            fn is_paravirtual() -> bool {
                Self::latch().is_paravirtual()
            }
        }
    )+};
}
