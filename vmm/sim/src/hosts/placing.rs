//! Laws 8 to 10 (wake-up placement, pulls, balance): the CPU on which a task wakes up, and how waiting tasks change CPUs.

use crate::hosts::scheduler::{ALL, CACHE, CORE, Scheduler};

const MOST_MOVED: usize = 32;
/// Balances of a busy CPU are this much rarer.
const BUSY_FACTOR: u64 = 16;

impl Scheduler {
    /// Law 8 (wake-up placement): where a task wakes up that was on `last`.
    pub(super) fn wakes_on(&self, last: Option<usize>, waker: Option<usize>) -> usize {
        let Some(last) = last else {
            // A new one starts where the fewest are.
            return (0..self.queues.len())
                .min_by_key(|cpu| (self.count(*cpu), *cpu))
                .expect("a run has CPUs");
        };
        let is_idle = |cpu: usize| self.count(cpu) == 0;
        if is_idle(last) {
            return last;
        }
        let cache = &self.domains[last][CACHE];
        if let Some(waker) = waker.filter(|waker| is_idle(*waker) && cache.contains(waker)) {
            return waker;
        }
        let is_idle_core = |cpu: &&usize| self.domains[**cpu][CORE].iter().all(|sibling| is_idle(*sibling));
        // From the last CPU on, and around.
        let at = cache.iter().position(|cpu| *cpu == last).unwrap_or(0);
        let around = || cache[at..].iter().chain(&cache[..at]);
        let found = around().find(is_idle_core).or_else(|| around().find(|cpu| is_idle(**cpu)));
        match (found, waker) {
            (Some(found), _) => *found,
            (None, Some(waker)) if self.count(waker) < self.count(last) => waker,
            (None, _) => last,
        }
    }

    /// A task that waits on `from` and may move at `now_ns`: the one with the least virtual time.
    fn movable(&self, from: usize, now_ns: u64) -> Option<u32> {
        let is_cold = |id: &u32| {
            now_ns.saturating_sub(self.tasks[*id as usize].ran_until_ns) >= self.host.balance.hot_ns
        };
        let waiting = self.queues[from].waiting(&self.tasks).filter(is_cold);
        waiting.min_by_key(|id| (self.tasks[*id as usize].v, *id))
    }

    fn busiest(&self, domain: &[usize], but: usize) -> Option<usize> {
        let others = domain.iter().copied().filter(|cpu| *cpu != but);
        others.max_by_key(|cpu| (self.count(*cpu), usize::MAX - cpu))
    }

    fn pull(&mut self, id: u32, from: usize, to: usize, now_ns: u64) {
        self.queues[from].charge(&mut self.tasks, now_ns);
        self.queues[from].remove(&mut self.tasks, id);
        self.move_to(id, to, false, now_ns);
    }

    /// Law 9 (pulls): `cpu`, which has become idle, looks for one waiting task, near first. Whether it got one, and how long that took.
    pub(super) fn pulls(&mut self, cpu: usize, now_ns: u64) -> (bool, u64) {
        // Xorshift: any full-period generator will do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if self.host.balance.by_chance && !self.odds[cpu].tries(self.random >> 11) {
            return (false, 0);
        }
        let mut took_ns = 0;
        for level in 0..4 {
            let domain = &self.domains[cpu][level];
            if domain.len() < 2 {
                continue;
            }
            took_ns += self.host.balance.try_ns;
            let busiest = self.busiest(domain, cpu).filter(|from| self.has_waiting(*from));
            if let Some((from, id)) = busiest.and_then(|from| Some((from, self.movable(from, now_ns)?))) {
                self.pull(id, from, cpu, now_ns);
                self.odds[cpu].tried(true);
                return (true, took_ns);
            }
        }
        self.odds[cpu].tried(false);
        (false, took_ns)
    }

    /// Law 10 (balance): balances `cpu`, which is busy, if that is due; and lets an idle CPU have what waits here. That CPU, if there is
    /// one.
    pub(super) fn balances(&mut self, cpu: usize, now_ns: u64) -> Option<usize> {
        for (due, level) in [CACHE, ALL].into_iter().enumerate() {
            if self.odds[cpu].due_ns[due] > now_ns {
                continue;
            }
            let domain = self.domains[cpu][level].clone();
            let interval_ns = domain.len() as u64 * 1_000_000 * BUSY_FACTOR;
            self.odds[cpu].due_ns[due] = now_ns + interval_ns;
            if now_ns >= interval_ns && domain.len() > 1 {
                self.balance_within(cpu, &domain, now_ns);
            }
        }
        if !self.has_waiting(cpu) {
            return None;
        }
        let idle = (0..self.queues.len()).find(|other| self.count(*other) == 0)?;
        let id = self.movable(cpu, now_ns)?;
        self.pull(id, cpu, idle, now_ns);
        Some(idle)
    }

    fn balance_within(&mut self, cpu: usize, domain: &[usize], now_ns: u64) {
        let Some(from) = self.busiest(domain, cpu) else { return };
        let more = self.count(from).saturating_sub(self.count(cpu));
        let moves = match more {
            0 => return,
            1 => {
                self.odds[cpu].found_one += 1;
                usize::from(self.odds[cpu].found_one > self.host.balance.patience)
            }
            more => (more / 2).min(MOST_MOVED),
        };
        for _ in 0..moves {
            let Some(id) = self.movable(from, now_ns) else { return };
            self.pull(id, from, cpu, now_ns);
            self.odds[cpu].found_one = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::policy::{Balance, Host};
    use crate::hosts::scheduler::tests::{drive, host, on, started};
    use crate::machine::Topology;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_task_wakes_on_its_last_cpu_or_a_near_idle_core() {
        let topology = Topology::new([2, 2, 2], None, None).unwrap();
        // Cores 0 and 1 of the first socket are CPUs 0 and 1, with siblings 4 and 5.
        let cpus: Vec<u32> = (0..8).collect();
        let mut scheduler = Scheduler::new(host("linux-7.3"), &topology, &cpus, &[8], 1);
        assert_eq!(scheduler.wakes_on(Some(5), Some(0)), 5);
        for (id, cpu) in [(0, 0), (1, 4)] {
            scheduler.move_to(id, cpu, true, 0);
            scheduler.picks(cpu, 0);
        }
        assert_eq!(scheduler.wakes_on(Some(0), Some(2)), 1, "an idle core of the cache, not the waker's");
        scheduler.move_to(2, 1, true, 0);
        scheduler.picks(1, 0);
        assert_eq!(scheduler.wakes_on(Some(0), None), 5, "an idle CPU");
        scheduler.move_to(3, 5, true, 0);
        scheduler.picks(5, 0);
        assert_eq!(scheduler.wakes_on(Some(0), None), 0, "idle CPUs of another cache do not count");
        scheduler.move_to(4, 0, true, 0);
        assert_eq!(scheduler.wakes_on(Some(0), Some(1)), 1, "the waker's has fewer");
    }

    #[test]
    fn where_every_vcpu_has_a_cpu_none_moves() {
        for name in ["linux-7.3", "linux-6.12", "cfs-2015"] {
            let mut scheduler = started(host(name), 4, &[4]);
            for turn in 1..1000_u64 {
                let (now_ns, cpu) = (turn * MS / 3, (turn % 4) as usize);
                let id = scheduler.queues[cpu].current.unwrap();
                scheduler.blocks(cpu, now_ns);
                assert_eq!(scheduler.picks(cpu, now_ns).task, None);
                let woken = scheduler.wakes(id, Some((cpu + 1) % 4), now_ns + 1000);
                assert_eq!((woken.cpu, woken.was_idle), (cpu, true), "{name}");
                scheduler.picks(cpu, now_ns + 1000);
                (0..4).for_each(|cpu| assert!(!scheduler.ticks(cpu, now_ns + 2000).gives_way));
            }
        }
    }

    #[test]
    fn three_tasks_rotate_over_two_cpus_every_hundred_milliseconds() {
        let mut scheduler = started(host("linux-7.3"), 2, &[3]);
        let switches = drive(&mut scheduler, 10_000 * MS);
        let mut last = [None; 3];
        let moves =
            |it: &&(u64, usize, u32)| last[it.2 as usize].replace(it.1).is_some_and(|cpu| cpu != it.1);
        let period_ms = 10_000 / switches.iter().filter(moves).count();
        assert!((20..400).contains(&period_ms), "every {period_ms} ms");
        let turns = [0, 1, 2].map(|id| switches.iter().filter(|it| it.2 == id).count());
        assert!(turns.iter().all(|turns| *turns > 500), "{turns:?}");
    }

    #[test]
    fn an_idle_cpu_pulls_a_waiting_task_that_is_not_hot() {
        let balance = Balance { by_chance: false, ..host("linux-7.3").balance };
        let mut scheduler = on(Host { balance, ..host("linux-7.3") }, 2, &[2]);
        for id in 0..2 {
            scheduler.wakes(id, None, 0);
            scheduler.picks(id as usize, 0);
        }
        // 0 joins 1 on its CPU: it waits there, and has just run.
        scheduler.blocks(0, MS);
        scheduler.picks(0, MS);
        scheduler.move_to(0, 1, true, MS);
        assert_eq!(scheduler.picks(0, MS + 400_000).task, None, "it ran 0.4 ms ago");
        let picked = scheduler.picks(0, MS + 500_000);
        assert_eq!((picked.task, picked.took_ns > 0), (Some(0), true));
    }

    #[test]
    fn attempts_get_rare_where_they_are_in_vain() {
        let vain = |by_chance| {
            let balance = Balance { by_chance, ..host("linux-7.3").balance };
            let mut scheduler = on(Host { balance, ..host("linux-7.3") }, 2, &[1]);
            (0..4000_u64).filter(|turn| scheduler.pulls(0, turn * MS).1 > 0).count()
        };
        assert_eq!(vain(false), 4000);
        assert!((1..200).contains(&vain(true)), "{}", vain(true));
    }

    #[test]
    fn a_balance_moves_half_of_the_difference() {
        let mut scheduler = on(host("linux-7.3"), 2, &[9]);
        for id in 0..8 {
            scheduler.move_to(id, 0, true, 0);
        }
        scheduler.move_to(8, 1, true, 0);
        (0..2).for_each(|cpu| _ = scheduler.picks(cpu, 0));
        scheduler.ticks(1, 31 * MS);
        assert_eq!(scheduler.count(1), 1, "not before twice sixteen milliseconds");
        scheduler.odds[1].due_ns = [0; 2];
        scheduler.ticks(1, 32 * MS);
        assert_eq!((scheduler.count(0), scheduler.count(1)), (5, 4));
    }
}
