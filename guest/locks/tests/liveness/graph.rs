//! Progress and overtaking, judged from the states of a lock.

use std::collections::{HashMap, VecDeque};

use haltkick_locks::Point;

use crate::explorer::{Edge, Graph, NOBODY, State};

/// More than any lock here allows that has a bound.
const UNBOUNDED: u32 = 12;

impl Graph {
    /// From which states a way of `allowed` steps leads to one that is a `goal`, or to a state in which it is reached.
    fn reaching(
        &self,
        allowed: impl Fn(&Edge) -> bool,
        goal: impl Fn(u32, &Edge) -> bool,
        reached: impl Fn(&State) -> bool,
    ) -> Vec<bool> {
        let states = self.states.len();
        // Steps by where they lead to: how many, where they begin, which.
        let mut begins = vec![0_u32; states + 1];
        for edge in self.edges.iter().filter(|edge| allowed(edge)) {
            begins[edge.to as usize + 1] += 1;
        }
        for state in 0..states {
            begins[state + 1] += begins[state];
        }
        let mut filled = begins.clone();
        let mut from = vec![0_u32; begins[states] as usize];
        let mut reach: Vec<_> = self.states.iter().map(reached).collect();
        for state in 0..states as u32 {
            for edge in self.edges_of(state).iter().filter(|edge| allowed(edge)) {
                from[filled[edge.to as usize] as usize] = state;
                filled[edge.to as usize] += 1;
                reach[state as usize] |= goal(state, edge);
            }
        }
        let mut next: Vec<_> = (0..states as u32).filter(|state| reach[*state as usize]).collect();
        while let Some(state) = next.pop() {
            for before in &from[begins[state as usize] as usize..begins[state as usize + 1] as usize] {
                if !std::mem::replace(&mut reach[*before as usize], true) {
                    next.push(*before);
                }
            }
        }
        reach
    }

    /// From every state every CPU can come to its next acquisition, or has done its rounds. Only ways without a
    /// spurious wake-up count, for one would hide a lost kick.
    pub(crate) fn assert_a_way_forward(&self) {
        for cpu in 0..self.cpus as u8 {
            let reach = self.reaching(
                |edge| !edge.spurious,
                |_, edge| edge.acquired && edge.cpu == cpu,
                |state| state.ended & 1 << cpu != 0,
            );
            if let Some(stuck) = reach.iter().position(|reach| !reach) {
                panic!("CPU {cpu} never gets the lock any more:\n{}", self.tell(&self.way_to(stuck as u32)));
            }
        }
    }

    /// Returns a state in which the lock is free, no CPU has finished, and no CPU gets the lock before `absent` goes
    /// on, which does not have it.
    pub(crate) fn free_but_for(&self, absent: u8) -> Option<u32> {
        let reach = self.reaching(
            |edge| !edge.spurious && edge.cpu != absent,
            |_, edge| edge.acquired,
            |state| state.owner == absent,
        );
        let is_free =
            |state: u32| self.word(state) & 0xff == 0 && self.states[state as usize].owner == NOBODY;
        let others = ((1_u8 << self.cpus) - 1) & !(1 << absent);
        (0..self.states.len() as u32).find(|state| {
            let waiting = self.states[*state as usize].ended & others == 0;
            waiting && is_free(*state) && !reach[*state as usize]
        })
    }

    /// Whether a step takes the lock: bit 0 of the word says that it is taken. `lock` may return later.
    fn takes(&self, from: u32, edge: &Edge) -> bool {
        self.word(from) & 1 == 0 && self.word(edge.to) & 1 == 1
    }

    /// How often, at most, others take the lock from a step of CPU 0 that `begins` until CPU 0 takes it, in states in which it
    /// still `lasts`; [`None`]: as often as one likes. Prints a way to the state in which that is reached, or to one from which
    /// it goes on and on, after `what`.
    pub(crate) fn overtaking(
        &self,
        what: &str,
        begins: impl Fn(&Edge) -> bool,
        lasts: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        type Counted = (u32, u32);
        let mut before: HashMap<Counted, Option<(Counted, Edge)>> = HashMap::new();
        let mut next = VecDeque::new();
        let waits = |edge: &&Edge| edge.cpu == 0 && begins(edge);
        for edge in self.edges.iter().filter(waits) {
            if before.insert((edge.to, 0), None).is_none() {
                next.push_back((edge.to, 0));
            }
        }
        let mut most = *next.front().expect("CPU 0 comes there");
        while let Some((state, count)) = next.pop_front() {
            if count > most.1 {
                most = (state, count);
            }
            if count == UNBOUNDED {
                break;
            }
            for edge in self.edges_of(state) {
                let takes = self.takes(state, edge);
                if (takes || edge.acquired) && edge.cpu == 0 || !lasts(edge.to) {
                    continue;
                }
                let to = (edge.to, count + u32::from(takes));
                before.entry(to).or_insert_with(|| {
                    next.push_back(to);
                    Some(((state, count), *edge))
                });
            }
        }
        let mut way = vec![];
        let mut at = most;
        while let Some((earlier, edge)) = before[&at] {
            way.push(edge);
            at = earlier;
        }
        way.reverse();
        let mut whole = self.way_to(at.0);
        whole.extend(way);
        let most = (most.1 < UNBOUNDED).then_some(most.1);
        println!("{what}: {most:?}\n{}", self.tell(&whole));
        most
    }

    /// Returns one state from which CPU 0 can be overtaken forever although every CPU goes on: in the queue all the
    /// time, with steps of each CPU and acquisitions by others again and again, and none by CPU 0.
    pub(crate) fn starvation(&self) -> Option<u32> {
        let mut starves: Vec<_> = self.states.iter().map(|state| state.queued & 1 != 0).collect();
        loop {
            let before = starves.clone();
            // A step of each CPU, and an acquisition, have to come once more, with nothing but such states before it.
            for wanted in 0..=self.cpus {
                let reach = self.reaching(
                    |edge| !edge.spurious && starves[edge.to as usize],
                    |from, edge| {
                        usize::from(edge.cpu) == wanted || wanted == self.cpus && self.takes(from, edge)
                    },
                    // A CPU that has done its rounds makes no steps.
                    |state| state.ended & 1 << wanted != 0,
                );
                for (starves, reach) in starves.iter_mut().zip(reach) {
                    *starves &= reach;
                }
            }
            if starves == before {
                return starves.iter().position(|starves| *starves).map(|state| state as u32);
            }
        }
    }
}

/// It puts itself into the queue.
pub(crate) fn queues(edge: &Edge) -> bool {
    edge.passes(Point::TailPublished)
}

/// It is head and forbids to steal.
pub(crate) fn insists(edge: &Edge) -> bool {
    edge.passes(Point::HeadSpinning)
}
