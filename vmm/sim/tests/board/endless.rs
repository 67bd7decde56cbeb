//! Guests that mean harm: what has no end comes to the limit of a run, and takes bounded memory.

use haltkick_sim::{Event, General, Registers};

use crate::harness::{CODE, HANDLER, Lab, Ring};

#[test]
fn exceptions_whose_handler_causes_the_next_come_to_the_limit() {
    let mut lab = Lab::new(Ring::Three, &[0x0f, 0x0b]);
    lab.put(HANDLER, &[0x0f, 0x0b]);
    assert_eq!(lab.run(100), Event::Limit);
    assert_eq!((lab.cpu.rip, lab.cpu.instructions), (HANDLER, 100));
}

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
    const PAGES: u64 = 5000;
    // mov rdi, 1 GiB + 2 MiB; loop: call rdi; add rdi, 4096; dec ecx; jnz loop; hlt
    let program =
        [0xbf, 0, 0, 0x20, 0x40, 0xff, 0xd7, 0x48, 0x81, 0xc7, 0, 0x10, 0, 0, 0xff, 0xc9, 0x75, 0xf3, 0xf4];
    let mut lab = Lab::new(Ring::Zero, &program);
    let ram = &mut lab.machine.ram;
    ram.resize(24 << 20, 0);
    for page in 0..PAGES {
        // inc eax; ret
        ram[(2 << 20) + page as usize * 4096..][..3].copy_from_slice(&[0xff, 0xc0, 0xc3]);
    }
    let mut other = lab.cpu.clone();
    for round in 0..3 {
        for cpu in [&mut lab.cpu, &mut other] {
            cpu.rip = CODE;
            cpu.set_general(General::Rax, 0);
            cpu.set_general(General::Rcx, PAGES - round);
            let event = std::iter::repeat_with(|| {
                lab.machine.asked.clear();
                cpu.run(&mut lab.code, &mut lab.machine, cpu.instructions + 1000)
            });
            let mut event = event.skip_while(|event| *event == Event::Limit);
            assert_eq!((event.next(), cpu.general(General::Rax)), (Some(Event::Halt), PAGES - round));
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
