//! Objections to a run: what the host did to it, and what it did not do as it was asked.

use haltkick_vmm::{Accelerator, ByActivity, Engine, Found, OurGuest, Outcome, Schedule, SwitchReports};

use crate::host::noise::{BUSY_NEIGHBOUR, OTHERS_SHARE_LIMIT, STEAL_SHARE_LIMIT, STOPPED_SHARE_LIMIT};
use crate::record::figures::{ACQUISITIONS, WINDOW, WORK_SPEED};
use crate::record::{PerVcpu, Record};
use crate::text::quantity::{MemorySize, percent, si};

/// More than this share of the reports of switches lost makes the counts of preemptions too small.
const LOST_REPORTS_LIMIT: f64 = 0.01;
/// The work may be off its promised speed by this share, and cannot be further ahead of it.
pub(super) const WORK_TOLERANCE: f64 = 0.03;
/// The vCPUs' work may go at speeds that differ by this share.
const SPREAD_TOLERANCE: f64 = 0.05;
/// A piece of work is timed to within this: pieces of 200 ns were seen 4 to 10 % faster than promised where those of 1 us were
/// not, since a CPU begins with them before it has read the clock.
const TIMED_WITHIN_NS: f64 = 25.0;
/// A recorded schedule may be missed by a tenth.
const LEAST_HONOURED: f64 = 0.9;
/// The window may miss its length by this share.
const WINDOW_TOLERANCE: f64 = 0.05;

/// Writes down what the host did to a run, whatever ran in it.
pub(crate) fn judge_host(record: &mut Record, tick_resolution: f64, pinning_lost: Option<&str>) {
    let noise = record.noise.clone();
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
        record.warn(BUSY_NEIGHBOUR, message);
    }
    if let Some(share) = noise.run_delay_share.filter(|share| *share > delay_limit) {
        let message = format!(
            "the run's threads waited {} of the time for pCPUs that others used: stop those, or choose quiet pCPUs with \
             --cpus",
            percent(share)
        );
        record.warn(BUSY_NEIGHBOUR, message);
    }
    if let Some(share) = noise.steal_share
        && share > STEAL_SHARE_LIMIT.max(tick_resolution)
    {
        let message =
            format!("the outer host took {} of the pCPUs' time: run on quieter hardware", percent(share));
        record.warn("host-steal", message);
    }
    if let Some(share) = noise.stopped_share.filter(|share| *share > STOPPED_SHARE_LIMIT) {
        let message = format!(
            "the process was stopped for {} of the run (SIGSTOP, a debugger, a suspended host?): run it again",
            percent(share)
        );
        record.warn("stopped", message);
    }
    if let Some(lost) = pinning_lost {
        let message = format!("{lost}: it was changed (taskset, a cpuset?) while the run went on");
        record.warn("pinning-lost", message);
    }
}

/// The share of its speed within which a run's work is timed, by its shortest pieces.
pub(super) fn timed_within(record: &Record) -> f64 {
    let [hold_ns, think_ns] = ["hold_ns", "think_ns"].map(|name| record.settings.count(name));
    let shortest_ns = [hold_ns, think_ns].into_iter().filter(|piece_ns| *piece_ns > 0).min();
    shortest_ns.map_or(0.0, |piece_ns| TIMED_WITHIN_NS / piece_ns as f64)
}

/// Compares the work that was done with the work that was promised: a section of 1 us that takes 0.2 us makes another lock.
fn judge_work(record: &mut Record) {
    let resolution = timed_within(record);
    if let Some(over_promised) = record.figure(WORK_SPEED) {
        let [slowest_vcpu, fastest_vcpu] =
            ["work_slowest_vcpu", "work_fastest_vcpu"].map(|name| record.amount(name));
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

/// Warns of a recorded schedule that is not whole, or that was not repeated as it is.
fn judge_schedule(record: &mut Record, schedule: Option<&Schedule>) {
    if let Some(doubts) = schedule.and_then(|it| it.doubts.as_deref()) {
        record.warn("schedule-doubtful", format!("the recorded schedule lacks events: {doubts}"));
    }
    if let Some(repeated) = record.schedule.filter(|repeated| repeated.honoured < LEAST_HONOURED) {
        let share = percent(repeated.honoured);
        let message = format!("vCPUs were off their pCPUs for {share} of the time that the schedule says");
        record.warn("schedule-missed", message);
    }
}

/// A lock that was taken fewer times than this for each vCPU may have had no turn for some.
const TURNS_FOR_EACH: u64 = 100;
/// A vCPU that could run has had a pCPU in this many scheduling rounds.
const ROUNDS: u64 = 4;
/// Fewer sleeps than this began in the window for each vCPU that slept through it: a lock that wakes others instead has more.
const SLEEPS_FOR_EACH: u64 = 2;
/// Slice of a host's scheduler, about.
const HOST_SLICE_NS: u64 = 4_000_000;
/// A thread that only slept may have used this share of the window: the host's kernel counts its way to sleep.
const ASLEEP_LIMIT: f64 = 0.001;

/// Warns of vCPUs that slept through the window of a lock that others took all the time, while hardly any vCPU went to sleep.
/// Where sleepers come and go, a lock that chooses among them may leave some out, and no wake-up is lost.
fn judge_sleep(record: &mut Record) {
    let settings = &record.settings;
    let vcpus = u64::from(settings.vcpus());
    if settings.text("fold").is_some_and(|fold| fold != "off")
        || settings.number("tasks").is_some_and(|tasks| tasks < vcpus)
    {
        return; // The guest lets them sleep.
    }
    let window_ns = record.amount(WINDOW) as u64;
    let slept = |vcpu: &&PerVcpu| {
        let idle = |run_ns: u64| run_ns as f64 <= ASLEEP_LIMIT * window_ns as f64;
        let waited_for_pcpu = vcpu.steal_ns.is_some_and(|steal_ns| steal_ns >= window_ns);
        vcpu.acquisitions == Some(0)
            && vcpu.run_ns.is_some_and(idle)
            && !waited_for_pcpu
            && vcpu.waits.is_some_and(|waits| waits > 0)
    };
    let asleep = record.per_vcpu.iter().filter(slept).count() as u64;
    // Waits of the whole run, where those of the window are not known: this includes those that ended before it.
    let of_run = || record.per_vcpu.iter().map(|vcpu| vcpu.waits).sum::<Option<u64>>().map(|all| all / 4);
    let sleeps = record.figure("preemptions_halted").map(|count| count as u64).or_else(of_run);
    let pcpus = settings.pcpus().max(1) as u64;
    let round_ns = settings.number("slice_ns").unwrap_or(HOST_SLICE_NS) * vcpus.div_ceil(pcpus);
    let taken = record.amount(ACQUISITIONS) as u64;
    if asleep > 0
        && sleeps.is_some_and(|sleeps| sleeps < SLEEPS_FOR_EACH * asleep)
        && taken >= TURNS_FOR_EACH * vcpus
        && window_ns >= ROUNDS * round_ns
    {
        let message = format!(
            "{asleep} of {vcpus} vCPUs slept the whole window while the lock was taken {} times: wake-up lost? `haltkick check` \
             tests a lock object",
            si(taken as f64)
        );
        record.warn("asleep-throughout", message);
    }
}

pub(crate) fn judge(
    record: &mut Record,
    asked: OurGuest<'_>,
    outcome: &Outcome,
    found: &Found,
    tick_resolution: f64,
) {
    if asked.run.engine == Engine::Qemu(Accelerator::Tcg) {
        let message =
            "QEMU's emulator ran the guest: its figures are not comparable with those of a real CPU";
        record.warn("emulated", message.into());
    }
    judge_host(record, tick_resolution, outcome.pinning_lost.as_deref());
    // The clock of a simulated machine stands; a CPU whose sibling is busy works more slowly, as it should.
    if !asked.run.engine.is_simulated() {
        judge_work(record);
    }
    judge_sleep(record);
    let wanted = asked.run.window * found.windows;
    let off = outcome.window.as_secs_f64() / wanted.as_secs_f64() - 1.0;
    if outcome.completion.is_none() && off.abs() > WINDOW_TOLERANCE {
        let message =
            format!("the window was {} off its length: the host did not wake the VMM in time", percent(off));
        record.warn("window-missed", message);
    }
    if let Some(ByActivity { holder: 0, head: 0, waiter: 0, other: 0, .. }) = outcome.injected {
        let message = "no vCPU was descheduled on purpose: the event that --deschedule waits for did not happen in this window";
        record.warn("nobody-descheduled", message.into());
    }
    judge_schedule(record, asked.run.schedule.as_deref());
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
    if outcome.vcpus.len() != asked.guest.vcpus as usize {
        let message = format!("{} vCPUs ran where {} were asked for", outcome.vcpus.len(), asked.guest.vcpus);
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

    use haltkick_vmm::{Fold, Ours, VcpuOutcome, WorkSpeed};

    use super::*;
    use crate::host::noise::Noise;
    use crate::measure::synthetic::{Sketch, World};

    fn codes_of(records: &[Record]) -> Vec<String> {
        let of_arm = records.iter().find(|record| record.placed().arm == "a").unwrap();
        assert_eq!(of_arm.trusted, of_arm.warnings.is_empty());
        of_arm.warnings.iter().map(|warning| warning.code.clone()).collect()
    }

    #[test]
    fn a_run_whose_work_is_not_what_was_promised_is_not_trusted() {
        // Lengths of sections, and speeds of the vCPUs' work as shares of the promised one.
        let cases: [(u64, &'static [f64], &[&str]); 8] = [
            (1000, &[1.0, 0.98, 1.02], &[]),
            (1000, &[0.96, 0.96], &["work-off"]),
            (1000, &[12.0, 12.0], &["work-off"]),
            // One pCPU is slow.
            (1000, &[0.96, 1.0, 1.02], &["work-uneven"]),
            // The record says itself that nothing was timed.
            (1000, &[], &[]),
            // Short pieces are not timed exactly.
            (200, &[1.09], &[]),
            (200, &[1.2], &["work-off"]),
            (2000, &[1.04], &["work-off"]),
        ];
        for (hold_ns, speeds, codes) in cases {
            let world = World::new(1).adjust(move |_, outcome| {
                let work = speeds.iter().map(|it| WorkSpeed { over_promised: *it, pieces: 100 });
                outcome.work = work.map(Some).collect();
            });
            let settings = format!("lock = 'tas'\nhold = '{hold_ns}ns'\nthink = '0ns'");
            let plan = Sketch::new().arm_with("a", &settings).plan(1);
            assert_eq!(codes_of(&world.records(&plan)), codes, "{hold_ns} ns at {speeds:?}");
        }
    }

    #[test]
    fn more_lock_free_work_than_the_pcpus_can_do_is_not_trusted() {
        let level = |factor: u64| {
            let world = World::new(1).adjust(move |asked, outcome| {
                let lock_free = outcome.vcpus.iter_mut().filter(|_| asked.ours.lock == "none");
                lock_free.for_each(|vcpu| vcpu.acquisitions = vcpu.acquisitions * factor / 100);
            });
            codes_of(&world.records(&Sketch::new().arm("a", "tas").plan(1)))
        };
        assert_eq!(level(70), [""; 0], "slices, exits and stamps take their part");
        assert_eq!(level(140), ["work-off"]);
    }

    #[test]
    fn only_a_long_or_certain_disturbance_is_a_spoiler() {
        // Shares: other processes by ticks; the delay by the kernel's nanoseconds, which see short neighbours too; stopped.
        for (others, delayed, stopped, codes) in [
            (0.0, Some(0.08), None, &["busy-neighbour"][..]),
            (0.15, Some(0.08), None, &["busy-neighbour"]),
            (0.15, Some(0.01), None, &[]),
            (0.15, None, None, &[]),
            (0.3, Some(0.01), None, &["busy-neighbour"]),
            (0.3, None, None, &["busy-neighbour"]),
            (0.0, None, Some(0.04), &[]),
            (0.0, None, Some(0.06), &["stopped"]),
            (0.0, None, Some(0.9), &["stopped"]),
        ] {
            let noise = Noise {
                others_share: Some(others),
                run_delay_share: delayed,
                stopped_share: stopped,
                ..Noise::default()
            };
            let mut record = Record { noise, ..Record::default() };
            judge_host(&mut record, 0.2, None);
            let found: Vec<String> = record.warnings.iter().map(|it| it.code.clone()).collect();
            assert_eq!(found, codes, "{:?}", record.noise);
        }
    }

    /// The warnings of eight vCPUs on one pCPU, of which seven slept through a window of 100 ms, with changes of a guest that `set` changes.
    fn codes_of_sleepers(
        change: impl Fn(&mut Outcome) + Send + Sync + 'static,
        set: impl Fn(&mut Ours),
    ) -> Vec<String> {
        let world = World::new(1).adjust(move |asked, outcome| {
            if asked.ours.lock == "none" {
                return;
            }
            let taken = outcome.acquisitions();
            for vcpu in &mut outcome.vcpus {
                (vcpu.acquisitions, vcpu.run_ns, vcpu.steal_ns) = (0, Some(0), Some(2_000_000));
                (vcpu.waits, vcpu.kicks) = (Some(2), Some(1));
            }
            (outcome.vcpus[3].acquisitions, outcome.vcpus[3].run_ns) = (taken, Some(100_000_000));
            change(outcome);
        });
        let mut plan = Sketch::new().arm("a", "futex-mutex").plan(1);
        for cell in plan.points.iter_mut().flat_map(|point| point.ideals.iter_mut().chain(&mut point.arms)) {
            (cell.run.guests[0].vcpus, cell.run.cpus) = (8, vec![0]);
            cell.run.window = Duration::from_millis(100);
            set(cell.run.guests[0].ours_mut().expect("our guest"));
        }
        codes_of(&world.records(&plan))
    }

    #[test]
    fn vcpus_that_slept_while_the_lock_was_taken_spoil_the_run() {
        assert_eq!(codes_of_sleepers(|_| (), |_| ()), ["asleep-throughout"]);
        assert_eq!(codes_of_sleepers(|outcome| outcome.preemptions = None, |_| ()), ["asleep-throughout"]);
        // Sleepers of a folding guest do not, nor starved vCPUs that lost no wake-up.
        let folding =
            |fold| codes_of_sleepers(|_| (), |ours| (ours.workload, ours.fold) = ("tasks".into(), fold));
        assert_eq!(folding(Fold::Off), ["asleep-throughout"]);
        assert_eq!(folding(Fold::Oracle), [""; 0]);
        let runnable: fn(&mut VcpuOutcome) = |vcpu| vcpu.steal_ns = Some(100_000_000);
        for (why, change) in [
            ("runnable throughout", runnable),
            ("spinning", |vcpu| vcpu.run_ns = Some(10_000_000)),
            ("never asleep", |vcpu| vcpu.waits = Some(0)),
            ("a lock that hardly moves", |vcpu| vcpu.acquisitions /= 1_000_000),
        ] {
            let codes = codes_of_sleepers(move |it| it.vcpus.iter_mut().for_each(change), |_| ());
            assert_eq!(codes, [""; 0], "{why}");
        }
        let sleeps = |halted| {
            let by = ByActivity { halted, ..ByActivity::default() };
            codes_of_sleepers(move |outcome| outcome.preemptions = Some(by), |_| ())
        };
        assert_eq!(sleeps(13), ["asleep-throughout"]);
        assert_eq!(sleeps(300), [""; 0], "others sleep and wake: the lock chooses whom it wakes");
    }
}
