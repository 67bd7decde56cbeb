//! One CPU: page tables, exceptions, stops, events.

use haltkick_sim::board::Memory;
use haltkick_sim::{Access, CS, Event, General, Registers};

use crate::harness::{
    self, CODE, DATA, DIRECTORY, EXCEPTION_STACK, HANDLER, HUGE, LARGE, Lab, PAGES, RIGHTS, Ring, STACK, TSS,
    USER_CODE, USER_DATA,
};
use crate::programs::all_kinds;

const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;

/// mov [rdi], rax
const STORE: [u8; 3] = [0x48, 0x89, 0x07];
/// mov rax, [rdi]
const LOAD: [u8; 3] = [0x48, 0x8b, 0x07];
/// jmp rdi
const JUMP: [u8; 2] = [0xff, 0xe7];

#[test]
fn a_page_fault_leaves_its_frame_and_iretq_resumes_the_access() {
    let mut lab = Lab::new(Ring::Three, &STORE);
    lab.map(DATA, 0);
    // The handler drops the error code and returns.
    lab.put(HANDLER, &[0x48, 0x83, 0xc4, 0x08, 0x48, 0xcf]);
    lab.cpu.set_general(General::Rdi, DATA + 8);
    lab.cpu.set_general(General::Rax, 0x1234);
    assert_eq!(lab.run(1), Event::Limit);
    let at_handler = lab.cpu.registers();
    assert_eq!((lab.cpu.ring, at_handler.system.cr2), (0, DATA + 8));
    // The handler's first instruction is the one that the limit allowed: it has dropped the error code.
    let frame: Vec<_> = (0..6).map(|word| lab.word(EXCEPTION_STACK - 48 + word * 8)).collect();
    assert_eq!(frame, [6, CODE, u64::from(USER_CODE), 0x202, STACK, u64::from(USER_DATA)]);
    assert_eq!(at_handler.general[4], EXCEPTION_STACK - 40);
    assert_eq!(at_handler.rflags & 1 << 9, 0, "an interrupt gate closes interrupts");

    lab.map(DATA, DATA | RIGHTS);
    assert_eq!(lab.run(2), Event::Limit);
    assert_eq!((lab.cpu.ring, lab.cpu.rip, lab.cpu.general(General::Rsp)), (3, CODE + 3, STACK));
    assert_eq!(lab.cpu.registers().rflags & 1 << 9, 1 << 9);
    assert_eq!(lab.word(DATA + 8), 0x1234);
}

#[test]
fn error_codes_of_bad_accesses_tell_what_was_wrong() {
    const NO_EXECUTE: u64 = 1 << 63;
    for (program, ring, address, entry, error) in [
        (&LOAD[..], Ring::Three, DATA, 0, Some(0b0_0100)),
        (&STORE, Ring::Three, DATA, 0, Some(0b0_0110)),
        (&JUMP, Ring::Three, DATA, 0, Some(0b1_0100)),
        (&LOAD, Ring::Zero, DATA, 0, Some(0b0_0000)),
        (&STORE, Ring::Three, DATA, DATA | 0b101, Some(0b0_0111)),
        (&LOAD, Ring::Three, DATA, DATA | 0b101, None),
        // Write protection holds for ring 0, too: CR0.WP.
        (&STORE, Ring::Zero, DATA, DATA | 0b101, Some(0b0_0011)),
        (&LOAD, Ring::Three, DATA, DATA | 0b011, Some(0b0_0101)),
        (&LOAD, Ring::Zero, DATA, DATA | 0b011, None),
        (&JUMP, Ring::Three, DATA, DATA | RIGHTS | NO_EXECUTE, Some(0b1_0101)),
        (&LOAD, Ring::Three, DATA, DATA | RIGHTS | NO_EXECUTE, None),
        // Bits that a large page must not have.
        (&LOAD, Ring::Three, LARGE, LARGE | 1 << 13 | 1 << 7 | RIGHTS, Some(0b0_1101)),
        // A protection fault: the address is not canonical.
        (&LOAD, Ring::Three, 1 << 47, 0, Some(0)),
    ] {
        let mut lab = Lab::new(ring, program);
        let at = if address == LARGE { DIRECTORY + 8 } else { PAGES + (DATA >> 12) * 8 };
        lab.machine.ram.store(at, 8, entry);
        lab.cpu.set_general(General::Rdi, address);
        let event = lab.run(2);
        let found = (event == Event::Halt).then(|| lab.word(EXCEPTION_STACK - 48));
        assert_eq!(found, error, "{program:x?} at {address:#x} of {entry:#x}");
        assert!(address != 1 << 47 || lab.cpu.registers().system.cr2 == 0, "a protection fault leaves CR2");
    }
}

#[test]
fn pages_of_all_sizes_lead_to_their_memory() {
    let mut lab = Lab::new(Ring::Three, &[LOAD, LOAD, LOAD].concat());
    for (address, physical) in
        [(DATA + 0x10, DATA + 0x10), (LARGE + 0x1_2340, LARGE + 0x1_2340), (HUGE + 0x2_1000, 0x2_1000)]
    {
        lab.machine.ram.store(physical, 8, address);
        lab.cpu.set_general(General::Rdi, address);
        assert_eq!(lab.run(1), Event::Limit);
        assert_eq!(lab.cpu.general(General::Rax), address);
    }
}

#[test]
fn tables_are_marked_as_a_processor_marks_them() {
    let mut lab = Lab::new(Ring::Three, &[&LOAD[..], &STORE].concat());
    let entry = PAGES + (DATA >> 12) * 8;
    assert_eq!(lab.word(entry), DATA | RIGHTS);
    lab.run(1);
    assert_eq!(lab.word(entry), DATA | RIGHTS | ACCESSED);
    assert_eq!(lab.word(DIRECTORY), PAGES | RIGHTS | ACCESSED);
    lab.run(1);
    assert_eq!(lab.word(entry), DATA | RIGHTS | ACCESSED | DIRTY);
}

#[test]
fn a_translation_stays_until_it_is_invalidated() {
    type Invalidate = fn(&mut Lab);
    let ways: [(u64, u64, u64, Invalidate); 3] = [
        (DATA, PAGES + (DATA >> 12) * 8, 0x2_1000 | RIGHTS, |lab| lab.cpu.invalidate_page(DATA + 0x123)),
        (DATA, PAGES + (DATA >> 12) * 8, 0x2_1000 | RIGHTS, |lab| lab.cpu.invalidate_all()),
        // One page of a large one: all of it goes.
        (LARGE, DIRECTORY + 8, 1 << 7 | RIGHTS, |lab| lab.cpu.invalidate_page(LARGE + 0x1f_f000)),
    ];
    for (address, entry, new, invalidate) in ways {
        let mut lab = Lab::new(Ring::Three, &[LOAD, LOAD, LOAD].concat());
        let new_frame = new & !0xfff;
        lab.machine.ram.store(address, 8, 1);
        lab.machine.ram.store(new_frame, 8, 2);
        lab.cpu.set_general(General::Rdi, address);
        let read = |lab: &mut Lab| {
            assert_eq!(lab.run(1), Event::Limit);
            lab.cpu.general(General::Rax)
        };
        assert_eq!(read(&mut lab), 1);
        lab.machine.ram.store(entry, 8, new);
        assert_eq!(read(&mut lab), 1);
        invalidate(&mut lab);
        assert_eq!(read(&mut lab), 2);
    }
}

#[test]
fn code_behind_a_dropped_translation_is_that_of_the_new_one() {
    const OTHER: u64 = 0x2_1000;
    // invlpg [rdi] or mov cr3, rbx; mov eax, 1 or 2; jmp to the first
    for drop in [[0x0f, 0x01, 0x3f], [0x0f, 0x22, 0xdb]] {
        let program = |result: u8| [&drop[..], &[0xb8, result, 0, 0, 0], &[0xeb, 0xf6]].concat();
        let mut lab = Lab::new(Ring::Zero, &program(1));
        lab.put(OTHER, &program(2));
        lab.cpu.set_general(General::Rbx, harness::PML4);
        lab.run(6);
        assert_eq!((lab.cpu.general(General::Rax), lab.cpu.rip), (1, CODE));
        lab.cpu.set_general(General::Rdi, CODE);
        lab.map(CODE, OTHER | RIGHTS);
        lab.run(2);
        assert_eq!(lab.cpu.general(General::Rax), 2, "{drop:x?}");
    }
}

#[test]
fn code_that_a_ring_may_not_execute_faults_after_a_return() {
    // A handler in the page that it returns to: int3; jmp to that; nop ...; invlpg [rdi]; iretq
    let mut lab = Lab::new(
        Ring::Three,
        &[0xcc, 0xeb, 0xfd, 0x90, 0x90, 0x90, 0x90, 0x90, 0x0f, 0x01, 0x3f, 0x48, 0xcf],
    );
    harness::set_gate(&mut lab.machine.ram, 3, CODE + 8, 3);
    assert_eq!((lab.run(11), lab.cpu.rip), (Event::Limit, CODE + 1));
    lab.cpu.set_general(General::Rdi, CODE);
    lab.map(CODE, CODE | RIGHTS & !4);
    assert_eq!(lab.run(20), Event::Halt);
    assert_eq!(lab.word(EXCEPTION_STACK - 40), CODE + 1, "after the return");
}

#[test]
fn an_instruction_finds_all_pages_that_it_needs_at_once() {
    // push [rdi]; movsq; cmpsq. The pages are 64 apart: of one set of translations.
    const APART: u64 = 64 << 12;
    const PUSH: [u8; 2] = [0xff, 0x37];
    const MOVE: [u8; 2] = [0x48, 0xa5];
    const COMPARE: [u8; 2] = [0x48, 0xa7];
    for instruction in [PUSH, MOVE, COMPARE] {
        // Within a page each, and across a boundary each: four pages.
        for within in [0x800, 0xffc] {
            let mut lab = Lab::new(Ring::Three, &instruction);
            let (from, to) = (DATA + within, DATA + APART + within);
            lab.put(from, &0x1122_3344_5566_7788_u64.to_le_bytes());
            let (operand, stack) =
                if instruction == PUSH { (General::Rdi, General::Rsp) } else { (General::Rsi, General::Rdi) };
            lab.cpu.set_general(operand, from);
            lab.cpu.set_general(stack, if instruction == PUSH { to + 8 } else { to });
            assert_eq!(lab.run(1), Event::Limit);
            assert_eq!(lab.cpu.rip, CODE + 2, "{instruction:x?}");
            let expected = if instruction == COMPARE { 0 } else { lab.word(from) };
            assert_eq!(lab.word(to), expected, "{instruction:x?}");
        }
    }
}

fn run_program(
    refuse: fn(usize) -> bool,
    instructions: u64,
) -> (Registers, Vec<u8>, Vec<(u64, Access)>, u64) {
    let mut lab = Lab::new(Ring::Three, all_kinds());
    lab.machine.refuse = refuse;
    lab.cpu.set_general(General::Rax, 0x1122_3344_5566_7788);
    loop {
        match lab.run(instructions) {
            Event::Limit | Event::Stopped => {}
            Event::Halt => break,
            other => panic!("{other:?}"),
        }
    }
    let completed = lab.cpu.instructions;
    (lab.cpu.registers(), lab.machine.ram, lab.machine.asked, completed)
}

#[test]
fn stops_and_limits_change_nothing() {
    let (registers, memory, asked, completed) = run_program(|_| false, u64::MAX / 2);
    assert!(asked.iter().filter(|(_, access)| access.writes()).count() > 20, "{asked:x?}");
    for refuse in [|_| true, |number| number % 2 == 0, |number| number % 3 == 1] as [fn(usize) -> bool; 3] {
        for instructions in [1, 2, 5, 1000] {
            let cut = run_program(refuse, instructions);
            assert_eq!(cut.0, registers);
            assert!(cut.1 == memory, "memory differs");
            assert_eq!(cut.3, completed);
        }
    }
    // Without refusals even the questions are the same.
    assert_eq!(run_program(|_| false, 1).2, asked);
}

#[test]
fn accesses_are_asked_for_in_program_order_and_by_their_kind() {
    let mut lab = Lab::new(Ring::Three, all_kinds());
    lab.run(5);
    let data: Vec<_> = lab
        .machine
        .asked
        .iter()
        .filter(|(line, access)| *line >= DATA && *access != Access::Walk)
        .copied()
        .collect();
    let (first, last) = (DATA, DATA + 0xfc0);
    assert_eq!(
        data,
        [
            (STACK - 64, Access::Write),
            (first, Access::Modify),
            (first, Access::Atomic),
            (first + 64, Access::Atomic),
            (last, Access::Write),
            (last + 64, Access::Write),
            (last, Access::Read),
            (last + 64, Access::Read),
        ]
    );
    assert!(lab.machine.asked.contains(&((PAGES + (DATA >> 12) * 8) & !63, Access::Walk)));
}

#[test]
fn code_that_has_been_changed_is_executed_as_changed() {
    // Twice: inc eax; then the first byte of that instruction's operand becomes that of inc edx.
    // again: inc eax; mov byte [rip - 9 + 1], 0xc2; jmp again
    let program = [0xff, 0xc0, 0xc6, 0x05, 0xf8, 0xff, 0xff, 0xff, 0xc2, 0xeb, 0xf5];
    let mut lab = Lab::new(Ring::Three, &program);
    assert_eq!(lab.run(6), Event::Limit);
    assert_eq!((lab.cpu.general(General::Rax), lab.cpu.general(General::Rdx)), (1, 1));

    // Another CPU's store, to code that this one has executed since that other one last wrote the page.
    let mut lab = Lab::new(Ring::Three, &[0xff, 0xc0, 0xeb, 0xfc]);
    let mut other = lab.cpu.clone();
    lab.put(CODE + 0x800, &[0x88, 0x0f]); // mov [rdi], cl
    other.set_general(General::Rcx, 0xc2);
    for (at, expected) in [(CODE + 0x700, (2, 0)), (CODE + 1, (2, 2))] {
        other.rip = CODE + 0x800;
        other.set_general(General::Rdi, at);
        other.run(&mut lab.code, &mut lab.machine, other.instructions + 1);
        lab.run(4);
        assert_eq!((lab.cpu.general(General::Rax), lab.cpu.general(General::Rdx)), expected);
    }
}

#[test]
fn an_instruction_in_two_pages_is_executed_and_follows_its_second_page() {
    // mov eax, 0x11223344, its last two bytes in the next page
    let mut lab = Lab::new(Ring::Three, &[]);
    lab.put(CODE + 0xffd, &[0xb8, 0x44, 0x33, 0x22, 0x11]);
    lab.put(0x2_1000, &[0x66, 0x55]);
    for (frame, expected) in
        [(CODE + 0x1000, 0x1122_3344), (0x2_1000, 0x5566_3344), (CODE + 0x1000, 0x1122_3344)]
    {
        lab.map(CODE + 0x1000, frame | RIGHTS);
        lab.cpu.invalidate_page(CODE + 0x1000);
        lab.cpu.rip = CODE + 0xffd;
        assert_eq!(lab.run(1), Event::Limit);
        assert_eq!(lab.cpu.general(General::Rax), expected);
    }
}

#[test]
fn ports_are_opened_by_level_or_bitmap() {
    // out dx, eax
    for (level, bit, opens) in [(3, 1, true), (0, 0, true), (0, 1, false)] {
        let mut lab = Lab::new(Ring::Three, &[0xef]);
        lab.cpu.set_general(General::Rdx, 0x123);
        lab.cpu.set_general(General::Rax, 0xffff_ffff_0000_0042);
        lab.change(|registers| registers.rflags |= level << 12);
        lab.machine.ram.store(TSS + 104 + 0x123 / 8, 1, bit << (0x123 % 8));
        let event = lab.run(2);
        if opens {
            assert_eq!(event, Event::Out { port: 0x123, bytes: 4, value: 0x42 });
            assert_eq!((lab.cpu.rip, lab.cpu.instructions), (CODE + 1, 1));
        } else {
            assert_eq!((event, lab.word(EXCEPTION_STACK - 40)), (Event::Halt, CODE));
        }
    }
}

#[test]
fn an_answer_comes_to_the_register_that_asked() {
    // in al, dx; rdmsr
    let mut lab = Lab::new(Ring::Zero, &[0xec, 0x0f, 0x32]);
    lab.cpu.set_general(General::Rax, 0x1111);
    assert_eq!(lab.run(1), Event::In { port: 0, bytes: 1 });
    lab.cpu.answer(0xab);
    assert_eq!(lab.cpu.general(General::Rax), 0x11ab);
    lab.cpu.set_general(General::Rcx, 0x1b);
    assert_eq!(lab.run(1), Event::ReadMsr { register: 0x1b });
    lab.cpu.answer(0x5_0000_0006);
    assert_eq!((lab.cpu.general(General::Rax), lab.cpu.general(General::Rdx)), (6, 5));
}

#[test]
fn only_open_gates_can_be_called() {
    // int 0x80: its gate is ring 0's, so that #GP names it.
    let mut lab = Lab::new(Ring::Three, &[0xcd, 0x80]);
    assert_eq!(lab.run(2), Event::Halt);
    assert_eq!((lab.word(EXCEPTION_STACK - 48), lab.word(EXCEPTION_STACK - 40)), (0x80 * 8 + 2, CODE));
}

#[test]
fn cli_and_sti_change_the_interrupt_flag() {
    let mut lab = Lab::new(Ring::Zero, &[0xfa, 0xfb]);
    let flags = [(); 2].map(|()| {
        lab.run(1);
        lab.cpu.registers().rflags & 1 << 9
    });
    assert_eq!(flags, [0, 1 << 9]);
}

#[test]
fn an_interrupt_that_the_bus_stops_changes_nothing() {
    let mut lab = Lab::new(Ring::Three, &[0x90]);
    lab.run(1);
    let (before, memory) = (lab.cpu.registers(), lab.machine.ram.clone());
    lab.machine.refuse = |_| true;
    lab.cpu.raise_nmi();
    let mut stops = 0;
    while lab.run(0) == Event::Stopped {
        assert_eq!(lab.cpu.registers(), before);
        stops += 1;
        assert!(stops < 1000);
    }
    assert!(stops > 5, "every access of it was refused once: {stops}");
    assert!(memory != lab.machine.ram);
    assert_eq!((lab.cpu.rip, lab.word(EXCEPTION_STACK - 40)), (HANDLER, CODE + 1));
    assert_eq!(lab.cpu.registers().system.selectors[CS] & 3, 0);
}

// Guests that mean harm: what has no end comes to the limit of a run, and takes bounded memory.

#[test]
fn a_string_instruction_stops_at_the_limit_and_continues_next_run() {
    // rep lodsb; hlt
    const ELEMENTS: u64 = 1 << 21;
    let mut lab = Lab::new(Ring::Three, &[0xf3, 0xac, 0xf4]);
    lab.cpu.set_general(General::Rsi, 0);
    lab.cpu.set_general(General::Rcx, ELEMENTS);
    assert_eq!(lab.run(1), Event::Limit);
    let left = lab.cpu.general(General::Rcx);
    assert!(left > 0 && left < ELEMENTS && lab.cpu.rip == CODE, "{left} left");
    while lab.cpu.general(General::Rcx) > 0 {
        lab.machine.asked.clear();
        lab.run(1);
    }
    assert_eq!((lab.cpu.general(General::Rsi), lab.cpu.rip), (ELEMENTS, CODE + 2));
}

#[test]
fn code_that_rewrites_itself_without_end_takes_bounded_memory() {
    // loop: mov byte [rip], 0x90; nop; dec ecx; jnz loop; hlt
    let mut lab = Lab::new(Ring::Three, &[0xc6, 0x05, 0, 0, 0, 0, 0x90, 0x90, 0xff, 0xc9, 0x75, 0xf4, 0xf4]);
    lab.cpu.set_general(General::Rcx, 40_000);
    while lab.run(1000) == Event::Limit {
        lab.machine.asked.clear();
        assert!(lab.code.kept().0 <= 1 << 15, "{:?}", lab.code.kept());
    }
    assert_eq!(lab.cpu.general(General::Rcx), 0);
}

#[test]
fn code_in_page_after_page_takes_bounded_memory_and_is_found_again() {
    const COUNT: u64 = 5000;
    // mov rdi, 1 GiB + 2 MiB; loop: call rdi; add rdi, 4096; dec ecx; jnz loop; hlt
    let program =
        [0xbf, 0, 0, 0x20, 0x40, 0xff, 0xd7, 0x48, 0x81, 0xc7, 0, 0x10, 0, 0, 0xff, 0xc9, 0x75, 0xf3, 0xf4];
    let mut lab = Lab::new(Ring::Zero, &program);
    let ram = &mut lab.machine.ram;
    ram.resize(24 << 20, 0);
    for page in 0..COUNT {
        // inc eax; ret
        ram[(2 << 20) + page as usize * 4096..][..3].copy_from_slice(&[0xff, 0xc0, 0xc3]);
    }
    let mut other = lab.cpu.clone();
    for round in 0..3 {
        for cpu in [&mut lab.cpu, &mut other] {
            cpu.rip = CODE;
            cpu.set_general(General::Rax, 0);
            cpu.set_general(General::Rcx, COUNT - round);
            let event = std::iter::repeat_with(|| {
                lab.machine.asked.clear();
                cpu.run(&mut lab.code, &mut lab.machine, cpu.instructions + 1000)
            });
            let mut event = event.skip_while(|event| *event == Event::Limit);
            assert_eq!((event.next(), cpu.general(General::Rax)), (Some(Event::Halt), COUNT - round));
        }
        assert!(lab.code.kept().1 <= 1 << 12, "{:?}", lab.code.kept());
    }
}

#[test]
fn tables_at_the_end_of_all_addresses_are_no_trouble() {
    for base in [u64::MAX, u64::MAX - 8, u64::MAX - 100] {
        for changed in 0..3 {
            let mut lab = Lab::new(Ring::Three, &[0x0f, 0x0b]);
            lab.change(|Registers { system, .. }| {
                [&mut system.idt, &mut system.gdt, &mut system.task][changed].base = base;
            });
            assert!(matches!(lab.run(1), Event::ShutDown { .. } | Event::Halt), "{base:#x}, {changed}");
        }
        // in al, dx; ltr ax
        for (ring, code) in [(Ring::Three, &[0xec][..]), (Ring::Zero, &[0x0f, 0x00, 0xd8])] {
            let mut lab = Lab::new(ring, code);
            lab.change(|Registers { system, .. }| (system.task.base, system.gdt.base) = (base, base));
            lab.cpu.set_general(General::Rax, 0xf8);
            // The result depends on the memory behind the last address.
            lab.run(1);
        }
    }
}
