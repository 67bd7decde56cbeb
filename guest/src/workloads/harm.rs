//! Workloads that attack the VMM and the neighbouring guests, for tests that these do not suffer.
#![expect(unsafe_code, reason = "runs code that it makes up, which is the point")]

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{
    ACTIVITY_HOLDER, PORT_BASE, PORT_BOOTED, PORT_CONSOLE, PORT_INVALIDATE, PORT_POINT, PORT_STARTED,
    PORT_WORK_DONE, WINDOW_OPEN,
};

use crate::cpu::percpu::{add, area, boot, control, cpu, entries, oracles, this, words};
use crate::cpu::time::{iterations, now, work};
use crate::lock::measure::until_closed;
use crate::lock::registry::{workload, workload_of_run};
use crate::monitor::hypercall;
use crate::observe::trace;
use crate::work::choice::dice;

workload! {
    "380" "selftest-not-started", "all vCPUs say that none has started, and never stand still",
        [IS_SELFTEST TAKES_NO_LOCK], [] => not_started;
    "382" "selftest-feeder", "vCPU 0 yields to vCPU 1 whenever it runs; the others do nothing but work",
        [IS_SELFTEST TAKES_NO_LOCK], [] => feeder;
    "384" "selftest-flood", "every vCPU asks all others to drop their translations, as fast as it can",
        [IS_SELFTEST TAKES_NO_LOCK], [] => flood;
    "387" "selftest-split-lock", "every vCPU increments a word that lies in two cache lines, with the lock prefix, as fast as it can",
        [IS_SELFTEST TAKES_NO_LOCK], [] => split_lock;
    "388" "selftest-rewrite", "every vCPU writes code that is made up over code that others run, and runs it",
        [IS_SELFTEST TAKES_NO_LOCK], [] => rewrite;
    "386" "selftest-harm", "every vCPU rings anything with any number and writes anything into all shared memory",
        [IS_SELFTEST TAKES_NO_LOCK], [] => harm;
}

/// Whether no vCPU of this run says that it has started.
pub(crate) fn keeps_silent() -> bool {
    core::ptr::fn_addr_eq(workload_of_run(), not_started as fn())
}

/// Claims that no vCPU has ever begun, while every one moves.
fn not_started() {
    loop {
        control().started.store(0, Ordering::Relaxed);
        this().activity.since_tsc.store(now(), Ordering::Relaxed);
    }
}

/// vCPU 0 hands whatever it gets to vCPU 1. One round of work counts as one operation.
fn feeder() {
    until_closed(|| {
        if cpu() == 0 && boot().vcpus > 1 {
            hypercall::yield_to(Some(1));
        } else {
            work(iterations(1_000));
        }
    });
}

/// Every vCPU raises what is asked of all others and rings. One ring counts as one operation.
fn flood() {
    until_closed(|| {
        let others = (0..boot().vcpus as usize).filter(|&other| other != cpu());
        others.for_each(|other| _ = area(other).invalidation.requested.fetch_add(1, Ordering::Relaxed));
        hypercall::out(PORT_INVALIDATE, 0);
    });
}

/// Every vCPU increments a word of its own stack that lies in two cache lines: the CPU locks the bus for that, which
/// stops the accesses of all others. One increment counts as one operation.
fn split_lock() {
    #[repr(align(64))]
    struct TwoLines([u8; 128]);
    let mut lines = TwoLines([0; 128]);
    // The last half of the word lies in the second line.
    let word = lines.0[62..66].as_mut_ptr();
    until_closed(|| {
        // SAFETY: the four bytes belong to `lines`, which lives until the end and which nothing else reads or writes; the increment
        // needs no alignment on this architecture.
        unsafe { core::arch::asm!("lock inc dword ptr [{word}]", word = in(reg) word, options(nostack)) };
    });
}

/// Every vCPU acts at random, forever. It leaves its own identity and stacks alone, which it needs to go on. A
/// few of the doorbells end it or its guest, and are rung seldom.
fn harm() {
    /// One of this many bells may be any.
    const ANY_BELL: u64 = 4096;
    let mut random = dice();
    let mut draw = move || random.next();
    // Before a vCPU writes a work rate with which this one would work forever.
    let (little, much) = (iterations(1_000), iterations(20_000));
    // One that says it has not begun only makes all wait: that is `not_started`.
    while control().window.load(Ordering::Relaxed) != WINDOW_OPEN {
        work(little);
    }
    loop {
        for _ in 0..draw() % 32 {
            let region = region(&mut draw);
            // Small numbers now and then: they pass more checks than large ones.
            let (value, shift) = (draw(), draw() % 64);
            if let Some(word) = region.get(draw() as usize % region.len().max(1)) {
                word.store(value >> shift, Ordering::Relaxed);
            }
        }
        if draw() % 8 == 0 {
            // To be spared, and not to count as begun.
            this().activity.state.store(ACTIVITY_HOLDER, Ordering::Relaxed);
            control().started.store(0, Ordering::Relaxed);
        }
        let argument = if draw() % 2 == 0 { draw() as u32 } else { draw() as u32 % boot().vcpus };
        match draw() % 17 {
            0..4 => hypercall::yield_to(Some(argument)),
            4..8 => hypercall::kick(argument),
            8 => {
                // The others wake a sleeping vCPU; they kick more often than vCPUs sleep.
                hypercall::kick(cpu() as u32);
                hypercall::wait();
            }
            9 => hypercall::out(PORT_BOOTED, 0),
            10 => hypercall::out(PORT_INVALIDATE, 0),
            11 => hypercall::out(PORT_POINT, argument),
            12 => hypercall::out(PORT_WORK_DONE, 0),
            13 => hypercall::out(PORT_CONSOLE, argument & 0xff),
            14 if draw() % ANY_BELL == 0 => hypercall::out(PORT_BASE + (draw() % 64) as u16, argument),
            15 => hypercall::out(PORT_STARTED, 0),
            _ => work(draw() % much.max(1)),
        }
    }
}

/// Something that is shared with the VMM, of any vCPU.
fn region(draw: &mut impl FnMut() -> u64) -> &'static [AtomicU64] {
    let area = area(draw() as usize % boot().vcpus as usize);
    match draw() % 12 {
        0 => words(&area.steal),
        1 => words(&area.host),
        2 => words(&area.activity),
        3 => words(&area.invalidation),
        4 => words(&area.hint),
        5 => words(&area.report),
        6 => words(&area.work),
        7 => words(&area.results),
        8 => words(&oracles()[0]),
        9 => entries(),
        10 => words(control()),
        _ => trace::Ring::of_this_vcpu().words(),
    }
}

/// Pieces of code that vCPUs write and run, several of them the same one. Memory of the guest is executable everywhere.
static CODE: [[AtomicU64; WORDS_OF_CODE]; 8] =
    [const { [const { AtomicU64::new(RETURNS) }; WORDS_OF_CODE] }; 8];
const WORDS_OF_CODE: usize = 4;
const RETURNS: u64 = u64::from_le_bytes([0xc3; 8]);

/// Every vCPU makes code up and runs it, forever: a test of the VMM and the host with instructions and
/// registers that no compiler would produce. Most guests end by it soon, so that much of it is harmless.
fn rewrite() {
    let mut random = dice();
    let mut draw = move || random.next();
    while control().window.load(Ordering::Relaxed) != WINDOW_OPEN {
        work(iterations(1_000));
    }
    loop {
        let code = &CODE[draw() as usize % CODE.len()];
        for word in &code[..WORDS_OF_CODE - 1] {
            word.store(instructions(&mut draw), Ordering::Relaxed);
        }
        let at_a_port = u64::from(PORT_BASE) + draw() % 64;
        let port = if draw() % 64 == 0 { draw() } else { at_a_port };
        let somewhere =
            if draw() % 4096 == 0 { draw() >> (draw() % 64) } else { code.as_ptr().addr() as u64 };
        // SAFETY: not safe at all: the code may do anything to this guest, and then the guest fails, which is what this workload is
        // for. What it usually does is to return, with any of the registers changed that are named here or restored.
        unsafe {
            core::arch::asm!(
                "push rbx",
                "push rbp",
                "call {code}",
                "pop rbp",
                "pop rbx",
                "cld",
                code = in(reg) code.as_ptr(),
                inout("rax") draw() => _,
                inout("rdx") port => _,
                inout("rcx") draw() % 8 => _,
                inout("rdi") somewhere => _,
                inout("rsi") somewhere => _,
                clobber_abi("C"),
            );
        }
        add(&this().results.acquisitions, 1);
    }
}

/// Eight bytes of code, the last of which returns.
fn instructions(draw: &mut impl FnMut() -> u64) -> u64 {
    const RETURN: u8 = 0xc3;
    /// NOP; PAUSE; CPUID; RDTSC; a store to and a load from RDI; a locked increment there; XCHG of EAX and EDX.
    const HARMLESS: [&[u8]; 8] = [
        &[0x90],
        &[0xf3, 0x90],
        &[0x0f, 0xa2],
        &[0x0f, 0x31],
        &[0x48, 0x89, 0x07],
        &[0x48, 0x8b, 0x07],
        &[0xf0, 0xff, 0x07],
        &[0x92],
    ];
    /// OUT and IN with DX; a string of OUTs; HLT; RDMSR and WRMSR; INVLPG; loading CR3 and the IDT; SYSCALL; VMCALL; an INT; UD2.
    const HARMFUL: [&[u8]; 12] = [
        &[0xef],
        &[0xed],
        &[0xf3, 0x6f],
        &[0xf4],
        &[0x0f, 0x32],
        &[0x0f, 0x30],
        &[0x0f, 0x01, 0x3f],
        &[0x0f, 0x22, 0xd8],
        &[0x0f, 0x01, 0x1f],
        &[0x0f, 0x05],
        &[0x0f, 0x01, 0xc1],
        &[0xcd, 0x80],
    ];
    let mut bytes = [RETURN; 8];
    let mut at = 0;
    while at < 5 {
        let any = [draw() as u8];
        let instruction: &[u8] = match draw() % 1024 {
            0 => &any,
            1..24 => HARMFUL[draw() as usize % HARMFUL.len()],
            _ => HARMLESS[draw() as usize % HARMLESS.len()],
        };
        bytes[at..at + instruction.len()].copy_from_slice(instruction);
        at += instruction.len();
    }
    u64::from_le_bytes(bytes)
}
