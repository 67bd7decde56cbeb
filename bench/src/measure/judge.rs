//! What speaks against a run: what the host did to it, and what it did not do as it was asked.

use haltkick_vmm::{Accelerator, ByActivity, Engine, Found, Outcome, RunConfig, SwitchReports};

use crate::host::noise::{Noise, OTHERS_SHARE_LIMIT, STEAL_SHARE_LIMIT};
use crate::record::config::Config;
use crate::record::{Record, Warning, WorkSpeed};
use crate::text::memory_size::MemorySize;
use crate::text::quantity;

/// More than this share of the reports of switches lost makes the counts of preemptions too small.
const LOST_REPORTS_LIMIT: f64 = 0.01;
/// The work may be off its promised speed by this share, and further ahead of it than this nobody can be.
const WORK_TOLERANCE: f64 = 0.03;
/// The vCPUs' work may go at speeds that differ by this share.
const SPREAD_TOLERANCE: f64 = 0.05;
/// A piece of work is timed to within this: pieces of 200 ns were seen 4 to 10 % faster than promised where those of 1 us were
/// not, since a CPU begins with them before it has read the clock.
const TIMED_WITHIN_NS: f64 = 25.0;
/// The window may miss its length by this share.
const WINDOW_TOLERANCE: f64 = 0.05;

fn percent(share: f64) -> String {
    format!("{} %", quantity::significant(share * 100.0))
}

/// What the host did to a run, whatever ran in it.
pub(crate) fn spoilers(noise: &Noise, tick_resolution: f64, pinning_lost: Option<&str>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |code: &str, message: String| warnings.push(Warning { code: code.into(), message });
    // A twentieth of two ticks, a millisecond for each pCPU, can be one's own: threads that start, the supervisor.
    let delay_limit = OTHERS_SHARE_LIMIT.max(tick_resolution / 20.0);
    if let Some(share) = noise.others_share
        && noise.run_delay_share.is_none_or(|delay| delay <= delay_limit)
        && share > OTHERS_SHARE_LIMIT.max(tick_resolution)
    {
        let message = format!(
            "other processes used {} of the run's pCPUs: stop them, or choose quiet ones with --cpus",
            percent(share)
        );
        warn("busy-neighbour", message);
    }
    if let Some(share) = noise.run_delay_share.filter(|share| *share > delay_limit) {
        let message = format!(
            "the run's threads waited {} of the time for pCPUs that others used: stop those, or choose quiet pCPUs with \
             --cpus",
            percent(share)
        );
        warn("busy-neighbour", message);
    }
    if let Some(share) = noise.steal_share
        && share > STEAL_SHARE_LIMIT.max(tick_resolution)
    {
        let message =
            format!("the machine below took {} of the pCPUs' time: run on quieter hardware", percent(share));
        warn("host-steal", message);
    }
    if let Some(lost) = pinning_lost {
        let message = format!("{lost}: somebody changed it (taskset, a cpuset?) while the run went on");
        warn("pinning-lost", message);
    }
    warnings
}

/// Compares the work that was done with the work that was promised: a section of 1 us that takes 0.2 us makes another lock.
fn judge_work(record: &mut Record) {
    let Config { hold_ns, think_ns, .. } = record.config;
    let shortest_ns = [hold_ns, think_ns].into_iter().filter(|piece_ns| *piece_ns > 0).min();
    let resolution = shortest_ns.map_or(0.0, |piece_ns| TIMED_WITHIN_NS / piece_ns as f64);
    if let Some(WorkSpeed { over_promised, slowest_vcpu, fastest_vcpu, .. }) = record.timing.work_speed {
        if (over_promised - 1.0).abs() > WORK_TOLERANCE.max(resolution) {
            let message = format!(
                "the work went at {} of its promised speed, so that holds and pauses are not as long as the settings say: the \
                 CPUs' clock changed since it was calibrated (turbo, power saving?)",
                percent(over_promised)
            );
            record.warn("work-off", message);
        } else if fastest_vcpu - slowest_vcpu > SPREAD_TOLERANCE.max(resolution) {
            let message = format!(
                "the work of some vCPUs went at {} of its promised speed and that of others at {}: the CPUs differ, or \
                 their clocks do",
                percent(slowest_vcpu),
                percent(fastest_vcpu)
            );
            record.warn("work-uneven", message);
        }
    }
    if let Some(level) = record.lock_free_level().filter(|level| *level > 1.0 + WORK_TOLERANCE) {
        let message = format!(
            "without a lock, {} of the work was done that the pCPUs can do: the work was not as long as the settings say",
            percent(level)
        );
        record.warn("work-off", message);
    }
}

/// Writes down what speaks against the run.
pub(crate) fn judge(
    record: &mut Record,
    config: &RunConfig,
    outcome: &Outcome,
    found: &Found,
    tick_resolution: f64,
) {
    if config.engine == Engine::Qemu(Accelerator::Tcg) {
        let message =
            "QEMU's emulator ran the guest: its figures are not comparable with those of a real CPU";
        record.warn("emulated", message.into());
    }
    for Warning { code, message } in spoilers(&record.noise, tick_resolution, outcome.pinning_lost.as_deref())
    {
        record.warn(&code, message);
    }
    // The clock of a simulated machine stands; a CPU whose sibling is busy works more slowly, as it should.
    if config.simulated.is_none() {
        judge_work(record);
    }
    let asked = config.window * found.windows;
    let off = outcome.window.as_secs_f64() / asked.as_secs_f64() - 1.0;
    if outcome.completion.is_none() && off.abs() > WINDOW_TOLERANCE {
        let message =
            format!("the window was {} off its length: the host did not wake the VMM in time", percent(off));
        record.warn("window-missed", message);
    }
    if let Some(ByActivity { holder: 0, head: 0, waiter: 0, other: 0, .. }) = outcome.injected {
        let message =
            "nobody was descheduled on purpose: what --deschedule waits for did not happen in this window";
        record.warn("nobody-descheduled", message.into());
    }
    if let Ok(SwitchReports { read, dropped }) = outcome.switches
        && dropped as f64 > LOST_REPORTS_LIMIT * (read + dropped) as f64
    {
        let message = format!(
            "{dropped} of {} reports of switches got lost, so that preemptions are too few: use fewer vCPUs, or \
             --attribution off",
            read + dropped
        );
        record.warn("switches-dropped", message);
    }
    if outcome.vcpus.len() != config.vcpus as usize {
        let message = format!("{} vCPUs ran where {} were asked for", outcome.vcpus.len(), config.vcpus);
        record.warn("ratio-missed", message);
    }
    let out_of_memory = outcome.lock_events.iter().find(|(name, _)| name == "mm_out_of_memory");
    if let Some((_, times)) = out_of_memory.filter(|(_, times)| *times > 0) {
        let message = format!(
            "out of memory {times} times, with {} for the guest to manage: give it more with --memory",
            MemorySize { bytes: outcome.memory_bytes }
        );
        record.warn("out-of-memory", message);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use haltkick_vmm::WorkSpeed;

    use super::*;
    use crate::measure::synthetic::{Sketch, World};

    /// The warnings of a run whose vCPUs work at these shares of the promised speed.
    fn codes(speeds: &'static [f64]) -> Vec<String> {
        let world = World::new(1).adjust(|_, outcome| {
            let speed = |over_promised: &f64| Some(WorkSpeed { over_promised: *over_promised, pieces: 100 });
            outcome.work = speeds.iter().map(speed).collect();
        });
        codes_of(&world.records(&Sketch::new().arm("a", "tas").plan(1)))
    }

    fn codes_of(records: &[Record]) -> Vec<String> {
        let of_arm = records.iter().find(|record| record.place.as_ref().unwrap().arm == "a").unwrap();
        assert_eq!(of_arm.trusted, of_arm.warnings.is_empty());
        of_arm.warnings.iter().map(|warning| warning.code.clone()).collect()
    }

    #[test]
    fn a_run_whose_work_is_not_what_was_promised_is_not_trusted() {
        assert_eq!(codes(&[1.0, 0.98, 1.02]), [""; 0]);
        assert_eq!(codes(&[0.96, 0.96]), ["work-off"]);
        assert_eq!(codes(&[12.0, 12.0]), ["work-off"]);
        assert_eq!(codes(&[0.96, 1.0, 1.02]), ["work-uneven"], "one pCPU is slow");
        assert_eq!(codes(&[]), [""; 0], "what could not be measured is told in the record");
    }

    #[test]
    fn pieces_too_short_for_exact_timing_are_not_judged() {
        let codes = |hold: u64, speed: f64| {
            let world = World::new(1).adjust(move |_, outcome| {
                outcome.work = vec![Some(WorkSpeed { over_promised: speed, pieces: 100 })];
            });
            let mut plan = Sketch::new().arm("a", "tas").plan(1);
            for cell in plan.points.iter_mut().flat_map(|point| &mut point.arms) {
                (cell.config.hold, cell.config.think) = (Duration::from_nanos(hold), Duration::ZERO);
            }
            codes_of(&world.records(&plan))
        };
        assert_eq!(codes(200, 1.09), [""; 0]);
        assert_eq!(codes(200, 1.2), ["work-off"]);
        assert_eq!(codes(2000, 1.04), ["work-off"]);
    }

    #[test]
    fn more_lock_free_work_than_the_pcpus_can_do_is_not_trusted() {
        let level = |factor: u64| {
            let world = World::new(1).adjust(move |config, outcome| {
                if config.lock == "none" {
                    outcome
                        .vcpus
                        .iter_mut()
                        .for_each(|vcpu| vcpu.acquisitions = vcpu.acquisitions * factor / 100);
                }
            });
            codes_of(&world.records(&Sketch::new().arm("a", "tas").plan(1)))
        };
        assert_eq!(level(70), [""; 0], "slices, exits and stamps take their part");
        assert_eq!(level(140), ["work-off"]);
    }

    #[test]
    fn a_neighbour_too_short_for_ticks_is_seen_in_nanoseconds() {
        let noise = |others: f64, delay: Option<f64>| Noise {
            others_share: Some(others),
            run_delay_share: delay,
            ..Noise::default()
        };
        let coarse = 0.2;
        for (noise, warned) in [
            (noise(0.0, Some(0.08)), true),
            (noise(0.15, Some(0.08)), true),
            (noise(0.15, Some(0.01)), false),
            (noise(0.15, None), false),
            (noise(0.3, Some(0.01)), true),
            (noise(0.3, None), true),
        ] {
            let codes: Vec<String> = spoilers(&noise, coarse, None).into_iter().map(|it| it.code).collect();
            assert_eq!(codes, vec!["busy-neighbour"; usize::from(warned)], "{noise:?}");
        }
    }
}
