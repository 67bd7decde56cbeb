//! What can be said of a run before anything is created: whether its settings go together, and with the image.

use haltkick_hypercalls::{LockFlags, MAX_LOCKS, WorkloadFlags};

use crate::host::affinity;
use crate::host::error::RunError;
use crate::image::file::{Entry, Image};
use crate::machine::in_kernel::PvBackend;
use crate::machine::ring::Ring;
use crate::run::beside;
use crate::run::config::{Engine, MOST_LINES, RunConfig};
use crate::run::told::{Chosen, pool_bytes};
use crate::sched::Sched;
use crate::sched::deschedule::Deschedule;

/// Refuses what cannot be run, as far as that can be told before anything is created.
///
/// # Errors
/// [`RunError::Usage`], and what the host lacks for guests of this size.
pub fn check_guests(config: &RunConfig, image: &Image) -> Result<(), RunError> {
    let configs: Vec<&RunConfig> = std::iter::once(config).chain(&config.beside).collect();
    choose(&configs, image).map(drop)
}

/// What each of the guests that are to run together takes from the image.
pub(crate) fn choose(configs: &[&RunConfig], image: &Image) -> Result<Vec<Chosen>, RunError> {
    beside::check(configs)?;
    let chosen = configs.iter().map(|config| check(config, image)).collect::<Result<Vec<_>, _>>()?;
    let pools = configs.iter().zip(&chosen).map(|(config, chosen)| pool_bytes(config, image, *chosen));
    beside::check_memory(pools.sum(), beside::available_memory())?;
    Ok(chosen)
}

/// Checks vCPUs and pCPUs, of any guest.
pub(crate) fn check_cpus(config: &RunConfig) -> Result<(), RunError> {
    let usage = |text: String| Err(RunError::Usage(text));
    if config.vcpus == 0 {
        return usage("a guest needs at least 1 vCPU".into());
    }
    if config.cpus.is_empty() {
        return usage("a run needs at least one pCPU".into());
    }
    let allowed = affinity::allowed_cpus();
    if let Some(cpu) = config.cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        return usage(format!("CPU {cpu} does not exist or is not allowed here; allowed: {allowed:?}"));
    }
    Ok(())
}

/// Checks everything that can be checked before anything is created.
fn check(config: &RunConfig, image: &Image) -> Result<Chosen, RunError> {
    let usage = |text: String| Err(RunError::Usage(text));
    check_cpus(config)?;
    if config.lock_count == 0 || config.lock_count > MAX_LOCKS {
        return usage(format!("a run has 1 to {MAX_LOCKS} locks, not {}", config.lock_count));
    }
    let find =
        |what: &str, entries: &[Entry], name: &str| match entries.iter().position(|entry| entry.name == name)
        {
            Some(index) => Ok(index),
            None => {
                let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
                Err(RunError::Usage(format!("there is no {what} `{name}`; there are: {}", names.join(", "))))
            }
        };
    let lock = find("lock", &image.locks, &config.lock)?;
    let workload = find("workload", &image.workloads, &config.workload)?;
    let (form, has): (_, fn(&Entry) -> bool) =
        if config.pv { ("paravirtual", Entry::has_paravirt) } else { ("native", Entry::has_native) };
    if !has(&image.locks[lock]) {
        let with: Vec<_> =
            image.locks.iter().filter(|lock| has(lock)).map(|lock| lock.name.as_str()).collect();
        return usage(format!(
            "lock `{}` has no {form} form; these have one: {}",
            config.lock,
            with.join(", ")
        ));
    }
    check_kind(image, lock, workload)?;
    check_shape(config, &image.locks[lock])?;
    if config.sched == Sched::Host && !config.grace.is_zero() {
        return usage(
            "only the VMM's own scheduler can grant a grace: use --sched vmm, or no --grace".into(),
        );
    }
    if config.sched == Sched::Host && config.kick_yields {
        return usage("only the VMM's own scheduler can run whom a kick names: use --sched vmm".into());
    }
    if config.grace > config.slice {
        return usage(format!("a grace of {:?} is longer than the slice, {:?}", config.grace, config.slice));
    }
    let point = match &config.deschedule {
        Some(deschedule) => {
            check_deschedule(deschedule, &image.locks[lock], &image.workloads[workload], image)?
        }
        None => None,
    };
    if config.engine == Engine::Threads {
        check_threads(config, &image.workloads[workload])?;
    }
    Ok(Chosen { lock: lock as u32, workload: workload as u32, point })
}

/// What needs KVM.
fn check_threads(config: &RunConfig, workload: &Entry) -> Result<(), RunError> {
    let usage = |text: String| Err(RunError::Usage(text));
    let most = haltkick_hypercalls::MAX_VCPUS as u32;
    if config.vcpus > most {
        return usage(format!("{} vCPUs are more than an image has room for: at most {most}", config.vcpus));
    }
    if config.ring == Ring::Ring0 {
        return usage("threads run in ring 3: use --ring auto, or --engine kvm".into());
    }
    if matches!(config.pv_backend, PvBackend::Kvm | PvBackend::Ipi) {
        let asked = config.pv_backend.name();
        return usage(format!("--pv-backend {asked} is KVM's: use --engine kvm"));
    }
    if workload.workload_flags().has(WorkloadFlags::USES_MEMORY) {
        return usage(format!(
            "workload `{}` has page tables of its own, which threads have not: use --engine kvm",
            workload.name
        ));
    }
    Ok(())
}

/// What sections touch must fit into the guest.
fn check_shape(config: &RunConfig, lock: &Entry) -> Result<(), RunError> {
    let shape = config.shape;
    if shape.dirty_lines > shape.footprint_lines {
        let (dirty, all) = (shape.dirty_lines, shape.footprint_lines);
        return Err(RunError::Usage(format!("a section cannot write {dirty} of {all} cache lines")));
    }
    let owners = if lock.is_lock_free() { config.vcpus } else { config.lock_count };
    let lines = u64::from(owners) * u64::from(shape.footprint_lines);
    if lines > MOST_LINES {
        return Err(RunError::Usage(format!("{lines} cache lines are too many: {MOST_LINES} at most")));
    }
    if shape.read_percent > 100 || shape.hold_jitter_percent > 100 {
        return Err(RunError::Usage("a share is 100 % at most".into()));
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
    deschedule.check(lock, workload, image).map_err(RunError::Usage)?;
    let position = |name: &str| image.points.iter().position(|point| point.name == name);
    Ok(deschedule.at.as_deref().and_then(position).map(|point| point as u32))
}

/// A workload that takes page faults compares ways to serve them, and nothing else can be done with those. One that has
/// structures made of locks takes those that can be parts.
fn check_kind(image: &Image, lock: usize, workload: usize) -> Result<(), RunError> {
    let flags = image.workloads[workload].workload_flags();
    let faults = flags.has(WorkloadFlags::FAULTS_PAGES);
    let fits = |lock: &Entry| {
        let serves = lock.serves_faults() == faults || lock.is_lock_free() && lock.serves_faults();
        serves && (!flags.has(WorkloadFlags::NEEDS_PARTS) || lock.lock_flags().has(LockFlags::IS_PART))
    };
    if fits(&image.locks[lock]) {
        return Ok(());
    }
    let fitting: Vec<_> =
        image.locks.iter().filter(|lock| fits(lock)).map(|lock| lock.name.as_str()).collect();
    Err(RunError::Usage(format!(
        "workload `{}` cannot be run with lock `{}`; these go with it: {}",
        image.workloads[workload].name,
        image.locks[lock].name,
        fitting.join(", ")
    )))
}
