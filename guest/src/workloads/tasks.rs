//! Tasks on vCPUs that the guest prefers: sections as in `critical-section`, by tasks that take turns of a millisecond.
//!
//! A guest that loses much of its CPU time may fold (`--fold`): it prefers fewer vCPUs. One that is no longer preferred gives each
//! task to a preferred one at the end of the task's turn, and sleeps when it has none; one that is preferred again pulls tasks. A
//! task takes locks on the vCPU that it began its turn on, and never sleeps.
#![expect(unsafe_code, reason = "the state of a task, which belongs to the vCPU that runs it")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use haltkick_hypercalls::{MAX_VCPUS, WINDOW_CLOSED};
use haltkick_locks::CachePadded;

use crate::cpu::percpu::{add, area, boot, control, cpu, this};
use crate::cpu::time::{now, on_cpu, ticks};
use crate::image::hot;
use crate::lock::measure::{is_open, is_over};
use crate::lock::registry::workload;
use crate::monitor::hypercall;
use crate::observe::events::WorkloadEvent;
use crate::observe::times::record_between;
use crate::work::choice::Choices;
use crate::work::folding::{Governor, Law, Queues};
use crate::workloads::critical_section::Rounds;

workload! {
    "011" "tasks", "critical-section by tasks (--tasks) that take turns on vCPUs, on fewer if the guest folds (--fold)",
        [NOTES_SECTIONS NOTES_WAITS IDEAL_IS_SERIAL IS_SHAPED CAN_EMBED HAS_TASKS],
        ["wait", "hold", "unlock", "read-wait", "read-hold", "queued"] => run;
}

/// Slot of the results' times: from the end of a task's turn to the beginning of its next one.
const QUEUED: usize = 5;

const TASKS: usize = MAX_VCPUS;

/// Time of a turn, on a pCPU.
const TURN_NS: u64 = 1_000_000;

struct Task(CachePadded<UnsafeCell<Begun>>);

/// A task's state, once it has begun. The tag is a byte of its own, so a task that has not begun is all zeros, which take no room in the
/// image's file.
#[repr(u8)]
enum Begun {
    Not = 0,
    With(State) = 1,
}

struct State {
    choices: Choices,
    /// TSC at the end of its last turn.
    put_at: u64,
}

// SAFETY: the vCPU alone that has taken the task from its queue reads and writes it.
unsafe impl Sync for Task {}

static STATES: [Task; TASKS] = [const { Task(CachePadded::new(UnsafeCell::new(Begun::Not))) }; TASKS];

/// Not 0: the vCPU sleeps, or is about to.
static ASLEEP: [CachePadded<AtomicU32>; MAX_VCPUS] =
    [const { CachePadded::new(AtomicU32::new(0)) }; MAX_VCPUS];

hot! {
    static QUEUES: Queues<TASKS, MAX_VCPUS> = Queues::new();
    /// How many vCPUs are preferred, the lowest ones. Written by vCPU 0.
    static PREFERRED: AtomicU32 = AtomicU32::new(0);
}

/// vCPU 0, before any other vCPU runs.
pub(crate) fn prepare() {
    QUEUES.spread(boot().tasks as usize, boot().vcpus as usize);
    // Relaxed: the hypercall that starts the other vCPUs comes later.
    PREFERRED.store(boot().preferred_vcpus, Ordering::Relaxed);
}

fn run() {
    let (me, rounds) = (cpu(), Rounds::of_this_vcpu());
    let mut governing = (me == 0 && boot().fold_interval_ticks > 0).then(Governing::new);
    let mut last = me;
    while !is_over() {
        if let Some(governing) = &mut governing {
            governing.look();
        }
        match QUEUES.take(boot().tasks as usize, me, last) {
            Some(task) => {
                turn(task, &rounds);
                last = task;
                hand_on(task, me);
            }
            None => rest(me),
        }
    }
    // vCPU 0 always has a task, and so is awake.
    if me == 0 {
        (0..boot().vcpus as usize).for_each(wake);
    }
}

/// Runs `task`, which the calling vCPU has taken, for a turn.
fn turn(task: usize, rounds: &Rounds) {
    // SAFETY: this vCPU has taken the task, so no other one touches its state until it is put back.
    let begun = unsafe { &mut *STATES[task].0.get() };
    if let Begun::Not = begun {
        *begun = Begun::With(State { choices: Choices::of(task).begun(), put_at: 0 });
    }
    let Begun::With(state) = begun else { return };
    if state.put_at != 0 && is_open() {
        record_between(QUEUED, state.put_at, now().max(state.put_at));
    }
    let (began, length) = (ran(), ticks(TURN_NS));
    while rounds.round(&mut state.choices) && ran().wrapping_sub(began) < length {}
    state.put_at = now();
}

/// Ticks of a clock that stands still while this vCPU is off its pCPU, as far as it is told.
fn ran() -> u64 {
    let this = this();
    // Relaxed: written before this vCPU got its pCPU. Where the VMM does not count time off, KVM counts stolen time.
    let counted = this.host.off_ticks.load(Ordering::Relaxed) != 0;
    let stolen = if counted { 0 } else { ticks(this.steal.steal_ns.load(Ordering::Relaxed)) };
    on_cpu().wrapping_sub(stolen)
}

/// Puts `task` back, on the calling vCPU `me` or, if that is not preferred, on the preferred one with the fewest tasks. Pulls one
/// if another preferred vCPU has two more.
fn hand_on(task: usize, me: usize) {
    let preferred = PREFERRED.load(Ordering::Relaxed) as usize;
    if me >= preferred {
        let to = QUEUES.shortest(preferred);
        QUEUES.put(task, (me, to));
        note(WorkloadEvent::TaskPushed, 1);
        wake(to);
        return;
    }
    QUEUES.put(task, (me, me));
    pull(me, preferred);
}

fn pull(me: usize, preferred: usize) {
    if let Some(from) = QUEUES.longer(preferred, me)
        && QUEUES.pull(boot().tasks as usize, (from, me))
    {
        note(WorkloadEvent::TaskPulled, 1);
    }
}

/// The calling vCPU has no task: pulls one, or sleeps until there is one.
fn rest(me: usize) {
    let preferred = || PREFERRED.load(Ordering::SeqCst) as usize;
    if me < preferred() {
        pull(me, preferred());
    }
    // SeqCst, with the looks behind it: one who gives it work, or prefers it, does so before looking here. Partner: `wake`.
    ASLEEP[me].store(1, Ordering::SeqCst);
    let has_work = QUEUES.length(me) > 0 || me < preferred() && QUEUES.longer(preferred(), me).is_some();
    if !has_work && control().window.load(Ordering::SeqCst) != WINDOW_CLOSED {
        // The kick is latched if it comes first.
        hypercall::wait();
    }
    // Relaxed: a kick too many is latched, and costs a look.
    ASLEEP[me].store(0, Ordering::Relaxed);
}

fn wake(to: usize) {
    // SeqCst, after that which it is to see. Partner: `rest`.
    if ASLEEP[to].load(Ordering::SeqCst) != 0 {
        hypercall::kick(to as u32);
    }
}

/// The governor, on vCPU 0, which looks between two turns.
struct Governing {
    governor: Governor,
    next: u64,
}

impl Governing {
    fn new() -> Self {
        let law = Law { low: boot().fold_low, high: boot().fold_high };
        let now = now();
        Self { governor: Governor::new(law, stolen_ns(), ns(now)), next: now + boot().fold_interval_ticks }
    }

    /// Takes a sample if it is time for one. Late is allowed, and nothing is caught up.
    fn look(&mut self) {
        let now = now();
        if now < self.next {
            return;
        }
        self.next = now + boot().fold_interval_ticks;
        let (was, active) = (PREFERRED.load(Ordering::Relaxed), boot().vcpus);
        let is = self.governor.sample(stolen_ns(), ns(now), was, active);
        // SeqCst: before the look whether the vCPU sleeps. Partner: `rest`.
        PREFERRED.store(is, Ordering::SeqCst);
        note(WorkloadEvent::FoldSamples, 1);
        note(WorkloadEvent::FoldPreferred, u64::from(was));
        if is < was {
            note(WorkloadEvent::Folds, 1);
        }
        if is > was {
            note(WorkloadEvent::Unfolds, 1);
            wake(was as usize);
        }
    }
}

/// Time stolen from all vCPUs, as they are told: a vCPU's time off its pCPU is told when it is over.
fn stolen_ns() -> u64 {
    // Relaxed: a figure that is late by a turn is late by a sample.
    (0..boot().vcpus as usize).map(|cpu| area(cpu).steal.steal_ns.load(Ordering::Relaxed)).sum()
}

fn ns(ticks: u64) -> u64 {
    (u128::from(ticks) * 1_000_000 / u128::from(boot().tsc_khz)) as u64
}

fn note(what: WorkloadEvent, n: u64) {
    if is_open() {
        add(&this().results.lock_events[what.slot()], n);
    }
}
