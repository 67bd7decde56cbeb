//! `--sched vmm` on threads: one pinned runner thread per pCPU gives vCPUs their turns, as the [`Core`] says.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::Scope;
use std::time::{Duration, Instant};

use crate::host::clock::now_ns;
use crate::host::error::{RunError, no_thread, system};
use crate::host::signal::{self, KickTimer, Thread};
use crate::host::threads::lock;
use crate::host::{cpus, sandbox};
use crate::machine::vcpu::{Exit, Vcpu};
use crate::observe::Whereabouts;
use crate::observe::notes::Observer;
use crate::sched::core::{Bell, Core, Next, Queues, Turn};
use crate::sched::deschedule::Plan;
use crate::sched::guest_run::GuestRun;
use crate::sched::pcpu::Pcpu;
use crate::sched::slice::{Alarm, SliceTimer};
use crate::sched::task::Task;
use crate::sched::{Finished, Rules, Scheduler, run_delay};

/// The thread of each runner, by the number of its pCPU, once it has begun. A bell is a runner's park: rung before the runner sleeps, it
/// ends that sleep at once.
struct Bells(BTreeMap<u32, OnceLock<std::thread::Thread>>);

impl Bell for Bells {
    fn ring(&self, pcpu: u32) {
        self.0[&pcpu].get().into_iter().for_each(std::thread::Thread::unpark);
    }

    fn ring_all(&self) {
        self.0.values().filter_map(OnceLock::get).for_each(std::thread::Thread::unpark);
    }
}

pub(crate) struct Runners<'a> {
    core: Core<'a, Bells>,
    threads: Mutex<Vec<Thread>>,
    /// A runner is missing.
    broken: AtomicBool,
}

impl Scheduler for Runners<'_> {
    fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, cpus: &'scope [u32]) {
        for (&cpu, runner) in cpus.iter().zip(0..) {
            let spawned =
                std::thread::Builder::new().name(format!("pcpu{cpu}")).spawn_scoped(scope, move || {
                    if let Err(error) = self.serve_pcpu(cpu, runner) {
                        self.fail(error);
                    }
                });
            if let Err(source) = spawned {
                self.fail(no_thread("start a runner thread")(source));
            }
        }
    }

    fn interrupt(&self) {
        lock(&self.threads).iter().for_each(|thread| thread.kick());
        self.core.bell.ring_all();
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    fn whereabouts(&self) -> Vec<Whereabouts> {
        self.core.whereabouts()
    }

    fn everybody_ran_since(&self, since_ns: u64) -> bool {
        self.core.everybody_ran_since(since_ns)
    }

    fn finish(self: Box<Self>) -> Vec<Finished> {
        self.core.finish()
    }
}

impl<'a> Runners<'a> {
    pub(crate) fn new(
        rules: Rules,
        pcpus: &[u32],
        guests: &'a [GuestRun<'a>],
        vcpus: Vec<Vec<Vcpu>>,
        plan: Option<Plan>,
    ) -> Self {
        let bells = Bells(pcpus.iter().map(|pcpu| (*pcpu, OnceLock::new())).collect());
        Self {
            core: Core::new(rules, (pcpus, Queues::PerPcpu), guests, vcpus, plan, bells),
            threads: Mutex::default(),
            broken: AtomicBool::new(false),
        }
    }

    fn fail(&self, error: RunError) {
        self.core.guests[0].fail(error);
        // Relaxed: polled.
        self.broken.store(true, Ordering::Relaxed);
    }

    fn serve_pcpu(&self, cpu: u32, runner: u32) -> Result<(), RunError> {
        let born = Instant::now();
        signal::block_all();
        cpus::pin_to(&[cpu])?;
        let timer = KickTimer::new().map_err(system("create a slice timer"))?;
        let slice = SliceTimer::new(Alarm::Kicks(timer), self.core.slice_ns);
        let observer =
            Observer::new(self.core.guests[0].notes, runner).map_err(system("create a sampling timer"))?;
        let thread = Thread::current();
        let mut pcpu = Pcpu::new(cpu, Some(thread), slice, self.core.injector(runner), observer);
        // Before the mutex, under which `interrupt` finds it, or this runner finds that it is to stop.
        _ = self.core.bell.0[&cpu].set(std::thread::current());
        lock(&self.threads).push(thread);
        sandbox::confine_runner()?;
        let mut next = None;
        while let Some(mut task) = next.take().or_else(|| self.next_ready(cpu)) {
            task.last_pcpu = Some(cpu);
            next = self.give_turn(task, &mut pcpu);
        }
        if let Err(lost) = cpus::check_pinned(&[cpu]) {
            self.core.guests.iter().for_each(|guest| _ = guest.pinning_lost.set(lost.clone()));
        }
        let stat = run_delay::of_this_thread();
        self.core.guests.iter().for_each(|guest| guest.run_delays.add(born, stat));
        Ok(())
    }

    /// The vCPU whose turn it is; sleeps while none is ready. `None`: the run is over.
    fn next_ready(&self, pcpu: u32) -> Option<Box<Task<'a>>> {
        loop {
            self.look_at_dozing(pcpu);
            match self.core.next(pcpu) {
                Next::Runs(task) => return Some(task),
                Next::Ends => return None,
                Next::Idles(until_ns) => {
                    match until_ns {
                        Some(at_ns) => {
                            std::thread::park_timeout(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
                        }
                        None => std::thread::park(),
                    }
                    self.core.idle.leave(pcpu);
                }
            }
        }
    }

    /// Looks once at each vCPU that is halted in KVM's hands and due: those that something has come for are ready. Whether there may
    /// be such vCPUs.
    fn look_at_dozing(&self, pcpu: u32) -> bool {
        if !self.core.guests.iter().any(|guest| guest.halts_in_kernel) {
            return false;
        }
        // Fixed, since those that go on dozing are due again soon.
        let began_ns = now_ns();
        loop {
            let nothing_else = self.core.queues.len() == 0;
            let dozing = lock(&self.core.apart).take_dozing(began_ns, pcpu, nothing_else);
            let Some(mut task) = dozing else { return true };
            let start_ns = now_ns();
            let woken = task.vcpu.has_woken();
            let end_ns = now_ns();
            self.core.look_cost.note(end_ns - start_ns);
            match woken {
                Ok(true) => self.core.make_ready(task),
                Ok(false) => lock(&self.core.apart).doze(end_ns, self.core.first_look_ns(), task),
                Err(source) => {
                    task.guest.fail(task.guest.cannot_run(&task.vcpu, source));
                    lock(&self.core.apart).left.push(task);
                }
            }
        }
    }

    /// Runs `task` until its turn ends, then puts it where it belongs. The vCPU to run next, if that is known already.
    fn give_turn(&self, task: Box<Task<'a>>, pcpu: &mut Pcpu<'a>) -> Option<Box<Task<'a>>> {
        let began_ns = now_ns();
        let mut task = self.core.admits(task, pcpu, began_ns)?;
        self.core.begin_turn(&mut task, pcpu, began_ns, began_ns);
        let (turn, ended_ns) = self.run_turn(&mut task, pcpu);
        self.core.end_turn(task, pcpu, turn, (began_ns, ended_ns))
    }

    /// The run loop of a vCPU's turn: how it ended, and when.
    fn run_turn(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a>) -> (Turn<'a>, u64) {
        let guest = task.guest;
        loop {
            if guest.stopping() {
                return (Turn::Stopped, now_ns());
            }
            pcpu.observer.enters(now_ns);
            let ended = match guest.enter(&mut task.vcpu) {
                Ok(Exit::Interrupted) => {
                    let (ended, at_ns) = self.interrupted(task, pcpu);
                    if let Some(turn) = ended {
                        return (turn, at_ns);
                    }
                    continue;
                }
                Ok(exit) => self.core.exited(task, pcpu, exit),
                Err(source) => {
                    guest.fail(guest.cannot_run(&task.vcpu, source));
                    Some(Turn::Left)
                }
            };
            if let Some(turn) = ended {
                return (turn, now_ns());
            }
        }
    }

    /// A signal got the vCPU out: the slice timer's, a look's, the experiment's, or that of the run's end. `Some` if its turn is
    /// over; and when that was.
    fn interrupted(&self, task: &mut Task<'a>, pcpu: &mut Pcpu<'a>) -> (Option<Turn<'a>>, u64) {
        let guest = task.guest;
        // Taken before the clock is read: if this was the timer's kick, the clock says so; if it was the one that ends the run,
        // the flag does, which was set before it.
        signal::take_kick();
        let mut now = now_ns();
        pcpu.observer.interrupted(&task.vcpu, now, || guest.sampled(task.vcpu.id, now));
        if guest.halts_in_kernel && task.vcpu.is_halted() {
            return (Some(Turn::Halts), now);
        }
        if pcpu.slice.deadline_ns() <= now && self.look_at_dozing(pcpu.number) {
            // The clock anew: a look takes what is pending, and that may have been the timer's kick.
            now = now_ns();
        }
        (self.core.rang(task, pcpu, now), now)
    }
}
