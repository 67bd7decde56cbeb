//! How fast the work goes here, and in which ring: found out once, and given to all runs.

use std::collections::BTreeSet;
use std::time::Duration;

use haltkick_vmm::{Guest, Image, Ours, Outcome, Ring, Rules, Run, RunError, Shape, System};

use super::engine::Engine;
use super::judge::{WORK_TOLERANCE, timed_within};
use crate::analysis::statistics::median;
use crate::experiment::plan::{Plan, lock_free};
use crate::host::identity::Host;
use crate::record::Record;
use crate::record::figures::{WORK_RATE, WORK_SPEED};

/// Findings of a few first runs, which later ones are given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Calibration {
    /// Iterations of the work loop per 2^20 ns.
    pub(crate) work_rate: u64,
    ring: Ring,
    ring_reason: String,
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
            return Ok(Self {
                work_rate,
                ring: run.ring,
                ring_reason: "a simulated CPU runs either ring".into(),
            });
        }
        let first = run.our(0);
        let ours = Ours {
            workload: "critical-section".into(),
            hold: CALIBRATION_WORK,
            think: CALIBRATION_WORK,
            lock_count: 1,
            shape: Shape::default(),
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
                // Either would stop the work that is timed.
                quota: None,
                presence: None,
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
}

/// Whether two runs ask for the same as far as their calibration is concerned: they are given the same.
fn are_alike(one: &Run, other: &Run) -> bool {
    one.engine == other.engine && one.ring == other.ring
}

/// The calibrations of an experiment's cells, each with one of the runs that it is for.
#[derive(Default)]
pub(crate) struct Calibrations(Vec<(Run, Calibration)>);

impl Calibrations {
    /// Calibrates all cells of `plan` with our own guests: as `records` of this host tell, so that a resumed experiment does the same work, else by
    /// runs of a few milliseconds.
    pub(crate) fn of_plan(
        plan: &Plan,
        records: &[Record],
        host: &Host,
        measure: impl Fn(&Run) -> std::result::Result<Calibration, RunError>,
    ) -> std::result::Result<Self, RunError> {
        let mut asked: Vec<&Run> = vec![];
        let is_open = |run: &Run| run.ring == Ring::Auto || run.work_rate.is_none();
        for cell in plan.cells().filter(|cell| cell.run.linux().is_none() && is_open(&cell.run)) {
            if !asked.iter().any(|known| are_alike(known, &cell.run)) {
                asked.push(&cell.run);
            }
        }
        // The ring that is found for some is asked for by others: they do the same work.
        asked.sort_by_key(|run| run.ring != Ring::Auto);
        let mut all = Self::default();
        for run in asked {
            let mut found = all.0.iter().filter(|(known, _)| known.engine == run.engine);
            let known = found.find(|(_, calibration)| calibration.ring == run.ring);
            let known = known.map(|(_, calibration)| calibration.clone());
            let calibration = match known.or_else(|| of_records(run, plan, records, host)) {
                Some(known) => known,
                None => measure(run)?,
            };
            all.0.push((run.clone(), calibration));
        }
        Ok(all)
    }

    /// Follows the clock of the CPUs: what comes next is given the rate at which the work of the last `records` went. A clock that changed
    /// since the first runs would spoil all others (`work-off`).
    pub(super) fn follow<'a>(
        &mut self,
        plan: &Plan,
        records: impl Iterator<Item = &'a Record> + Clone,
        host: &Host,
    ) {
        for (asked, calibration) in self.0.iter_mut().filter(|(asked, _)| !asked.engine.is_simulated()) {
            let rates: Vec<f64> = alike(asked, plan, records.clone(), host)
                // Pieces too short to be timed exactly say nothing of the clock.
                .filter(|record| timed_within(record) <= WORK_TOLERANCE)
                .filter_map(|record| Some(record.figure(WORK_RATE)? * record.figure(WORK_SPEED)?))
                .collect();
            if rates.is_empty() {
                continue;
            }
            let rate = median(&rates);
            // A smaller difference is the scatter of a block.
            if (rate / calibration.work_rate as f64 - 1.0).abs() > WORK_TOLERANCE / 2.0 {
                calibration.work_rate = rate.round() as u64;
            }
        }
    }

    fn of(&self, run: &Run) -> Option<&Calibration> {
        self.0.iter().find(|(known, _)| are_alike(known, run)).map(|(_, calibration)| calibration)
    }

    /// Why a run that leaves the ring to be found out has the ring it has.
    pub(super) fn ring_reason(&self, run: &Run) -> Option<&str> {
        self.of(run).filter(|_| run.ring == Ring::Auto).map(|calibration| calibration.ring_reason.as_str())
    }

    /// Gives a run what was found out, unless it asks for a ring, or for the rate of its simulated machine.
    pub(super) fn apply(&self, run: &mut Run) {
        let Some(Calibration { work_rate, ring, .. }) = self.of(run).cloned() else { return };
        run.work_rate = run.work_rate.or(Some(work_rate));
        if run.ring == Ring::Auto {
            run.ring = ring;
        }
    }
}

/// Records of cells that asked for the same, on the same host. Another host has CPUs of another speed, and perhaps another ring that is
/// native.
fn alike<'a>(
    asked: &Run,
    plan: &Plan,
    records: impl Iterator<Item = &'a Record>,
    host: &Host,
) -> impl Iterator<Item = &'a Record> {
    let here = host.identity();
    let cells = plan.cells().filter(|cell| are_alike(&cell.run, asked));
    let ids: BTreeSet<String> = cells.map(|cell| cell.id.clone()).collect();
    records.filter(move |record| {
        record.place.as_ref().is_some_and(|place| ids.contains(&place.cell_id))
            && record.host.identity() == here
    })
}

fn of_records(run: &Run, plan: &Plan, records: &[Record], host: &Host) -> Option<Calibration> {
    let record = alike(run, plan, records.iter(), host).next()?;
    Some(Calibration {
        work_rate: record.figure(WORK_RATE)? as u64,
        ring: if record.settings.count("ring") == 0 { Ring::Ring0 } else { Ring::Ring3 },
        ring_reason: record.settings.text("ring_reason")?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::experiment::plan::Cell as PlannedCell;
    use crate::measure::synthetic::{Sketch, World};
    use crate::record::place::Role;

    /// Ring and work rate that each cell of a plan is given on the host called `host`, where ring 0 is native and CPUs are half as fast
    /// in ring 3; and how often these were measured.
    fn given(plan: &Plan, records: &[Record], host: &str) -> (Vec<(Ring, u64)>, u32) {
        let measured = Cell::new(0);
        let measure = |run: &Run| {
            measured.set(measured.get() + 1);
            let ring = if run.ring == Ring::Auto { Ring::Ring0 } else { run.ring };
            let work_rate = if ring == Ring::Ring0 { 2000 } else { 1000 };
            Ok(Calibration { work_rate, ring, ring_reason: "measured".into() })
        };
        let host = Host { host_id: Some(host.into()), ..Host::default() };
        let calibrations = Calibrations::of_plan(plan, records, &host, measure).unwrap();
        let given = |cell: &PlannedCell| {
            let mut run = cell.run.clone();
            calibrations.apply(&mut run);
            (run.ring, run.work_rate.unwrap())
        };
        (plan.cells().filter(|cell| cell.role != Role::Ideal).map(given).collect(), measured.get())
    }

    #[test]
    fn each_cell_is_calibrated_on_this_host_by_what_it_asks_for() {
        use Ring::{Ring0, Ring3};
        let one = Sketch::new().arm("a", "tas").plan(1);
        let arms = [("third", "ring = \"3\""), ("found", ""), ("zeroth", "ring = \"0\"")];
        let add = |sketch: Sketch, (name, ring): (&str, &str)| {
            sketch.arm_with(name, &format!("lock = \"tas\"\n{ring}"))
        };
        let mixed = arms.into_iter().fold(Sketch::new(), add).plan(1);
        let records = |plan: &Plan, host, rate| {
            World::new(1).host_id(Some(host)).adjust(move |_, outcome| outcome.work_rate = rate).records(plan)
        };
        let of_two_hosts = [records(&one, "host-a", 1 << 20), records(&one, "host-b", 3 << 20)].concat();
        let mut of_third = records(&mixed, "host-a", 55);
        of_third.retain(|record| record.placed().cell_id == "third");
        for (plan, records, host, wanted, times) in [
            // Cells that ask for the ring that is found share its rate.
            (&mixed, &vec![], "host-a", vec![(Ring3, 1000), (Ring0, 2000), (Ring0, 2000)], 2),
            (&one, &of_two_hosts, "host-a", vec![(Ring3, 1 << 20)], 0),
            (&one, &of_two_hosts, "host-b", vec![(Ring3, 3 << 20)], 0),
            (&one, &of_two_hosts, "host-c", vec![(Ring0, 2000)], 1),
            // A record calibrates no cell that asks for another ring.
            (&mixed, &of_third, "host-a", vec![(Ring3, 55), (Ring0, 2000), (Ring0, 2000)], 1),
        ] {
            assert_eq!(given(plan, records, host), (wanted, times), "{host}");
        }
    }
}
