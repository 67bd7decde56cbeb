//! Limits on the CPU time of a run's guests, quotas and absences: which its scheduler can keep, and which the kernel keeps.

use crate::host::cgroup::Lent;
use crate::host::error::{Refused, RunError};
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
                (_, Sched::Host) => quota.check_for_kernel()?,
                (_, Sched::Vmm) => {}
            }
            quota.check(self.cpus.len())?;
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
                return Err(Refused::new(if presence.from.is_zero() { "until" } else { "from" }, message));
            }
            if presence.until.is_some() && self.min_sections > 0 {
                let message = "the window cannot grow for a guest that is gone: leave min-sections out";
                return Err(Refused::new("until", message));
            }
            presence.check(self.window)?;
        }
        Ok(())
    }

    /// The quota of each guest, if the kernel is to keep it.
    pub(crate) fn quotas_of_kernel(&self) -> impl Iterator<Item = Option<Quota>> {
        let is_kernels = self.has_vcpu_threads() && !matches!(self.engine, Engine::Qemu(_));
        self.guests.iter().map(move |guest| guest.quota.filter(|_| is_kernels))
    }

    /// A control group with the quota of each guest that the kernel limits.
    pub(crate) fn groups(&self) -> Result<Vec<Option<Lent>>, RunError> {
        self.quotas_of_kernel()
            .map(|quota| quota.map(|quota| Lent::new(quota.bandwidth())).transpose())
            .collect()
    }
}
