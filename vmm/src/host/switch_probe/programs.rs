//! The programs, written down as the instructions that they are: no compiler, no library, no knowledge of the kernel's
//! structures. They know a thread by its number when that is switched out (it is still the current one then) and keep
//! the address of its `task_struct`, by which they recognise it when it is switched in or woken.
//!
//! ```text
//! sched_switch(preempt, prev, next, prev_state)
//!     vcpu = TASKS[prev]
//!     if none: vcpu = PIDS[current pid in our namespace]; if there is one: TASKS[prev] = vcpu
//!     if there is one:
//!         ready = preempt || prev_state == running
//!         FLAGS[vcpu] = ready
//!         CURRENT[pCPU] = none; report out, ready or blocked             *
//!     vcpu = TASKS[next]
//!     if there is one:
//!         FLAGS[vcpu] = 0
//!         if it holds a lock, or waits for one that has no owner:        *
//!             for each pCPU: if a vCPU runs there and waits: report it
//!         CURRENT[pCPU] = vcpu; report in                                *
//!
//! sched_wakeup(task)
//!     vcpu = TASKS[task]; if there is one: report woken                  *
//! ```
//!
//! `*`: only where switches are to be reported. A report holds what the vCPU's area and the word that watches over its
//! lock say at that moment; both lie in maps that are mapped into the guest. A vCPU that is switched out or in does not
//! run, so that its words stand still.
//!
//! The instruction set is that of RFC 9669, as far as it is used here: an instruction is a little-endian 64-bit word of opcode,
//! destination and source, offset, immediate.

use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use haltkick_hypercalls::{
    ACTIVITY_HEAD, ACTIVITY_HOLDER, ACTIVITY_WAITER, Activity, Oracle, Results, StealTime, VcpuArea,
};

use super::{DROPPED, IN, LOOK, Maps, OUT_BLOCKED, OUT_READY, Reports, Switch, WOKEN};

pub(super) const LOAD_64: u8 = 0x79;
pub(super) const LOAD_32: u8 = 0x61;
pub(super) const STORE_64: u8 = 0x7b;
pub(super) const STORE_32: u8 = 0x63;
pub(super) const STORE_8: u8 = 0x73;
pub(super) const STORE_32_IMMEDIATE: u8 = 0x62;
pub(super) const STORE_8_IMMEDIATE: u8 = 0x72;
pub(super) const STORE_64_IMMEDIATE: u8 = 0x7a;
pub(super) const ATOMIC_ADD_64: u8 = 0xdb;
const LOAD_NUMBER: u8 = 0x18;
pub(super) const MOVE: u8 = 0xbf;
pub(super) const MOVE_IMMEDIATE: u8 = 0xb7;
pub(super) const ADD_IMMEDIATE: u8 = 0x07;
pub(super) const SUBTRACT: u8 = 0x1f;
pub(super) const JUMP: u8 = 0x05;
pub(super) const JUMP_IF_EQUAL: u8 = 0x15;
pub(super) const JUMP_UNLESS_EQUAL: u8 = 0x55;
pub(super) const JUMP_IF_LESS: u8 = 0xa5;
const CALL: u8 = 0x85;
pub(super) const EXIT: u8 = 0x95;

/// Source of [`LOAD_NUMBER`]: the number is a map's descriptor.
const OF_DESCRIPTOR: u8 = 1;

/// The frame pointer.
pub(super) const STACK: u8 = 10;

/// Functions of the kernel.
#[derive(Clone, Copy)]
pub(super) enum Helper {
    MapLookUp = 1,
    MapUpdate = 2,
    TimeNs = 5,
    Cpu = 8,
    CurrentPidIn = 120,
    RingOutput = 130,
}

/// A place in the program, to jump to.
#[derive(Clone, Copy)]
pub(super) struct Label(usize);

#[derive(Default)]
pub(super) struct Assembler {
    words: Vec<u64>,
    jumps: Vec<(usize, Label)>,
    /// The place of each label; `usize::MAX`: none yet.
    places: Vec<usize>,
}

impl Assembler {
    pub(super) fn put(&mut self, opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        let word = u64::from(opcode)
            | u64::from(destination) << 8
            | u64::from(source) << 12
            | u64::from(offset as u16) << 16
            | u64::from(immediate as u32) << 32;
        self.words.push(word);
    }

    pub(super) fn call(&mut self, helper: Helper) {
        self.put(CALL, 0, 0, 0, helper as i32);
    }

    /// A label that has no place yet.
    pub(super) fn label(&mut self) -> Label {
        self.places.push(usize::MAX);
        Label(self.places.len() - 1)
    }

    pub(super) fn jump(&mut self, opcode: u8, register: u8, value: i32, to: Label) {
        self.jumps.push((self.words.len(), to));
        self.put(opcode, register, 0, 0, value);
    }

    /// Everything that jumps to `label` lands here.
    pub(super) fn place(&mut self, label: Label) {
        self.places[label.0] = self.words.len();
    }

    /// Copies a field of `bytes` (4 or 8) at `from` behind register `of` into the stack at `to`, by way of r1.
    pub(super) fn keep(&mut self, bytes: usize, of: u8, from: i16, to: i16) {
        let (load, store) = if bytes == 8 { (LOAD_64, STORE_64) } else { (LOAD_32, STORE_32) };
        self.put(load, 1, of, from, 0);
        self.put(store, STACK, 1, to, 0);
    }

    /// r0 := address of the value of the key at `key` in the stack; if there is none, goes on at `none`.
    pub(super) fn look_up(&mut self, map: BorrowedFd<'_>, key: i16, none: Label) {
        self.map(map);
        self.address_in_stack(2, key);
        self.call(Helper::MapLookUp);
        self.jump(JUMP_IF_EQUAL, 0, 0, none);
    }

    /// The register := a number of 64 bits.
    pub(super) fn number(&mut self, register: u8, number: u64) {
        self.put(LOAD_NUMBER, register, 0, 0, number as u32 as i32);
        self.put(0, 0, 0, 0, (number >> 32) as u32 as i32);
    }

    /// r1 := the map.
    pub(super) fn map(&mut self, map: BorrowedFd<'_>) {
        self.put(LOAD_NUMBER, 1, OF_DESCRIPTOR, 0, map.as_raw_fd());
        self.put(0, 0, 0, 0, 0);
    }

    pub(super) fn address_in_stack(&mut self, register: u8, at: i16) {
        self.put(MOVE, register, STACK, 0, 0);
        self.put(ADD_IMMEDIATE, register, 0, 0, i32::from(at));
    }

    /// The end: the kernel wants a result, and ignores it.
    pub(super) fn finish(mut self) -> Vec<u64> {
        self.put(MOVE_IMMEDIATE, 0, 0, 0, 0);
        self.put(EXIT, 0, 0, 0, 0);
        let Self { mut words, jumps, places } = self;
        debug_assert!(!places.contains(&usize::MAX), "every label has its place");
        for (at, to) in jumps {
            // Counted from the instruction after the jump.
            words[at] |= u64::from(places[to.0].wrapping_sub(at + 1) as u16) << 16;
        }
        words
    }
}

// Variables in the stack.
const TASK: i16 = -8;
const INDEX: i16 = -12;
const NOW: i16 = -24;
const PCPU: i16 = -28;
const OTHER_PCPU: i16 = -32;
const OTHER: i16 = -36;
const DROPPED_KEY: i16 = -40;
/// A thread's number and its process's (struct bpf_pidns_info).
const IDENTITY: i16 = -48;
const IDENTITY_BYTES: i32 = 8;
const REPORT: i16 = IDENTITY - size_of::<Switch>() as i16;
const OTHER_REPORT: i16 = REPORT - size_of::<Switch>() as i16;

/// Do not wake a reader: it looks by itself.
const BPF_RB_NO_WAKEUP: i32 = 1;

/// Most pCPU numbers that are looked at for vCPUs that wait: the verifier follows each round of the loop.
pub(super) const MOST_PCPUS: u32 = 256;

// Arguments of sched_switch.
const PREEMPT: i16 = 0;
const PREV: i16 = 8;
const NEXT: i16 = 16;
const PREV_STATE: i16 = 24;

const FLAG: i16 = offset_of!(StealTime, preempted) as i16;

/// Builds the program that runs at every switch. r6 holds the tracepoint's arguments, r7 the vCPU's index, r8 another pCPU's, r9 whether
/// the vCPU that is switched out could go on.
pub(super) fn on_switch(maps: &Maps, reports: Option<&Reports>) -> Vec<u64> {
    let mut a = Assembler::default();
    let (next, end) = (a.label(), a.label());
    begin(&mut a, reports.is_some());
    identify_current(&mut a, maps, next);
    mark(&mut a, maps.flags.as_fd(), next);
    if let Some(reports) = reports {
        set_current(&mut a, &reports.current, None);
        // Ready or blocked: the one is one less than the other.
        const { assert!(OUT_READY + 1 == OUT_BLOCKED) };
        a.put(MOVE_IMMEDIATE, 1, 0, 0, OUT_BLOCKED as i32);
        a.put(SUBTRACT, 1, 9, 0, 0);
        a.put(STORE_32, STACK, 1, field(REPORT, offset_of!(Switch, kind)), 0);
        describe(&mut a, reports, REPORT, INDEX, next);
        report(&mut a, reports, REPORT);
    }
    a.place(next);
    identify(&mut a, &maps.tasks, NEXT, end);
    a.look_up(maps.flags.as_fd(), INDEX, end);
    a.put(STORE_8_IMMEDIATE, 0, 0, FLAG, 0);
    if let Some(reports) = reports {
        a.put(STORE_32_IMMEDIATE, STACK, 0, field(REPORT, offset_of!(Switch, kind)), IN as i32);
        describe(&mut a, reports, REPORT, INDEX, end);
        look_at_others(&mut a, reports);
        set_current(&mut a, &reports.current, Some(7));
        report(&mut a, reports, REPORT);
    }
    a.place(end);
    a.finish()
}

pub(super) fn on_wakeup(maps: &Maps, reports: &Reports) -> Vec<u64> {
    const WOKEN_TASK: i16 = 0;
    let mut a = Assembler::default();
    let end = a.label();
    begin(&mut a, true);
    identify(&mut a, &maps.tasks, WOKEN_TASK, end);
    a.put(STORE_32_IMMEDIATE, STACK, 0, field(REPORT, offset_of!(Switch, kind)), WOKEN as i32);
    describe(&mut a, reports, REPORT, INDEX, end);
    report(&mut a, reports, REPORT);
    a.place(end);
    a.finish()
}

/// Returns the stack offset of a field of a report.
fn field(report: i16, offset: usize) -> i16 {
    report + offset as i16
}

/// Keeps the arguments; with `reports`, also when and where this is.
fn begin(a: &mut Assembler, reports: bool) {
    a.put(MOVE, 6, 1, 0, 0);
    if reports {
        a.call(Helper::TimeNs);
        a.put(STORE_64, STACK, 0, NOW, 0);
        a.call(Helper::Cpu);
        a.put(STORE_32, STACK, 0, PCPU, 0);
    }
}

/// r7 and [`INDEX`] := the vCPU whose thread is the current one; if there is none, goes on at `none`.
fn identify_current(a: &mut Assembler, maps: &Maps, none: Label) {
    let (unknown, have_index) = (a.label(), a.label());
    identify(a, &maps.tasks, PREV, unknown);
    a.jump(JUMP, 0, 0, have_index);

    a.place(unknown);
    // Threads of another namespace may have that number, too.
    let [device, number] = maps.namespace;
    a.number(1, device);
    a.number(2, number);
    a.address_in_stack(3, IDENTITY);
    a.put(MOVE_IMMEDIATE, 4, 0, 0, IDENTITY_BYTES);
    a.call(Helper::CurrentPidIn);
    a.jump(JUMP_UNLESS_EQUAL, 0, 0, none);
    a.look_up(maps.pids.as_fd(), IDENTITY, none);
    a.put(LOAD_32, 7, 0, 0, 0);
    a.put(STORE_32, STACK, 7, INDEX, 0);
    a.map(maps.tasks.as_fd());
    a.address_in_stack(2, TASK);
    a.address_in_stack(3, INDEX);
    a.put(MOVE_IMMEDIATE, 4, 0, 0, 0);
    a.call(Helper::MapUpdate);
    a.place(have_index);
}

/// r7 and [`INDEX`] := the vCPU of the thread whose `task_struct` is the tracepoint's argument at `argument`; if none, goes on at `none`.
fn identify(a: &mut Assembler, tasks: &OwnedFd, argument: i16, none: Label) {
    a.keep(8, 6, argument, TASK);
    a.look_up(tasks.as_fd(), TASK, none);
    a.put(LOAD_32, 7, 0, 0, 0);
    a.put(STORE_32, STACK, 7, INDEX, 0);
}

/// r9 := whether the vCPU that is switched out could go on; its flag says the same.
fn mark(a: &mut Assembler, flags: BorrowedFd<'_>, none: Label) {
    let ready = a.label();
    a.put(MOVE_IMMEDIATE, 9, 0, 0, 1);
    a.put(LOAD_64, 1, 6, PREEMPT, 0);
    // Preempted, whatever its state says.
    a.jump(JUMP_UNLESS_EQUAL, 1, 0, ready);
    a.put(LOAD_64, 1, 6, PREV_STATE, 0);
    a.jump(JUMP_IF_EQUAL, 1, 0, ready);
    a.put(MOVE_IMMEDIATE, 9, 0, 0, 0);
    a.place(ready);
    a.look_up(flags, INDEX, none);
    a.put(STORE_8, 0, 9, FLAG, 0);
}

/// Notes the vCPU that runs on this pCPU: none, or the one whose index is in a register.
fn set_current(a: &mut Assembler, current: &OwnedFd, register: Option<u8>) {
    let elsewhere = a.label();
    a.look_up(current.as_fd(), PCPU, elsewhere);
    match register {
        None => a.put(STORE_32_IMMEDIATE, 0, 0, 0, 0),
        Some(register) => {
            a.put(MOVE, 1, register, 0, 0);
            a.put(ADD_IMMEDIATE, 1, 0, 0, 1);
            a.put(STORE_32, 0, 1, 0, 0);
        }
    }
    a.place(elsewhere);
}

/// Fills the report at `to` with what is known of the vCPU whose index is at `index`; its kind is the caller's. If
/// there is no such vCPU, goes on at `none`.
fn describe(a: &mut Assembler, reports: &Reports, to: i16, index: i16, none: Label) {
    let at = |offset: usize| field(to, offset);
    let of_activity = |offset: usize| (offset_of!(VcpuArea, activity) + offset) as i16;
    a.keep(8, STACK, NOW, at(offset_of!(Switch, at_ns)));
    a.keep(4, STACK, PCPU, at(offset_of!(Switch, pcpu)));
    a.keep(4, STACK, index, at(offset_of!(Switch, vcpu)));
    a.put(STORE_32_IMMEDIATE, STACK, 0, at(offset_of!(Switch, unused)), 0);

    a.look_up(reports.areas.as_fd(), index, none);
    a.keep(8, 0, of_activity(offset_of!(Activity, since_tsc)), at(offset_of!(Switch, since_tsc)));
    a.keep(4, 0, of_activity(offset_of!(Activity, lock)), at(offset_of!(Switch, lock)));
    a.keep(4, 0, of_activity(offset_of!(Activity, state)), at(offset_of!(Switch, state)));
    let entered = (offset_of!(VcpuArea, results) + offset_of!(Results, entered)) as i16;
    a.keep(8, 0, entered, at(offset_of!(Switch, entered)));
    a.look_up(reports.doing.fd.as_fd(), index, none);
    a.keep(4, 0, 0, at(offset_of!(Switch, thread_does)));

    // A lock number out of range has no exclusion checker, so its fields stay zero.
    let no_lock = a.label();
    a.put(STORE_64_IMMEDIATE, STACK, 0, at(offset_of!(Switch, lock_entered)), 0);
    a.put(STORE_32_IMMEDIATE, STACK, 0, at(offset_of!(Switch, lock_owner)), 0);
    a.look_up(reports.oracles.as_fd(), at(offset_of!(Switch, lock)), no_lock);
    a.keep(8, 0, offset_of!(Oracle, entered) as i16, at(offset_of!(Switch, lock_entered)));
    a.keep(4, 0, offset_of!(Oracle, owner) as i16, at(offset_of!(Switch, lock_owner)));
    a.place(no_lock);
}

/// Puts the report at `from` into the ring; if that is full, counts it.
fn report(a: &mut Assembler, reports: &Reports, from: i16) {
    let done = a.label();
    a.map(reports.ring.fd.as_fd());
    a.address_in_stack(2, from);
    a.put(MOVE_IMMEDIATE, 3, 0, 0, size_of::<Switch>() as i32);
    a.put(MOVE_IMMEDIATE, 4, 0, 0, BPF_RB_NO_WAKEUP);
    a.call(Helper::RingOutput);
    a.jump(JUMP_IF_EQUAL, 0, 0, done);
    a.put(STORE_32_IMMEDIATE, STACK, 0, DROPPED_KEY, DROPPED as i32);
    a.look_up(reports.doing.fd.as_fd(), DROPPED_KEY, done);
    a.put(MOVE_IMMEDIATE, 1, 0, 0, 1);
    a.put(ATOMIC_ADD_64, 0, 1, 0, 0);
    a.place(done);
}

/// If the vCPU that [`REPORT`] describes may have kept others waiting, reports those that run and wait just now. What
/// the others do is known from when they were switched out.
fn look_at_others(a: &mut Assembler, reports: &Reports) {
    let (look, again, done, next) = (a.label(), a.label(), a.label(), a.label());
    a.put(LOAD_32, 1, STACK, field(REPORT, offset_of!(Switch, state)), 0);
    a.jump(JUMP_IF_EQUAL, 1, ACTIVITY_HOLDER as i32, look);
    a.jump(JUMP_IF_LESS, 1, ACTIVITY_WAITER as i32, done);
    a.put(LOAD_32, 1, STACK, field(REPORT, offset_of!(Switch, lock_owner)), 0);
    a.jump(JUMP_UNLESS_EQUAL, 1, 0, done);

    a.place(look);
    let (first, last) = reports.pcpus;
    a.put(MOVE_IMMEDIATE, 8, 0, 0, first as i32);
    a.place(again);
    a.put(STORE_32, STACK, 8, OTHER_PCPU, 0);
    a.look_up(reports.current.as_fd(), OTHER_PCPU, next);
    a.put(LOAD_32, 1, 0, 0, 0);
    a.jump(JUMP_IF_EQUAL, 1, 0, next);
    a.put(ADD_IMMEDIATE, 1, 0, 0, -1);
    a.put(STORE_32, STACK, 1, OTHER, 0);
    a.put(STORE_32_IMMEDIATE, STACK, 0, field(OTHER_REPORT, offset_of!(Switch, kind)), LOOK as i32);
    describe(a, reports, OTHER_REPORT, OTHER, next);
    a.put(LOAD_32, 1, STACK, field(OTHER_REPORT, offset_of!(Switch, state)), 0);
    const { assert!(ACTIVITY_WAITER + 1 == ACTIVITY_HEAD) };
    a.jump(JUMP_IF_LESS, 1, ACTIVITY_WAITER as i32, next);
    report(a, reports, OTHER_REPORT);
    a.place(next);
    a.put(ADD_IMMEDIATE, 8, 0, 0, 1);
    a.jump(JUMP_IF_LESS, 8, last as i32 + 1, again);
    a.place(done);
}
