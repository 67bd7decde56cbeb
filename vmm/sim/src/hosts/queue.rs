//! The run queue of one CPU, for EEVDF and for CFS: laws 1 to 7, and what 14 (yields) does in a queue.
//!
//! It knows tasks by their numbers. Virtual times are signed nanoseconds at weight [`NICE_0`].

use crate::hosts::policy::{Cfs, Eevdf, Fair, scale};

/// Weight of a thread without groups.
pub(super) const NICE_0: i64 = 1024;

/// A task: a vCPU's thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Task {
    pub(super) guest: usize,
    /// The CPU that it is on, or was on last.
    pub(super) cpu: Option<usize>,
    pub(super) is_runnable: bool,
    pub(super) ran_until_ns: u64,
    /// Virtual time.
    pub(super) v: i64,
    pub(super) deadline: i64,
    pub(super) weight: i64,
    /// Lag, kept while the task is in no queue.
    pub(super) lag: i64,
    /// Asleep, but queued until it is picked.
    pub(super) is_delayed: bool,
    /// Run time since it was picked.
    pub(super) ran_ns: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Queue {
    fair: Fair,
    slice_ns: i64,
    tick_ns: i64,
    /// All but the current task, those with delayed dequeue included.
    queued: Vec<u32>,
    pub(super) current: Option<u32>,
    /// The current task has run until here.
    charged_ns: u64,
    /// Until this virtual time the current task is protected from others with earlier deadlines.
    protected: i64,
    /// The current task has used up its slice, while others waited, since it was picked.
    pub(super) used_up: bool,
    /// Law 14 (yields): the next pick, as a directed yield asks.
    pub(super) buddy: Option<u32>,
    /// CFS: the next pick passes this one over.
    skip: Option<u32>,
    /// The least virtual time, which never decreases.
    least: i64,
}

impl Queue {
    pub(super) fn new(fair: Fair, cpus: u32, tick_ns: u64) -> Self {
        let (mut fair, scale) = (fair, scale(cpus));
        let slice_ns = match &mut fair {
            Fair::Eevdf(it) => it.base_slice_ns * scale,
            Fair::Cfs(it) => {
                it.latency_ns *= scale;
                it.min_granularity_ns *= scale;
                it.wakeup_granularity_ns *= scale;
                it.min_granularity_ns
            }
        };
        Self {
            fair,
            slice_ns: slice_ns as i64,
            tick_ns: tick_ns as i64,
            queued: Vec::new(),
            current: None,
            charged_ns: 0,
            protected: i64::MIN,
            used_up: false,
            buddy: None,
            skip: None,
            least: 0,
        }
    }

    fn eevdf(&self) -> Option<&Eevdf> {
        match &self.fair {
            Fair::Eevdf(it) => Some(it),
            Fair::Cfs(_) => None,
        }
    }

    /// Tasks that are in the queue or current, without those that are asleep.
    pub(super) fn runnable(&self, tasks: &[Task]) -> usize {
        self.waiting(tasks).count() + usize::from(self.current.is_some())
    }

    pub(super) fn waiting<'a>(&'a self, tasks: &'a [Task]) -> impl Iterator<Item = u32> + 'a {
        self.queued.iter().copied().filter(|id| !tasks[*id as usize].is_delayed)
    }

    fn all(&self) -> impl Iterator<Item = u32> + '_ {
        self.current.into_iter().chain(self.queued.iter().copied())
    }

    /// Law 2 (eligibility): the mean virtual time, by weight, of all tasks here; rounded down.
    pub(super) fn mean(&self, tasks: &[Task]) -> i64 {
        let (mut sum, mut weights) = (0_i128, 0_i128);
        for task in self.all().map(|id| &tasks[id as usize]) {
            sum += i128::from(task.weight) * i128::from(task.v);
            weights += i128::from(task.weight);
        }
        if weights == 0 { self.least } else { sum.div_euclid(weights) as i64 }
    }

    /// Law 2 (eligibility): whether a task has had at most its share.
    pub(super) fn is_eligible(&self, tasks: &[Task], id: u32) -> bool {
        tasks[id as usize].v <= self.mean(tasks)
    }

    /// Law 1 (virtual time): charges the current task for its time until `now_ns`. Law 3 (deadlines): renews its deadline. If others
    /// wait then, it has used up its slice.
    pub(super) fn charge(&mut self, tasks: &mut [Task], now_ns: u64) {
        let Some(id) = self.current else { return };
        let task = &mut tasks[id as usize];
        let ran_ns = now_ns.saturating_sub(self.charged_ns);
        self.charged_ns = self.charged_ns.max(now_ns);
        task.ran_ns += ran_ns;
        task.v += ran_ns as i64 * NICE_0 / task.weight;
        if task.v >= task.deadline && self.eevdf().is_some() {
            let task = &mut tasks[id as usize];
            task.deadline = task.v + self.slice_ns * NICE_0 / task.weight;
            self.protected = i64::MIN;
            let others_wait = self.waiting(tasks).next().is_some();
            self.used_up |= others_wait;
        }
        let least = self.all().map(|id| tasks[id as usize].v).min();
        self.least = self.least.max(least.unwrap_or(self.least));
    }

    /// Law 6 (sleep and wake-up): puts a task that wakes, or comes from another queue, into this one.
    pub(super) fn place(&mut self, tasks: &mut [Task], id: u32, is_wake_up: bool) {
        match self.fair {
            Fair::Eevdf(_) => {
                let load: i64 = self.all().map(|id| tasks[id as usize].weight).sum();
                let mean = self.mean(tasks);
                let task = &mut tasks[id as usize];
                // The task's own weight moves the mean: the lag that is left afterwards is the one it had.
                let lag = if load > 0 {
                    (i128::from(task.lag) * i128::from(load + task.weight) / i128::from(load)) as i64
                } else {
                    0
                };
                task.v = mean - lag;
                task.deadline = task.v + self.slice_ns * NICE_0 / task.weight;
            }
            Fair::Cfs(it) => {
                let task = &mut tasks[id as usize];
                let bonus = if is_wake_up { it.latency_ns as i64 / 2 } else { 0 };
                task.v = (self.least + task.lag).max(self.least - bonus);
            }
        }
        self.queued.push(id);
    }

    /// The lag that a task takes with it. Law 2 (eligibility): it is bounded.
    fn lag(&self, tasks: &[Task], id: u32) -> i64 {
        let task = &tasks[id as usize];
        match self.fair {
            Fair::Eevdf(_) => {
                let most = (2 * self.slice_ns).max(self.tick_ns) * NICE_0 / task.weight;
                (self.mean(tasks) - task.v).clamp(-most, most)
            }
            Fair::Cfs(_) => task.v - self.least,
        }
    }

    /// CFS: how far a task that went to sleep here is behind or ahead by now.
    pub(super) fn update_sleeper(&self, tasks: &mut [Task], id: u32) {
        if self.eevdf().is_none() {
            tasks[id as usize].lag = tasks[id as usize].v - self.least;
        }
    }

    pub(super) fn remove(&mut self, tasks: &mut [Task], id: u32) {
        tasks[id as usize].lag = self.lag(tasks, id);
        tasks[id as usize].is_delayed = false;
        self.queued.retain(|other| *other != id);
        self.buddy = self.buddy.filter(|buddy| *buddy != id);
        if self.current == Some(id) {
            self.current = None;
        }
    }

    /// The current task goes to sleep at `now_ns`. Law 6 (sleep and wake-up): with negative lag it stays queued.
    pub(super) fn sleep(&mut self, tasks: &mut [Task], now_ns: u64) {
        self.charge(tasks, now_ns);
        let Some(id) = self.current else { return };
        if self.eevdf().is_some_and(|it| it.delayed) && !self.is_eligible(tasks, id) {
            self.current = None;
            self.queued.push(id);
            tasks[id as usize].is_delayed = true;
        } else {
            self.remove(tasks, id);
        }
    }

    /// A task that sleeps wakes up in this queue, where it still is. Whether that was so.
    pub(super) fn wake_delayed(&mut self, tasks: &mut [Task], id: u32) -> bool {
        let is_here = tasks[id as usize].is_delayed && self.queued.contains(&id);
        if is_here {
            tasks[id as usize].is_delayed = false;
            let slice = self.slice_ns * NICE_0 / tasks[id as usize].weight;
            if self.is_eligible(tasks, id) {
                // Its debt is paid, and it has no credit.
                tasks[id as usize].v = self.mean(tasks);
            }
            tasks[id as usize].deadline = tasks[id as usize].v + slice;
        }
        is_here
    }

    /// Whether a woken task is to preempt the current one. Law 5 (protection): not within a protected slice.
    pub(super) fn preempts(&mut self, tasks: &mut [Task], id: u32, now_ns: u64) -> bool {
        self.charge(tasks, now_ns);
        let Some(current) = self.current else { return true };
        match self.fair {
            Fair::Eevdf(_) => self.choose(tasks) == Some(id),
            Fair::Cfs(it) => {
                tasks[current as usize].v - tasks[id as usize].v > it.wakeup_granularity_ns as i64
            }
        }
    }

    /// Law 4 (the pick): the task to run next, which may be one that is asleep.
    pub(super) fn choose(&self, tasks: &[Task]) -> Option<u32> {
        if self.queued.is_empty() {
            return self.current;
        }
        if let Fair::Cfs(it) = self.fair {
            return self.choose_by_virtual_time(it, tasks);
        }
        let mean = self.mean(tasks);
        let is_eligible = |id: &u32| tasks[*id as usize].v <= mean;
        if let Some(buddy) = self.buddy.filter(is_eligible) {
            return Some(buddy);
        }
        // Law 5 (protection): eligible or not.
        if let Some(current) = self.current.filter(|id| tasks[*id as usize].v < self.protected) {
            return Some(current);
        }
        let current = self.current.filter(is_eligible);
        let queued = self.queued.iter().copied().filter(is_eligible);
        let earliest = current.into_iter().chain(queued).min_by_key(|id| (tasks[*id as usize].deadline, *id));
        earliest.or_else(|| self.all().min_by_key(|id| (tasks[*id as usize].v, *id)))
    }

    /// CFS: least virtual time, but the hint's target, and not the one that yielded, as far as that is fair.
    fn choose_by_virtual_time(&self, it: Cfs, tasks: &[Task]) -> Option<u32> {
        let mut order: Vec<u32> = self.all().collect();
        order.sort_by_key(|id| (tasks[*id as usize].v, *id));
        let first = *order.first()?;
        let is_near =
            |id: u32| tasks[id as usize].v - tasks[first as usize].v < it.wakeup_granularity_ns as i64;
        if let Some(buddy) = self.buddy.filter(|buddy| order.contains(buddy) && is_near(*buddy)) {
            return Some(buddy);
        }
        let second = order.get(1).copied().filter(|second| self.skip == Some(first) && is_near(*second));
        Some(second.unwrap_or(first))
    }

    /// Picks the task that runs from `now_ns` on; the current one goes back among the others if it is another. Tasks that
    /// were asleep leave when they are picked.
    pub(super) fn pick(&mut self, tasks: &mut [Task], now_ns: u64) -> Option<u32> {
        self.charge(tasks, now_ns);
        self.used_up = false;
        let next = loop {
            let chosen = self.choose(tasks);
            if !self.queued.is_empty() {
                // A choice uses up the hint of a directed yield.
                (self.buddy, self.skip) = (None, None);
            }
            match chosen {
                Some(id) if tasks[id as usize].is_delayed => {
                    self.remove(tasks, id);
                    // It has paid, and leaves without credit.
                    tasks[id as usize].lag = tasks[id as usize].lag.min(0);
                }
                next => break next,
            }
        };
        if next != self.current {
            self.queued.retain(|id| Some(*id) != next);
            self.queued.extend(self.current);
            self.current = next;
        }
        if let Some(id) = next {
            let task = &mut tasks[id as usize];
            task.ran_ns = 0;
            self.charged_ns = self.charged_ns.max(now_ns);
            // Law 5 (protection). All slices are equal.
            self.protected = (task.v + self.slice_ns * NICE_0 / task.weight).min(task.deadline);
        }
        next
    }

    /// Law 7 (slice ends): whether the current task has to give way at a tick, or where slices end exactly, now.
    pub(super) fn is_over(&mut self, tasks: &mut [Task], now_ns: u64) -> bool {
        self.charge(tasks, now_ns);
        if self.waiting(tasks).next().is_none() {
            return false;
        }
        match self.fair {
            Fair::Eevdf(_) => self.used_up,
            Fair::Cfs(it) => self.cfs_is_over(tasks, it),
        }
    }

    fn cfs_is_over(&self, tasks: &[Task], it: Cfs) -> bool {
        let Some(current) = self.current else { return false };
        let runnable = self.runnable(tasks) as u64;
        let period = it.latency_ns.max(it.min_granularity_ns * runnable);
        let weights: i64 = self.all().map(|id| tasks[id as usize].weight).sum();
        let current = &tasks[current as usize];
        let ideal_ns = (i128::from(period) * i128::from(current.weight) / i128::from(weights)) as u64;
        let least = self.waiting(tasks).map(|id| tasks[id as usize].v).min();
        current.ran_ns > ideal_ns
            || current.ran_ns >= it.min_granularity_ns
                && least.is_some_and(|least| current.v - least > ideal_ns as i64)
    }

    /// When the current task's request is used up, if nothing changes.
    pub(super) fn ends_ns(&self, tasks: &[Task], now_ns: u64) -> Option<u64> {
        let task = &tasks[self.current? as usize];
        let left = (task.deadline - task.v).max(0) * task.weight / NICE_0;
        Some(now_ns.max(self.charged_ns + left as u64 + 1))
    }

    /// Law 14 (yields): the current task yields.
    pub(super) fn yields(&mut self, tasks: &mut [Task], now_ns: u64) {
        self.charge(tasks, now_ns);
        let Some(id) = self.current else { return };
        match self.fair {
            Fair::Eevdf(it) => {
                self.protected = i64::MIN;
                // One that is ahead has nothing to forfeit. If each yield moved its deadline, one later yield would move its
                // virtual time by all of them, and the mean with it: until it has caught up, hints alone decide who runs.
                if it.yield_forfeits && !self.is_eligible(tasks, id) {
                    return;
                }
                let task = &mut tasks[id as usize];
                if it.yield_forfeits {
                    task.v = task.deadline;
                }
                task.deadline += self.slice_ns * NICE_0 / task.weight;
            }
            Fair::Cfs(_) => self.skip = Some(id),
        }
    }
}

/// Laws 1 to 7 and 14, each with its test.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::presets;

    const MS: u64 = 1_000_000;

    fn idle_tasks(count: usize) -> Vec<Task> {
        vec![Task { weight: NICE_0, ..Task::default() }; count]
    }

    /// A queue on which tasks wait, the first of them running since 0.
    fn running(name: &str, count: usize) -> (Queue, Vec<Task>) {
        let host = presets().iter().find(|preset| preset.name == name).unwrap().host();
        let (mut queue, mut tasks) = (Queue::new(host.fair, 8, host.tick_ns()), idle_tasks(count));
        (0..count as u32).for_each(|id| queue.place(&mut tasks, id, true));
        assert_eq!(queue.pick(&mut tasks, 0), Some(0));
        (queue, tasks)
    }

    /// Lets slices end at multiples of `step_ns`, and tells who ran when.
    fn turns(queue: &mut Queue, tasks: &mut [Task], step_ns: u64, until_ns: u64) -> Vec<(u64, u32)> {
        let mut switches = Vec::new();
        for now_ns in (step_ns..=until_ns).step_by(step_ns as usize) {
            if queue.is_over(tasks, now_ns) {
                let next = queue.pick(tasks, now_ns).unwrap();
                switches.push((now_ns, next));
            }
            let mean = queue.mean(tasks);
            let most = queue.slice_ns + step_ns as i64;
            assert!(tasks.iter().all(|task| (task.v - mean).abs() <= most), "law 2 at {now_ns}: {tasks:?}");
        }
        switches
    }

    #[test]
    fn constants_grow_with_the_logarithm_of_up_to_eight_cpus() {
        assert_eq!([1, 2, 3, 4, 7, 8, 64].map(scale), [1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    fn equal_tasks_stay_within_a_slice_and_a_tick_of_the_mean() {
        for name in ["linux-7.3", "linux-6.12", "cfs-2019"] {
            let (mut queue, mut tasks) = running(name, 5);
            let switches = turns(&mut queue, &mut tasks, 4 * MS, 2000 * MS);
            for id in 0..5 {
                let turns = switches.iter().filter(|(_, next)| *next == id).count();
                assert!(turns.abs_diff(switches.len() / 5) <= 1, "{name}: {id} had {turns}");
            }
        }
    }

    #[test]
    fn a_hint_is_one_pick_if_its_target_is_eligible() {
        let (mut queue, mut tasks) = running("linux-7.3", 4);
        // All others are eligible; 1 has the earliest deadline.
        queue.buddy = Some(3);
        queue.yields(&mut tasks, 0);
        assert_eq!(queue.pick(&mut tasks, 0), Some(3));
        queue.yields(&mut tasks, 0);
        assert_eq!(queue.pick(&mut tasks, 0), Some(1), "the hint is used up");
        // The one that yielded first has negative lag now.
        assert!(!queue.is_eligible(&tasks, 0));
        queue.buddy = Some(0);
        queue.yields(&mut tasks, MS);
        assert_eq!(queue.pick(&mut tasks, MS), Some(2));
    }

    #[test]
    fn a_sleeper_in_debt_counts_in_the_mean_until_it_is_picked() {
        let (mut queue, mut tasks) = running("linux-7.3", 3);
        queue.sleep(&mut tasks, 2 * MS);
        let debt = tasks[0].v;
        assert!(tasks[0].is_delayed && debt == 2 * MS as i64);
        assert_eq!(queue.mean(&tasks), debt / 3, "law 2 counts it");
        assert_eq!(queue.runnable(&tasks), 2, "it is not runnable");
        let mut now_ns = 2 * MS;
        queue.pick(&mut tasks, now_ns);
        while tasks[0].is_delayed {
            now_ns += 3 * MS;
            assert!(queue.is_over(&mut tasks, now_ns));
            queue.pick(&mut tasks, now_ns);
        }
        assert!(!queue.all().any(|id| id == 0) && tasks[0].lag == 0, "it has left: {tasks:?}");
        // Without the law it leaves at once.
        let (mut queue, mut tasks) = running("linux-7.3", 3);
        if let Fair::Eevdf(it) = &mut queue.fair {
            it.delayed = false;
        }
        queue.sleep(&mut tasks, 2 * MS);
        assert!(!tasks[0].is_delayed && queue.mean(&tasks) == 0 && tasks[0].lag < 0);
    }

    #[test]
    fn a_wake_up_keeps_the_lag_that_sleep_left() {
        let (mut queue, mut tasks) = running("linux-7.3", 3);
        queue.charge(&mut tasks, MS);
        // 2 goes with a lag of 1/3 ms.
        queue.remove(&mut tasks, 2);
        let lag = tasks[2].lag;
        assert_eq!(lag, (MS / 3) as i64);
        queue.place(&mut tasks, 2, true);
        let kept = queue.mean(&tasks) - tasks[2].v;
        assert!((kept - lag).abs() <= 2, "{kept} of {lag}");
    }

    #[test]
    fn a_yield_forfeits_the_rest_of_the_request() {
        for (name, forfeits) in [("linux-7.3", true), ("linux-6.12", false)] {
            let (mut queue, mut tasks) = running(name, 2);
            let deadline = tasks[0].deadline;
            queue.yields(&mut tasks, 0);
            assert_eq!(tasks[0].v == deadline, forfeits, "{name}");
            assert_eq!(tasks[0].deadline, deadline + queue.slice_ns);
            // One that is ahead has nothing more to forfeit.
            let (v, deadline) = (tasks[0].v, tasks[0].deadline);
            (0..1_000).for_each(|_| queue.yields(&mut tasks, 0));
            assert_eq!((tasks[0].v, tasks[0].deadline) == (v, deadline), forfeits, "{name}");
        }
    }

    #[test]
    fn cfs_lets_a_sleeper_preempt_that_is_far_behind() {
        let (mut queue, mut tasks) = running("cfs-2015", 1);
        tasks.extend(idle_tasks(1));
        queue.charge(&mut tasks, 100 * MS);
        queue.update_sleeper(&mut tasks, 1);
        queue.place(&mut tasks, 1, true);
        // Half of the latency of 24 ms is its bonus, and the granularity 4 ms.
        assert_eq!(tasks[0].v - tasks[1].v, 12 * MS as i64);
        assert!(queue.preempts(&mut tasks, 1, 100 * MS));
        let (mut queue, mut tasks) = running("cfs-2015", 2);
        assert!(!queue.preempts(&mut tasks, 1, 4 * MS) && queue.preempts(&mut tasks, 1, 4 * MS + 1));
    }

    #[test]
    fn a_wake_up_behind_a_used_slice_does_not_give_another() {
        // Slices of 3 ms end at ticks of 4 ms. A task that was alone goes on with another request.
        for (count, is_over) in [(2, true), (1, false)] {
            let (mut queue, mut tasks) = running("linux-6.12", count);
            tasks.extend(idle_tasks(1));
            queue.charge(&mut tasks, 3 * MS + MS / 2);
            queue.place(&mut tasks, count as u32, true);
            assert_eq!(queue.is_over(&mut tasks, 4 * MS), is_over);
            queue.pick(&mut tasks, 4 * MS);
            assert!(!queue.is_over(&mut tasks, 5 * MS), "the next one has its own");
        }
    }
}
