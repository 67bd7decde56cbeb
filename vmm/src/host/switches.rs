//! Reports on the switches of the threads that run vCPUs: the layout is shared with the BPF programs of
//! `switch_probe`, which write it.

/// One report of the BPF program. The layout is the program's, too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Switch {
    /// Host time.
    pub(crate) at_ns: u64,
    /// Start of the vCPU's wait, by its own statement, in TSC ticks.
    pub(crate) since_tsc: u64,
    /// Sections that it says it has entered.
    pub(crate) entered: u64,
    /// Sections entered of the lock that it says it is at.
    pub(crate) lock_entered: u64,
    pub(crate) vcpu: u32,
    /// The pCPU of the switch.
    pub(crate) pcpu: u32,
    /// The lock that the vCPU is at, by its own statement.
    pub(crate) lock: u32,
    /// vCPU inside that lock's section plus one, or zero.
    pub(crate) lock_owner: u32,
    /// The vCPU's activity, by its own statement.
    pub(crate) state: u32,
    /// One of [`OUT_READY`] and its siblings.
    pub(crate) kind: u32,
    /// A [`ThreadDoes`].
    pub(crate) thread_does: u32,
    pub(crate) unused: u32,
}

/// The vCPUs, locks and pCPUs to report on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reported<'a> {
    pub(crate) vcpus: u32,
    pub(crate) locks: u32,
    pub(crate) pcpus: &'a [u32],
}

/// The thread lost its CPU and could go on.
pub(crate) const OUT_READY: u32 = 1;
/// The thread gave its CPU up: it sleeps.
pub(crate) const OUT_BLOCKED: u32 = 2;
/// The thread got a CPU.
pub(crate) const IN: u32 = 3;
/// Another thread got a CPU, and may have kept this vCPU waiting, which runs.
pub(crate) const LOOK: u32 = 4;
/// The thread sleeps no more.
pub(crate) const WOKEN: u32 = 5;

/// Activity of a vCPU's thread, as far as it tells what a switch means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ThreadDoes {
    /// Runs the vCPU, or serves it.
    Runs = 0,
    /// Sleeps for it, in `pv_wait`.
    Waits = 1,
    /// Keeps it out on purpose.
    KeepsOut = 2,
    /// Yields for it.
    Yields = 3,
    /// Is done with it.
    Left = 4,
}
