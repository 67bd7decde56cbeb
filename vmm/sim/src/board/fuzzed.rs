//! Guests that execute anything, in small memories: tables that lead to it, to nothing, and to more of it than there is.
//!
//! ```text
//!  virtual             0 .. 64 KiB     pages of 4 KiB, at the same physical addresses
//!                 64 KiB .. 128 KiB    pages behind all memory
//!                  1 GiB .. 2 GiB      one page: memory, and nothing
//!  the last 4 KiB of all addresses     PROGRAMS[1]
//! ```

mod tables;

use std::sync::{Arc, LazyLock};

use haltkick_fuzzing::{Script, Target};

use super::{Board, Happening, Memory, What};
use crate::cpu::bus::{Event, Partition};
use crate::cpu::state::{Cpu, Registers, System, Table};
use crate::machine::{Machine, presets};
use tables::{DIRECTORY, IDT, PAGES, PML4, POINTERS, RIGHTS};

/// Fuzzed execution of code.
pub const TARGET: Target = Target { name: "code", most_bytes: 128, seeds, execute };

const BYTES: u64 = 64 << 10;

const HANDLER: u64 = 0x7000;
/// Behind each other: a program can go on in the second one's page.
const PROGRAMS: [u64; 2] = [0x8000, 0x9000];
const DATA: u64 = 0xa000;
const STACKS: [u64; 2] = [0xc000, 0xd000];
const EXCEPTION_STACKS: u64 = 0xf000;
const HUGE: u64 = 1 << 30;
const LAST_PAGE: u64 = !0xfff;

/// How long a guest runs: two thousand instructions, or ten lines from elsewhere.
const WINDOW_PS: u64 = 1_000_000;
/// Time that the driver takes to handle an event.
const EXIT_PS: u64 = 1000;
const ALARM_PS: u64 = 300_000;
/// The first and the last CPU of the machine.
const FAR: u32 = 15;

/// Actions of handlers: return, cause the next exception, store, wait.
const HANDLERS: [&[u8]; 4] = [
    &[0x48, 0xcf],
    &[0x0f, 0x0b],
    // add rsp, 8; push rax; iretq
    &[0x48, 0x83, 0xc4, 0x08, 0x50, 0x48, 0xcf],
    // pause; jmp to it
    &[0xf3, 0x90, 0xeb, 0xfc],
];

/// Addresses at which something begins or ends, and numbers at which arithmetic does.
const NUMBERS: [u64; 16] = [
    0,
    1,
    64,
    u64::MAX,
    1 << 63,
    DATA,
    DATA + 0x3c,
    DATA - 3,
    BYTES - 4,
    HUGE + DATA,
    HUGE + BYTES,
    LAST_PAGE + 0xff9,
    PAGES + 0x50,
    PROGRAMS[0],
    IDT,
    1 << 47,
];

/// As much of `bytes` as there is memory for.
fn write(ram: &mut [u8], at: u64, bytes: &[u8]) {
    let place = ram.iter_mut().skip(at as usize);
    place.zip(bytes).for_each(|(slot, byte)| *slot = *byte);
}

struct Guest {
    memory: Vec<u8>,
    cpus: [Cpu; 2],
    second: u32,
    alarm: bool,
    nmi: bool,
    alone: bool,
    parks: bool,
}

impl Guest {
    fn new(bytes: &[u8]) -> Self {
        let mut script = Script::new(bytes);
        let choices = script.byte();
        let heads = [0, 1].map(|_| {
            let [place, length] = [0; 2].map(|_: u8| script.byte());
            let registers = [0; 4].map(|_: u8| {
                let byte = usize::from(script.byte());
                (byte >> 4, NUMBERS[byte & 15])
            });
            (place, usize::from(length), registers)
        });
        let text = script.rest();
        let (first, second) = text.split_at(heads[0].1.min(text.len()));
        let mut memory = vec![0_u8; BYTES as usize];
        tables::write_tables(&mut memory, 32, HANDLER, EXCEPTION_STACKS);
        // To the last page of all addresses.
        for (table, entry) in
            [(PML4, POINTERS), (POINTERS, DIRECTORY), (DIRECTORY, PAGES), (PAGES, PROGRAMS[1])]
        {
            memory.store(table + 511 * 8, 8, entry | RIGHTS);
        }
        write(&mut memory, HANDLER, HANDLERS[usize::from(choices & 3)]);
        let cpus = [0, 1].map(|number: usize| {
            let (place, _, numbers) = heads[number];
            let (rip, at) = match place >> 1 & 3 {
                0 => (PROGRAMS[number], PROGRAMS[number]),
                1 => (PROGRAMS[0] + 0xffb, PROGRAMS[0] + 0xffb),
                2 => (HUGE + PROGRAMS[number], PROGRAMS[number]),
                _ => {
                    let within = 0xfe0 + u64::from(place >> 3);
                    (LAST_PAGE + within, PROGRAMS[1] + within)
                }
            };
            write(&mut memory, at, [first, second][number]);
            // In ring 3 it may use all ports.
            let mut registers = tables::registers(place & 1 != 0, rip, 0x3202);
            registers.general[4] = STACKS[number];
            numbers.into_iter().for_each(|(register, number)| registers.general[register] = number);
            let mut cpu = Cpu::new(0, &registers);
            cpu.set_partition(Partition { start: 0, bytes: BYTES });
            cpu
        });
        Self {
            memory,
            cpus,
            second: if choices & 4 == 0 { FAR } else { 1 },
            alarm: choices & 8 != 0,
            nmi: choices & 16 != 0,
            alone: choices & 32 != 0,
            parks: choices & 64 == 0,
        }
    }
}

static MACHINE: LazyLock<Arc<Machine>> = LazyLock::new(|| Arc::new(presets()[0].machine()));

#[derive(Debug, PartialEq)]
struct GuestEnd {
    happenings: Vec<Happening>,
    /// Registers and completed instructions of CPUs that came to an end.
    cpus: [Option<(Registers, u64)>; 2],
    /// Words that are not zero, by address, if all CPUs came to one.
    memory: Vec<(usize, u64)>,
}

/// A guest's time passes, whatever it executes. Of a CPU alone as much comes if the rounds of spin loops are skipped as if they are
/// executed; of two, times can differ by accesses that were given up and paid again, when others came first.
fn execute(bytes: &[u8]) {
    let guest = Guest::new(bytes);
    if guest.alone {
        assert_eq!(run(&guest, true), run(&guest, false), "skipped, and executed");
    } else {
        run(&guest, guest.parks);
    }
}

fn run(guest: &Guest, parks: bool) -> GuestEnd {
    let mut board = Board::new(Arc::clone(&MACHINE), guest.memory.clone(), &[]);
    board.parks = parks;
    let slots = [0, guest.second];
    let slots = &slots[..if guest.alone { 1 } else { 2 }];
    for (number, slot) in slots.iter().copied().enumerate() {
        board.put(slot, Box::new(guest.cpus[number].clone()), 0);
    }
    if guest.alarm {
        board.set_alarm(0, ALARM_PS);
    }
    let mut happenings = Vec::new();
    let mut cpus = [None, None];
    // Happenings after the end do not count: they may have begun before it, or not.
    while let Some(happening) = board.run(WINDOW_PS).filter(|happening| happening.at_ps <= WINDOW_PS) {
        happenings.push(happening);
        if !see_to(&mut board, happening, guest.nmi) {
            let cpu = board.cpu(happening.cpu).expect("it has just happened to it");
            cpus[usize::from(happening.cpu != 0)] = Some((cpu.registers(), cpu.instructions));
        }
    }
    for slot in slots {
        board.take(*slot);
    }
    let words = board.memory().as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let memory = words
        .enumerate()
        .filter(|(_, word)| *word != 0 && cpus.iter().flatten().count() == slots.len())
        .collect();
    GuestEnd { happenings, cpus, memory }
}

/// Whether the CPU goes on.
fn see_to(board: &mut Board<Vec<u8>>, happening: Happening, nmi: bool) -> bool {
    let Happening { cpu: slot, at_ps, what } = happening;
    match what {
        What::Event(Event::Reached | Event::NotCovered | Event::ShutDown { .. }) => return false,
        What::Event(Event::Halt) if !nmi => return false,
        What::Event(Event::In { .. } | Event::ReadMsr { .. }) => {
            board.cpu_mut(slot).expect("it stands still").answer(at_ps);
        }
        What::Event(Event::Halt) | What::Alarm if nmi => board.raise_nmi(slot, EXIT_PS),
        What::Event(_) | What::Alarm | What::Stopped(_) | What::PauseLoop => {}
    }
    board.resume(slot, at_ps + EXIT_PS);
    true
}

/// Two programs, and one for both CPUs.
fn seed(choices: u8, heads: [[u8; 5]; 2], first: &[u8], second: &[u8]) -> Vec<u8> {
    let head = |[place, registers @ ..]: [u8; 5], length: usize| {
        [[place, length as u8].as_slice(), &registers].concat()
    };
    [
        vec![choices],
        head(heads[0], first.len()),
        head(heads[1], second.len()),
        first.to_vec(),
        second.to_vec(),
    ]
    .concat()
}

fn seeds() -> Vec<Vec<u8>> {
    // rdi: data; rsi: one, or 64
    let counts = [0, 0x75, 0x62, 0, 0];
    // loop: lock inc qword [rdi]; dec rsi; jnz loop; hlt
    let add = [0xf0, 0x48, 0xff, 0x07, 0x48, 0xff, 0xce, 0x75, 0xf7, 0xf4];
    // loop: pause; cmp dword [rdi], 0; je loop; hlt
    let wait = [0xf3, 0x90, 0x83, 0x3f, 0x00, 0x74, 0xf9, 0xf4];
    // mov [rdi], rax; lfence; mov [rdi + 8], rax; mfence; out 0x10, eax; jmp to the beginning
    let stores = [
        0x48, 0x89, 0x07, 0x0f, 0xae, 0xe8, 0x48, 0x89, 0x47, 0x08, 0x0f, 0xae, 0xf0, 0xe7, 0x10, 0xeb, 0xef,
    ];
    // cld; mov ecx, 64; rep stosq; rep movsb; cmpxchg [rdi], rcx; cmpxchg16b [rsi]; int3; syscall; ud2
    let strings = [
        0xfc, 0xb9, 0x40, 0, 0, 0, 0xf3, 0x48, 0xab, 0xf3, 0xa4, 0x48, 0x0f, 0xb1, 0x0f, 0x48, 0x0f, 0xc7,
        0x0e, 0xcc, 0x0f, 0x05, 0x0f, 0x0b,
    ];
    // rdtsc; div rsi; cpuid; mov cr3, rbx; invlpg [rdi]; rdmsr; wrmsr; swapgs; lidt [rdi]; iretq
    let system = [
        0x0f, 0x31, 0x48, 0xf7, 0xf6, 0x0f, 0xa2, 0x0f, 0x22, 0xdb, 0x0f, 0x01, 0x3f, 0x0f, 0x32, 0x0f, 0x30,
        0x0f, 0x01, 0xf8, 0x0f, 0x01, 0x1f, 0x48, 0xcf,
    ];
    // call behind; loop: rdtsc; pause; cmp eax, edx; jne loop; ret
    let clock = [0xe8, 0, 0, 0, 0, 0x0f, 0x31, 0xf3, 0x90, 0x39, 0xd0, 0x75, 0xf8, 0xc3];
    vec![
        seed(0, [counts, counts], &add, &add),
        seed(4, [counts, [1, 0x75, 0x62, 0, 0]], &wait, &add),
        seed(8, [[2, 0x76, 0, 0, 0], counts], &stores, &wait),
        seed(1, [[1, 0x75, 0x6d, 0, 0], [4, 0x7a, 0x6c, 0, 0]], &strings, &strings),
        seed(16, [[0, 0x75, 0x61, 0, 0], [6, 0x75, 0x61, 0, 0]], &system, &clock),
        seed(27, [[1, 0x75, 0x61, 0, 0], [7, 0x76, 0x62, 0, 0]], &clock, &stores),
        seed(32 | 8 | 16, [counts, counts], &clock, &[]),
        seed(32 | 8, [counts, counts], &wait, &[]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_code_takes_time_and_does_the_same_if_spinning_is_skipped() {
        TARGET.run();
    }
}
