//! A small BPF program on the kernel's `sched_switch`: it marks the vCPUs whose threads lost their CPU.
//!
//! For hosts whose KVM does not set the flag of the steal-time record. Its meaning is KVM's: set while the thread could
//! go on but has no CPU, clear while it runs or sleeps. The flags lie in an array map that is mapped into the guest, so
//! the guest reads what the kernel wrote at the switch, and nobody is woken for it.
//!
//! The program is written down as the instructions that it is: no compiler, no library, no knowledge of the kernel's
//! structures. It knows a thread by its number when that is switched out (it is still the current one then) and keeps the
//! address of its `task_struct`, by which it recognises it when it is switched in.
//!
//! ```text
//! sched_switch(preempt, prev, next, prev_state)
//!     vcpu = TASKS[prev]
//!     if none: vcpu = PIDS[current pid]; if there is one: TASKS[prev] = vcpu
//!     if there is one: FLAGS[vcpu] = preempt || prev_state == running
//!     vcpu = TASKS[next]
//!     if there is one: FLAGS[vcpu] = 0
//! ```
//!
//! The kernel takes it out when the link's descriptor is closed, and so with the process at the latest.
#![expect(unsafe_code, reason = "bpf(2) has no wrapper in libc")]

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use haltkick_hypercalls::{MAX_VCPUS, StealTime};

// bpf(2): commands, types, flags (include/uapi/linux/bpf.h names them).
const BPF_MAP_CREATE: libc::c_int = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// Bytes per flag: a line of its own for each vCPU, with the layout of the steal-time record.
pub(crate) const FLAG_BYTES: usize = size_of::<StealTime>();

/// The program in the kernel, and the maps that it shares with this process.
#[derive(Debug)]
pub(crate) struct SwitchProbe {
    pids: OwnedFd,
    flags: OwnedFd,
    _tasks: OwnedFd,
    _link: OwnedFd,
}

impl SwitchProbe {
    /// Loads and attaches the program.
    pub(crate) fn attach() -> io::Result<Self> {
        let entries = MAX_VCPUS as u32;
        let pids = create_map(BPF_MAP_TYPE_HASH, 4, 4, entries, 0)?;
        let tasks = create_map(BPF_MAP_TYPE_HASH, 8, 4, entries, 0)?;
        let flags = create_map(BPF_MAP_TYPE_ARRAY, 4, FLAG_BYTES as u32, entries, BPF_F_MMAPABLE)?;
        let program = load(&program(pids.as_fd(), tasks.as_fd(), flags.as_fd()))?;
        let link = open_raw_tracepoint(c"sched_switch", program.as_fd())?;
        Ok(Self { pids, flags, _tasks: tasks, _link: link })
    }

    /// The map of the flags: one of [`FLAG_BYTES`] for each vCPU.
    pub(crate) fn flags(&self) -> BorrowedFd<'_> {
        self.flags.as_fd()
    }

    /// From its next switch on, thread `thread` is vCPU `vcpu`, below [`MAX_VCPUS`].
    pub(crate) fn watch(&self, thread: libc::pid_t, vcpu: u32) -> io::Result<()> {
        let (key, value) = (thread as u32, vcpu);
        let attributes = UpdateElement {
            map: self.pids.as_raw_fd() as u32,
            _pad: 0,
            key: (&raw const key) as u64,
            value: (&raw const value) as u64,
            flags: 0,
        };
        bpf(BPF_MAP_UPDATE_ELEM, &attributes).map(drop)
    }
}

/// Arguments of BPF_MAP_CREATE.
#[repr(C)]
struct CreateMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

/// Arguments of BPF_MAP_UPDATE_ELEM.
#[repr(C)]
struct UpdateElement {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Arguments of BPF_PROG_LOAD.
#[repr(C)]
struct LoadProgram {
    kind: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
}

/// Arguments of BPF_RAW_TRACEPOINT_OPEN.
#[repr(C)]
struct OpenRawTracepoint {
    name: u64,
    program: u32,
    _pad: u32,
}

fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of attributes, and what their pointers name, all of which the
    // callers keep alive; it takes a shorter structure than its own for one that ends in zeros.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(result: libc::c_long) -> OwnedFd {
    // SAFETY: the descriptor that the kernel has just made for this process.
    unsafe { OwnedFd::from_raw_fd(result as libc::c_int) }
}

fn create_map(kind: u32, key_bytes: u32, value_bytes: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    bpf(BPF_MAP_CREATE, &CreateMap { kind, key_bytes, value_bytes, entries, flags }).map(owned)
}

fn load(code: &[u64]) -> io::Result<OwnedFd> {
    // Calls no function that the kernel keeps for GPL programs.
    let licence = c"Dual MIT/GPL";
    let attributes = LoadProgram {
        kind: BPF_PROG_TYPE_RAW_TRACEPOINT,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        licence: licence.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
    };
    bpf(BPF_PROG_LOAD, &attributes).map(owned)
}

fn open_raw_tracepoint(name: &std::ffi::CStr, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let attributes =
        OpenRawTracepoint { name: name.as_ptr() as u64, program: program.as_raw_fd() as u32, _pad: 0 };
    bpf(BPF_RAW_TRACEPOINT_OPEN, &attributes).map(owned)
}

/// The instruction set (RFC 9669), as far as it is used here. An instruction is a little-endian 64-bit word: opcode,
/// destination and source, offset, immediate.
mod code {
    pub(super) const LOAD_64: u8 = 0x79;
    pub(super) const LOAD_32: u8 = 0x61;
    pub(super) const STORE_64: u8 = 0x7b;
    pub(super) const STORE_32: u8 = 0x63;
    pub(super) const STORE_8: u8 = 0x73;
    pub(super) const STORE_8_IMMEDIATE: u8 = 0x72;
    pub(super) const LOAD_MAP: u8 = 0x18;
    pub(super) const MOVE: u8 = 0xbf;
    pub(super) const MOVE_IMMEDIATE: u8 = 0xb7;
    pub(super) const ADD_IMMEDIATE: u8 = 0x07;
    pub(super) const JUMP: u8 = 0x05;
    pub(super) const JUMP_IF_EQUAL: u8 = 0x15;
    pub(super) const JUMP_UNLESS_EQUAL: u8 = 0x55;
    pub(super) const CALL: u8 = 0x85;
    pub(super) const EXIT: u8 = 0x95;

    // Functions of the kernel.
    pub(super) const MAP_LOOKUP: i32 = 1;
    pub(super) const MAP_UPDATE: i32 = 2;
    pub(super) const CURRENT_PID_TGID: i32 = 14;

    /// Source of [`LOAD_MAP`]: the immediate is a descriptor.
    pub(super) const OF_DESCRIPTOR: u8 = 1;
}

/// A place in the program, to jump to from before it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    HaveIndex,
    Mark,
    Next,
    End,
}

/// Puts instructions one after the other.
#[derive(Default)]
struct Assembler {
    words: Vec<u64>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn put(&mut self, opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        let word = u64::from(opcode)
            | u64::from(destination) << 8
            | u64::from(source) << 12
            | u64::from(offset as u16) << 16
            | u64::from(immediate as u32) << 32;
        self.words.push(word);
    }

    fn jump(&mut self, opcode: u8, register: u8, value: i32, to: Label) {
        self.jumps.push((self.words.len(), to));
        self.put(opcode, register, 0, 0, value);
    }

    /// Everything that jumps to `label` lands here.
    fn place(&mut self, label: Label) {
        let here = self.words.len();
        self.jumps.retain(|&(at, to)| {
            if to == label {
                // Counted from the instruction after the jump.
                self.words[at] |= u64::from((here - at - 1) as u16) << 16;
            }
            to != label
        });
    }

    /// r0 := address of the value of the key at `key` in the stack, or 0.
    fn look_up(&mut self, map: BorrowedFd<'_>, key: i32) {
        self.map_and_key(map, key);
        self.put(code::CALL, 0, 0, 0, code::MAP_LOOKUP);
    }

    fn map_and_key(&mut self, map: BorrowedFd<'_>, key: i32) {
        self.put(code::LOAD_MAP, 1, code::OF_DESCRIPTOR, 0, map.as_raw_fd());
        self.put(0, 0, 0, 0, 0);
        self.put(code::MOVE, 2, STACK, 0, 0);
        self.put(code::ADD_IMMEDIATE, 2, 0, 0, key);
    }
}

/// The frame pointer.
const STACK: u8 = 10;

/// The program of the module's documentation. r6 holds the tracepoint's arguments, r7 the vCPU's index.
fn program(pids: BorrowedFd<'_>, tasks: BorrowedFd<'_>, flags: BorrowedFd<'_>) -> Vec<u64> {
    const PREEMPT: i16 = 0;
    const PREV: i16 = 8;
    const NEXT: i16 = 16;
    const PREV_STATE: i16 = 24;
    // Variables in the stack.
    const TASK: i16 = -8;
    const INDEX: i16 = -12;
    const PID: i16 = -16;
    let flag = std::mem::offset_of!(StealTime, preempted) as i16;

    let mut a = Assembler::default();
    a.put(code::MOVE, 6, 1, 0, 0);
    a.put(code::LOAD_64, 1, 6, PREV, 0);
    a.put(code::STORE_64, STACK, 1, TASK, 0);
    a.look_up(tasks, i32::from(TASK));
    a.jump(code::JUMP_UNLESS_EQUAL, 0, 0, Label::HaveIndex);

    a.put(code::CALL, 0, 0, 0, code::CURRENT_PID_TGID);
    a.put(code::STORE_32, STACK, 0, PID, 0);
    a.look_up(pids, i32::from(PID));
    a.jump(code::JUMP_IF_EQUAL, 0, 0, Label::Next);
    a.put(code::LOAD_32, 7, 0, 0, 0);
    a.put(code::STORE_32, STACK, 7, INDEX, 0);
    a.map_and_key(tasks, i32::from(TASK));
    a.put(code::MOVE, 3, STACK, 0, 0);
    a.put(code::ADD_IMMEDIATE, 3, 0, 0, i32::from(INDEX));
    a.put(code::MOVE_IMMEDIATE, 4, 0, 0, 0);
    a.put(code::CALL, 0, 0, 0, code::MAP_UPDATE);
    a.jump(code::JUMP, 0, 0, Label::Mark);

    a.place(Label::HaveIndex);
    a.put(code::LOAD_32, 7, 0, 0, 0);
    a.place(Label::Mark);
    a.put(code::STORE_32, STACK, 7, INDEX, 0);
    a.look_up(flags, i32::from(INDEX));
    a.jump(code::JUMP_IF_EQUAL, 0, 0, Label::Next);
    a.put(code::MOVE_IMMEDIATE, 3, 0, 0, 1);
    a.put(code::LOAD_64, 1, 6, PREEMPT, 0);
    // Over the next three, to the store: preempted, whatever its state says.
    a.put(code::JUMP_UNLESS_EQUAL, 1, 0, 3, 0);
    a.put(code::LOAD_64, 2, 6, PREV_STATE, 0);
    a.put(code::JUMP_IF_EQUAL, 2, 0, 1, 0);
    a.put(code::MOVE_IMMEDIATE, 3, 0, 0, 0);
    a.put(code::STORE_8, 0, 3, flag, 0);

    a.place(Label::Next);
    a.put(code::LOAD_64, 1, 6, NEXT, 0);
    a.put(code::STORE_64, STACK, 1, TASK, 0);
    a.look_up(tasks, i32::from(TASK));
    a.jump(code::JUMP_IF_EQUAL, 0, 0, Label::End);
    a.put(code::LOAD_32, 7, 0, 0, 0);
    a.put(code::STORE_32, STACK, 7, INDEX, 0);
    a.look_up(flags, i32::from(INDEX));
    a.jump(code::JUMP_IF_EQUAL, 0, 0, Label::End);
    a.put(code::STORE_8_IMMEDIATE, 0, 0, flag, 0);
    a.place(Label::End);
    a.put(code::MOVE_IMMEDIATE, 0, 0, 0, 0);
    a.put(code::EXIT, 0, 0, 0, 0);
    a.words
}
