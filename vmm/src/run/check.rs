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
use crate::machine::{PvBackend, Ring, in_kernel};
use crate::run::asked::{
    Accelerator, Chosen, Engine, Fold, Guest, MOST_LINES, OurGuest, Ours, Run, pool_bytes,
};
use crate::sched::deschedule::names;
use crate::sched::quota::Quota;
use crate::sched::{Rules, Sched};

/// Number of runs like `run` for which there is memory at a time, at least one; `None` where it is not known.
#[must_use]
pub fn most_at_a_time(run: &Run, image: &Image) -> Option<u64> {
    let needed = run.ours().map(|asked| {
        // A workload that does not exist is refused elsewhere.
        let workload = image.workloads.iter().position(|entry| entry.name == asked.ours.workload);
        most_bytes(asked, image, workload.map_or(0, |workload| pool_bytes(asked, image, workload)))
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
        .map(|(asked, chosen)| most_bytes(asked, image, pool_bytes(asked, image, chosen.workload as usize)));
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
        self.check_settings()?;
        self.ours().try_for_each(|asked| Ok(asked.ours.check()?))
    }

    /// Refuses settings of the run that cannot be, whatever its guests and pCPUs.
    ///
    /// # Errors
    /// The first setting that is wrong.
    pub fn check_settings(&self) -> Result<(), Refused> {
        self.check_host()?;
        self.check_schedule()?;
        self.check_quotas()?;
        self.check_presence()?;
        self.check_numa()?;
        self.rules.check()
    }

    /// Refuses a model of a host where there is nothing for it to schedule, and its lack where it is needed.
    fn check_host(&self) -> Result<(), Refused> {
        let (is_simulated, host_schedules) = (self.engine.is_simulated(), self.rules.sched == Sched::Host);
        let has_model = self.host.is_some();
        let message = "only a simulated machine has a model of a host: use engine sim";
        Refused::when(has_model && !is_simulated, "host", message)?;
        Refused::when(has_model && !host_schedules, "host", "the VMM schedules: use sched host")?;
        let message = "the model of a host deschedules no vCPU on purpose: use sched vmm";
        Refused::when(has_model && self.deschedule.is_some(), "deschedule", message)?;
        let message =
            "a simulated machine needs a model of the host: name one of `haltkick list hosts` with host";
        Refused::when(!has_model && is_simulated && host_schedules, "sched", message)
    }

    fn check_schedule(&self) -> Result<(), Refused> {
        let Some(schedule) = &self.schedule else { return Ok(()) };
        let refuse_if = |is_wrong, message: String| Refused::when(is_wrong, "schedule", message);
        refuse_if(
            !self.engine.is_simulated() || self.rules.sched == Sched::Host || self.deschedule.is_some(),
            "only engine sim with sched vmm repeats one, and deschedules no vCPU besides".into(),
        )?;
        let vcpus: u32 = self.guests.iter().map(|guest| guest.vcpus).sum();
        let pcpus = self.cpus.len();
        refuse_if(
            self.guests.len() > 1 || vcpus as usize > pcpus,
            format!(
                "it says when vCPUs have no pCPU: use one guest with {pcpus} vCPUs at most, or more pCPUs"
            ),
        )?;
        let recorded = schedule.vcpus();
        refuse_if(
            recorded > vcpus,
            format!("it has {recorded} vCPUs and the guest {vcpus}: use --vcpus {recorded}"),
        )?;
        let (length, window) = (Duration::from_nanos(schedule.length_ns), self.window);
        refuse_if(
            window > length,
            format!("it lasts {length:?} and the window {window:?}: use a shorter window"),
        )
    }

    /// Refuses nodes that this host has no memory on, and memory that is not placed on this host's nodes.
    fn check_numa(&self) -> Result<(), Refused> {
        let is_placed_here = matches!(self.engine, Engine::Kvm | Engine::Threads);
        let message = "only engine kvm and threads place guest memory on this host's nodes: leave it out";
        Refused::when(!is_placed_here && self.numa != Numa::Local, "numa", message)?;
        let Numa::Node(node) = self.numa else { return Ok(()) };
        let nodes = nodes_with_memory();
        let names: Vec<String> = nodes.iter().map(u32::to_string).collect();
        let there = names.join(", node ");
        let message = format!("no memory on node {node}: this host has memory on node {there}");
        Refused::when(!nodes.contains(&node), "numa", message)
    }

    fn check_together(&self) -> Result<(), Refused> {
        let refuse_if = |is_wrong, message: &str| Refused::when(is_wrong, "", message);
        refuse_if(self.guests.is_empty(), "a run needs a guest")?;
        if self.guests.len() == 1 {
            return Ok(());
        }
        let has_linux = self.guests.iter().any(|guest| guest.linux().is_some());
        refuse_if(has_linux, "a Linux guest runs alone: leave the others out")?;
        for (i, Guest { name, .. }) in self.guests.iter().enumerate() {
            let is_taken = self.guests[..i].iter().any(|other| other.name == *name);
            refuse_if(is_taken, &format!("two guests are called `{name}`: give each a name of its own"))?;
        }
        let runs_several = matches!(self.engine, Engine::Kvm | Engine::Sim(_));
        refuse_if(!runs_several, "several guests need --engine kvm or sim: the other engines run one")?;
        refuse_if(self.deschedule.is_some(), "--deschedule goes with one guest only")?;
        let vcpus: u64 = self.guests.iter().map(|guest| u64::from(guest.vcpus)).sum();
        let message =
            format!("the guests have {vcpus} vCPUs together, and a run has {MAX_VCPUS} at most: use fewer");
        refuse_if(vcpus > MAX_VCPUS as u64, &message)
    }

    fn check_cpus(&self) -> Result<(), RunError> {
        let is_without = self.guests.iter().any(|guest| guest.vcpus == 0);
        Refused::when(is_without, "", "a guest needs at least 1 vCPU")?;
        Refused::when(self.cpus.is_empty(), "", "a run needs at least one pCPU")?;
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
            let message = format!("CPU {cpu} does not exist or is not allowed here; allowed: {allowed:?}");
            return Err(RunError::usage(message));
        }
        for (at, cpu) in self.cpus.iter().enumerate() {
            let message = format!("CPU {cpu} is named twice: a run has one runner on each pCPU");
            Refused::when(self.cpus[..at].contains(cpu), "", message)?;
        }
        Ok(())
    }
}

impl Rules {
    /// Refuses what no scheduler can do, or not this one.
    fn check(&self) -> Result<(), Refused> {
        let host_schedules = self.sched == Sched::Host;
        let message = "one of no length never ends: use 50us to 100ms";
        Refused::when(self.slice.is_zero(), "slice", message)?;
        let message = format!("{} is out of range: a slice, {}, at most", Span(self.grace), Span(self.slice));
        Refused::when(self.grace > self.slice, "grace", message)?;
        for (about, is_asked, what) in [
            ("grace", !self.grace.is_zero(), "grant it"),
            ("kick-yield", self.kick_yields, "run whom a kick names"),
        ] {
            let message = format!("only the VMM's own scheduler can {what}: use --sched vmm");
            Refused::when(is_asked && host_schedules, about, message)?;
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
        let message = format!("a run has 1 to {MAX_LOCKS} of them, not {lock_count}");
        Refused::when(lock_count == 0 || lock_count > MAX_LOCKS, "locks", message)?;
        let message = "nested sections need a second lock: use locks 2 or more";
        Refused::when(shape.nested_one_in > 0 && lock_count < 2, "nested-one-in", message)?;
        let Shape { footprint_lines, dirty_lines, read_percent, hold_jitter_percent, .. } = shape;
        let of = format!("{dirty_lines} of the {footprint_lines} lines of --footprint");
        let is_more = dirty_lines > footprint_lines;
        Refused::when(is_more, "footprint", format!("a section cannot write {of}"))?;
        let has_no_data = shape.flags.has(ShapeFlags::EMBED) && footprint_lines == 0;
        let message = "there is no data to put beside the lock: use --footprint 1 or more";
        Refused::when(has_no_data, "footprint", message)?;
        let are_wrong = tasks.is_some_and(|tasks| tasks == 0 || tasks > MAX_VCPUS as u32);
        Refused::when(are_wrong, "tasks", format!("a guest has 1 to {MAX_VCPUS} of them"))?;
        fold.check()?;
        Refused::when(read_percent > 100 || hold_jitter_percent > 100, "", "a share is 100 % at most")
    }
}

/// Checks everything that can be checked before anything is created.
fn check(asked: OurGuest<'_>, image: &Image) -> Result<Chosen, RunError> {
    let find = |what: &str, entries: &[Entry], name: &str| {
        let found = entries.iter().position(|entry| entry.name == name);
        found.ok_or_else(|| {
            RunError::usage(format!("there is no {what} `{name}`; there are: {}", names(entries)))
        })
    };
    let lock = find("lock", &image.locks, &asked.ours.lock)?;
    let workload = find("workload", &image.workloads, &asked.ours.workload)?;
    let (form, has): (_, fn(&Entry) -> bool) =
        if asked.guest.pv { ("paravirtual", Entry::has_paravirt) } else { ("native", Entry::has_native) };
    let with = names(image.locks.iter().filter(|lock| has(lock)));
    let message = format!("lock `{}` has no {form} form; these have one: {with}", asked.ours.lock);
    Refused::when(!has(&image.locks[lock]), "", message)?;
    check_kind(image, (lock, asked.guest.pv), workload)?;
    let needs_oracle = image.workloads[workload].workload_flags().has(WorkloadFlags::NEEDS_ORACLE);
    let name = &asked.ours.workload;
    let message = format!("workload `{name}` counts by the exclusion checker: leave --oracle on");
    Refused::when(needs_oracle && !asked.ours.oracle, "", message)?;
    check_shape(asked, image, lock)?;
    check_interrupts(asked, &image.workloads[workload])?;
    check_folding(asked)?;
    let deschedule = asked.run.deschedule.as_ref();
    let point = deschedule.map(|it| it.check(&image.locks[lock], &image.workloads[workload], image));
    let point = point.transpose()?.flatten();
    match asked.run.engine {
        Engine::Kvm => in_kernel::check(&asked.machine())?,
        Engine::Threads => check_threads(asked, &image.workloads[workload], image)?,
        // Its own module knows what it can be asked.
        Engine::Qemu(_) => {}
        Engine::Sim(_) => {
            let is_vmms = matches!(asked.run.pv_backend, PvBackend::Auto | PvBackend::Vmm);
            let message = "vCPUs of a simulated machine are put to sleep by the VMM: use --pv-backend vmm";
            Refused::when(!is_vmms, "", message)?;
        }
    }
    Ok(Chosen { lock: lock as u32, workload: workload as u32, point })
}

/// Refuses settings that need KVM, for the engine that runs vCPUs as threads of this process.
fn check_threads(asked: OurGuest<'_>, workload: &Entry, image: &Image) -> Result<(), RunError> {
    let refuse_if = |is_wrong, message: String| Refused::when(is_wrong, "", message);
    let (vcpus, most) = (asked.guest.vcpus, MAX_VCPUS as u32);
    refuse_if(vcpus > most, format!("{vcpus} vCPUs are more than an image has room for: at most {most}"))?;
    let message = "threads run in ring 3: use --ring auto, or --engine kvm";
    refuse_if(asked.run.ring == Ring::Ring0, message.into())?;
    let backend = asked.run.pv_backend;
    refuse_if(
        matches!(backend, PvBackend::Kvm | PvBackend::Ipi),
        format!("--pv-backend {} is KVM's: use --engine kvm", backend.name()),
    )?;
    if let Some(code) =
        image.segments.iter().find(|code| code.executable && !code.address.is_multiple_of(4096))
    {
        return Err(RunError::Image {
            path: image.path.clone(),
            reason: format!("has code at {:#x}, where no page begins: threads cannot run it", code.address),
        });
    }
    let name = &workload.name;
    Ok(refuse_if(
        workload.workload_flags().has(WorkloadFlags::USES_MEMORY),
        format!("workload `{name}` has page tables of its own, which threads have not: use --engine kvm"),
    )?)
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
fn check_folding(asked: OurGuest<'_>) -> Result<(), Refused> {
    let is_told = match asked.run.engine {
        Engine::Kvm | Engine::Sim(_) | Engine::Qemu(Accelerator::Kvm) => true,
        Engine::Threads => asked.run.rules.sched == Sched::Vmm || asked.ours.fold == Fold::Oracle,
        // Its emulator has no stolen time; the oracle folds without.
        Engine::Qemu(Accelerator::Tcg) => asked.ours.fold == Fold::Oracle,
    };
    let message = "--fold: such a guest is not told its stolen time: use --engine kvm or sim, or --sched vmm";
    Refused::when(asked.ours.fold != Fold::Off && !is_told, "", message)
}

/// Checks that the memory that sections touch fits into the guest, and that the last line of the lock has room for data.
fn check_shape(asked: OurGuest<'_>, image: &Image, lock: usize) -> Result<(), Refused> {
    let (shape, entry) = (asked.ours.shape, &image.locks[lock]);
    let owners = if entry.is_lock_free() { asked.guest.vcpus } else { asked.ours.lock_count };
    let lines = u64::from(owners) * u64::from(shape.footprint_lines);
    let message = format!("{lines} cache lines are too many: {MOST_LINES} at most");
    Refused::when(lines > MOST_LINES, "", message)?;
    if !shape.flags.has(ShapeFlags::EMBED) || entry.is_lock_free() {
        return Ok(());
    }
    let bytes = image.calls(lock, asked.guest.pv).map_or(0, |calls| calls.lock_bytes);
    let what = if bytes == 0 { "is of unknown size".into() } else { format!("fills its {bytes} bytes") };
    let which = format!("lock `{}` {what}", entry.name);
    let message = format!("--embed: {which}, so its lines have no room for data: leave --embed out");
    Refused::when(bytes.is_multiple_of(64), "", message)
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
    let mut fitting = names(image.locks.iter().filter(|lock| fits(lock)));
    if fitting.is_empty() {
        fitting = "lock objects that can (docs/lock-objects.md)".into();
    }
    let (workload, lock) = (&image.workloads[workload].name, &image.locks[lock].name);
    Err(RunError::usage(format!(
        "workload `{workload}` cannot be run with lock `{lock}`; these go with it: {fitting}"
    )))
}

impl Run {
    fn check_quotas(&self) -> Result<(), Refused> {
        let refuse_if = |is_wrong, message: &str| Refused::when(is_wrong, "quota", message);
        let host_schedules = self.rules.sched == Sched::Host;
        for quota in self.guests.iter().filter_map(|guest| guest.quota) {
            refuse_if(matches!(self.engine, Engine::Qemu(_)), "QEMU's vCPUs have none: use engine kvm")?;
            let is_modelled = self.engine.is_simulated() && host_schedules;
            refuse_if(is_modelled, "the model of a host has none: use sched vmm")?;
            match quota {
                Quota::Own(quota) if !host_schedules => quota.check(self.cpus.len())?,
                Quota::Own(Bandwidth { run, period, .. }) => {
                    let percent = run.as_secs_f64() / period.as_secs_f64() * 100.0;
                    let message = format!(
                        "under sched host the kernel keeps the quota of a control group: `systemd-run --scope -p CPUQuota={percent:.0}% \
                         -p CPUQuotaPeriodSec={} haltkick ...`, with --quota inherited",
                        Span(period)
                    );
                    return Err(Refused::new("quota", message));
                }
                Quota::Inherited => refuse_if(
                    !host_schedules,
                    "inherited is the kernel's quota, which schedules vCPUs only under sched host: use that",
                )?,
            }
        }
        Ok(())
    }

    fn check_presence(&self) -> Result<(), Refused> {
        for presence in self.guests.iter().filter_map(|guest| guest.presence) {
            let message = "only the VMM's own scheduler keeps a guest away: use sched vmm";
            Refused::when(self.rules.sched == Sched::Host, "from", message)?;
            let message = "the window cannot grow for a guest that is gone: leave min-sections out";
            Refused::when(presence.until.is_some() && self.min_sections > 0, "from", message)?;
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
