//! How fast the work goes here, and in which ring: found out once, and given to all runs.

use std::time::Duration;

use haltkick_vmm::{Guest, Image, Mix, Ours, Outcome, Ring, Rules, Run, RunError, System};

use super::engine::Engine;
use crate::analysis::statistics::median;
use crate::experiment::lock_free::lock_free;
use crate::host::identity::Host;
use crate::record::Record;

/// Findings of the first runs, which all later ones are given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Calibration {
    /// Iterations of the work loop per 2^20 ns.
    pub(crate) work_rate: u64,
    ring: Ring,
    pub(super) ring_reason: String,
}

/// Runs whose work rates the calibration of an experiment takes the middle of.
pub(crate) const CALIBRATION_BOOTS: usize = 3;
/// Length of a section, and of a pause, while the work is calibrated.
const CALIBRATION_WORK: Duration = Duration::from_micros(2);
/// Shortest slice while the work is calibrated.
const CALIBRATION_SLICE: Duration = Duration::from_millis(1);

impl Calibration {
    /// Runs the guest `boots` times without a lock, one vCPU on each of the pCPUs of `run`, so that the work is timed
    /// as experiments do it: on all pCPUs at once. A processor that is alone is often faster than one in company.
    pub(crate) fn measure(
        engine: Engine<'_>,
        run: &Run,
        image: &Image,
        boots: usize,
    ) -> std::result::Result<Self, RunError> {
        if let (true, Some(work_rate)) = (run.engine.is_simulated(), run.work_rate) {
            let ring = if run.ring == Ring::Auto { Ring::Ring3 } else { run.ring };
            return Ok(Self { work_rate, ring, ring_reason: "a simulated CPU runs either ring".into() });
        }
        let first = run.our(0);
        let ours = Ours {
            workload: "critical-section".into(),
            hold: CALIBRATION_WORK,
            think: CALIBRATION_WORK,
            lock_count: 1,
            mix: Mix::default(),
            ..first.ours.clone()
        };
        // No vCPU waits for a pCPU, but a slice that ends still interrupts.
        let slice = run.rules.slice.max(CALIBRATION_SLICE);
        let plain = Run {
            rules: Rules { slice, grace: Duration::ZERO, ..run.rules },
            work_rate: None,
            warmup: Duration::from_millis(1),
            window: Duration::from_millis(20),
            guests: vec![Guest {
                vcpus: run.cpus.len() as u32,
                system: System::Ours(ours),
                ..first.guest.clone()
            }],
            ..run.clone()
        };
        let run = lock_free(&plain, image).unwrap_or(plain);
        let boots = (0..boots).map(|_| Ok(Self::of_outcome(&engine(&run)?.found.outcome()?)));
        let mut boots = boots.collect::<std::result::Result<Vec<_>, RunError>>()?;
        boots.sort_by_key(|calibration| calibration.work_rate);
        let middle = boots.len() / 2;
        Ok(boots.swap_remove(middle))
    }

    /// The rate that was measured at boot, by how far off it the work then went.
    fn of_outcome(outcome: &Outcome) -> Self {
        let speeds: Vec<f64> = outcome.work.iter().flatten().map(|speed| speed.over_promised).collect();
        let speed = if speeds.is_empty() { 1.0 } else { median(&speeds) };
        Self {
            work_rate: (outcome.work_rate as f64 * speed).round() as u64,
            ring: outcome.ring,
            ring_reason: outcome.ring_reason.clone(),
        }
    }

    /// The calibration of earlier runs on the same host, so that a resumed experiment does the same work. Another host has CPUs of
    /// another speed, and perhaps another ring that is native.
    pub(crate) fn of_host(records: &[Record], host: &Host) -> Option<Self> {
        let here = host.identity();
        let record = records.iter().find(|record| record.host.identity() == here)?;
        Some(Self {
            work_rate: record.timing.work_rate,
            ring: if record.config.ring == 0 { Ring::Ring0 } else { Ring::Ring3 },
            ring_reason: record.config.ring_reason.clone(),
        })
    }

    /// Gives a run what was found out, unless it was given something else.
    pub(super) fn apply(&self, run: &mut Run) {
        run.work_rate = run.work_rate.or(Some(self.work_rate));
        if run.ring == Ring::Auto {
            run.ring = self.ring;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World};

    #[test]
    fn calibration_is_that_of_this_host_and_of_no_other() {
        let plan = Sketch::new().arm("a", "tas").plan(1);
        let hosts = [("host-a", 1 << 20), ("host-b", 3 << 20)];
        let world = |(id, rate)| World::new(1).host_id(Some(id)).work_rate(rate);
        let records: Vec<Record> = hosts.iter().flat_map(|host| world(*host).records(&plan)).collect();
        let host = |id: &str| Host { host_id: Some(id.into()), ..Host::default() };
        for (id, rate) in hosts {
            assert_eq!(Calibration::of_host(&records, &host(id)).unwrap().work_rate, rate);
        }
        assert_eq!(Calibration::of_host(&records, &host("host-c")), None);
    }
}
