//! Limits on the CPU time of a run's guests, quotas and absences: which its scheduler can keep, and which the kernel keeps.

use crate::host::cgroup::Bandwidth;
use crate::host::error::Refused;
use crate::host::span::Span;
use crate::run::asked::{Engine, Run};
use crate::sched::Sched;
use crate::sched::quota::Quota;

impl Run {
    /// Refuses quotas that the scheduler cannot keep.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub fn check_quotas(&self) -> Result<(), Refused> {
        let refuse = |message| Err(Refused::new("quota", message));
        for quota in self.guests.iter().filter_map(|guest| guest.quota) {
            match (&self.engine, self.rules.sched) {
                (Engine::Qemu(_), _) => return refuse("QEMU's vCPUs have none: use engine kvm"),
                (Engine::Sim(_), Sched::Host) => {
                    return refuse("the model of a host has none: use sched vmm");
                }
                _ => {}
            }
            match (quota, self.rules.sched) {
                (Quota::Own(quota), Sched::Vmm) => quota.check(self.cpus.len())?,
                (Quota::Own(Bandwidth { run, period, .. }), Sched::Host) => {
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
                (Quota::Inherited, Sched::Vmm) => {
                    return refuse(
                        "inherited is the kernel's quota, which schedules vCPUs only under sched host: use that",
                    );
                }
                (Quota::Inherited, Sched::Host) => {}
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
