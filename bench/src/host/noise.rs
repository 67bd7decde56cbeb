//! What else runs on the pCPUs: tick counts of `/proc/stat` around a run, less the CPU time of this process and its children;
//! and the sum of what single runs noticed, over an experiment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::host::probe;
use crate::measure::run;
use crate::record::{Noise, Record};
use crate::text::quantity::significant;

/// Unit of `/proc/stat`.
const TICK: Duration = Duration::from_millis(10);

/// Runs something and says what else ran on the CPUs meanwhile: the kernel's counts say it, or in tests what is tested.
pub(crate) type Watcher<'a> = &'a dyn Fn(&[u32], &mut dyn FnMut()) -> Found;

/// What else ran and the smallest share that can be told from none, or why that is not known.
pub(crate) type Found = Result<(Noise, f64), String>;

/// The [`Watcher`] that looks at this host.
pub(crate) fn around(cpus: &[u32], run: &mut dyn FnMut()) -> Found {
    let watch = Watch::start(cpus);
    run();
    watch.finish()
}

/// The moment before a run.
pub(crate) struct Watch {
    start: Instant,
    own: Duration,
    ticks: Result<Ticks, String>,
    cpus: Vec<u32>,
}

/// Ticks of the watched CPUs together.
#[derive(Clone, Copy)]
struct Ticks {
    busy: u64,
    steal: u64,
    /// Of all CPUs since boot.
    ever_stolen: u64,
}

/// Why a share of stolen time is null.
pub(crate) const NO_STEAL: &str = "this is a virtual machine, and the one below has reported no stolen time since boot: it does not count, or took none";

/// Whether the machine below can be believed when it reports no stolen time: if it ever reported some, or if there is none.
fn steal_is_known(ticks: Ticks) -> bool {
    ticks.ever_stolen > 0 || probe::has_cpu_flag("hypervisor") == Ok(false)
}

impl Watch {
    pub(crate) fn start(cpus: &[u32]) -> Self {
        Self { start: Instant::now(), own: own_cpu_time(), ticks: read(cpus), cpus: cpus.to_vec() }
    }

    /// What else ran since the start, and the smallest share that the ticks can tell from none.
    pub(crate) fn finish(self) -> Found {
        let before = self.ticks?;
        let after = read(&self.cpus)?;
        let own = own_cpu_time().saturating_sub(self.own).as_secs_f64();
        let offered = self.start.elapsed().as_secs_f64() * self.cpus.len() as f64;
        let seconds = |before: u64, after: u64| after.saturating_sub(before) as f64 * TICK.as_secs_f64();
        let steal_share = (seconds(before.steal, after.steal) / offered).clamp(0.0, 1.0);
        let noise = Noise {
            others_share: Some(((seconds(before.busy, after.busy) - own) / offered).clamp(0.0, 1.0)),
            steal_share: steal_is_known(after).then_some(steal_share),
            of_ns: (offered * 1e9) as u64,
            run_delay_share: None,
        };
        Ok((noise, 2.0 * TICK.as_secs_f64() * self.cpus.len() as f64 / offered))
    }
}

/// What else ran during all runs of an experiment together. What one short run cannot tell from a tick, hundreds can.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(crate) struct Overall {
    /// Busy with other processes and interrupts, as a share of the pCPUs' time; null where no run tells.
    pub(crate) others_share: Option<f64>,
    /// Taken by the machine below, likewise.
    pub(crate) steal_share: Option<f64>,
    /// Share of their lives that the runs' threads were ready and had no pCPU because others used it.
    pub(crate) run_delay_share: Option<f64>,
}

impl Overall {
    pub(crate) fn of(records: &[Record]) -> Self {
        // Guests of one run have the noise in common.
        let runs: BTreeMap<&str, &Noise> =
            records.iter().map(|record| (record.run_id.as_str(), &record.noise)).collect();
        let mean = |share: fn(&Noise) -> Option<f64>| {
            let shares = runs.values().filter_map(|noise| Some((share(noise)?, noise.of_ns as f64)));
            let (taken, whole) =
                shares.fold((0.0, 0.0), |(taken, whole), (share, of)| (taken + share * of, whole + of));
            (whole > 0.0).then(|| taken / whole)
        };
        Self {
            others_share: mean(|noise| noise.others_share),
            steal_share: mean(|noise| noise.steal_share),
            run_delay_share: mean(|noise| noise.run_delay_share),
        }
    }

    /// What was lost to others over the whole experiment, where it is more than single runs may lose.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let checks = [
            ("other processes used", self.others_share, run::OTHERS_SHARE_LIMIT),
            ("the runs' threads waited for others during", self.run_delay_share, run::OTHERS_SHARE_LIMIT),
            ("the machine below took", self.steal_share, run::STEAL_SHARE_LIMIT),
        ];
        let above = checks.into_iter().filter_map(|(what, share, limit)| {
            let percent = significant(share.filter(|share| *share > limit)? * 100.0);
            Some(format!(
                "{what} {percent} % of the pCPUs' time over all runs together: levels are low by that"
            ))
        });
        above.collect()
    }
}

fn own_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32) + children_cpu_time()
}

/// Of children that have ended, such as a QEMU.
fn children_cpu_time() -> Duration {
    let stat = probe::text("/proc/self/stat").unwrap_or_default();
    // After the name, which may hold anything: state is field 3, the children's user and system time are 16 and 17.
    let fields =
        stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_ascii_whitespace().skip(13).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
}

fn read(cpus: &[u32]) -> Result<Ticks, String> {
    parse(&probe::text("/proc/stat")?, cpus)
}

/// Sums the lines `cpuN user nice system idle iowait irq softirq steal guest guest_nice`.
fn parse(stat: &str, cpus: &[u32]) -> Result<Ticks, String> {
    let fields_of = |name: &str| -> Result<Vec<u64>, String> {
        stat.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(key, _)| *key == name)
            .map(|(_, rest)| rest.split_ascii_whitespace().filter_map(|field| field.parse().ok()).collect())
            .ok_or_else(|| format!("/proc/stat: no line {name}"))
    };
    let ever_stolen = fields_of("cpu").ok().and_then(|fields| fields.get(7).copied()).unwrap_or(0);
    let mut sum = Ticks { busy: 0, steal: 0, ever_stolen };
    for cpu in cpus {
        let name = format!("cpu{cpu}");
        let fields = fields_of(&name)?;
        let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = fields[..] else {
            return Err(format!("/proc/stat: line {name} has {} fields, 8 expected", fields.len()));
        };
        sum.busy += user + nice + system + irq + softirq;
        sum.steal += steal;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::summary::Summary;
    use crate::measure::synthetic::{Sketch, World};

    const STAT: &str = "cpu  60 0 30 5 1 0 1 9 0 0\n\
                        cpu0 10 1 20 4 1 2 3 5 7 0\n\
                        cpu1 50 0 10 1 0 0 1 4 0 0\n\
                        intr 5\n";

    #[test]
    fn busy_time_is_all_but_idle_and_stolen_time() {
        let ticks = parse(STAT, &[0]).unwrap();
        assert_eq!((ticks.busy, ticks.steal), (36, 5));
    }

    #[test]
    fn only_the_cpus_of_the_run_count() {
        let ticks = parse(STAT, &[0, 1]).unwrap();
        assert_eq!((ticks.busy, ticks.steal), (97, 9));
        assert!(parse(STAT, &[2]).is_err());
    }

    #[test]
    fn stolen_time_is_unknown_on_a_virtual_machine_whose_hypervisor_never_reported_any() {
        let stolen = parse(STAT, &[0]).unwrap();
        assert!(steal_is_known(stolen), "nine ticks since boot");
        let never = parse(&STAT.replace(" 9 0 0", " 0 0 0").replace(" 5 7 0", " 0 7 0"), &[0]).unwrap();
        let virtual_machine = probe::has_cpu_flag("hypervisor") == Ok(true);
        assert_eq!((never.ever_stolen, steal_is_known(never)), (0, !virtual_machine));
    }

    #[test]
    fn what_single_runs_cannot_tell_is_summed_over_the_experiment() {
        let plan = Sketch::new().arm("a", "tas").arm("b", "ticket").plan(20);
        let mut records = World::new(1).records(&plan);
        for record in &mut records {
            // Below the limit that ticks set to a short run, and below that of nanoseconds.
            record.noise = Noise {
                others_share: Some(0.08),
                steal_share: None,
                of_ns: 1_000_000,
                run_delay_share: Some(0.01),
            };
        }
        records[0].noise.others_share = None;
        let summary = Summary::new(&plan.outline, &records);
        assert!((summary.noise.others_share.unwrap() - 0.08).abs() < 1e-9, "{:?}", summary.noise);
        assert_eq!((summary.noise.steal_share, summary.noise.run_delay_share.is_some()), (None, true));
        let expected =
            "other processes used 8.00 % of the pCPUs' time over all runs together: levels are low by that";
        assert!(summary.warnings.iter().any(|warning| warning == expected), "{:?}", summary.warnings);
    }

    #[test]
    fn ones_own_work_is_not_somebody_elses() {
        let watch = Watch::start(&crate::host::cpulist::allowed().unwrap().0);
        let end = Instant::now() + Duration::from_millis(200);
        while Instant::now() < end {}
        let own = own_cpu_time().saturating_sub(watch.own);
        assert!(own >= Duration::from_millis(20), "spun for 200 ms and used {own:?}");
    }
}
