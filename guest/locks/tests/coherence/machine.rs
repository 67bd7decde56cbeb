//! A machine of coroutines with a cache line model.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Once,
};

use generator::{Generator, Gn};
use haltkick_locks::{
    Event, Platform,
    coherence::{Access, observe},
};

/// Nanoseconds for which an access keeps its CPU, by where the line comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topology {
    /// CPUs of one core, which share its cache.
    cpus_per_core: usize,
    cores_per_socket: usize,
    from_this_socket_ns: u64,
    from_other_socket_ns: u64,
}

impl Topology {
    /// 2 sockets of 20 cores of 2 threads.
    pub(crate) const TWO_SOCKETS: Self =
        Self { cpus_per_core: 2, cores_per_socket: 20, from_this_socket_ns: 50, from_other_socket_ns: 120 };
    /// 80 cores side by side.
    pub(crate) const ONE_SOCKET: Self =
        Self { cpus_per_core: 1, cores_per_socket: 80, from_this_socket_ns: 60, from_other_socket_ns: 60 };

    fn core(&self, cpu: usize) -> usize {
        cpu / self.cpus_per_core
    }

    fn transfer_ns(&self, from: usize, to: usize) -> u64 {
        if from / self.cores_per_socket == to / self.cores_per_socket {
            self.from_this_socket_ns
        } else {
            self.from_other_socket_ns
        }
    }
}

const LINE_BYTES: usize = 64;
const HIT_NS: u64 = 1;
/// A read-modify-write of a line that is there.
const UPDATE_NS: u64 = 6;
const PAUSE_NS: u64 = 40;

/// One cache line.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// Bit `i`: core `i` has it.
    cores: u128,
    /// Who had it last for itself.
    writer: usize,
    /// When the last transfer ends.
    free_at_ns: u64,
}

struct State {
    topology: Topology,
    lines: HashMap<usize, Line>,
    cpu: usize,
    now_ns: u64,
    fetches: u64,
    seed: u64,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub(crate) sections: u64,
    /// Times that a core had to wait for a line.
    pub(crate) fetches: u64,
}

/// The machine, as a lock sees it: nobody is preempted on it.
#[derive(Debug)]
pub(crate) struct Machine;

/// One CPU, as its program sees it.
pub(crate) struct Cpu;

impl Cpu {
    /// Keeps the CPU busy.
    pub(crate) fn work(&self, ns: u64) {
        spend(ns);
    }

    /// Keeps it busy for between half and one and a half times as long: CPUs in step stay in step.
    pub(crate) fn work_about(&self, ns: u64) {
        spend(ns / 2 + with_state(|state| state.random()) % (ns + 1));
    }
}

impl Machine {
    /// Runs `round` over and over on every CPU for so long, and counts the rounds.
    pub(crate) fn run(
        cpus: usize,
        topology: Topology,
        for_ns: u64,
        seed: u64,
        round: impl Fn(&Cpu) + Sync,
    ) -> Report {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| observe(access));
        let state = State { topology, lines: HashMap::new(), cpu: 0, now_ns: 0, fetches: 0, seed };
        STATE.set(Some(state));
        let round = &round;
        #[expect(deprecated, reason = "a program yields deep inside a lock, where it has no scope at hand")]
        let mut programs: Vec<Generator<'_, (), u64>> = (0..cpus)
            .map(|_| {
                Gn::new(move || {
                    loop {
                        round(&Cpu);
                        // Nothing but a mark that a round is over.
                        generator::yield_with::<u64>(0);
                    }
                })
            })
            .collect();
        // A CPU starts a little after the one before it.
        let mut ready: BinaryHeap<_> = (0..cpus).map(|cpu| Reverse((7 * cpu as u64, cpu))).collect();
        let mut sections = 0;
        while let Some(Reverse((now_ns, cpu))) = ready.pop() {
            if now_ns > for_ns {
                break;
            }
            with_state(|state| (state.now_ns, state.cpu) = (now_ns, cpu));
            let spent = programs[cpu].resume().expect("a program never ends");
            sections += u64::from(spent == 0);
            ready.push(Reverse((now_ns + spent, cpu)));
        }
        // Before the programs are dropped, which unwinds them where they are.
        let fetches = STATE.take().expect("set above").fetches;
        Report { sections, fetches }
    }
}

fn with_state<T>(use_it: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(|state| use_it(state.as_mut().expect("a machine runs")))
}

/// Lets the other CPUs run until the calling one has spent `ns`.
fn spend(ns: u64) {
    if STATE.with_borrow(Option::is_none) {
        return;
    }
    #[expect(deprecated, reason = "the scope is the program's, and this is deep inside a lock")]
    generator::yield_with::<u64>(ns.max(1));
}

/// The observer: what the access costs, before it happens.
fn access(address: usize, access: Access) {
    if STATE.with_borrow(Option::is_some) {
        spend(with_state(|state| state.cost(address / LINE_BYTES, access)));
    }
}

impl State {
    /// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn cost(&mut self, line: usize, access: Access) -> u64 {
        let core = self.topology.core(self.cpu);
        let line = self.lines.entry(line).or_insert(Line { cores: 1 << core, writer: core, free_at_ns: 0 });
        let mine = 1 << core;
        let hit = match access {
            Access::Load => line.cores & mine != 0,
            Access::Store | Access::Update => line.cores == mine,
        };
        if hit {
            return if access == Access::Update { UPDATE_NS } else { HIT_NS };
        }
        self.fetches += 1;
        let start_ns = line.free_at_ns.max(self.now_ns);
        line.free_at_ns = start_ns + self.topology.transfer_ns(line.writer, core);
        if access == Access::Load {
            line.cores |= mine;
        } else {
            (line.cores, line.writer) = (mine, core);
        }
        match access {
            // The store buffer takes it.
            Access::Store => HIT_NS,
            Access::Load | Access::Update => line.free_at_ns - self.now_ns,
        }
    }
}

impl Platform for Machine {
    fn cpu(&self) -> usize {
        with_state(|state| state.cpu)
    }

    fn pause(&self) {
        spend(PAUSE_NS);
    }

    fn now(&self) -> u64 {
        with_state(|state| state.now_ns)
    }

    fn spin_threshold(&self) -> u64 {
        20_000
    }

    fn wait(&self, still: impl Fn() -> bool) {
        if still() {
            spend(1_000);
        }
    }

    fn kick(&self, _: usize) {}

    fn is_preempted(&self, _: usize) -> bool {
        false
    }

    fn yield_to(&self, _: Option<usize>) {
        spend(1_000);
    }

    fn count(&self, _: Event, _: u64) {}
}
