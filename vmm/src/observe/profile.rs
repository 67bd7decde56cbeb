//! Profile of the vCPUs' time on a pCPU: instruction pointers, sampled at random moments.
//!
//! Four rules make the samples fair:
//! 1. The moments are drawn, not regular, each half to one and a half periods after the last: neither the slices nor the
//!    rounds of the guest can fall into step with them.
//! 2. A sample is taken where the timer stops the vCPU, not at the next exit. The timer's interrupt ends KVM_RUN between
//!    two instructions; there is no skid but that of the interrupt itself. Exits for other reasons, which come where the
//!    guest makes hypercalls and where slices end, are not sampled.
//! 3. A moment that falls while the VMM serves a hypercall interrupts the vCPU as soon as it is entered again, at the
//!    instruction after the hypercall. It is counted apart, as time in the VMM on behalf of that instruction.
//! 4. A moment that falls while no vCPU is on the pCPU counts for no vCPU. So does one that is noticed late: the host had
//!    taken the thread off its CPU, and where it was stopped says where the host stops threads, not where time goes.
//!
//! A simulated machine needs no samples: it counts all time, and each nanosecond of it is one sample here.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use serde::Serialize;

use crate::guest::Activity;
use crate::host::clock::now_ns;
use crate::host::random::SplitMix;
use crate::host::signal::KickTimer;
use crate::host::threads::{lock, unlocked};
use crate::image::file::Image;
use crate::machine::vcpu::Vcpu;

/// A sample that is noticed later than this after its moment is none.
const LATE_NS: u64 = 100_000;

/// Shortest and longest mean time between two samples of a pCPU.
pub const PROFILE_PERIODS: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(100));

/// The pCPU's occupation at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sampled {
    pub(crate) rip: u64,
    pub(crate) activity: Activity,
    /// The VMM had the vCPU out of its guest.
    pub(crate) in_vmm: bool,
}

#[derive(Debug, Default)]
struct Counts {
    seen: HashMap<Sampled, u64>,
    nobody: u64,
    late: u64,
    /// Every nanosecond was counted.
    is_all: bool,
}

/// Samples the vCPUs that one thread runs.
#[derive(Debug)]
pub(crate) struct Sampler {
    timer: KickTimer,
    period_ns: u64,
    random: SplitMix,
    /// The next moment, in host time.
    due_ns: u64,
    /// When KVM_RUN was last called.
    entered_ns: u64,
    counts: Counts,
}

impl Sampler {
    fn draw(&mut self, now_ns: u64) {
        self.due_ns = now_ns + self.period_ns / 2 + self.random.next() % self.period_ns;
        self.timer.set(self.due_ns, 0);
    }

    /// A vCPU gets the thread. A moment that passed while the thread was idle counts for no vCPU, if it `counts`.
    pub(crate) fn turn_begins(&mut self, now_ns: u64, counts: impl Fn(u64) -> bool) {
        if self.due_ns <= now_ns {
            self.counts.nobody += u64::from(counts(self.due_ns));
            self.draw(now_ns);
        }
    }

    pub(crate) fn enters(&mut self, now_ns: u64) {
        self.entered_ns = now_ns;
    }

    /// KVM_RUN was interrupted: by this sampler, if its moment has come. Whether a sample may count at `now_ns` is
    /// `counts`.
    pub(crate) fn interrupted(&mut self, vcpu: &Vcpu, activity: Activity, now_ns: u64, counts: bool) {
        if now_ns < self.due_ns {
            return;
        }
        let in_vmm = self.due_ns < self.entered_ns;
        let noticed_after_ns = now_ns - self.due_ns.max(self.entered_ns);
        if !counts {
        } else if noticed_after_ns > LATE_NS {
            self.counts.late += 1;
        } else if vcpu.is_halted() {
            // In KVM's hands, which gave the pCPU away.
            self.counts.nobody += 1;
        } else if let Ok((rip, _)) = vcpu.pointers() {
            *self.counts.seen.entry(Sampled { rip, activity, in_vmm }).or_default() += 1;
        }
        self.draw(now_ns);
    }
}

#[derive(Debug)]
pub(crate) struct Samples {
    period: Duration,
    seed: u64,
    counts: Mutex<Counts>,
}

impl Samples {
    pub(crate) fn new(period: Duration, seed: u64) -> Self {
        Self { period, seed, counts: Mutex::default() }
    }

    /// A sampler for the calling thread, the run's `number`th.
    pub(crate) fn sampler(&self, number: u32) -> io::Result<Sampler> {
        let seed = self.seed.wrapping_add(u64::from(number) << 32);
        let mut sampler = Sampler {
            timer: KickTimer::new()?,
            period_ns: self.period.as_nanos() as u64,
            random: SplitMix::new(seed),
            due_ns: 0,
            entered_ns: 0,
            counts: Counts::default(),
        };
        sampler.draw(now_ns());
        Ok(sampler)
    }

    /// Takes over the counts of a simulated machine, each nanosecond of it: see [`Profile::period_ns`].
    pub(crate) fn hand_in_all(&self, spent_ns: impl IntoIterator<Item = (Sampled, u64)>, nobody_ns: u64) {
        let mut counts = lock(&self.counts);
        for (seen, ns) in spent_ns {
            *counts.seen.entry(seen).or_default() += ns;
        }
        counts.nobody += nobody_ns;
        counts.is_all = true;
    }

    pub(crate) fn hand_in(&self, sampler: Sampler) {
        let mut counts = lock(&self.counts);
        for (seen, count) in sampler.counts.seen {
            *counts.seen.entry(seen).or_default() += count;
        }
        counts.nobody += sampler.counts.nobody;
        counts.late += sampler.counts.late;
    }

    /// Everything, once all threads have ended.
    pub(crate) fn finish(self, image: &Image) -> Profile {
        let counts = unlocked(self.counts);
        Profile {
            period_ns: if counts.is_all { 1 } else { self.period.as_nanos() as u64 },
            samples: counts.seen.values().sum(),
            nobody: counts.nobody,
            late: counts.late,
            rows: rows(image, &counts.seen),
        }
    }
}

/// Distribution of the vCPUs' time on a pCPU, inside the window.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// Mean time between two samples of a pCPU. 1 for a simulated machine, which counts every nanosecond: a sample stands for one.
    pub period_ns: u64,
    /// Samples taken of a vCPU.
    pub samples: u64,
    /// Moments at which no vCPU was on the pCPU.
    pub nobody: u64,
    /// Moments that were noticed too late to count.
    pub late: u64,
    /// Most samples first.
    pub rows: Vec<ProfileRow>,
}

/// Samples of one function in one state.
#[derive(Clone, Debug, Serialize)]
pub struct ProfileRow {
    /// How many.
    pub samples: u64,
    /// The vCPUs' own statement of their activity: "holder", "head", "waiter" or "other".
    pub activity: &'static str,
    /// The VMM was serving a hypercall that this code had made.
    pub in_vmm: bool,
    /// The function that holds the code; null outside the image.
    pub symbol: Option<String>,
    /// The function that the code was inlined from, where it was.
    pub inlined: Option<String>,
    /// The source line with most samples.
    pub source: Option<String>,
    /// The instruction with most samples.
    pub hottest: u64,
}

#[derive(Default)]
struct Gathered {
    samples: u64,
    sources: BTreeMap<String, u64>,
    /// The instruction with most samples, and their number.
    hottest: u64,
    most: u64,
}

/// Gathers by state and function: the one that was inlined last of those that are not the standard library's.
fn rows(image: &Image, seen: &HashMap<Sampled, u64>) -> Vec<ProfileRow> {
    let lines = image.lines();
    // In an order of their own: rows and lines with as many samples stand in the same one each time.
    let mut rows: BTreeMap<_, Gathered> = BTreeMap::new();
    for (seen, &count) in seen {
        let symbol = image.symbols().at(seen.rip).map(|(symbol, _)| symbol.short_name());
        let mut frames = lines.as_ref().map(|lines| lines.frames(seen.rip)).unwrap_or_default();
        let ours = frames.iter().position(|frame| !frame.is_library()).unwrap_or(0);
        let is_inlined = ours + 1 < frames.len();
        let frame = (ours < frames.len()).then(|| frames.swap_remove(ours));
        let source = frame.as_ref().map(ToString::to_string);
        let inlined = frame.and_then(|frame| frame.function).filter(|_| is_inlined);
        let row = rows.entry((seen.activity.name(), seen.in_vmm, symbol, inlined)).or_default();
        row.samples += count;
        if let Some(source) = source {
            *row.sources.entry(source).or_default() += count;
        }
        (row.most, row.hottest) = (row.most, row.hottest).max((count, seen.rip));
    }
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|((activity, in_vmm, symbol, inlined), row)| ProfileRow {
            samples: row.samples,
            activity,
            in_vmm,
            symbol,
            inlined,
            source: row.sources.into_iter().max_by_key(|(_, count)| *count).map(|(source, _)| source),
            hottest: row.hottest,
        })
        .collect();
    rows.sort_by_key(|row| (std::cmp::Reverse(row.samples), row.hottest));
    rows
}
