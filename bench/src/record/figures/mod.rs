//! The table of figures. Whatever a run finds out that is a number is a row of [`rows`]: from it come the record's `figures`, both
//! CSV files, the summary, columns of tables and their legends, JSON Schema, `haltkick list figures`, and what arms and directories are
//! compared by.

mod rows;
pub(crate) mod times;

use std::collections::BTreeMap;

use haltkick_vmm::{
    ByActivity, Found, Ideal, Known, LinuxOutcome, OurGuest, Outcome, Rules, Sched, Share, VcpuOutcome,
    node_of_cpu,
};

use crate::text::quantity::{count, si, significant, time_ns};
use times::Times;

pub(crate) use rows::*;
pub(crate) use times::median;

/// One figure, or a family of figures.
pub(crate) struct Figure {
    /// Its name everywhere; of a family, with a `*` in the place of its key.
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    /// A sentence about it.
    pub(crate) about: &'static str,
    /// The better direction; none where neither is, or where that depends.
    pub(crate) better: Option<Better>,
    /// The value that stands for the runs of a cell; none: it is in records and `runs.csv` alone.
    pub(crate) center: Option<Center>,
    /// Whether a run without a lock has it only by mistake: nothing is waited for there.
    pub(crate) needs_lock: bool,
    pub(crate) column: Column,
    ours: Source,
    /// The value in a run of a Linux guest, if those have it.
    pub(crate) linux: Option<fn(&OfLinux<'_>) -> Known<f64>>,
}

/// Origin of a figure of our own guest.
enum Source {
    /// There is none: the figure is one of a Linux guest.
    None,
    One(fn(&OfOurs<'_>) -> Known<f64>),
    /// The members of a family, by their keys.
    Each(fn(&OfOurs<'_>) -> Members),
    /// A member for each of the measured times.
    Times(fn(&Times<'_>) -> Known<f64>),
}

/// The members of a family by their keys, or why there are none.
type Members = Known<Vec<(String, Known<f64>)>>;

/// Unit of a figure. Names have it, too, where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Count,
    PerSecond,
    Nanoseconds,
    /// A part of a whole, of which 1 is all.
    Share,
    TscCycles,
    Bytes,
    /// vCPUs, out of all that the guest has.
    Vcpus,
    /// Some other quantity: its sentence says which.
    Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    More,
    Less,
}

/// The value that stands for the runs of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Center {
    /// The estimate of Hodges and Lehmann, with its interval.
    HodgesLehmann,
    Median,
    /// The largest of all runs.
    Most,
}

/// The column of a figure in tables of arms. Most have the figure's name. The order of columns is that of the rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    /// Meaning in at most twelve words; empty where the heading says it.
    pub(crate) legend: &'static str,
    pub(crate) shown: Shown,
    /// Text where there is no value.
    pub(crate) none: &'static str,
    pub(crate) has_interval: bool,
    /// When a narrow terminal leaves out the interval, and the column: the least first; none: never.
    pub(crate) gives_way: (Option<u8>, Option<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Always,
    /// In experiments that count what fits into a window of time.
    OfWindows,
    /// In experiments that time a fixed amount of work.
    OfWork,
    /// In tables of which an arm has it above 0.
    IfAny,
    /// In the report alone.
    InReport,
    /// In the report, if a reader picks it: paper has no room for it.
    Picked,
    /// Shown where the number of guests varies, and there alone.
    OfAllGuests,
}

impl Unit {
    /// The word in records and CSV files.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::PerSecond => "1/s",
            Self::Nanoseconds => "ns",
            Self::Share => "share",
            Self::TscCycles => "TSC cycles",
            Self::Bytes => "bytes",
            Self::Vcpus => "vCPUs",
            Self::Number => "1",
        }
    }

    /// A value as people read it.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{}/s", si(value)),
            Self::Nanoseconds => time_ns(value),
            // A median of counts may be a half.
            Self::Count | Self::Bytes | Self::Vcpus if value.fract() == 0.0 => count(value as u64),
            Self::Count | Self::Bytes | Self::Vcpus if value < 1000.0 => format!("{value:.1}"),
            Self::Count | Self::Bytes | Self::Vcpus => si(value),
            Self::Share | Self::TscCycles | Self::Number => significant(value),
        }
    }
}

impl Figure {
    const fn new(name: &'static str, unit: Unit, about: &'static str, ours: Source) -> Self {
        let (better, center, needs_lock, linux) = (None, None, false, None);
        let (legend, shown, none, has_interval, gives_way) = ("", Shown::Picked, "-", true, (None, None));
        let column = Column { heading: name, legend, shown, none, has_interval, gives_way };
        Self { name, unit, about, better, center, needs_lock, column, ours, linux }
    }

    const fn of_linux(mut self, value: fn(&OfLinux<'_>) -> Known<f64>) -> Self {
        self.linux = Some(value);
        self
    }

    const fn better(mut self, better: Better) -> Self {
        self.better = Some(better);
        self
    }

    const fn center(mut self, center: Center) -> Self {
        self.center = Some(center);
        self
    }

    const fn estimated(self, better: Better) -> Self {
        self.better(better).center(Center::HodgesLehmann)
    }

    const fn needs_lock(mut self) -> Self {
        self.needs_lock = true;
        self
    }

    const fn column(mut self, heading: &'static str, shown: Shown, legend: &'static str) -> Self {
        self.column = Column { heading, legend, shown, has_interval: false, ..self.column };
        self
    }

    /// Its column has the interval, too.
    const fn with_interval(mut self) -> Self {
        self.column.has_interval = true;
        self
    }

    /// When a narrow terminal leaves out its interval, if it has one, and its column.
    const fn gives_way(mut self, interval: Option<u8>, column: Option<u8>) -> Self {
        self.column.has_interval = interval.is_some();
        self.column.gives_way = (interval, column);
        self
    }

    const fn or(mut self, none: &'static str) -> Self {
        self.column.none = none;
        self
    }

    /// Name and value of each figure of a run of our own guest, or why there are none.
    pub(crate) fn of_ours(&self, of: &OfOurs<'_>) -> Members {
        let named = |(key, value): (String, _)| (self.name.replace('*', &key), value);
        match self.ours {
            Source::None => Ok(vec![]),
            Source::One(value) => Ok(vec![(self.name.into(), value(of))]),
            Source::Each(values) => Ok(values(of)?.into_iter().map(named).collect()),
            Source::Times(value) => {
                Ok(of.times.iter().map(|times| named((times.name.into(), value(times)))).collect())
            }
        }
    }

    /// Whether our own guests have no such figure.
    pub(crate) fn is_of_linux_alone(&self) -> bool {
        self.linux.is_some() && matches!(self.ours, Source::None)
    }

    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        let exact = FIGURES.iter().find(|row| row.name == name);
        // The key of a member stands in the place of the star, and is not empty.
        let is_of_family = |row: &&Self| {
            let parts = row.name.split_once('*').filter(|_| name.len() >= row.name.len());
            parts.is_some_and(|(before, behind)| name.starts_with(before) && name.ends_with(behind))
        };
        // The longer of two families' names says more.
        exact.or_else(|| FIGURES.iter().filter(is_of_family).max_by_key(|row| row.name.len()))
    }
}

/// A run of our own guest: its settings and its outcome.
pub(crate) struct OfOurs<'a> {
    asked: OurGuest<'a>,
    outcome: &'a Outcome,
    found: &'a Found,
    lock_free: Known<f64>,
    pub(crate) times: Vec<Times<'a>>,
}

/// The outcome of a run of a Linux guest.
pub(crate) struct OfLinux<'a> {
    pub(crate) outcome: &'a LinuxOutcome,
    pub(crate) found: &'a Found,
    /// Whether vCPUs were to be taken off on purpose.
    pub(crate) is_injected: bool,
}

/// Fewer sections per vCPU than this say nothing of fairness: nine sections among 64 vCPUs cannot be spread evenly.
const FAIRNESS_NEEDS: f64 = 2.0;

impl<'a> OfOurs<'a> {
    /// `lock_free`: throughput of the same cell without a lock, or why there is none.
    pub(crate) fn new(
        asked: OurGuest<'a>,
        outcome: &'a Outcome,
        found: &'a Found,
        lock_free: Known<f64>,
    ) -> Self {
        let lock_free = lock_free.and_then(|per_second| match per_second > 0.0 {
            true => Ok(per_second),
            false => Err("the lock-free run completed no section inside its window".into()),
        });
        Self { asked, outcome, found, lock_free, times: Times::all(outcome) }
    }

    fn per_second(&self) -> f64 {
        self.outcome.acquisitions() as f64 / self.outcome.window.as_secs_f64()
    }

    /// The most that any lock lets through, if the workload has such a bound: lock-free throughput, and at most locks / hold where
    /// all sections are of one length.
    fn ideal(&self) -> Known<f64> {
        let lock_free = self.lock_free.clone()?;
        let ours = self.asked.ours;
        match self.outcome.ideal {
            Ideal::Serial => {
                let hold = ours.shape.mean_hold(ours.hold).as_secs_f64();
                let serial = if hold > 0.0 { f64::from(ours.lock_count) / hold } else { f64::INFINITY };
                Ok(lock_free.min(serial))
            }
            Ideal::LockFree => Ok(lock_free),
            Ideal::Unknown => Err(format!(
                "workload {} has no ideal: its operations are neither sections of one known length nor the same without a lock",
                ours.workload
            )
            .into()),
        }
    }

    /// Sections completed by each vCPU.
    fn of_vcpus(&self) -> impl Iterator<Item = u64> + '_ {
        self.outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions)
    }

    fn jain(&self) -> Known<f64> {
        let vcpus = self.outcome.vcpus.len();
        let sum: f64 = self.of_vcpus().map(|count| count as f64).sum();
        let squares: f64 = self.of_vcpus().map(|count| (count as f64).powi(2)).sum();
        if sum < FAIRNESS_NEEDS * vcpus as f64 {
            return Err(
                format!("{sum} sections among {vcpus} vCPUs do not tell: a longer --window does").into()
            );
        }
        Ok(sum * sum / (vcpus as f64 * squares))
    }

    fn run_ns(&self) -> Known<f64> {
        let of_vcpus = self.outcome.vcpus.iter().map(|vcpu| vcpu.run_ns);
        let all = of_vcpus.sum::<Option<u64>>().map(|ns| ns as f64);
        all.ok_or_else(|| "it is not measured with this scheduler on this host".into())
    }

    /// Time of all vCPUs in acquiring and releasing locks.
    fn lock_cpu_ns(&self) -> Known<f64> {
        let unmeasured = || "only the workload `mixed` measures it, with a lock, under --sched vmm".into();
        self.outcome.lock_cpu.map(|time| time.as_nanos() as f64).ok_or_else(unmeasured)
    }

    /// Counts by what the vCPU was doing, or why they are not known.
    fn attributed(&self, values: Option<ByActivity>) -> Known<ByActivity> {
        let unsaid = "the host's scheduler does not say what a vCPU was doing when it preempted it";
        values.ok_or_else(|| match &self.outcome.switches {
            _ if !self.asked.run.attribution => "not asked for (attribution off)".into(),
            Err(unseen) => format!("{unsaid}, and {}; per_vcpu counts how often", unseen.0).into(),
            Ok(_) => unsaid.into(),
        })
    }

    fn injected(&self) -> Known<ByActivity> {
        let reason = match self.asked.run.attribution {
            true => "no vCPU was to be descheduled on purpose",
            false => "not asked for (attribution off)",
        };
        self.outcome.injected.ok_or_else(|| reason.into())
    }

    /// Time that others lost by preemptions of one activity, over how many there were.
    fn lost_per(&self, of: fn(&ByActivity) -> u64, who: &str) -> Known<f64> {
        let lost = self.attributed(self.outcome.lost_ns)?;
        match of(&self.attributed(self.outcome.preemptions)?) {
            0 => Err(format!("no {who} was preempted inside the window").into()),
            times => Ok(of(&lost) as f64 / times as f64),
        }
    }

    /// Speeds of the vCPUs' work, as shares of the promised one.
    fn speeds(&self) -> Known<Vec<f64>> {
        let told: Vec<f64> = self.outcome.work.iter().flatten().map(|speed| speed.over_promised).collect();
        let told = Some(told).filter(|told| !told.is_empty());
        told.ok_or_else(|| "too few pieces of work were long enough, or done, to be timed".into())
    }

    /// A sum over the vCPUs that began on each NUMA node, by the node; of a simulated machine by the socket. Schedulers deal vCPUs
    /// out to the pCPUs in turn, and may move them.
    fn of_nodes(&self, value: impl Fn(usize) -> Option<u64>) -> Members {
        let mut sums = BTreeMap::<u32, Option<u64>>::new();
        for (vcpu, node) in self.nodes().into_iter().enumerate() {
            let sum = sums.entry(node).or_insert(Some(0));
            *sum = sum.zip(value(vcpu)).map(|(sum, more)| sum.saturating_add(more));
        }
        if sums.len() < 2 {
            let one = "all pCPUs of the run are on one node, or the scheduler does not say where vCPUs began";
            return Err(one.into());
        }
        let unmeasured = || "it is not measured with this scheduler on this host".into();
        let known = |sum: Option<u64>| sum.map(|sum| sum as f64).ok_or_else(unmeasured);
        Ok(sums.into_iter().map(|(node, sum)| (node.to_string(), known(sum))).collect())
    }

    /// The node that each vCPU began on; none where that is not known.
    fn nodes(&self) -> Vec<u32> {
        let run = self.asked.run;
        let is_dealt_out = match run.rules {
            // Threads run where the kernel wants; a model starts each guest where it finds least.
            Rules { sched: Sched::Host, .. } => run.engine.is_simulated() && run.guests.len() == 1,
            Rules { share, .. } => share == Share::Vcpu || run.guests.len() == 1,
        };
        if !is_dealt_out {
            return vec![];
        }
        let before: u32 = run.guests[..self.asked.index].iter().map(|guest| guest.vcpus).sum();
        let node = |cpu: u32| match run.engine.machine() {
            Some(machine) => machine.topology.place(cpu).socket.into(),
            None => node_of_cpu(cpu),
        };
        let vcpus = 0..self.outcome.vcpus.len();
        vcpus.map(|vcpu| node(run.cpus[(before as usize + vcpu) % run.cpus.len()])).collect()
    }
}

impl OfLinux<'_> {
    fn sum(&self, value: impl Fn(&VcpuOutcome) -> Option<u64>) -> Known<f64> {
        if self.outcome.vcpus.is_empty() {
            return Err("the vCPUs' threads are QEMU's".into());
        }
        let sum = self.outcome.vcpus.iter().map(value).sum::<Option<u64>>();
        sum.map(|sum| sum as f64).ok_or_else(|| "the kernel does not say".into())
    }
}

/// A name that is longer is none.
const LONGEST_NAME: usize = 64;

/// Whether `name` may be that of a figure that a guest prints.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(format!("a name that is not 1 to {LONGEST_NAME} characters of a-z, 0-9, _ and -"))
}
