//! All states of a few CPUs that take one lock forever, and the steps between them.

#![expect(unsafe_code, reason = "the memory of a lock as bytes")]

use std::{collections::HashMap, slice};

use haltkick_locks::{Domain, Lock, Point, Queues};
use indexmap::IndexSet;

use crate::machine::{self, Cpus, Done, Frozen, MOST_CPUS, Machine, Stop};

/// A lock and its domain, which are all the memory that CPUs share.
#[repr(C)]
pub(crate) struct Shared<D, L> {
    /// First, so that its word is the first of the memory.
    lock: L,
    domain: D,
    rounds: Rounds,
}

/// How often each CPU takes the lock; [`FOR_EVER`]: without end.
pub(crate) type Rounds = [u32; MOST_CPUS];

pub(crate) const FOR_EVER: u32 = u32::MAX;

/// One state: numbers of what the parts look like.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    memory: u32,
    cpus: [u32; MOST_CPUS],
    /// Bit `i`: a kick of CPU `i` is latched.
    latches: u8,
    /// CPU in the section, or [`NOBODY`].
    pub(crate) owner: u8,
    /// Bit `i`: CPU `i` is in the queue of the lock and does not have it.
    pub(crate) queued: u8,
    /// Bit `i`: CPU `i` has done its rounds.
    pub(crate) ended: u8,
}

pub(crate) const NOBODY: u8 = u8::MAX;

/// One step from a state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) to: u32,
    pub(crate) cpu: u8,
    pub(crate) acquired: bool,
    /// The end of a wait without a kick.
    pub(crate) spurious: bool,
    pub(crate) points: u32,
}

impl Edge {
    pub(crate) fn passes(&self, point: Point) -> bool {
        self.points & 1 << point as u32 != 0
    }
}

/// Effect of a CPU's step on its own state and on the memory.
#[derive(Clone, Copy)]
struct Outcome {
    cpu: u32,
    memory: u32,
    done: Done,
}

/// All states that can be reached, in the order of their distance from the first one, and the steps between them.
pub(crate) struct Graph {
    pub(crate) cpus: usize,
    pub(crate) states: IndexSet<State>,
    /// Index in `edges` of a state's first edge.
    begins: Vec<u32>,
    pub(crate) edges: Vec<Edge>,
    /// By which state and step each state was found first.
    pub(crate) parents: Vec<(u32, u32)>,
    /// The lock's word in each memory.
    words: Vec<u32>,
}

/// Takes and releases the lock.
fn program<D, L: Lock<D>>(shared: *const (), cpu: usize) {
    // SAFETY: `explore` passes the address of a `Shared<D, L>`, which outlives the machine.
    let Shared { lock, domain, rounds } = unsafe { &*shared.cast::<Shared<D, L>>() };
    let mut left = rounds[cpu];
    while left > 0 {
        let token = lock.lock(domain);
        machine::section();
        lock.unlock(domain, token);
        if left != FOR_EVER {
            left -= 1;
        }
    }
}

struct Explorer {
    cpus: usize,
    machine: Machine,
    memory: *mut u8,
    bytes: usize,
    queues: Queues,
    /// States of memory and of CPUs that were seen. A state has their numbers.
    memories: IndexSet<Box<[u8]>>,
    frozen: [IndexSet<Frozen>; MOST_CPUS],
    outcomes: HashMap<(u8, bool, u32, u32), Outcome>,
}

impl Explorer {
    fn new<D: Domain, L: Lock<D>>(rounds: Rounds, domain: D, lock: L) -> Self {
        let cpus = rounds.iter().take_while(|rounds| **rounds > 0).count();
        // Zeros first, so that what lies between the fields is always the same.
        let bytes = size_of::<Shared<D, L>>();
        let layout = std::alloc::Layout::new::<Shared<D, L>>();
        // SAFETY: the size is not 0. The memory is never given back, as the statics of a kernel.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        let shared = memory.cast::<Shared<D, L>>();
        // SAFETY: as large and as aligned as it has to be.
        unsafe { shared.write(Shared { lock, domain, rounds }) };
        // SAFETY: just written, and no CPU runs.
        let queues = unsafe { (*shared).domain.queues() }.expect("a lock with a queue");
        Self {
            cpus,
            machine: Machine::new(program::<D, L>, shared.cast(), queues),
            memory,
            bytes,
            queues,
            memories: IndexSet::new(),
            frozen: Default::default(),
            outcomes: HashMap::new(),
        }
    }

    /// Returns the number of the memory as it is now. The link and the flag of an unused node do not count: its CPU
    /// sets them before it uses the node again.
    fn look(&mut self) -> u32 {
        // SAFETY: no CPU runs, and nothing else refers to the memory.
        let mut bytes: Box<[u8]> = unsafe { slice::from_raw_parts(self.memory, self.bytes) }.into();
        for cpu in 0..self.cpus {
            let own = |at: usize| at - self.memory as usize + cpu * self.queues.cpu_bytes;
            let in_use = own(self.queues.in_use);
            if bytes[in_use..in_use + 4] == [0; 4] {
                for field in [self.queues.next, self.queues.locked] {
                    let field = own(self.queues.nodes) + field;
                    bytes[field..field + 4].fill(0);
                }
            }
        }
        self.memories.insert_full(bytes).0 as u32
    }

    fn restore(&mut self, memory: u32) {
        // SAFETY: as in `look`.
        let bytes = unsafe { slice::from_raw_parts_mut(self.memory, self.bytes) };
        bytes.copy_from_slice(&self.memories[memory as usize]);
    }

    fn first(&mut self) -> State {
        let mut cpus = [0; MOST_CPUS];
        for (cpu, number) in cpus.iter_mut().enumerate().take(self.cpus) {
            let frozen = self.machine.start(cpu);
            *number = self.frozen[cpu].insert_full(frozen).0 as u32;
        }
        State { memory: self.look(), cpus, latches: 0, owner: NOBODY, queued: 0, ended: 0 }
    }

    fn outcome(&mut self, cpu: usize, answer: bool, from: State) -> Outcome {
        let key = (cpu as u8, answer, from.cpus[cpu], from.memory);
        if let Some(outcome) = self.outcomes.get(&key) {
            return *outcome;
        }
        self.restore(from.memory);
        let (frozen, done) = self.machine.step(cpu, &self.frozen[cpu][from.cpus[cpu] as usize], answer);
        let outcome =
            Outcome { cpu: self.frozen[cpu].insert_full(frozen).0 as u32, memory: self.look(), done };
        self.outcomes.insert(key, outcome);
        outcome
    }

    /// The state after a step, and what the step was.
    fn after(&mut self, cpu: usize, answer: bool, spurious: bool, from: State) -> (State, Edge) {
        let Outcome { cpu: frozen, memory, done } = self.outcome(cpu, answer, from);
        let bit = 1 << cpu;
        let mut to = State { memory, latches: from.latches | done.kicked, ..from };
        to.cpus[cpu] = frozen;
        if self.frozen[cpu][frozen as usize].stop == Stop::End {
            to.ended |= bit;
        }
        if done.left {
            assert_eq!(to.owner, cpu as u8);
            to.owner = NOBODY;
        }
        if done.points & 1 << Point::TailPublished as u32 != 0 {
            to.queued |= bit;
        }
        if done.acquired {
            assert_eq!(to.owner, NOBODY, "two CPUs are in the section");
            to.owner = cpu as u8;
            to.queued &= !bit;
        }
        (to, Edge { to: 0, cpu: cpu as u8, acquired: done.acquired, spurious, points: done.points })
    }

    fn steps(&mut self, from: State) -> Vec<(State, Edge)> {
        let mut steps = vec![];
        let at = |cpu: usize| self.frozen[cpu][from.cpus[cpu] as usize].stop;
        // An answer to one CPU changes nothing for the others, so it may be given at once.
        if let Some(cpu) = (0..self.cpus).find(|cpu| at(*cpu) == Stop::Choice) {
            return [false, true].map(|answer| self.after(cpu, answer, false, from)).into();
        }
        for cpu in 0..self.cpus {
            match self.frozen[cpu][from.cpus[cpu] as usize].stop {
                Stop::Access | Stop::Section => steps.push(self.after(cpu, false, false, from)),
                Stop::Choice => unreachable!("they come first"),
                Stop::End => {}
                Stop::Wait => {
                    let bit = 1 << cpu;
                    let kicked = from.latches & bit != 0;
                    let awake = State { latches: from.latches & !bit, ..from };
                    steps.push(self.after(cpu, false, !kicked, awake));
                }
            }
        }
        steps
    }
}

/// More states than this are not tried: some gigabytes.
const MOST_STATES: usize = 60_000_000;

/// Explores the states of CPUs that take the lock as often as `rounds` say: all, or the nearest until more than `most` are
/// known. In each of them at most one CPU is in the section, and some CPU can go on without a spurious wake-up. Where all take
/// the lock a number of times, a lost kick leads to a state in which no CPU can.
pub(crate) fn explore<D: Domain, L: Lock<D>>(
    rounds: Rounds,
    domain: fn(Cpus) -> D,
    lock: L,
    most: Option<usize>,
) -> Graph {
    let mut explorer = Explorer::new(rounds, domain(Cpus), lock);
    let mut states = IndexSet::from([explorer.first()]);
    let (mut begins, mut edges, mut parents) = (vec![], vec![], vec![(0, 0)]);
    while begins.len() < states.len() && most.is_none_or(|most| states.len() <= most) {
        let from = begins.len();
        begins.push(edges.len() as u32);
        let state = states[from];
        let steps = explorer.steps(state);
        let all_done = state.ended.count_ones() as usize == explorer.cpus;
        let goes_on = all_done || steps.iter().any(|(_, edge)| !edge.spurious);
        assert!(goes_on, "all wait, and nobody is kicked: {state:?}");
        for (to, edge) in steps {
            let (number, is_new) = states.insert_full(to);
            if is_new {
                parents.push((from as u32, edges.len() as u32));
            }
            edges.push(Edge { to: number as u32, ..edge });
        }
        assert!(most.is_some() || states.len() <= MOST_STATES, "too many states");
    }
    let explored = begins.len();
    begins.push(edges.len() as u32);
    let word = |memory: &[u8]| u32::from_le_bytes(memory[..4].try_into().expect("four bytes"));
    let words = explorer.memories.iter().map(|memory| word(memory)).collect();
    println!(
        "{explored} states of {} known, {} steps; {} of the memory, at most {} of one CPU",
        states.len(),
        edges.len(),
        explorer.memories.len(),
        explorer.frozen.iter().map(IndexSet::len).max().unwrap_or(0),
    );
    Graph { cpus: explorer.cpus, states, begins, edges, parents, words }
}

impl Graph {
    pub(crate) fn edges_of(&self, state: u32) -> &[Edge] {
        &self.edges[self.begins[state as usize] as usize..self.begins[state as usize + 1] as usize]
    }

    pub(crate) fn word(&self, state: u32) -> u32 {
        self.words[self.states[state as usize].memory as usize]
    }

    /// A shortest way from the first state.
    pub(crate) fn way_to(&self, state: u32) -> Vec<Edge> {
        let mut way = vec![];
        let mut at = state;
        while at != 0 {
            let (before, edge) = self.parents[at as usize];
            way.push(self.edges[edge as usize]);
            at = before;
        }
        way.reverse();
        way
    }

    /// A way in words, as far as it shows: points, acquisitions, ends of waits.
    pub(crate) fn tell(&self, way: &[Edge]) -> String {
        let mut lines = vec![];
        for edge in way {
            let points = Point::ALL.into_iter().filter(|point| edge.passes(*point)).map(Point::name);
            let mut what: Vec<_> = points.collect();
            if edge.acquired {
                what.push("acquires");
            }
            if edge.spurious {
                what.push("wakes for no reason");
            }
            if !what.is_empty() {
                let does = what.join(", ");
                lines.push(format!("  CPU {} {does}; the word is {:#x}", edge.cpu, self.word(edge.to)));
            }
        }
        lines.join("\n")
    }
}
