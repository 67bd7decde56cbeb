//! What some settings have to choose from.

use std::str::FromStr;

use clap::ValueEnum;

use crate::settings::deschedule::Policy;

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// What runs the guest's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineChoice {
    /// /dev/kvm
    Kvm,
    /// Threads of this process: no /dev/kvm needed, ordinary profilers work
    Threads,
    /// QEMU, by --accel kvm or tcg
    Qemu,
}

/// What QEMU runs the guest's code with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccelChoice {
    /// /dev/kvm
    Kvm,
    /// QEMU's emulator
    Tcg,
}

/// Who decides which vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchedChoice {
    /// The VMM: one pinned runner per pCPU, exact slices, repeatable
    Vmm,
    /// The host's scheduler: one thread per vCPU, as in production
    Host,
}

/// How a vCPU sleeps and is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PvBackendChoice {
    /// The best that works here
    Auto,
    /// Doorbells: the VMM does it
    Vmm,
    /// In the kernel: HLT, woken by KVM_HC_KICK_CPU
    Kvm,
    /// In the kernel: HLT, woken by an interrupt
    Ipi,
}

/// Who writes the `preempted` flag under the host's scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreemptedChoice {
    /// KVM where it does, else a BPF program where that can be had
    Auto,
    /// KVM, in the steal-time record
    Kvm,
    /// A BPF program on the kernel's scheduler
    Bpf,
}

/// The ring that the guest runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RingChoice {
    /// Measure which ring this host runs natively
    Auto,
    /// Kernel mode
    #[value(name = "0")]
    Zero,
    /// User mode
    #[value(name = "3")]
    Three,
}

/// A policy of descheduling, or `none`, so that an arm can go without.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DescheduleChoice(pub(crate) Option<Policy>);

impl FromStr for DescheduleChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(if text == "none" { None } else { Some(text.parse()?) }))
    }
}

/// What has equal shares of the pCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShareChoice {
    /// Every vCPU
    Vcpu,
    /// Every guest, whatever its number of vCPUs
    Guest,
}

/// What vCPUs do when the fixed amount of work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AfterWork {
    /// They are done, too
    Leave,
    /// They take locks as before, uncounted, while another guest is at work
    GoOn,
}
