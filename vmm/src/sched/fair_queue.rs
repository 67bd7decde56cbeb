//! The ready queue: the vCPU that has had the least CPU time is next.
//!
//! Every vCPU has a virtual time, which grows by the CPU time that it gets. The queue is ordered by it, and by arrival
//! among equals: vCPUs that only run and are preempted take turns. One that slept has fallen behind and so is
//! next, as under the fair schedulers of production hosts; but it is never more than a fixed credit behind the
//! others, so sleeping long earns nothing, and two vCPUs that keep waking each other cannot starve the rest.

use std::collections::VecDeque;

/// A ready vCPU.
#[derive(Debug)]
struct Entry<T> {
    virtual_ns: u64,
    id: u32,
    vcpu: T,
}

/// Ready vCPUs, each in a `T`.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    /// By virtual time, then arrival. Where a vCPU comes in after its slice is near the end, and where the next one is taken is the
    /// front: there a deque moves little, and it allocates nothing.
    ready: VecDeque<Entry<T>>,
    /// Virtual time of the last one taken, at its highest.
    floor_ns: u64,
    credit_ns: u64,
}

impl<T> FairQueue<T> {
    /// An empty queue with room for this number of vCPUs, where sleepers are at most `credit_ns` behind.
    pub(crate) fn new(vcpus: usize, credit_ns: u64) -> Self {
        Self { ready: VecDeque::with_capacity(vcpus), floor_ns: 0, credit_ns }
    }

    /// Whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Everybody, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.ready.iter().map(|entry| &entry.vcpu)
    }

    /// Virtual time of the first in order.
    pub(crate) fn first(&self) -> Option<u64> {
        self.ready.front().map(|entry| entry.virtual_ns)
    }

    /// The virtual time at which a vCPU that slept since `virtual_ns` comes back.
    pub(crate) fn after_sleep(&self, virtual_ns: u64) -> u64 {
        virtual_ns.max(self.floor_ns.saturating_sub(self.credit_ns))
    }

    /// Adds vCPU `id`, which is not in the queue.
    pub(crate) fn push(&mut self, id: u32, virtual_ns: u64, vcpu: T) {
        let at = self.ready.partition_point(|other| other.virtual_ns <= virtual_ns);
        self.ready.insert(at, Entry { virtual_ns, id, vcpu });
    }

    /// How many are ready.
    pub(crate) fn len(&self) -> usize {
        self.ready.len()
    }

    /// Takes the entry that is next; or, among the first few, one that is preferred and behind by at most the
    /// credit, which bounds what the preference can cost the others.
    pub(crate) fn pop(&mut self, preferred: impl Fn(&T) -> bool) -> Option<T> {
        const FEW: usize = 16;
        let first_ns = self.first()?;
        self.floor_ns = self.floor_ns.max(first_ns);
        let limit_ns = first_ns + self.credit_ns;
        let mut few = self.ready.iter().take(FEW).take_while(|entry| entry.virtual_ns <= limit_ns);
        let at = few.position(|entry| preferred(&entry.vcpu)).unwrap_or(0);
        self.ready.remove(at).map(|entry| entry.vcpu)
    }

    /// Place of vCPU `id` in the order, if it is ready: only directed yields ask.
    fn position(&self, id: u32) -> Option<usize> {
        self.ready.iter().position(|entry| entry.id == id)
    }

    /// Virtual time of vCPU `id`, if it is ready.
    pub(crate) fn virtual_ns_of(&self, id: u32) -> Option<u64> {
        self.position(id).map(|at| self.ready[at].virtual_ns)
    }

    /// Takes vCPU `id`, if it is ready.
    pub(crate) fn take(&mut self, id: u32) -> Option<T> {
        let at = self.position(id)?;
        self.ready.remove(at).map(|entry| entry.vcpu)
    }

    /// Everybody, in order.
    pub(crate) fn into_vcpus(self) -> impl Iterator<Item = T> {
        self.ready.into_iter().map(|entry| entry.vcpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDIT: u64 = 10;

    /// vCPUs that arrive in this order, with their virtual times.
    fn queue(vcpus: &[(u32, u64)]) -> FairQueue<u32> {
        let mut queue = FairQueue::new(3, CREDIT);
        vcpus.iter().for_each(|&(id, virtual_ns)| queue.push(id, virtual_ns, id));
        queue
    }

    fn order(queue: FairQueue<u32>) -> Vec<u32> {
        queue.into_vcpus().collect()
    }

    #[test]
    fn equals_are_served_in_order_of_arrival() {
        assert_eq!(order(queue(&[(2, 5), (0, 5), (1, 5)])), [2, 0, 1]);
    }

    #[test]
    fn whoever_has_run_least_is_next() {
        let mut queue = queue(&[(0, 30), (1, 10), (2, 20)]);
        assert_eq!(queue.pop(|_| true), Some(1));
        assert_eq!(queue.pop(|_| true), Some(2));
        assert_eq!(queue.pop(|_| true), Some(0));
        assert_eq!(queue.pop(|_| true), None);
    }

    #[test]
    fn a_sleeper_comes_back_first_but_earns_at_most_its_credit() {
        let mut queue = queue(&[(0, 1000)]);
        queue.pop(|_| true);
        assert_eq!(queue.after_sleep(0), 990);
        assert_eq!(queue.after_sleep(995), 995);
        assert_eq!(queue.after_sleep(2000), 2000);
    }

    #[test]
    fn two_that_keep_waking_each_other_do_not_starve_a_third() {
        let mut queue = queue(&[(2, 0)]);
        let (mut times, mut turn, mut turns) = ([0; 2], 0, 0);
        loop {
            let virtual_ns = queue.after_sleep(times[turn]);
            queue.push(turn as u32, virtual_ns, turn as u32);
            if queue.pop(|_| true) == Some(2) {
                break;
            }
            times[turn] = virtual_ns + 1;
            turn = 1 - turn;
            turns += 1;
            assert!(turns < 10 * CREDIT, "vCPU 2 starves");
        }
    }

    #[test]
    fn a_preference_counts_within_the_credit_only() {
        let mut queue = queue(&[(0, 0), (1, CREDIT), (2, CREDIT + 1)]);
        assert_eq!(queue.pop(|&id| id == 2), Some(0));
        queue.push(0, 0, 0);
        assert_eq!(queue.pop(|&id| id == 1), Some(1));
    }

    #[test]
    fn one_can_be_taken_out_of_turn_and_once_only() {
        let mut queue = queue(&[(0, 0), (1, 0), (2, 0)]);
        assert_eq!(queue.take(1), Some(1));
        assert_eq!(queue.take(1), None);
        assert_eq!(queue.take(7), None);
        queue.push(1, 0, 1);
        assert_eq!(order(queue), [0, 2, 1]);
    }
}
