//! Which records have a timeline, and why others have none.

use haltkick_vmm::{OurGuest, Outcome, Sched};

use crate::record::place::{Place, Role};
use crate::record::timeline::Timeline;
use crate::record::why::Why;

/// The timeline of a run; of an experiment only where it is drawn: a record may be twice as long with it.
pub(super) fn timeline(
    asked: OurGuest<'_>,
    outcome: &Outcome,
    place: Option<&Place>,
    why: &mut Why,
) -> Option<Timeline> {
    let is_drawn = |place: &Place| place.block == 0 && matches!(place.role, Role::Arm | Role::Beside);
    let noted: Option<Vec<_>> = outcome.vcpus.iter().map(|vcpu| vcpu.timeline.as_ref()).collect();
    let reason: String = match noted {
        _ if !place.is_none_or(is_drawn) => "records have it of the first run of each arm".into(),
        Some(noted) => {
            return Timeline::new(&noted, u64::try_from(outcome.window.as_nanos()).unwrap_or(u64::MAX));
        }
        None if asked.run.rules.sched == Sched::Vmm => "only KVM and the simulated machine note it".into(),
        None => "the host's scheduler decides which vCPU runs when: run --trace shows it".into(),
    };
    why.explain("timeline", reason);
    None
}
