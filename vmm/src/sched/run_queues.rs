//! The ready vCPUs: a queue for each pCPU, or one for all of them.
//!
//! All queues order vCPUs by the CPU time that they have had, on one scale. A pCPU serves its own queue. At each boundary between two
//! vCPUs it also looks at a few of the others, each in turn, and takes the first vCPU there if that is behind its own by more than a
//! slice. A pCPU that has nothing takes from any other queue, the nearest first. So no pCPU is idle while a vCPU is ready, and a
//! lock is taken by others than its pCPU only where a vCPU moves.
//!
//! Fairness: vCPUs that always want to run differ in CPU time by 5 slices at most, where one queue keeps them within 2. That is what
//! `tests/fairness` tests, on up to 256 pCPUs that each come to a boundary once a slice, among vCPUs that wake each other; it does not
//! grow with the number of pCPUs, since each queue has a few looks a slice, from other pCPUs each time.
//!
//! One queue serves all pCPUs where guests have shares, since the time of a guest is a sum over its vCPUs, and on simulated machines.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::host::threads::{lock, unlocked};
use crate::sched::fair_queue::Shares;
use crate::sched::task::Task;

/// The virtual time of the first vCPU in an empty queue.
const EMPTY: u64 = u64::MAX;
/// The most slices that vCPUs come apart that always want to run.
#[cfg(test)]
pub(super) const MOST_APART_SLICES: u64 = 5;
/// Other queues that a pCPU looks at, at each boundary. With one, vCPUs came 9 slices apart in the test at 1.25 vCPUs per pCPU.
const LOOKS: usize = 4;
/// Queues whose pCPUs were idle have no idea what time has passed. A vCPU that wakes up there is at most this number of slices behind the
/// one that has had most.
const MOST_BEHIND_SLICES: u64 = 3;

/// A value in cache lines of its own: its neighbours in memory change at other times. (Two lines, since CPUs fetch pairs.)
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Line<T>(pub(super) T);

#[expect(clippy::vec_box, reason = "they come out of the queue boxed")]
struct Ready<'a> {
    shares: Shares<Box<Task<'a>>>,
    /// vCPUs of guests that failed while others go on.
    retired: Vec<Box<Task<'a>>>,
}

impl Ready<'_> {
    fn first_ns(&self) -> u64 {
        self.shares.first().map_or(EMPTY, |(first_ns, _)| first_ns)
    }
}

/// One queue, in cache lines of its own.
#[repr(align(128))]
struct RunQueue<'a> {
    ready: Mutex<Ready<'a>>,
    /// Virtual time of the first, for pCPUs that look without the lock.
    least_ns: AtomicU64,
    /// The number of looks that the pCPU of this queue has had at others.
    looks: AtomicUsize,
}

impl RunQueue<'_> {
    // Relaxed, as where it is written: a hint. The lock decides.
    fn least_ns(&self) -> u64 {
        self.least_ns.load(Ordering::Relaxed)
    }
}

pub(super) struct RunQueues<'a> {
    queues: Vec<RunQueue<'a>>,
    /// The queue of each pCPU, by its number.
    of_pcpu: Vec<u32>,
    /// The queue that each vCPU was put into last, by its number.
    of_vcpu: Vec<AtomicU32>,
    credit_ns: u64,
    /// Whether guests have shares.
    charges: bool,
    count: Line<AtomicU32>,
    /// The highest virtual time of a vCPU that was taken, to a quarter of a slice.
    floor_ns: Line<AtomicU64>,
}

/// Result of the exchange of one vCPU for another on a pCPU.
pub(super) struct Exchanged<'a> {
    pub(super) next: Option<Box<Task<'a>>>,
    /// If more vCPUs lie in its queue: the pCPU that the first of them ran on last.
    pub(super) waits: Option<Option<u32>>,
}

impl<'a> RunQueues<'a> {
    /// Empty queues for `vcpus` vCPUs on `pcpus`: one for all if guests have shares or `one` is asked for. `shares` makes one with
    /// room for a number of vCPUs.
    pub(super) fn new(
        pcpus: &[u32],
        vcpus: usize,
        credit_ns: u64,
        one: bool,
        shares: impl Fn(usize) -> Shares<Box<Task<'a>>>,
    ) -> Self {
        let charges = shares(0).charges();
        let count = if one || charges { 1 } else { pcpus.len() };
        // Room for twice what is fair: more than that is rare, and allocates memory then.
        let room = vcpus.min(vcpus.div_ceil(count) * 2);
        let queue = |_| RunQueue {
            ready: Mutex::new(Ready { shares: shares(room), retired: Vec::new() }),
            least_ns: AtomicU64::new(EMPTY),
            looks: AtomicUsize::new(0),
        };
        let highest = pcpus.iter().max().map_or(0, |pcpu| *pcpu as usize);
        let mut of_pcpu = vec![0; highest + 1];
        pcpus.iter().zip(0..).for_each(|(&pcpu, index)| of_pcpu[pcpu as usize] = index % count as u32);
        Self {
            queues: (0..count).map(queue).collect(),
            of_pcpu,
            of_vcpu: (0..vcpus).map(|_| AtomicU32::new(0)).collect(),
            credit_ns,
            charges,
            count: Line(AtomicU32::new(0)),
            floor_ns: Line(AtomicU64::new(0)),
        }
    }

    fn is_one(&self) -> bool {
        self.queues.len() == 1
    }

    pub(super) fn len(&self) -> u32 {
        // Acquire pairs with the release in `change`.
        self.count.0.load(Ordering::Acquire)
    }

    fn of_pcpu(&self, pcpu: u32) -> usize {
        self.of_pcpu[pcpu as usize] as usize
    }

    /// The queue of a pCPU, or for a vCPU that has run on none the one that it begins in.
    fn of(&self, pcpu: Option<u32>, task: &Task<'_>) -> usize {
        pcpu.map_or(task.number() as usize % self.queues.len(), |pcpu| self.of_pcpu(pcpu))
    }

    /// Lets `by` change a queue, and tells the others what has become of it.
    fn change<R>(&self, queue: usize, by: impl FnOnce(&mut Ready<'a>) -> R) -> R {
        let queue = &self.queues[queue];
        let mut ready = lock(&queue.ready);
        let before = ready.shares.len();
        let result = by(&mut ready);
        let more = ready.shares.len().wrapping_sub(before) as u32;
        if more != 0 {
            // AcqRel: pairs with `len`, for a pCPU that finds nothing ready.
            self.count.0.fetch_add(more, Ordering::AcqRel);
        }
        let least_ns = ready.first_ns();
        if queue.least_ns() != least_ns {
            queue.least_ns.store(least_ns, Ordering::Relaxed);
        }
        result
    }

    fn push_into(&self, queue: usize, ready: &mut Ready<'a>, task: Box<Task<'a>>) {
        // Relaxed: a hint, with which a directed yield finds the vCPU.
        let was_in = &self.of_vcpu[task.number() as usize];
        if was_in.load(Ordering::Relaxed) != queue as u32 {
            was_in.store(queue as u32, Ordering::Relaxed);
        }
        ready.shares.push(task.guest.index, task.number(), task.account.turns.virtual_ns, task);
    }

    /// The next of `queue` for `pcpu`. Those of guests that are over are laid away.
    fn pop_from(&self, ready: &mut Ready<'a>, pcpu: u32) -> Option<Box<Task<'a>>> {
        loop {
            let first_ns = ready.first_ns();
            let task = ready.shares.pop(|task| task.last_pcpu == Some(pcpu))?;
            if task.guest.stopping() {
                ready.retired.push(task);
                continue;
            }
            // Relaxed: as in `after_sleep`.
            if !self.is_one() && self.floor_ns.0.load(Ordering::Relaxed) + self.credit_ns / 4 < first_ns {
                self.floor_ns.0.fetch_max(first_ns, Ordering::Relaxed);
            }
            return Some(task);
        }
    }

    /// The virtual time at which a vCPU of `guest` that slept since `virtual_ns` comes back into a queue.
    pub(super) fn after_sleep(&self, shares: &Shares<Box<Task<'a>>>, guest: usize, virtual_ns: u64) -> u64 {
        // Relaxed: a bound, which sleepers need to a slice.
        let floor_ns = self.floor_ns.0.load(Ordering::Relaxed);
        let least_ns = floor_ns.saturating_sub(MOST_BEHIND_SLICES * self.credit_ns);
        shares.after_sleep(guest, virtual_ns).max(least_ns)
    }

    /// Adds `task`, which has slept if `slept`, to the queue of `pcpu`.
    pub(super) fn push(&self, pcpu: Option<u32>, mut task: Box<Task<'a>>, slept: bool) {
        let queue = self.of(pcpu, &task);
        self.change(queue, |ready| {
            if slept {
                let virtual_ns = task.account.turns.virtual_ns;
                task.account.turns.virtual_ns = self.after_sleep(&ready.shares, task.guest.index, virtual_ns);
            }
            self.push_into(queue, ready, task);
        });
    }

    /// Charges `guest` with this time that a vCPU of it has run.
    pub(super) fn charge(&self, guest: usize, ran_ns: u64) {
        if self.charges {
            self.change(0, |ready| ready.shares.charge(guest, ran_ns));
        }
    }

    /// The queue that the pCPU of queue `own`, where the first is at `own_ns`, takes from instead, if it is to do so.
    fn is_to_take_from(&self, own: usize, own_ns: u64) -> Option<usize> {
        let (n, queues) = (self.queues[own].looks.load(Ordering::Relaxed), self.queues.len());
        let others = (n..n + LOOKS.min(queues - 1)).filter_map(|n| looks_at(own, n, queues));
        let (least_ns, other) = others.map(|other| (self.queues[other].least_ns(), other)).min()?;
        is_behind(least_ns, own_ns, self.credit_ns).then_some(other)
    }

    /// The next looks are at other queues.
    fn has_looked(&self, own: usize) {
        // Relaxed: only the pCPU of this queue counts.
        let looks = &self.queues[own].looks;
        looks.store(looks.load(Ordering::Relaxed).wrapping_add(LOOKS), Ordering::Relaxed);
    }

    /// Whether the pCPU of queue `own` is to take a vCPU from another queue rather than run one at `own_ns`. If not, that is looked at.
    fn is_to_take(&self, own: usize, own_ns: u64) -> bool {
        let takes = self.is_to_take_from(own, own_ns).is_some();
        if !takes {
            self.has_looked(own);
        }
        takes
    }

    /// Whether a vCPU is due on `pcpu`, where one has run to `own_ns`.
    pub(super) fn is_due(&self, pcpu: u32, own_ns: u64) -> bool {
        let own = self.of_pcpu(pcpu);
        self.queues[own].least_ns() != EMPTY || self.is_to_take(own, own_ns)
    }

    pub(super) fn pop(&self, pcpu: u32) -> Option<Box<Task<'a>>> {
        if self.len() == 0 {
            return None;
        }
        let own = self.of_pcpu(pcpu);
        let other = self.is_to_take_from(own, self.queues[own].least_ns());
        self.has_looked(own);
        let mut places = other.into_iter().chain([own]).chain(nearest_first(own, self.queues.len()));
        places.find_map(|queue| {
            let is_empty = self.queues[queue].least_ns() == EMPTY;
            (!is_empty).then(|| self.change(queue, |ready| self.pop_from(ready, pcpu))).flatten()
        })
    }

    /// The vCPU `task`, which has run on `pcpu`, goes back, and the one that is next comes out: it may be the same one.
    pub(super) fn exchange(&self, pcpu: u32, task: Box<Task<'a>>) -> Exchanged<'a> {
        let own = self.of_pcpu(pcpu);
        let last = |ready: &Ready<'a>| ready.shares.first().map(|(_, task)| task.last_pcpu);
        let mut stolen = None;
        let exchanged = self.change(own, |ready| {
            self.push_into(own, ready, task);
            stolen = self.is_to_take_from(own, ready.first_ns());
            let next = if stolen.is_none() { self.pop_from(ready, pcpu) } else { None };
            Exchanged { next, waits: last(ready) }
        });
        self.has_looked(own);
        let Some(other) = stolen else { return exchanged };
        match self.change(other, |ready| self.pop_from(ready, pcpu)) {
            Some(next) => Exchanged { next: Some(next), ..exchanged },
            // Its own pCPU, or another one, was faster.
            None => self.change(own, |ready| {
                let next = self.pop_from(ready, pcpu);
                Exchanged { next, waits: last(ready) }
            }),
        }
    }

    /// Lets `by` change the queue of `pcpu`, or of any if a vCPU has run on none.
    pub(super) fn at_pcpu<R>(
        &self,
        pcpu: Option<u32>,
        by: impl FnOnce(&mut Shares<Box<Task<'a>>>) -> R,
    ) -> R {
        self.change(pcpu.map_or(0, |pcpu| self.of_pcpu(pcpu)), |ready| by(&mut ready.shares))
    }

    /// Lets `by` change the queue that vCPU `number` was put into last. It may lie elsewhere by now, or nowhere.
    pub(super) fn at_vcpu<R>(&self, number: u32, by: impl FnOnce(&mut Shares<Box<Task<'a>>>) -> R) -> R {
        let queue = self.of_vcpu[number as usize].load(Ordering::Relaxed) as usize;
        self.change(queue, |ready| by(&mut ready.shares))
    }

    /// Whether a vCPU of `from`'s guest at `virtual_ns` may run on the pCPU that `from` runs on although it is not next there: see
    /// [`Shares::may_go_first`]. `shares` is the queue that it comes from.
    pub(super) fn may_go_first(
        &self,
        shares: &Shares<Box<Task<'a>>>,
        from: &Task<'_>,
        virtual_ns: u64,
        running_ns: u64,
    ) -> bool {
        if self.is_one() {
            return shares.may_go_first(from.guest.index, virtual_ns, running_ns);
        }
        let own = self.of(from.last_pcpu, from);
        !is_behind(self.queues[own].least_ns(), virtual_ns, self.credit_ns)
            && !self.is_to_take(own, virtual_ns)
    }

    /// The pCPU on which the vCPU that is next ran last, where one queue serves all; `None` if none is ready.
    pub(super) fn next_ran_on(&self) -> Option<Option<u32>> {
        lock(&self.queues[0].ready).shares.first().map(|(_, task)| task.last_pcpu)
    }

    /// Shows `to` the vCPUs that are ready, and whether each is of a guest that is over. One that moves meanwhile may be missed.
    pub(super) fn for_each(&self, mut to: impl FnMut(&Task<'a>, bool)) {
        for queue in &self.queues {
            let ready = lock(&queue.ready);
            ready.shares.iter().for_each(|task| to(task, false));
            ready.retired.iter().for_each(|task| to(task, true));
        }
    }

    /// All vCPUs, those of guests that are over last.
    pub(super) fn into_tasks(self) -> impl Iterator<Item = Box<Task<'a>>> {
        let all = self.queues.into_iter().map(|queue| unlocked(queue.ready));
        all.flat_map(|ready| ready.shares.into_vcpus().chain(ready.retired))
    }
}

/// The queue that a pCPU looks at in addition to its `own` of `queues`, at its `n`-th look: each of the others in turn. pCPUs that look equally
/// often look at different ones, so each queue has about one look a slice, whatever their number. Looks that follow each other go far, since
/// neighbours tend to be alike: those of long queues have long queues, too, as vCPUs start.
fn looks_at(own: usize, n: usize, queues: usize) -> Option<usize> {
    let others = queues.checked_sub(1).filter(|others| *others > 0)?;
    Some((own + 1 + n % others * stride(others) % others) % queues)
}

/// A step by which one comes to each of `others` in turn: about the golden section, which spreads steps most evenly.
fn stride(others: usize) -> usize {
    let divisor = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let golden = others * 89 / 144;
    (golden.max(1)..).find(|step| divisor(*step, others) == 1).expect("a prime number is in reach")
}

/// Whether a pCPU takes from another queue whose first vCPU has had `other_ns`, rather than what it has itself at `own_ns`: if that is
/// behind by more than the `credit_ns` within which a vCPU is preferred where it ran last.
fn is_behind(other_ns: u64, own_ns: u64, credit_ns: u64) -> bool {
    other_ns.saturating_add(credit_ns) < own_ns
}

/// The other queues for a pCPU that has nothing in its `own` of `queues`: nearest first, by number.
fn nearest_first(own: usize, queues: usize) -> impl Iterator<Item = usize> {
    let both_ways = move |far: usize| [Some(own + far), own.checked_sub(far)];
    (1..queues).flat_map(both_ways).flatten().filter(move |queue| *queue < queues)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pcpus_that_look_equally_often_look_at_different_queues() {
        for queues in [2, 3, 16, 256] {
            for n in 0..2 * queues {
                let mut seen = vec![false; queues];
                for own in 0..queues {
                    let other = looks_at(own, n, queues).expect("there are others");
                    assert!(other != own && !std::mem::replace(&mut seen[other], true));
                }
            }
        }
        assert_eq!(looks_at(0, 5, 1), None);
    }

    #[test]
    fn a_search_goes_through_all_others_nearest_first() {
        let found = |own, queues| nearest_first(own, queues).collect::<Vec<_>>();
        assert_eq!(found(1, 5), [2, 0, 3, 4]);
        assert_eq!(found(4, 5), [3, 2, 1, 0]);
        assert!(found(0, 1).is_empty());
    }
}
