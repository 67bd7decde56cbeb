//! Choices of some settings, and the notation of shares, rates, quotas, bounds on spinning, ways to fold, and policies of descheduling.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::PossibleValue;
use haltkick_vmm::{
    Bandwidth, Deschedule, Fold, Governor, HowOften, Numa, PreemptedBy, PvBackend, Quota, Ring, Sched, Share,
    Span, Target,
};

use crate::text::nearest;

/// Words that a setting can have: each with its meaning, for completions, and its value.
pub(crate) struct Words<T: 'static>(&'static [(&'static str, &'static str, T)]);

/// Words by themselves, whatever their values are.
pub(crate) trait Offer: Sync {
    /// Returns the words as the command line offers them.
    fn offered(&self) -> Vec<PossibleValue>;
}

impl<T: Sync> Offer for Words<T> {
    fn offered(&self) -> Vec<PossibleValue> {
        let offered = |(word, meaning, _): &(&'static str, &'static str, T)| match *meaning {
            "" => PossibleValue::new(*word),
            meaning => PossibleValue::new(*word).help(meaning),
        };
        self.0.iter().map(offered).collect()
    }
}

impl<T: Copy + PartialEq> Words<T> {
    /// Returns the value of a word, if it is one of these.
    pub(crate) fn value(&self, word: &str) -> Option<T> {
        self.0.iter().find(|(known, ..)| *known == word).map(|(.., value)| *value)
    }

    pub(crate) fn of(&self, value: T) -> &'static str {
        self.0
            .iter()
            .find(|(.., known)| *known == value)
            .map(|(word, ..)| *word)
            .expect("each value has a word")
    }
}

pub(crate) const SWITCH: Words<bool> = Words(&[("on", "", true), ("off", "", false)]);

/// Engines without values: what one becomes depends on the machine, which is another setting, and on the host.
pub(crate) const ENGINES: Words<()> = Words(&[
    ("kvm", "/dev/kvm", ()),
    ("threads", "Threads of this process: no /dev/kvm needed, ordinary profilers work", ()),
    ("qemu", "QEMU, by /dev/kvm where there is one", ()),
    ("qemu-kvm", "QEMU by /dev/kvm", ()),
    ("qemu-tcg", "QEMU's emulator", ()),
    ("sim", "A simulated machine, by --machine", ()),
]);

pub(crate) const SCHEDULERS: Words<Sched> = Words(&[
    ("vmm", "The VMM: one pinned runner per pCPU, exact slices, repeatable", Sched::Vmm),
    ("host", "The host's scheduler: one thread per vCPU, as in production", Sched::Host),
]);

pub(crate) const PV_BACKENDS: Words<PvBackend> = Words(&[
    ("auto", "The best that works here", PvBackend::Auto),
    ("vmm", "Doorbells: the VMM does it", PvBackend::Vmm),
    ("kvm", "In the kernel: HLT, woken by KVM_HC_KICK_CPU", PvBackend::Kvm),
    ("ipi", "In the kernel: HLT, woken by an interrupt", PvBackend::Ipi),
]);

pub(crate) const FLAG_WRITERS: Words<PreemptedBy> = Words(&[
    ("auto", "KVM where it does, else a BPF program where that can be had", PreemptedBy::Auto),
    ("kvm", "KVM, in the steal-time record", PreemptedBy::Kvm),
    ("bpf", "A BPF program on the kernel's scheduler", PreemptedBy::Bpf),
]);

pub(crate) const RINGS: Words<Ring> = Words(&[
    ("auto", "Measure which ring this host runs natively", Ring::Auto),
    ("0", "Kernel mode", Ring::Ring0),
    ("3", "User mode", Ring::Ring3),
]);

/// Units with equal shares of the pCPUs.
pub(crate) const SHARES: Words<Share> = Words(&[
    ("vcpu", "Every vCPU", Share::Vcpu),
    ("guest", "Every guest, whatever its number of vCPUs", Share::Guest),
]);

/// Whether only short sections ask for a longer slice.
pub(crate) const EXTENSIONS: Words<bool> = Words(&[
    ("kernel", "All, as in a kernel that knows what it holds", false),
    ("user", "Short ones: long ones stand for the kernel's work for user-space, such as a page fault", true),
]);

/// Whether vCPUs go on when the fixed amount of work is done.
pub(crate) const AFTER_WORK: Words<bool> = Words(&[
    ("leave", "They are done, too", false),
    ("go-on", "They take locks as before, uncounted, while another guest is at work", true),
]);

/// Whether data lie in the line of their lock.
pub(crate) const PLACES: Words<bool> = Words(&[
    ("embed", "In the line in which the lock ends", true),
    ("apart", "In lines of their own", false),
]);

pub(crate) const DISTRIBUTIONS: Words<bool> = Words(&[
    ("fixed", "All alike", false),
    ("exponential", "As between the events of a Poisson process", true),
]);

/// Whether the clock is read between fences at the edges of sections.
pub(crate) const STAMPS: Words<bool> =
    Words(&[("ordered", "Between fences", true), ("plain", "As it is", false)]);

/// A share, in whole percent.
pub(crate) fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<u32>().ok());
    let percent = number.filter(|percent| *percent <= 100);
    percent.ok_or_else(|| format!("'{text}' is no share: write whole percent, such as 90%"))
}

/// Hundredths of a number from 0 to `most`.
fn hundredths(text: &str, most: f64) -> Option<u32> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=most).contains(number))?;
    Some((number * 100.0).round() as u32)
}

/// Hundredths of an exponent with at most two decimals.
pub(crate) fn exponent(text: &str) -> Result<u32, String> {
    const MOST: f64 = 4.0;
    hundredths(text, MOST).ok_or_else(|| format!("'{text}' is no exponent from 0 to {MOST}, such as 0.99"))
}

/// vCPUs per pCPU, with at most two decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ratio {
    hundredths: u32,
}

impl Ratio {
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
        let ratio = hundredths(text, MOST).map(|hundredths| Self { hundredths });
        ratio.ok_or_else(|| format!("'{text}' is no ratio: write vCPUs per pCPU, such as 8 or 1.5"))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f64::from(self.hundredths) / 100.0).fmt(f)
    }
}

pub(crate) fn numa(text: &str) -> Result<Numa, String> {
    match text {
        "local" => Ok(Numa::Local),
        "interleave" => Ok(Numa::Interleave),
        node => node.parse().map(Numa::Node).map_err(|_| {
            format!("'{text}' is no place for memory: write local, interleave, or the number of a node")
        }),
    }
}

/// Partner of [`numa`].
pub(crate) fn written_numa(numa: Numa) -> String {
    match numa {
        Numa::Local => "local".into(),
        Numa::Interleave => "interleave".into(),
        Numa::Node(node) => node.to_string(),
    }
}

/// Sections that each vCPU is to begin in a second.
pub(crate) fn arrivals(text: &str) -> Result<u64, String> {
    let rate = text.parse::<u64>().ok().filter(|rate| (1..=1_000_000_000).contains(rate));
    rate.ok_or_else(|| format!("'{text}' is no rate: write sections per second and vCPU, from 1 to 10^9"))
}

/// A quota, or none.
pub(crate) fn quota(text: &str) -> Result<Option<Quota>, String> {
    if text == "none" {
        return Ok(None);
    }
    if text == "inherited" {
        return Ok(Some(Quota::Inherited));
    }
    let (share, burst) = match text.split_once('+') {
        None => (text, Duration::ZERO),
        Some((share, burst)) => (share, burst.trim().parse::<Span>()?.0),
    };
    let (run, period) = share.split_once('/').ok_or_else(|| {
        format!("'{share}' is no quota: write RUN/PERIOD, such as 200us/1ms, none or inherited")
    })?;
    let [run, period] = [run, period].map(|time| time.trim().parse::<Span>());
    Ok(Some(Quota::Own(Bandwidth { run: run?.0, period: period?.0, burst })))
}

/// Partner of [`quota`].
pub(crate) fn written_quota(quota: Option<Quota>) -> String {
    match quota {
        None => "none".into(),
        Some(Quota::Inherited) => "inherited".into(),
        Some(Quota::Own(Bandwidth { run, period, burst })) => {
            let burst = if burst.is_zero() { String::new() } else { format!("+{}", Span(burst)) };
            format!("{}/{}{burst}", Span(run), Span(period))
        }
    }
}

pub(crate) fn fold(text: &str) -> Result<Fold, String> {
    let wrong = || {
        format!("'{text}' is no way to fold: write off, oracle, governor, or governor/INTERVAL/LOW%/HIGH%")
    };
    let mut parts = text.split('/').map(str::trim);
    let fold = match parts.next() {
        Some("off") => Fold::Off,
        Some("oracle") => Fold::Oracle,
        Some("governor") => {
            let mut governor = Governor::LINUX;
            if let Some(interval) = parts.next() {
                governor.interval = interval.parse::<Span>()?.0;
            }
            if let Some(low) = parts.next() {
                let high = parts.next().ok_or("a low threshold needs a high one: governor/100ms/2%/5%")?;
                (governor.low, governor.high) = (threshold(low)?, threshold(high)?);
            }
            Fold::Governor(governor)
        }
        _ => return Err(wrong()),
    };
    if parts.next().is_some() { Err(wrong()) } else { Ok(fold) }
}

fn threshold(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').and_then(|percent| hundredths(percent.trim(), 100.0));
    percent.ok_or_else(|| format!("'{text}' is no threshold: write a share of 0% to 100%"))
}

/// Partner of [`fold`].
pub(crate) fn written_fold(fold: Fold) -> String {
    match fold {
        Fold::Off => "off".into(),
        Fold::Oracle => "oracle".into(),
        Fold::Governor(Governor { interval, low, high }) => {
            let [low, high] = [low, high].map(|hundredths| f64::from(hundredths) / 100.0);
            format!("governor/{}/{low}%/{high}%", Span(interval))
        }
    }
}

/// A bound on spinning: the time, and how many rounds go before it; 0: none do. `linux` is its `SPIN_THRESHOLD` on x86: 2^15 rounds, each
/// with one PAUSE, however long these take.
pub(crate) fn spin_threshold(text: &str) -> Result<(Duration, u32), String> {
    /// Duration in their place where a lock needs a time: a PAUSE takes 3 to 35 ns, so that they are 0.1 to 1.1 ms.
    const LINUX_ABOUT: Duration = Duration::from_millis(1);
    match text {
        "linux" => Ok((LINUX_ABOUT, 1 << 15)),
        time => time.parse::<Span>().map(|time| (time.0, 0)).map_err(|error| format!("{error}; or 'linux'")),
    }
}

/// `holder,rate=100,for=2ms,at=handed-over`: which vCPUs to stop on purpose; or none, so that an arm can go without.
pub(crate) fn deschedule(text: &str) -> Result<Option<Deschedule>, String> {
    /// Defaults: often enough to be seen, and seldom enough to leave the guest its work.
    const DEFAULT: (HowOften, Duration) = (HowOften::PerSecond(100.0), Duration::from_millis(1));
    if text == "none" {
        return Ok(None);
    }
    let mut parts = text.split(',').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let Some((_, target)) = Target::NAMES.into_iter().find(|(known, _)| *known == name) else {
        return Err(nearest::unknown_of_few("policy", name, &Target::NAMES.map(|(name, _)| name)));
    };
    let (mut how_often, mut length, mut at) = (None, None, None);
    for part in parts {
        let Some((key, value)) = part.split_once('=') else {
            return Err(format!("'{part}' is no option: write rate=N, prob=P, for=TIME or at=POINT"));
        };
        let given_before = match key {
            "rate" => how_often.replace(HowOften::PerSecond(number(value, 1e6)?)).is_some(),
            "prob" => how_often.replace(HowOften::Probability(number(value, 1.0)?)).is_some(),
            "for" => length.replace(value.parse::<Span>()?.0).is_some(),
            "at" => at.replace(value.to_owned()).is_some(),
            _ => return Err(nearest::unknown("option", key, &["rate", "prob", "for", "at"])),
        };
        if given_before {
            return Err(format!("'{part}' says a second time how often, for how long, or where"));
        }
    }
    let (often, long) = DEFAULT;
    let (how_often, length) = (how_often.unwrap_or(often), length.unwrap_or(long));
    Ok(Some(Deschedule { target, how_often, length, at }))
}

fn number(text: &str, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= most => Ok(value),
        _ => Err(format!("'{text}' is no number above 0 and at most {most}")),
    }
}

/// Partner of [`deschedule`]: a policy in full.
pub(crate) fn written_deschedule(policy: &Deschedule) -> String {
    let Deschedule { target, how_often, length, at } = policy;
    let how_often = match how_often {
        HowOften::PerSecond(rate) => format!("rate={rate}"),
        HowOften::Probability(chance) => format!("prob={chance}"),
    };
    let at = at.as_ref().map_or(String::new(), |at| format!(",at={at}"));
    format!("{},{how_often},for={}{at}", target.name(), Span(*length))
}
