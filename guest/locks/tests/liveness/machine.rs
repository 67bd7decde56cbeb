//! CPUs whose whole state can be kept and brought back: the code of the locks runs on stacks of our own, stops before each
//! access to shared memory, and goes on from a copy of its stack as often as one likes.

#![expect(unsafe_code, reason = "stacks that are switched between, copied, and written back")]

use std::{arch::naked_asm, cell::Cell, ptr};

use haltkick_locks::{Activity, Event, Platform, Point, Queues, watched::observe};

pub(crate) const MOST_CPUS: usize = 4;

const STACK_WORDS: usize = 8 * 1024;
/// Words below the stack pointer that a step may use, cleared before it: what is left there from other steps would make
/// equal states look different.
const SCRATCH_WORDS: usize = 256;

/// Why a CPU has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stop {
    /// Before an access to shared memory, or a kick.
    Access,
    Section,
    /// The world has to say which of two answers it gives.
    Choice,
    /// In `pv_wait`.
    Wait,
    /// For good: it has done its rounds.
    End,
}

/// Effects of one step of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Bit for each [`Point`] that it passed.
    pub(crate) points: u32,
    /// Bit for each CPU that it kicked.
    pub(crate) kicked: u8,
    /// It returned from `lock`.
    pub(crate) acquired: bool,
    /// It left its section, and goes on to `unlock`.
    pub(crate) left: bool,
}

/// A CPU that does not run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frozen {
    stack: Box<[usize]>,
    pub(crate) stop: Stop,
}

/// The stacks, and what goes over from one side of a switch to the other.
struct Context {
    stacks: [Box<[usize]>; MOST_CPUS],
    /// Stack pointers of the CPUs, and of the explorer.
    cpu_sp: [usize; MOST_CPUS],
    own_sp: usize,
    cpu: usize,
    stop: Stop,
    answer: bool,
    done: Done,
    /// The CPU has claimed its node and not looked elsewhere since.
    initialises: bool,
    queues: Queues,
    program: fn(*const (), usize),
    shared: *const (),
}

impl Context {
    /// Whether an access of the CPU to `address` is invisible to the others: its own count of nodes, and the link and
    /// the flag of its node before the tail names it.
    fn is_private(&self, address: usize) -> bool {
        let own = |at: usize| at + self.cpu * self.queues.cpu_bytes;
        let node = own(self.queues.nodes);
        let fields = [node + self.queues.next, node + self.queues.locked];
        address == own(self.queues.in_use) || self.initialises && fields.contains(&address)
    }
}

thread_local! {
    /// Null while no machine is at work on this thread.
    static CONTEXT: Cell<*mut Context> = const { Cell::new(ptr::null_mut()) };
}

fn context() -> *mut Context {
    CONTEXT.get()
}

/// Pushes what a function must preserve, keeps the stack pointer, and goes on where another one was kept.
#[unsafe(naked)]
unsafe extern "C" fn switch(keep: *mut usize, to: usize) {
    naked_asm!(
        "push rbp; push rbx; push r12; push r13; push r14; push r15",
        "mov [rdi], rsp; mov rsp, rsi",
        "pop r15; pop r14; pop r13; pop r12; pop rbx; pop rbp; ret",
    );
}

extern "C" fn begin() -> ! {
    // SAFETY: only ever reached by a switch in `Machine::step`, while the context is there.
    let (program, shared, cpu) = unsafe { ((*context()).program, (*context()).shared, (*context()).cpu) };
    program(shared, cpu);
    stop(Stop::End);
    unreachable!("nobody goes on from there");
}

/// Stops the CPU that calls this.
fn stop(why: Stop) -> bool {
    let context = context();
    // SAFETY: called on the stack of a CPU, which `Machine::step` has switched to and waits for.
    unsafe {
        (*context).stop = why;
        (*context).initialises = false;
        let keep = &raw mut (*context).cpu_sp[(*context).cpu];
        switch(keep, (*context).own_sp);
        (*context).answer
    }
}

fn done(what: impl FnOnce(&mut Done)) {
    // SAFETY: as in `stop`; no other reference is alive.
    what(unsafe { &mut (*context()).done });
}

/// CPUs that all run one program over one piece of shared memory.
pub(crate) struct Machine {
    context: Box<Context>,
}

impl Machine {
    /// `shared` and the number of a CPU are what its `program` is called with.
    pub(crate) fn new(program: fn(*const (), usize), shared: *const (), queues: Queues) -> Self {
        observe(|address| {
            // A caller that sets up or looks at the memory from outside is not a CPU. SAFETY: as in `done`.
            if !context().is_null() && !unsafe { (*context()).is_private(address) } {
                stop(Stop::Access);
            }
        });
        let stacks = std::array::from_fn(|_| vec![0; STACK_WORDS].into());
        Self {
            context: Box::new(Context {
                stacks,
                cpu_sp: [0; MOST_CPUS],
                own_sp: 0,
                cpu: 0,
                stop: Stop::Access,
                answer: false,
                done: Done::default(),
                initialises: false,
                queues,
                program,
                shared,
            }),
        }
    }

    /// A CPU before its first access.
    pub(crate) fn start(&mut self, cpu: usize) -> Frozen {
        // From the top: a word that keeps the stack aligned as after a call, where to begin, six registers.
        let mut stack = vec![0; 8];
        stack[6] = begin as extern "C" fn() -> ! as usize;
        let frozen = Frozen { stack: stack.into(), stop: Stop::Access };
        self.step(cpu, &frozen, false).0
    }

    /// Lets a CPU go on to its next stop. The shared memory is changed in place.
    pub(crate) fn step(&mut self, cpu: usize, from: &Frozen, answer: bool) -> (Frozen, Done) {
        let words = &mut self.context.stacks[cpu];
        let top = words.len() & !1;
        let start = top - from.stack.len();
        words[start - SCRATCH_WORDS..start].fill(0);
        words[start..top].copy_from_slice(&from.stack);
        let base = words.as_ptr();
        let context = &raw mut *self.context;
        // SAFETY: what lies at `start` was kept by `switch` on this stack at this address, or is made for `begin`. The CPU
        // comes back by `stop`, and nothing else refers to the context meanwhile.
        let sp = unsafe {
            (*context).cpu = cpu;
            (*context).answer = answer;
            (*context).done = Done::default();
            CONTEXT.set(context);
            switch(&raw mut (*context).own_sp, base.add(start) as usize);
            CONTEXT.set(ptr::null_mut());
            (*context).cpu_sp[cpu]
        };
        let start = (sp - base as usize) / size_of::<usize>();
        assert!(start > SCRATCH_WORDS, "a CPU needs a larger stack");
        let stack = self.context.stacks[cpu][start..top].into();
        (Frozen { stack, stop: self.context.stop }, self.context.done)
    }
}

pub(crate) fn section() {
    done(|done| done.acquired = true);
    stop(Stop::Section);
    done(|done| done.left = true);
}

/// The machine as a lock sees it. What depends on time or on the host is the explorer's to say, each time anew: patience
/// may be over at any look, anybody may be found preempted, waits may end for no reason.
#[derive(Debug)]
pub(crate) struct Cpus;

impl Platform for Cpus {
    fn cpu(&self) -> usize {
        // SAFETY: as in `stop`.
        unsafe { (*context()).cpu }
    }

    fn pause(&self) {}

    fn now(&self) -> u64 {
        0
    }

    fn spin_threshold(&self) -> u64 {
        if stop(Stop::Choice) { 0 } else { 1 << 40 }
    }

    fn lock_limit(&self) -> u64 {
        if stop(Stop::Choice) { 0 } else { 1 << 40 }
    }

    fn wait(&self, still: impl Fn() -> bool) {
        if still() {
            stop(Stop::Wait);
        }
    }

    fn kick(&self, cpu: usize) {
        stop(Stop::Access);
        done(|done| done.kicked |= 1 << cpu);
    }

    fn is_preempted(&self, _: usize) -> bool {
        stop(Stop::Choice)
    }

    fn ticks(&self, nanoseconds: u64) -> u64 {
        nanoseconds
    }

    fn is_in_section(&self) -> bool {
        false
    }

    fn yield_to(&self, _: Option<usize>) {}

    fn count(&self, _: Event, _: u64) {}

    fn announce(&self, _: Activity) {}

    fn point(&self, point: Point) {
        done(|done| done.points |= 1 << point as u32);
        // SAFETY: as in `done`.
        unsafe { (*context()).initialises = point == Point::NodeClaimed };
    }
}
