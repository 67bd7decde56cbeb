//! The watcher of the host's scheduler, and the writer of the `preempted` flag that the guest reads.
//!
//! Under the VMM's scheduler the VMM does, exactly (see `account`). Under the host's, KVM does where it can; where it
//! does not, a BPF program may (see `switch_probe`); otherwise the flag is not written, and the run says why.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::guest::memory::Memory;
use crate::host::clock::Clock;
use crate::host::error::{Known, Unknown};
use crate::host::switch_probe::{Reported, SwitchProbe, ThreadDoes};

/// The writer of the `preempted` flag under the host's scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreemptedBy {
    /// KVM where it does, else a BPF program where that can be had.
    #[default]
    Auto,
    /// KVM.
    Kvm,
    /// The BPF program.
    Bpf,
}

/// Writer of the `preempted` flag that the guest reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptedSource {
    /// The VMM's own scheduler, exactly.
    Vmm,
    /// KVM, through the steal-time page.
    Kvm,
    /// A BPF program on the kernel's scheduler, in a map of its own.
    Bpf,
}

impl PreemptedSource {
    /// The writer under the host's scheduler that `wanted` comes to on this host, where `refused` is why KVM does not keep the
    /// steal-time record, if so, and `probe` gives the BPF program if that is needed.
    pub(crate) fn choose<'p>(
        wanted: PreemptedBy,
        refused: Option<Unknown>,
        memory: &Memory,
        probe: impl FnOnce() -> Known<&'p SwitchProbe>,
    ) -> Known<Self> {
        let by_bpf = || {
            memory.map_flags(probe()?.flags()).map_err(refusal)?;
            Ok(Self::Bpf)
        };
        match (wanted, refused) {
            (PreemptedBy::Kvm, None) => Ok(Self::Kvm),
            (PreemptedBy::Kvm, Some(reason)) => Err(reason),
            (PreemptedBy::Auto, None) if kvm_sets_the_flag() => Ok(Self::Kvm),
            (PreemptedBy::Auto, refused) => {
                let kvm =
                    refused.unwrap_or_else(|| "this KVM keeps the record but never sets the flag".into());
                by_bpf().map_err(|bpf| format!("{kvm}; {bpf}").into())
            }
            (PreemptedBy::Bpf, _) => by_bpf(),
        }
    }
}

/// A vCPU's flag as the VMM has set it, for comparison with what others have read. In lines of its
/// own: those of others change with each of their turns.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ToldFlag {
    /// TSC since when it has told what it tells; `u64::MAX` while that changes.
    since_tsc: AtomicU64,
    set: AtomicBool,
}

impl ToldFlag {
    /// Does `write`, which makes the flag say `set`. One thread at a time: the one that has the vCPU.
    pub(super) fn change(&self, clock: &Clock, set: bool, write: impl FnOnce()) {
        // SeqCst: in this order, to every reader. Partner: `at`.
        self.since_tsc.store(u64::MAX, Ordering::SeqCst);
        write();
        self.set.store(set, Ordering::SeqCst);
        self.since_tsc.store(clock.tsc(), Ordering::SeqCst);
    }

    /// Value of the flag from `tsc` until now, if it was the same all the time.
    pub(super) fn at(&self, tsc: u64) -> Option<bool> {
        // SeqCst: partner of `change`. If `since_tsc` is the same before and after, `set` belongs to it.
        let since_tsc = self.since_tsc.load(Ordering::SeqCst);
        let set = self.set.load(Ordering::SeqCst);
        (since_tsc < tsc && self.since_tsc.load(Ordering::SeqCst) == since_tsc).then_some(set)
    }
}

/// The watcher of the host's scheduler for one guest.
#[derive(Debug)]
pub(crate) struct Watcher {
    /// The programs that report switches, or why there are none.
    reports: Known<SwitchProbe>,
    /// The program for the flags alone, where no other is there.
    flags: Option<SwitchProbe>,
}

impl Watcher {
    pub(crate) fn nothing(reason: impl Into<Unknown>) -> Self {
        Self { reports: Err(reason.into()), flags: None }
    }

    /// The best watcher available for this report, for a guest under the host's scheduler. Call it before anything refers to the
    /// vCPUs' areas.
    pub(crate) fn new(reported: Reported<'_>, memory: &Memory) -> Self {
        let attach = || {
            let probe = SwitchProbe::attach(Some(reported))?;
            probe.watched().map_or(Ok(()), |maps| memory.share_with(maps, reported.locks))?;
            std::io::Result::Ok(probe)
        };
        Self { reports: attach().map_err(refusal), flags: None }
    }

    /// The program for the flags: the one that there is, or one for them alone.
    pub(crate) fn for_flags(&mut self) -> Known<&SwitchProbe> {
        if self.probe().is_none() {
            self.flags = Some(SwitchProbe::attach(None).map_err(refusal)?);
        }
        Ok(self.probe().expect("there is one now"))
    }

    fn probe(&self) -> Option<&SwitchProbe> {
        self.reports.as_ref().ok().or(self.flags.as_ref())
    }

    pub(crate) fn reports(&self) -> Known<&SwitchProbe> {
        self.reports.as_ref().map_err(Clone::clone)
    }

    pub(crate) fn runs_here(&self, vcpu: u32) {
        if let Some(probe) = self.probe() {
            // It fails when the map is full, which has room for all vCPUs. Then this one's flag stays clear.
            let _ = probe.watch(crate::host::signal::Thread::current().id(), vcpu);
        }
    }

    /// The calling thread, which runs `vcpu`, does this from now on.
    pub(crate) fn thread_does(&self, vcpu: u32, what: ThreadDoes) {
        if let Some(probe) = self.probe() {
            probe.thread_does(vcpu, what);
        }
    }
}

/// Whether BPF programs can report the switches of threads on this host, and mark those that it preempts, by attaching them for a moment.
///
/// # Errors
/// Why not, in one line.
pub fn bpf_can_report_switches() -> Known<()> {
    SwitchProbe::attach(Some(Reported { vcpus: 1, locks: 1, pcpus: &[0] })).map(drop).map_err(refusal)
}

fn refusal(error: std::io::Error) -> Unknown {
    let advice = match error.kind() {
        std::io::ErrorKind::PermissionDenied => ": run as root, or with CAP_BPF and CAP_PERFMON",
        _ => "",
    };
    format!("a BPF program on sched_switch cannot be had{advice} ({error})").into()
}

/// Whether this host's KVM sets the flag: those for VMX and SVM do; PVM, which exits where KVM does not take a vCPU for
/// preempted, does not.
fn kvm_sets_the_flag() -> bool {
    let loaded = |module: &str| std::fs::exists(format!("/sys/module/{module}")).unwrap_or(false);
    (loaded("kvm_intel") || loaded("kvm_amd")) && !loaded("kvm_pvm")
}
