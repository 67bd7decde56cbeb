//! A kernel whose CPUs count under a lock, native or paravirtual as the machine is, say what they have seen, and then end the machine.

#![no_std]
#![no_main]

mod boot;
mod interrupts;
mod machine;
mod ports;

use core::{
    fmt::Write,
    hint::spin_loop,
    panic::PanicInfo,
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use haltkick_platform::kvm::Kvm;
use haltkick_qspin::{
    Choice as _, Chosen, Event, Platform, QSpinDomain, QSpinLock, guarded::Mutex, home, patched_choice,
};

use crate::machine::{Example, Serial};

/// As many as there is room for.
const CPUS: usize = 16;
/// Few: on a busy host, each handoff of a native lock may take a slice of the scheduler.
const ROUNDS: u64 = 500;

/// The platform: KVM's services where there are any. An impatient one, so that waiters sleep in an example that lasts a second.
static KVM: Kvm<Example, CPUS> = Kvm::new(Example).with_spin_threshold(1_000);

patched_choice! { Form; }
home! { Queues: QSpinDomain<&'static Kvm<Example, CPUS>, CPUS> = QSpinDomain::new(&KVM); }

/// Count of the CPUs: a plain integer, which the lock alone protects.
static COUNT: Mutex<u64, QSpinLock<Chosen<Form>>, Queues> = Mutex::new(0);

static STARTED: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);
/// CPU 0 has looked who is preempted.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Each CPU, on its own stack.
extern "C" fn main(cpu: usize) -> ! {
    machine::become_cpu(cpu);
    if cpu == 0 {
        machine::ask_for_the_clock();
        let features = KVM.detect();
        if features.prefers_paravirtual() {
            // SAFETY: no lock has been taken yet, and no other CPU runs; all memory can be written.
            let places = unsafe {
                Form::make_paravirtual(|place, jump| place.cast::<[u8; 5]>().write_unaligned(jump))
            };
            assert!(places > 0, "the linker has dropped the table");
        }
        let form = if Form::is_paravirtual() { "paravirtual" } else { "native" };
        say(format_args!("locks are {form}; {features:?}"));
        interrupts::prepare();
    }
    interrupts::start_cpu();
    KVM.start_cpu();
    if cpu == 0 {
        boot::start_the_others();
    }
    let cpus = boot::cpus();
    // The first section lasts until another CPU sleeps, where it can.
    let first = (cpu == 0).then(|| COUNT.lock());
    meet(cpus, &STARTED);
    if let Some(guard) = first {
        say(format_args!("{cpus} CPUs run"));
        if Form::is_paravirtual() {
            wait_for(|| sleeps() > 0);
            ports::delay(100);
        }
        drop(guard);
    }
    for round in 0..ROUNDS {
        let mut count = COUNT.lock();
        *count += 1;
        // Now and then a long section, so that others wait.
        if round % 16 == 0 {
            (0..2_000).for_each(|_| spin_loop());
        }
    }
    meet(cpus, &DONE);
    if cpu != 0 {
        until(|| SEEN.load(Relaxed));
        // No halt: an observer outside would count that one for the lock.
        until(|| false);
        unreachable!("the machine ends");
    }
    let (counted, expected) = (*COUNT.lock(), cpus as u64 * ROUNDS);
    say(format_args!("{cpus} CPUs have counted to {counted} of {expected}"));
    show_figures(cpus);
    machine::exit(counted == expected)
}

/// Shows the figures, in lines of the form that haltkick takes them from.
fn show_figures(cpus: usize) {
    say(format_args!("haltkick: preempted-cpus={} count", preempted_cpus(cpus)));
    say(format_args!("haltkick: preempted-self={} count", u8::from(KVM.is_preempted(0))));
    for event in
        [Event::LockSlowpath, Event::PvWaitNode, Event::PvWaitHead, Event::PvKickUnlock, Event::PvKickWake]
    {
        say(format_args!("haltkick: lock_event.{}={} count", event.name(), machine::events(event)));
    }
}

/// How many of the other CPUs, which spin meanwhile, the host has said to be preempted: all, where it says so and they have one physical
/// CPU between them.
fn preempted_cpus(cpus: usize) -> usize {
    let mut seen = [false; CPUS];
    let mut look = || {
        (1..cpus).for_each(|cpu| seen[cpu] |= KVM.is_preempted(cpu));
        seen.iter().filter(|seen| **seen).count()
    };
    if KVM.features().tells_preempted() {
        wait_for(|| look() == cpus - 1);
    }
    SEEN.store(true, Relaxed);
    look()
}

/// How often CPUs have gone to sleep.
fn sleeps() -> u64 {
    machine::events(Event::PvWaitHead) + machine::events(Event::PvWaitNode)
}

/// Spins until `come`, but for some seconds at most.
fn wait_for(mut come: impl FnMut() -> bool) {
    const TICKS: u64 = 20_000_000_000;
    let began = KVM.now();
    until(|| come() || KVM.now() - began > TICKS);
}

fn until(mut come: impl FnMut() -> bool) {
    while !come() {
        spin_loop();
    }
}

/// Waits until all CPUs are here.
fn meet(cpus: usize, here: &AtomicUsize) {
    // Release and Acquire: what each CPU did before, all see after.
    here.fetch_add(1, Release);
    until(|| here.load(Acquire) >= cpus);
}

fn say(line: core::fmt::Arguments<'_>) {
    // The serial line takes everything.
    _ = writeln!(Serial, "{line}");
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    say(format_args!("{info}"));
    machine::exit(false)
}
