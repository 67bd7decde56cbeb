//! A kernel of two CPUs that count under a lock, native or paravirtual as the machine is, and then end QEMU.

#![no_std]
#![no_main]

mod boot;
mod machine;

use core::{
    fmt::Write,
    hint::spin_loop,
    panic::PanicInfo,
    sync::atomic::{
        AtomicUsize,
        Ordering::{Acquire, Release},
    },
};

use haltkick_locks::{Chosen, Event, QSpinDomain, QSpinLock, choice, guarded::Mutex, home};
use haltkick_platform::kvm::Kvm;

use crate::machine::{Example, Serial};

const CPUS: usize = 2;
/// Few: on a busy host, each hand-over of a native lock may take a slice of the scheduler.
const ROUNDS: u64 = 500;

/// The platform: KVM's services where there are any. An impatient one, so that waiters sleep in an example that lasts a second.
static KVM: Kvm<Example, CPUS> = Kvm::new(Example).with_spin_threshold(1_000);

choice! { Form; }
home! { Queues: QSpinDomain<&'static Kvm<Example, CPUS>, CPUS> = QSpinDomain::new(&KVM); }

/// What the CPUs count in: a plain integer, which the lock alone protects.
static COUNT: Mutex<u64, QSpinLock<Chosen<Form>>, Queues> = Mutex::new(0);

static STARTED: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);

/// Each CPU, on its own stack.
extern "C" fn main(cpu: usize) -> ! {
    machine::become_cpu(cpu);
    if cpu == 0 {
        let features = KVM.detect();
        let paravirtual = features.prefers_paravirtual();
        Form::choose(paravirtual).expect("no lock has been taken yet");
        let form = if paravirtual { "paravirtual" } else { "native" };
        say(format_args!("locks are {form}; {features:?}"));
        boot::start_the_other();
    }
    KVM.start_cpu();
    meet(&STARTED);
    if cpu == 0 {
        say(format_args!("{CPUS} CPUs run"));
    }
    for round in 0..ROUNDS {
        let mut count = COUNT.lock();
        *count += 1;
        // Now and then a long section, so that others wait.
        if round % 16 == 0 {
            (0..2_000).for_each(|_| spin_loop());
        }
    }
    meet(&DONE);
    if cpu != 0 {
        machine::halt_for_ever();
    }
    let (counted, expected) = (*COUNT.lock(), CPUS as u64 * ROUNDS);
    let sleeps = machine::events(Event::PvWaitHead) + machine::events(Event::PvWaitNode);
    let kicks = machine::events(Event::PvKickUnlock);
    say(format_args!("{CPUS} CPUs have counted to {counted} of {expected}; {sleeps} sleeps, {kicks} kicks"));
    machine::exit(counted == expected)
}

/// Waits until all CPUs are here.
fn meet(here: &AtomicUsize) {
    // Release and Acquire: what each CPU did before, all see after.
    here.fetch_add(1, Release);
    while here.load(Acquire) < CPUS {
        spin_loop();
    }
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
