//! Guests that mean harm: what has no end comes to the limit of a run, and takes bounded memory.

use haltkick_sim::{Event, General};

use crate::harness::{CODE, HANDLER, Lab, Ring};

#[test]
fn exceptions_whose_handler_causes_the_next_come_to_the_limit() {
    let mut lab = Lab::new(Ring::Three, &[0x0f, 0x0b]);
    lab.put(HANDLER, &[0x0f, 0x0b]);
    assert_eq!(lab.run(100), Event::Limit);
    assert_eq!((lab.cpu.rip(), lab.cpu.instructions()), (HANDLER, 100));
}

#[test]
fn a_string_instruction_of_any_length_comes_to_the_limit_and_goes_on_at_the_next_run() {
    // rep lodsb; hlt
    const ELEMENTS: u64 = 1 << 21;
    let mut lab = Lab::new(Ring::Three, &[0xf3, 0xac, 0xf4]);
    lab.cpu.set_general(General::Rsi, 0);
    lab.cpu.set_general(General::Rcx, ELEMENTS);
    assert_eq!(lab.run(1), Event::Limit);
    let left = lab.cpu.general(General::Rcx);
    assert!(left > 0 && left < ELEMENTS && lab.cpu.rip() == CODE, "{left} left");
    while lab.cpu.general(General::Rcx) > 0 {
        lab.machine.asked.clear();
        lab.run(1);
    }
    assert_eq!((lab.cpu.general(General::Rsi), lab.cpu.rip()), (ELEMENTS, CODE + 2));
}

#[test]
fn code_that_rewrites_itself_without_end_takes_bounded_memory() {
    // loop: mov byte [rip], 0x90; nop; dec ecx; jnz loop; hlt
    let mut lab = Lab::new(Ring::Three, &[0xc6, 0x05, 0, 0, 0, 0, 0x90, 0x90, 0xff, 0xc9, 0x75, 0xf4, 0xf4]);
    lab.cpu.set_general(General::Rcx, 40_000);
    while lab.run(1000) == Event::Limit {
        lab.machine.asked.clear();
        let shown = format!("{:?}", lab.code);
        let blocks = shown.split("blocks: ").nth(1).and_then(|text| text.split(',').next());
        assert!(blocks.is_some_and(|blocks| blocks.parse::<u32>().unwrap() <= 1 << 15), "{shown}");
    }
    assert_eq!(lab.cpu.general(General::Rcx), 0);
}

#[test]
fn tables_at_the_end_of_all_addresses_are_no_trouble() {
    for base in [u64::MAX, u64::MAX - 8, u64::MAX - 100] {
        for changed in 0..3 {
            let mut lab = Lab::new(Ring::Three, &[0x0f, 0x0b]);
            let mut registers = lab.cpu.registers();
            let system = &mut registers.system;
            [&mut system.idt, &mut system.gdt, &mut system.task][changed].base = base;
            lab.cpu.set_registers(&registers);
            assert!(matches!(lab.run(1), Event::ShutDown { .. } | Event::Halt), "{base:#x}, {changed}");
        }
    }
}
