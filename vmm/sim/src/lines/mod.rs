//! Cache lines: which core has which, what it takes to get one, and in which order those that wait get it.
//!
//! A directory of lines. Each line is in the caches of some cores: of none (it is in memory), of one that may write it, or of
//! several that may read it. A CPU whose core has what an access needs is served at once; any other sends a request to the
//! line. A line serves one request after the other:
//!
//! ```text
//!  request ── line is idle ──> transfer under way ── complete() ──> served; the next request, if one waits
//!     └────── line is busy ──> waits in the line's queue ──────────────────────^
//! ```
//!
//! *Latency and occupancy are two numbers.* A line that is idle comes after the latency of the way. Where requests queue,
//! the next one has been looked up meanwhile: it is served a fraction of that latency after the one before, if it has waited
//! for long enough. *Near requests first*: any in the owner's cluster is served next, by chance, up to a bound of such grants in a
//! row; then any from elsewhere. Loops of load and compare-and-swap show that it is chance: they grow with the root of the CPUs.
//!
//! *A line leaves at once, or late.* Inside a cluster the next request waits at the owner already: one operation is a visit. From
//! another cluster it has a way to go, and the owner goes on meanwhile. So a second socket costs little where all ask again at
//! once, and much where the owner has nothing more to do.
//!
//! There is no clock here: the caller passes the time, and calls [`Lines::complete`] at the time that it was told. A request
//! changes the line at its completion; so until then others go on reading their copies.
//!
//! Not modelled: bandwidth other than that of a line, capacity (a line stays until another core writes it), prefetching,
//! the place of a line's home.

mod queue;
mod way;

use crate::machine::{CpuPlace, Machine};
use queue::Queue;
use way::{Sharers, Task};

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;
/// Lines that the directory makes room for at once.
const CHUNK: usize = 64;

/// Lines that a CPU may wait for at once, besides those of its stores: that of an instruction, or those of a spin loop.
const MOST_WAITS: usize = 64;
/// Bytes that a CPU's waiting for a line takes: lists for four entries of each kind.
const OF_A_WAIT: usize = 512;

/// Copy of a line that an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A copy.
    Read,
    /// The only one.
    Write,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requested {
    /// Its transfer is under way.
    UnderWay(Transfer),
    /// It waits for others; [`Lines::complete`] of one of them says when it will have been served.
    Waits,
}

/// A transfer that has begun: the caller calls [`Lines::complete`] when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Number of its request among those for the line.
    pub request: u64,
    /// Time at which it ends.
    pub completes_ps: u64,
}

/// A request that has been served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// CPU that made it.
    pub cpu: u32,
    /// Kind of copy that it needed, and has.
    pub need: Need,
    /// Tag that the caller gave with the request.
    pub tag: u64,
    /// Transfer for a request in the queue that has begun.
    pub next: Option<Transfer>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    cpu: u32,
    need: Need,
    tag: u64,
    arrived_ps: u64,
    /// How many came before it at this line.
    arrival: u64,
}

/// Cores that have a line.
#[derive(Clone, Debug, Default)]
enum Copies {
    /// No core.
    #[default]
    Memory,
    /// This core, which may write it.
    One(u16),
    /// These, which may read it.
    Many(Sharers),
}

#[derive(Clone, Debug, Default)]
struct Line {
    copies: Copies,
    /// CPU that had it first.
    first: Option<u32>,
    /// More than one CPU has had it: accesses to it have an order that others can see.
    is_public: bool,
    /// Thread of the core that wrote it last; its siblings have to get it from there once.
    writer: Option<u32>,
    sibling_has_it: bool,
    under_way: Vec<Request>,
    /// Time at which the request under way comes to the owner's cluster. Until then the owner may go on to write.
    kept_until_ps: u64,
    /// Writes that the owner may still make until that time.
    kept_writes: u32,
    /// The owner has no copy left to read, since the request under way waited for it.
    is_gone: bool,
    waiting: Queue,
    /// Requests so far.
    arrivals: u64,
    /// CPUs that want to be told when their core loses its copy, or a sibling writes it.
    watchers: Vec<u32>,
}

impl Line {
    /// Whether the sibling thread of `cpu` has written the line, and `cpu` has not read it since.
    fn is_siblings(&self, places: &[CpuPlace], cpu: u32) -> bool {
        let core = |cpu: u32| places[cpu as usize].core;
        !self.sibling_has_it && self.writer.is_some_and(|writer| writer != cpu && core(writer) == core(cpu))
    }

    /// Gives back memory if no CPU waits for the line.
    fn rests(&mut self) {
        if self.under_way.is_empty() {
            self.under_way = Vec::new();
        }
        if self.watchers.is_empty() {
            self.watchers = Vec::new();
        }
    }
}

/// The lines of a machine's memory, and which cores have them.
#[derive(Clone, Debug)]
pub struct Lines {
    places: Vec<CpuPlace>,
    clusters_of_socket: Vec<u128>,
    chunks: Vec<Option<Box<[Line; CHUNK]>>>,
    transfers: u64,
    seed: u64,
}

impl Lines {
    /// Lines for memory of `bytes`, all of them in memory.
    #[must_use]
    pub fn new(machine: &Machine, bytes: u64) -> Self {
        let topology = &machine.topology;
        let lines = bytes.div_ceil(LINE_BYTES) as usize;
        Self {
            places: (0..topology.cpus()).map(|cpu| topology.place(cpu)).collect(),
            clusters_of_socket: (0..topology.sockets())
                .map(|socket| topology.clusters_of(socket as u16))
                .collect(),
            chunks: vec![None; lines.div_ceil(CHUNK)],
            transfers: 0,
            seed: 0,
        }
    }

    /// Draws what transfers take as this seed says.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Most bytes of the directory of this machine for this memory.
    pub(crate) fn most_bytes(memory_bytes: u64, machine: &Machine) -> u64 {
        let cpus = machine.topology.cpus() as usize;
        let of_line = size_of::<Line>() + Sharers::most_bytes(cpus);
        let of_all =
            memory_bytes.div_ceil(LINE_BYTES).next_multiple_of(CHUNK as u64).saturating_mul(of_line as u64);
        // Lines that no CPU waits for keep nothing of their requests and watchers.
        let waited_for = cpus * (machine.costs.store_buffer + MOST_WAITS);
        of_all.saturating_add((waited_for * OF_A_WAIT) as u64)
    }

    /// Whether there is such a line: memory has an end.
    #[must_use]
    #[inline]
    pub fn exists(&self, line: u64) -> bool {
        line < (self.chunks.len() * CHUNK) as u64
    }

    /// Transfers that have completed.
    #[must_use]
    pub fn transfers(&self) -> u64 {
        self.transfers
    }

    fn line(&mut self, line: u64) -> &mut Line {
        let chunk = self.chunks[line as usize / CHUNK]
            .get_or_insert_with(|| Box::new(std::array::from_fn(|_| Line::default())));
        &mut chunk[line as usize % CHUNK]
    }

    fn peek(&self, line: u64) -> Option<&Line> {
        let chunk = self.chunks.get(line as usize / CHUNK)?.as_ref()?;
        Some(&chunk[line as usize % CHUNK])
    }

    /// Whether the core of `cpu` has what an access needs. Such an access takes no message.
    ///
    /// A line whose present request did not wait can still be read on its way to another core, until it is there. Its owner may
    /// write it until the request has come to its cluster.
    #[must_use]
    #[inline]
    pub fn has(&self, now_ps: u64, cpu: u32, line: u64, need: Need) -> bool {
        let core = self.places[cpu as usize].core;
        let Some(line) = self.peek(line) else { return false };
        match &line.copies {
            Copies::Memory => false,
            &Copies::One(owner) => {
                owner == core
                    && (line.under_way.is_empty()
                        || now_ps < line.kept_until_ps && line.kept_writes > 0
                        || need == Need::Read && !line.is_gone)
            }
            Copies::Many(sharers) => need == Need::Read && sharers.has(core),
        }
    }

    /// Whether `cpu` would read the line as it last did: no other CPU has had it since to write it.
    pub(crate) fn is_as_read(&self, cpu: u32, line: u64) -> bool {
        self.has(0, cpu, line, Need::Read)
            && self.peek(line).is_some_and(|line| !line.is_siblings(&self.places, cpu))
    }

    /// Whether the line is on its way to another CPU.
    #[must_use]
    pub(crate) fn is_leaving(&self, line: u64) -> bool {
        self.peek(line).is_some_and(|line| !line.under_way.is_empty())
    }

    /// Whether only one CPU has ever had this line: no other can have seen the order of its accesses.
    #[must_use]
    #[inline]
    pub fn is_private(&self, line: u64) -> bool {
        self.peek(line).is_none_or(|line| !line.is_public && line.under_way.is_empty())
    }

    /// Gives `cpu` a line that no CPU has had yet. Returns whether it is one.
    pub fn take_fresh(&mut self, cpu: u32, line: u64) -> bool {
        let core = self.places[cpu as usize].core;
        let line = self.line(line);
        let is_fresh = line.first.is_none() && line.under_way.is_empty();
        if is_fresh {
            (line.first, line.copies) = (Some(cpu), Copies::One(core));
        }
        is_fresh
    }

    /// An access by `cpu` to a line that its core has: whether it comes from the sibling thread's part of the core, which
    /// takes longer.
    pub fn hit(&mut self, cpu: u32, line: u64, need: Need) -> bool {
        let is_siblings = self.peek(line).is_some_and(|line| line.is_siblings(&self.places, cpu));
        let line = self.line(line);
        line.is_public |= line.first != Some(cpu);
        match need {
            Need::Read => line.sibling_has_it |= is_siblings,
            Need::Write => {
                (line.writer, line.sibling_has_it) = (Some(cpu), false);
                line.kept_writes = line.kept_writes.saturating_sub(1);
            }
        }
        is_siblings
    }

    /// `cpu` needs a line that its core has not, or not so. `tag` comes back with the answer.
    pub fn request(
        &mut self,
        machine: &Machine,
        now_ps: u64,
        (cpu, number, need): (u32, u64, Need),
        tag: u64,
    ) -> Requested {
        let line = self.line(number);
        let request = Request { cpu, need, tag, arrived_ps: now_ps, arrival: line.arrivals };
        line.arrivals += 1;
        let task = self.task(machine, number, request);
        let latency_ps = task.latency_ps(&machine.costs.line);
        let latency_ps = machine.model.jittered_ps(latency_ps, self.random(number, request));
        let place = self.places[cpu as usize];
        let is_served = self.is_served(number);
        let line = self.line(number);
        if !is_served {
            line.waiting.push(place.cluster, request);
            return Requested::Waits;
        }
        line.under_way.push(request);
        (line.kept_until_ps, line.is_gone) = (now_ps + task.flight_ps(&machine.costs.line), false);
        // As many as CPUs of the cluster would have had.
        line.kept_writes = machine.costs.line.grants_in_a_row;
        Requested::UnderWay(Transfer { request: request.arrival, completes_ps: now_ps + latency_ps })
    }

    /// The transfer for a request has come to its end: the line is now where it was to go. Requests that wait may be on their way.
    ///
    /// # Panics
    /// If no such transfer is under way.
    pub fn complete(&mut self, machine: &Machine, now_ps: u64, (number, request): (u64, u64)) -> Served {
        self.transfers += 1;
        let under_way = &mut self.line(number).under_way;
        let index = under_way.iter().position(|other| other.arrival == request);
        let done = under_way.swap_remove(index.expect("the transfer is under way"));
        self.hand_over(number, done);
        let next = self.choose_next(machine, number, done);
        let next = next.map(|request| self.begin(machine, now_ps, number, (request, done.need)));
        let served = Served { cpu: done.cpu, need: done.need, tag: done.tag, next };
        self.line(number).rests();
        served
    }

    /// Begins the transfer for a request that has waited, behind one that was to read or write.
    fn begin(
        &mut self,
        machine: &Machine,
        now_ps: u64,
        number: u64,
        (request, before): (Request, Need),
    ) -> Transfer {
        let task = self.task(machine, number, request);
        // A read-modify-write keeps the line for as long as it takes.
        let keeps_ps = if before == Need::Write { machine.costs.rmw_ps } else { 0 };
        let random = self.random(number, request);
        let jittered_ps = |ps| machine.model.jittered_ps(ps, random);
        let spaced_ps = now_ps + jittered_ps(task.spacing_ps(&machine.costs.line)).max(keeps_ps);
        let line = self.line(number);
        line.under_way.push(request);
        line.kept_until_ps = now_ps + task.flight_ps(&machine.costs.line);
        line.is_gone = request.need == Need::Write;
        // And the one that the line has come for.
        line.kept_writes = machine.costs.line.grants_in_a_row + u32::from(before == Need::Write);
        // Its latency overlaps with earlier transfers only from its arrival on.
        let least_ps = request.arrived_ps + jittered_ps(task.latency_ps(&machine.costs.line));
        Transfer { request: request.arrival, completes_ps: spaced_ps.max(least_ps) }
    }

    /// Whether a request that arrives is served at once.
    fn is_served(&self, number: u64) -> bool {
        self.peek(number).is_none_or(|line| line.under_way.is_empty())
    }

    /// Takes the request out of the queue that is served next, after `done`.
    fn choose_next(&mut self, machine: &Machine, number: u64, done: Request) -> Option<Request> {
        let near = self.places[done.cpu as usize].cluster;
        // Not the number that its transfer was drawn with.
        let random = mix(self.random(number, done));
        self.line(number).waiting.take(near, machine.costs.line.grants_in_a_row, random)
    }

    /// A number of this request's own: neither other lines nor small shifts of time change it.
    fn random(&self, number: u64, request: Request) -> u64 {
        self.draw([number, u64::from(request.cpu), request.arrival])
    }

    /// A number that depends on the seed and these words alone.
    pub fn draw(&self, words: [u64; 3]) -> u64 {
        words.into_iter().fold(self.seed, |so_far, word| mix(so_far ^ word))
    }

    fn task(&mut self, machine: &Machine, number: u64, request: Request) -> Task {
        let place = self.places[request.cpu as usize];
        let copies = self.peek(number).map_or(&Copies::Memory, |line| &line.copies);
        Task::new(machine, copies, place, request.need, &self.places, &self.clusters_of_socket)
    }

    /// Tells `cpu` when its core loses its copy of the line, or a sibling writes it: it is then among
    /// [`Self::take_watchers`].
    pub fn watch(&mut self, cpu: u32, line: u64) {
        let watchers = &mut self.line(line).watchers;
        if !watchers.contains(&cpu) {
            watchers.push(cpu);
        }
    }

    /// `cpu` is no longer told.
    pub fn forget(&mut self, cpu: u32, line: u64) {
        let line = self.line(line);
        line.watchers.retain(|&watcher| watcher != cpu);
        line.rests();
    }

    /// Whether a CPU other than `writer` wants to be told.
    pub(crate) fn is_watched(&self, writer: u32, line: u64) -> bool {
        self.peek(line).is_some_and(|line| line.watchers.iter().any(|watcher| *watcher != writer))
    }

    /// CPUs that are to be told that `writer` has written the line, in the order in which they asked; they are forgotten.
    pub fn take_watchers(&mut self, line: u64, writer: u32) -> Vec<u32> {
        let watchers = &mut self.line(line).watchers;
        if watchers.is_empty() {
            return Vec::new();
        }
        watchers.extract_if(.., |&mut watcher| watcher != writer).collect()
    }

    /// `cpu` has the line at once, to write it. Those that are to be told that it is written are forgotten.
    pub fn seize(&mut self, cpu: u32, line: u64) -> Vec<u32> {
        let core = self.places[cpu as usize].core;
        let entry = self.line(line);
        entry.is_public |= entry.first.is_some_and(|first| first != cpu) || !entry.under_way.is_empty();
        entry.first.get_or_insert(cpu);
        (entry.copies, entry.writer, entry.sibling_has_it) = (Copies::One(core), Some(cpu), false);
        self.take_watchers(line, cpu)
    }

    /// The host wrote the line, which is in no core's cache afterwards.
    pub fn write_by_host(&mut self, line: u64) -> Vec<u32> {
        let entry = self.line(line);
        (entry.copies, entry.writer, entry.sibling_has_it, entry.is_public) =
            (Copies::Memory, None, false, true);
        std::mem::take(&mut entry.watchers)
    }

    fn hand_over(&mut self, number: u64, request: Request) {
        let place = self.places[request.cpu as usize];
        let cores = self.places.len();
        let line = self.line(number);
        let held_by_others = match &line.copies {
            Copies::Memory => false,
            &Copies::One(owner) => owner != place.core,
            Copies::Many(_) => true,
        };
        line.is_public |= held_by_others || line.first.is_some_and(|first| first != request.cpu);
        line.first.get_or_insert(request.cpu);
        match request.need {
            Need::Write => {
                line.copies = Copies::One(place.core);
                (line.writer, line.sibling_has_it) = (Some(request.cpu), false);
            }
            Need::Read => match &mut line.copies {
                Copies::Memory => {
                    line.copies = Copies::One(place.core);
                    line.writer = None;
                }
                // The sibling's stores came with the line.
                Copies::One(owner) if *owner == place.core => {
                    line.sibling_has_it |= line.writer.is_some_and(|writer| writer != request.cpu);
                }
                &mut Copies::One(owner) => {
                    let mut sharers = Sharers::new(cores);
                    let of_owner = self.places[usize::from(owner)];
                    sharers.add(owner, of_owner.cluster);
                    sharers.add(place.core, place.cluster);
                    self.line(number).copies = Copies::Many(sharers);
                }
                Copies::Many(sharers) => sharers.add(place.core, place.cluster),
            },
        }
    }
}

/// SplitMix64's output for this state (Steele, Lea, Flood, OOPSLA 2014).
fn mix(state: u64) -> u64 {
    let mut mixed = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests;
