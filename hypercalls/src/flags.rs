//! Types of flags, one for each kind, and what an image says of its locks and workloads in them.

/// Declares a type of flags, so that those of one kind are not taken for those of another.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident: $word:ty { $($(#[$flag_doc:meta])* $flag:ident = $bit:literal;)* }) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(pub $word);

        impl $name {
            /// No flags.
            pub const NONE: Self = Self(0);
            /// All that there are.
            pub const KNOWN: Self = Self(0 $(| 1 << $bit)*);
            $($(#[$flag_doc])* pub const $flag: Self = Self(1 << $bit);)*

            /// These and those.
            #[must_use]
            pub const fn with(self, others: Self) -> Self {
                Self(self.0 | others.0)
            }

            /// These, and those if `condition` holds.
            #[must_use]
            pub const fn with_if(self, condition: bool, others: Self) -> Self {
                if condition { self.with(others) } else { self }
            }

            /// Adds `flags`, or takes them out.
            pub const fn set(&mut self, flags: Self, is_on: bool) {
                self.0 = if is_on { self.0 | flags.0 } else { self.0 & !flags.0 };
            }

            /// Whether all of `flags` are among these.
            #[must_use]
            pub const fn has(self, flags: Self) -> bool {
                self.0 & flags.0 == flags.0
            }
        }

        // No two share a bit.
        const _: () = assert!($name::KNOWN.0.count_ones() == 0 $(+ { let _ = $bit; 1 })*);
    };
}

pub(crate) use flags;

flags! {
    /// Properties of a lock.
    LockFlags: u32 {
        /// It has a native form (`--pv off`).
        HAS_NATIVE = 0;
        /// It has a paravirtual form (`--pv on`).
        HAS_PARAVIRT = 1;
        /// It does not exclude: the measure of the ideal, exempt from the exclusion check.
        IS_LOCK_FREE = 2;
        /// It is a way to serve page faults, for workloads with [`WorkloadFlags::FAULTS_PAGES`]. One that is
        /// [`LockFlags::IS_LOCK_FREE`] as well gives each vCPU an address space of its own there.
        SERVES_FAULTS = 3;
        /// It rings [`PORT_POINT`](crate::PORT_POINT) at those points of its slow path that
        /// [`BootBlock::points`](crate::BootBlock::points) asks for.
        HAS_POINTS = 4;
        /// It can be part of a structure that is made of locks: it is small, needs no token, and is zeros when free.
        IS_PART = 5;
        /// Readers share it.
        HAS_READERS = 6;
        /// An interrupt may come anywhere in it, also where it waits, and take another lock of its kind.
        MAY_BE_INTERRUPTED = 7;
        /// Its waiters spin in the optimistic spin queue.
        HAS_SPIN_QUEUE = 8;
        /// Its native form has a function that takes it if it is free; so far only lock objects say so.
        HAS_TRY = 9;
        /// Its paravirtual form has one.
        HAS_PARAVIRT_TRY = 10;
    }
}

flags! {
    /// Properties of a workload.
    WorkloadFlags: u32 {
        /// It ends by failing on purpose, or checks something.
        IS_SELFTEST = 0;
        /// It has a memory manager: the VMM gives the guest a pool ([`BootBlock::pool`](crate::BootBlock::pool)).
        USES_MEMORY = 1;
        /// It takes page faults: its locks are those with [`LockFlags::SERVES_FAULTS`].
        FAULTS_PAGES = 2;
        /// It has a structure that is made of locks: only those with [`LockFlags::IS_PART`] will do.
        NEEDS_PARTS = 3;
        /// It sets something up before it can be warm, finishes what it does after the window, and looks at what is left: the
        /// VMM waits for [`Control::ready`](crate::Control::ready) and [`Control::at_rest`](crate::Control::at_rest).
        CHECKS_AT_REST = 4;
        /// It notes its critical sections in [`BootBlock::trace_rings`](crate::BootBlock::trace_rings).
        NOTES_SECTIONS = 5;
        /// No vCPU ever holds or awaits a lock in it, whichever lock it is given.
        TAKES_NO_LOCK = 6;
        /// Its operations are sections of the length asked for, under one of the locks each: no lock lets more than locks /
        /// hold of them through.
        IDEAL_IS_SERIAL = 7;
        /// Without a lock it does the same work without contention: no lock lets more through.
        IDEAL_IS_LOCK_FREE = 8;
        /// It keeps [`Activity::awaited_since_tsc`](crate::Activity::awaited_since_tsc), so that waits which have not ended
        /// when the window closes are known.
        NOTES_WAITS = 9;
        /// It is about sleeping and waking: without a paravirtual lock it shows nothing.
        NEEDS_PARAVIRT = 10;
        /// Its vCPUs interrupt each other by [`PORT_INVALIDATE`](crate::PORT_INVALIDATE) and take the last of the locks then: there are two at least,
        /// with [`LockFlags::MAY_BE_INTERRUPTED`].
        INTERRUPTS = 11;
        /// It uses the lock's spin queue alone: only locks with [`LockFlags::HAS_SPIN_QUEUE`] will do.
        NEEDS_SPIN_QUEUE = 12;
        /// It takes locks only if they are free, at times: only forms with such a function will do ([`LockFlags::HAS_TRY`]).
        TRIES = 13;
        /// It counts by what the exclusion checker notes of each section.
        NEEDS_ORACLE = 14;
        /// A simulated machine takes its vCPUs off before each instruction of the lock in turn; with [`WorkloadFlags::INTERRUPTS`] it
        /// interrupts them there. It fills the registers in which a lock can rely on nothing.
        IS_MEDDLED_WITH = 15;
        /// Its sections have lengths, locks, footprints and readers as [`BootBlock::shape`](crate::BootBlock::shape) says, as far as
        /// that concerns them.
        IS_SHAPED = 16;
        /// It waits for arrivals.
        HAS_ARRIVALS = 17;
        /// Its data can lie in the line of its lock.
        CAN_EMBED = 18;
        /// It runs [`BootBlock::tasks`](crate::BootBlock::tasks), which the guest can fold.
        HAS_TASKS = 19;
        /// It has a fixed amount of work, long and nested sections.
        IS_MIXED = 20;
        /// A fixed amount of work is shared out before it begins: each vCPU has as much and leaves when that is done.
        HAS_WORK_FOR_EACH = 21;
    }
}
