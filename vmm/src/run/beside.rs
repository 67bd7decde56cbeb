//! Several guests in one run: what they must have in common, and whether there is room for all.

use haltkick_hypercalls::MAX_VCPUS;

use crate::host::error::RunError;
use crate::run::config::{Engine, RunConfig};

/// Checks guests that are to run together.
pub(crate) fn check(configs: &[&RunConfig]) -> Result<(), RunError> {
    let usage = |text: String| Err(RunError::Usage(text));
    let [first, others @ ..] = configs else { return usage("a run needs a guest".into()) };
    if others.is_empty() {
        return Ok(());
    }
    for (i, config) in configs.iter().enumerate() {
        if configs[..i].iter().any(|other| other.name == config.name) {
            return usage(format!("two guests are called `{}`: give each a name of its own", config.name));
        }
    }
    if !matches!(first.engine, Engine::Kvm | Engine::Sim) {
        return usage("several guests need --engine kvm or sim: the other engines run one".into());
    }
    if configs.iter().any(|config| config.deschedule.is_some()) {
        return usage("--deschedule goes with one guest only".into());
    }
    let of_run = |config: &RunConfig| {
        let RunConfig { engine, cpus, ring, sched, slice, warmup, window, share, .. } = config;
        let machine = config.simulated.as_ref().map(|machine| &machine.text);
        format!("{:?}", (engine, machine, cpus, ring, sched, slice, warmup, window, share))
    };
    if let Some(other) = others.iter().find(|other| of_run(other) != of_run(first)) {
        return usage(format!(
            "guest `{}` and guest `{}` differ in what belongs to the run: machine, pCPUs, scheduler, slice, share, ring, warm-up and window \
             are the same for all",
            first.name, other.name
        ));
    }
    let vcpus: u64 = configs.iter().map(|config| u64::from(config.vcpus)).sum();
    if vcpus > MAX_VCPUS as u64 {
        return usage(format!(
            "the guests have {vcpus} vCPUs together, and a run has {MAX_VCPUS} at most: use fewer"
        ));
    }
    Ok(())
}

/// Whether the host has the memory that all guests together may touch: found out before, not by its out-of-memory killer.
pub(crate) fn check_memory(
    of_each: impl Iterator<Item = u64>,
    available: Option<u64>,
) -> Result<(), RunError> {
    let needed = of_each.fold(0, u64::saturating_add);
    let Some(available) = available.filter(|available| needed > *available) else { return Ok(()) };
    Err(RunError::Usage(format!(
        "the guests have {} MiB to manage together, and this host has {} MiB to give: use fewer guests, or less --memory",
        needed >> 20,
        available >> 20
    )))
}

/// What the kernel estimates can be had without swapping, in bytes.
pub(crate) fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    kib.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_get_no_more_memory_than_the_host_has() {
        let available = available_memory().expect("Linux says what can be had");
        assert!(check_memory([available / 4; 2].into_iter(), Some(available)).is_ok());
        assert!(check_memory([available].into_iter(), None).is_ok(), "where nobody knows, it is tried");
        let refused =
            |of_each| check_memory([of_each; 2].into_iter(), Some(2 << 30)).unwrap_err().to_string();
        assert!(refused(1 << 63).contains("17592186044415 MiB"), "no sum is too large");
        let refused = refused(3 << 29);
        assert!(refused.contains("3072 MiB") && refused.contains("2048 MiB"), "{refused}");
    }
}
