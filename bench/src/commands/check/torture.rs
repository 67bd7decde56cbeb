//! The trials that a lock goes through: every kind, with many numbers of vCPUs.

use std::collections::BTreeSet;
use std::time::Duration;

use haltkick_vmm::{Entry, LockFlags};
use rand::Rng;
use rand::seq::SliceRandom as _;

#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// Its kind, number of vCPUs and form, for people.
    pub(super) name: String,
    pub(super) kind: &'static Kind,
    vcpus: u32,
    pub(super) pv: bool,
    /// As on the command line, without dashes: of one that stands there twice, the last counts.
    settings: String,
}

#[derive(Debug)]
pub(super) struct Kind {
    name: &'static str,
    pub(super) of: Part,
    place: Place,
    /// From one vCPU, which must not wait for itself, to more than a byte can number.
    vcpus: &'static [u32],
    /// More of them, which win.
    settings: &'static str,
}

/// The part of a lock that trials are about: only forms that have it go through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Lock,
    Paravirt,
    Readers,
    Try,
    Interrupts,
}

/// The beginning of the names of trials at a place, and their settings as on the command line, without dashes.
type Place = [&'static str; 2];

/// This host, or the engine of the command line.
const HERE: Place = ["", "warmup=5ms window=25ms"];
/// More pCPUs than most hosts have to spare.
const ON_EIGHT: Place =
    ["eight simulated pCPUs, ", "machine=nehalem-2s engine=sim cpus=0-7 warmup=200us window=2ms slice=100us"];
/// There, with stores that wait: a lock shows it which needs a barrier between a store and a load, and has none.
const LATE_STORES: Place = [
    "eight simulated pCPUs, late stores, ",
    "machine=nehalem-2s~late-stores engine=sim cpus=0-7 warmup=200us window=2ms slice=100us",
];
/// Eight simulated pCPUs, where vCPUs are looked at before each instruction.
const AT_EACH: Place =
    ["", "machine=nehalem-2s engine=sim cpus=0-7 warmup=200us window=4ms hold=200ns think=200ns"];

/// From one vCPU, which must not wait for itself, to 64.
const FEW: &[u32] = &[1, 2, 3, 5, 8, 16, 64];
/// From one vCPU to more than a byte can number.
const MANY: &[u32] = &[1, 2, 3, 5, 8, 16, 64, 300];
/// Several: one vCPU does not interrupt itself.
const SEVERAL: &[u32] = &[2, 3, 5, 8, 16, 64, 300];
/// Fewer than the simulated pCPUs, as many, and more: each number of these is busy at once.
const SIMULATED: &[u32] = &[4, 8, 16];

/// Few enough for each vCPU to come to every instruction soon, and enough to meet there.
const CROWDED: &[u32] = &[4, 5, 8];

impl Part {
    /// A kind of trials of this part, on this host.
    const fn here(self, vcpus: &'static [u32], name: &'static str, settings: &'static str) -> Kind {
        Kind { name, of: self, place: HERE, vcpus, settings }
    }

    const fn simulated(self, vcpus: &'static [u32], name: &'static str, settings: &'static str) -> Kind {
        Kind { place: ON_EIGHT, ..self.here(vcpus, name, settings) }
    }

    const fn late_stores(self, name: &'static str, settings: &'static str) -> Kind {
        Kind { place: LATE_STORES, ..self.here(SIMULATED, name, settings) }
    }

    const fn at_each(self, name: &'static str, settings: &'static str) -> Kind {
        Kind { place: AT_EACH, ..self.here(CROWDED, name, settings) }
    }
}

/// All kinds. Sections are short and follow each other closely: most of the time is spent in the lock.
const KINDS: &[Kind] = {
    use Part::{Interrupts, Lock, Paravirt, Readers, Try};
    &[
        Lock.here(MANY, "nothing but the lock", "hold=0ns think=0ns"),
        Lock.here(FEW, "short slices", "slice=50us hold=1us think=0ns"),
        Lock.here(FEW, "holders taken off", "deschedule=holder,rate=2000,for=300us hold=500ns think=500ns"),
        Lock.here(FEW, "waiters taken off", "deschedule=waiter,rate=2000,for=300us hold=500ns think=500ns"),
        Lock.here(
            FEW,
            "heads of queues taken off",
            "deschedule=head,rate=2000,for=300us hold=500ns think=0ns",
        ),
        Lock.here(
            FEW,
            "anybody taken off, anywhere",
            "deschedule=random,rate=3000,for=100us hold=0ns think=200ns",
        ),
        Lock.here(MANY, "nested sections", "workload=mixed locks=4 nested-one-in=2 slice=100us hold=500ns"),
        // A lock may keep sleepers in a table by its address: some of these share an entry.
        Lock.here(
            MANY,
            "nested sections, many locks",
            "workload=mixed locks=24 nested-one-in=2 slice=100us hold=500ns",
        ),
        Lock.here(MANY, "many locks", "locks=64 hold=200ns think=0ns slice=200us"),
        Lock.here(MANY, "four locks at once", "workload=every-call locks=5 hold=200ns think=0ns slice=100us"),
        // With tickets of eight bits, eight of eight such windows show it, and six of eight that are a quarter as long.
        Lock.here(&[300], "more than a byte can number", "hold=1us think=0ns window=100ms"),
        // A host gives each waiter of a strict queue a slice of milliseconds: with more vCPUs the wait for the last takes too long.
        Lock.here(&[1, 2, 3, 5, 8, 16], "the host's scheduler", "sched=host hold=500ns think=500ns"),
        Paravirt.here(MANY, "sleep at once", "spin-threshold=0us hold=500ns think=0ns slice=200us"),
        // Sleepers of several locks, each woken before or after it went to sleep for another.
        Paravirt.here(
            FEW,
            "nested sections, long holds, sleep at once",
            "workload=mixed locks=4 nested-one-in=2 hold=20us spin-threshold=0us slice=500us",
        ),
        Paravirt.here(FEW, "long spinning", "spin-threshold=1ms hold=500ns think=0ns slice=200us"),
        Paravirt.here(FEW, "no hint of preemption", "preempted-hint=off hold=1us think=0ns slice=100us"),
        Paravirt.here(FEW, "kicks that hand the pCPU over", "kick-yield=on hold=1us think=0ns slice=500us"),
        Readers.here(MANY, "half of it readers", "read-share=50% hold=500ns think=0ns slice=200us"),
        Readers.here(FEW, "few writers", "read-share=95% hold=500ns think=0ns slice=200us"),
        Readers.simulated(&[4, 8], "long readers, waiters taken off", LONG_READERS),
        Readers.simulated(&[40], "many long readers, waiters taken off", MANY_LONG_READERS),
        Readers.here(&[2, 3, 5, 8, 16, 64], "readers inside at once", READERS_INSIDE),
        // A kind of its own, since one of each kind comes first: counts of six or eight bits showed after most of a minute.
        Readers.here(&[300], "more readers than a byte can number", READERS_INSIDE),
        Try.here(MANY, "half of it tries", "workload=try-lock slice=200us hold=500ns think=0ns"),
        // Most vCPUs think: each finds the lock free, and says so if it does not get it.
        Try.here(MANY, "tries of free locks", "workload=try-lock slice=50us hold=0ns think=1ms locks=8"),
        Interrupts.here(SEVERAL, "interrupts", "workload=interrupted locks=2 slice=200us hold=500ns"),
        Lock.simulated(SIMULATED, "nothing but the lock", "hold=0ns think=0ns"),
        Lock.late_stores("nothing but the lock", "hold=0ns think=0ns"),
        Lock.simulated(SIMULATED, "nested sections", "workload=mixed locks=4 nested-one-in=2 hold=500ns"),
        // Sleepers and those that wake them run at the same time.
        Paravirt.simulated(SIMULATED, "sleep at once", "spin-threshold=0us hold=200ns think=1us"),
        // Waiters with stores that are late go to sleep while others, which spin, hand the lock to them. A window this long finds a
        // missing barrier in two of five trials.
        Paravirt
            .late_stores("sleep after 2 us", "spin-threshold=2us hold=0ns think=0ns slice=1ms window=20ms"),
        Paravirt
            .late_stores("sleep after 5 us", "spin-threshold=5us hold=0ns think=0ns slice=1ms window=20ms"),
        Readers.simulated(SIMULATED, "half of it readers", HALF_READERS),
        Readers.late_stores("half of it readers", HALF_READERS),
        Try.late_stores("half of it tries", "workload=try-lock hold=0ns think=200ns"),
        Lock.at_each("off at each instruction", "workload=every-call locks=5"),
        Interrupts.at_each("interrupts at each instruction", "workload=interrupted-each locks=2"),
    ]
};

/// Readers that stay longer than anybody looks without a pause, and waiters that are away for less. With 4 and with 8 vCPUs, 12 of 12
/// such trials find a sleep without a last look; sections of 5 us in 100 ms found it in half of the trials.
const LONG_READERS: &str =
    "read-share=50% deschedule=waiter,rate=20000,for=20us hold=3us think=1us window=300ms";
/// Most of 40 vCPUs sleep while others find in a last look that they need not. In half of such trials a fault shows by which a waiter
/// clears the bit of vCPU 31 instead of its own.
const MANY_LONG_READERS: &str =
    "read-share=50% deschedule=waiter,rate=200000,for=20us hold=3us think=1us window=100ms";
/// All vCPUs are inside at once. Windows of 200 ms show a count of six bits with 300 vCPUs in 8 of 8 runs, half as long ones in 5 of 6.
const READERS_INSIDE: &str = "workload=readers-inside hold=200ns slice=50us window=200ms";
const HALF_READERS: &str = "read-share=50% hold=200ns think=200ns";

/// Virtual time without progress after which a lock hangs: no neighbour takes a simulated pCPU, and seconds of spinning with stores
/// would take minutes to simulate.
const SIMULATED_PATIENCE: Duration = Duration::from_millis(200);
/// [`SIMULATED_PATIENCE`] where vCPUs are looked at before each instruction, which takes ten times as long, and each has its own pCPU.
const PATIENCE_AT_EACH: Duration = Duration::from_millis(20);
/// More vCPUs than this have the shortest slices: after each trial every waiter has the lock once, for which a strict queue takes a
/// round of slices each.
const MOST_OF_ANY_SLICE: u32 = 16;

impl Part {
    /// For a verdict that lacks it.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Lock => "the lock",
            Self::Paravirt => "sleeping and waking",
            Self::Readers => "the readers' functions",
            Self::Try => "the try function",
            Self::Interrupts => "interrupts",
        }
    }
}

/// The parts that a form of a lock has.
pub(super) fn parts(lock: &Entry, pv: bool) -> impl Iterator<Item = Part> {
    let flags = lock.lock_flags();
    let tries = if pv { LockFlags::HAS_PARAVIRT_TRY } else { LockFlags::HAS_TRY };
    [
        (Part::Lock, true),
        (Part::Paravirt, pv),
        (Part::Readers, flags.has(LockFlags::HAS_READERS)),
        (Part::Try, flags.has(tries)),
        (Part::Interrupts, flags.has(LockFlags::MAY_BE_INTERRUPTED)),
    ]
    .into_iter()
    .filter_map(|(part, has)| has.then_some(part))
}

pub(super) fn trials(lock: &Entry, forms: &[bool]) -> Vec<Trial> {
    let of_form = |&pv: &bool| {
        let parts: BTreeSet<Part> = parts(lock, pv).collect();
        let kinds = KINDS.iter().filter(move |kind| parts.contains(&kind.of));
        kinds.flat_map(move |kind| kind.vcpus.iter().map(move |vcpus| trial(kind, *vcpus, pv)))
    };
    forms.iter().flat_map(of_form).collect()
}

fn trial(kind: &'static Kind, vcpus: u32, pv: bool) -> Trial {
    let (switch, form) = if pv { ("on", "paravirtual form") } else { ("off", "native form") };
    let ([place_name, place], own) = (kind.place, kind.settings);
    let mut settings = format!("pv={switch} vcpus={vcpus} {place} watchdog=10s drain=on {own}");
    if vcpus > MOST_OF_ANY_SLICE {
        settings += " slice=50us";
    }
    let name = format!("{place_name}{}, {vcpus} vCPUs, {form}", kind.name);
    Trial { name, kind, vcpus, pv, settings }
}

impl Trial {
    pub(super) fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.split(' ').filter_map(|setting| setting.split_once('='))
    }

    /// Virtual time without progress after which a simulated lock hangs.
    pub(super) fn simulated_patience(&self) -> Duration {
        if self.looks_at_each() { PATIENCE_AT_EACH } else { SIMULATED_PATIENCE }
    }

    /// Whether vCPUs are looked at before each instruction.
    fn looks_at_each(&self) -> bool {
        self.kind.vcpus == CROWDED
    }
}

/// The trials in a random order, but first one of each kind with a number of vCPUs that finds most, and all that look at each
/// instruction: what they draw decides what each finds. How many those are.
pub(super) fn each_kind_first<'a>(trials: &'a [Trial], random: &mut impl Rng) -> (Vec<&'a Trial>, usize) {
    let mut order: Vec<&Trial> = trials.iter().collect();
    order.shuffle(random);
    let mut seen = BTreeSet::new();
    let is_first = |trial: &&Trial| {
        let finds_most = FINDS_MOST.contains(&trial.vcpus) || trial.kind.vcpus.len() == 1;
        let each = trial.looks_at_each().then_some(trial.vcpus);
        finds_most && seen.insert((trial.kind.place, trial.kind.name, trial.pv, each))
    };
    let (mut first, others): (Vec<&Trial>, Vec<&Trial>) = order.into_iter().partition(is_first);
    let kinds = first.len();
    first.extend(others);
    (first, kinds)
}

/// Numbers of vCPUs with which planted faults were found most often: several wait, and each has a turn soon.
const FINDS_MOST: std::ops::RangeInclusive<u32> = 3..=16;

#[cfg(test)]
mod tests {
    use super::*;
    use haltkick_vmm::Image;
    use rand::SeedableRng as _;
    use rand::rngs::ChaCha8Rng;

    #[test]
    fn a_short_check_still_makes_each_kind_of_trial() {
        let image = Image::embedded();
        let lock = image.locks.iter().find(|lock| lock.has_paravirt() && lock.has_native()).unwrap();
        let trials = trials(lock, &[false, true]);
        let (order, kinds) = each_kind_first(&trials, &mut ChaCha8Rng::seed_from_u64(1));
        let kind = |trial: &Trial| (trial.kind.place, trial.kind.name, trial.pv);
        let all: BTreeSet<_> = trials.iter().map(kind).collect();
        let first: BTreeSet<_> = order[..kinds].iter().map(|trial| kind(trial)).collect();
        assert_eq!((first, order.len()), (all, trials.len()));
    }
}
