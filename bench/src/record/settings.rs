//! The request of a run, and what was left for the run to decide: `settings` in its record.

use std::collections::BTreeMap;
use std::time::Duration;

use haltkick_vmm::{
    Accelerator, Engine, Known, LinuxOutcome, OurGuest, Outcome, PreemptedSource, Ring, Run, Sched,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::why::Why;
use crate::settings::choices::{EXTENSIONS, NumaChoice, SCHEDULERS, SHARES};
use crate::settings::deschedule::Policy;
use crate::settings::fold::FoldChoice;
use crate::settings::pause_loops::PauseLoops;
use crate::settings::quota::QuotaChoice;

/// The request of a run by the names of its settings, units included.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Settings(BTreeMap<String, Value>);

/// One setting of our own guest, as records tell it.
pub(crate) struct Row {
    name: &'static str,
    #[cfg_attr(not(feature = "schema"), expect(dead_code, reason = "the schema has it"))]
    about: &'static str,
    value: fn(&Of<'_>) -> Known<Value>,
}

/// A guest with its request and its outcome.
struct Of<'a> {
    asked: OurGuest<'a>,
    outcome: &'a Outcome,
}

impl Settings {
    /// The settings of our own guest.
    pub(crate) fn of_ours(asked: OurGuest<'_>, outcome: &Outcome, why: &mut Why) -> Self {
        let it = Of { asked, outcome };
        let told = |row: &Row| {
            let value = why.known(format!("settings.{}", row.name), (row.value)(&it));
            (row.name.to_owned(), value.unwrap_or_default())
        };
        Self(ROWS.iter().map(told).collect())
    }

    /// The settings of a Linux guest.
    pub(crate) fn of_linux(run: &Run, outcome: &LinuxOutcome, why: &mut Why) -> Self {
        let (guest, linux) = run.linux().expect("a run of Linux");
        let path = |path: &std::path::Path| path.display().to_string();
        let by_host = "the host's scheduler decides";
        let slice_ns = (run.rules.sched == Sched::Vmm).then(|| ns(run.rules.slice));
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
            ("slice_ns", why.given("settings.slice_ns", slice_ns, by_host).into()),
            ("pv", (guest.pv && !is_emulated).into()),
            ("pv_features", outcome.pv_features.clone().into()),
            ("deschedule", run.deschedule.clone().map(|policy| Policy(policy).to_string()).into()),
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

    /// A text, or none.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// A number, or none.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    /// A number; 0 where there is none.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.number(name).unwrap_or_default()
    }

    /// Whether a switch is on.
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
        let files = [
            ("machine", run.engine.machine().map(|machine| sha256(&machine.text)), "machine_sha256"),
            ("host", run.host.as_ref().map(|host| sha256(&host.text)), "host_sha256"),
            ("schedule", run.schedule.as_ref().map(|it| it.sha256().to_owned()), "schedule_sha256"),
        ];
        files.into_iter().find(|(_, is, was)| is.as_deref() != self.text(was)).map(|(file, ..)| file)
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

/// Files of machines and hosts that a run reads, by the SHA-256 of their text.
pub(crate) fn files(run: &Run) -> BTreeMap<String, String> {
    let machine = run.engine.machine().map(|machine| machine.text.clone());
    let host = run.host.as_ref().map(|host| host.text.clone());
    machine.into_iter().chain(host).map(|text| (sha256(&text), text)).collect()
}

/// The digest of a text in hexadecimal digits.
fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Settings {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Settings".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let property = |row: &Row| (row.name.to_owned(), serde_json::json!({ "description": row.about }));
        let properties: serde_json::Map<String, Value> = ROWS.iter().map(property).collect();
        let about = "The request. A Linux guest has engine, vcpus, cpus, ratio, sched, slice_ns, pv, deschedule, halt_poll_ns, \
                     pause_exits, memory_bytes and seed of these, and kernel, initrd, command_line, pv_features (KVM's features that \
                     CPUID offered), marker and limit_ns.";
        schemars::json_schema!({ "type": "object", "description": about, "properties": properties })
    }
}

const fn row(name: &'static str, about: &'static str, value: fn(&Of<'_>) -> Known<Value>) -> Row {
    Row { name, about, value }
}

fn told(value: impl Into<Value>) -> Known<Value> {
    Ok(value.into())
}

fn given(value: Option<impl Into<Value>>, reason: &'static str) -> Known<Value> {
    value.map(Into::into).ok_or_else(|| reason.into())
}

/// Settings of our own guest.
pub(crate) static ROWS: &[Row] = &[
    row(
        "engine",
        "Engine of the guest: \"kvm\", \"threads\", \"qemu-kvm\", \"qemu-tcg\" or \"sim\".",
        |it| told(engine(&it.asked.run.engine)),
    ),
    row("machine", "Name of the simulated machine.", |it| {
        given(
            it.asked.run.engine.machine().map(|machine| machine.name.clone()),
            "a machine that is not simulated",
        )
    }),
    row(
        "machine_sha256",
        "SHA-256 of its file; `files`, in the record of a run by itself or in manifest.json, has the text.",
        |it| {
            given(
                it.asked.run.engine.machine().map(|machine| sha256(&machine.text)),
                "a machine that is not simulated",
            )
        },
    ),
    row(
        "host",
        "Name of the host whose scheduler is modelled on the simulated machine; null where none is.",
        |it| given(it.asked.run.host.as_ref().map(|host| host.name.clone()), "no model of a host schedules"),
    ),
    row("host_sha256", "SHA-256 of its file, as that of the machine.", |it| {
        given(it.asked.run.host.as_ref().map(|host| sha256(&host.text)), "no model of a host schedules")
    }),
    row("guest", "Name of the guest among those of the run.", |it| told(it.asked.guest.name.clone())),
    row("beside", "Names of the other guests that ran at the same time.", |it| told(beside(it.asked))),
    row("share", "Unit with equal shares of the pCPUs: \"vcpu\" or \"guest\".", |it| {
        told(SHARES.of(it.asked.run.rules.share))
    }),
    row("vcpus", "Number of vCPUs.", |it| told(it.asked.guest.vcpus)),
    row("cpus", "Host CPUs that they share.", |it| told(it.asked.run.cpus.clone())),
    row("numa", "NUMA nodes of the guest's memory: \"local\", \"interleave\" or a number.", |it| {
        given(numa(it.asked.run), "this engine's guests have no memory that the VMM places on nodes")
    }),
    row("ratio", "vCPUs per pCPU.", |it| {
        told(f64::from(it.asked.guest.vcpus) / it.asked.run.cpus.len() as f64)
    }),
    row(
        "quota",
        "CPU time of the guest's vCPUs in each period, \"RUN/PERIOD+BURST\"; null where it had no quota.",
        |it| {
            given(
                it.asked.guest.quota.map(|quota| QuotaChoice(Some(quota)).to_string()),
                "the guest had no quota",
            )
        },
    ),
    row(
        "from_ns",
        "When the guest got its first pCPU in the window, from its opening on; null where it had one at once.",
        |it| {
            given(
                it.asked.guest.presence.map(|presence| ns(presence.from)),
                "the guest was there all the time",
            )
        },
    ),
    row(
        "until_ns",
        "When the guest got no pCPU any longer, from the opening of the window on; null where it stayed.",
        |it| {
            given(
                it.asked.guest.presence.and_then(|presence| presence.until).map(ns),
                "the guest stayed until the end",
            )
        },
    ),
    row(
        "grace_ns",
        "How much longer a vCPU could run that said it held a lock when its slice ended.",
        |it| told(ns(it.asked.run.rules.grace)),
    ),
    row(
        "slice_extension",
        "Which sections asked for that: \"kernel\" (all) or \"user\" (short ones).",
        |it| told(EXTENSIONS.of(it.asked.ours.mix.only_short_ask)),
    ),
    row("slice_margin_ns", "How much of a slice had to be left for locks that ask for that.", |it| {
        told(ns(it.asked.ours.slice_margin))
    }),
    row("kick_yield", "Whether a kick handed the pCPU to the vCPU that it woke.", |it| {
        told(it.asked.run.rules.kick_yields)
    }),
    row("attribution", "Whether descheduling was attributed to what the vCPU was doing.", |it| {
        told(it.asked.run.attribution)
    }),
    row("deschedule", "vCPUs to take off on purpose, how often and for how long; null: none.", |it| {
        given(
            it.asked.run.deschedule.clone().map(|policy| Policy(policy).to_string()),
            "no vCPU was to be descheduled on purpose",
        )
    }),
    row("schedule", "File of the recorded schedule that was repeated; null where none was.", |it| {
        given(
            it.asked.run.schedule.as_ref().map(|schedule| schedule.name().to_owned()),
            "no schedule was repeated",
        )
    }),
    row("schedule_sha256", "SHA-256 of that file; null where none was repeated.", |it| {
        given(
            it.asked.run.schedule.as_ref().map(|schedule| schedule.sha256().to_owned()),
            "no schedule was repeated",
        )
    }),
    row("lock", "Name of the lock.", |it| told(it.asked.ours.lock.clone())),
    row("pv", "Whether its paravirtual form.", |it| told(it.asked.guest.pv)),
    row("patch", "Whether the lock's call sites were rewritten; else they called through a table.", |it| {
        told(it.asked.ours.patch)
    }),
    row("preempted_hint", "Whether `vcpu_is_preempted` could read the flag.", |it| {
        told(it.asked.ours.preempted_hint)
    }),
    row("spin_threshold_ns", "How long a paravirtual waiter spins before it sleeps.", |it| {
        told(ns(it.asked.ours.spin_threshold))
    }),
    row("spin_rounds", "How many rounds it spins instead; 0: it goes by that time.", |it| {
        told(it.asked.ours.spin_rounds)
    }),
    row("memory_bytes", "Memory that the guest managed, in bytes; 0 in workloads that manage none.", |it| {
        told(it.outcome.memory_bytes)
    }),
    row("sched", "\"vmm\" or \"host\".", |it| told(SCHEDULERS.of(it.asked.run.rules.sched))),
    row("slice_ns", "Length of a slice; null where the host decides.", |it| {
        given(
            (it.asked.run.rules.sched == Sched::Vmm).then(|| ns(it.asked.run.rules.slice)),
            "the host's scheduler decides",
        )
    }),
    row("ring", "The ring that was used: 0 or 3.", |it| {
        told(if it.outcome.ring == Ring::Ring0 { 0 } else { 3 })
    }),
    row("ring_reason", "Why that ring.", |it| told(it.outcome.ring_reason.clone())),
    row("pv_backend", "How vCPUs slept and were woken: \"vmm\", \"kvm\" or \"ipi\".", |it| {
        told(it.outcome.pv_backend.name())
    }),
    row("pv_backend_reason", "Why so.", |it| told(it.outcome.pv_backend_reason.clone())),
    row(
        "preempted_flag",
        "Writer of the `preempted` flag: \"vmm\", \"kvm\" or \"bpf\"; null if it is not written.",
        |it| it.outcome.preempted_source.clone().map(|source| flag_writer(source).into()),
    ),
    row(
        "halt_poll_ns",
        "How long KVM polls before it lets a halted vCPU sleep; null if not set, so that the host's setting holds.",
        |it| given(it.asked.run.halts.poll.map(ns), "left as the host has it"),
    ),
    row("pause_exits", "Whether spin loops in ring 0 may end in exits.", |it| {
        told(it.asked.run.halts.pause_exits)
    }),
    row(
        "ple",
        "Limits of pause loops in the model of a host, \"gap=TICKS,window=TICKS\", and \",target=\" if that is not KVM's; null where no model has any.",
        |it| {
            given(
                PauseLoops::of(it.asked.run).map(|loops| loops.to_string()),
                "no model of a host has pause-loop exits",
            )
        },
    ),
    row("hlt_exits", "Whether HLT ends in an exit.", |it| told(it.asked.run.halts.hlt_exits)),
    row("workload", "Name of the workload.", |it| told(it.asked.ours.workload.clone())),
    row("hold_ns", "Work inside a critical section.", |it| told(ns(it.asked.ours.hold))),
    row("think_ns", "Work between critical sections.", |it| told(ns(it.asked.ours.think))),
    row("locks", "Locks that the sections are spread over.", |it| told(it.asked.ours.lock_count)),
    row("tasks", "Tasks that took turns on the vCPUs; null in workloads without tasks.", |it| {
        given(
            (it.asked.ours.workload == "tasks").then(|| it.asked.ours.tasks.unwrap_or(it.asked.guest.vcpus)),
            "the workload has no tasks",
        )
    }),
    row(
        "fold",
        "How the guest chose the vCPUs that run tasks, as `--fold` says it; null in workloads without tasks.",
        |it| {
            given(
                (it.asked.ours.workload == "tasks").then(|| FoldChoice(it.asked.ours.fold).to_string()),
                "the workload has no tasks",
            )
        },
    ),
    row(
        "work_sections",
        "Sections that make up the fixed amount of work; null: as many as fit into the window.",
        |it| given(it.asked.ours.mix.work_sections, "as many sections as fit into the window"),
    ),
    row("go_on", "Whether vCPUs went on, uncounted, when that was done.", |it| told(it.asked.ours.mix.go_on)),
    row("long_hold_ns", "Work inside a long critical section.", |it| told(ns(it.asked.ours.mix.long_hold))),
    row("long_one_in", "One section in this many, chosen at random, is long; 0: none.", |it| {
        told(it.asked.ours.mix.long_one_in)
    }),
    row("nested_one_in", "One section in this many, chosen at random, has another inside; 0: none.", |it| {
        told(it.asked.ours.mix.nested_one_in)
    }),
    row(
        "exponential_think",
        "Whether thinking times (or times between arrivals) were exponentially distributed.",
        |it| told(it.asked.ours.shape.exponential_think),
    ),
    row(
        "hold_jitter_percent",
        "How far the length of a section was off `hold_ns`, at most, in percent of it.",
        |it| told(it.asked.ours.shape.hold_jitter_percent),
    ),
    row(
        "zipf",
        "Locks were chosen with a probability that fell with their number to this power; 0: in turn.",
        |it| told(f64::from(it.asked.ours.shape.zipf_hundredths) / 100.0),
    ),
    row(
        "arrivals_ns",
        "Mean time between two sections that each vCPU was to begin; null: it began the next when it had thought.",
        |it| {
            given(
                it.asked.ours.shape.arrivals.map(ns),
                "vCPUs began their next section when they had thought",
            )
        },
    ),
    row("footprint_lines", "Cache lines that a section walked.", |it| {
        told(it.asked.ours.shape.footprint_lines)
    }),
    row("dirty_lines", "Number of these lines that it wrote.", |it| told(it.asked.ours.shape.dirty_lines)),
    row("embed", "Whether the first of those lines was the one in which the lock ends.", |it| {
        told(it.asked.ours.shape.embed)
    }),
    row("read_percent", "Sections in a hundred that only read.", |it| told(it.asked.ours.shape.read_percent)),
    row("read_hold_ns", "Work inside those; 0 where there are none.", |it| {
        told(if it.asked.ours.shape.read_percent > 0 { ns(it.asked.ours.shape.read_hold) } else { 0 })
    }),
    row("oracle", "Whether every section was watched from inside.", |it| told(it.asked.ours.oracle)),
    row("live", "Whether the run showed itself to `haltkick top` while it went.", |it| {
        told(it.asked.run.live)
    }),
    row("ordered_stamps", "Whether the clock was read between fences at the edges of sections.", |it| {
        told(it.asked.ours.ordered_stamps)
    }),
    row("warmup_ns", "Time between start and window.", |it| told(ns(it.asked.run.warmup))),
    row("window_ns", "Length of the window as asked.", |it| told(ns(it.asked.run.window))),
    row(
        "min_sections",
        "The window doubled until at least this many sections were done in it; 0: it stayed as asked.",
        |it| told(it.asked.run.min_sections),
    ),
    row("seed", "Seed of everything random.", |it| told(it.asked.guest.seed)),
];

/// A time in nanoseconds, as far as records can hold it.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Names of the other guests. The first guest tells of them.
fn beside(asked: OurGuest<'_>) -> Vec<String> {
    let others = asked.run.guests.iter().skip(1).filter(|_| asked.index == 0);
    others.map(|guest| guest.name.clone()).collect()
}

/// NUMA nodes of the guests' memory, where the VMM places it.
fn numa(run: &Run) -> Option<String> {
    matches!(run.engine, Engine::Kvm | Engine::Threads).then(|| NumaChoice(run.numa).to_string())
}

fn flag_writer(source: PreemptedSource) -> &'static str {
    match source {
        PreemptedSource::Vmm => "vmm",
        PreemptedSource::Kvm => "kvm",
        PreemptedSource::Bpf => "bpf",
    }
}

/// Name of an engine in records.
pub(crate) fn engine(engine: &Engine) -> &'static str {
    match engine {
        Engine::Kvm => "kvm",
        Engine::Threads => "threads",
        Engine::Qemu(Accelerator::Kvm) => "qemu-kvm",
        Engine::Qemu(Accelerator::Tcg) => "qemu-tcg",
        Engine::Sim(_) => "sim",
    }
}
