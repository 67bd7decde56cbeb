//! Queues of tasks, one for each CPU, without locks: a task is a word that says on which CPU it waits or runs.

use core::sync::atomic::{AtomicU32, Ordering};

/// It runs, on the CPU in the other bits.
const RUNS: u32 = 1 << 31;

/// Tasks on the queues of CPUs. A task that runs is that CPU's alone; one that waits may be taken by another CPU.
pub(crate) struct Queues<const TASKS: usize, const CPUS: usize> {
    tasks: [AtomicU32; TASKS],
    /// How many tasks wait or run on each CPU: a hint while tasks move.
    lengths: [AtomicU32; CPUS],
}

impl<const TASKS: usize, const CPUS: usize> Queues<TASKS, CPUS> {
    /// Queues whose tasks all wait on CPU 0; no length is right before [`Queues::spread`].
    #[must_use]
    pub(crate) const fn new() -> Self {
        const { assert!(CPUS < RUNS as usize) };
        Self { tasks: [const { AtomicU32::new(0) }; TASKS], lengths: [const { AtomicU32::new(0) }; CPUS] }
    }

    /// Lays the first `tasks` tasks on the first `cpus` CPUs in turn, before any of these looks.
    pub(crate) fn spread(&self, tasks: usize, cpus: usize) {
        for (number, task) in self.tasks[..tasks].iter().enumerate() {
            // Relaxed, both: no other CPU looks yet.
            task.store((number % cpus) as u32, Ordering::Relaxed);
            self.lengths[number % cpus].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tasks that wait or run on `cpu`.
    pub(crate) fn length(&self, cpu: usize) -> usize {
        // SeqCst: one who is about to sleep looks here, after saying so. Partner: `put`.
        self.lengths[cpu].load(Ordering::SeqCst) as usize
    }

    /// The next of the first `tasks` tasks that waits on `cpu`, behind task `after`. It runs there from now on.
    pub(crate) fn take(&self, tasks: usize, cpu: usize, after: usize) -> Option<usize> {
        let (first, last) = self.tasks[..tasks].split_at((after + 1).min(tasks));
        let numbered = last.iter().zip(after + 1..).chain(first.iter().zip(0..));
        let mut waiting = numbered.filter(|(task, _)| task.load(Ordering::Relaxed) == cpu as u32);
        // Acquire: what the task did before it waited. Partner: `put`.
        let runs = |task: &AtomicU32| {
            task.compare_exchange(cpu as u32, cpu as u32 | RUNS, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        waiting.find(|(task, _)| runs(task)).map(|(_, number)| number)
    }

    /// Task `task`, which runs on `from`, waits on `to` from now on.
    pub(crate) fn put(&self, task: usize, (from, to): (usize, usize)) {
        // SeqCst, as all changes of a length: before the caller looks whether `to` sleeps. Partner: `length`.
        if from != to {
            self.lengths[from].fetch_sub(1, Ordering::SeqCst);
            self.lengths[to].fetch_add(1, Ordering::SeqCst);
        }
        // Release: what the task did. Partner: `take`.
        self.tasks[task].store(to as u32, Ordering::Release);
    }

    /// Lays one of the first `tasks` tasks that wait on `from` on `to` instead, if `from` keeps another.
    pub(crate) fn pull(&self, tasks: usize, (from, to): (usize, usize)) -> bool {
        // Before the task is looked for: of several that pull at a time each knows what the others leave.
        let one_stays = |length: u32| (length > 1).then(|| length - 1);
        if self.lengths[from].fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_stays).is_err() {
            return false;
        }
        // Relaxed: the task was put by its last CPU, with Release, and an exchange goes on with that; its next one acquires.
        let moves = |task: &AtomicU32| {
            task.compare_exchange(from as u32, to as u32, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let is_moved = self.tasks[..tasks].iter().any(moves);
        self.lengths[if is_moved { to } else { from }].fetch_add(1, Ordering::SeqCst);
        is_moved
    }

    /// The CPU with the fewest tasks among the first `preferred`.
    pub(crate) fn shortest(&self, preferred: usize) -> usize {
        (0..preferred).min_by_key(|&cpu| self.length(cpu)).unwrap_or(0)
    }

    /// The CPU with the most tasks among the first `preferred`, if it has two more than `cpu`.
    pub(crate) fn longer(&self, preferred: usize, cpu: usize) -> Option<usize> {
        let longest = (0..preferred).max_by_key(|&other| self.length(other))?;
        (self.length(longest) >= self.length(cpu) + 2).then_some(longest)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::sync::atomic::{AtomicBool, AtomicU64};
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_cpu_takes_its_own_tasks_in_turn() {
        let queues = Queues::<8, 4>::new();
        queues.spread(5, 2);
        assert_eq!((queues.length(0), queues.length(1), queues.length(2)), (3, 2, 0));
        let mut after = 0;
        let order: Vec<usize> = (0..4)
            .map(|_| {
                after = queues.take(5, 0, after).expect("a task");
                queues.put(after, (0, 0));
                after
            })
            .collect();
        assert_eq!(order, [2, 4, 0, 2]);
        assert_eq!(queues.take(5, 2, 0), None, "CPU 2 has none");
    }

    #[test]
    fn a_task_that_runs_is_neither_taken_nor_pulled() {
        let queues = Queues::<4, 4>::new();
        queues.spread(2, 1);
        assert_eq!((queues.take(2, 0, 1), queues.take(2, 0, 0)), (Some(0), Some(1)));
        assert_eq!(queues.take(2, 0, 0), None);
        assert!(!queues.pull(2, (0, 1)) && queues.length(0) == 2);
        queues.put(0, (0, 1));
        queues.put(1, (0, 1));
        assert_eq!((queues.length(0), queues.length(1)), (0, 2));
        assert!(queues.pull(2, (1, 2)) && queues.take(2, 2, 1) == Some(0));
        assert!(!queues.pull(2, (1, 2)), "the last one stays");
    }

    #[test]
    fn a_queue_is_longer_from_two_tasks_more_on() {
        let queues = Queues::<8, 4>::new();
        queues.spread(5, 3);
        assert_eq!((queues.shortest(3), queues.longer(3, 2), queues.longer(3, 3)), (2, None, Some(1)));
    }

    /// Threads take, put and pull at random: a task runs on one at a time, and sees what it did elsewhere.
    #[test]
    fn tasks_move_between_threads_whole_and_one_at_a_time() {
        const THREADS: usize = 4;
        let queues = Queues::<8, THREADS>::new();
        queues.spread(8, THREADS);
        let running = [const { AtomicBool::new(false) }; 8];
        let turns = [const { AtomicU64::new(0) }; 8];
        std::thread::scope(|threads| {
            for cpu in 0..THREADS {
                let (queues, running, turns) = (&queues, &running, &turns);
                threads.spawn(move || {
                    let mut after = cpu;
                    for round in 0..20_000 {
                        let Some(task) = queues.take(8, cpu, after) else {
                            queues.pull(8, ((cpu + round) % THREADS, cpu));
                            continue;
                        };
                        assert!(!running[task].swap(true, Ordering::Relaxed), "it runs twice");
                        let before = turns[task].load(Ordering::Relaxed);
                        turns[task].store(before + 1, Ordering::Relaxed);
                        running[task].store(false, Ordering::Relaxed);
                        queues.put(task, (cpu, (cpu + round) % THREADS));
                        after = task;
                    }
                });
            }
        });
        let lengths: usize = (0..THREADS).map(|cpu| queues.length(cpu)).sum();
        assert_eq!(lengths, 8);
        assert!(turns.iter().all(|turns| turns.load(Ordering::Relaxed) > 0));
    }
}
