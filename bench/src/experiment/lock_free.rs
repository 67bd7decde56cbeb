//! The lock-free companion of a cell: what it could do if locking cost nothing.

use haltkick_vmm::{Guest, Image, Ours, Rules, Run};

/// Returns the cell without a lock, if the image has such a thing. Settings that only concern locks have their defaults.
pub(crate) fn lock_free(run: &Run, image: &Image) -> Option<Run> {
    let lock = &image.locks.iter().find(|lock| lock.is_lock_free())?.name;
    let Rules { sched, share, slice, .. } = run.rules;
    let plain = Run::default();
    Some(Run {
        rules: Rules { sched, share, slice, ..plain.rules },
        preempted_by: plain.preempted_by,
        deschedule: plain.deschedule,
        min_sections: plain.min_sections,
        attribution: plain.attribution,
        live: plain.live,
        guests: run.guests.iter().map(|guest| without_lock(guest, lock)).collect(),
        ..run.clone()
    })
}

/// Returns the guest with the lock-free `lock` around its work.
fn without_lock(guest: &Guest, lock: &str) -> Guest {
    // A guest that folds alone may lose its time to a neighbour: the ideal is one that does not.
    let Ours {
        patch, preempted_hint, spin_threshold, spin_rounds, lock_parameter, slice_margin, fold, ..
    } = Ours::default();
    let mut guest = Guest { pv: Guest::default().pv, ..guest.clone() };
    if let Some(ours) = guest.ours_mut() {
        let (lock, work) = (lock.into(), ours.clone());
        *ours = Ours {
            lock,
            patch,
            preempted_hint,
            spin_threshold,
            spin_rounds,
            lock_parameter,
            slice_margin,
            fold,
            ..work
        };
    }
    guest
}
