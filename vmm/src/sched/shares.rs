//! The ready queue of several guests: every vCPU has the same share, or every guest has.
//!
//! By vCPU, all are in one [`FairQueue`]. By guest, each guest has a queue of its own and a virtual time that grows by the
//! CPU time of its vCPUs; the guest that has had least is served, and within it the vCPU that has had least. A guest
//! that slept as a whole comes back at most the credit behind the others, as vCPUs do.

use crate::sched::Share;
use crate::sched::fair_queue::FairQueue;

/// Ready vCPUs of all guests.
#[derive(Debug)]
pub(crate) struct Shares<T> {
    /// One, or one per guest.
    queues: Vec<FairQueue<T>>,
    /// Virtual time of each queue.
    used_ns: Vec<u64>,
    floor_ns: u64,
    credit_ns: u64,
}

impl<T> Shares<T> {
    /// An empty queue with room for `vcpus` of each of `guests`, where sleepers are at most `credit_ns` behind.
    pub(crate) fn new(share: Share, guests: usize, vcpus: usize, credit_ns: u64) -> Self {
        let queues = if share == Share::Guest { guests } else { 1 };
        Self {
            queues: (0..queues).map(|_| FairQueue::new(vcpus, credit_ns)).collect(),
            used_ns: vec![0; queues],
            floor_ns: 0,
            credit_ns,
        }
    }

    /// Whether guests have shares, and so are charged for what their vCPUs run.
    pub(crate) fn charges(&self) -> bool {
        self.queues.len() > 1
    }

    fn queue_of(&self, guest: usize) -> usize {
        if self.charges() { guest } else { 0 }
    }

    /// How many are ready.
    pub(crate) fn len(&self) -> usize {
        self.queues.iter().map(FairQueue::len).sum()
    }

    /// Everybody.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.queues.iter().flat_map(FairQueue::iter)
    }

    /// The virtual time at which a vCPU of `guest` that slept since `virtual_ns` comes back.
    pub(crate) fn after_sleep(&self, guest: usize, virtual_ns: u64) -> u64 {
        self.queues[self.queue_of(guest)].after_sleep(virtual_ns)
    }

    /// Adds vCPU `id` of `guest`, which is not in the queue; ids differ between guests.
    pub(crate) fn push(&mut self, guest: usize, id: u32, virtual_ns: u64, vcpu: T) {
        let queue = self.queue_of(guest);
        if self.queues[queue].is_empty() {
            self.used_ns[queue] = self.used_ns[queue].max(self.floor_ns.saturating_sub(self.credit_ns));
        }
        self.queues[queue].push(id, virtual_ns, vcpu);
    }

    /// Charges `guest` for the run time of a vCPU.
    pub(crate) fn charge(&mut self, guest: usize, run_ns: u64) {
        let queue = self.queue_of(guest);
        self.used_ns[queue] += run_ns;
    }

    /// Takes the one that is next, as [`FairQueue::pop`].
    pub(crate) fn pop(&mut self, preferred: impl Fn(&T) -> bool) -> Option<T> {
        let queue = self.next_queue()?;
        self.floor_ns = self.floor_ns.max(self.used_ns[queue]);
        self.queues[queue].pop(preferred)
    }

    /// Virtual time of the one that is next if none is preferred.
    pub(crate) fn first_ns(&self) -> Option<u64> {
        self.queues[self.next_queue()?].first()
    }

    /// The one that is next if none is preferred.
    pub(crate) fn next(&self) -> Option<&T> {
        self.queues[self.next_queue()?].iter().next()
    }

    /// The queue of the one that is next.
    fn next_queue(&self) -> Option<usize> {
        let ready = (0..self.queues.len()).filter(|&queue| !self.queues[queue].is_empty());
        ready.min_by_key(|&queue| self.used_ns[queue])
    }

    /// Virtual time of vCPU `id` of `guest`, if it is ready.
    pub(crate) fn virtual_ns_of(&self, guest: usize, id: u32) -> Option<u64> {
        self.queues[self.queue_of(guest)].virtual_ns_of(id)
    }

    /// Takes vCPU `id` of `guest`, if it is ready.
    pub(crate) fn take(&mut self, guest: usize, id: u32) -> Option<T> {
        let queue = self.queue_of(guest);
        self.queues[queue].take(id)
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
        let others = (0..self.queues.len()).filter(|&other| other != own && !self.queues[other].is_empty());
        let others_ns = others.map(|other| self.used_ns[other]).min();
        within(virtual_ns, self.queues[own].first())
            && within(self.used_ns[own].saturating_add(running_ns), others_ns)
    }

    /// Everybody, in order.
    pub(crate) fn into_vcpus(self) -> impl Iterator<Item = T> {
        self.queues.into_iter().flat_map(FairQueue::into_vcpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each of two guests runs in 100 slices on one pCPU, guest 0 with three vCPUs, guest 1 with one.
    fn turns(share: Share) -> [u32; 2] {
        const SLICE: u64 = 10;
        let mut shares = Shares::new(share, 2, 4, SLICE);
        let mut times = [0; 4];
        let guest_of = |id: u32| usize::from(id == 3);
        for id in 0..4 {
            shares.push(guest_of(id), id, 0, id);
        }
        let mut turns = [0; 2];
        for _ in 0..100 {
            let id = shares.pop(|_| true).unwrap();
            let guest = guest_of(id);
            turns[guest] += 1;
            times[id as usize] += SLICE;
            shares.charge(guest, SLICE);
            shares.push(guest, id, times[id as usize], id);
        }
        turns
    }

    #[test]
    fn a_share_is_a_vcpus_or_a_guests() {
        assert_eq!(turns(Share::Vcpu), [75, 25]);
        assert_eq!(turns(Share::Guest), [50, 50]);
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
