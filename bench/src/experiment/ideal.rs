//! The lock-free cell beside a cell: what it could do if locking cost nothing.

use std::time::Duration;

use haltkick_vmm::{Image, PreemptedBy, RunConfig};

/// The same cell without a lock, if the image has such a thing. What only concerns locks is normalised.
pub(crate) fn lock_free(config: &RunConfig, image: &Image) -> Option<RunConfig> {
    let lock = image.locks.iter().find(|lock| lock.is_lock_free())?;
    Some(RunConfig {
        lock: lock.name.clone(),
        pv: false,
        min_sections: 0,
        patch: true,
        preempted_hint: true,
        preempted_by: PreemptedBy::Auto,
        spin_threshold: Duration::from_micros(20),
        spin_rounds: 0,
        grace: Duration::ZERO,
        slice_margin: Duration::from_micros(10),
        kick_yields: false,
        attribution: true,
        live: false,
        deschedule: None,
        beside: config.beside.iter().map(|guest| lock_free(guest, image)).collect::<Option<_>>()?,
        ..config.clone()
    })
}
