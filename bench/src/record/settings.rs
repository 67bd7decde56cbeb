//! The request of a run, and what was left for the run to decide: `settings` in its record.

use std::collections::BTreeMap;

use haltkick_vmm::{Accelerator, Engine, Known, LinuxOutcome, OurGuest, Outcome, Ring, Run, Sched};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Why;
use crate::host::probe::hash;
use crate::settings::choices::{self, SCHEDULERS};
use crate::settings::row::{Told, given, ns, told};
use crate::settings::table;

pub(crate) use crate::settings::table::engine;

/// The request of a run by the names of its settings, units included.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Settings(BTreeMap<String, Value>);

/// A name among the settings of a record that is no row of the table of settings, with its description and its value.
type Row = (&'static str, &'static str, fn(OurGuest<'_>, &Outcome) -> Known<Value>);

impl Settings {
    pub(crate) fn of_ours(asked: OurGuest<'_>, outcome: &Outcome, why: &mut Why) -> Self {
        let others = ROWS.iter().map(|(name, _, value)| (*name, value(asked, outcome)));
        let values = recorded().map(|(name, _, value)| (name, value(asked))).chain(others);
        let told = |(name, value): (&str, Known<Value>)| {
            let value = why.known(format!("settings.{name}"), value);
            (name.to_owned(), value.unwrap_or_default())
        };
        Self(values.map(told).collect())
    }

    /// The request alone, without what came of it.
    pub(crate) fn asked(asked: OurGuest<'_>) -> Self {
        Self(recorded().map(|(name, _, value)| (name.into(), value(asked).unwrap_or_default())).collect())
    }

    pub(crate) fn of_linux(run: &Run, outcome: &LinuxOutcome, why: &mut Why) -> Self {
        let (guest, linux) = run.linux().expect("a run of Linux");
        let path = |path: &std::path::Path| path.display().to_string();
        let slice_ns = match run.rules.sched {
            Sched::Vmm => Ok(ns(run.rules.slice)),
            Sched::Host => Err("the host's scheduler decides".into()),
        };
        // CPUs that QEMU emulates have no paravirtual features.
        let is_emulated = run.engine == Engine::Qemu(Accelerator::Tcg);
        if matches!(run.engine, Engine::Qemu(_)) {
            why.explain("settings.pv_features", "QEMU decides");
        }
        let settings = [
            ("engine", engine(&run.engine).into()),
            ("kernel", path(&linux.kernel).into()),
            ("initrd", linux.initrd.as_ref().map(|disk| path(disk.path())).into()),
            ("command_line", outcome.command_line.clone().into()),
            ("memory_bytes", linux.memory_bytes.into()),
            ("vcpus", guest.vcpus.into()),
            ("cpus", run.cpus.clone().into()),
            ("ratio", (f64::from(guest.vcpus) / run.cpus.len() as f64).into()),
            ("sched", SCHEDULERS.of(run.rules.sched).into()),
            ("slice_ns", why.known("settings.slice_ns", slice_ns).into()),
            ("pv", (guest.pv && !is_emulated).into()),
            ("pv_features", outcome.pv_features.clone().into()),
            ("deschedule", run.deschedule.as_ref().map(choices::written_deschedule).into()),
            ("halt_poll_ns", run.halts.poll.map(ns).into()),
            ("pause_exits", run.halts.pause_exits.into()),
            ("marker", linux.marker.clone().into()),
            ("limit_ns", linux.limit.map(ns).into()),
            ("seed", guest.seed.into()),
        ];
        Self(settings.map(|(name, value): (&str, Value)| (name.to_owned(), value)).into())
    }

    /// The fault of settings that were read, if they lack what the lab counts on.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if u32::try_from(self.count("vcpus")).is_err() || self.count("vcpus") == 0 {
            return Some("settings.vcpus is no number of vCPUs");
        }
        let is_cpu = |cpu: &Value| cpu.as_u64().is_some_and(|cpu| u32::try_from(cpu).is_ok());
        match self.0.get("cpus").and_then(Value::as_array) {
            Some(cpus) if !cpus.is_empty() && cpus.iter().all(is_cpu) => None,
            _ => Some("settings.cpus is no list of CPUs"),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    /// A number; 0 where there is none.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.number(name).unwrap_or_default()
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(crate) fn engine(&self) -> &str {
        self.text("engine").unwrap_or_default()
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.engine() == "sim"
    }

    /// Whether the guest booted a kernel.
    pub(crate) fn is_linux(&self) -> bool {
        self.get("kernel").is_some()
    }

    pub(crate) fn vcpus(&self) -> u32 {
        u32::try_from(self.count("vcpus")).unwrap_or(u32::MAX)
    }

    /// Host CPUs that the vCPUs share.
    pub(crate) fn pcpus(&self) -> usize {
        self.0.get("cpus").and_then(Value::as_array).map_or(0, Vec::len)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    /// The first file that a simulation reads, of the machine, the host and the schedule, that is another one for `run`.
    pub(crate) fn other_file(&self, run: &Run) -> Option<&'static str> {
        let is_other = |file: &&str| sha256_of(run, file).as_deref() != self.text(&format!("{file}_sha256"));
        ["machine", "host", "schedule"].into_iter().find(is_other)
    }

    /// Mean work in a section and after it.
    pub(crate) fn section_ns(&self) -> u64 {
        let hold_ns = self.count("hold_ns");
        let mean_ns = match self.count("long_one_in") {
            0 => hold_ns,
            n => hold_ns.saturating_mul(n - 1).saturating_add(self.count("long_hold_ns")) / n,
        };
        mean_ns.saturating_add(self.count("think_ns"))
    }
}

/// Settings of the table that records tell by their value: name in the record, description, value.
fn recorded() -> impl Iterator<Item = (&'static str, &'static str, Told)> {
    table::all().filter_map(|setting| {
        let (name, value) = setting.in_record?;
        Some((name, setting.about.unwrap_or(setting.help), value))
    })
}

/// The SHA-256 of a file that a simulation reads: that of the machine, of the host or of the schedule.
fn sha256_of(run: &Run, file: &str) -> Option<String> {
    match file {
        "machine" => run.engine.machine().map(|machine| hash(&machine.text)),
        "host" => run.host.as_ref().map(|host| hash(&host.text)),
        _ => run.schedule.as_ref().map(|schedule| schedule.sha256.clone()),
    }
}

/// Files of machines and hosts that a run reads, by the SHA-256 of their text.
pub(crate) fn files(run: &Run) -> BTreeMap<String, String> {
    let machine = run.engine.machine().map(|machine| machine.text.clone());
    let host = run.host.as_ref().map(|host| host.text.clone());
    machine.into_iter().chain(host).map(|text| (hash(&text), text)).collect()
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Settings {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Settings".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let rows = recorded()
            .map(|(name, help, _)| (name, help))
            .chain(ROWS.iter().map(|(name, about, _)| (*name, *about)));
        let property =
            |(name, about): (&str, &str)| (name.to_owned(), serde_json::json!({ "description": about }));
        let properties: serde_json::Map<String, Value> = rows.map(property).collect();
        let about = "The request. A Linux guest has engine, vcpus, cpus, ratio, sched, slice_ns, pv, deschedule, halt_poll_ns, \
                     pause_exits, memory_bytes and seed of these, and kernel, initrd, command_line, pv_features (KVM's features that \
                     CPUID offered), marker and limit_ns.";
        schemars::json_schema!({ "type": "object", "description": about, "properties": properties })
    }
}

/// Other settings that records tell, and the outcome of some.
static ROWS: &[Row] = &[
    (
        "machine_sha256",
        "SHA-256 of the machine's file; `files`, in the record of a run by itself or in manifest.json, has the text.",
        |it, _| given(sha256_of(it.run, "machine"), "a machine that is not simulated"),
    ),
    ("host_sha256", "SHA-256 of the host's file, as that of the machine.", |it, _| {
        given(sha256_of(it.run, "host"), "no model of a host schedules")
    }),
    ("beside", "Names of the other guests that ran at the same time.", |it, _| told(beside(it))),
    ("schedule_sha256", "SHA-256 of the schedule's file; null where none was repeated.", |it, _| {
        given(sha256_of(it.run, "schedule"), "no schedule was repeated")
    }),
    (
        "spin_rounds",
        "How many rounds a paravirtual waiter spins before it sleeps; 0: it goes by `spin_threshold_ns`.",
        |it, _| told(it.ours.spin_rounds),
    ),
    ("memory_bytes", "Memory that the guest managed, in bytes; 0 in workloads that manage none.", |_, it| {
        told(it.memory_bytes)
    }),
    ("ring", "The ring that was used: 0 or 3.", |_, it| told(if it.ring == Ring::Ring0 { 0 } else { 3 })),
    ("ring_reason", "Why that ring.", |_, it| told(it.ring_reason.clone())),
    ("pv_backend", "How vCPUs slept and were woken: \"vmm\", \"kvm\" or \"ipi\".", |_, it| {
        told(it.pv_backend.name())
    }),
    ("pv_backend_reason", "Why so.", |_, it| told(it.pv_backend_reason.clone())),
    (
        "preempted_flag",
        "Writer of the `preempted` flag: \"vmm\", \"kvm\" or \"bpf\"; null if it is not written.",
        |_, it| it.preempted_source.clone().map(|source| format!("{source:?}").to_lowercase().into()),
    ),
];

/// Names of the other guests. The first guest tells of them.
fn beside(asked: OurGuest<'_>) -> Vec<String> {
    let others = asked.run.guests.iter().skip(1).filter(|_| asked.index == 0);
    others.map(|guest| guest.name.clone()).collect()
}
