//! The lock-free cell beside a cell: what it could do if locking cost nothing.

use haltkick_vmm::{Image, RunConfig};

/// Returns the cell without a lock, if the image has such a thing. Settings that only concern locks have their defaults.
pub(crate) fn lock_free(config: &RunConfig, image: &Image) -> Option<RunConfig> {
    let lock = image.locks.iter().find(|lock| lock.is_lock_free())?;
    let plain = RunConfig::default();
    Some(RunConfig {
        lock: lock.name.clone(),
        pv: plain.pv,
        min_sections: plain.min_sections,
        patch: plain.patch,
        preempted_hint: plain.preempted_hint,
        preempted_by: plain.preempted_by,
        spin_threshold: plain.spin_threshold,
        spin_rounds: plain.spin_rounds,
        grace: plain.grace,
        slice_margin: plain.slice_margin,
        kick_yields: plain.kick_yields,
        attribution: plain.attribution,
        live: plain.live,
        deschedule: plain.deschedule,
        beside: config.beside.iter().map(|guest| lock_free(guest, image)).collect::<Option<_>>()?,
        ..config.clone()
    })
}
