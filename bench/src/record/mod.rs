//! The run record: what one run of one cell was asked, what it found, and what it cannot tell.
//!
//! The shape is public (`haltkick schema run`): adding a figure is a minor change, renaming one or changing its unit raises
//! [`SCHEMA_VERSION`]. Units are part of the names. What a run cannot tell is `null`, with the reason under its name in `why`; it
//! is never 0.

pub(crate) mod figures;
pub(crate) mod place;
pub(crate) mod settings;

use std::collections::BTreeMap;

use haltkick_vmm::{Explanation, Known, OurGuest, Repeated, Timeline as Noted, Unknown, VcpuOutcome, Where};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use crate::host::identity::Host;
use crate::host::noise::{BUSY_NEIGHBOUR, Noise, OTHERS_SHARE_LIMIT};
use crate::record::figures::{Figure, LOCK_EVENT, Unit};
use crate::record::place::Place;
use crate::record::settings::Settings;
use crate::text::exit::Failure;

pub(crate) const SCHEMA: &str = "haltkick.run";
pub(crate) const SCHEMA_VERSION: u32 = 2;

/// One run of one guest: of our own, or of Linux.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Record {
    /// "haltkick.run".
    pub(crate) schema: String,
    /// 2.
    pub(crate) schema_version: u32,
    /// Unique among all runs; the records of guests that ran at once have the same.
    pub(crate) run_id: String,
    /// When the run began, RFC 3339.
    pub(crate) started: String,
    /// Place of the run in an experiment; null for a run by itself.
    pub(crate) place: Option<Place>,
    /// The request, and what was left for the run to decide.
    pub(crate) settings: Settings,
    /// Files of the simulated machine and of the host whose scheduler is modelled, by the SHA-256 of their text. An experiment's
    /// runs.jsonl has none: they stand once, in its manifest.json.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) files: BTreeMap<String, String>,
    /// The host, in short; an experiment's manifest.json has all of it.
    pub(crate) host: Host,
    /// Whether the system calls of the process and of threads that ran vCPUs were filtered; `why` says why not.
    pub(crate) sandbox: bool,
    /// The version of Landlock that kept the process from files that it did not need; null where none did.
    pub(crate) landlock_abi: Option<u32>,
    /// End of the guest: "finished"; of a Linux guest "power-off", "reset", "panic", "time-limit" or "failed".
    pub(crate) end: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    /// All figures by name: `haltkick list figures` says what each is. A Linux guest has what it printed on its console as
    /// `haltkick: NAME=VALUE UNIT`, or the figures of the workload that ran inside.
    pub(crate) figures: Figures,
    /// Units of figures that a guest printed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) units: BTreeMap<String, String>,
    /// Names of the figures that are lower bounds, since waits that had not ended decide them.
    pub(crate) at_least: Vec<String>,
    /// Distributions of times by name, "wait" for that from asking for the lock to having it: pairs of a bucket's lower bound in
    /// nanoseconds and the number of values in it.
    pub(crate) distributions: BTreeMap<String, Vec<(f64, u64)>>,
    /// Lock events of all vCPUs since boot, under the names that Linux uses: counts, and of `pv_latency_...` the sum in
    /// nanoseconds. Of a Linux guest those that it printed as `haltkick: lock_event.NAME=VALUE count`.
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, f64>"))]
    pub(crate) lock_events: Figures,
    /// With `--schedule`: what the file had for the window, and how much of that was repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, f64>"))]
    pub(crate) schedule: Option<Repeated>,
    /// Exits of all vCPUs that the VMM saw, whole run, by reason.
    pub(crate) vm_exits: BTreeMap<String, u64>,
    /// KVM's counts for all vCPUs, whole run, under its names.
    pub(crate) kvm_stats: Option<BTreeMap<String, u64>>,
    /// Each vCPU, in order.
    pub(crate) per_vcpu: Vec<PerVcpu>,
    /// Place of each vCPU in the beginning of the window; of an experiment in the first block only, and null if
    /// unknown.
    pub(crate) timeline: Option<Timeline>,
    /// With `--profile`: samples of instruction pointers, by function and by what the vCPU was doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Value"))]
    pub(crate) profile: Option<Value>,
    /// With `--trace`: what the file holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<Traced>,
    /// The record of the workload that ran inside a Linux guest; `host.kernel` in it names the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Value"))]
    pub(crate) inside: Option<Box<Record>>,
    /// Other load on the pCPUs meanwhile.
    pub(crate) noise: Noise,
    /// False: finished, but read `warnings` before believing a figure.
    pub(crate) trusted: bool,
    /// Warnings about this run.
    pub(crate) warnings: Vec<Warning>,
    /// Why something is null, by its name; of a family of figures by that of the family.
    pub(crate) why: BTreeMap<String, String>,
}

/// Something that speaks against a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Warning {
    /// Stable name.
    pub(crate) code: String,
    /// The problem, with figures, and what to do.
    pub(crate) message: String,
}

/// One vCPU. Null: it is not measured with this scheduler and back end on this host, or not of such a guest.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct PerVcpu {
    /// Sections completed inside the window.
    pub(crate) acquisitions: Option<u64>,
    /// Time on a pCPU: inside the window, of a Linux guest in the whole run.
    pub(crate) run_ns: Option<u64>,
    /// Time runnable without a pCPU or held back on purpose, whole run.
    pub(crate) steal_ns: Option<u64>,
    /// Time halted, whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) halted_ns: Option<u64>,
    /// Times taken off a pCPU while it could have gone on, whole run; under the host's scheduler by the kernel's own count.
    pub(crate) preemptions: u64,
    /// Number of these that were on purpose; under the host's scheduler they come in addition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) injected: Option<u64>,
    /// Sleeps in `pv_wait`, of a Linux guest all halts, whole run.
    pub(crate) waits: Option<u64>,
    /// Kicks received, whole run.
    pub(crate) kicks: Option<u64>,
}

impl From<&VcpuOutcome> for PerVcpu {
    fn from(vcpu: &VcpuOutcome) -> Self {
        Self {
            acquisitions: Some(vcpu.acquisitions),
            run_ns: vcpu.run_ns,
            steal_ns: vcpu.steal_ns,
            halted_ns: vcpu.halted_ns,
            preemptions: vcpu.preemptions,
            injected: vcpu.injected,
            waits: vcpu.waits,
            kicks: vcpu.kicks,
        }
    }
}

impl Record {
    /// The place of a run that is of an experiment.
    #[cfg(test)]
    pub(crate) fn placed(&self) -> &Place {
        self.place.as_ref().expect("it is of an experiment")
    }

    /// A figure by its name, or an event of the locks by its name with [`LOCK_EVENT`] before it.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        match name.strip_prefix(LOCK_EVENT) {
            Some(event) => self.lock_events.get(event),
            None => self.figures.get(name),
        }
    }

    /// All figures with their names, and of a Linux guest the events of its locks.
    pub(crate) fn named(&self) -> impl Iterator<Item = (String, Option<f64>)> {
        let events = self.lock_events.iter().filter(move |_| self.is_linux());
        let events = events.map(|(name, count)| (format!("{LOCK_EVENT}{name}"), count));
        self.figures.iter().map(|(name, value)| (name.to_owned(), value)).chain(events)
    }

    /// A figure; 0 where there is none.
    pub(crate) fn amount(&self, name: &str) -> f64 {
        self.figure(name).unwrap_or_default()
    }

    /// Why the figure or field called `name` is null.
    pub(crate) fn why(&self, name: &str) -> Option<&str> {
        let family = || self.why.get(Figure::find(name)?.name);
        self.why.get(name).or_else(family).map(String::as_str)
    }

    pub(crate) fn unit(&self, name: &str) -> &str {
        let of_row = || Figure::find(name).map_or(Unit::Count.word(), |row| row.unit.word());
        self.units.get(name).map_or_else(of_row, String::as_str)
    }

    /// Whether nothing of it is known but what the guest printed.
    pub(crate) fn is_linux(&self) -> bool {
        self.settings.is_linux()
    }

    /// Work done per pCPU without a lock, over what the pCPU can do in that time: at most 1, but for the error of the
    /// calibration. Where an operation is known to be a section and a pause.
    pub(crate) fn lock_free_level(&self) -> Option<f64> {
        let is_section = matches!(self.settings.text("workload")?, "critical-section" | "mixed");
        let work_ns = Some(self.settings.section_ns()).filter(|ns| *ns > 0 && is_section)?;
        let pcpus = self.settings.pcpus().min(self.settings.vcpus() as usize) as f64;
        Some(self.figure(figures::LOCK_FREE)? * work_ns as f64 / 1e9 / pcpus)
    }

    /// The share of the pCPUs that others used, 0 if none was seen; `None` if something else spoiled the run.
    pub(crate) fn neighbours_share(&self) -> Option<f64> {
        let Noise { others_share, run_delay_share, .. } = self.noise;
        if self.trusted {
            return Some(run_delay_share.unwrap_or(0.0));
        }
        let is_all = !self.warnings.is_empty() && self.warnings.iter().all(|it| it.code == BUSY_NEIGHBOUR);
        let share = [others_share, run_delay_share].into_iter().flatten().reduce(f64::max);
        share.filter(|share| is_all && *share > OTHERS_SHARE_LIMIT)
    }

    pub(crate) fn warn(&mut self, code: &str, message: String) {
        self.trusted = false;
        self.warnings.push(Warning { code: code.into(), message });
    }
}

/// Figures by name, as records write them: whole ones without a decimal point. Null: this run cannot tell.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(transparent)]
pub(crate) struct Figures(BTreeMap<String, Option<f64>>);

impl Figures {
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied().flatten()
    }

    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Into<Option<f64>>) {
        self.0.insert(name.into(), value.into());
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, Option<f64>)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

/// Whole numbers up to this are kept by every reader of JSON.
const MOST_WHOLE: f64 = (1_u64 << 53) as f64;

/// A number that is whole, where all readers keep it whole, or any.
fn number(value: f64) -> Value {
    let is_whole = value.fract() == 0.0 && value.abs() < MOST_WHOLE;
    // A negative zero would become a positive one.
    let is_kept = value != 0.0 || value.is_sign_positive();
    if is_whole && is_kept { json!(value as i64) } else { json!(value) }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value.map(number))))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Figures {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Figures".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let told = |row: &Figure| {
            let about = format!("{} Unit: {}.", row.about, row.unit.word());
            json!({ "description": about, "type": ["number", "null"] })
        };
        let pattern = |row: &Figure| format!("^{}$", row.name.replace('*', ".+"));
        let (families, exact): (Vec<&Figure>, Vec<&Figure>) =
            figures::FIGURES.iter().partition(|row| row.name.contains('*'));
        let exact = exact.into_iter().map(|row| (row.name.to_owned(), told(row)));
        let families = families.into_iter().map(|row| (pattern(row), told(row)));
        schemars::json_schema!({
            "type": "object",
            "properties": exact.collect::<serde_json::Map<_, _>>(),
            "patternProperties": families.collect::<serde_json::Map<_, _>>(),
            "additionalProperties": { "type": ["number", "null"] },
        })
    }
}

/// Reasons by the paths of what is null.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Why(pub(crate) BTreeMap<String, String>);

impl Why {
    /// The value for the field at `path`; if it is not known, the reason is noted.
    pub(crate) fn known<T>(&mut self, path: impl Into<String>, value: Known<T>) -> Option<T> {
        value.map_err(|Unknown(reason)| self.explain(path, reason)).ok()
    }

    /// Notes why the field at `path` is null, or false.
    pub(crate) fn explain(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.0.insert(path.into(), reason.into());
    }
}

/// Content of a trace file, and its gaps.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Traced {
    /// The file.
    pub(crate) path: String,
    /// Its length.
    pub(crate) bytes: u64,
    /// Turns, sleeps and kicks in it.
    pub(crate) host_events: u64,
    /// Events that were dropped for lack of room: the oldest.
    pub(crate) host_events_dropped: u64,
    /// Critical sections in it.
    pub(crate) guest_sections: u64,
    /// Sections that were dropped for lack of room: the oldest of each vCPU.
    pub(crate) guest_sections_dropped: u64,
    /// Sections that the guest noted with impossible times or locks.
    pub(crate) guest_sections_implausible: u64,
    /// Gaps, and why: one line for each.
    #[serde(default)]
    pub(crate) missing: Vec<String>,
}

impl Traced {
    /// One line for people.
    pub(crate) fn story(&self) -> String {
        let mut story = format!(
            "trace: {} ({} host events, {} critical sections): open it in https://ui.perfetto.dev",
            self.path, self.host_events, self.guest_sections
        );
        let dropped = self.host_events_dropped.saturating_add(self.guest_sections_dropped);
        if dropped > 0 {
            story += &format!("; the {dropped} oldest did not fit");
        }
        for missing in &self.missing {
            story += &format!("\ntrace: without {missing}");
        }
        story
    }
}

/// Place of each vCPU in the beginning of the window, bin by bin.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Timeline {
    /// Length of a bin: half a slice. The first begins when the window opens. There are 100 for each of up to
    /// 256 vCPUs of a run, and fewer for more: 25 for 1024.
    pub(crate) bin_ns: u64,
    /// A text for each vCPU, in order, with a digit for each bin: tenths of it that the vCPU was on a pCPU, rounded down. 9 is all of
    /// it, too.
    pub(crate) on_pcpu: Vec<String>,
    /// A text for each vCPU with a letter for each bin: its place for most of the time without a pCPU. Taken off its
    /// pCPU as holder of a lock (h), first in a queue (f), waiting in it (w) or none of these (o); ready, after a sleep
    /// or having given up its pCPU (r); asleep (s). A point: it was on a pCPU all the time.
    pub(crate) off_pcpu: Vec<String>,
}

/// Letters of [`Noted::OFF`].
const LETTERS: [char; Noted::OFF.len()] = ['h', 'f', 'w', 'o', 'r', 's'];
/// The letter of a vCPU that was never off.
const NEVER_OFF: char = '.';

impl Timeline {
    /// Makes the timeline of all vCPUs, in a window of this length.
    pub(crate) fn new(vcpus: &[&Noted], window_ns: u64) -> Option<Self> {
        let bin_ns = vcpus.first()?.bin_ns();
        let digit = |ns: u32| (b'0' + (u64::from(ns) * 10 / bin_ns).min(9) as u8) as char;
        let on_pcpu = |vcpu: &&Noted| vcpu.of(Where::Running, window_ns).map(digit).collect::<String>();
        Some(Self {
            bin_ns,
            on_pcpu: vcpus.iter().map(on_pcpu).collect(),
            off_pcpu: vcpus.iter().map(|vcpu| off_pcpu(vcpu, window_ns)).collect(),
        })
    }
}

fn off_pcpu(vcpu: &Noted, window_ns: u64) -> String {
    let each: Vec<Vec<u32>> = Noted::OFF.iter().map(|at| vcpu.of(*at, window_ns).collect()).collect();
    let letter = |bin: usize| {
        let (most, letter) =
            each.iter().zip(LETTERS).map(|(bins, letter)| (bins[bin], letter)).max_by_key(|(ns, _)| *ns)?;
        (most > 0).then_some(letter)
    };
    let bins = each.first().map_or(0, Vec::len);
    (0..bins).map(|bin| letter(bin).unwrap_or(NEVER_OFF)).collect()
}

/// A run that failed in the guest. The output of `haltkick run --format json` then.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct FailureRecord {
    /// "haltkick.failure".
    pub(crate) schema: &'static str,
    /// 1.
    pub(crate) schema_version: u32,
    /// The exit code: 5, the guest failed; 6, no progress.
    pub(crate) exit_code: u8,
    /// One line: what failed, and where.
    pub(crate) message: String,
    /// The request, as the record of a run has it.
    pub(crate) config: Settings,
    /// Output of the guest to its console.
    pub(crate) console: String,
    /// Verdict, locks, and vCPUs as they were: see docs/explain.md.
    #[cfg_attr(feature = "schema", schemars(with = "Value"))]
    pub(crate) explanation: Explanation,
}

impl FailureRecord {
    pub(crate) fn new(
        asked: OurGuest<'_>,
        failure: &Failure,
        console: String,
        explanation: Explanation,
    ) -> Self {
        Self {
            schema: "haltkick.failure",
            schema_version: 1,
            exit_code: failure.exit as u8,
            message: failure.message.clone(),
            config: Settings::asked(asked),
            console,
            explanation,
        }
    }
}
