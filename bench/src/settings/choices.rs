//! Choices of some settings, and the notation of shares and rates.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use haltkick_vmm::Numa;

use super::deschedule::Policy;

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// Engines that run the guest's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineChoice {
    /// /dev/kvm
    Kvm,
    /// Threads of this process: no /dev/kvm needed, ordinary profilers work
    Threads,
    /// QEMU, by --accel kvm or tcg
    Qemu,
    /// A simulated machine, by --machine
    Sim,
}

/// Accelerators that QEMU runs the guest's code with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccelChoice {
    /// /dev/kvm
    Kvm,
    /// QEMU's emulator
    Tcg,
}

/// Schedulers that decide which vCPU runs.
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

/// Writers of the `preempted` flag under the host's scheduler.
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

impl fmt::Display for DescheduleChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(policy) => policy.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// Units with equal shares of the pCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShareChoice {
    /// Every vCPU
    Vcpu,
    /// Every guest, whatever its number of vCPUs
    Guest,
}

/// Activity of vCPUs when the fixed amount of work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AfterWork {
    /// They are done, too
    Leave,
    /// They take locks as before, uncounted, while another guest is at work
    GoOn,
}

/// How times are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Distribution {
    /// All alike
    Fixed,
    /// As between the events of a Poisson process
    Exponential,
}

/// How the clock is read at the edges of sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stamps {
    /// Between fences
    Ordered,
    /// As it is
    Plain,
}

/// A share, in whole percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percent(pub(crate) u32);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
        match number {
            Some(percent @ 0..=100) => Ok(Self(percent)),
            _ => Err(format!("'{text}' is no share: write whole percent, such as 90%")),
        }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// An exponent with at most two decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exponent(pub(crate) u32);

impl FromStr for Exponent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: f64 = 4.0;
        match text.parse::<f64>() {
            Ok(exponent) if (0.0..=MOST).contains(&exponent) => Ok(Self((exponent * 100.0).round() as u32)),
            _ => Err(format!("'{text}' is no exponent from 0 to {MOST}, such as 0.99")),
        }
    }
}

impl fmt::Display for Exponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f64::from(self.0) / 100.0).fmt(f)
    }
}

/// vCPUs per pCPU, with at most two decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ratio {
    hundredths: u32,
}

impl Ratio {
    /// Returns a whole number of vCPUs per pCPU.
    pub(crate) const fn whole(ratio: u32) -> Self {
        Self { hundredths: ratio * 100 }
    }

    /// Returns how many vCPUs that makes on `pcpus` pCPUs, rounded to the nearest number and at least one.
    pub(crate) fn vcpus(self, pcpus: usize) -> usize {
        ((self.hundredths as usize * pcpus + 50) / 100).max(1)
    }
}

impl FromStr for Ratio {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: f64 = 1e6;
        match text.parse::<f64>() {
            Ok(ratio) if (0.0..=MOST).contains(&ratio) => {
                Ok(Self { hundredths: (ratio * 100.0).round() as u32 })
            }
            _ => Err(format!("'{text}' is no ratio: write vCPUs per pCPU, such as 8 or 1.5")),
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f64::from(self.hundredths) / 100.0).fmt(f)
    }
}

/// NUMA nodes of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NumaChoice(pub(crate) Numa);

impl FromStr for NumaChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "local" => Ok(Self(Numa::Local)),
            "interleave" => Ok(Self(Numa::Interleave)),
            node => node.parse().map(|node| Self(Numa::Node(node))).map_err(|_| {
                format!("'{text}' is no place for memory: write local, interleave, or the number of a node")
            }),
        }
    }
}

impl fmt::Display for NumaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Numa::Local => f.write_str("local"),
            Numa::Interleave => f.write_str("interleave"),
            Numa::Node(node) => node.fmt(f),
        }
    }
}

/// Sections that each vCPU is to begin in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrivals(pub(crate) u64);

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(rate @ 1..=1_000_000_000) => Ok(Self(rate)),
            _ => Err(format!("'{text}' is no rate: write sections per second and vCPU, from 1 to 10^9")),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Arrivals {
    /// Mean time between two of them.
    pub(crate) fn apart(self) -> Duration {
        Duration::from_nanos(1_000_000_000 / self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_exponents_and_rates_have_their_ranges() {
        assert_eq!("90%".parse(), Ok(Percent(90)));
        for wrong in ["90", "101%", "-1%", "x%"] {
            assert!(wrong.parse::<Percent>().is_err(), "{wrong}");
        }
        assert_eq!("0.99".parse(), Ok(Exponent(99)));
        for wrong in ["-1", "5", "nan", "x"] {
            assert!(wrong.parse::<Exponent>().is_err(), "{wrong}");
        }
        for (text, on_two, on_three) in [("1", 2, 3), ("1.5", 3, 5), ("8", 16, 24), ("1.004", 2, 3)] {
            let ratio: Ratio = text.parse().unwrap();
            assert_eq!((ratio.vcpus(2), ratio.vcpus(3)), (on_two, on_three), "{text}");
        }
        assert_eq!(
            ("1.50".parse::<Ratio>().unwrap().to_string(), Ratio::whole(8).to_string()),
            ("1.5".into(), "8".into())
        );
        for wrong in ["-1", "1e7", "nan", "x"] {
            assert!(wrong.parse::<Ratio>().is_err(), "{wrong}");
        }
        assert_eq!("1000".parse(), Ok(Arrivals(1000)));
        assert!("0".parse::<Arrivals>().is_err());
    }
}
