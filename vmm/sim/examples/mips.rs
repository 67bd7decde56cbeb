//! Instructions a second, on one core of this host: code of the embedded guest image, with a bus that charges for nothing
//! and with one that looks every line up.
//!
//! `cargo run --release --package haltkick-sim --example mips`. Figures of a busy machine compare with those of the same run only.

use std::time::Instant;

use haltkick_sim::{Access, Bus, Code, Cpu, Event, General, Moment, Ram, Registers, System, Verdict};
use haltkick_vmm::Image;
use object::{Object as _, ObjectSegment as _};

const RAM_BYTES: usize = 64 << 20;
const PML4: u64 = 0x20_0000;
const LOOP: u64 = 0x20_4000;
const AREA: u64 = 0x30_0000;
const LOCK: u64 = 0x31_0000;
const STACK: u64 = 0x32_0000;
/// Offset of the vCPU's number in its area, as in the ABI.
const CPU_OFFSET: u64 = haltkick_hypercalls::CPU_OFFSET as u64;

/// Memory, and who has each line if anybody asks.
struct Machine<const LOOK_UP: bool> {
    ram: Ram,
    owners: Vec<u32>,
    foreign: u64,
}

impl<const LOOK_UP: bool> Bus for Machine<LOOK_UP> {
    #[inline(always)]
    fn touch(&mut self, now: Moment, line: u64, _: Access) -> Verdict {
        if LOOK_UP && self.owners[(line / 64) as usize] != now.cpu {
            self.owners[(line / 64) as usize] = now.cpu;
            self.foreign += 1;
        }
        Verdict::Go
    }

    #[inline(always)]
    fn load(&mut self, physical: u64, bytes: usize) -> u64 {
        self.ram.load(physical, bytes)
    }

    #[inline(always)]
    fn store(&mut self, physical: u64, bytes: usize, value: u64) {
        self.ram.store(physical, bytes, value);
    }

    fn clock(&mut self, now: Moment) -> u64 {
        now.instructions
    }
}

impl<const LOOK_UP: bool> Machine<LOOK_UP> {
    /// The image at its addresses, in large pages.
    fn new() -> Self {
        let mut ram = Ram::new(RAM_BYTES);
        let file = object::File::parse(Image::embedded_elf()).expect("the image is an ELF file");
        for segment in file.segments() {
            let data = segment.data().expect("a segment has bytes");
            let at = segment.address() as usize;
            ram.bytes_mut()[at..at + data.len()].copy_from_slice(data);
        }
        ram.store(PML4, 8, (PML4 + 0x1000) | 7);
        ram.store(PML4 + 0x1000, 8, (PML4 + 0x2000) | 7);
        for page in 1..RAM_BYTES as u64 >> 21 {
            ram.store(PML4 + 0x2000 + page * 8, 8, page << 21 | 0x87);
        }
        ram.store(AREA + CPU_OFFSET, 4, 0);
        Self { ram, owners: vec![u32::MAX; RAM_BYTES / 64], foreign: 0 }
    }
}

/// The function of the guest whose name has `part`, in whatever module, and ends with `end`.
fn address(part: &str, end: &str) -> u64 {
    let image = Image::embedded();
    let mut symbols = image.symbols().iter();
    let found = symbols.find(|symbol| symbol.name.contains(part) && symbol.name.ends_with(end));
    found.unwrap_or_else(|| panic!("the image has no function {part}...{end}")).address
}

/// Takes and releases a lock forever.
fn lock_loop(lock: &str) -> Vec<u8> {
    let function = |verb: &str| address(&format!("::calls::{verb}::<"), &format!("::{lock}>"));
    let mut code = Vec::new();
    // mov rdi, LOCK; mov rax, function; call rax
    code.extend(
        [&[0x48, 0xbf][..], &LOCK.to_le_bytes(), &[0x48, 0xb8], &function("lock").to_le_bytes()].concat(),
    );
    code.extend([0xff, 0xd0]);
    // mov rsi, rax; mov rdi, LOCK; mov rax, function; call rax
    code.extend([0x48, 0x89, 0xc6]);
    code.extend(
        [&[0x48, 0xbf][..], &LOCK.to_le_bytes(), &[0x48, 0xb8], &function("unlock").to_le_bytes()].concat(),
    );
    code.extend([0xff, 0xd0]);
    code.extend([0xeb, (-(code.len() as i8) - 2) as u8]);
    code
}

/// The best of some runs, in millions of instructions a second.
fn measure<const LOOK_UP: bool>(code: &[u8], rip: u64, instructions: u64) -> f64 {
    const RUNS: usize = 5;
    let mut machine = Machine::<LOOK_UP>::new();
    machine.ram.bytes_mut()[LOOP as usize..LOOP as usize + code.len()].copy_from_slice(code);
    let system = System {
        selectors: [0x2b, 0x33, 0x2b, 0x2b, 0, 0],
        gs_base: AREA,
        cr0: 1 << 31 | 1 << 16 | 1,
        cr3: PML4,
        cr4: 1 << 5,
        efer: 1 << 10 | 1 << 8,
        ..System::default()
    };
    let mut cpu = Cpu::new(0, &Registers { rip, rflags: 2, system, ..Registers::default() });
    cpu.set_general(General::Rsp, STACK);
    cpu.set_general(General::Rdi, u64::MAX);
    let mut decoded = Code::new();
    let mut best = 0.0_f64;
    for _ in 0..RUNS {
        let start = Instant::now();
        let event = cpu.run(&mut decoded, &mut machine, cpu.instructions() + instructions);
        assert_eq!(event, Event::Limit, "at {:#x}", cpu.rip());
        best = best.max(instructions as f64 / start.elapsed().as_secs_f64() / 1e6);
    }
    best
}

fn main() {
    const INSTRUCTIONS: u64 = 20_000_000;
    println!("MIPS                    free bus   every line looked up");
    for lock in ["Mcs", "QspinlockNative", "QspinlockV16"] {
        let code = lock_loop(lock);
        let free = measure::<false>(&code, LOOP, INSTRUCTIONS);
        let looked_up = measure::<true>(&code, LOOP, INSTRUCTIONS);
        println!("{lock:<22} {free:>9.0} {looked_up:>12.0}");
    }
    let work = address("haltkick_guest::", "::time::work_loop");
    let free = measure::<false>(&[], work, INSTRUCTIONS);
    let looked_up = measure::<true>(&[], work, INSTRUCTIONS);
    println!("{:<22} {free:>9.0} {looked_up:>12.0}", "work loop");
}
