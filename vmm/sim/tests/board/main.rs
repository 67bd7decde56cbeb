//! Simulated CPUs and boards of them with small programs, which need no comparison with a real CPU.

mod cpu;
mod faults;
mod harness;
mod models;
mod parking;
mod programs;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haltkick_sim::board::{Board, Happening, Memory, Step, What, Witness, WorkLoop};
use haltkick_sim::machine::{Machine, presets};
use haltkick_sim::{Access, Cpu, Event, General, Partition, Registers};

use crate::programs::*;

/// Addresses of programs in the machine, and of a page of data.
const CODE: u64 = 0x1000;
const DATA: u64 = 0x8000;
const BYTES: usize = 0x10000;
/// Page tables that map the first 2 MiB to themselves.
const TABLES: u64 = 0xc000;
/// Port of `out 0x10, eax`, the end of all programs.
const DONE: u16 = 0x10;

fn preset(name: &str) -> Machine {
    presets().iter().find(|preset| preset.name == name).expect("it is built in").machine()
}

struct Bench {
    board: Board<Vec<u8>>,
    machine: Arc<Machine>,
}

impl Bench {
    fn new(name: &str, code: &[u8]) -> Self {
        Self::of_machine(1, preset(name), code)
    }

    /// A machine with the memories of `guests`, which are alike.
    fn of_machine(guests: usize, machine: Machine, code: &[u8]) -> Self {
        let mut ram = vec![0_u8; BYTES * guests];
        for start in (0..guests as u64).map(|guest| guest * BYTES as u64) {
            ram[(start + CODE) as usize..][..code.len()].copy_from_slice(code);
            // Present, writable, open to ring 3, used; and at last written, and of 2 MiB.
            for (table, entry) in
                [(0, TABLES + 0x1000 + 0x27), (0x1000, TABLES + 0x2000 + 0x27), (0x2000, 0xe7)]
            {
                ram.store(start + TABLES + table, 8, entry);
            }
        }
        Self::of_memory(machine, ram, &WorkLoop::find_all(code, CODE))
    }

    fn of_memory(machine: Machine, ram: Vec<u8>, loops: &[WorkLoop]) -> Self {
        let machine = Arc::new(machine);
        Self { board: Board::new(Arc::clone(&machine), ram, loops), machine }
    }

    /// No CPU runs ahead of others, and waiters are parked only if they are to be: times are then the same with and without.
    fn one_by_one(&mut self, parks: bool) {
        self.board.most_ahead_ps = 0;
        self.board.parks = parks;
    }

    /// A CPU of the first guest begins at once.
    fn start(&mut self, slot: u32, rip: u64, rdi: u64, rsi: u64) {
        self.start_cpu(0, slot, (rip, rdi, rsi), 0);
    }

    fn start_cpu(&mut self, guest: u64, slot: u32, (rip, rdi, rsi): (u64, u64, u64), at_ps: u64) {
        let mut registers = Registers { rip, rflags: 2, ..Registers::default() };
        registers.general[General::Rdi as usize] = rdi;
        registers.general[General::Rsi as usize] = rsi;
        registers.general[General::R8 as usize] = 3;
        let system = &mut registers.system;
        (system.cr0, system.cr3, system.cr4, system.efer) = (0x8000_0001, TABLES, 0x20, 0x500);
        let mut cpu = Box::new(Cpu::new(slot, &registers));
        cpu.set_partition(Partition { start: guest * BYTES as u64, bytes: BYTES as u64 });
        self.board.put(slot, cpu, at_ps);
    }

    /// Next happening, which is not after `until_ps`.
    fn next(&mut self, until_ps: u64) -> Happening {
        let happening = self.board.run(until_ps);
        happening.unwrap_or_else(|| panic!("nothing has happened until {} ns", until_ps / 1000))
    }

    /// Lets CPUs come to the ends of their programs, until `until_ps`: they are taken out.
    fn end(&mut self, cpus: usize, until_ps: u64) -> Vec<(u64, Box<Cpu>)> {
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

    /// Runs until every CPU has come to the end of its program: when each did, with what in RAX and how many instructions.
    fn finish(&mut self, cpus: usize) -> Vec<(u32, u64, u64, u64)> {
        let end =
            |(at_ps, cpu): (u64, Box<Cpu>)| (cpu.id, at_ps, cpu.general(General::Rax), cpu.instructions);
        let mut ends: Vec<_> = self.end(cpus, u64::MAX / 4).into_iter().map(end).collect();
        ends.sort_unstable();
        ends
    }

    fn word(&self, at: u64) -> u64 {
        self.board.memory().load(at, 8)
    }
}

fn is_out(what: What, expected: u16) -> bool {
    matches!(what, What::Event(Event::Out { port, .. }) if port == expected)
}

/// The shape of published curves of one contended word: flat in a socket; a second one costs nothing where its CPUs ask again at once,
/// and half as much again where they come back after a while. `docs/simulated-truth.md` has all points.
#[test]
fn a_second_socket_costs_only_those_who_come_back_late() {
    const UNTIL_PS: u64 = 1_000_000_000;
    let between_additions_ns = |cpus: &[u32], rounds: u64| {
        let mut bench = Bench::new("broadwell-2s", add_and_work());
        for &slot in cpus {
            bench.start(slot, CODE, DATA, u64::MAX);
            bench.board.cpu_mut(slot).unwrap().set_general(General::Rbx, rounds);
        }
        assert_eq!(bench.board.run(UNTIL_PS), None);
        UNTIL_PS as f64 / 1000.0 / bench.word(DATA) as f64
    };
    let cores = preset("broadwell-2s").topology.cores();
    let both: Vec<u32> = (0..cores).flat_map(|core| [core, core + cores]).collect();
    let one = &both[..both.len() / 2];
    // They come back after some 3 ns and 600 ns.
    for (rounds, few, most) in [(1, 0.9, 1.15), (250, 1.3, 2.2)] {
        let alone_ns = between_additions_ns(one, rounds);
        let ratio = between_additions_ns(&both, rounds) / alone_ns;
        assert!((few..most).contains(&ratio), "{rounds} rounds: {alone_ns} ns in a socket, {ratio} in two");
    }
    let ratio = between_additions_ns(one, 1) / between_additions_ns(&one[..8], 1);
    assert!((0.9..1.1).contains(&ratio), "flat in a socket: {ratio}");
}

#[test]
fn guests_with_the_same_addresses_share_no_line_and_no_byte() {
    const EACH: u64 = 100;
    let mut alone = Bench::new("skylake-8s", add());
    alone.start(0, CODE, DATA, EACH);
    let expected = alone.finish(1)[0];
    let mut both = Bench::of_machine(2, preset("skylake-8s"), add());
    [0, 1].into_iter().for_each(|guest| both.start_cpu(guest, guest as u32, (CODE, DATA, EACH), 0));
    let ends = both.finish(2);
    for (guest, end) in ends.iter().enumerate() {
        // The other one's code was found meanwhile, so the tables of its page of data are looked at once more.
        let most_ps = expected.1 + 3 * both.machine.costs.hit_ps;
        assert!((expected.1..=most_ps).contains(&end.1), "guest {guest} waited for the other one: {end:?}");
        assert_eq!(end.3, expected.3);
        assert_eq!(both.word(guest as u64 * BYTES as u64 + DATA), EACH);
    }
    // Behind the first one's memory lies the second one's.
    let mut outside = Bench::of_machine(2, preset("skylake-8s"), add());
    outside.start(0, CODE, BYTES as u64 + DATA, EACH);
    outside.finish(1);
    assert_eq!(outside.word(BYTES as u64 + DATA), 0, "it wrote into another guest's memory");
}

#[test]
fn a_string_instruction_that_waits_for_lines_pays_for_every_element() {
    let took_ps = |program: &[u8]| {
        let code = [program, store_lines()].concat();
        let mut bench = Bench::new("cascadelake-2s", &code);
        bench.start(0, CODE, DATA, 0);
        bench.start(20, CODE + program.len() as u64, DATA, 0);
        (bench.finish(2)[0].1, bench.machine.costs.instruction_ps)
    };
    let (at_once_ps, instruction_ps) = took_ps(load_lines());
    let touches_ps = (2 + 8 * 5) * instruction_ps;
    assert!(at_once_ps + touches_ps >= took_ps(touch_and_load_lines()).0);
}

#[test]
fn all_time_of_cpus_is_counted_where_it_is_spent() {
    /// Place of the spin loop in the program.
    const SPINS: std::ops::Range<u64> = 9..18;
    let run = |parks: bool| {
        let mut bench = Bench::new("cascadelake-2s", ticket());
        bench.one_by_one(parks);
        bench.board.count_time(|word| word);
        for slot in 0..5 {
            bench.start(slot, CODE, DATA, 40);
            bench.board.count_time_of(slot, Some(DATA + 128));
        }
        let ends_ps = bench.finish(5).iter().map(|end| end.1).sum::<u64>();
        let spent: Vec<_> = bench.board.spent().collect();
        assert_eq!(spent.iter().map(|(_, ps)| ps).sum::<u64>(), ends_ps, "{spent:?}");
        assert!(spent.iter().all(|(on, _)| !on.still && on.mark <= 5 * 40), "no CPU stood still");
        let spins = spent.iter().filter(|(on, _)| SPINS.contains(&(on.rip - CODE)));
        (spins.map(|(_, ps)| ps).sum::<u64>(), ends_ps)
    };
    let (spins_ps, ends_ps) = run(true);
    assert_eq!((spins_ps, ends_ps), run(false), "as if every round of the spin loop is executed");
    assert!(spins_ps > ends_ps / 2, "five CPUs mostly wait");
}

#[test]
fn a_guest_that_counts_up_its_mark_takes_bounded_memory() {
    const EACH: u64 = 200_000;
    let spent = |marked: fn(u32) -> u32| {
        let mut bench = Bench::new("cascadelake-2s", add());
        bench.board.count_time(marked);
        bench.start(0, CODE, DATA, EACH);
        bench.board.count_time_of(0, Some(DATA));
        let end_ps = bench.finish(1)[0].1;
        let spent: Vec<_> = bench.board.spent().collect();
        assert_eq!(spent.iter().map(|(_, ps)| ps).sum::<u64>(), end_ps, "all time is counted");
        spent.len()
    };
    assert!(spent(|word| word) <= (1 << 17) + 1);
    assert!(spent(|word| word % 4) <= 4 * 4, "four marks at four instructions");
}

#[test]
fn a_store_to_ones_own_line_waits_for_those_before_it() {
    let (own, shared) = (DATA, DATA + 64);
    let mut seen = std::collections::BTreeSet::new();
    let code = [store_to_two(), look_at_two()].concat();
    for rounds in (200..800).step_by(2) {
        let mut bench = Bench::new("cascadelake-2s", &code);
        let looks = CODE + store_to_two().len() as u64;
        bench.start(0, CODE, own, shared);
        // The one of the other socket has a copy, too: to invalidate that takes longer than to read the first CPU's own line.
        for slot in [1, 20] {
            bench.start(slot, looks, own + 128 * u64::from(slot == 20), shared);
            bench.board.cpu_mut(slot).unwrap().set_general(General::R8, rounds);
        }
        seen.insert(bench.finish(3)[1].2);
    }
    assert!(seen.contains(&0) && seen.contains(&3), "{seen:?}");
    assert!(!seen.contains(&2), "the later store is seen without the earlier one");
}

#[test]
fn a_board_that_is_to_stop_does_so_wherever_it_is() {
    // Alone, a CPU has no reason to stop; with others, each does at every turn.
    for cpus in [1, 2] {
        let mut bench = Bench::new("haswell-2s", pause_and_count());
        bench.board.parks = false;
        (0..cpus).for_each(|slot| bench.start(slot, CODE, DATA, u64::MAX));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                stop.store(true, Ordering::Relaxed);
            });
            assert_eq!(bench.board.run_unless(&stop, u64::MAX / 2), None);
        });
        assert!(bench.board.executed > 0 && bench.board.now_ps() < u64::MAX / 2);
    }
}

#[test]
fn work_that_is_counted_down_from_zero_goes_on_from_the_top() {
    let mut bench = Bench::new("cascadelake-2s", work_then_set());
    bench.start(0, CODE, DATA, 0);
    assert_eq!(bench.board.run(10_000_000), None);
    let cpu = bench.board.cpu(0).expect("it is there");
    assert!(cpu.general(General::Rsi) > u64::MAX / 2 && cpu.instructions > 4000, "{:?}", cpu.registers());
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
        ("string", fill()),
        ("work", work_then_set()),
    ] {
        let mut bench = Bench::new("haswell-2s", code);
        bench.start(0, CODE, DATA, u64::MAX);
        // To fill memory for as long as the others would take minutes.
        let at_ps = if name == "string" { AT_PS / 300 } else { AT_PS };
        bench.board.set_alarm(0, at_ps);
        let happening = bench.board.run(u64::MAX / 2).expect("the alarm");
        assert_eq!(happening.what, What::Alarm, "{name}");
        let late_ps = happening.at_ps - at_ps;
        assert!(late_ps < 50_000_000, "{name}: {late_ps} ps late");
        // At the first PAUSE, between two parts of the instruction, or in the loop that stands for work.
        assert!(
            !["pause", "string", "work"].contains(&name) || late_ps < 100_000,
            "{name}: {late_ps} ps late"
        );
    }
}

#[test]
fn random_numbers_are_those_of_the_seed() {
    let drawn = |seed: u64| {
        let mut bench = Bench::new("skylake-8s", draw());
        bench.board.set_seed(seed);
        [0, 1].into_iter().for_each(|slot| bench.start(slot, CODE, DATA, 0));
        bench.finish(2).iter().map(|end| end.2).collect::<Vec<_>>()
    };
    let (one, two) = (drawn(1), drawn(2));
    assert_eq!(one, drawn(1));
    let all: std::collections::BTreeSet<_> = one.iter().chain(&two).collect();
    assert!(all.len() == 4 && !all.contains(&0), "{one:x?} {two:x?}");
}

/// Steps that a witness has seen; times until which it wants them.
#[derive(Default)]
struct Seen {
    until_ps: u64,
    steps: Vec<Step>,
}

impl Witness for Seen {
    fn wants_steps(&self, at_ps: u64) -> bool {
        at_ps < self.until_ps
    }

    fn step(&mut self, step: &Step) {
        self.steps.push(*step);
    }

    fn stands(&mut self, cpu: &mut Cpu, _: u64) -> Option<u64> {
        cpu.asked_at = u64::MAX;
        None
    }
}

fn watched(program: &[u8], cpus: u32, until_ps: u64) -> (Bench, Rc<RefCell<Seen>>) {
    let seen = Rc::new(RefCell::new(Seen { until_ps, ..Seen::default() }));
    let mut bench = Bench::new("cascadelake-2s", program);
    bench.board.most_ahead_ps = 0;
    bench.board.witness = Some(seen.clone());
    (0..cpus).for_each(|slot| bench.start(slot, CODE, DATA, 100));
    (bench, seen)
}

#[test]
fn a_witness_is_told_of_each_instruction_while_it_wants() {
    /// Longer than the first instruction, which walks the tables.
    const UNTIL_PS: u64 = 600_000;
    let (mut bench, seen) = watched(add(), 2, u64::MAX);
    let ends = bench.finish(2);
    let seen = seen.borrow();
    for (slot, end_ps, _, instructions) in ends {
        let steps: Vec<_> = seen.steps.iter().filter(|step| step.number == slot).collect();
        assert_eq!(steps.len() as u64, instructions, "CPU {slot}");
        assert!(steps.iter().zip(0..).all(|(step, before)| step.instructions == before));
        assert!(
            steps
                .windows(2)
                .all(|pair| pair[0].ended_ps <= pair[1].at_ps && pair[0].at_ps < pair[0].ended_ps)
        );
        let last = steps[steps.len() - 1];
        assert!(last.exits && last.ended_ps == end_ps && steps.iter().filter(|step| step.exits).count() == 1);
        let shared = steps.iter().filter(|step| step.shared == Some(Access::Atomic)).count();
        assert!((50..=100).contains(&shared), "all additions since the other CPU has the line: {shared}");
        assert!(steps.iter().all(|step| matches!(step.shared, None | Some(Access::Atomic)) && !step.clock));
    }
    drop(seen);
    let (mut bench, seen) = watched(look_at_the_clock(), 1, UNTIL_PS);
    bench.finish(1);
    let steps = &seen.borrow().steps;
    assert!(steps.len() > 9 && steps.iter().all(|step| step.at_ps < UNTIL_PS), "{}", steps.len());
    assert_eq!(steps.iter().filter(|step| step.clock).count(), steps.len().div_ceil(3));
}
