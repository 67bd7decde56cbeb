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
//! *A line leaves at once, or late.* Inside a cluster the next request waits at the owner already: one operation is a visit. To
//! another cluster it has a longer way, and the owner goes on for as much as that is longer. So a second socket costs little where
//! all ask again at once, and much where the owner has nothing more to do.
//!
//! There is no clock here: the caller passes the time, and calls [`Lines::complete`] at the time that it was told. A request
//! changes the line at its completion; so until then others go on reading their copies.
//!
//! Not modelled: bandwidth other than that of a line, capacity (a line stays until another core writes it), prefetching,
//! the place of a line's home.

mod way;

use std::sync::Arc;

use crate::cpu::bus::LINE;
use crate::machine::{CpuPlace, Machine};
use way::{Sharers, Task};

/// How long a line has to be where it is until what its CPUs do with it counts as theirs alone: about 20 us.
const QUIET_TICKS: u64 = 20;
/// Lines that the directory makes room for at once.
const CHUNK: usize = 64;

/// Lines that a CPU may wait for at once, besides those of its stores: that of an instruction, or those of a spin loop.
const MOST_WAITS: usize = 64;
/// Bytes that a CPU's waiting for a line takes: lists for four entries of each kind.
const OF_A_WAIT: usize = 512;

/// Copy of a line that an access needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// A copy.
    Read,
    /// The only one.
    Write,
}

/// A CPU's request for a copy of a line: for a store of its buffer, or else for an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) cpu: u32,
    pub(crate) need: Need,
    pub(crate) for_store: bool,
    arrived_ps: u64,
    /// How many came before it at this line.
    arrival: u64,
}

/// Cores that have a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    /// No core.
    Memory,
    /// This core, which may write it.
    One(u16),
    /// Several, which may read it: [`Line::sharers`].
    Many,
}

/// The part of a line's record that each access looks at: one word, so that the host's cache holds many. All zeros: a line that no CPU
/// has had.
///
/// ```text
///  0..11 copies: none (0), one core (its number + 1), several (all ones)    11..22 first CPU + 1    22..33 last writer + 1
///  33 public    34 the sibling has what was written    35 under way    36 watched    37..64 when it moved last, in ticks
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State(u64);

impl State {
    /// More than one CPU has had it: accesses to it have an order that others can see.
    const PUBLIC: u64 = 1 << 33;
    /// The sibling of the thread that wrote it last has got it from there.
    const SIBLING_HAS_IT: u64 = 1 << 34;
    /// It is on its way to another CPU.
    const UNDER_WAY: u64 = 1 << 35;
    /// A CPU wants to be told when its core loses its copy.
    const WATCHED: u64 = 1 << 36;
    /// All ones of a number: of a core or CPU, or that there are several.
    const MANY: u64 = 0x7ff;
    /// CPU that had it first.
    const FIRST: u32 = 11;
    /// Thread of the core that wrote it last; its siblings have to get it from there once.
    const WRITER: u32 = 22;
    const MOVED: u32 = 37;
    /// Bits that say whether one CPU alone has ever had a line, and which, see [`Lines::own`].
    const OWN: u64 = Self::MANY | Self::MANY << Self::FIRST | Self::PUBLIC | Self::UNDER_WAY | Self::WATCHED;
    /// Bits that say whether a line that others have had is now as its last writer left it.
    const KEPT: u64 = Self::MANY
        | Self::MANY << Self::WRITER
        | Self::PUBLIC
        | Self::SIBLING_HAS_IT
        | Self::UNDER_WAY
        | Self::WATCHED;
    /// A tick is this power of two in picoseconds: about a microsecond.
    const TICK: u32 = 20;

    fn is(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    fn put(&mut self, bit: u64, is: bool) {
        self.0 = if is { self.0 | bit } else { self.0 & !bit };
    }

    fn copies(self) -> Copies {
        match self.0 & Self::MANY {
            0 => Copies::Memory,
            Self::MANY => Copies::Many,
            core => Copies::One((core - 1) as u16),
        }
    }

    fn set_copies(&mut self, copies: Copies) {
        let bits = match copies {
            Copies::Memory => 0,
            Copies::One(core) => u64::from(core) + 1,
            Copies::Many => Self::MANY,
        };
        self.0 = self.0 & !Self::MANY | bits;
    }

    fn cpu_at(self, shift: u32) -> Option<u32> {
        ((self.0 >> shift & Self::MANY) as u32).checked_sub(1)
    }

    fn set_cpu_at(&mut self, shift: u32, cpu: Option<u32>) {
        let bits = cpu.map_or(0, |cpu| u64::from(cpu) + 1);
        self.0 = self.0 & !(Self::MANY << shift) | bits << shift;
    }

    /// It has gone from one CPU to another, or the host has written it.
    #[inline]
    fn moves(&mut self, now_ps: u64) {
        let ticks = (now_ps >> Self::TICK).min(u64::MAX >> Self::MOVED);
        self.0 = self.0 & !(u64::MAX << Self::MOVED) | ticks.max(self.0 >> Self::MOVED) << Self::MOVED;
    }

    /// Whether it has been where it is for [`QUIET_TICKS`]; never, once the ticks have come to their end.
    fn has_rested(self, now_ps: u64) -> bool {
        let moved = self.0 >> Self::MOVED;
        moved < u64::MAX >> Self::MOVED && (now_ps >> Self::TICK) > moved + QUIET_TICKS
    }

    /// `cpu` has it, and becomes the first if none is.
    fn is_had_by(&mut self, cpu: u32) {
        if self.cpu_at(Self::FIRST).is_none() {
            self.set_cpu_at(Self::FIRST, Some(cpu));
        }
    }

    /// A CPU, or the host, has written it, and no sibling of that has it yet.
    #[inline]
    fn is_written_by(&mut self, cpu: Option<u32>) {
        self.set_cpu_at(Self::WRITER, cpu);
        self.put(Self::SIBLING_HAS_IT, false);
    }

    /// Value of the bits [`Self::KEPT`] in a line that the CPU of this state, which [`Lines::own`] gave, wrote last and its core alone has.
    fn kept(self) -> u64 {
        self.0 & Self::MANY | (self.0 >> Self::FIRST & Self::MANY) << Self::WRITER | Self::PUBLIC
    }

    /// Whether only one CPU has ever had it.
    fn is_private(self) -> bool {
        !self.is(Self::PUBLIC | Self::UNDER_WAY)
    }

    /// Whether the sibling thread of `cpu` has written the line, and `cpu` has not read it since.
    #[inline]
    fn is_siblings(self, places: &[CpuPlace], cpu: u32) -> bool {
        let core = |cpu: u32| places[cpu as usize].core;
        !self.is(Self::SIBLING_HAS_IT)
            && self.cpu_at(Self::WRITER).is_some_and(|writer| writer != cpu && core(writer) == core(cpu))
    }
}

/// All else of a line that a CPU has asked for, or watches.
#[derive(Clone, Debug, Default)]
struct Line {
    /// The cores, where several have it.
    sharers: Option<Sharers>,
    under_way: Option<Request>,
    /// Time until which the owner may go on to write: for as long as the way of the request under way is longer than a near one.
    kept_until_ps: u64,
    /// Writes that the owner may still make until that time.
    kept_writes: u32,
    /// The owner has no copy left to read, since the request under way waited for it.
    is_gone: bool,
    waiting: Queue,
    arrivals: u64,
    /// CPUs that want to be told when their core loses its copy, or a sibling writes it.
    watchers: Vec<u32>,
}

/// Requests that wait for a line, by the cluster that they come from.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// Clusters with requests that wait, in no order.
    clusters: Vec<(u16, Vec<Request>)>,
    /// Grants in a row within one cluster while others waited elsewhere.
    streak: u32,
}

impl Queue {
    fn push(&mut self, cluster: u16, request: Request) {
        let index = self.clusters.iter().position(|(other, _)| *other == cluster).unwrap_or_else(|| {
            self.clusters.push((cluster, Vec::new()));
            self.clusters.len() - 1
        });
        self.clusters[index].1.push(request);
    }

    /// Takes the request that is served next: any of the cluster `near`, as `random` says, unless others have waited for `most` such
    /// grants; then any from elsewhere.
    fn take(&mut self, near: u16, most: u32, random: u64) -> Option<Request> {
        let waiting = |is_near: bool| {
            let clusters = self.clusters.iter().filter(move |(cluster, _)| (*cluster == near) == is_near);
            clusters.map(|(_, waiting)| waiting.len()).sum::<usize>()
        };
        let (near_waiting, far_waiting) = (waiting(true), waiting(false));
        let is_near = near_waiting > 0 && (far_waiting == 0 || self.streak < most);
        self.streak = if is_near && far_waiting > 0 { self.streak + 1 } else { 0 };
        let mut at = (random % (if is_near { near_waiting } else { far_waiting }).max(1) as u64) as usize;
        let index = self.clusters.iter().position(|(cluster, waiting)| {
            let is_here = (*cluster == near) == is_near;
            let is_it = is_here && at < waiting.len();
            if is_here && !is_it {
                at -= waiting.len();
            }
            is_it
        })?;
        let taken = self.clusters[index].1.swap_remove(at);
        if self.clusters[index].1.is_empty() {
            self.clusters.swap_remove(index);
        }
        if self.clusters.is_empty() {
            self.clusters = Vec::new();
        }
        Some(taken)
    }
}

/// The lines of a machine's memory, and which cores have them.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    machine: Arc<Machine>,
    places: Vec<CpuPlace>,
    /// The [`State`] of each line, as a number: the system gives zeros for nothing.
    states: Vec<u64>,
    chunks: Vec<Option<Box<Chunk>>>,
    /// Seed of the draws of how long transfers take.
    pub(crate) seed: u64,
}

type Chunk = [Option<Box<Line>>; CHUNK];

impl Lines {
    /// Lines for memory of `bytes`, all of them in memory.
    pub(crate) fn new(machine: Arc<Machine>, bytes: u64) -> Self {
        let topology = &machine.topology;
        let lines = (bytes.div_ceil(LINE) as usize).next_multiple_of(CHUNK);
        Self {
            places: (0..topology.cpus()).map(|cpu| topology.place(cpu)).collect(),
            states: vec![0; lines],
            chunks: vec![None; lines / CHUNK],
            seed: 0,
            machine,
        }
    }

    /// Most bytes of the directory of this machine for this memory.
    pub(crate) fn most_bytes(memory_bytes: u64, machine: &Machine) -> u64 {
        let cpus = machine.topology.cpus() as usize;
        let of_line = size_of::<State>()
            + size_of::<Option<Box<Line>>>()
            + size_of::<Line>()
            + Sharers::most_bytes(cpus);
        let of_all =
            memory_bytes.div_ceil(LINE).next_multiple_of(CHUNK as u64).saturating_mul(of_line as u64);
        // Lines that no CPU waits for keep nothing of their requests and watchers.
        let waited_for = cpus * (machine.costs.store_buffer + MOST_WAITS);
        of_all.saturating_add((waited_for * OF_A_WAIT) as u64)
    }

    /// Whether there is such a line: memory has an end.
    #[inline]
    pub(crate) fn exists(&self, line: u64) -> bool {
        line < (self.chunks.len() * CHUNK) as u64
    }

    /// The state of a line; outside of memory it is that of a line which no CPU has had.
    #[inline]
    fn state(&self, line: u64) -> State {
        State(self.states.get(line as usize).copied().unwrap_or_default())
    }

    #[inline]
    fn set_state(&mut self, line: u64, state: State) {
        self.states[line as usize] = state.0;
    }

    fn line(&mut self, line: u64) -> &mut Line {
        let chunk =
            self.chunks[line as usize / CHUNK].get_or_insert_with(|| Box::new([const { None }; CHUNK]));
        chunk[line as usize % CHUNK].get_or_insert_default()
    }

    fn peek(&self, line: u64) -> Option<&Line> {
        self.chunks.get(line as usize / CHUNK)?.as_ref()?[line as usize % CHUNK].as_deref()
    }

    fn sharers(&self, line: u64) -> Option<&Sharers> {
        self.peek(line)?.sharers.as_ref()
    }

    /// Whether the core of `cpu` has what an access needs. Such an access takes no message.
    ///
    /// A line whose present request did not wait can still be read on its way to another core, until it is there. Its owner may
    /// write it for as long as the way of the request is longer than a near one.
    #[inline]
    pub(crate) fn has(&self, now_ps: u64, cpu: u32, line: u64, need: Need) -> bool {
        let core = self.places[cpu as usize].core;
        let state = self.state(line);
        match state.copies() {
            Copies::Memory => false,
            Copies::One(owner) => {
                owner == core && (!state.is(State::UNDER_WAY) || self.still_has(now_ps, line, need))
            }
            Copies::Many => need == Need::Read && self.sharers(line).is_some_and(|sharers| sharers.has(core)),
        }
    }

    /// Whether the owner of a line that is under way to another core has what an access needs.
    fn still_has(&self, now_ps: u64, line: u64, need: Need) -> bool {
        self.peek(line).is_some_and(|line| {
            now_ps < line.kept_until_ps && line.kept_writes > 0 || need == Need::Read && !line.is_gone
        })
    }

    /// Whether `cpu` would read the line as it last did: no other CPU has had it since to write it.
    pub(crate) fn is_as_read(&self, cpu: u32, line: u64) -> bool {
        self.has(0, cpu, line, Need::Read) && !self.state(line).is_siblings(&self.places, cpu)
    }

    /// Whether the line is on its way to another CPU.
    #[inline]
    pub(crate) fn is_leaving(&self, line: u64) -> bool {
        self.state(line).is(State::UNDER_WAY)
    }

    /// Whether only one CPU has ever had this line: no other can have seen the order of its accesses.
    #[inline]
    pub(crate) fn is_private(&self, line: u64) -> bool {
        self.state(line).is_private()
    }

    /// Whether no other CPU has seen the order of accesses to this line lately, nor waits to see one: only one CPU has ever had it, or
    /// it has not moved lately.
    #[inline]
    pub(crate) fn is_quiet(&self, now_ps: u64, line: u64) -> bool {
        let state = self.state(line);
        state.is_private() || !state.is(State::UNDER_WAY | State::WATCHED) && state.has_rested(now_ps)
    }

    /// [`Self::hit`] by the CPU of `own`, if no other CPU has ever had the line or asked for it. Returns whether that is so.
    #[inline(always)]
    pub(crate) fn hit_own(&mut self, own: State, line: u64, need: Need) -> bool {
        let Some(state) = self.states.get_mut(line as usize) else { return false };
        let is_own = *state & State::OWN == own.0;
        if is_own && need == Need::Write {
            *state |= own.0 >> State::FIRST << State::WRITER;
        }
        is_own
    }

    /// Returns whether [`Self::hit`] by the CPU of `own` changes nothing: its core alone has the line, the CPU wrote it last, and no
    /// CPU asks for it or watches it. With a time, the line must also be quiet at that time.
    #[inline(always)]
    pub(crate) fn hit_kept(&self, own: State, line: u64, quiet_at_ps: Option<u64>) -> bool {
        let state = self.state(line);
        state.0 & State::KEPT == own.kept() && quiet_at_ps.is_none_or(|now_ps| state.has_rested(now_ps))
    }

    /// The state of lines that only `cpu` has ever had, as far as [`State::OWN`] goes.
    pub(crate) fn own(&self, cpu: u32) -> State {
        let mut state = State::default();
        state.set_copies(Copies::One(self.places[cpu as usize].core));
        state.is_had_by(cpu);
        state
    }

    /// Gives `cpu` a line that no CPU has had yet. Returns whether it is one.
    pub(crate) fn take_fresh(&mut self, cpu: u32, line: u64) -> bool {
        let mut state = self.state(line);
        let is_fresh = state.cpu_at(State::FIRST).is_none() && !state.is(State::UNDER_WAY);
        if is_fresh {
            state.is_had_by(cpu);
            state.set_copies(Copies::One(self.places[cpu as usize].core));
            self.set_state(line, state);
        }
        is_fresh
    }

    /// An access by `cpu` to a line that its core has: whether it comes from the sibling thread's part of the core, which
    /// takes longer.
    #[inline]
    pub(crate) fn hit(&mut self, now_ps: u64, cpu: u32, line: u64, need: Need) -> bool {
        let mut state = self.state(line);
        let is_siblings = state.is_siblings(&self.places, cpu);
        if is_siblings {
            state.moves(now_ps);
        }
        if state.cpu_at(State::FIRST) != Some(cpu) {
            state.put(State::PUBLIC, true);
        }
        match need {
            Need::Read if is_siblings => state.put(State::SIBLING_HAS_IT, true),
            Need::Read => {}
            Need::Write => {
                state.is_written_by(Some(cpu));
                if state.is(State::UNDER_WAY) {
                    let kept_writes = &mut self.line(line).kept_writes;
                    *kept_writes = kept_writes.saturating_sub(1);
                }
            }
        }
        self.set_state(line, state);
        is_siblings
    }

    /// `cpu` needs a line that its core has not, or not so. `for_store` comes back with the answer. Returns when the transfer ends, which
    /// has begun: the caller calls [`Lines::complete`] then. `None`: the request waits for others, and [`Lines::complete`] of one of them
    /// says when it will have been served.
    pub(crate) fn request(
        &mut self,
        now_ps: u64,
        (cpu, number, need): (u32, u64, Need),
        for_store: bool,
    ) -> Option<u64> {
        let line = self.line(number);
        let request = Request { cpu, need, for_store, arrived_ps: now_ps, arrival: line.arrivals };
        line.arrivals += 1;
        if self.is_leaving(number) {
            let cluster = self.places[cpu as usize].cluster;
            self.line(number).waiting.push(cluster, request);
            return None;
        }
        Some(self.begin(now_ps, number, (request, None)))
    }

    /// The transfer of a line has come to its end: the line is now where it was to go. Returns the request that it was for, and when the
    /// transfer ends that has begun for one in the queue.
    ///
    /// # Panics
    /// If no transfer is under way.
    pub(crate) fn complete(&mut self, now_ps: u64, number: u64) -> (Request, Option<u64>) {
        let done = self.line(number).under_way.take().expect("the transfer is under way");
        self.change(number, |state| state.put(State::UNDER_WAY, false));
        self.hand_over(now_ps, number, (done.cpu, done.need));
        let (near, most) = (self.places[done.cpu as usize].cluster, self.machine.costs.line.grants_in_a_row);
        // Not the number that its transfer was drawn with.
        let random = mix(self.random(number, done));
        let next = self.line(number).waiting.take(near, most, random);
        (done, next.map(|request| self.begin(now_ps, number, (request, Some(done.need)))))
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut State)) {
        let mut state = self.state(number);
        change(&mut state);
        self.set_state(number, state);
    }

    /// Begins the transfer for a request, which may have waited behind one that was to read or write. Returns when it ends.
    fn begin(&mut self, now_ps: u64, number: u64, (request, before): (Request, Option<Need>)) -> u64 {
        let machine = &*self.machine;
        let costs = &machine.costs.line;
        let place = self.places[request.cpu as usize];
        let copies = (self.state(number).copies(), self.sharers(number));
        let task = Task::new(machine, copies, place, request.need, &self.places);
        let (flight_ps, grants_in_a_row) = (task.flight_ps(costs), costs.grants_in_a_row);
        let random = self.random(number, request);
        let jittered_ps = |ps| machine.model.jittered_ps(ps, random);
        // Its latency overlaps with earlier transfers only from its arrival on.
        let mut completes_ps = request.arrived_ps + jittered_ps(task.latency_ps(costs));
        if let Some(before) = before {
            // A read-modify-write keeps the line for as long as it takes.
            let keeps_ps = if before == Need::Write { machine.costs.rmw_ps } else { 0 };
            completes_ps = completes_ps.max(now_ps + jittered_ps(task.spacing_ps(costs)).max(keeps_ps));
        }
        // A request that has waited is looked up already: the line is the owner's for as long as its way is longer than a near one.
        let kept_until_ps = match before {
            Some(_) if flight_ps > 0 => completes_ps.saturating_sub(costs.near_visit_ps()),
            _ => now_ps + flight_ps,
        };
        self.change(number, |state| state.put(State::UNDER_WAY, true));
        let line = self.line(number);
        line.under_way = Some(request);
        line.kept_until_ps = kept_until_ps;
        line.is_gone = before.is_some() && request.need == Need::Write;
        // As many as CPUs of the cluster would have had, and the one that the line has come for.
        line.kept_writes = grants_in_a_row + u32::from(before == Some(Need::Write));
        completes_ps
    }

    /// A number of this request's own: neither other lines nor small shifts of time change it.
    fn random(&self, number: u64, request: Request) -> u64 {
        self.draw([number, u64::from(request.cpu), request.arrival])
    }

    /// A number that depends on the seed and these words alone.
    pub(crate) fn draw(&self, words: [u64; 3]) -> u64 {
        words.into_iter().fold(self.seed, |so_far, word| mix(so_far ^ word))
    }

    /// Tells `cpu` when its core loses its copy of the line, or a sibling writes it: it is then among
    /// [`Self::take_watchers`].
    pub(crate) fn watch(&mut self, cpu: u32, line: u64) {
        let watchers = &mut self.line(line).watchers;
        if !watchers.contains(&cpu) {
            watchers.push(cpu);
        }
        self.change(line, |state| state.put(State::WATCHED, true));
    }

    /// `cpu` is no longer told.
    pub(crate) fn forget(&mut self, cpu: u32, line: u64) {
        self.line(line).watchers.retain(|&watcher| watcher != cpu);
        self.watchers_rest(line);
    }

    /// Gives back memory, if no CPU watches the line.
    fn watchers_rest(&mut self, line: u64) {
        let watchers = &mut self.line(line).watchers;
        if watchers.is_empty() {
            *watchers = Vec::new();
            self.change(line, |state| state.put(State::WATCHED, false));
        }
    }

    /// Whether a CPU other than `writer` wants to be told.
    #[inline]
    pub(crate) fn is_watched(&self, writer: u32, line: u64) -> bool {
        let other = |line: &Line| line.watchers.iter().any(|watcher| *watcher != writer);
        self.state(line).is(State::WATCHED) && self.peek(line).is_some_and(other)
    }

    /// CPUs that are to be told that `writer` has written the line, in the order in which they asked; they are forgotten.
    pub(crate) fn take_watchers(&mut self, line: u64, writer: u32) -> Vec<u32> {
        if !self.is_watched(writer, line) {
            return Vec::new();
        }
        let taken = self.line(line).watchers.extract_if(.., |&mut watcher| watcher != writer).collect();
        self.watchers_rest(line);
        taken
    }

    /// `cpu` has the line at once, to write it. Those that are to be told that it is written are forgotten.
    pub(crate) fn seize(&mut self, now_ps: u64, cpu: u32, line: u64) -> Vec<u32> {
        // One that is on its way to another CPU is public, too.
        self.change(line, |state| state.put(State::PUBLIC, state.is(State::UNDER_WAY | State::PUBLIC)));
        self.hand_over(now_ps, line, (cpu, Need::Write));
        self.take_watchers(line, cpu)
    }

    /// The host wrote the line, which is in no core's cache afterwards.
    pub(crate) fn write_by_host(&mut self, now_ps: u64, line: u64) -> Vec<u32> {
        self.change(line, |state| {
            state.set_copies(Copies::Memory);
            state.is_written_by(None);
            state.moves(now_ps);
            state.put(State::PUBLIC, true);
        });
        // The host is no CPU.
        self.take_watchers(line, u32::MAX)
    }

    fn hand_over(&mut self, now_ps: u64, number: u64, (cpu, need): (u32, Need)) {
        let place = self.places[cpu as usize];
        let mut state = self.state(number);
        // A further copy takes nothing from the cores that have one.
        if need == Need::Write || state.copies() != Copies::Many {
            state.moves(now_ps);
        }
        let held_by_others = match state.copies() {
            Copies::Memory => false,
            Copies::One(owner) => owner != place.core,
            Copies::Many => true,
        };
        let had_by_another = state.cpu_at(State::FIRST).is_some_and(|first| first != cpu);
        state.put(State::PUBLIC, held_by_others || had_by_another || state.is(State::PUBLIC));
        state.is_had_by(cpu);
        match (need, state.copies()) {
            (Need::Write, _) => {
                state.set_copies(Copies::One(place.core));
                state.is_written_by(Some(cpu));
            }
            (Need::Read, Copies::Memory) => {
                state.set_copies(Copies::One(place.core));
                state.set_cpu_at(State::WRITER, None);
            }
            // The sibling's stores came with the line.
            (Need::Read, Copies::One(owner)) if owner == place.core => {
                let is_siblings = state.cpu_at(State::WRITER).is_some_and(|writer| writer != cpu);
                state.put(State::SIBLING_HAS_IT, is_siblings || state.is(State::SIBLING_HAS_IT));
            }
            (Need::Read, Copies::One(owner)) => {
                let of_owner = self.places[usize::from(owner)];
                let mut sharers = Sharers::new(self.places.len());
                sharers.add(owner, of_owner.cluster);
                sharers.add(place.core, place.cluster);
                self.line(number).sharers = Some(sharers);
                state.set_copies(Copies::Many);
            }
            (Need::Read, Copies::Many) => {
                let sharers = self.line(number).sharers.as_mut();
                sharers.expect("several cores have it").add(place.core, place.cluster);
            }
        }
        self.set_state(number, state);
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
