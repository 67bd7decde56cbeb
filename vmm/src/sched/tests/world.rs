//! pCPUs in made-up time, the scheduler, and vCPUs that behave as they are told: when they come back to it, what for, and what they
//! write before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use haltkick_fuzzing::Script;

use crate::guest::Activity;
use crate::guest::memory::{LARGE_PAGE, Memory};
use crate::host::clock::{Moment, VirtualTime};
use crate::machine::vcpu::{Exit, Vcpu};
use crate::observe::notes::{Notes, Observer};
use crate::sched::Rules;
use crate::sched::core::{Bell, Core, Next, Queues, Turn};
use crate::sched::guest_run::GuestRun;
use crate::sched::idle::PcpuSet;
use crate::sched::pcpu::Pcpu;
use crate::sched::slice::{Rings, SliceTimer};
use crate::sched::task::Task;

use super::LOCKS;

pub(super) const SLICE_NS: u64 = 1_000_000;
/// The number of the guest that means no harm.
pub(super) const HONEST: usize = 0;

#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    /// With slices of [`SLICE_NS`].
    pub(super) rules: Rules,
    pub(super) pcpus: usize,
    pub(super) queues: Queues,
    /// How many guests mean harm.
    pub(super) hostile: usize,
    /// vCPUs of each guest.
    pub(super) vcpus: u32,
    pub(super) attack: Attack,
}

/// The behaviour of hostile vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "the fuzzer takes scripts alone"))]
pub(super) enum Attack {
    /// Whatever the script says.
    Anything,
    /// The first yields to the second as soon as it runs, and that runs as long as it may.
    FeedOne,
    /// All yield to each other in turn, each after a moment.
    PassAround,
    /// The first kicks the second awake as soon as it runs; that runs as long as it may but for a moment, then sleeps.
    KickOne,
    /// All say forever that they hold a lock and have not started.
    Lie,
    /// All but the last yield to the second as soon as they run, which runs as long as it may, and so does the last.
    WaitForOne,
    /// Every other one kicks its neighbour awake again and again, which runs for a moment, then sleeps.
    WakeEachOther,
    /// All but the last yield to each other in turn, each after a moment. The last runs as long as it may.
    PassAroundOne,
}

thread_local! {
    static KEPT: RefCell<BTreeMap<u32, Vec<&'static Memory>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Memories of `count` guests with `vcpus` vCPUs each and empty shared state, kept for the next execution: to map them and to fault
/// them in takes longer than to play.
pub(super) fn memories(vcpus: u32, count: usize) -> Vec<&'static Memory> {
    KEPT.with_borrow_mut(|kept| {
        let all = kept.entry(vcpus).or_default();
        while all.len() < count {
            all.push(Box::leak(Box::new(Memory::new(LARGE_PAGE * 3, vcpus, 0, 0).expect("a few pages"))));
        }
        all[..count].iter().for_each(|memory| memory.clear_shared(LOCKS));
        all[..count].to_vec()
    })
}

/// The pCPUs that were rung for, until they look.
struct Rung {
    some: PcpuSet,
    all: Cell<bool>,
}

impl Bell for Rung {
    fn ring(&self, pcpu: u32) {
        self.some.insert(pcpu);
    }

    fn ring_all(&self) {
        self.all.set(true);
    }
}

enum Doing<'a> {
    /// No vCPU; whether it is counted as idle.
    Idle {
        counted: bool,
    },
    /// It runs this one, which comes back for this reason if the timer does not ring before.
    Runs {
        task: Box<Task<'a>>,
        began_ns: u64,
        exit: Option<Exit>,
    },
    Ended,
}

struct Slot<'a> {
    pcpu: Pcpu<'a>,
    rings: Rings,
    doing: Doing<'a>,
    /// When something happens here next.
    at_ns: u64,
}

pub(super) struct World<'a, 's> {
    setting: Setting,
    core: Core<'a, Rung>,
    clock: &'a VirtualTime,
    script: Script<'s>,
    slots: Vec<Slot<'a>>,
    /// CPU time of each vCPU of each guest in turns that have ended.
    ran_ns: Vec<Vec<u64>>,
    now_ns: u64,
}

#[derive(Debug)]
pub(super) struct WorldEnd {
    /// CPU time of each vCPU of each guest.
    pub(super) each_ns: Vec<Vec<u64>>,
    pub(super) length_ns: u64,
    pub(super) handed: u64,
}

impl<'a, 's> World<'a, 's> {
    pub(super) fn new(
        setting: Setting,
        guests: &'a [GuestRun<'a>],
        clock: &'a VirtualTime,
        notes: &'a Notes,
        script: Script<'s>,
    ) -> Self {
        // The driver says what they come back with.
        let vcpu = |id| Vcpu::new(id, || Ok(Exit::Interrupted));
        let vcpus = guests.iter().map(|guest| (0..guest.vcpus).map(vcpu).collect()).collect();
        let pcpus: Vec<_> = (0..setting.pcpus as u32).collect();
        let bell = Rung { some: PcpuSet::new(setting.pcpus as u32), all: Cell::new(false) };
        let core = Core::new(setting.rules, (&pcpus, setting.queues), guests, vcpus, None, bell);
        let slots = (0..setting.pcpus as u32).map(|number| {
            // It is set as seldom as a real one.
            let (slice, rings) = SliceTimer::simulated(SLICE_NS, true);
            let observer = Observer::new(notes, number).expect("there is nothing to observe");
            let pcpu = Pcpu::new(number, None, slice, None, observer);
            Slot { pcpu, rings, doing: Doing::Idle { counted: false }, at_ns: 1 }
        });
        let slots = slots.collect();
        let ran_ns = vec![vec![0; setting.vcpus as usize]; guests.len()];
        Self { setting, core, clock, script, slots, ran_ns, now_ns: 1 }
    }

    pub(super) fn run(&mut self, length_ns: u64) {
        while self.now_ns < length_ns && !self.is_over() {
            self.step();
            for guest in self.core.guests.iter().filter(|guest| guest.failed() && !guest.stopping()) {
                guest.stop();
            }
        }
        self.core.guests.iter().for_each(GuestRun::stop);
        // All pCPUs are kicked; those that run a vCPU come back at once.
        self.slots.iter_mut().for_each(|slot| slot.at_ns = self.now_ns);
        for _ in 0..4 * self.slots.len() {
            if self.slots.iter().any(|slot| !matches!(slot.doing, Doing::Ended)) {
                self.step();
            }
        }
    }

    fn step(&mut self) {
        let all = self.core.bell.all.take();
        for slot in &mut self.slots {
            let is_idle = matches!(slot.doing, Doing::Idle { .. });
            if is_idle && (self.core.bell.some.remove(slot.pcpu.number) || all) {
                slot.at_ns = slot.at_ns.min(self.now_ns);
            }
        }
        let next = (0..self.slots.len()).min_by_key(|&slot| self.slots[slot].at_ns).expect("there are some");
        self.now_ns = self.now_ns.max(self.slots[next].at_ns);
        self.clock.set(Moment { ns: self.now_ns, tsc: self.now_ns });
        match std::mem::replace(&mut self.slots[next].doing, Doing::Ended) {
            Doing::Idle { counted } => self.look(next, counted),
            Doing::Runs { task, began_ns, exit } => self.comes_back(next, task, began_ns, exit),
            Doing::Ended => self.slots[next].at_ns = u64::MAX,
        }
    }

    /// An idle pCPU looks what there is to do.
    fn look(&mut self, slot: usize, counted: bool) {
        if counted {
            self.core.idle.leave(slot as u32);
        }
        let (task, at_ns) = match self.core.next(slot as u32) {
            Next::Runs(task) => (Some(task), self.now_ns),
            Next::Ends => (None, u64::MAX),
            Next::Idles(until_ns) => {
                self.slots[slot].doing = Doing::Idle { counted: true };
                // A change that the bell does not tell is found a slice later.
                (None, until_ns.unwrap_or(u64::MAX).clamp(self.now_ns + 1, self.now_ns + SLICE_NS))
            }
        };
        self.slots[slot].at_ns = at_ns;
        if let Some(task) = task {
            self.begin(slot, task);
        }
    }

    fn begin(&mut self, slot: usize, mut task: Box<Task<'a>>) {
        task.last_pcpu = Some(slot as u32);
        self.core.begin_turn(&mut task, &mut self.slots[slot].pcpu, self.now_ns, self.now_ns);
        self.goes_on(slot, task, self.now_ns);
    }

    /// The vCPU runs until it comes back by itself, or the timer rings.
    fn goes_on(&mut self, slot: usize, task: Box<Task<'a>>, began_ns: u64) {
        let (after_ns, exit) = self.next(&task, self.now_ns - began_ns);
        let (rings_at, exits_at) = (self.slots[slot].rings.next_ns(), self.now_ns.saturating_add(after_ns));
        let exit = (exits_at < rings_at).then_some(exit);
        self.slots[slot].at_ns = rings_at.min(exits_at).max(self.now_ns);
        self.slots[slot].doing = Doing::Runs { task, began_ns, exit };
    }

    fn comes_back(&mut self, slot: usize, mut task: Box<Task<'a>>, began_ns: u64, exit: Option<Exit>) {
        let (now_ns, here) = (self.now_ns, &mut self.slots[slot]);
        let turn = if task.guest.stopping() {
            Some(Turn::Stopped)
        } else if let Some(exit) = exit {
            self.core.exited(&mut task, &mut here.pcpu, exit)
        } else {
            here.rings.rang(now_ns);
            self.core.rang(&mut task, &mut here.pcpu, now_ns)
        };
        let Some(turn) = turn else { return self.goes_on(slot, task, began_ns) };
        self.ran_ns[task.guest.index][task.vcpu.id as usize] += now_ns - began_ns;
        match self.core.end_turn(task, &mut self.slots[slot].pcpu, turn, (began_ns, now_ns)) {
            Some(next) => self.begin(slot, next),
            None => {
                self.slots[slot].doing = Doing::Idle { counted: false };
                self.slots[slot].at_ns = now_ns;
            }
        }
    }

    /// Whether nothing new will happen: all vCPUs do as a script says, and that is at its end.
    fn is_over(&self) -> bool {
        self.setting.attack == Attack::Anything && self.script.is_over()
    }

    /// After how long a vCPU whose turn has lasted `ran_ns` comes back by itself, and what for.
    fn next(&mut self, task: &Task<'_>, ran_ns: u64) -> (u64, Exit) {
        const NEVER: (u64, Exit) = (u64::MAX, Exit::Interrupted);
        const MOMENT_NS: u64 = 100_000;
        let (id, vcpus) = (task.vcpu.id, self.setting.vcpus);
        let has_begun = task.guest.shared.as_ref().is_none_or(|shared| {
            let started = &shared.memory.control().started;
            // Relaxed: one thread.
            started.load(Relaxed) >= vcpus
        });
        if task.guest.index == HONEST || self.setting.attack != Attack::Anything {
            let lies = task.guest.index != HONEST && self.setting.attack == Attack::Lie;
            if id == 0 && !has_begun && !(lies && task.guest.checked_activity(0) == Activity::Holder) {
                return (MOMENT_NS / 2, self.boots(task, lies));
            }
        }
        if task.guest.index == HONEST {
            return NEVER;
        }
        match self.setting.attack {
            Attack::Anything => self.anything(task),
            Attack::FeedOne if id == 0 => (MOMENT_NS, Exit::Yield(Some(1))),
            Attack::PassAround => (MOMENT_NS, Exit::Yield(Some((id + 1) % vcpus))),
            Attack::KickOne if id == 0 => (MOMENT_NS, Exit::Kick(1)),
            Attack::KickOne if id == 1 => (SLICE_NS.saturating_sub(ran_ns + 1), Exit::Wait),
            Attack::WakeEachOther if id % 2 == 0 => (3 * MOMENT_NS, Exit::Kick(id + 1)),
            Attack::WakeEachOther => (2 * MOMENT_NS, Exit::Wait),
            Attack::WaitForOne if id != 1 && id + 1 < vcpus => (MOMENT_NS / 100, Exit::Yield(Some(1))),
            Attack::PassAroundOne if id + 1 < vcpus => {
                (MOMENT_NS / 100, Exit::Yield(Some((id + 1) % (vcpus - 1))))
            }
            Attack::FeedOne | Attack::KickOne | Attack::Lie | Attack::WaitForOne | Attack::PassAroundOne => {
                NEVER
            }
        }
    }

    /// The first vCPU boots its guest, and says for all of them that they have begun; one that lies says otherwise.
    fn boots(&mut self, task: &Task<'_>, lies: bool) -> Exit {
        let shared = task.guest.shared.as_ref().expect("all share");
        for vcpu in 0..self.setting.vcpus {
            let state =
                if lies { haltkick_hypercalls::ACTIVITY_HOLDER } else { haltkick_hypercalls::ACTIVITY_OTHER };
            shared.area(vcpu).activity.state.store(state, Relaxed);
        }
        if !lies {
            shared.memory.control().started.store(self.setting.vcpus, Relaxed);
        }
        Exit::Booted
    }

    fn anything(&mut self, task: &Task<'_>) -> (u64, Exit) {
        let shared = task.guest.shared.as_ref().expect("all share");
        let script = &mut self.script;
        for _ in 0..script.byte() % 4 {
            let structure = ["control", "vcpu", "vcpu", "oracle"][usize::from(script.byte() % 4)];
            let (index, offset, value) =
                (script.number() as u32, u64::from(script.byte()) * 8, script.number());
            shared.memory.deposit(structure, index, offset, value);
        }
        let after_ns = match script.byte() {
            short @ 0..128 => u64::from(short) * 100,
            long => u64::from(long - 127) * 20_000,
        };
        let exit = match script.byte() % 32 {
            0..8 => Exit::Yield(Some(script.number() as u32)),
            8..10 => Exit::Yield(None),
            10..17 => Exit::Kick(script.number() as u32),
            17..20 => Exit::Wait,
            20 => Exit::Booted,
            21 => Exit::Point(script.number() as u32),
            22 => Exit::Invalidate,
            23 => Exit::WorkDone,
            24 => Exit::Console(script.byte()),
            25 => Exit::Device,
            27 => Exit::Started,
            // Seldom: the guest is over then.
            26 => match script.number() {
                0 => Exit::Panic,
                1 => Exit::Exception,
                2 => Exit::Left,
                3 => Exit::Halt,
                4 => Exit::Shutdown,
                5 => Exit::Unexpected { reason: script.number() as u32, detail: script.number() },
                _ => Exit::Interrupted,
            },
            _ => Exit::Interrupted,
        };
        (after_ns, exit)
    }

    /// Sees that everybody is there, once.
    pub(super) fn end(self) -> WorldEnd {
        let Self { core, slots, ran_ns, now_ns, setting, .. } = self;
        assert!(slots.iter().all(|slot| matches!(slot.doing, Doing::Ended)), "a pCPU goes on after the run");
        drop(slots);
        let guests = core.guests.len();
        let finished = core.finish();
        let found: Vec<_> = finished.iter().map(|vcpu| (vcpu.guest, vcpu.vcpu.id)).collect();
        let all = (0..guests).flat_map(|guest| (0..setting.vcpus).map(move |id| (guest, id)));
        assert_eq!(found, all.collect::<Vec<_>>(), "every vCPU once");
        let handed = finished.iter().map(|vcpu| vcpu.account.turns.handed).sum();
        WorldEnd { each_ns: ran_ns, length_ns: now_ns, handed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::clock::Clock;
    use crate::sched::tests::Ground;

    #[test]
    fn a_kick_wakes_the_pcpu_that_the_vcpu_ran_on() {
        let (ground, clock) = (Ground::new(Clock::Host), VirtualTime::default());
        let guests = [ground.guest(2)];
        let (rules, queues, attack) = (Rules::default(), Queues::PerPcpu, Attack::Anything);
        let setting = Setting { rules, pcpus: 4, queues, hostile: 0, vcpus: 2, attack };
        let world = World::new(setting, &guests, &clock, &ground.notes, Script::new(&[]));
        let World { core, mut slots, .. } = world;
        let mut begins = |number: u32| {
            let Next::Runs(mut task) = core.next(number) else { panic!("both are ready") };
            task.last_pcpu = Some(number);
            core.begin_turn(&mut task, &mut slots[number as usize].pcpu, 1, 1);
            task
        };
        let (mut kicker, sleeper) = (begins(0), begins(2));
        let slept = core.end_turn(sleeper, &mut slots[2].pcpu, Turn::Waits, (1, 2));
        assert!(slept.is_none());
        for idle in [1, 2, 3] {
            assert!(matches!(core.next(idle), Next::Idles(..)), "pCPU {idle} has nothing to run");
        }
        assert!(core.exited(&mut kicker, &mut slots[0].pcpu, Exit::Kick(1)).is_none());
        assert_eq!(core.bell.some.iter().collect::<Vec<_>>(), [2]);
        let Next::Runs(woken) = core.next(2) else { panic!("the vCPU is ready") };
        assert_eq!(woken.number(), 1);
    }
}
