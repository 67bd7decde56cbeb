//! The run's own thread: waits for the guest to start, opens and closes the window, watches for trouble, and notes what it observes. It
//! turns the books that are kept anyway into the frames of the live view.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN, WorkloadFlags};
use serde_json::{Value, json};

use crate::guest::Activity;
use crate::guest::memory::Memory;
use crate::host::cgroup::KernelThrottled;
use crate::host::clock::Moment;
use crate::host::error::{Known, RunError};
use crate::host::pmu::Pmu;
use crate::host::text::Span;
use crate::image::file::Image;
use crate::machine::vcpu::{Exit, ExitCounts, Vcpu};
use crate::observe::live::Live;
use crate::observe::notes::Notes;
use crate::observe::trace::{Collector, Recorder};
use crate::observe::{Instruments, Where, Whereabouts};
use crate::run::asked::{MAX_WINDOWS, OurGuest, Run};
use crate::sched::guest_run::GuestRun;
use crate::sched::run_delay::SchedStat;
use crate::sched::switch_books::SwitchBooks;
use crate::sched::{Sched, Scheduler};

/// How often it looks while the guest runs.
const POLL: Duration = Duration::from_millis(20);
/// Interval of the looks while a fixed amount of work is done, because the supervisor waits for its end.
const POLL_WORK: Duration = Duration::from_millis(5);
/// Interval of the looks while vCPUs start.
const POLL_START: Duration = Duration::from_micros(500);
/// A guest that has not moved for this long when the window closes may be slow or stuck: the watchdog decides.
const STALL_WORTH_WAITING: Duration = Duration::from_millis(100);
/// The least that the watchdog waits by itself, once all vCPUs have started.
const WATCHDOG: Duration = Duration::from_secs(1);
/// How long vCPUs of a simulated machine, which no neighbour delays, may all wait for a lock that none of them holds.
const SIMULATED_WATCHDOG: Duration = Duration::from_millis(5);
/// The least that the watchdog waits while vCPUs start, which takes a long time on emulated hosts.
const WATCHDOG_START: Duration = Duration::from_secs(10);
/// Fixed part of the limit on a phase that ends when the guest has done something; [`MARGIN_PATIENCES`] times the guest's longest
/// permitted standstill is added. The three phases: until it has started, until it has come to rest, until it moves again at the end.
const MARGIN: Duration = Duration::from_secs(10);
const MARGIN_PATIENCES: u32 = 4;
/// Assumed slice of the host's scheduler, whose real one varies.
const HOST_SLICE: Duration = Duration::from_millis(10);

/// The only guest of a run, with the scheduler that lets time pass for it.
#[derive(Clone, Copy)]
pub(crate) struct Stage<'a> {
    pub(crate) scheduler: &'a dyn Scheduler,
    pub(crate) guest: &'a GuestRun<'a>,
    pub(crate) memory: &'a Memory,
}

/// Passes the window in the supervisor's place.
pub(crate) trait PassWindow {
    /// Lets the scheduler pass time, from the opening of the window to its close.
    fn pass(&mut self, stage: Stage<'_>) -> Result<(), RunError>;
}

struct Supervised<'a> {
    asked: OurGuest<'a>,
    guest: &'a GuestRun<'a>,
    memory: &'a Memory,
    scheduler: &'a dyn Scheduler,
    /// The guest sets something up first, and looks at the end at what it has left.
    checks_at_rest: bool,
    /// The guest says since when a vCPU waits.
    notes_waits: bool,
    progress: u64,
    still: Duration,
    /// Times that every ready vCPU has had a turn since the guest last moved: whether it could have moved.
    rounds: u32,
    /// Host time since when the present round has been counted.
    round_ns: u64,
    /// CPU time of the process when the guest last moved.
    cpu_at_move: Duration,
    observed: Observed,
    recorder: Option<Recorder>,
}

pub(crate) struct Supervisor<'a> {
    run: &'a Run,
    guests: Vec<Supervised<'a>>,
    scheduler: &'a dyn Scheduler,
    pmu: &'a Pmu,
    stop: &'a AtomicBool,
    pub(crate) shown: Option<LiveView>,
    passed: Passed,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        run: &'a Run,
        guests: &'a [GuestRun<'a>],
        (image, memories): (&'a Image, &[&'a Memory]),
        scheduler: &'a dyn Scheduler,
        pmu: &'a Pmu,
        stop: &'a AtomicBool,
    ) -> Self {
        let has_flag = |asked: OurGuest<'_>, flag: WorkloadFlags| {
            let workload = image.workloads.iter().find(|workload| workload.name == asked.ours.workload);
            workload.is_some_and(|workload| workload.workload_flags().has(flag))
        };
        let books = |asked: OurGuest<'_>, halts_in_kernel| {
            SwitchBooks::new(asked.guest.vcpus, asked.ours.lock_count, halts_in_kernel)
        };
        let watched = run.ours().zip(guests).zip(memories).map(|((asked, guest), memory)| Supervised {
            asked,
            guest,
            memory,
            scheduler,
            checks_at_rest: has_flag(asked, WorkloadFlags::CHECKS_AT_REST),
            notes_waits: has_flag(asked, WorkloadFlags::NOTES_WAITS),
            progress: 0,
            still: Duration::ZERO,
            rounds: 0,
            round_ns: guest.clock.now_ns(),
            cpu_at_move: scheduler.cpu_time(),
            observed: Observed {
                switched: guest.watcher.reports().is_ok().then(|| books(asked, guest.halts_in_kernel)),
                ..Observed::default()
            },
            recorder: guest.notes.trace.as_ref().map(Collector::switch_recorder),
        });
        Self { run, guests: watched.collect(), scheduler, pmu, stop, shown: None, passed: Passed::default() }
    }

    /// Returns how the run went, and the observations of each guest, once its threads have ended.
    pub(crate) fn into_observed(self, notes: &Notes) -> (Passed, Vec<Observed>) {
        (self.passed, self.guests.into_iter().map(|guest| guest.into_observed(notes)).collect())
    }

    /// From the guests' first instructions to the close of the window, which `window` passes. An error ends all; a guest that fails
    /// while others go on has its failure to itself.
    pub(crate) fn supervise(&mut self, window: Option<&mut dyn PassWindow>) -> Result<(), RunError> {
        let verdict = self.go_through(window);
        for watched in &mut self.guests {
            watched.read_switches();
            if let Some(books) = &watched.observed.switched {
                let vcpus = 0..watched.asked.guest.vcpus;
                watched.observed.preempted = vcpus.map(|vcpu| books.preempted(vcpu)).collect();
            }
        }
        verdict
    }

    fn go_through(&mut self, window: Option<&mut dyn PassWindow>) -> Result<(), RunError> {
        let starting = |watched: &Supervised<'a>| usize::from(!watched.has_started());
        self.wait_for(POLL_START, starting, Supervised::not_started)?;
        self.passed.started_tsc = self.guests[0].guest.clock.tsc();
        self.pass(self.run.warmup)?;

        self.passed.cpu_at_open = self.scheduler.cpu_time();
        self.guests.iter_mut().for_each(Supervised::open_window);
        self.pmu.switch(true);
        let passed = match window {
            Some(window) => {
                let Supervised { guest, memory, .. } = self.guests[0];
                window.pass(Stage { scheduler: self.scheduler, guest, memory })
            }
            None => self.pass_window(),
        };
        self.pmu.switch(false);
        self.passed.cpu_time = self.scheduler.cpu_time().saturating_sub(self.passed.cpu_at_open);
        self.guests.iter_mut().for_each(Supervised::close_window);
        passed?;
        // Until every vCPU of guests that look at what they leave has finished, and the last one has looked.
        let at_work = |watched: &Supervised<'a>| usize::from(watched.checks_at_rest && !watched.is_at_rest());
        self.wait_for(POLL, at_work, |_, seconds| {
            format!(
                "something moves, but {seconds:.1} s after the window the vCPUs have not all come to rest"
            )
        })?;
        // Until every vCPU has left, where that was asked for.
        let inside = |watched: &Supervised<'a>| {
            if watched.asked.run.drain { watched.not_left().count() } else { 0 }
        };
        self.wait_for(POLL_WORK, inside, |_, seconds| {
            format!(
                "something moves, but after the window no vCPU has left the lock for {seconds:.1} s, and not all have"
            )
        })?;
        // A lock that stopped moving just before the end must not pass for a slow one.
        let stalled = |watched: &Supervised<'a>| usize::from(watched.still > STALL_WORTH_WAITING);
        self.wait_for(POLL, stalled, Supervised::starved)
    }

    /// Waits until nothing is `left` to come of any guest, but no longer than the margin since there was less of it: a strict queue lets
    /// its vCPUs go one by one. Then each guest with something left fails, as `late` says after how long. With the warm-up and the
    /// window, which end by the clock, this bounds every run, whatever a guest does and however little it gets.
    fn wait_for(
        &mut self,
        poll: Duration,
        left: impl Fn(&Supervised<'a>) -> usize,
        late: impl Fn(&Supervised<'a>, f64) -> String,
    ) -> Result<(), RunError> {
        let margin = self.guests.iter().map(Supervised::margin).max().unwrap_or_default();
        let (mut waited, mut least) = (Duration::ZERO, usize::MAX);
        loop {
            match self.live().map(&left).sum::<usize>() {
                0 => return Ok(()),
                fewer if fewer < least => (waited, least) = (Duration::ZERO, fewer),
                _ => {}
            }
            waited += self.pause(poll)?;
            if waited >= margin {
                let seconds = waited.as_secs_f64();
                self.live().filter(|watched| left(watched) > 0).for_each(|watched| {
                    watched.guest.fail(RunError::NoProgress(late(watched, seconds)));
                });
            }
        }
    }

    fn live(&self) -> impl Iterator<Item = &Supervised<'a>> {
        self.guests.iter().filter(|watched| !watched.guest.failed())
    }

    /// To the end of the window: that of its time, or of the fixed amounts of work.
    fn pass_window(&mut self) -> Result<(), RunError> {
        let has_work = |watched: &Supervised<'_>| watched.asked.ours.shape.work().is_some();
        let fixed = self.guests.iter().any(has_work);
        let poll = if fixed { POLL_WORK } else { POLL };
        let opened = self.now();
        let mut windows = 1;
        loop {
            let left = (opened + self.run.window * windows).saturating_sub(self.now());
            if left.is_zero() && windows < MAX_WINDOWS && !self.live().all(Supervised::has_enough_sections) {
                windows *= 2;
                continue;
            }
            let done = self
                .live()
                .filter(|watched| has_work(watched))
                .all(|watched| watched.guest.window.is_closed());
            if left.is_zero() || (fixed && done) {
                self.passed.windows = windows;
                return Ok(());
            }
            self.pause(left.min(poll))?;
        }
    }

    fn pass(&mut self, time: Duration) -> Result<(), RunError> {
        let end = self.now() + time;
        loop {
            let left = end.saturating_sub(self.now());
            if left.is_zero() {
                return Ok(());
            }
            self.pause(left.min(POLL))?;
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.guests[0].guest.clock.now_ns())
    }

    /// Lets time pass, then looks whether something ends the run, or one of its guests. How long that was.
    fn pause(&mut self, time: Duration) -> Result<Duration, RunError> {
        let began = self.now();
        self.scheduler.pass(time);
        // A process or a machine that was stopped wakes up with its guest as it was: a long sleep counts as a poll.
        let slept = self.now().saturating_sub(began).min(time + POLL);
        for (index, watched) in self.guests.iter_mut().enumerate() {
            watched.read_switches();
            if !watched.guest.failed() {
                watched.look(slept);
            }
            if watched.guest.failed() && !watched.guest.stopping() {
                watched.guest.stop();
                self.scheduler.interrupt_guest(index);
            }
        }
        if let Some(shown) = self.shown.as_ref().filter(|shown| shown.live.is_due()) {
            shown.live.show(self.frame(shown));
        }
        // Relaxed: polled; nothing else is read on the strength of it.
        let asked = self.stop.load(Ordering::Relaxed);
        if asked || self.scheduler.is_broken() || self.live().next().is_none() {
            return Err(RunError::Interrupted);
        }
        Ok(slept)
    }

    /// Makes a frame of the live view.
    fn frame(&self, shown: &LiveView) -> Value {
        let (run, whereabouts) = (self.run, self.scheduler.whereabouts());
        let guests = self.guests.iter().zip(&shown.counts).map(|(watched, counts)| {
            let (asked, guest, books) = (watched.asked, watched.guest, watched.observed.switched.as_ref());
            let found = &whereabouts[guest.first_vcpu as usize..];
            let vcpus = (0..).zip(found).zip(counts);
            let vcpus = vcpus.map(|((id, found), counts)| show_vcpu((guest, books), id, *found, counts));
            json!({
                "name": asked.guest.name,
                "lock": asked.ours.lock,
                "pv": asked.guest.pv,
                "workload": asked.ours.workload,
                "locks": asked.ours.lock_count,
                "vcpus": vcpus.collect::<Vec<_>>(),
            })
        });
        json!({
            "phase": self.guests[0].phase(),
            "at_ns": self.guests[0].guest.clock.now_ns(),
            "virtual_time": run.engine.is_simulated(),
            "sched": if run.has_vcpu_threads() { "host" } else { "vmm" },
            "cpus": run.cpus,
            "guests": guests.collect::<Vec<_>>(),
        })
    }
}

impl Supervised<'_> {
    /// Enters into the books what has been reported since the last time.
    fn read_switches(&mut self) {
        let reports = self.guest.watcher.reports();
        let (Some(books), Ok(probe)) = (&mut self.observed.switched, reports) else { return };
        let clock = self.guest.clock_at(Moment::now());
        probe.drain(|switch| {
            let what = books.enter(&switch, clock);
            if let (Some(recorder), Some(what)) = (&mut self.recorder, what) {
                recorder.note(switch.at_ns, self.guest.first_vcpu + switch.vcpu, what);
            }
        });
    }

    fn into_observed(mut self, notes: &Notes) -> Observed {
        self.read_switches();
        if let (Some(trace), Some(recorder)) = (&notes.trace, self.recorder) {
            trace.hand_in(recorder);
        }
        if let (Some(books), Ok(probe)) = (&mut self.observed.switched, self.guest.watcher.reports()) {
            books.reports.dropped = probe.dropped();
        }
        self.observed
    }

    /// The phase in which a live view shows it.
    fn phase(&self) -> &'static str {
        let [opened, _] = self.guest.window.times();
        if self.guest.window.is_closed() {
            "closed"
        } else if opened != u64::MAX {
            "window"
        } else if self.has_started() {
            "warms-up"
        } else {
            "starts"
        }
    }

    fn has_started(&self) -> bool {
        let control = self.memory.control();
        let all = |count: &AtomicU32| count.load(Ordering::Relaxed) >= self.asked.guest.vcpus;
        all(&control.started) && (!self.checks_at_rest || all(&control.ready))
    }

    fn is_at_rest(&self) -> bool {
        // Acquire: pairs with the guest's release: what it counted comes before.
        self.memory.control().at_rest.load(Ordering::Acquire) != 0
    }

    fn open_window(&mut self) {
        self.observed.sched_stats[0] = self.scheduler.sched_stats(self.guest.index);
        self.observed.quota[0] = self.guest.quota_counts();
        self.guest.window.open(self.guest.clock.now_ns());
        // Relaxed: the guest polls it; a vCPU that sees it late starts counting late.
        self.memory.control().window.store(WINDOW_OPEN, Ordering::Relaxed);
    }

    fn close_window(&mut self) {
        let closed_tsc = self.guest.tsc.of_host(self.guest.clock.tsc());
        self.memory.control().window.store(WINDOW_CLOSED, Ordering::Relaxed);
        self.guest.window.close(self.guest.clock.now_ns());
        self.observed.pending_waits = Some(self.pending_waits(closed_tsc));
        self.observed.sched_stats[1] = self.scheduler.sched_stats(self.guest.index);
        self.observed.quota[1] = self.guest.quota_counts();
    }

    /// The waits that have not ended at `closed_tsc` of the guest's clock, which is now. One that ends while they are looked
    /// at is neither among them nor among those that ended in the window.
    fn pending_waits(&self, closed_tsc: u64) -> Known<Vec<u64>> {
        if !self.notes_waits {
            return Err("this workload does not note since when a vCPU waits".into());
        }
        if self.asked.ours.shape.work().is_some() {
            return Err("the window closed with the work, before the VMM could look".into());
        }
        // Relaxed: one word, written by its vCPU alone. What the guest says is believed as far as its clock has come.
        let since = |vcpu| self.memory.area(vcpu).activity.awaited_since_tsc.load(Ordering::Relaxed);
        let pending = (0..self.asked.guest.vcpus).map(since).filter(|since| (1..closed_tsc).contains(since));
        Ok(pending.map(|since| closed_tsc - since).collect())
    }

    /// Looks whether the guest moves, after a sleep of `slept`.
    fn look(&mut self, slept: Duration) {
        let progress = self.count_progress();
        // One that has done its work may leave, on a busy host long after it last moved, and others may go on for longer.
        let has_left = || self.guest.window.is_closed() && self.not_left().next().is_none();
        if progress != self.progress || self.is_done() || has_left() {
            (self.progress, self.still) = (progress, Duration::ZERO);
            (self.rounds, self.round_ns) = (0, self.guest.clock.now_ns());
            self.cpu_at_move = self.scheduler.cpu_time();
            return;
        }
        self.still += slept;
        if self.scheduler.everybody_ran_since(self.round_ns) {
            (self.rounds, self.round_ns) = (self.rounds + 1, self.guest.clock.now_ns());
        }
        if self.is_stuck() {
            self.guest.fail(self.no_progress());
        }
    }

    /// As many sections as a figure should rest on have been done in the window so far.
    fn has_enough_sections(&self) -> bool {
        // Relaxed: a count that only the vCPU itself changes.
        let acquired = |vcpu| self.memory.area(vcpu).results.acquisitions.load(Ordering::Relaxed);
        let done = (0..self.asked.guest.vcpus).map(acquired).fold(0, u64::saturating_add);
        done >= self.asked.run.min_sections
    }

    fn is_done(&self) -> bool {
        let has_work = self.asked.ours.shape.work().is_some();
        !self.asked.run.drain && (has_work && self.guest.window.is_closed() || self.is_at_rest())
    }

    /// Its vCPUs that have not left, by number.
    fn not_left(&self) -> impl Iterator<Item = u32> + use<> {
        let first = self.guest.first_vcpu as usize;
        let of_all = self.scheduler.whereabouts().into_iter().skip(first).zip(0..self.asked.guest.vcpus);
        of_all.filter(|(vcpu, _)| vcpu.at != Where::Left).map(|(_, vcpu)| vcpu)
    }

    fn all_asleep(&self) -> bool {
        self.scheduler.all_asleep(self.guest.index)
    }

    /// CPU time that the process has had since the guest last moved.
    fn cpu_since_move(&self) -> Duration {
        self.scheduler.cpu_time().saturating_sub(self.cpu_at_move)
    }

    fn is_stuck(&self) -> bool {
        // How long the guest may stand still in any case.
        let patience = if self.has_started() { self.working_patience() } else { WATCHDOG_START };
        let had_turns = || self.rounds >= WATCHDOG_ROUNDS && self.cpu_since_move() >= WATCHDOG_CPU_TIME;
        let had_its_chances = || self.still > patience && (had_turns() || self.all_asleep());
        match self.asked.run.watchdog {
            Some(limit) => {
                let simulated =
                    self.asked.run.engine.is_simulated() && self.still > self.simulated_patience();
                self.still > limit + self.longest_absence()
                    || self.asked.run.drain && self.all_wait() && (simulated || had_its_chances())
            }
            None => had_its_chances(),
        }
    }

    /// Every vCPU waits that has not left: none holds a lock, and none is about to release one.
    fn all_wait(&self) -> bool {
        let waits = |vcpu| matches!(Activity::of(self.memory.area(vcpu)), Activity::Waiter | Activity::Head);
        self.guest.window.is_closed() && self.not_left().all(waits)
    }

    /// How long all vCPUs of a simulated guest may wait: one of them may have been let in, and be away.
    fn simulated_patience(&self) -> Duration {
        let ratio = self.ratio();
        let turns = match self.asked.run.rules.sched {
            Sched::Vmm if ratio == 1 => Duration::ZERO,
            Sched::Vmm => self.asked.run.rules.slice * ratio,
            Sched::Host => HOST_SLICE * ratio,
        };
        SIMULATED_WATCHDOG + turns * 4 + self.kept_away()
    }

    /// vCPUs of all guests that share a pCPU: each may be before the one that this guest waits for.
    fn ratio(&self) -> u32 {
        let vcpus: u32 = self.asked.run.guests.iter().map(|guest| guest.vcpus).sum();
        vcpus.div_ceil(self.asked.run.cpus.len() as u32)
    }

    /// How long a vCPU may be kept from running, turns of others aside.
    fn kept_away(&self) -> Duration {
        let away = self.asked.run.deschedule.as_ref().map_or(Duration::ZERO, |deschedule| deschedule.length);
        let quota = self.asked.guest.quota.map(|quota| quota.period() * 4);
        away + quota.unwrap_or_default() + self.longest_absence()
    }

    /// How long the guest may stand still in any case once it has started.
    fn working_patience(&self) -> Duration {
        let ratio = self.ratio();
        // A section takes its time, and the vCPU in it its turns; the next one in the queue may be the last in line.
        let work = (self.asked.ours.hold + self.asked.ours.think) * ratio * 4 + self.kept_away();
        match self.asked.run.rules.sched {
            Sched::Vmm => WATCHDOG + work,
            Sched::Host => WATCHDOG.max(HOST_SLICE * ratio * 8) + work,
        }
    }

    fn longest_absence(&self) -> Duration {
        let presence = self.asked.guest.presence;
        presence.map_or(Duration::ZERO, |presence| presence.longest_absence(self.asked.run.window))
    }

    /// How long the guest may take to start, and how long to come to rest, though it moves all the time.
    fn margin(&self) -> Duration {
        let patience = self.asked.run.watchdog.unwrap_or_else(|| WATCHDOG_START.max(self.working_patience()));
        // A busy host delays a guest; a simulated guest has no such neighbour.
        let margin = if self.asked.run.engine.is_simulated() { Duration::ZERO } else { MARGIN };
        margin + patience * MARGIN_PATIENCES
    }

    fn not_started(&self, seconds: f64) -> String {
        let (begun, all) = (self.memory.control().started.load(Ordering::Relaxed), self.asked.guest.vcpus);
        format!(
            "something moves, but after {seconds:.1} s only {begun} of {all} vCPUs have begun to work; a slower start needs a \
             longer --watchdog"
        )
    }

    fn starved(&self, seconds: f64) -> String {
        let had = self.cpu_since_move().as_secs_f64();
        format!(
            "nothing has moved for {:.1} s, {seconds:.1} s of them after the window, and in that time this process had {had:.1} s of \
             CPU time: the host is too busy to tell whether the guest is stuck",
            self.still.as_secs_f64()
        )
    }

    /// Grows whenever a vCPU starts or gets somewhere.
    fn count_progress(&mut self) -> u64 {
        let control = self.memory.control();
        let begun = |count: &AtomicU32| u64::from(count.load(Ordering::Relaxed));
        let mut progress = begun(&control.started) + begun(&control.ready);
        for vcpu in 0..self.asked.guest.vcpus {
            let area = self.memory.area(vcpu);
            let results = &area.results;
            progress = progress
                .wrapping_add(results.entered.load(Ordering::Relaxed))
                .wrapping_add(results.acquisitions.load(Ordering::Relaxed))
                // A sum that changes whenever a vCPU begins something is as good as a count.
                .wrapping_add(area.activity.since_tsc.load(Ordering::Relaxed));
            self.observed.preempted_flag_seen |= area.steal.preempted.load(Ordering::Relaxed) != 0
                || self.memory.flag(vcpu).preempted.load(Ordering::Relaxed) != 0;
        }
        progress
    }

    fn no_progress(&self) -> RunError {
        let seconds = self.still.as_secs_f64();
        let run = self.asked.run;
        let never_began = self.memory.control().started.load(Ordering::Relaxed) == 0;
        if never_began
            && run.rules.sched == Sched::Vmm
            && run.rules.slice < SLOWEST_ENTRY
            && !run.engine.is_simulated()
        {
            return RunError::SliceTooShort(format!(
                "in {seconds:.1} s the guest has not begun to work: this host takes longer to enter a guest than a slice of {} \
                 lasts; use a longer --slice",
                Span(run.rules.slice)
            ));
        }
        // A simulated guest may not stand still for long.
        let still =
            if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") };
        RunError::NoProgress(if self.all_asleep() {
            format!("all vCPUs have slept in pv_wait for {still}: a wake-up was lost")
        } else if self.all_wait() {
            format!("for {still} all vCPUs that have not left have waited for a lock that none of them holds")
        } else {
            format!("nothing has moved for {still}; a slower lock needs a longer --watchdog")
        })
    }
}

/// A run that shows itself. The threads that run its vCPUs do nothing for it.
pub(crate) struct LiveView {
    live: Arc<Live>,
    /// Exit counts of each vCPU of each guest.
    counts: Vec<Vec<Arc<ExitCounts>>>,
}

impl LiveView {
    /// A run that was asked to show itself, with these vCPUs, if there is somewhere to, and no other is there.
    pub(crate) fn begin(run: &Run, instruments: &Instruments, vcpus: &[Vec<Vcpu>]) -> Option<Self> {
        let live = instruments.live.as_ref().filter(|live| run.live && live.begin()).cloned()?;
        let of_guest = |vcpus: &Vec<Vcpu>| vcpus.iter().map(|vcpu| Arc::clone(&vcpu.exits)).collect();
        Some(Self { live, counts: vcpus.iter().map(of_guest).collect() })
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.live.end();
    }
}

/// A vCPU in the live view. The books are those on switches, where these are reported.
fn show_vcpu(
    (guest, books): (&GuestRun<'_>, Option<&SwitchBooks>),
    id: u32,
    found: Whereabouts,
    counts: &ExitCounts,
) -> Value {
    let Whereabouts { at, since_ns } = match (found.at, books.map(|books| books.preempted(id))) {
        (Where::Runnable, Some(Some(preempted))) => preempted,
        // Threads whose vCPU sleeps inside KVM look like running ones here.
        (Where::Runnable, Some(None)) if !guest.halts_in_kernel => Where::Running.into(),
        _ => found,
    };
    let area = guest.shared.as_ref().map(|shared| shared.area(id));
    let doing = area.map_or(Activity::Other, Activity::of);
    // Relaxed: figures, each of which its vCPU alone writes.
    let lock = area.map(|area| area.activity.lock.load(Ordering::Relaxed));
    let sections = area.map_or(0, |area| area.results.entered.load(Ordering::Relaxed));
    // Kicks and sleeps in the kernel's hands are no exits, so the VMM cannot count them.
    let seen = |kind| (!guest.halts_in_kernel).then(|| counts.of(kind));
    json!({
        "vcpu": id,
        "state": at.name(),
        "since_ns": since_ns,
        "doing": doing.name(),
        "lock": lock.filter(|_| doing != Activity::Other),
        "sections": sections,
        "exits": counts.total(),
        "kicks": seen(Exit::Kick(0).kind()),
        "sleeps": seen(Exit::Wait.kind()),
    })
}

/// A guest that gets no further than its first instructions in slices that are shorter than this is not to blame: 60 us were seen to be
/// too short on a virtual machine whose exits are slow.
const SLOWEST_ENTRY: Duration = Duration::from_micros(500);

/// How often every ready vCPU must have had its turn, and how much CPU time the process, before standing still means
/// anything: on a busy host, time passes in which no vCPU could have moved.
const WATCHDOG_ROUNDS: u32 = 3;
const WATCHDOG_CPU_TIME: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(crate) struct Passed {
    /// The run's counter when all vCPUs of all guests had started.
    pub(crate) started_tsc: u64,
    /// CPU time of the process when the window opened.
    pub(crate) cpu_at_open: Duration,
    /// CPU time of the process in the window.
    pub(crate) cpu_time: Duration,
    /// How many times its length the window took: more than once where too few sections were done in it.
    pub(crate) windows: u32,
}

/// The supervisor's observations of one guest.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// Scheduling statistics of each vCPU's thread at the opening of the window and at its close, where vCPUs have threads.
    pub(crate) sched_stats: [Vec<Option<SchedStat>>; 2],
    /// The kernel's counts of its quota at the opening of the window and at its close, if it keeps one.
    pub(crate) quota: [Option<KernelThrottled>; 2],
    /// Waits that had not ended when the window closed, in TSC ticks up to then; or why they are unknown. Set at the close.
    pub(crate) pending_waits: Option<Known<Vec<u64>>>,
    pub(crate) preempted_flag_seen: bool,
    /// Books on the switches of the vCPUs' threads, where switches are reported.
    pub(crate) switched: Option<SwitchBooks>,
    /// Each vCPU that was off its pCPU although it could run when the run ended, as far as that is known.
    pub(crate) preempted: Vec<Option<Whereabouts>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::clock::Clock;
    use crate::sched::tests::Ground;

    #[test]
    fn kicks_that_the_kernel_delivers_are_null_and_not_zero() {
        let ground = Ground::new(Clock::Host);
        let mut guest = ground.guest(1);
        for (halts_in_kernel, counted) in [(false, json!(0)), (true, Value::Null)] {
            guest.halts_in_kernel = halts_in_kernel;
            let shown = show_vcpu((&guest, None), 0, Where::Running.into(), &ExitCounts::default());
            let counts = ["exits", "kicks", "sleeps"].map(|name| shown[name].clone());
            assert_eq!(counts, [json!(0), counted.clone(), counted]);
        }
    }
}
