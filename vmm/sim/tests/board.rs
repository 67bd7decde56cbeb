//! Boards with small programs on their CPUs.
#![expect(unsafe_code, reason = "programs for the simulated CPUs are assembled here and read as bytes")]

use std::sync::Arc;

use haltkick_sim::board::{Board, Happening, SpentOn, What, WorkLoop};
use haltkick_sim::machine::{Machine, presets};
use haltkick_sim::{Cpu, Event, General, Partition, Ram, Registers};

/// Where programs lie in the machine, and a page of data.
const CODE: u64 = 0x1000;
const DATA: u64 = 0x8000;
const BYTES: usize = 0x10000;
/// Page tables that map the first 2 MiB to themselves.
const TABLES: u64 = 0xc000;
/// What all programs end with: `out 0x10, eax`.
const DONE: u16 = 0x10;

/// The bytes of a program, up to and with its last instruction.
fn bytes_of(program: unsafe extern "C" fn()) -> &'static [u8] {
    const LAST: [u8; 2] = [0xe7, DONE as u8];
    let length = (0..).find(|&length| {
        // SAFETY: a function made of assembly that ends with these bytes; nothing behind them is read.
        let bytes: [u8; 2] = unsafe { (program as *const u8).add(length).cast::<[u8; 2]>().read_unaligned() };
        bytes == LAST
    });
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(program as *const u8, length.unwrap_or(0) + LAST.len()) }
}

macro_rules! program {
    ($name:ident, $($line:literal),* $(,)?) => {
        fn $name() -> &'static [u8] {
            #[unsafe(naked)]
            unsafe extern "C" fn program() {
                std::arch::naked_asm!($($line,)* "out 0x10, eax")
            }
            bytes_of(program)
        }
    };
}

// RDI: data. RSI: how often, or how long. RCX and others are free.
program!(add, "2: lock inc qword ptr [rdi]", "dec rsi", "jnz 2b");
program!(wait_for_flag, "2: pause", "cmp dword ptr [rdi], 0", "je 2b", "mov eax, [rdi + 64]");
program!(
    work_then_set,
    "mov eax, 3",
    "2: imul rax, rax",
    "imul rax, rax",
    "imul rax, rax",
    "imul rax, rax",
    "dec rsi",
    "jnz 2b",
    "mov dword ptr [rdi + 64], 7",
    "mov dword ptr [rdi], 1",
);
program!(
    wait_until,
    "2: pause",
    "cmp dword ptr [rdi], 0",
    "jne 3f",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "cmp rax, rsi",
    "jb 2b",
    "3:",
);
// Rounds that are counted, in various ways; the sum is in RAX.
program!(count, "xor eax, eax", "2: pause", "inc rax", "cmp dword ptr [rdi], 0", "je 2b");
program!(
    count_in_32_bits,
    "mov eax, 0xffffffd0",
    "2: pause",
    "add eax, 3",
    "cmp dword ptr [rdi], 0",
    "je 2b"
);
program!(
    count_up_and_down,
    "mov ecx, 5",
    "xor eax, eax",
    "2: pause",
    "dec rdx",
    "lea rax, [rax + rcx + 2]",
    "cmp dword ptr [rdi], 0",
    "je 2b",
    "shl rdx, 32",
    "xor rax, rdx",
);
// Counters that do something besides.
program!(
    count_to_a_bound,
    "xor eax, eax",
    "2: pause",
    "inc rax",
    "cmp rax, rsi",
    "jae 3f",
    "cmp dword ptr [rdi], 0",
    "je 2b",
    "3:",
);
program!(
    count_down_to_zero,
    "mov eax, 3000",
    "2: pause",
    "dec rax",
    "jz 3f",
    "cmp dword ptr [rdi], 0",
    "je 2b",
    "3:",
);
program!(
    sum_of_a_counter,
    "xor eax, eax",
    "xor ecx, ecx",
    "2: pause",
    "inc rcx",
    "add rax, rcx",
    "cmp dword ptr [rdi], 0",
    "je 2b",
);
program!(count_in_a_byte, "xor eax, eax", "2: pause", "inc al", "cmp dword ptr [rdi], 0", "je 2b",);
// Every second round leaves the registers of the one before the last, and the rounds between them store.
program!(
    store_every_second_round,
    "xor eax, eax",
    "2: pause",
    "xor eax, 1",
    "jz 2b",
    "inc qword ptr [rdi]",
    "cmp qword ptr [rdi], rsi",
    "jb 2b",
);
// Rounds that leave the guest.
program!(ask_and_wait, "2: pause", "out 0x11, eax", "cmp dword ptr [rdi], 0", "je 2b");
// RDI: a ticket lock (next, owner in lines of their own), and a counter behind it; R8: a product for the work loop.
program!(
    ticket,
    "2: mov eax, 1",
    "lock xadd [rdi], eax",
    "3: cmp [rdi + 64], eax",
    "je 4f",
    "pause",
    "jmp 3b",
    "4: inc qword ptr [rdi + 128]",
    "mov ecx, 50",
    "5: imul r8, r8",
    "imul r8, r8",
    "imul r8, r8",
    "imul r8, r8",
    "dec rcx",
    "jnz 5b",
    "inc dword ptr [rdi + 64]",
    "dec rsi",
    "jnz 2b",
);
// What takes far longer than an instruction, on lines that no other CPU has.
program!(pause_and_count, "2: pause", "inc qword ptr [rdi]", "dec rsi", "jnz 2b");
program!(look_at_the_clock, "2: rdtsc", "dec rsi", "jnz 2b");
program!(fence, "2: mfence", "dec rsi", "jnz 2b");
program!(store_then_load, "mov dword ptr [rdi], 1", "mov eax, [rsi]");

struct Bench {
    board: Board<Ram>,
    machine: Arc<Machine>,
}

impl Bench {
    fn new(name: &str, code: &[u8]) -> Self {
        Self::of_guests(1, name, code)
    }

    /// A machine with the memories of so many guests, which are alike.
    fn of_guests(guests: usize, name: &str, code: &[u8]) -> Self {
        let machine = Arc::new(presets().iter().find(|preset| preset.name == name).unwrap().machine());
        let mut ram = Ram::new(BYTES * guests);
        for start in (0..guests as u64).map(|guest| guest * BYTES as u64) {
            ram.bytes_mut()[(start + CODE) as usize..][..code.len()].copy_from_slice(code);
            // Present, writable, open to ring 3, used; and at last written, and of 2 MiB.
            for (table, entry) in
                [(0, TABLES + 0x1000 + 0x27), (0x1000, TABLES + 0x2000 + 0x27), (0x2000, 0xe7)]
            {
                ram.store(start + TABLES + table, 8, entry);
            }
        }
        let loops = WorkLoop::find_all(code, CODE);
        Self { board: Board::new(Arc::clone(&machine), ram, &loops), machine }
    }

    fn start(&mut self, slot: u32, rip: u64, rdi: u64, rsi: u64) {
        self.start_of_guest(0, slot, rip, rdi, rsi);
    }

    fn start_of_guest(&mut self, guest: u64, slot: u32, rip: u64, rdi: u64, rsi: u64) {
        let mut registers = Registers { rip, rflags: 2, ..Registers::default() };
        registers.general[General::Rdi as usize] = rdi;
        registers.general[General::Rsi as usize] = rsi;
        registers.general[General::R8 as usize] = 3;
        let system = &mut registers.system;
        (system.cr0, system.cr3, system.cr4, system.efer) = (0x8000_0001, TABLES, 0x20, 0x500);
        let mut cpu = Box::new(Cpu::new(slot, &registers));
        cpu.set_partition(Partition { start: guest * BYTES as u64, bytes: BYTES as u64 });
        self.board.put(slot, cpu, 0);
    }

    /// Runs until every CPU has come to the end of its program: when each did, with what in RAX and how many instructions.
    fn finish(&mut self, cpus: usize) -> Vec<(u32, u64, u64, u64)> {
        let mut ends = Vec::new();
        while ends.len() < cpus {
            let happening = self.board.run(u64::MAX / 2).expect("not all have ended, and nothing happens");
            let Happening { cpu: slot, at_ps, what: What::Event(Event::Out { port: DONE, .. }) } = happening
            else {
                panic!("{happening:?}")
            };
            let cpu = self.board.take(slot).unwrap();
            ends.push((slot, at_ps, cpu.general(General::Rax), cpu.instructions()));
        }
        self.board.run(u64::MAX / 2);
        ends.sort_unstable();
        ends
    }

    fn word(&self, at: u64) -> u64 {
        self.board.memory().load(at, 8)
    }
}

#[test]
fn atomic_additions_of_many_cpus_all_count_and_take_what_their_line_takes() {
    const EACH: u64 = 100;
    let mut bench = Bench::new("skylake-8s", add());
    let cpus = 28;
    (0..cpus).for_each(|slot| bench.start(slot, CODE, DATA, EACH));
    let ends = bench.finish(cpus as usize);
    assert_eq!(bench.word(DATA), EACH * u64::from(cpus));
    let last_ps = ends.iter().map(|end| end.1).max().unwrap();
    let each_ns = last_ps as f64 / 1000.0 / (EACH * u64::from(cpus)) as f64;
    assert!((20.0..26.0).contains(&each_ns), "{each_ns} ns between two additions");
}

#[test]
fn guests_with_the_same_addresses_share_no_line_and_no_byte() {
    const EACH: u64 = 100;
    let mut alone = Bench::new("skylake-8s", add());
    alone.start(0, CODE, DATA, EACH);
    let expected = alone.finish(1)[0];
    let mut both = Bench::of_guests(2, "skylake-8s", add());
    [0, 1].into_iter().for_each(|guest| both.start_of_guest(guest, guest as u32, CODE, DATA, EACH));
    let ends = both.finish(2);
    for (guest, end) in ends.iter().enumerate() {
        assert_eq!((end.1, end.3), (expected.1, expected.3), "guest {guest} waited for the other one");
        assert_eq!(both.word(guest as u64 * BYTES as u64 + DATA), EACH);
    }
    // Behind the first one's memory lies the second one's.
    let mut outside = Bench::of_guests(2, "skylake-8s", add());
    outside.start_of_guest(0, 0, CODE, BYTES as u64 + DATA, EACH);
    outside.finish(1);
    assert_eq!(outside.word(BYTES as u64 + DATA), 0, "it wrote into another guest's memory");
}

/// A waiter and one that works and then sets the flag, with parking and without.
fn flag(parks: bool, iterations: u64) -> (Vec<(u32, u64, u64, u64)>, Bench) {
    let code = [wait_for_flag(), work_then_set()].concat();
    let mut bench = Bench::new("cascadelake-2s", &code);
    bench.board.never_run_ahead();
    if !parks {
        bench.board.never_park();
    }
    bench.start(0, CODE, DATA, 0);
    bench.start(20, CODE + wait_for_flag().len() as u64, DATA, iterations);
    (bench.finish(2), bench)
}

#[test]
fn a_waiter_sees_the_flag_when_its_line_has_come_and_what_was_written_before() {
    let (ends, bench) = flag(true, 1000);
    let [(0, seen_ps, value, _), (20, set_ps, ..)] = ends[..] else { panic!("{ends:?}") };
    assert_eq!(value, 7, "the flag became visible before what was stored first");
    let far_ps = bench.machine.costs.line.hops_ps[0];
    let work_ps = 1000 * 6 * bench.machine.costs.instruction_ps;
    assert!(set_ps > work_ps && seen_ps > set_ps + far_ps && seen_ps < set_ps + 6 * far_ps, "{ends:?}");
}

#[test]
fn work_leaves_the_registers_that_its_multiplications_would() {
    for iterations in [1, 2, 3, 15, 16, 17, 1000] {
        let product = (0..4 * iterations).fold(3_u64, |product, _| product.wrapping_mul(product));
        assert_eq!(flag(true, iterations).0[1].2, product, "{iterations} iterations");
    }
}

#[test]
fn a_parked_waiter_ends_as_one_that_executes_every_round() {
    for iterations in [1, 10, 100, 101, 102, 1000, 5000] {
        assert_eq!(flag(true, iterations).0, flag(false, iterations).0, "{iterations} iterations");
    }
}

/// A waiter of this program and, as a thread of its core, one that works and then sets the flag.
fn beside(program: &[u8], parks: bool, iterations: u64) -> Vec<(u32, u64, u64, u64)> {
    let code = [program, work_then_set()].concat();
    let mut bench = Bench::new("cascadelake-2s", &code);
    bench.board.never_run_ahead();
    if !parks {
        bench.board.never_park();
    }
    let worker = bench.machine.topology.siblings(0).next().expect("the core has a second thread");
    bench.start(0, CODE, DATA, 2000);
    bench.start(worker, CODE + program.len() as u64, DATA, iterations);
    bench.finish(2)
}

#[test]
fn a_waiter_that_counts_its_rounds_is_parked_and_has_counted_them_all() {
    for program in [count(), count_in_32_bits(), count_up_and_down()] {
        let code = [program, work_then_set()].concat();
        for iterations in [1, 10, 100, 101, 5000] {
            let run = |parks: bool| {
                let mut bench = Bench::new("cascadelake-2s", &code);
                bench.board.never_run_ahead();
                if !parks {
                    bench.board.never_park();
                }
                bench.start(0, CODE, DATA, 2000);
                bench.start(20, CODE + program.len() as u64, DATA, iterations);
                bench.finish(2)
            };
            assert_eq!(run(true), run(false), "{iterations} iterations");
        }
        let worked_ps =
            |parks: bool| beside(program, parks, 50_000).into_iter().find(|end| end.0 != 0).unwrap().1;
        let (parked_ps, executed_ps) = (worked_ps(true), worked_ps(false));
        assert!(
            parked_ps < executed_ps * 9 / 10,
            "who is parked leaves the core: {parked_ps}, {executed_ps}"
        );
    }
}

#[test]
fn a_round_that_stores_between_two_that_are_alike_is_executed() {
    let run = |parks: bool| {
        let mut bench = Bench::new("cascadelake-2s", store_every_second_round());
        if !parks {
            bench.board.never_park();
        }
        bench.start(0, CODE, DATA, 1000);
        (bench.finish(1), bench.word(DATA))
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_waiter_that_leaves_the_guest_in_every_round_is_not_parked() {
    const ROUNDS: u32 = 10;
    let mut bench = Bench::new("cascadelake-2s", ask_and_wait());
    bench.start(0, CODE, DATA, 0);
    for round in 0..ROUNDS {
        match bench.board.run(u64::MAX / 2) {
            Some(Happening { at_ps, what: What::Event(Event::Out { port: 0x11, .. }), .. }) => {
                bench.board.resume(0, at_ps + 1_000_000);
            }
            other => panic!("round {round}: {other:?}"),
        }
        if round + 1 == ROUNDS {
            bench.board.memory_mut().store(DATA, 4, 1);
            bench.board.host_wrote(DATA);
        }
    }
    bench.finish(1);
}

#[test]
fn a_waiter_whose_counter_decides_anything_is_not_parked() {
    for program in [count_to_a_bound(), count_down_to_zero(), sum_of_a_counter(), count_in_a_byte()] {
        for iterations in [10, 1000, 20_000] {
            assert_eq!(beside(program, true, iterations), beside(program, false, iterations));
        }
    }
}

#[test]
fn a_waiter_with_a_deadline_leaves_when_it_would_have() {
    for (ticks, iterations) in [(10_000, 1_000_000), (123_457, 1_000_000), (1_000_000, 2_000)] {
        let run = |parks: bool| {
            let code = [wait_until(), work_then_set()].concat();
            let mut bench = Bench::new("cascadelake-2s", &code);
            bench.board.never_run_ahead();
            if !parks {
                bench.board.never_park();
            }
            bench.start(0, CODE, DATA, ticks);
            bench.start(3, CODE + wait_until().len() as u64, DATA, iterations);
            let ends = bench.finish(2);
            let deadline_ps = bench.machine.time_of_tick(ticks);
            let flag_ps = ends[1].1;
            assert!(ends[0].1 >= deadline_ps.min(flag_ps), "it left too early: {ends:?}");
            assert!(ends[0].1 < deadline_ps.min(flag_ps) + 1_000_000, "it left too late: {ends:?}");
            ends
        };
        assert_eq!(run(true), run(false));
    }
}

#[test]
fn a_ticket_lock_excludes_and_is_the_same_with_and_without_parking() {
    const EACH: u64 = 40;
    let run = |parks: bool, ahead: bool, cpus: u32| {
        let mut bench = Bench::new("cascadelake-2s", ticket());
        if !ahead {
            bench.board.never_run_ahead();
        }
        if !parks {
            bench.board.never_park();
        }
        (0..cpus).for_each(|slot| bench.start(slot, CODE, DATA, EACH));
        let ends = bench.finish(cpus as usize);
        assert_eq!(bench.word(DATA + 128), EACH * u64::from(cpus));
        ends
    };
    for cpus in [1, 2, 5, 30] {
        let (parked, executed) = (run(true, false, cpus), run(false, false, cpus));
        let last = |ends: &[(u32, u64, u64, u64)]| ends.iter().map(|end| end.1).max().unwrap() as f64;
        // With many CPUs some ask for a line at the same moment, and those that were parked in another order.
        if cpus <= 5 {
            assert_eq!(parked, executed, "{cpus} CPUs");
        }
        assert!((last(&parked) / last(&executed) - 1.0).abs() < 0.01, "{cpus} CPUs");
        let ahead = run(true, true, cpus);
        assert_eq!(ahead, run(true, true, cpus), "twice the same");
        let ratio = last(&ahead) / last(&executed);
        assert!((0.85..1.15).contains(&ratio), "{cpus} CPUs: {ratio}");
    }
}

#[test]
fn all_time_of_cpus_is_counted_and_counting_changes_nothing() {
    /// Where the spin loop of the program lies in it.
    const SPINS: std::ops::Range<u64> = 9..18;
    /// The same of the loop that stands for work.
    const WORK: u64 = 30;
    let run = |counts: bool, parks: bool| {
        let mut bench = Bench::new("cascadelake-2s", ticket());
        bench.board.never_run_ahead();
        if !parks {
            bench.board.never_park();
        }
        if counts {
            bench.board.count_time();
        }
        for slot in 0..5 {
            bench.start(slot, CODE, DATA, 40);
            bench.board.count_time_of(slot, Some(DATA + 128));
        }
        let ends = bench.finish(5);
        let spent: Vec<_> = bench.board.spent().collect();
        (ends, bench.board.transfers(), spent, bench.machine.costs.instruction_ps)
    };
    let (counted, plain, executed) = (run(true, true), run(false, true), run(true, false));
    assert_eq!((&counted.0, counted.1), (&plain.0, plain.1));
    assert!(plain.2.is_empty());
    let all_ps = |spent: &[(SpentOn, u64)]| spent.iter().map(|(_, ps)| ps).sum::<u64>();
    assert_eq!(all_ps(&counted.2), counted.0.iter().map(|end| end.1).sum::<u64>(), "{:?}", counted.0);
    // As much of it in the spin loop as if every round of that is executed.
    let in_loop = |spent: &[(SpentOn, u64)]| {
        let spins = spent.iter().filter(|(on, _)| SPINS.contains(&(on.rip - CODE)));
        spins.map(|(_, ps)| ps).sum::<u64>()
    };
    assert_eq!(counted.0, executed.0);
    assert!(in_loop(&counted.2) > all_ps(&counted.2) / 2, "five CPUs mostly wait");
    assert_eq!(in_loop(&counted.2), in_loop(&executed.2));
    // The work of a section takes what it takes, whoever else is there.
    let work_ps = counted.2.iter().filter(|(on, _)| on.rip - CODE == WORK).map(|(_, ps)| ps).sum::<u64>();
    assert_eq!(work_ps, 5 * 40 * 50 * 6 * counted.3);
    assert!(counted.2.iter().all(|(on, _)| !on.still && on.mark <= 5 * 40), "nobody stood still");
}

#[test]
fn a_load_may_pass_a_store_to_another_line_and_sees_its_own() {
    let (x, y) = (DATA, DATA + 64);
    let mut bench = Bench::new("cascadelake-2s", store_then_load());
    bench.start(0, CODE, x, y);
    bench.start(1, CODE, y, x);
    let ends = bench.finish(2);
    assert_eq!((bench.word(x) & 1, bench.word(y) & 1), (1, 1), "stores become visible");
    let seen: u64 = ends.iter().map(|end| end.2).sum();
    assert!(seen <= 2, "{ends:?}");
    let mut bench = Bench::new("cascadelake-2s", store_then_load());
    bench.start(0, CODE, x, x);
    assert_eq!(bench.finish(1)[0].2, 1, "its own store");
}

#[test]
fn an_alarm_stops_a_cpu_wherever_it_is() {
    const AT_PS: u64 = 2_000_000;
    let code = [wait_for_flag(), work_then_set()].concat();
    let mut bench = Bench::new("cascadelake-2s", &code);
    bench.start(0, CODE, DATA, 0);
    bench.start(1, CODE + wait_for_flag().len() as u64, DATA, u64::MAX / 4);
    [0, 1].into_iter().for_each(|slot| bench.board.set_alarm(slot, AT_PS + u64::from(slot)));
    for slot in [0, 1] {
        let rung = bench.board.run(u64::MAX / 2).unwrap();
        assert_eq!((rung.cpu, rung.what), (slot, What::Alarm));
        assert!((AT_PS..AT_PS + 100_000).contains(&rung.at_ps), "{rung:?}");
    }
    assert_eq!(bench.board.run(AT_PS * 2), None, "both stand still");
    bench.board.resume(1, AT_PS * 2);
    assert_eq!(bench.board.run(AT_PS * 3), None);
    assert!(bench.board.cpu(1).unwrap().instructions() > 4000, "it has worked on");
}

#[test]
fn an_alarm_rings_in_time_whatever_the_cpu_does() {
    const AT_PS: u64 = 1_000_000_000;
    for (name, code) in [
        ("pause", pause_and_count()),
        ("clock", look_at_the_clock()),
        ("fence", fence()),
        ("line", add()),
        ("spin", wait_for_flag()),
    ] {
        let mut bench = Bench::new("haswell-2s", code);
        bench.start(0, CODE, DATA, u64::MAX);
        bench.board.set_alarm(0, AT_PS);
        let happening = bench.board.run(u64::MAX / 2).expect("the alarm");
        assert_eq!(happening.what, What::Alarm, "{name}");
        let late_ps = happening.at_ps - AT_PS;
        assert!(late_ps < 50_000_000, "{name}: {late_ps} ps late");
    }
}
