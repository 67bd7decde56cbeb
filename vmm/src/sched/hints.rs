//! Who watches the host's scheduler, and who writes the `preempted` flag that the guest reads.
//!
//! Under the VMM's scheduler the VMM does, exactly (see `account`). Under the host's, KVM does where it can; where it
//! does not, a BPF program may (see `switch_probe`); else nobody does, and the run says why.

use crate::guest::memory::Memory;
use crate::host::switch_probe::SwitchProbe;
use crate::host::switches::{Reported, ThreadDoes};

/// Who is to write the `preempted` flag under the host's scheduler.
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

/// Who writes the flag under the host's scheduler.
#[derive(Debug)]
pub(crate) enum Hints {
    /// KVM, in the steal-time record.
    Kvm,
    /// The BPF program, in a map of its own.
    Bpf,
    /// Nobody; says why.
    Nobody(String),
}

impl Hints {
    /// What `wanted` comes to on this host, where `refused` is why KVM does not keep the steal-time record, if so, and
    /// `probe` gives the BPF program if that is needed.
    pub(crate) fn choose<'p>(
        wanted: PreemptedBy,
        refused: Option<String>,
        memory: &Memory,
        probe: impl FnOnce() -> Result<&'p SwitchProbe, String>,
    ) -> Self {
        let by_bpf = || {
            memory.map_flags(probe()?.flags()).map_err(refusal)?;
            Ok::<_, String>(Self::Bpf)
        };
        match (wanted, refused) {
            (PreemptedBy::Kvm, None) => Self::Kvm,
            (PreemptedBy::Kvm, Some(reason)) => Self::Nobody(reason),
            (PreemptedBy::Auto, None) if kvm_sets_the_flag() => Self::Kvm,
            (PreemptedBy::Auto, refused) => {
                let kvm =
                    refused.unwrap_or_else(|| "this KVM keeps the record but never sets the flag".into());
                by_bpf().unwrap_or_else(|bpf| Self::Nobody(format!("{kvm}; {bpf}")))
            }
            (PreemptedBy::Bpf, _) => by_bpf().unwrap_or_else(Self::Nobody),
        }
    }
}

/// What watches the host's scheduler for one guest.
#[derive(Debug)]
pub(crate) struct Watcher {
    probe: Option<SwitchProbe>,
    /// Why it does not report switches, if it does not.
    pub(crate) silent: Option<String>,
}

impl Watcher {
    /// Nothing does, for this reason.
    pub(crate) fn nothing(reason: String) -> Self {
        Self { probe: None, silent: Some(reason) }
    }

    /// What can be had to report of this, for a guest under the host's scheduler. Before anybody refers to the vCPUs' areas.
    pub(crate) fn new(reported: Reported<'_>, memory: &Memory) -> Self {
        match reporting_probe(reported, memory) {
            Ok(probe) => Self { probe: Some(probe), silent: None },
            Err(reason) => Self::nothing(reason),
        }
    }

    /// The program for the flags: the one that there is, or one for them alone.
    pub(crate) fn for_flags(&mut self) -> Result<&SwitchProbe, String> {
        if self.probe.is_none() {
            self.probe = Some(flag_probe()?);
        }
        Ok(self.probe.as_ref().expect("there is one now"))
    }

    /// The program that reports switches, or why there is none.
    pub(crate) fn reports(&self) -> Result<&SwitchProbe, &str> {
        match (&self.probe, &self.silent) {
            (Some(probe), None) => Ok(probe),
            (_, reason) => Err(reason.as_deref().unwrap_or_default()),
        }
    }

    /// The calling thread runs `vcpu` from now on.
    pub(crate) fn runs_here(&self, vcpu: u32) {
        if let Some(probe) = &self.probe {
            // It fails when the map is full, which has room for all vCPUs. Then this one's flag stays clear.
            let _ = probe.watch(crate::host::signal::Thread::current().id(), vcpu);
        }
    }

    /// The calling thread, which runs `vcpu`, does this from now on.
    pub(crate) fn thread_does(&self, vcpu: u32, what: ThreadDoes) {
        if let Some(probe) = &self.probe {
            probe.thread_does(vcpu, what);
        }
    }
}

fn reporting_probe(reported: Reported<'_>, memory: &Memory) -> Result<SwitchProbe, String> {
    let probe = SwitchProbe::attach(Some(reported)).map_err(refusal)?;
    if let Some(maps) = probe.watched() {
        memory.share_with(maps, reported.locks).map_err(refusal)?;
    }
    Ok(probe)
}

fn flag_probe() -> Result<SwitchProbe, String> {
    SwitchProbe::attach(None).map_err(refusal)
}

/// Whether a BPF program can write the flag on this host, by attaching one for a moment.
///
/// # Errors
/// Why not, in one line.
pub fn bpf_can_write_flags() -> Result<(), String> {
    flag_probe().map(drop)
}

/// Whether BPF programs can report the switches of threads on this host, by attaching them for a moment.
///
/// # Errors
/// Why not, in one line.
pub fn bpf_can_report_switches() -> Result<(), String> {
    SwitchProbe::attach(Some(Reported { vcpus: 1, locks: 1, pcpus: &[0] })).map(drop).map_err(refusal)
}

fn refusal(error: std::io::Error) -> String {
    let advice = match error.kind() {
        std::io::ErrorKind::PermissionDenied => ": run as root, or with CAP_BPF and CAP_PERFMON",
        _ => "",
    };
    format!("a BPF program on sched_switch cannot be had{advice} ({error})")
}

/// Whether this host's KVM sets the flag: those for VMX and SVM do; PVM, which exits where KVM does not take a vCPU for
/// preempted, does not.
fn kvm_sets_the_flag() -> bool {
    let loaded = |module: &str| std::fs::exists(format!("/sys/module/{module}")).unwrap_or(false);
    (loaded("kvm_intel") || loaded("kvm_amd")) && !loaded("kvm_pvm")
}
