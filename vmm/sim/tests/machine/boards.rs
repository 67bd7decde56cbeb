//! CPUs that walk page tables and take exceptions while others need the same lines.
//!
//! Each test has a bound in virtual time: a CPU that asks anew forever reaches it.

use std::sync::Arc;

use haltkick_sim::board::{Board, Happening, What};
use haltkick_sim::machine::{Machine, presets};
use haltkick_sim::{Cpu, Event, General, Ram};

use crate::harness::{self, CODE, DATA, EXCEPTION_STACK, HANDLER, IDT, PAGES, RIGHTS, Ring, STACK, TSS};

const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// Port of `out 0x10, eax`, the end of programs.
const DONE: u16 = 0x10;
const END: [u8; 2] = [0xe7, DONE as u8];
const MICROSECOND: u64 = 1_000_000;

/// loop: lock inc qword [rdi]; dec rsi; jnz loop
const ADD: [u8; 9] = [0xf0, 0x48, 0xff, 0x07, 0x48, 0xff, 0xce, 0x75, 0xf7];
/// loop: pause; cmp dword [rdi], 0; je loop
const WAIT: [u8; 7] = [0xf3, 0x90, 0x83, 0x3f, 0x00, 0x74, 0xf9];

struct Boards {
    board: Board<Ram>,
    machine: Arc<Machine>,
}

impl Boards {
    fn new(name: &str, ram: Ram) -> Self {
        let preset = presets().iter().find(|preset| preset.name == name).expect("it is built in");
        let machine = Arc::new(preset.machine());
        Self { board: Board::new(Arc::clone(&machine), ram, &[]), machine }
    }

    /// A machine whose programs lie at these places.
    fn with(name: &str, programs: &[(u64, &[u8])]) -> Self {
        let mut ram = harness::memory(&[]);
        for (at, program) in programs {
            let end = [*program, &END].concat();
            ram.bytes_mut()[*at as usize..*at as usize + end.len()].copy_from_slice(&end);
        }
        Self::new(name, ram)
    }

    /// A CPU begins at `rip`, with a stack of its own and all ports open.
    fn start(&mut self, slot: u32, ring: Ring, rip: u64, general: &[(General, u64)]) {
        let mut registers = harness::registers(ring);
        registers.rip = rip;
        registers.rflags |= 3 << 12;
        registers.general[General::Rsp as usize] = STACK + u64::from(slot) * 0x100;
        for (register, value) in general {
            registers.general[*register as usize] = *value;
        }
        self.board.put(slot, Box::new(Cpu::new(slot, &registers)), 0);
    }

    /// Next happening, which is not after `until_ps`.
    fn next(&mut self, until_ps: u64) -> Happening {
        let happening = self.board.run(until_ps);
        happening.unwrap_or_else(|| panic!("nothing has happened until {} ns", until_ps / 1000))
    }

    /// Lets CPUs come to the ends of their programs, until `until_ps`: they are taken out.
    fn finish(&mut self, cpus: usize, until_ps: u64) -> Vec<(u64, Box<Cpu>)> {
        let ends = (0..cpus).map(|_| {
            let Happening { cpu, at_ps, what } = self.next(until_ps);
            assert!(is_out(what, DONE), "CPU {cpu}: {what:?}");
            (at_ps, self.board.take(cpu).expect("it is there"))
        });
        let ends = ends.collect();
        // Stores that still wait become visible.
        self.board.run(until_ps * 2);
        ends
    }

    fn word(&self, at: u64) -> u64 {
        self.board.memory().load(at, 8)
    }

    /// The longest way of a line on this machine.
    fn far_ps(&self) -> u64 {
        let line = &self.machine.costs.line;
        line.hops_ps.iter().copied().max().unwrap_or(line.socket_ps)
    }
}

fn is_out(what: What, expected: u16) -> bool {
    matches!(what, What::Event(Event::Out { port, .. }) if port == expected)
}

#[test]
fn cpus_whose_page_walks_happen_at_the_same_moments_all_get_through() {
    const EACH: u64 = 64;
    // loop: inc dword [rdi]; add rdi, 4096; dec rsi; jnz loop
    let program = [0xff, 0x07, 0x48, 0x81, 0xc7, 0, 0x10, 0, 0, 0x48, 0xff, 0xce, 0x75, 0xf2];
    let mut boards = Boards::with("skylake-8s", &[(CODE, &program)]);
    let cpus = 56;
    for slot in 0..cpus {
        // All use the same pages of the table, and each has a line of its own in every page.
        let first = 0x10_0000 + u64::from(slot) * 64;
        boards.start(slot, Ring::Three, CODE, &[(General::Rdi, first), (General::Rsi, EACH)]);
    }
    // Each of these walks needs at most a dozen lines, for which all others queue.
    let most_ps = EACH * 12 * u64::from(cpus) * boards.far_ps();
    boards.finish(cpus as usize, most_ps);
    for page in 0..EACH {
        for slot in 0..u64::from(cpus) {
            assert_eq!(boards.word(0x10_0000 + page * 4096 + slot * 64), 1, "page {page}, CPU {slot}");
        }
        let entry = boards.word(PAGES + 0x100 * 8 + page * 8);
        assert_eq!(entry & (ACCESSED | DIRTY), ACCESSED | DIRTY, "page {page}");
    }
}

#[test]
fn an_instruction_that_begins_anew_does_not_pay_again() {
    const ROUNDS: u64 = 200;
    // loop: mov cr3, rax; mov rbx, [rdi]; mov [rdx], rsi; dec rsi; jnz loop: a walk whose lines all have, and then a line that
    // the neighbour has just written. All do so at the same moments: no CPU is ever early.
    let program = [0x0f, 0x22, 0xd8, 0x48, 0x8b, 0x1f, 0x48, 0x89, 0x32, 0x48, 0xff, 0xce, 0x75, 0xf2];
    let mut boards = Boards::with("skylake-8s", &[(CODE, &program)]);
    let cpus = 24;
    for slot in 0..cpus {
        let line = |number: u32| DATA + u64::from(number % cpus) * 64;
        let general = [
            (General::Rax, harness::PML4),
            (General::Rdi, line(slot)),
            (General::Rdx, line(slot + 1)),
            (General::Rsi, ROUNDS),
        ];
        boards.start(slot, Ring::Zero, CODE, &general);
    }
    // Two lines of its own a round, and some of the tables' for all at the beginning.
    let most_ps = (ROUNDS * 4 + 10 * u64::from(cpus)) * boards.far_ps();
    boards.finish(cpus as usize, most_ps);
    for slot in 0..u64::from(cpus) {
        assert_eq!(boards.word(DATA + slot * 64), 1, "the last store of CPU {slot}'s neighbour");
    }
}

#[test]
fn an_alarm_during_a_wait_for_a_line_stops_the_cpu_afterwards() {
    const AT_PS: u64 = 20 * MICROSECOND;
    // loop: mov [rdi], rsi; mfence; jmp loop
    let drain = [0x48, 0x89, 0x37, 0x0f, 0xae, 0xf0, 0xeb, 0xf8];
    // loop: mov [rdi], rsi; jmp loop
    let store = [0x48, 0x89, 0x37, 0xeb, 0xfb];
    // loop: mov rax, [rdi]; jmp loop
    let load = [0x48, 0x8b, 0x07, 0xeb, 0xfb];
    for program in [&ADD[..], &drain, &store, &load] {
        let mut boards = Boards::with("skylake-8s", &[(CODE, &ADD), (CODE + 0x100, program)]);
        let places = || (0..60).map(|number| number * 3);
        for slot in places() {
            let rip = if slot == 33 { CODE + 0x100 } else { CODE };
            boards.start(slot, Ring::Three, rip, &[(General::Rdi, DATA), (General::Rsi, u64::MAX)]);
        }
        boards.board.set_alarm(33, AT_PS);
        // Everybody else is served once before, and near ones more often.
        let grants = u64::from(boards.machine.costs.line.grants_in_a_row);
        let most_ps = 60 * (grants + 1) * boards.far_ps();
        let rung = boards.next(AT_PS + most_ps);
        assert_eq!((rung.cpu, rung.what), (33, What::Alarm), "{program:x?}");
        assert!(rung.at_ps >= AT_PS, "{rung:?}");
        // It stands still, and goes on afterwards.
        let before = boards.board.cpu(33).expect("it is there").instructions();
        assert_eq!(boards.board.run(rung.at_ps + most_ps), None);
        assert_eq!(boards.board.cpu(33).expect("it is there").instructions(), before);
        boards.board.resume(33, rung.at_ps + most_ps);
        assert_eq!(boards.board.run(rung.at_ps + 3 * most_ps), None);
        assert!(boards.board.cpu(33).expect("it is there").instructions() > before, "{program:x?}");
    }
}

/// A handler that says when it begins and ends: out 0x11, eax; out 0x12, eax; iretq.
const SAYS: [u8; 6] = [0xe7, 0x11, 0xe7, 0x12, 0x48, 0xcf];
const BEGINS: u16 = 0x11;
const ENDS: u16 = 0x12;
const NMI_PS: u64 = MICROSECOND;

/// The NMI of CPU `slot` begins and ends, both before `until_ps`, and nothing happens between. When it began.
fn handled(boards: &mut Boards, slot: u32, until_ps: u64) -> u64 {
    let begins = boards.next(until_ps);
    assert!(begins.cpu == slot && is_out(begins.what, BEGINS), "{begins:?}");
    boards.board.resume(slot, begins.at_ps);
    let ends = boards.next(until_ps);
    assert!(ends.cpu == slot && is_out(ends.what, ENDS), "{ends:?}");
    boards.board.resume(slot, ends.at_ps);
    begins.at_ps
}

#[test]
fn an_nmi_reaches_a_cpu_that_runs_is_parked_or_waits() {
    const AT_PS: u64 = 5 * MICROSECOND;
    // loop: inc rax; cmp rax, rsi; jne loop
    let count = [0x48, 0xff, 0xc0, 0x48, 0x39, 0xf0, 0x75, 0xf8];
    let programs = [(CODE, &ADD[..]), (CODE + 0x100, &count), (CODE + 0x200, &WAIT), (HANDLER, &SAYS)];
    for (rip, address) in
        [(CODE, DATA + 64), (CODE + 0x100, DATA + 64), (CODE + 0x200, DATA + 64), (CODE, DATA)]
    {
        let mut boards = Boards::with("skylake-8s", &programs);
        // Others queue for the first line.
        let each = 10_000;
        for slot in 1..24 {
            boards.start(slot, Ring::Three, CODE, &[(General::Rdi, DATA), (General::Rsi, each)]);
        }
        let general = [(General::Rdi, address), (General::Rsi, each), (General::Rax, 0)];
        boards.start(0, Ring::Three, rip, &general);
        assert_eq!(boards.board.run(AT_PS), None);
        boards.board.raise_nmi(0, NMI_PS);
        // A way for each line of the delivery, and the queue of the line that it waits for.
        let most_ps = NMI_PS + (24 + 20) * boards.far_ps();
        let began_ps = handled(&mut boards, 0, AT_PS + most_ps);
        assert!(began_ps >= AT_PS + NMI_PS, "its cost: {began_ps}");
        // The interrupted code goes on as if nothing had happened.
        if rip == CODE + 0x200 {
            boards.board.memory_mut().store(DATA + 64, 4, 1);
            boards.board.host_wrote(DATA + 64);
        }
        let ends = boards.finish(24, 10_000 * MICROSECOND);
        let (_, interrupted) = ends.iter().find(|(_, cpu)| cpu.id == 0).expect("it has ended");
        let registers = interrupted.registers();
        assert_eq!((interrupted.ring(), registers.general[4]), (3, STACK));
        let expected = [(CODE, 0), (CODE + 0x100, each), (CODE + 0x200, 0)];
        assert!(expected.contains(&(rip, registers.general[0])), "{rip:#x}: {:x?}", registers.general);
        let adders = if (rip, address) == (CODE, DATA) { 24 } else { 23 };
        assert_eq!(boards.word(DATA), adders * each, "no addition is lost, and none is done twice");
    }
}

#[test]
fn an_nmi_during_the_handler_of_one_comes_after_its_iret() {
    let mut boards = Boards::with("cascadelake-2s", &[(CODE, &WAIT), (HANDLER, &SAYS)]);
    boards.start(0, Ring::Three, CODE, &[(General::Rdi, DATA)]);
    boards.board.run(MICROSECOND);
    boards.board.raise_nmi(0, 0);
    let begins = boards.next(2 * MICROSECOND);
    assert!(is_out(begins.what, BEGINS), "{begins:?}");
    // Two that come now are one.
    boards.board.raise_nmi(0, 0);
    boards.board.raise_nmi(0, 0);
    boards.board.resume(0, begins.at_ps);
    let ends = boards.next(3 * MICROSECOND);
    assert!(is_out(ends.what, ENDS), "the second one came into the handler of the first: {ends:?}");
    assert_eq!(boards.board.cpu(0).expect("it is there").general(General::Rsp), EXCEPTION_STACK - 40);
    boards.board.resume(0, ends.at_ps);
    handled(&mut boards, 0, 4 * MICROSECOND);
    assert_eq!(boards.board.run(10 * MICROSECOND), None, "there was no third");
    boards.board.memory_mut().store(DATA, 4, 1);
    boards.board.host_wrote(DATA);
    let ends = boards.finish(1, 20 * MICROSECOND);
    assert_eq!((ends[0].1.ring(), ends[0].1.general(General::Rsp)), (3, STACK));
}

#[test]
fn a_mark_in_a_table_survives_a_pending_store_of_its_cpu() {
    const PAGE: u64 = 0x1f_0000;
    let entry = PAGES + (PAGE >> 12) * 8;
    // mov [rdi], rbx; mov rax, [rsi]; mov [rsi + 8], rax: an entry of a table, and then its page.
    let program = [0x48, 0x89, 0x1f, 0x48, 0x8b, 0x06, 0x48, 0x89, 0x46, 0x08];
    let mut boards = Boards::with("cascadelake-2s", &[(CODE, &program), (CODE + 0x100, &ADD)]);
    boards.board.memory_mut().store(entry, 8, 0);
    boards.board.memory_mut().store(DATA, 8, 0x1234);
    // Another socket has the line of the entry.
    boards.start(25, Ring::Zero, CODE + 0x100, &[(General::Rdi, entry + 32), (General::Rsi, 10)]);
    boards.finish(1, 100 * MICROSECOND);
    let general = [(General::Rdi, entry), (General::Rbx, DATA | RIGHTS), (General::Rsi, PAGE)];
    boards.start(0, Ring::Zero, CODE, &general);
    let ends = boards.finish(1, 1000 * MICROSECOND);
    assert_eq!(ends[0].1.general(General::Rax), 0x1234, "it sees its own entry");
    assert_eq!(boards.word(DATA + 8), 0x1234);
    assert_eq!(boards.word(entry), DATA | RIGHTS | ACCESSED | DIRTY);
}

#[test]
fn an_address_outside_of_memory_holds_nothing_and_ends_nobody() {
    const PAGE: u64 = 0x1f_0000;
    // mov [rdi], rbx; mov rax, [rdi]; lock inc qword [rdi]; inc qword [rdi + 64]; add rax, [rdi]
    let program = [
        0x48, 0x89, 0x1f, 0x48, 0x8b, 0x07, 0xf0, 0x48, 0xff, 0x07, 0x48, 0xff, 0x47, 0x40, 0x48, 0x03, 0x07,
    ];
    for frame in [4 << 20, 1 << 40, 0x000f_ffff_ffff_f000] {
        let mut boards = Boards::with("cascadelake-2s", &[(CODE, &program)]);
        boards.board.memory_mut().store(PAGES + (PAGE >> 12) * 8, 8, frame | RIGHTS);
        boards.start(0, Ring::Three, CODE, &[(General::Rdi, PAGE), (General::Rbx, 7)]);
        let ends = boards.finish(1, 100 * MICROSECOND);
        assert_eq!(ends[0].1.general(General::Rax), 0, "{frame:#x}");
        let memory_ps = boards.machine.costs.line.memory_ps;
        assert!(ends[0].0 > 5 * memory_ps, "five accesses take as long as memory: {} ps", ends[0].0);
    }
}

#[test]
fn exceptions_get_their_frames_through_while_others_have_the_stacks_lines() {
    const EACH: u64 = 200;
    // loop: mov rsp, rdi; int3; mov rsp, rbx; int3; dec rsi; jnz loop
    let program = [0x48, 0x89, 0xfc, 0xcc, 0x48, 0x89, 0xdc, 0xcc, 0x48, 0xff, 0xce, 0x75, 0xf3];
    // The handler returns: iretq.
    let programs = [(CODE, &program[..]), (CODE + 0x100, &ADD), (HANDLER, &[0x48, 0xcf])];
    let lines = [EXCEPTION_STACK - 64, EXCEPTION_STACK - 128];
    for ring in [Ring::Zero, Ring::Three] {
        let mut boards = Boards::with("skylake-8s", &programs);
        let memory = boards.board.memory_mut();
        // Frames of ring 0 lie 16 bytes apart, those of ring 3 on one stack: both in two lines.
        memory.store(IDT + 3 * 16 + 4, 1, u64::from(ring == Ring::Three));
        memory.store(TSS + 36, 8, EXCEPTION_STACK - 32);
        // They write into the same lines, below and above all frames.
        let others = [(28, lines[0] + 56), (56, lines[1]), (84, lines[0] + 56), (112, lines[1])];
        let many = 2000;
        for (slot, at) in others {
            boards.start(slot, Ring::Zero, CODE + 0x100, &[(General::Rdi, at), (General::Rsi, many)]);
        }
        let stacks = [(General::Rdi, lines[0] + 16), (General::Rbx, lines[0] + 32), (General::Rsi, EACH)];
        boards.start(0, ring, CODE, &stacks);
        // Two lines for each way in, one or two for each way back, for which the others queue.
        let most_ps = EACH * 2 * 8 * 5 * boards.far_ps();
        let ends = boards.finish(5, most_ps.max(many * 5 * boards.far_ps()));
        let (_, interrupted) = ends.iter().find(|(_, cpu)| cpu.id == 0).expect("it has ended");
        let registers = interrupted.registers();
        assert_eq!(registers.rflags & 0x202, 0x202, "the frame's flags are those that were pushed");
        assert_eq!(registers.general[4], lines[0] + 32);
        assert_eq!(interrupted.ring(), if ring == Ring::Zero { 0 } else { 3 });
        assert_eq!((boards.word(lines[0] + 56), boards.word(lines[1])), (2 * many, 2 * many));
    }
}

#[test]
fn a_store_across_two_pages_one_without_memory_ends_no_cpu() {
    /// The second of two pages, whose first line another CPU has.
    const BEHIND: u64 = 0x12_1000;
    const NOWHERE: u64 = 1 << 40;
    // mov [rdi], rax
    let store = [0x48, 0x89, 0x07];
    for (first, second, expected) in
        [(NOWHERE, BEHIND, 0x1122_3344), (BEHIND - 4096, NOWHERE, 1), (BEHIND - 4096, BEHIND, 0x1122_3344)]
    {
        let mut boards = Boards::with("skylake-8s", &[(CODE, &store), (CODE + 64, &ADD)]);
        boards.board.memory_mut().store(PAGES + ((BEHIND - 4096) >> 12) * 8, 8, first | RIGHTS);
        boards.start(1, Ring::Three, CODE + 64, &[(General::Rdi, BEHIND), (General::Rsi, 1)]);
        boards.finish(1, 100 * MICROSECOND);
        boards.board.memory_mut().store(PAGES + (BEHIND >> 12) * 8, 8, second | RIGHTS);
        let value = 0x1122_3344_5566_7788;
        boards.start(0, Ring::Three, CODE, &[(General::Rdi, BEHIND - 4), (General::Rax, value)]);
        boards.finish(1, 200 * MICROSECOND);
        assert_eq!(boards.word(BEHIND) & 0xffff_ffff, expected, "{first:#x}, {second:#x}");
    }
}

#[test]
fn a_store_across_two_lines_wakes_those_that_wait_for_either() {
    // loop: dec ecx; jnz loop; mov [rdi], rsi
    let store = [0xff, 0xc9, 0x75, 0xfc, 0x48, 0x89, 0x37];
    // loop: pause; cmp byte [rdi], 0; je loop
    let wait = [0xf3, 0x90, 0x80, 0x3f, 0x00, 0x74, 0xf9];
    for border in [DATA + 64, DATA + 4096] {
        for waits_at in [border - 1, border] {
            let mut boards = Boards::with("nehalem-2s", &[(CODE, &store), (CODE + 0x100, &wait)]);
            let registers =
                [(General::Rcx, 5000), (General::Rdi, border - 4), (General::Rsi, 0x0101_0101_0101_0101)];
            boards.start(0, Ring::Zero, CODE, &registers);
            boards.start(15, Ring::Zero, CODE + 0x100, &[(General::Rdi, waits_at)]);
            boards.finish(2, 100 * MICROSECOND);
            assert_eq!(boards.word(border - 4), 0x0101_0101_0101_0101);
        }
    }
}

#[test]
fn a_parked_cpu_misses_its_line_from_the_same_round_on() {
    // loop: pause; cmp byte [rdi], 1; jne loop
    let wait = [0xf3, 0x90, 0x80, 0x3f, 0x01, 0x75, 0xf9];
    for nops in 0..40_u8 {
        // loop: mov [rdi], rsi; mfence; nops; dec rsi; jnz loop
        let back = (-(11 + i16::from(nops))) as u8;
        let begin = [0x48, 0x89, 0x37, 0x0f, 0xae, 0xf0];
        let stores = [&begin[..], &vec![0x90; nops.into()], &[0x48, 0xff, 0xce, 0x75, back]].concat();
        let ends = [false, true].map(|parks| {
            let mut boards = Boards::with("nehalem-2s", &[(CODE, &stores), (CODE + 0x100, &wait)]);
            if !parks {
                boards.board.never_park();
            }
            boards.board.never_run_ahead();
            boards.start(0, Ring::Zero, CODE, &[(General::Rdi, DATA), (General::Rsi, 12)]);
            boards.start(15, Ring::Zero, CODE + 0x100, &[(General::Rdi, DATA)]);
            boards.finish(2, 100 * MICROSECOND).into_iter().map(|end| end.0).collect::<Vec<_>>()
        });
        assert_eq!(ends[0], ends[1], "with {nops} nops");
    }
}
