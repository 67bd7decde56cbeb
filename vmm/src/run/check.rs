//! Checks of a run before anything is created: whether its settings go together, and with the image, and whether the host has what the
//! guests may take: CPU time, under quotas and absences that its scheduler or the kernel keeps, and memory. Also what a process must
//! keep in its sandbox for the runs that it is to make.

use std::time::Duration;

use haltkick_hypercalls::{LockFlags, MAX_LOCKS, MAX_VCPUS, Shape, ShapeFlags, WorkloadFlags};

use crate::guest::memory::Memory;
use crate::guest::placement::Numa;
use crate::host::cgroup::Bandwidth;
use crate::host::cpus::{self, nodes_with_memory};
use crate::host::error::{MEMORY_LIMITS, Refused, RunError};
use crate::host::memory::available;
use crate::host::sandbox::Needs;
use crate::host::text::Span;
use crate::image::file::{Entry, Image};
use crate::image::object::MOST_POINTS;
use crate::machine::{PvBackend, Ring, in_kernel};
use crate::run::asked::{Accelerator, Engine, Fold, MOST_LINES, OurGuest, Ours, Run};
use crate::run::boot_values::{Chosen, pool_bytes};
use crate::sched::deschedule::Deschedule;
use crate::sched::quota::Quota;
use crate::sched::{Rules, Sched};

/// Number of runs like `run` for which there is memory at a time, at least one; `None` where it is not known.
#[must_use]
pub fn most_at_a_time(run: &Run, image: &Image) -> Option<u64> {
    let needed = run.ours().map(|asked| {
        // A workload that does not exist is refused elsewhere.
        let workload = image.workloads.iter().position(|entry| entry.name == asked.ours.workload);
        let pool =
            |workload| pool_bytes(asked, image, Chosen { lock: 0, workload: workload as u32, point: None });
        most_bytes(asked, image, workload.map_or(0, pool))
    });
    Some((available()? / needed.fold(0, u64::saturating_add).max(1)).max(1))
}

/// Chooses from the image for each of the guests that are to run together.
pub(crate) fn choose(run: &Run, image: &Image) -> Result<Vec<Chosen>, RunError> {
    run.check()?;
    let chosen = run.ours().map(|asked| check(asked, image)).collect::<Result<Vec<_>, _>>()?;
    let needed = run
        .ours()
        .zip(&chosen)
        .map(|(asked, chosen)| most_bytes(asked, image, pool_bytes(asked, image, *chosen)));
    check_memory(needed, available())?;
    Ok(chosen)
}

impl Run {
    /// Refuses settings that cannot be, whatever the image.
    ///
    /// # Errors
    /// [`RunError::Usage`].
    pub fn check(&self) -> Result<(), RunError> {
        self.check_together()?;
        self.check_cpus()?;
        self.check_numa()?;
        self.rules.check()?;
        self.check_host()?;
        self.check_schedule()?;
        self.check_quotas()?;
        self.check_presence()?;
        self.ours().try_for_each(|asked| Ok(asked.ours.check()?))
    }

    /// Refuses a model of a host where there is nothing for it to schedule, and its lack where it is needed.
    ///
    /// # Errors
    /// The setting that is wrong.
    pub fn check_host(&self) -> Result<(), Refused> {
        let (is_simulated, host_schedules) = (self.engine.is_simulated(), self.rules.sched == Sched::Host);
        let refuse = |about, message| Err(Refused::new(about, message));
        match &self.host {
            Some(_) if !is_simulated => {
                refuse("host", "only a simulated machine has a model of a host: use engine sim")
            }
            Some(_) if !host_schedules => refuse("host", "the VMM schedules: use sched host"),
            Some(_) if self.deschedule.is_some() => {
                refuse("deschedule", "the model of a host deschedules no vCPU on purpose: use sched vmm")
            }
            None if is_simulated && host_schedules => refuse(
                "sched",
                "a simulated machine needs a model of the host: name one of `haltkick list hosts` with host",
            ),
            _ => Ok(()),
        }
    }

    /// Refuses a recorded schedule that cannot be repeated.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn check_schedule(&self) -> Result<(), Refused> {
        let Some(schedule) = &self.schedule else { return Ok(()) };
        let refuse = |message: String| Err(Refused::new("schedule", message));
        if !self.engine.is_simulated() || self.rules.sched == Sched::Host || self.deschedule.is_some() {
            return refuse(
                "only engine sim with sched vmm repeats one, and deschedules no vCPU besides".into(),
            );
        }
        let vcpus: u32 = self.guests.iter().map(|guest| guest.vcpus).sum();
        if self.guests.len() > 1 || vcpus as usize > self.cpus.len() {
            let pcpus = self.cpus.len();
            return refuse(format!(
                "it says when vCPUs have no pCPU: use one guest with {pcpus} vCPUs at most, or more pCPUs"
            ));
        }
        if schedule.vcpus() > vcpus {
            return refuse(format!(
                "it has {0} vCPUs and the guest {vcpus}: use --vcpus {0}",
                schedule.vcpus()
            ));
        }
        let length = Duration::from_nanos(schedule.length_ns());
        if self.window > length {
            return refuse(format!(
                "it lasts {length:?} and the window {:?}: use a shorter window",
                self.window
            ));
        }
        Ok(())
    }

    /// Refuses nodes that this host has no memory on, and memory that is not placed on this host's nodes.
    ///
    /// # Errors
    /// The setting that is wrong.
    pub fn check_numa(&self) -> Result<(), Refused> {
        let is_placed_here = matches!(self.engine, Engine::Kvm | Engine::Threads);
        if !is_placed_here && self.numa != Numa::Local {
            let message = "only engine kvm and threads place guest memory on this host's nodes: leave it out";
            return Err(Refused::new("numa", message));
        }
        let nodes = nodes_with_memory();
        match self.numa {
            Numa::Node(node) if !nodes.contains(&node) => {
                let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
                let message = format!(
                    "no memory on node {node}: this host has memory on node {}",
                    nodes.join(", node ")
                );
                Err(Refused::new("numa", message))
            }
            _ => Ok(()),
        }
    }

    /// Refuses guests that cannot run together.
    fn check_together(&self) -> Result<(), RunError> {
        let usage = |text: String| Err(RunError::usage(text));
        match &self.guests[..] {
            [] => return usage("a run needs a guest".into()),
            [_] => return Ok(()),
            _ => {}
        }
        if self.guests.iter().any(|guest| guest.linux().is_some()) {
            return usage("a Linux guest runs alone: leave the others out".into());
        }
        for (i, guest) in self.guests.iter().enumerate() {
            if self.guests[..i].iter().any(|other| other.name == guest.name) {
                return usage(format!("two guests are called `{}`: give each a name of its own", guest.name));
            }
        }
        if !matches!(self.engine, Engine::Kvm | Engine::Sim(_)) {
            return usage("several guests need --engine kvm or sim: the other engines run one".into());
        }
        if self.deschedule.is_some() {
            return usage("--deschedule goes with one guest only".into());
        }
        let vcpus: u64 = self.guests.iter().map(|guest| u64::from(guest.vcpus)).sum();
        if vcpus > MAX_VCPUS as u64 {
            return usage(format!(
                "the guests have {vcpus} vCPUs together, and a run has {MAX_VCPUS} at most: use fewer"
            ));
        }
        Ok(())
    }

    fn check_cpus(&self) -> Result<(), RunError> {
        let usage = |text: String| Err(RunError::usage(text));
        if self.guests.iter().any(|guest| guest.vcpus == 0) {
            return usage("a guest needs at least 1 vCPU".into());
        }
        if self.cpus.is_empty() {
            return usage("a run needs at least one pCPU".into());
        }
        let allowed = match self.engine.machine() {
            Some(machine) => (0..machine.topology.cpus()).collect(),
            None => cpus::allowed_cpus(),
        };
        if allowed.is_empty() {
            return Err(RunError::HostLacks(
                "the CPUs that this process may use cannot be read: does the kernel count more than 1024? \
                 boot it with nr_cpus=1024"
                    .into(),
            ));
        }
        if let Some(cpu) = self.cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            return usage(format!("CPU {cpu} does not exist or is not allowed here; allowed: {allowed:?}"));
        }
        let twice = |(at, cpu): (usize, &u32)| self.cpus[..at].contains(cpu).then_some(*cpu);
        match self.cpus.iter().enumerate().find_map(twice) {
            Some(cpu) => usage(format!("CPU {cpu} is named twice: a run has one runner on each pCPU")),
            None => Ok(()),
        }
    }
}

impl Rules {
    /// Refuses what no scheduler can do, or not this one.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), Refused> {
        let refuse = |about, message| Err(Refused::new(about, message));
        let host_schedules = self.sched == Sched::Host;
        if self.slice.is_zero() {
            return refuse("slice", "one of no length never ends: use 50us to 100ms".into());
        }
        if self.grace > self.slice {
            let (grace, slice) = (Span(self.grace), Span(self.slice));
            return refuse("grace", format!("{grace} is out of range: a slice, {slice}, at most"));
        }
        for (about, is_asked, what) in [
            ("grace", !self.grace.is_zero(), "grant it"),
            ("kick-yield", self.kick_yields, "run whom a kick names"),
        ] {
            if is_asked && host_schedules {
                return refuse(about, format!("only the VMM's own scheduler can {what}: use --sched vmm"));
            }
        }
        Ok(())
    }
}

impl Ours {
    /// Refuses sections that cannot be, whatever the image.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check(&self) -> Result<(), Refused> {
        let Self { lock_count, shape, tasks, fold, .. } = *self;
        let refuse = |about, message: String| Err(Refused::new(about, message));
        if lock_count == 0 || lock_count > MAX_LOCKS {
            return refuse("locks", format!("a run has 1 to {MAX_LOCKS} of them, not {lock_count}"));
        }
        if shape.nested_one_in > 0 && lock_count < 2 {
            return refuse("nested-one-in", "nested sections need a second lock: use locks 2 or more".into());
        }
        let Shape { footprint_lines, dirty_lines, read_percent, hold_jitter_percent, .. } = shape;
        if dirty_lines > footprint_lines {
            let of = format!("{dirty_lines} of the {footprint_lines} lines of --footprint");
            return refuse("footprint", format!("a section cannot write {of}"));
        }
        if shape.flags.has(ShapeFlags::EMBED) && footprint_lines == 0 {
            let message = "there is no data to put beside the lock: use --footprint 1 or more";
            return refuse("footprint", message.into());
        }
        if tasks.is_some_and(|tasks| tasks == 0 || tasks > MAX_VCPUS as u32) {
            return refuse("tasks", format!("a guest has 1 to {MAX_VCPUS} of them"));
        }
        fold.check()?;
        if read_percent > 100 || hold_jitter_percent > 100 {
            return refuse("", "a share is 100 % at most".into());
        }
        Ok(())
    }
}

/// Checks everything that can be checked before anything is created.
fn check(asked: OurGuest<'_>, image: &Image) -> Result<Chosen, RunError> {
    let usage = |text: String| Err(RunError::usage(text));
    let find =
        |what: &str, entries: &[Entry], name: &str| match entries.iter().position(|entry| entry.name == name)
        {
            Some(index) => Ok(index),
            None => {
                let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
                Err(RunError::usage(format!("there is no {what} `{name}`; there are: {}", names.join(", "))))
            }
        };
    let lock = find("lock", &image.locks, &asked.ours.lock)?;
    let workload = find("workload", &image.workloads, &asked.ours.workload)?;
    let (form, has): (_, fn(&Entry) -> bool) =
        if asked.guest.pv { ("paravirtual", Entry::has_paravirt) } else { ("native", Entry::has_native) };
    if !has(&image.locks[lock]) {
        let with: Vec<_> =
            image.locks.iter().filter(|lock| has(lock)).map(|lock| lock.name.as_str()).collect();
        return usage(format!(
            "lock `{}` has no {form} form; these have one: {}",
            asked.ours.lock,
            with.join(", ")
        ));
    }
    check_kind(image, (lock, asked.guest.pv), workload)?;
    if image.workloads[workload].workload_flags().has(WorkloadFlags::NEEDS_ORACLE) && !asked.ours.oracle {
        let name = &asked.ours.workload;
        return usage(format!("workload `{name}` counts by the exclusion checker: leave --oracle on"));
    }
    check_shape(asked, &image.locks[lock])?;
    check_embedded(asked, image, lock)?;
    check_interrupts(asked, &image.workloads[workload])?;
    check_folding(asked)?;
    let point = match &asked.run.deschedule {
        Some(deschedule) => {
            check_deschedule(deschedule, &image.locks[lock], &image.workloads[workload], image)?
        }
        None => None,
    };
    match asked.run.engine {
        Engine::Kvm => in_kernel::check(&asked.machine())?,
        Engine::Threads => check_threads(asked, &image.workloads[workload], image)?,
        // Its own module knows what it can be asked.
        Engine::Qemu(_) => {}
        Engine::Sim(_) if !matches!(asked.run.pv_backend, PvBackend::Auto | PvBackend::Vmm) => {
            let message = "vCPUs of a simulated machine are put to sleep by the VMM: use --pv-backend vmm";
            return usage(message.into());
        }
        Engine::Sim(_) => {}
    }
    Ok(Chosen { lock: lock as u32, workload: workload as u32, point })
}

/// Refuses settings that need KVM, for the engine that runs vCPUs as threads of this process.
fn check_threads(asked: OurGuest<'_>, workload: &Entry, image: &Image) -> Result<(), RunError> {
    let usage = |text: String| Err(RunError::usage(text));
    let most = haltkick_hypercalls::MAX_VCPUS as u32;
    if asked.guest.vcpus > most {
        return usage(format!(
            "{} vCPUs are more than an image has room for: at most {most}",
            asked.guest.vcpus
        ));
    }
    if asked.run.ring == Ring::Ring0 {
        return usage("threads run in ring 3: use --ring auto, or --engine kvm".into());
    }
    if matches!(asked.run.pv_backend, PvBackend::Kvm | PvBackend::Ipi) {
        let asked = asked.run.pv_backend.name();
        return usage(format!("--pv-backend {asked} is KVM's: use --engine kvm"));
    }
    if let Some(code) =
        image.segments.iter().find(|code| code.executable && !code.address.is_multiple_of(4096))
    {
        return Err(RunError::Image {
            path: image.path.clone(),
            reason: format!("has code at {:#x}, where no page begins: threads cannot run it", code.address),
        });
    }
    if workload.workload_flags().has(WorkloadFlags::USES_MEMORY) {
        return usage(format!(
            "workload `{}` has page tables of its own, which threads have not: use --engine kvm",
            workload.name
        ));
    }
    Ok(())
}

/// Interrupts are NMIs that the VMM sends, and their handlers have a lock of their own.
fn check_interrupts(asked: OurGuest<'_>, workload: &Entry) -> Result<(), RunError> {
    let flags = workload.workload_flags();
    let why = match asked.run.engine {
        _ if !flags.has(WorkloadFlags::INTERRUPTS) => return Ok(()),
        Engine::Kvm if flags.has(WorkloadFlags::IS_MEDDLED_WITH) => {
            "is interrupted at each instruction, which only a simulated machine does: use --engine sim"
        }
        Engine::Kvm | Engine::Sim(_) if asked.ours.lock_count >= 2 => return Ok(()),
        Engine::Kvm | Engine::Sim(_) => "needs a lock for interrupts and one for all else: --locks 2",
        _ => "interrupts vCPUs, which threads and QEMU do not: use --engine kvm or sim",
    };
    Err(RunError::usage(format!("workload `{}` {why}", workload.name)))
}

/// Refuses to fold where the guest is not told how much time is stolen from it.
fn check_folding(asked: OurGuest<'_>) -> Result<(), RunError> {
    let is_told = match asked.run.engine {
        Engine::Kvm | Engine::Sim(_) | Engine::Qemu(Accelerator::Kvm) => true,
        Engine::Threads => asked.run.rules.sched == Sched::Vmm || asked.ours.fold == Fold::Oracle,
        // Its emulator has no stolen time; the oracle folds without.
        Engine::Qemu(Accelerator::Tcg) => asked.ours.fold == Fold::Oracle,
    };
    if asked.ours.fold == Fold::Off || is_told {
        return Ok(());
    }
    Err(RunError::usage(
        "--fold: such a guest is not told its stolen time: use --engine kvm or sim, or --sched vmm",
    ))
}

/// Checks that the memory that sections touch fits into the guest.
fn check_shape(asked: OurGuest<'_>, lock: &Entry) -> Result<(), RunError> {
    let shape = asked.ours.shape;
    let owners = if lock.is_lock_free() { asked.guest.vcpus } else { asked.ours.lock_count };
    let lines = u64::from(owners) * u64::from(shape.footprint_lines);
    if lines > MOST_LINES {
        return Err(RunError::usage(format!("{lines} cache lines are too many: {MOST_LINES} at most")));
    }
    Ok(())
}

/// Checks that the last line of the lock has room for data.
fn check_embedded(asked: OurGuest<'_>, image: &Image, lock: usize) -> Result<(), RunError> {
    let entry = &image.locks[lock];
    if !asked.ours.shape.flags.has(ShapeFlags::EMBED) || entry.is_lock_free() {
        return Ok(());
    }
    let bytes = image.calls(lock, asked.guest.pv).map_or(0, |calls| calls.lock_bytes);
    if bytes.is_multiple_of(64) {
        let what = if bytes == 0 { "is of unknown size".into() } else { format!("fills its {bytes} bytes") };
        return Err(RunError::usage(format!(
            "--embed: lock `{}` {what}, so its lines have no room for data: leave --embed out",
            entry.name
        )));
    }
    Ok(())
}

/// The number of the point where to deschedule, if it is to be at one.
fn check_deschedule(
    deschedule: &Deschedule,
    lock: &Entry,
    workload: &Entry,
    image: &Image,
) -> Result<Option<u32>, RunError> {
    deschedule.check(lock, workload, image)?;
    let Some(at) = &deschedule.at else { return Ok(None) };
    let position = image.points.iter().position(|point| point.name == *at).expect("just checked");
    if position >= MOST_POINTS {
        return Err(RunError::usage(format!(
            "point '{at}' is number {position} of the image, whose locks can be stopped at the first {MOST_POINTS} only"
        )));
    }
    Ok(Some(position as u32))
}

/// A workload that takes page faults compares ways to serve them, and nothing else can be done with those. One that has
/// structures made of locks takes those that can be parts, one that interrupts those that can be interrupted, and the spin queue
/// alone needs a lock that has one.
fn check_kind(image: &Image, (lock, pv): (usize, bool), workload: usize) -> Result<(), RunError> {
    let flags = image.workloads[workload].workload_flags();
    let faults = flags.has(WorkloadFlags::FAULTS_PAGES);
    let fits = |lock: &Entry| {
        let serves = lock.serves_faults() == faults || lock.is_lock_free() && lock.serves_faults();
        let needs = [
            (WorkloadFlags::NEEDS_PARTS, LockFlags::IS_PART),
            (WorkloadFlags::INTERRUPTS, LockFlags::MAY_BE_INTERRUPTED),
            (WorkloadFlags::NEEDS_SPIN_QUEUE, LockFlags::HAS_SPIN_QUEUE),
            (WorkloadFlags::TRIES, if pv { LockFlags::HAS_PARAVIRT_TRY } else { LockFlags::HAS_TRY }),
        ];
        serves && needs.iter().all(|(need, can)| !flags.has(*need) || lock.lock_flags().has(*can))
    };
    if fits(&image.locks[lock]) {
        return Ok(());
    }
    let mut fitting: Vec<_> =
        image.locks.iter().filter(|lock| fits(lock)).map(|lock| lock.name.as_str()).collect();
    if fitting.is_empty() {
        fitting.push("lock objects that can (docs/lock-objects.md)");
    }
    Err(RunError::usage(format!(
        "workload `{}` cannot be run with lock `{}`; these go with it: {}",
        image.workloads[workload].name,
        image.locks[lock].name,
        fitting.join(", ")
    )))
}

impl Run {
    /// Refuses quotas that the scheduler cannot keep.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn check_quotas(&self) -> Result<(), Refused> {
        let refuse = |message| Err(Refused::new("quota", message));
        for quota in self.guests.iter().filter_map(|guest| guest.quota) {
            match (&self.engine, self.rules.sched, quota) {
                (Engine::Qemu(_), ..) => return refuse("QEMU's vCPUs have none: use engine kvm"),
                (Engine::Sim(_), Sched::Host, _) => {
                    return refuse("the model of a host has none: use sched vmm");
                }
                (_, Sched::Vmm, Quota::Own(quota)) => quota.check(self.cpus.len())?,
                (_, Sched::Host, Quota::Own(Bandwidth { run, period, .. })) => {
                    let percent = run.as_secs_f64() / period.as_secs_f64() * 100.0;
                    return Err(Refused::new(
                        "quota",
                        format!(
                            "under sched host the kernel keeps the quota of a control group: `systemd-run --scope -p CPUQuota={percent:.0}% \
                         -p CPUQuotaPeriodSec={} haltkick ...`, with --quota inherited",
                            Span(period)
                        ),
                    ));
                }
                (_, Sched::Vmm, Quota::Inherited) => {
                    return refuse(
                        "inherited is the kernel's quota, which schedules vCPUs only under sched host: use that",
                    );
                }
                (_, Sched::Host, Quota::Inherited) => {}
            }
        }
        Ok(())
    }

    /// Refuses guests that come and go where they cannot.
    ///
    /// # Errors
    /// The time that is wrong.
    pub fn check_presence(&self) -> Result<(), Refused> {
        for presence in self.guests.iter().filter_map(|guest| guest.presence) {
            if self.rules.sched == Sched::Host {
                let message = "only the VMM's own scheduler keeps a guest away: use sched vmm";
                return Err(Refused::new("from", message));
            }
            if presence.until.is_some() && self.min_sections > 0 {
                let message = "the window cannot grow for a guest that is gone: leave min-sections out";
                return Err(Refused::new("from", message));
            }
            presence.check(self.window)?;
        }
        Ok(())
    }

    /// Whether the kernel keeps a quota of it.
    pub(crate) fn inherits_quota(&self) -> bool {
        self.guests.iter().any(|guest| guest.quota == Some(Quota::Inherited))
    }
}

/// Whether the host has the memory that all guests together may touch: found out before, not by its out-of-memory killer.
pub(crate) fn check_memory(
    of_each: impl Iterator<Item = u64>,
    available: Option<u64>,
) -> Result<(), RunError> {
    let needed = of_each.fold(0, u64::saturating_add);
    let Some(available) = available.filter(|available| needed > *available) else { return Ok(()) };
    Err(RunError::usage(format!(
        "the guests may take {} MiB together, and there are {} MiB to be had (see /proc/meminfo, and {MEMORY_LIMITS}): use fewer guests \
         or vCPUs, or less --memory",
        needed >> 20,
        available >> 20
    )))
}

/// The memory that this process has for itself, in bytes, less what it shares with other processes.
const OWN_BYTES: u64 = 12 << 20;
/// Memory that each vCPU takes, in bytes: thread, stacks, area.
const VCPU_BYTES: u64 = 64 << 10;
/// Memory that each vCPU takes on KVM, in bytes: a cache of 40 pages when it first runs, and a second one where KVM shadows page tables.
const KVM_VCPU_BYTES: u64 = 512 << 10;

/// Memory that a run takes for a guest of `vcpus` vCPUs in addition to the guest's own, in bytes.
pub(crate) fn own_bytes(engine: &Engine, vcpus: u32) -> u64 {
    let each = if *engine == Engine::Kvm { KVM_VCPU_BYTES } else { VCPU_BYTES };
    OWN_BYTES + u64::from(vcpus) * each
}

/// Most of the host's memory that a guest with a pool of `pool_bytes` can make the run take, in bytes: its pool, what the run needs
/// besides, and of a simulated machine all of its memory with what is known of each of its lines, and decoded code.
pub(crate) fn most_bytes(asked: OurGuest<'_>, image: &Image, pool_bytes: u64) -> u64 {
    let own_bytes = own_bytes(&asked.run.engine, asked.guest.vcpus);
    let Some(machine) = asked.run.engine.machine() else { return pool_bytes.saturating_add(own_bytes) };
    // A guest whose memory has no valid size is refused elsewhere, so it counts as zero bytes.
    let guest = Memory::bytes_of(image.end, asked.guest.vcpus, pool_bytes).unwrap_or(0);
    guest.saturating_add(own_bytes).saturating_add(haltkick_sim::board::most_bytes(guest, machine))
}

impl Needs {
    /// For these runs, but for the files that they write.
    #[must_use]
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Self {
        let mut needs = Self::default();
        for run in runs {
            let programs = matches!(run.engine, Engine::Qemu(_));
            needs.programs |= programs;
            needs.foreign_code |= run.engine == Engine::Threads;
            needs.switches |= run.has_vcpu_threads() && !programs && run.linux().is_none();
            needs.counters |= run.pmu;
            needs.quota |= run.inherits_quota();
            for file in run.linux().into_iter().flat_map(|(_, linux)| linux.files()) {
                if !needs.reads.iter().any(|known| known == file) {
                    needs.reads.push(file.to_owned());
                }
            }
        }
        needs
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::run::asked::Run;

    #[test]
    fn a_simulated_guest_takes_more_than_its_memory() {
        let image = Image::embedded();
        let machine = haltkick_sim::machine::presets()[0].machine();
        const POOL: u64 = 512 << 20;
        let kvm = Run::default();
        let sim = Run { engine: Engine::Sim(Arc::new(machine)), ..Run::default() };
        assert_eq!(most_bytes(kvm.our(0), &image, POOL), POOL + own_bytes(&Engine::Kvm, kvm.guests[0].vcpus));
        let of_sim = most_bytes(sim.our(0), &image, POOL);
        assert!((3 * POOL..7 * POOL).contains(&of_sim), "{of_sim} bytes");
        assert!(most_bytes(sim.our(0), &image, 0) < POOL, "a guest without a pool");
    }

    #[test]
    fn guests_get_no_more_memory_than_the_host_has() {
        let available = crate::host::memory::available().expect("Linux says what can be had");
        assert!(check_memory([available / 4; 2].into_iter(), Some(available)).is_ok());
        assert!(check_memory([available].into_iter(), None).is_ok(), "where nobody knows, it is tried");
        let refused =
            |of_each| check_memory([of_each; 2].into_iter(), Some(2 << 30)).unwrap_err().to_string();
        assert!(refused(1 << 63).contains("17592186044415 MiB"), "no sum is too large");
        let refused = refused(3 << 29);
        assert!(refused.contains("3072 MiB") && refused.contains("2048 MiB"), "{refused}");
    }
}
