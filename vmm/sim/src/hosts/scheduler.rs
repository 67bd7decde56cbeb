//! Run queues of all CPUs, and the events that change them.

use crate::hosts::policy::{Fair, Groups, Host};
use crate::hosts::queue::{NICE_0, Queue, Task};
use crate::machine::Topology;

/// A request to reschedule a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Request {
    #[default]
    None,
    /// For the next exit or tick.
    Lazy,
    /// For now.
    Hard,
}

/// The outcome of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Woken {
    /// The CPU whose queue the task is in.
    pub cpu: usize,
    /// It has nothing else to run: it is to pick.
    pub was_idle: bool,
    /// It is to be interrupted.
    pub interrupts: bool,
}

/// The outcome of a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The task, if there is one.
    pub task: Option<u32>,
    /// Time of the search for it beyond a look at the CPU's own queue.
    pub took_ns: u64,
}

/// The outcome of a tick, or of the end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticked {
    /// The current task has to give way: the CPU is to pick.
    pub gives_way: bool,
    /// An idle CPU that got a task meanwhile: it is to pick.
    pub woke: Option<usize>,
}

/// The outcome of a directed yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yielded {
    /// The target is the next pick of this CPU, which is to be interrupted; the CPU of the one that yields is to pick.
    To(usize),
    /// The target runs, or sleeps.
    NotWaiting,
    /// The queues of both CPUs hold one task each.
    BothAlone,
}

/// Attempts after which recent success is counted anew.
const ODDS_WINDOW: u32 = 1024;

/// Levels of a CPU's domains: its SMT siblings, the CPUs of its cache, those of its socket (2), and all.
pub(super) const CORE: usize = 0;
pub(super) const CACHE: usize = 1;
pub(super) const ALL: usize = 3;

/// The domains of each CPU, by level. Each holds the CPU itself.
fn domains(topology: &Topology, cpus: &[u32]) -> Vec<[Vec<usize>; 4]> {
    let place = |cpu: usize| topology.place(cpus[cpu]);
    let all = 0..cpus.len();
    let where_same = |same: &dyn Fn(usize) -> bool| all.clone().filter(|cpu| same(*cpu)).collect();
    let of = all.clone().map(|cpu| {
        let own = place(cpu);
        [
            where_same(&|other| place(other).core == own.core),
            where_same(&|other| place(other).cluster == own.cluster),
            where_same(&|other| place(other).socket == own.socket),
            where_same(&|_| true),
        ]
    });
    of.collect()
}

/// One CPU's attempts to pull tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct Odds {
    attempts: u32,
    successes: u32,
    /// When it balances next, within its cache and among all.
    pub(super) due_ns: [u64; 2],
    /// Balances in a row that found one task more elsewhere.
    pub(super) found_one: u32,
}

impl Odds {
    /// Whether an attempt is made by chance. `random` is any number.
    pub(super) fn tries(&self, random: u64) -> bool {
        random % u64::from(self.attempts) < u64::from(self.successes.max(1))
    }

    pub(super) fn tried(&mut self, is_success: bool) {
        self.attempts += 1;
        self.successes += u32::from(is_success);
        if self.attempts >= ODDS_WINDOW {
            (self.attempts, self.successes) = (self.attempts / 2, self.successes / 2);
        }
    }
}

/// Run queues of the CPUs of a run, which are numbered from 0.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(super) host: Host,
    pub(super) domains: Vec<[Vec<usize>; 4]>,
    pub(super) queues: Vec<Queue>,
    pub(super) tasks: Vec<Task>,
    requests: Vec<Request>,
    /// Runnable tasks of each guest.
    runnable: Vec<u32>,
    pub(super) odds: Vec<Odds>,
    pub(super) random: u64,
}

impl Scheduler {
    /// The scheduler of `host` for guests of these numbers of vCPUs on `cpus` of a machine. Its tasks are numbered through all
    /// guests, and asleep.
    #[must_use]
    pub fn new(host: Host, topology: &Topology, cpus: &[u32], guests: &[u32], seed: u64) -> Self {
        let count = cpus.len() as u32;
        let of_guest = |(guest, vcpus): (usize, &u32)| {
            vec![Task { guest, weight: NICE_0, ..Task::default() }; *vcpus as usize]
        };
        let queue = Queue::new(host.fair, count, host.tick_ns());
        Self {
            domains: domains(topology, cpus),
            queues: vec![queue; cpus.len()],
            tasks: guests.iter().enumerate().flat_map(of_guest).collect(),
            requests: vec![Request::None; cpus.len()],
            runnable: vec![0; guests.len()],
            odds: vec![Odds { attempts: 1, successes: 1, ..Odds::default() }; cpus.len()],
            random: seed | 1,
            host,
        }
    }

    /// Whether a CPU runs nothing.
    #[must_use]
    pub fn is_idle(&self, cpu: usize) -> bool {
        self.queues[cpu].current.is_none()
    }

    /// Whether a task other than the current one waits for a CPU.
    #[must_use]
    pub fn has_waiting(&self, cpu: usize) -> bool {
        self.queues[cpu].waiting(&self.tasks).next().is_some()
    }

    pub(super) fn count(&self, cpu: usize) -> usize {
        self.queues[cpu].runnable(&self.tasks)
    }

    /// Law 19 (groups): weights of a guest's vCPUs follow the number that is runnable.
    fn weigh(&mut self, guest: usize, change: i32, now_ns: u64) {
        self.runnable[guest] = self.runnable[guest].saturating_add_signed(change);
        let runnable = i64::from(self.runnable[guest].max(1));
        let weight = match self.host.groups {
            Groups::None => NICE_0,
            Groups::Smp => NICE_0 / runnable,
            Groups::Concur => NICE_0 * runnable.min(self.queues.len() as i64) / runnable,
        };
        let weight = weight.max(1);
        let changes = |id: &u32| {
            let task = &self.tasks[*id as usize];
            task.guest == guest && task.weight != weight
        };
        // Tasks that run have had their time so far by the old weight.
        let current =
            (0..self.queues.len()).filter(|cpu| self.queues[*cpu].current.as_ref().is_some_and(changes));
        for cpu in current.collect::<Vec<_>>() {
            self.queues[cpu].charge(&mut self.tasks, now_ns);
        }
        let of_guest = self.tasks.iter_mut().filter(|task| task.guest == guest);
        of_guest.for_each(|task| task.weight = weight);
    }

    fn set_runnable(&mut self, id: u32, is_runnable: bool, now_ns: u64) {
        let task = &mut self.tasks[id as usize];
        if task.is_runnable != is_runnable {
            task.is_runnable = is_runnable;
            let guest = task.guest;
            self.weigh(guest, if is_runnable { 1 } else { -1 }, now_ns);
        }
    }

    /// A task wakes up at `now_ns`; the one on `waker` woke it, if it was a task that did.
    pub fn wakes(&mut self, id: u32, waker: Option<usize>, now_ns: u64) -> Woken {
        self.set_runnable(id, true, now_ns);
        let last = self.tasks[id as usize].cpu;
        let stays = last.filter(|cpu| self.queues[*cpu].wake_delayed(&mut self.tasks, id));
        let cpu = stays.unwrap_or_else(|| {
            let cpu = self.wakes_on(last, waker);
            self.move_to(id, cpu, true, now_ns);
            cpu
        });
        let was_idle = self.is_idle(cpu);
        if was_idle {
            return Woken { cpu, was_idle, interrupts: false };
        }
        let lazy = matches!(self.host.fair, Fair::Eevdf(it) if it.lazy);
        let preempts = self.queues[cpu].preempts(&mut self.tasks, id, now_ns);
        if preempts {
            self.ask(cpu, if lazy { Request::Lazy } else { Request::Hard });
        }
        // Law 7 (slice ends): a lazy request sends no interrupt to another CPU.
        Woken { cpu, was_idle, interrupts: preempts && !lazy }
    }

    /// Puts a task that is in no queue into that of `cpu`.
    pub(super) fn move_to(&mut self, id: u32, cpu: usize, is_wake_up: bool, now_ns: u64) {
        if let Some(last) = self.tasks[id as usize].cpu.filter(|_| is_wake_up) {
            self.queues[last].charge(&mut self.tasks, now_ns);
            self.queues[last].update_sleeper(&mut self.tasks, id);
        }
        self.queues[cpu].charge(&mut self.tasks, now_ns);
        self.queues[cpu].place(&mut self.tasks, id, is_wake_up);
        self.tasks[id as usize].cpu = Some(cpu);
    }

    fn ask(&mut self, cpu: usize, request: Request) {
        self.requests[cpu] = self.requests[cpu].max(request);
    }

    /// The task on `cpu` goes to sleep.
    pub fn blocks(&mut self, cpu: usize, now_ns: u64) {
        if let Some(id) = self.queues[cpu].current {
            self.queues[cpu].sleep(&mut self.tasks, now_ns);
            self.tasks[id as usize].ran_until_ns = now_ns;
            self.set_runnable(id, false, now_ns);
        }
    }

    /// The task on `cpu` is over.
    pub fn leaves(&mut self, cpu: usize, now_ns: u64) {
        self.queues[cpu].charge(&mut self.tasks, now_ns);
        if let Some(id) = self.queues[cpu].current {
            self.queues[cpu].remove(&mut self.tasks, id);
            self.set_runnable(id, false, now_ns);
        }
    }

    /// `cpu` picks the task that it runs next. If it has none, it looks for one elsewhere.
    pub fn picks(&mut self, cpu: usize, now_ns: u64) -> Picked {
        self.requests[cpu] = Request::None;
        let before = self.queues[cpu].current;
        let mut picked = Picked { task: self.queues[cpu].pick(&mut self.tasks, now_ns), took_ns: 0 };
        if picked.task.is_none() {
            let (pulled, took_ns) = self.pulls(cpu, now_ns);
            picked.took_ns = took_ns;
            if pulled {
                picked.task = self.queues[cpu].pick(&mut self.tasks, now_ns);
            }
        }
        if let Some(id) = before.filter(|before| Some(*before) != picked.task) {
            self.tasks[id as usize].ran_until_ns = now_ns;
        }
        picked
    }

    /// Picks on `cpu`, which runs a task, and tells which one it is to run. If that is the one that it runs, this was a pick; else
    /// [`Self::picks`] has to follow.
    pub fn peeks(&mut self, cpu: usize, now_ns: u64) -> Option<u32> {
        self.queues[cpu].charge(&mut self.tasks, now_ns);
        let next = self.queues[cpu].choose(&self.tasks);
        if next == self.queues[cpu].current {
            self.picks(cpu, now_ns);
        }
        next
    }

    /// When `cpu` is to be interrupted next.
    #[must_use]
    pub fn alarm_ns(&self, cpu: usize, now_ns: u64) -> u64 {
        let is_exact = matches!(self.host.fair, Fair::Eevdf(it) if it.exact);
        // A slice may have been found used up during an exit.
        let is_over = is_exact && self.queues[cpu].used_up && self.has_waiting(cpu);
        if is_over || self.requests[cpu] == Request::Hard {
            return now_ns;
        }
        let tick_ns = self.host.tick_ns();
        // Ticks of all CPUs are aligned.
        let next_tick_ns = (now_ns / tick_ns + 1) * tick_ns;
        match self.queues[cpu].ends_ns(&self.tasks, now_ns) {
            Some(ends_ns) if is_exact && self.has_waiting(cpu) => ends_ns.min(next_tick_ns),
            _ => next_tick_ns,
        }
    }

    /// `cpu` was interrupted at `now_ns`: a tick, the end of a slice, or a request from elsewhere.
    pub fn ticks(&mut self, cpu: usize, now_ns: u64) -> Ticked {
        let is_over = self.queues[cpu].is_over(&mut self.tasks, now_ns);
        if let Some(id) = self.queues[cpu].current {
            self.tasks[id as usize].ran_until_ns = now_ns;
        }
        let woke = self.balances(cpu, now_ns);
        Ticked { gives_way: is_over || self.requests[cpu] > Request::None, woke }
    }

    /// The task on `cpu` is out of its guest for a reason of its own. Law 7 (slice ends): requests are honoured, lazy
    /// ones too.
    #[must_use]
    pub fn gives_way_at_exit(&self, cpu: usize) -> bool {
        self.requests[cpu] > Request::None
    }

    /// The task on `cpu` yields to any other one. Whether there is one: then the CPU is to pick.
    pub fn yields(&mut self, cpu: usize, now_ns: u64) -> bool {
        let others = self.has_waiting(cpu);
        if others {
            self.queues[cpu].yields(&mut self.tasks, now_ns);
        }
        others
    }

    /// Law 14 (yields): the task on `cpu` yields to task `id`.
    pub fn yields_to(&mut self, cpu: usize, id: u32, now_ns: u64) -> Yielded {
        let task = &self.tasks[id as usize];
        let Some(target) = task.cpu.filter(|_| task.is_runnable) else { return Yielded::NotWaiting };
        if self.count(cpu) == 1 && self.count(target) == 1 {
            return Yielded::BothAlone;
        }
        if self.queues[target].current == Some(id) {
            return Yielded::NotWaiting;
        }
        self.queues[target].charge(&mut self.tasks, now_ns);
        if self.host.heeds_hints {
            self.queues[target].buddy = Some(id);
        }
        self.ask(target, Request::Hard);
        self.queues[cpu].yields(&mut self.tasks, now_ns);
        Yielded::To(target)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::hosts::presets;

    const MS: u64 = 1_000_000;

    pub(crate) fn host(name: &str) -> Host {
        presets().iter().find(|preset| preset.name == name).unwrap().host()
    }

    pub(crate) fn on(host: Host, cpus: u32, guests: &[u32]) -> Scheduler {
        let topology = Topology::new([1, cpus, 1], None, None).unwrap();
        let cpus: Vec<u32> = (0..cpus).collect();
        Scheduler::new(host, &topology, &cpus, guests, 1)
    }

    /// Wakes all tasks at 0, and lets every CPU pick.
    pub(crate) fn started(host: Host, cpus: u32, guests: &[u32]) -> Scheduler {
        let mut scheduler = on(host, cpus, guests);
        for id in 0..guests.iter().sum::<u32>() {
            let woken = scheduler.wakes(id, None, 0);
            if woken.was_idle {
                scheduler.picks(woken.cpu, 0);
            }
        }
        scheduler
    }

    /// Drives tasks that only run until `until_ns`; when which CPU changed tasks.
    pub(crate) fn drive(scheduler: &mut Scheduler, until_ns: u64) -> Vec<(u64, usize, u32)> {
        let mut switches = Vec::new();
        let mut now_ns = 0;
        loop {
            let next = (0..scheduler.queues.len()).map(|cpu| (scheduler.alarm_ns(cpu, now_ns), cpu)).min();
            let (at_ns, _) = next.unwrap();
            if at_ns > until_ns {
                return switches;
            }
            now_ns = at_ns.max(now_ns + 1);
            for cpu in 0..scheduler.queues.len() {
                let before = scheduler.queues[cpu].current;
                if scheduler.ticks(cpu, now_ns).gives_way {
                    let next = scheduler.picks(cpu, now_ns).task;
                    switches.extend(next.filter(|_| next != before).map(|next| (now_ns, cpu, next)));
                }
            }
        }
    }

    #[test]
    fn slices_end_at_ticks_or_by_a_timer() {
        let switches = drive(&mut started(host("linux-6.12"), 8, &[16]), 400 * MS);
        // 3 ms are a tick of 4 ms.
        assert!(switches.len() > 100 && switches.iter().all(|(at, ..)| at % (4 * MS) == 0), "{switches:?}");
        let mut scheduler = started(host("linux-7.3"), 8, &[16]);
        let switches = drive(&mut scheduler, 400 * MS);
        let of_first: Vec<u64> = switches.iter().filter(|it| it.1 == 0).map(|it| it.0).collect();
        // The first deadlines are from when fewer vCPUs were awake.
        let slices = of_first[2..].windows(2).map(|pair| pair[1] - pair[0]);
        assert!(of_first.len() > 100, "{}", of_first.len());
        assert!(
            slices.clone().all(|ns| ns.abs_diff(28 * MS / 10) < 10_000),
            "{:?}",
            slices.collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_woken_task_preempts_under_cfs_alone() {
        let mut scheduler = started(host("linux-7.3"), 1, &[2]);
        scheduler.blocks(0, MS / 2);
        assert_eq!(scheduler.picks(0, MS / 2).task, Some(1));
        let woken = scheduler.wakes(0, None, MS);
        assert!(!woken.was_idle && !woken.interrupts && !scheduler.gives_way_at_exit(0));
        // CFS lets one that is far behind preempt, and interrupts for it.
        let mut scheduler = started(host("cfs-2015"), 1, &[2]);
        scheduler.blocks(0, MS / 2);
        scheduler.picks(0, MS / 2);
        let woken = scheduler.wakes(0, None, 20 * MS);
        assert!(woken.interrupts && scheduler.gives_way_at_exit(0));
        assert_eq!(scheduler.alarm_ns(0, 20 * MS), 20 * MS);
    }

    #[test]
    fn a_yield_to_a_vcpu_fails_where_both_queues_hold_one() {
        let mut scheduler = started(host("linux-7.3"), 2, &[2]);
        assert_eq!(scheduler.yields_to(0, 1, MS), Yielded::BothAlone);
        let mut scheduler = started(host("linux-7.3"), 2, &[4]);
        let runs = scheduler.queues[1].current.unwrap();
        assert_eq!(scheduler.yields_to(0, runs, MS), Yielded::NotWaiting, "it runs");
        let next_on =
            |scheduler: &Scheduler, cpu: usize| scheduler.queues[cpu].waiting(&scheduler.tasks).next();
        let target = next_on(&scheduler, 1).unwrap();
        assert_eq!(scheduler.yields_to(0, target, MS), Yielded::To(1));
        assert_eq!(scheduler.alarm_ns(1, MS), MS, "the other CPU is interrupted");
        assert_eq!(scheduler.picks(1, MS).task, Some(target));
        // Woken onto its own CPU, and not picked yet.
        let mut scheduler = on(host("linux-7.3"), 2, &[2]);
        scheduler.wakes(0, None, 0);
        scheduler.picks(0, 0);
        scheduler.wakes(1, None, 0);
        assert_eq!(scheduler.yields_to(0, 1, 1), Yielded::BothAlone);
    }

    #[test]
    fn nested_groups_lose_the_hint() {
        for (heeds_hints, expected) in [(true, 3), (false, 1)] {
            let mut scheduler = started(Host { heeds_hints, ..host("linux-7.3") }, 1, &[4]);
            assert_eq!(scheduler.yields_to(0, 3, MS), Yielded::To(0));
            assert_eq!(scheduler.picks(0, MS).task, Some(expected));
        }
    }

    #[test]
    fn groups_weigh_guests_or_vcpus() {
        // A guest of 4 vCPUs and one of 1, on one CPU.
        for (groups, share_percent) in [(Groups::None, 80), (Groups::Smp, 50), (Groups::Concur, 50)] {
            let mut scheduler = started(Host { groups, ..host("linux-7.3") }, 1, &[4, 1]);
            let had = shares(&mut scheduler);
            assert!(had.abs_diff(share_percent) <= 3, "{groups:?}: {had} %");
        }
        // On four CPUs a guest of 4 weighs 4 under concur, and 1 under smp.
        for (groups, weight) in [(Groups::Smp, NICE_0 / 4), (Groups::Concur, NICE_0)] {
            let scheduler = started(Host { groups, ..host("linux-7.3") }, 4, &[4, 4]);
            assert!(scheduler.tasks.iter().all(|task| task.weight == weight), "{groups:?}");
        }
    }

    #[test]
    fn time_is_charged_by_the_weight_that_it_was_run_with() {
        let mut scheduler = on(Host { groups: Groups::Smp, ..host("linux-7.3") }, 2, &[2]);
        scheduler.wakes(0, None, 0);
        scheduler.picks(0, 0);
        let v = scheduler.tasks[0].v;
        scheduler.wakes(1, None, 2 * MS);
        assert_eq!(scheduler.tasks[0].weight, NICE_0 / 2);
        assert_eq!(scheduler.tasks[0].v - v, 2 * MS as i64, "it was alone in its guest until then");
    }

    #[test]
    fn a_slice_that_ends_during_an_exit_is_over() {
        let mut scheduler = started(host("linux-7.3"), 1, &[2]);
        let ends_ns = scheduler.alarm_ns(0, 0);
        // A wake-up elsewhere charges all that run, between the end and the interrupt.
        scheduler.queues[0].charge(&mut scheduler.tasks, ends_ns + 1000);
        assert_eq!(scheduler.alarm_ns(0, ends_ns + 1000), ends_ns + 1000);
        assert!(scheduler.ticks(0, ends_ns + 1000).gives_way);
        scheduler.picks(0, ends_ns + 1000);
        assert!(scheduler.alarm_ns(0, ends_ns + 1000) > ends_ns + 1000);
    }

    /// Per cent of the time that the vCPUs of the first guest had.
    fn shares(scheduler: &mut Scheduler) -> u64 {
        let until_ns = 4000 * MS;
        let switches = drive(scheduler, until_ns);
        let ends = switches.iter().skip(1).map(|it| it.0).chain([until_ns]);
        let spells = switches.iter().zip(ends).filter(|(it, _)| it.2 < 4);
        spells.map(|(it, end)| end - it.0).sum::<u64>() * 100 / until_ns
    }
}
