//! CPUs that walk page tables and take exceptions while others need the same lines.
//!
//! Each test has a bound in virtual time: a CPU that asks anew forever reaches it.

use haltkick_sim::board::{Memory, What};
use haltkick_sim::{Cpu, General};

use crate::harness::{self, CODE, DATA, EXCEPTION_STACK, HANDLER, IDT, PAGES, RIGHTS, Ring, STACK, TSS};
use crate::programs::*;
use crate::{Bench, is_out, preset};

const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const MICROSECOND: u64 = 1_000_000;

impl Bench {
    /// A machine whose programs lie at these places, in memory with all that an exception needs.
    fn with(name: &str, programs: &[(u64, &[u8])]) -> Self {
        let mut ram = harness::memory(&[]);
        for (at, program) in programs {
            ram[*at as usize..*at as usize + program.len()].copy_from_slice(program);
        }
        Self::of_memory(preset(name), ram, &[])
    }

    /// A CPU begins at `rip`, with a stack of its own and all ports open.
    fn begin(&mut self, slot: u32, ring: Ring, rip: u64, general: &[(General, u64)]) {
        let mut registers = harness::registers(ring);
        registers.rip = rip;
        registers.rflags |= 3 << 12;
        registers.general[General::Rsp as usize] = STACK + u64::from(slot) * 0x100;
        for (register, value) in general {
            registers.general[*register as usize] = *value;
        }
        self.board.put(slot, Box::new(Cpu::new(slot, &registers)), 0);
    }

    /// The longest way of a line on this machine.
    fn far_ps(&self) -> u64 {
        let line = &self.machine.costs.line;
        line.hops_ps.iter().copied().max().unwrap_or(line.socket_ps)
    }
}

#[test]
fn cpus_whose_page_walks_happen_at_the_same_moments_all_get_through() {
    const EACH: u64 = 64;
    let mut boards = Bench::with("skylake-8s", &[(CODE, touch_pages())]);
    let cpus = 56;
    for slot in 0..cpus {
        // All use the same pages of the table, and each has a line of its own in every page.
        let first = 0x10_0000 + u64::from(slot) * 64;
        boards.begin(slot, Ring::Three, CODE, &[(General::Rdi, first), (General::Rsi, EACH)]);
    }
    // Each of these walks needs at most a dozen lines, for which all others queue.
    let most_ps = EACH * 12 * u64::from(cpus) * boards.far_ps();
    boards.end(cpus as usize, most_ps);
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
    // A walk whose lines all have, and then a line that the neighbour has just written. All do so at the same moments: no CPU is
    // ever early.
    let mut boards = Bench::with("skylake-8s", &[(CODE, walk_and_store())]);
    let cpus = 24;
    for slot in 0..cpus {
        let line = |number: u32| DATA + u64::from(number % cpus) * 64;
        let general = [
            (General::Rax, harness::PML4),
            (General::Rdi, line(slot)),
            (General::Rdx, line(slot + 1)),
            (General::Rsi, ROUNDS),
        ];
        boards.begin(slot, Ring::Zero, CODE, &general);
    }
    // Two lines of its own a round, and some of the tables' for all at the beginning.
    let most_ps = (ROUNDS * 4 + 10 * u64::from(cpus)) * boards.far_ps();
    boards.end(cpus as usize, most_ps);
    for slot in 0..u64::from(cpus) {
        assert_eq!(boards.word(DATA + slot * 64), 1, "the last store of CPU {slot}'s neighbour");
    }
}

#[test]
fn an_alarm_during_a_wait_for_a_line_stops_the_cpu_afterwards() {
    const AT_PS: u64 = 20 * MICROSECOND;
    for program in [add(), drain_forever(), store_forever(), load_forever()] {
        let mut boards = Bench::with("skylake-8s", &[(CODE, add()), (CODE + 0x100, program)]);
        let places = || (0..60).map(|number| number * 3);
        for slot in places() {
            let rip = if slot == 33 { CODE + 0x100 } else { CODE };
            boards.begin(slot, Ring::Three, rip, &[(General::Rdi, DATA), (General::Rsi, u64::MAX)]);
        }
        boards.board.set_alarm(33, AT_PS);
        // Everybody else is served once before, and near ones more often.
        let grants = u64::from(boards.machine.costs.line.grants_in_a_row);
        let most_ps = 60 * (grants + 1) * boards.far_ps();
        let rung = boards.next(AT_PS + most_ps);
        assert_eq!((rung.cpu, rung.what), (33, What::Alarm), "{program:x?}");
        assert!(rung.at_ps >= AT_PS, "{rung:?}");
        // It stands still, and goes on afterwards.
        let before = boards.board.cpu(33).expect("it is there").instructions;
        assert_eq!(boards.board.run(rung.at_ps + most_ps), None);
        assert_eq!(boards.board.cpu(33).expect("it is there").instructions, before);
        boards.board.resume(33, rung.at_ps + most_ps);
        assert_eq!(boards.board.run(rung.at_ps + 3 * most_ps), None);
        assert!(boards.board.cpu(33).expect("it is there").instructions > before, "{program:x?}");
    }
}

/// Ports at which a handler says that it begins and ends.
const BEGINS: u16 = 0x11;
const ENDS: u16 = 0x12;
const NMI_PS: u64 = MICROSECOND;

/// The NMI of CPU `slot` begins and ends, both before `until_ps`, and nothing happens between. When it began.
fn handled(boards: &mut Bench, slot: u32, until_ps: u64) -> u64 {
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
    let programs =
        [(CODE, add()), (CODE + 0x100, count_to_rsi()), (CODE + 0x200, wait()), (HANDLER, begin_and_end())];
    for (rip, address) in
        [(CODE, DATA + 64), (CODE + 0x100, DATA + 64), (CODE + 0x200, DATA + 64), (CODE, DATA)]
    {
        let mut boards = Bench::with("skylake-8s", &programs);
        // Others queue for the first line.
        let each = 10_000;
        for slot in 1..24 {
            boards.begin(slot, Ring::Three, CODE, &[(General::Rdi, DATA), (General::Rsi, each)]);
        }
        let general = [(General::Rdi, address), (General::Rsi, each), (General::Rax, 0)];
        boards.begin(0, Ring::Three, rip, &general);
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
        let ends = boards.end(24, 10_000 * MICROSECOND);
        let (_, interrupted) = ends.iter().find(|(_, cpu)| cpu.id == 0).expect("it has ended");
        let registers = interrupted.registers();
        assert_eq!((interrupted.ring, registers.general[4]), (3, STACK));
        let expected = [(CODE, 0), (CODE + 0x100, each), (CODE + 0x200, 0)];
        assert!(expected.contains(&(rip, registers.general[0])), "{rip:#x}: {:x?}", registers.general);
        let adders = if (rip, address) == (CODE, DATA) { 24 } else { 23 };
        assert_eq!(boards.word(DATA), adders * each, "no addition is lost, and none is done twice");
    }
}

#[test]
fn an_nmi_during_the_handler_of_one_comes_after_its_iret() {
    let mut boards = Bench::with("cascadelake-2s", &[(CODE, wait()), (HANDLER, begin_and_end())]);
    boards.begin(0, Ring::Three, CODE, &[(General::Rdi, DATA)]);
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
    let ends = boards.end(1, 20 * MICROSECOND);
    assert_eq!((ends[0].1.ring, ends[0].1.general(General::Rsp)), (3, STACK));
}

#[test]
fn a_mark_in_a_table_survives_a_pending_store_of_its_cpu() {
    const PAGE: u64 = 0x1f_0000;
    let entry = PAGES + (PAGE >> 12) * 8;
    let mut boards = Bench::with("cascadelake-2s", &[(CODE, map_and_use()), (CODE + 0x100, add())]);
    boards.board.memory_mut().store(entry, 8, 0);
    boards.board.memory_mut().store(DATA, 8, 0x1234);
    // Another socket has the line of the entry.
    boards.begin(25, Ring::Zero, CODE + 0x100, &[(General::Rdi, entry + 32), (General::Rsi, 10)]);
    boards.end(1, 100 * MICROSECOND);
    let general = [(General::Rdi, entry), (General::Rbx, DATA | RIGHTS), (General::Rsi, PAGE)];
    boards.begin(0, Ring::Zero, CODE, &general);
    let ends = boards.end(1, 1000 * MICROSECOND);
    assert_eq!(ends[0].1.general(General::Rax), 0x1234, "it sees its own entry");
    assert_eq!(boards.word(DATA + 8), 0x1234);
    assert_eq!(boards.word(entry), DATA | RIGHTS | ACCESSED | DIRTY);
}

#[test]
fn an_address_outside_of_memory_holds_nothing_and_ends_nobody() {
    const PAGE: u64 = 0x1f_0000;
    for frame in [4 << 20, 1 << 40, 0x000f_ffff_ffff_f000] {
        let mut boards = Bench::with("cascadelake-2s", &[(CODE, five_accesses())]);
        boards.board.memory_mut().store(PAGES + (PAGE >> 12) * 8, 8, frame | RIGHTS);
        boards.begin(0, Ring::Three, CODE, &[(General::Rdi, PAGE), (General::Rbx, 7)]);
        let ends = boards.end(1, 100 * MICROSECOND);
        assert_eq!(ends[0].1.general(General::Rax), 0, "{frame:#x}");
        let memory_ps = boards.machine.costs.line.memory_ps;
        assert!(ends[0].0 > 5 * memory_ps, "five accesses take as long as memory: {} ps", ends[0].0);
    }
}

#[test]
fn exceptions_get_their_frames_through_while_others_have_the_stacks_lines() {
    const EACH: u64 = 200;
    // The handler returns: iretq.
    let programs = [(CODE, two_breakpoints()), (CODE + 0x100, add()), (HANDLER, &[0x48, 0xcf])];
    let lines = [EXCEPTION_STACK - 64, EXCEPTION_STACK - 128];
    for ring in [Ring::Zero, Ring::Three] {
        let mut boards = Bench::with("skylake-8s", &programs);
        let memory = boards.board.memory_mut();
        // Frames of ring 0 lie 16 bytes apart, those of ring 3 on one stack: both in two lines.
        memory.store(IDT + 3 * 16 + 4, 1, u64::from(ring == Ring::Three));
        memory.store(TSS + 36, 8, EXCEPTION_STACK - 32);
        // They write into the same lines, below and above all frames.
        let others = [(28, lines[0] + 56), (56, lines[1]), (84, lines[0] + 56), (112, lines[1])];
        let many = 2000;
        for (slot, at) in others {
            boards.begin(slot, Ring::Zero, CODE + 0x100, &[(General::Rdi, at), (General::Rsi, many)]);
        }
        let stacks = [(General::Rdi, lines[0] + 16), (General::Rbx, lines[0] + 32), (General::Rsi, EACH)];
        boards.begin(0, ring, CODE, &stacks);
        // Two lines for each way in, one or two for each way back, for which the others queue.
        let most_ps = EACH * 2 * 8 * 5 * boards.far_ps();
        let ends = boards.end(5, most_ps.max(many * 5 * boards.far_ps()));
        let (_, interrupted) = ends.iter().find(|(_, cpu)| cpu.id == 0).expect("it has ended");
        let registers = interrupted.registers();
        assert_eq!(registers.rflags & 0x202, 0x202, "the frame's flags are those that were pushed");
        assert_eq!(registers.general[4], lines[0] + 32);
        assert_eq!(interrupted.ring, if ring == Ring::Zero { 0 } else { 3 });
        assert_eq!((boards.word(lines[0] + 56), boards.word(lines[1])), (2 * many, 2 * many));
    }
}

#[test]
fn a_store_across_two_pages_one_without_memory_ends_no_cpu() {
    /// The second of two pages, whose first line another CPU has.
    const BEHIND: u64 = 0x12_1000;
    const NOWHERE: u64 = 1 << 40;
    for (first, second, expected) in
        [(NOWHERE, BEHIND, 0x1122_3344), (BEHIND - 4096, NOWHERE, 1), (BEHIND - 4096, BEHIND, 0x1122_3344)]
    {
        let mut boards = Bench::with("skylake-8s", &[(CODE, store_rax()), (CODE + 64, add())]);
        boards.board.memory_mut().store(PAGES + ((BEHIND - 4096) >> 12) * 8, 8, first | RIGHTS);
        boards.begin(1, Ring::Three, CODE + 64, &[(General::Rdi, BEHIND), (General::Rsi, 1)]);
        boards.end(1, 100 * MICROSECOND);
        boards.board.memory_mut().store(PAGES + (BEHIND >> 12) * 8, 8, second | RIGHTS);
        let value = 0x1122_3344_5566_7788;
        boards.begin(0, Ring::Three, CODE, &[(General::Rdi, BEHIND - 4), (General::Rax, value)]);
        boards.end(1, 200 * MICROSECOND);
        assert_eq!(boards.word(BEHIND) & 0xffff_ffff, expected, "{first:#x}, {second:#x}");
    }
}

#[test]
fn a_store_across_two_lines_wakes_those_that_wait_for_either() {
    for border in [DATA + 64, DATA + 4096] {
        for waits_at in [border - 1, border] {
            let programs = [(CODE, store_after_a_while()), (CODE + 0x100, wait_for_a_byte())];
            let mut boards = Bench::with("nehalem-2s", &programs);
            let registers =
                [(General::Rcx, 5000), (General::Rdi, border - 4), (General::Rsi, 0x0101_0101_0101_0101)];
            boards.begin(0, Ring::Zero, CODE, &registers);
            boards.begin(15, Ring::Zero, CODE + 0x100, &[(General::Rdi, waits_at)]);
            boards.end(2, 100 * MICROSECOND);
            assert_eq!(boards.word(border - 4), 0x0101_0101_0101_0101);
        }
    }
}
