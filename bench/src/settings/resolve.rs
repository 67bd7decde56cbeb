//! From settings to a cell that can exist here: defaults, limits, names that the image knows.

use std::time::Duration;

use haltkick_vmm::{
    Accelerator, Deschedule, Engine, Entry, Image, MAX_LOCKS, Mix, PreemptedBy, PvBackend, Ring, RunConfig,
    Sched, Share,
};

use super::{
    AccelChoice, AfterWork, DescheduleChoice, EngineChoice, Impossible, PreemptedChoice, PvBackendChoice,
    RingChoice, SchedChoice, Settings, ShareChoice, Supply, Switch,
};
use crate::host::cpulist::{self, CpuList};
use crate::settings::deschedule::Policy;
use crate::settings::vm::{self, Vm};
use crate::text::duration::Span;
use crate::text::nearest;

/// Most vCPUs in one guest.
const MAX_VCPUS: u32 = haltkick_vmm::MAX_VCPUS as u32;
/// Room for 512 pages of each of 16 vCPUs, twice.
const DEFAULT_MEMORY_BYTES: u64 = 64 << 20;
/// Longest work in or between sections that still makes sense beside a watchdog.
const MAX_WORK: Duration = Duration::from_secs(1);
/// The longest that a fixed amount of work may take, unless a window is given.
const LONGEST_WORK: Duration = Duration::from_secs(60);
const SLICE_RANGE: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(100));

impl Settings {
    /// Fills in the defaults and checks that the cell can exist here.
    pub(crate) fn resolve(&self, supply: Supply<'_>) -> Result<RunConfig, Impossible> {
        let run = Self { vm: vec![], ..self.clone() };
        if self.vm.is_empty() {
            return run.resolve_one(supply);
        }
        let guest = |(index, vm): (usize, &Vm)| {
            let config = vm.settings.clone().over(&run).resolve_one(supply)?;
            // Guests that do the same must not do it in step.
            let seed = config.seed.wrapping_add(if vm.settings.seed.is_some() { 0 } else { index as u64 });
            let name = vm.name.clone().unwrap_or_else(|| vm::default_name(index));
            Ok(RunConfig { name, seed, ..config })
        };
        let mut guests = self.vm.iter().enumerate().map(guest).collect::<Result<Vec<_>, Impossible>>()?;
        let longest = |of: fn(&RunConfig) -> Duration| guests.iter().map(of).max().unwrap_or_default();
        let (warmup, window) = (longest(|guest| guest.warmup), longest(|guest| guest.window));
        guests.iter_mut().for_each(|guest| (guest.warmup, guest.window) = (warmup, window));
        let first = guests.remove(0);
        Ok(RunConfig { beside: guests, ..first })
    }

    /// One guest of it.
    fn resolve_one(&self, supply: Supply<'_>) -> Result<RunConfig, Impossible> {
        if self.accel.is_some() && self.engine != Some(EngineChoice::Qemu) {
            let message = "only QEMU has accelerators to choose from: use engine qemu".into();
            return Err(Impossible { key: "accel", message });
        }
        let cpus = self.pcpus(supply.allowed)?;
        let vcpus = self.vcpu_count(cpus.0.len() as u32)?;
        let (lock, pv) = self.lock_form(&supply.image.locks)?;
        let workload = self.workload.clone().unwrap_or_else(|| "critical-section".into());
        let taken_in = find("workload", &workload, &supply.image.workloads)?;
        if taken_in.needs_paravirt() && !pv {
            let message = format!(
                "workload '{workload}' is about those who sleep, and without it nobody does: use pv on"
            );
            return Err(Impossible { key: "pv", message });
        }
        let slice = self.slice_length()?;
        let hold = work("hold", self.hold, Duration::from_micros(1))?;
        let think = work("think", self.think, Duration::from_micros(2))?;
        let mix = self.mix(&workload, hold, think)?;
        let shape = self.shape.resolve(&workload, hold)?;
        let longest = if mix.work_sections.is_some() { LONGEST_WORK } else { Duration::from_secs(1) };
        let round = slice * vcpus.div_ceil(cpus.0.len() as u32);
        let config = RunConfig {
            engine: match self.engine.unwrap_or(EngineChoice::Kvm) {
                EngineChoice::Kvm => Engine::Kvm,
                EngineChoice::Threads => Engine::Threads,
                EngineChoice::Qemu => Engine::Qemu(self.accelerator()),
            },
            vcpus,
            cpus: cpus.0,
            ring: match self.ring.unwrap_or(RingChoice::Auto) {
                RingChoice::Auto => Ring::Auto,
                RingChoice::Zero => Ring::Ring0,
                RingChoice::Three => Ring::Ring3,
            },
            sched: match self.sched.unwrap_or(self.default_sched()) {
                SchedChoice::Vmm => Sched::Vmm,
                SchedChoice::Host => Sched::Host,
            },
            slice,
            grace: self.grace_length(slice)?,
            slice_margin: length(self.slice_margin, Duration::from_micros(10)),
            kick_yields: self.kick_yields()?,
            attribution: self.attribution.unwrap_or(Switch::On) == Switch::On,
            pmu: self.pmu == Some(Switch::On),
            deschedule: self.descheduling(
                find("lock", &lock, &supply.image.locks)?,
                taken_in,
                supply.image,
            )?,
            lock,
            pv,
            patch: self.patch.unwrap_or(Switch::On) == Switch::On,
            preempted_hint: self.preempted_hint.unwrap_or(Switch::On) == Switch::On,
            pv_backend: match self.pv_backend.unwrap_or(PvBackendChoice::Auto) {
                PvBackendChoice::Auto => PvBackend::Auto,
                PvBackendChoice::Vmm => PvBackend::Vmm,
                PvBackendChoice::Kvm => PvBackend::Kvm,
                PvBackendChoice::Ipi => PvBackend::Ipi,
            },
            halt_poll: self.halt_poll.map(|span| span.0),
            pause_exits: self.pause_exits.unwrap_or(Switch::On) == Switch::On,
            hlt_exits: self.hlt_exits.unwrap_or(Switch::On) == Switch::On,
            preempted_by: match self.preempted_by.unwrap_or(PreemptedChoice::Auto) {
                PreemptedChoice::Auto => PreemptedBy::Auto,
                PreemptedChoice::Kvm => PreemptedBy::Kvm,
                PreemptedChoice::Bpf => PreemptedBy::Bpf,
            },
            spin_threshold: length(self.spin_threshold, Duration::from_micros(20)),
            workload,
            hold,
            think,
            mix,
            shape,
            oracle: self.shape.oracle(),
            ordered_stamps: self.shape.ordered_stamps(),
            lock_count: within("locks", self.locks.unwrap_or(1), 1, MAX_LOCKS)?,
            memory_bytes: self.memory.map_or(DEFAULT_MEMORY_BYTES, |memory| memory.bytes),
            work_rate: self.work_rate,
            warmup: length(self.warmup, (round * 2).max(Duration::from_millis(20))),
            window: length(self.window, longest).max(round.saturating_mul(self.min_turns.unwrap_or(0))),
            min_sections: self.min_sections.unwrap_or(0),
            watchdog: self.watchdog.map(|span| span.0),
            seed: self.seed.unwrap_or(1),
            name: "guest".into(),
            beside: vec![],
            share: match self.share.unwrap_or(ShareChoice::Vcpu) {
                ShareChoice::Vcpu => Share::Vcpu,
                ShareChoice::Guest => Share::Guest,
            },
        };
        if config.window < Duration::from_millis(1) {
            let message = "the window is too short to count in: 1ms at least".into();
            return Err(Impossible { key: "window", message });
        }
        Ok(config)
    }

    /// What the workload `mixed` varies.
    fn mix(&self, workload: &str, hold: Duration, think: Duration) -> Result<Mix, Impossible> {
        let given = [
            ("work", self.work.is_some()),
            ("after-work", self.after_work.is_some()),
            ("long-hold", self.long_hold.is_some()),
            ("long-one-in", self.long_one_in.is_some()),
            ("nested-one-in", self.nested_one_in.is_some()),
        ];
        if let Some((key, _)) = given.into_iter().find(|(_, given)| *given)
            && workload != "mixed"
        {
            let message = format!("workload '{workload}' has no such thing: use workload mixed");
            return Err(Impossible { key, message });
        }
        let mut mix = Mix {
            work_sections: None,
            go_on: self.after_work == Some(AfterWork::GoOn),
            long_hold: work("long-hold", self.long_hold, hold)?,
            long_one_in: self.long_one_in.unwrap_or(0),
            nested_one_in: self.nested_one_in.unwrap_or(0),
        };
        if mix.nested_one_in > 0 && self.locks.unwrap_or(1) < 2 {
            let message = "nested sections need a second lock: use locks 2 or more".into();
            return Err(Impossible { key: "nested-one-in", message });
        }
        if let Some(Span(work)) = self.work {
            let section = mix.mean_hold(hold) + think;
            if section.is_zero() {
                let message = "there is no work to divide: give hold or think a length".into();
                return Err(Impossible { key: "work", message });
            }
            mix.work_sections = Some((work.as_nanos() / section.as_nanos()).max(1) as u64);
        }
        Ok(mix)
    }

    /// QEMU's vCPUs are threads that only the host can schedule.
    fn default_sched(&self) -> SchedChoice {
        if self.engine == Some(EngineChoice::Qemu) { SchedChoice::Host } else { SchedChoice::Vmm }
    }

    fn accelerator(&self) -> Accelerator {
        match self.accel {
            Some(AccelChoice::Tcg) => Accelerator::Tcg,
            Some(AccelChoice::Kvm) => Accelerator::Kvm,
            None if std::path::Path::new("/dev/kvm").exists() => Accelerator::Kvm,
            None => Accelerator::Tcg,
        }
    }

    fn pcpus(&self, allowed: &CpuList) -> Result<CpuList, Impossible> {
        let cpus = self.cpus.clone().unwrap_or_else(|| allowed.clone());
        cpulist::check_allowed(&cpus, allowed).map_err(|message| Impossible { key: "cpus", message })?;
        Ok(cpus)
    }

    fn vcpu_count(&self, pcpus: u32) -> Result<u32, Impossible> {
        match (self.vcpus, self.ratio) {
            (Some(vcpus), _) => within("vcpus", vcpus, 1, MAX_VCPUS),
            (None, ratio) => {
                let ratio = within("ratio", ratio.unwrap_or(8), 1, MAX_VCPUS)?;
                within("ratio", ratio, 1, MAX_VCPUS / pcpus).map_err(|mut impossible| {
                    impossible.message =
                        format!("{} vCPUs on {pcpus} pCPUs: {}", ratio * pcpus, impossible.message);
                    impossible
                })?;
                Ok(ratio * pcpus)
            }
        }
    }

    /// Name and form of the lock, if the image has both.
    pub(crate) fn lock_form<'a>(&self, locks: &'a [Entry]) -> Result<(String, bool), Impossible> {
        let lock = self.lock_entry(locks)?;
        let name = lock.name.clone();
        let (native, paravirt) = (lock.has_native(), lock.has_paravirt());
        let pv = self.pv.map_or(!native, |pv| pv == Switch::On);
        let (form, other, has): (_, _, fn(&Entry) -> bool) = match pv {
            true if !paravirt => ("paravirtual", "off", Entry::has_paravirt),
            false if !native => ("native", "on", Entry::has_native),
            _ => return Ok((name, pv)),
        };
        // A lock in several layouts is one name.
        let of = |lock: &'a Entry| lock.name.split_once('/').map_or(lock.name.as_str(), |(name, _)| name);
        let mut with: Vec<&str> = locks.iter().filter(|lock| has(lock)).map(of).collect();
        with.dedup();
        let message =
            format!("lock '{name}' has no {form} form: use pv {other}, or one of {}", with.join(", "));
        Err(Impossible { key: "pv", message })
    }

    fn descheduling(
        &self,
        lock: &Entry,
        workload: &Entry,
        image: &Image,
    ) -> Result<Option<Deschedule>, Impossible> {
        let Some(DescheduleChoice(Some(Policy(deschedule)))) = self.deschedule.clone() else {
            return Ok(None);
        };
        deschedule
            .check(lock, workload, image)
            .map_err(|message| Impossible { key: "deschedule", message })?;
        Ok(Some(deschedule))
    }

    fn grace_length(&self, slice: Duration) -> Result<Duration, Impossible> {
        let grace = length(self.grace, Duration::ZERO);
        let wrong = |message: String| Err(Impossible { key: "grace", message });
        if grace > slice {
            return wrong(format!("{} is out of range: a slice, {}, at most", Span(grace), Span(slice)));
        }
        if !grace.is_zero() && self.sched == Some(SchedChoice::Host) {
            return wrong("only the VMM's own scheduler can grant it: use --sched vmm".into());
        }
        Ok(grace)
    }

    fn kick_yields(&self) -> Result<bool, Impossible> {
        let on = self.kick_yield == Some(Switch::On);
        if on && self.sched == Some(SchedChoice::Host) {
            let message = "only the VMM's own scheduler can run whom a kick names: use --sched vmm".into();
            return Err(Impossible { key: "kick-yield", message });
        }
        Ok(on)
    }

    /// The image's entry for lock and layout, which is called `lock/layout` where there are several.
    fn lock_entry<'a>(&self, locks: &'a [Entry]) -> Result<&'a Entry, Impossible> {
        let name = self.lock.as_deref().unwrap_or("qspinlock");
        let layouts = layouts(locks, name);
        let Some(layout) = &self.layout else {
            let first = layouts.first().map_or(name.to_owned(), |layout| format!("{name}/{layout}"));
            return find("lock", &first, locks);
        };
        if layouts.is_empty() {
            find("lock", name, locks)?;
            let message =
                format!("lock '{name}' has no layouts to choose from: leave it out, or take another lock");
            return Err(Impossible { key: "layout", message });
        }
        match layouts.contains(&layout.as_str()) {
            true => find("lock", &format!("{name}/{layout}"), locks),
            false => Err(Impossible {
                key: "layout",
                message: format!("lock '{name}' has no layout '{layout}': it has {}", layouts.join(", ")),
            }),
        }
    }

    fn slice_length(&self) -> Result<Duration, Impossible> {
        let slice = length(self.slice, Duration::from_millis(1));
        let (shortest, longest) = SLICE_RANGE;
        if (shortest..=longest).contains(&slice) {
            return Ok(slice);
        }
        let message =
            format!("a slice of {} is out of range: {} to {}", Span(slice), Span(shortest), Span(longest));
        Err(Impossible { key: "slice", message })
    }
}

fn length(given: Option<Span>, default: Duration) -> Duration {
    given.map_or(default, |span| span.0)
}

fn work(key: &'static str, given: Option<Span>, default: Duration) -> Result<Duration, Impossible> {
    let work = length(given, default);
    if work <= MAX_WORK {
        return Ok(work);
    }
    Err(Impossible { key, message: format!("{} is out of range: {} at most", Span(work), Span(MAX_WORK)) })
}

fn within(key: &'static str, value: u32, least: u32, most: u32) -> Result<u32, Impossible> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(Impossible { key, message: format!("{value} is out of range: {least} to {most}") })
}

/// The layouts in which the image has lock `name`; none if it has it in one form only.
pub(crate) fn layouts<'a>(locks: &'a [Entry], name: &str) -> Vec<&'a str> {
    locks
        .iter()
        .filter_map(|lock| lock.name.split_once('/'))
        .filter(|(lock, _)| *lock == name)
        .map(|(_, layout)| layout)
        .collect()
}

fn find<'a>(kind: &'static str, name: &str, entries: &'a [Entry]) -> Result<&'a Entry, Impossible> {
    entries.iter().find(|entry| entry.name == name).ok_or_else(|| {
        // A lock in several layouts is one name.
        let mut names: Vec<&str> = entries.iter().filter_map(|entry| entry.name.split('/').next()).collect();
        names.dedup();
        Impossible { key: kind, message: nearest::unknown(kind, name, &names) }
    })
}
