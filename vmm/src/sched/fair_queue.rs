//! One ready queue: the vCPU that has had the least CPU time is next, or that of the guest that has.
//!
//! Every vCPU has a virtual time, which grows by the CPU time that it gets. The queue is ordered by it, and by arrival
//! among equals: vCPUs that only run and are preempted take turns. One that slept has fallen behind and so is
//! next, as under the fair schedulers of production hosts; but it is never more than a fixed credit behind the
//! others, so sleeping long earns nothing, and two vCPUs that keep waking each other cannot starve the rest.
//!
//! With several guests every vCPU has the same share, or every guest has. By vCPU, all are in one queue. By guest, each guest has a queue
//! of its own and a virtual time that grows by the CPU time of its vCPUs; the guest that has had least is served, and within it the vCPU
//! that has had least. A guest that slept as a whole comes back at most the credit behind the others, as vCPUs do.

use std::collections::VecDeque;

use crate::sched::Share;

/// A ready vCPU.
#[derive(Debug)]
struct Entry<T> {
    virtual_ns: u64,
    id: u32,
    vcpu: T,
}

/// Ready vCPUs of a guest, or of all guests.
#[derive(Debug)]
struct Queue<T> {
    /// By virtual time, then arrival. Where a vCPU comes in after its slice is near the end, and where the next one is taken is the
    /// front: there a deque moves little, and it allocates nothing.
    ready: VecDeque<Entry<T>>,
    /// Virtual time of the last one taken, at its highest.
    floor_ns: u64,
    /// Virtual time of the guest.
    used_ns: u64,
}

/// Ready vCPUs of all guests, each in a `T`.
#[derive(Debug)]
pub(crate) struct Shares<T> {
    /// One, or one per guest.
    queues: Vec<Queue<T>>,
    /// Virtual time of the last guest served, at its highest.
    floor_ns: u64,
    credit_ns: u64,
}

impl<T> Shares<T> {
    /// An empty queue with room for `vcpus` of each of `guests`, where sleepers are at most `credit_ns` behind.
    pub(crate) fn new(share: Share, guests: usize, vcpus: usize, credit_ns: u64) -> Self {
        let queues = if share == Share::Guest { guests } else { 1 };
        let queue = |_| Queue { ready: VecDeque::with_capacity(vcpus), floor_ns: 0, used_ns: 0 };
        Self { queues: (0..queues).map(queue).collect(), floor_ns: 0, credit_ns }
    }

    /// Whether guests have shares, and so are charged for what their vCPUs run.
    pub(crate) fn charges(&self) -> bool {
        self.queues.len() > 1
    }

    fn queue_of(&self, guest: usize) -> usize {
        if self.charges() { guest } else { 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.queues.iter().map(|queue| queue.ready.len()).sum()
    }

    /// Everybody, in the order of each queue.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.queues.iter().flat_map(|queue| &queue.ready).map(|entry| &entry.vcpu)
    }

    /// The virtual time at which a vCPU of `guest` that slept since `virtual_ns` comes back.
    pub(crate) fn after_sleep(&self, guest: usize, virtual_ns: u64) -> u64 {
        let floor_ns = self.queues[self.queue_of(guest)].floor_ns;
        virtual_ns.max(floor_ns.saturating_sub(self.credit_ns))
    }

    /// Adds vCPU `id` of `guest`, which is not in the queue; ids differ between guests.
    pub(crate) fn push(&mut self, guest: usize, id: u32, virtual_ns: u64, vcpu: T) {
        let own = self.queue_of(guest);
        let queue = &mut self.queues[own];
        if queue.ready.is_empty() {
            queue.used_ns = queue.used_ns.max(self.floor_ns.saturating_sub(self.credit_ns));
        }
        let at = queue.ready.partition_point(|other| other.virtual_ns <= virtual_ns);
        queue.ready.insert(at, Entry { virtual_ns, id, vcpu });
    }

    pub(crate) fn charge(&mut self, guest: usize, run_ns: u64) {
        let own = self.queue_of(guest);
        self.queues[own].used_ns += run_ns;
    }

    /// Takes the vCPU that is next; or, among the first few, one that is preferred and behind by at most the
    /// credit, which bounds what the preference can cost the others.
    pub(crate) fn pop(&mut self, preferred: impl Fn(&T) -> bool) -> Option<T> {
        const FEW: usize = 16;
        let next = self.next_queue()?;
        let queue = &mut self.queues[next];
        self.floor_ns = self.floor_ns.max(queue.used_ns);
        let first_ns = queue.ready.front()?.virtual_ns;
        queue.floor_ns = queue.floor_ns.max(first_ns);
        let limit_ns = first_ns + self.credit_ns;
        let mut few = queue.ready.iter().take(FEW).take_while(|entry| entry.virtual_ns <= limit_ns);
        let at = few.position(|entry| preferred(&entry.vcpu)).unwrap_or(0);
        queue.ready.remove(at).map(|entry| entry.vcpu)
    }

    /// The vCPU that is next if none is preferred, and its virtual time.
    pub(crate) fn first(&self) -> Option<(u64, &T)> {
        let first = self.queues[self.next_queue()?].ready.front()?;
        Some((first.virtual_ns, &first.vcpu))
    }

    fn next_queue(&self) -> Option<usize> {
        let ready = (0..self.queues.len()).filter(|&queue| !self.queues[queue].ready.is_empty());
        ready.min_by_key(|&queue| self.queues[queue].used_ns)
    }

    /// The queue of vCPU `id` of `guest` and its place there, if it is ready: only directed yields ask.
    fn find(&self, guest: usize, id: u32) -> Option<(usize, usize)> {
        let own = self.queue_of(guest);
        let at = self.queues[own].ready.iter().position(|entry| entry.id == id)?;
        Some((own, at))
    }

    pub(crate) fn virtual_ns_of(&self, guest: usize, id: u32) -> Option<u64> {
        self.find(guest, id).map(|(own, at)| self.queues[own].ready[at].virtual_ns)
    }

    pub(crate) fn take(&mut self, guest: usize, id: u32) -> Option<T> {
        let (own, at) = self.find(guest, id)?;
        self.queues[own].ready.remove(at).map(|entry| entry.vcpu)
    }

    /// Whether a vCPU of `guest` at `virtual_ns` may run although it is not next: it may not if it is ahead of another
    /// one that is ready by more than the credit, or if by guest its guest, with the `running_ns` that are not charged
    /// yet, is ahead of another. So waiters that yield to each other in a ring, which was seen, do not keep the owner
    /// of their lock from its turn.
    pub(crate) fn may_go_first(&self, guest: usize, virtual_ns: u64, running_ns: u64) -> bool {
        let own = self.queue_of(guest);
        let within = |used_ns: u64, others_ns: Option<u64>| {
            others_ns.is_none_or(|others_ns| used_ns <= others_ns.saturating_add(self.credit_ns))
        };
        let others = (0..self.queues.len()).filter(|&other| other != own).map(|other| &self.queues[other]);
        let others_ns = others.filter(|other| !other.ready.is_empty()).map(|other| other.used_ns).min();
        let Queue { ready, used_ns, .. } = &self.queues[own];
        within(virtual_ns, ready.front().map(|first| first.virtual_ns))
            && within(used_ns.saturating_add(running_ns), others_ns)
    }

    pub(crate) fn into_vcpus(self) -> impl Iterator<Item = T> {
        self.queues.into_iter().flat_map(|queue| queue.ready).map(|entry| entry.vcpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDIT: u64 = 10;

    /// vCPUs that arrive in this order, with their virtual times.
    fn queue(vcpus: &[(u32, u64)]) -> Shares<u32> {
        let mut queue = Shares::new(Share::Vcpu, 1, 3, CREDIT);
        vcpus.iter().for_each(|&(id, virtual_ns)| queue.push(0, id, virtual_ns, id));
        queue
    }

    fn order(mut queue: Shares<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(|_| true)).collect()
    }

    #[test]
    fn whoever_has_run_least_is_next_and_of_equals_who_came_first() {
        for (arrive, expected) in
            [([(2, 5), (0, 5), (1, 5)], [2, 0, 1]), ([(0, 30), (1, 10), (2, 20)], [1, 2, 0])]
        {
            assert_eq!(order(queue(&arrive)), expected, "{arrive:?}");
        }
    }

    #[test]
    fn a_sleeper_comes_back_first_but_earns_at_most_its_credit() {
        let mut queue = queue(&[(0, 1000)]);
        queue.pop(|_| true);
        assert_eq!([0, 995, 2000].map(|slept_ns| queue.after_sleep(0, slept_ns)), [990, 995, 2000]);
    }

    #[test]
    fn a_preference_counts_within_the_credit_only() {
        let mut queue = queue(&[(0, 0), (1, CREDIT), (2, CREDIT + 1)]);
        assert_eq!(queue.pop(|&id| id == 2), Some(0));
        queue.push(0, 0, 0, 0);
        assert_eq!(queue.pop(|&id| id == 1), Some(1));
    }

    #[test]
    fn a_guest_that_slept_comes_first_within_its_credit() {
        let mut shares = Shares::new(Share::Guest, 2, 2, 10);
        shares.push(0, 0, 0, 0);
        for _ in 0..100 {
            assert_eq!(shares.pop(|_| true), Some(0));
            shares.charge(0, 10);
            shares.push(0, 0, 0, 0);
        }
        shares.push(1, 1, 0, 1);
        let mut turns = 0;
        while shares.pop(|_| true) == Some(1) {
            shares.charge(1, 10);
            shares.push(1, 1, 0, 1);
            turns += 1;
        }
        assert!((1..=3).contains(&turns), "{turns} turns in a row");
    }
}
