//! Guests that mean harm, made up, under the scheduler of `--sched vmm`, in made-up time: their vCPUs come back whenever and for
//! whatever reason they like, and write what they like into what they share with the VMM. One guest is honest: its vCPUs
//! compute, and nothing else.
//!
//! Whatever the others do, the honest guest gets its share, no vCPU is lost or in two places, and the run ends.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use crate::guest::memory::{LARGE_PAGE, Memory};
use crate::guest::tsc::GuestTsc;
use crate::host::clock::{Clock, Moment, SimulatedClock};
use crate::host::locks::lock;
use crate::host::time::TscRate;
use crate::image::file::Image;
use crate::machine::exits::Exit;
use crate::machine::vcpu::{MadeUpVcpu, Vcpu};
use crate::observe::notes::Notes;
use crate::observe::observer::Observer;
use crate::sched::core::{Bell, Core, Next, Turn};
use crate::sched::guest_run::GuestRun;
use crate::sched::hints::Watcher;
use crate::sched::pcpu::Pcpu;
use crate::sched::queue::Task;
use crate::sched::shared::Shared;
use crate::sched::slice::{SliceTimer, Timer};
use crate::sched::{Rules, Sched, Share};

const SLICE_NS: u64 = 1_000_000;
const HONEST: usize = 0;
/// A run whose script nobody goes on reading ends then.
const LONGEST_NS: u64 = 300 * SLICE_NS;

/// What the guests are like, and the scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) share: Share,
    pub(crate) pcpus: usize,
    /// How many guests mean harm.
    pub(crate) hostile: usize,
    /// vCPUs of each guest.
    pub(crate) vcpus: u32,
    pub(crate) grace: bool,
    pub(crate) kick_yields: bool,
    /// What hostile vCPUs do.
    pub(crate) attack: Attack,
}

/// What hostile vCPUs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// Whatever the script says.
    Anything,
    /// The first yields to the second as soon as it runs, and that runs as long as it may.
    FeedOne,
    /// All yield to each other in turn, each after a moment.
    PassAround,
    /// The first kicks the second awake as soon as it runs; that runs as long as it may but for a moment, then sleeps.
    KickOne,
    /// All say that they hold a lock and have not started, for ever.
    Lie,
    /// All but the last yield to the second as soon as they run, which runs as long as it may, and so does the last.
    WaitForOne,
    /// All but the last yield to each other in turn, each after a moment. The last runs as long as it may.
    PassAroundOne,
}

/// Numbers out of bytes, as long as there are any.
pub(crate) struct Script<'s>(&'s [u8]);

impl<'s> Script<'s> {
    pub(crate) fn new(bytes: &'s [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Any number; small ones often.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::from_le_bytes([0; 8].map(|_: u8| self.byte())),
            253 => u64::from(self.byte()) << 56,
            252 => u64::from(self.byte()) << 20,
            small => u64::from(small),
        }
    }
}

/// Whoever is idle looks for himself.
struct Noticed(Cell<bool>);

impl Bell for Noticed {
    fn ring_one(&self) {
        self.0.set(true);
    }

    fn ring_all(&self) {
        self.0.set(true);
    }
}

/// When a pCPU's timer rings next, and how often after that.
#[derive(Clone, Default)]
struct Alarm(Rc<Cell<(u64, u64)>>);

impl Timer for Alarm {
    fn set(&self, at_ns: u64, interval_ns: u64) {
        self.0.set((at_ns, interval_ns));
    }
}

impl Alarm {
    fn rings_at(&self) -> u64 {
        self.0.get().0
    }

    fn has_rung(&self, now_ns: u64) {
        let (mut at_ns, interval_ns) = self.0.get();
        while at_ns <= now_ns {
            at_ns += interval_ns.max(1);
        }
        self.0.set((at_ns, interval_ns));
    }
}

/// What a pCPU does.
enum Doing<'a> {
    /// Nothing; whether it is counted as idle.
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
    pcpu: Pcpu<'a, Alarm>,
    alarm: Alarm,
    doing: Doing<'a>,
    /// When something happens here next.
    at_ns: u64,
}

struct World<'a, 's> {
    setting: Setting,
    core: Core<'a, Noticed>,
    clock: &'a SimulatedClock,
    guests: &'a [GuestRun<'a>],
    script: Script<'s>,
    slots: Vec<Slot<'a>>,
    /// CPU time of each vCPU of each guest in turns that have ended.
    ran_ns: Vec<Vec<u64>>,
    now_ns: u64,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Shares {
    /// CPU time of each guest.
    pub(crate) ran_ns: Vec<u64>,
    /// CPU time of each vCPU of each guest.
    pub(crate) each_ns: Vec<Vec<u64>>,
    pub(crate) length_ns: u64,
    /// Hand-overs.
    pub(crate) handed: u64,
}

fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(Image::embedded)
}

/// Lets the guests of `setting` do as `script` says, for `length_ns` at most.
///
/// # Panics
/// If the scheduler loses a vCPU, has one twice, or does not end.
pub(crate) fn play(setting: Setting, script: &[u8], length_ns: u64) -> Shares {
    let clock = Clock::Simulated(SimulatedClock::default());
    let Clock::Simulated(simulated) = &clock else { unreachable!("just made") };
    simulated.set(Moment { ns: 1, tsc: 1 });
    let (notes, watcher) = (Notes::none(), Watcher::nothing("made up".into()));
    let count = setting.hostile + 1;
    let memories: Vec<_> =
        (0..count).map(|_| Memory::new(LARGE_PAGE * 3, setting.vcpus, 0, 0).expect("a few pages")).collect();
    let guests: Vec<_> = memories
        .iter()
        .enumerate()
        .map(|(index, memory)| {
            let tsc = GuestTsc::new(TscRate::of_khz(1_000_000), 0);
            let shared = Shared::new(memory, image(), 1, &tsc, (true, true));
            let mut guest = GuestRun::new(setting.vcpus, tsc, &clock, &watcher, &notes);
            guest.shared = Some(shared);
            (guest.index, guest.first_vcpu) = (index, index as u32 * setting.vcpus);
            guest.window.open(1);
            guest
        })
        .collect();
    let mut world = World::new(setting, &guests, simulated, &notes, Script::new(script));
    world.run(length_ns);
    world.end()
}

impl<'a, 's> World<'a, 's> {
    fn new(
        setting: Setting,
        guests: &'a [GuestRun<'a>],
        clock: &'a SimulatedClock,
        notes: &'a Notes,
        script: Script<'s>,
    ) -> Self {
        let rules = Rules {
            sched: Sched::Vmm,
            share: setting.share,
            pcpus: setting.pcpus,
            slice: Duration::from_nanos(SLICE_NS),
            grace: Duration::from_nanos(if setting.grace { SLICE_NS / 2 } else { 0 }),
            kick_yields: setting.kick_yields,
        };
        // The driver says what they come back with.
        let vcpu = |id| Vcpu::from(MadeUpVcpu::new(id, || Ok(Exit::Interrupted)));
        let vcpus = guests.iter().map(|guest| (0..guest.vcpus).map(vcpu).collect()).collect();
        let core = Core::new(rules, guests, vcpus, None, Noticed(Cell::new(false)));
        let slots = (0..setting.pcpus as u32).map(|number| {
            let alarm = Alarm::default();
            let observer = Observer::new(notes, number).expect("there is nothing to observe");
            let pcpu = Pcpu::new(number, SliceTimer::new(alarm.clone(), SLICE_NS), None, observer);
            Slot { pcpu, alarm, doing: Doing::Idle { counted: false }, at_ns: 1 }
        });
        let slots = slots.collect();
        Self {
            setting,
            core,
            clock,
            guests,
            script,
            slots,
            ran_ns: vec![vec![0; setting.vcpus as usize]; guests.len()],
            now_ns: 1,
        }
    }

    fn run(&mut self, length_ns: u64) {
        while self.now_ns < length_ns && !self.script_is_over() {
            self.step();
            for guest in self.guests.iter().filter(|guest| guest.failed() && !guest.stopping()) {
                guest.stop();
            }
        }
        self.guests.iter().for_each(GuestRun::stop);
        // Everybody is kicked; whoever runs comes back at once.
        self.slots.iter_mut().for_each(|slot| slot.at_ns = self.now_ns);
        for _ in 0..4 * self.slots.len() {
            if self.slots.iter().any(|slot| !matches!(slot.doing, Doing::Ended)) {
                self.step();
            }
        }
    }

    fn script_is_over(&self) -> bool {
        self.setting.attack == Attack::Anything && self.script.is_over()
    }

    /// Lets happen what happens next.
    fn step(&mut self) {
        if self.core.bell.0.take() {
            let idle = self.slots.iter_mut().filter(|slot| matches!(slot.doing, Doing::Idle { .. }));
            idle.for_each(|slot| slot.at_ns = slot.at_ns.min(self.now_ns));
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
            lock(&self.core.queue).idle_runners -= 1;
        }
        let (task, at_ns) = match self.core.next(slot as u32) {
            Next::Runs(task) => (Some(task), self.now_ns),
            Next::Ends => (None, u64::MAX),
            Next::Idles(_, until_ns) => {
                self.slots[slot].doing = Doing::Idle { counted: true };
                // What the bell does not tell is found out a slice later.
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
        self.core.begin_turn(&mut task, &mut self.slots[slot].pcpu, self.now_ns);
        self.goes_on(slot, task, self.now_ns);
    }

    /// The vCPU runs until it comes back by itself, or the timer rings.
    fn goes_on(&mut self, slot: usize, task: Box<Task<'a>>, began_ns: u64) {
        let (after_ns, exit) = self.behaviour(&task, began_ns);
        let (rings_at, exits_at) = (self.slots[slot].alarm.rings_at(), self.now_ns.saturating_add(after_ns));
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
            here.alarm.has_rung(now_ns);
            self.core.rang(&mut task, &mut here.pcpu, now_ns)
        };
        let Some(turn) = turn else { return self.goes_on(slot, task, began_ns) };
        self.ran_ns[task.guest.index][task.vcpu.id as usize] += now_ns - began_ns;
        match self.core.end_turn(task, &mut self.slots[slot].pcpu, turn, began_ns) {
            Some(next) => self.begin(slot, next),
            None => {
                self.slots[slot].doing = Doing::Idle { counted: false };
                self.slots[slot].at_ns = now_ns;
            }
        }
    }

    /// After how long the vCPU comes back by itself, and what for.
    fn behaviour(&mut self, task: &Task<'_>, began_ns: u64) -> (u64, Exit) {
        const NEVER: (u64, Exit) = (u64::MAX, Exit::Interrupted);
        const MOMENT_NS: u64 = 100_000;
        let (id, vcpus) = (task.vcpu.id, self.setting.vcpus);
        let has_begun = task.guest.shared.as_ref().is_none_or(|shared| {
            let started = &shared.memory.control().started;
            // Relaxed: one thread.
            started.load(std::sync::atomic::Ordering::Relaxed) >= vcpus
        });
        if task.guest.index == HONEST || self.setting.attack != Attack::Anything {
            let lies = task.guest.index != HONEST && self.setting.attack == Attack::Lie;
            if id == 0
                && !has_begun
                && !(lies && task.guest.checked_activity(0) == crate::guest::activity::Activity::Holder)
            {
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
            Attack::KickOne if id == 1 => (SLICE_NS.saturating_sub(self.now_ns - began_ns + 1), Exit::Wait),
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
        use std::sync::atomic::Ordering::Relaxed;
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
    fn end(self) -> Shares {
        let Self { core, guests, slots, ran_ns, now_ns, setting, .. } = self;
        assert!(slots.iter().all(|slot| matches!(slot.doing, Doing::Ended)), "a pCPU goes on after the run");
        drop(slots);
        let mut finished = core.finish();
        finished.sort_by_key(|vcpu| (vcpu.guest, vcpu.id));
        let found: Vec<_> = finished.iter().map(|vcpu| (vcpu.guest, vcpu.id)).collect();
        let all = (0..guests.len()).flat_map(|guest| (0..setting.vcpus).map(move |id| (guest, id)));
        assert_eq!(found, all.collect::<Vec<_>>(), "every vCPU once");
        let handed = finished.iter().map(|vcpu| vcpu.account.handed).sum();
        let each_ns = ran_ns;
        Shares {
            ran_ns: each_ns.iter().map(|each| each.iter().sum()).collect(),
            each_ns,
            length_ns: now_ns,
            handed,
        }
    }
}

/// One execution: a setting and a script out of `bytes`.
///
/// # Panics
/// If an invariant does not hold.
pub(crate) fn execute(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let choice = script.byte();
    let setting = Setting {
        share: if choice & 1 == 0 { Share::Vcpu } else { Share::Guest },
        pcpus: 1 + usize::from(choice >> 1 & 1),
        hostile: 1 + usize::from(choice >> 2 & 1) * 2,
        vcpus: 2 + u32::from(choice >> 3 & 3),
        grace: choice >> 5 & 1 != 0,
        kick_yields: choice >> 6 & 1 != 0,
        attack: Attack::Anything,
    };
    let shares = play(setting, script.0, LONGEST_NS);
    check_share(setting, &shares);
}

/// What the honest guest may lack of its share, whatever the others do: each of their vCPUs may be ahead by the credit, which is a
/// slice, and by the slice with its grace that it was in then; and each pCPU may be in the middle of a slice.
fn most_lacking_ns(setting: Setting) -> u64 {
    let slice_ns = if setting.grace { SLICE_NS * 3 / 2 } else { SLICE_NS };
    let ahead_ns = setting.hostile as u64 * u64::from(setting.vcpus) * (SLICE_NS + slice_ns);
    ahead_ns + setting.pcpus as u64 * slice_ns
}

/// The honest guest's vCPUs always want to run: it gets its share at least.
fn check_share(setting: Setting, shares: &Shares) {
    let guests = setting.hostile as u64 + 1;
    // Of vCPUs all guests have as many.
    let fair_ns = shares.length_ns * setting.pcpus as u64 / guests;
    let had_ns = shares.ran_ns[HONEST];
    assert!(
        had_ns + most_lacking_ns(setting) >= fair_ns,
        "the honest guest had {had_ns} ns of its {fair_ns}, the others {:?}, {} hand-overs: {setting:?}",
        &shares.ran_ns[1..],
        shares.handed
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fuzz::fuzz;

    fn settings() -> impl Iterator<Item = Setting> {
        (0..64_u32).map(|choice| Setting {
            share: if choice & 1 == 0 { Share::Vcpu } else { Share::Guest },
            pcpus: 1 + (choice >> 1 & 1) as usize,
            hostile: 1 + (choice >> 2 & 1) as usize * 2,
            vcpus: 2 + (choice >> 3 & 1) * 2,
            grace: choice >> 4 & 1 != 0,
            kick_yields: choice >> 5 & 1 != 0,
            attack: Attack::Anything,
        })
    }

    #[test]
    fn an_honest_guest_gets_its_share_beside_guests_that_hand_their_turns_to_each_other() {
        let mut handed = 0;
        for attack in [Attack::FeedOne, Attack::PassAround, Attack::KickOne, Attack::Lie] {
            for setting in settings() {
                let setting = Setting { attack, ..setting };
                let shares = play(setting, &[], 300 * SLICE_NS);
                check_share(setting, &shares);
                handed += shares.handed;
            }
        }
        assert!(handed > 10_000, "{handed} hand-overs in all: nothing was tried");
    }

    #[test]
    fn fuzz_scheduler_an_honest_guest_gets_its_share_whatever_the_others_do_and_say() {
        fuzz("scheduler", 8192, execute);
    }
}
