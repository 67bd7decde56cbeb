//! The trials that a lock goes through: every kind, with many numbers of vCPUs.

use std::collections::BTreeSet;
use std::time::Duration;

use haltkick_vmm::{Entry, LockFlags};
use rand::Rng;
use rand::seq::SliceRandom as _;

/// One kind of run.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// Name of the trial, for people.
    pub(super) name: String,
    /// Its name without the number of vCPUs and the form.
    kind: &'static str,
    vcpus: u32,
    pub(super) pv: bool,
    /// Some of its sections only read.
    pub(super) has_readers: bool,
    /// As on the command line.
    pub(super) settings: Vec<(&'static str, String)>,
}

/// From one, which must not wait for itself, to more than a byte can number.
const VCPUS: [u32; 8] = [1, 2, 3, 5, 8, 16, 64, MANY_VCPUS];
/// More vCPUs than a byte can number, all of which come to wait: a lock with tickets of eight bits shows it in eight of eight such
/// windows, and in six of eight that are a quarter as long.
const MANY: Kind = (
    "more than a byte can number",
    &[("slice", "50us"), ("hold", "1us"), ("think", "0ns"), ("window", "100ms")],
);
const MANY_VCPUS: u32 = 300;
/// On eight simulated pCPUs, each number of them busy at once: fewer, as many, and more.
const VCPUS_SIMULATED: [u32; 3] = [4, 8, 16];

/// A kind of trial: its name, and the settings that make it.
type Kind = (&'static str, &'static [(&'static str, &'static str)]);

/// Trials of every lock. Sections are short and follow each other closely: most of the time is spent in the lock.
const KINDS: &[Kind] = &[
    ("nothing but the lock", &[("hold", "0ns"), ("think", "0ns")]),
    ("short slices", &[("slice", "50us"), ("hold", "1us"), ("think", "0ns")]),
    (
        "holders taken off",
        &[("deschedule", "holder,rate=2000,for=300us"), ("hold", "500ns"), ("think", "500ns")],
    ),
    (
        "waiters taken off",
        &[("deschedule", "waiter,rate=2000,for=300us"), ("hold", "500ns"), ("think", "500ns")],
    ),
    (
        "heads of queues taken off",
        &[("deschedule", "head,rate=2000,for=300us"), ("hold", "500ns"), ("think", "0ns")],
    ),
    (
        "anybody taken off, anywhere",
        &[("deschedule", "random,rate=3000,for=100us"), ("hold", "0ns"), ("think", "200ns")],
    ),
    (
        "nested sections",
        &[
            ("workload", "mixed"),
            ("locks", "4"),
            ("nested-one-in", "2"),
            ("slice", "100us"),
            ("hold", "500ns"),
        ],
    ),
    ("many locks", &[("locks", "64"), ("hold", "200ns"), ("think", "0ns"), ("slice", "200us")]),
    ("the host's scheduler", &[("sched", "host"), ("hold", "500ns"), ("think", "500ns")]),
];

/// Trials of every lock on more pCPUs than most hosts have to spare.
const SIMULATED: &[Kind] = &[
    ("eight simulated pCPUs", &[("hold", "0ns"), ("think", "0ns"), ("slice", "100us")]),
    (
        "eight simulated pCPUs, late stores",
        &[("machine", LATE_STORES), ("hold", "0ns"), ("think", "0ns"), ("slice", "100us")],
    ),
    (
        "eight simulated pCPUs, nested sections",
        &[
            ("workload", "mixed"),
            ("locks", "4"),
            ("nested-one-in", "2"),
            ("slice", "100us"),
            ("hold", "500ns"),
        ],
    ),
];

/// Waiters with stores that are late go to sleep while others, which spin, hand the lock to them. A window this long finds a missing
/// barrier in two of five trials.
const fn sleep_after(spinning: &'static str) -> [(&'static str, &'static str); 6] {
    [
        ("machine", LATE_STORES),
        ("spin-threshold", spinning),
        ("hold", "0ns"),
        ("think", "0ns"),
        ("slice", "1ms"),
        ("window", "20ms"),
    ]
}

/// Trials of a paravirtual form there: sleepers and those that wake them run at the same time.
const SIMULATED_PARAVIRT: &[Kind] = &[
    (
        "eight simulated pCPUs, sleep at once",
        &[("spin-threshold", "0us"), ("hold", "200ns"), ("think", "1us"), ("slice", "100us")],
    ),
    ("eight simulated pCPUs, late stores, sleep after 2 us", &sleep_after("2us")),
    ("eight simulated pCPUs, late stores, sleep after 5 us", &sleep_after("5us")),
];

/// Trials of a lock with readers there.
const SIMULATED_READERS: &[Kind] = &[(
    "eight simulated pCPUs, half of it readers",
    &[("read-share", "50%"), ("hold", "200ns"), ("think", "200ns"), ("slice", "100us")],
)];

/// The machine of these.
const MACHINE: &[(&str, &str)] =
    &[("engine", "sim"), ("machine", "nehalem-2s"), ("cpus", "0-7"), ("warmup", "200us"), ("window", "2ms")];
/// That machine with stores that wait: a lock shows it which needs a barrier between a store and a load, and has none.
const LATE_STORES: &str = "nehalem-2s~late-stores";
/// Virtual time without progress after which a lock hangs: no neighbour takes a simulated pCPU, and seconds of spinning with stores
/// would take minutes to simulate.
pub(super) const SIMULATED_PATIENCE: Duration = Duration::from_millis(200);
/// Settings of all other trials.
const REAL: &[(&str, &str)] = &[("warmup", "5ms"), ("window", "25ms")];
/// Most vCPUs that are waited for after a trial: a strict queue takes a round of slices for each.
const MOST_DRAINED: u32 = 16;

/// Further trials of a paravirtual form.
const PARAVIRT: &[Kind] = &[
    ("sleep at once", &[("spin-threshold", "0us"), ("hold", "500ns"), ("think", "0ns"), ("slice", "200us")]),
    ("long spinning", &[("spin-threshold", "1ms"), ("hold", "500ns"), ("think", "0ns"), ("slice", "200us")]),
    (
        "no hint of preemption",
        &[("preempted-hint", "off"), ("hold", "1us"), ("think", "0ns"), ("slice", "100us")],
    ),
    (
        "kicks that hand the pCPU over",
        &[("kick-yield", "on"), ("hold", "1us"), ("think", "0ns"), ("slice", "500us")],
    ),
];

/// Further trials of a lock with readers.
const READERS: &[Kind] = &[
    ("half of it readers", &[("read-share", "50%"), ("hold", "500ns"), ("think", "0ns"), ("slice", "200us")]),
    ("few writers", &[("read-share", "95%"), ("hold", "500ns"), ("think", "0ns"), ("slice", "200us")]),
];

/// Further trials of a lock that can do more, by this flag; with several vCPUs, since one does not interrupt itself.
const ABLE: &[(LockFlags, Kind)] = &[
    (
        LockFlags::HAS_TRY,
        (
            "half of it tries",
            &[("workload", "try-lock"), ("slice", "200us"), ("hold", "500ns"), ("think", "0ns")],
        ),
    ),
    (
        LockFlags::MAY_BE_INTERRUPTED,
        ("interrupts", &[("workload", "interrupted"), ("locks", "2"), ("slice", "200us"), ("hold", "500ns")]),
    ),
];

/// All trials of these forms.
pub(super) fn trials(lock: &Entry, forms: &[bool]) -> Vec<Trial> {
    let has_readers = lock.lock_flags().has(LockFlags::HAS_READERS);
    let able = || ABLE.iter().filter(|(flag, _)| lock.lock_flags().has(*flag)).map(|(_, kind)| kind);
    let mut trials = Vec::new();
    for &pv in forms {
        let kinds = KINDS.iter().chain(PARAVIRT.iter().filter(|_| pv)).map(|kind| (kind, false));
        trials.push(trial(&MANY, REAL, MANY_VCPUS, pv, false));
        let of_readers = READERS.iter().filter(|_| has_readers).map(|kind| (kind, true));
        for (kind, has_readers) in kinds.chain(of_readers) {
            trials.extend(VCPUS.map(|vcpus| trial(kind, REAL, vcpus, pv, has_readers)));
        }
        let kinds =
            SIMULATED.iter().chain(SIMULATED_PARAVIRT.iter().filter(|_| pv)).map(|kind| (kind, false));
        let of_readers = SIMULATED_READERS.iter().filter(|_| has_readers).map(|kind| (kind, true));
        for (kind, has_readers) in kinds.chain(of_readers) {
            trials.extend(VCPUS_SIMULATED.map(|vcpus| trial(kind, MACHINE, vcpus, pv, has_readers)));
        }
        for kind in able() {
            let several = VCPUS.into_iter().filter(|&vcpus| vcpus > 1);
            trials.extend(several.map(|vcpus| trial(kind, REAL, vcpus, pv, false)));
        }
    }
    trials
}

fn trial(
    (name, settings): &Kind,
    place: &[(&'static str, &'static str)],
    vcpus: u32,
    pv: bool,
    has_readers: bool,
) -> Trial {
    let (switch, form) = if pv { ("on", "paravirtual form") } else { ("off", "native form") };
    let drain = if vcpus <= MOST_DRAINED { "on" } else { "off" };
    let mut all = vec![("pv", switch.to_owned()), ("vcpus", vcpus.to_string()), ("drain", drain.to_owned())];
    let given = place.iter().chain(&[("watchdog", "10s")]).chain(settings.iter());
    all.extend(given.map(|(key, value)| (*key, (*value).to_owned())));
    Trial {
        name: format!("{name}, {vcpus} vCPUs, {form}"),
        kind: name,
        vcpus,
        pv,
        has_readers,
        settings: all,
    }
}

/// The trials in a random order, but first one of each kind with a number of vCPUs that finds most; how many those are.
pub(super) fn each_kind_first<'a>(trials: &'a [Trial], random: &mut impl Rng) -> (Vec<&'a Trial>, usize) {
    let mut order: Vec<&Trial> = trials.iter().collect();
    order.shuffle(random);
    let mut seen = BTreeSet::new();
    let is_first = |trial: &&Trial| {
        let finds_most = FINDS_MOST.contains(&trial.vcpus) || trial.kind == MANY.0;
        finds_most && seen.insert((trial.kind, trial.pv))
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
    use crate::host::cpulist::CpuList;
    use crate::settings::{Settings, Supply};
    use haltkick_vmm::Image;
    use rand::SeedableRng as _;
    use rand::rngs::ChaCha8Rng;

    #[test]
    fn a_short_check_still_makes_each_kind_of_trial() {
        let image = Image::embedded();
        let lock = image.locks.iter().find(|lock| lock.has_paravirt() && lock.has_native()).unwrap();
        let trials = trials(lock, &[false, true]);
        let (order, kinds) = each_kind_first(&trials, &mut ChaCha8Rng::seed_from_u64(1));
        let all: BTreeSet<_> = trials.iter().map(|trial| (trial.kind, trial.pv)).collect();
        let first: BTreeSet<_> = order[..kinds].iter().map(|trial| (trial.kind, trial.pv)).collect();
        assert_eq!((first, order.len()), (all, trials.len()));
    }

    #[test]
    fn every_trial_can_be_run() {
        let (image, allowed) = (Image::embedded(), CpuList(vec![0, 1]));
        let has_readers = |lock: &Entry| lock.lock_flags().has(LockFlags::HAS_READERS);
        for readers in [false, true] {
            let mut locks = image.locks.iter().filter(|lock| lock.has_paravirt() && !lock.serves_faults());
            let lock = locks.find(|lock| has_readers(lock) == readers).unwrap();
            let trials = trials(lock, &[true]);
            let readers = if readers { READERS.len() } else { 0 };
            let of_readers = if readers > 0 { SIMULATED_READERS.len() } else { 0 };
            let flagged = ABLE.iter().filter(|(flag, _)| lock.lock_flags().has(*flag)).count();
            let simulated = VCPUS_SIMULATED.len() * (SIMULATED.len() + SIMULATED_PARAVIRT.len() + of_readers);
            let real = VCPUS.len() * (KINDS.len() + PARAVIRT.len() + readers);
            assert_eq!(trials.len(), simulated + real + 1 + (VCPUS.len() - 1) * flagged);
            for trial in trials {
                let mut settings = Settings::default();
                settings.set("lock", &lock.name).unwrap();
                for (key, value) in &trial.settings {
                    settings.set(key, value).unwrap();
                }
                let resolved = settings.resolve(Supply { image: &image, allowed: &allowed });
                let run = resolved.unwrap_or_else(|wrong| panic!("{}: {wrong:?}", trial.name));
                assert_eq!(run.our(0).ours.shape.read_percent > 0, trial.has_readers, "{}", trial.name);
            }
        }
    }
}
