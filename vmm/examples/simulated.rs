//! Cost of simulating: time on one core of this host for a millisecond of the machine, and millions of instructions a
//! second that were executed one by one.
//!
//! `cargo run --release --package haltkick-vmm --example simulated -- [TEXT]`: the rows whose names contain the text, or all.
//! Figures of a busy machine compare with those of the same run only.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_vmm::machines::presets;
use haltkick_vmm::{Engine, Found, Guest, Image, Instruments, Ours, Run, System, VirtualTime, run};

/// Machines, numbers of their CPUs, and upper limits of a millisecond's cost.
const SIZES: [(&str, u32, f64); 3] =
    [("ivybridge-ex-4s", 80, 0.3), ("skylake-8s", 256, 0.2), ("numaconnect-512", 512, 2.0)];

/// Work of the vCPUs.
struct Load {
    name: &'static str,
    lock: &'static str,
    pv: bool,
    locks: u32,
    hold_us: u64,
    think_us: u64,
    ratio: u32,
}

const fn load(name: &'static str, lock: &'static str, times_us: (u64, u64)) -> Load {
    Load { name, lock, pv: false, locks: 1, hold_us: times_us.0, think_us: times_us.1, ratio: 1 }
}

const LOADS: [Load; 10] = [
    load("busy, no lock", "none", (1, 4)),
    load("busy, short sections of its own", "none", (0, 1)),
    Load { locks: 256, ..load("busy, 256 locks in turn", "qspinlock", (1, 4)) },
    load("busy, a lock that is mostly free", "qspinlock", (0, 200)),
    load("parked spinners, queue", "qspinlock", (1, 4)),
    load("parked spinners, all on one word", "ticket", (1, 4)),
    load("spinners that write", "tas", (1, 4)),
    Load { pv: true, ratio: 2, ..load("sleepers, two for each pCPU", "qspinlock", (1, 4)) },
    Load { pv: true, ..load("spinners that count their rounds", "qspinlock-wc", (1, 2)) },
    Load { ratio: 2, ..load("queue, two for each pCPU", "qspinlock", (1, 4)) },
];

struct Figures {
    virtual_ms: f64,
    host_s: f64,
    millions: f64,
}

fn measure(machine: &str, cpus: u32, load: &Load, image: &Image) -> Figures {
    let preset = presets().iter().find(|preset| preset.name == machine).expect("it is built in");
    let machine = Arc::new(preset.machine());
    let ours = Ours {
        lock: load.lock.into(),
        lock_count: load.locks,
        hold: Duration::from_micros(load.hold_us),
        think: Duration::from_micros(load.think_us),
        ..Ours::default()
    };
    let asked = Run {
        work_rate: Some(machine.work_rate()),
        engine: Engine::Sim(machine),
        cpus: (0..cpus).collect(),
        warmup: Duration::from_micros(100),
        window: Duration::from_millis(if cpus > 100 { 2 } else { 10 }),
        guests: vec![Guest {
            vcpus: cpus * load.ratio,
            pv: load.pv,
            system: System::Ours(ours),
            ..Guest::default()
        }],
        ..Run::default()
    };
    let virtual_time = Arc::new(VirtualTime::default());
    let instruments = Instruments { virtual_time: Some(Arc::clone(&virtual_time)), ..Instruments::default() };
    let began = cpu_time();
    run(&asked, image, &instruments, &AtomicBool::new(false))
        .and_then(Found::all)
        .unwrap_or_else(|error| panic!("{}: {error}", load.name));
    Figures {
        virtual_ms: virtual_time.passed().as_secs_f64() * 1e3,
        host_s: (cpu_time() - began).as_secs_f64(),
        millions: virtual_time.executed() as f64 / 1e6,
    }
}

/// CPU time of this thread, which others on the same core do not count into.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let image = Image::embedded();
    println!("{:<44} {:>12} {:>6} {:>14} {:>8}", "", "s of one core", "goal", "that times a", "");
    println!("{:<44} {:>12} {:>6} {:>14} {:>8}", "pCPUs, load", "per ms", "", "pCPU's time", "MIPS");
    for (machine, cpus, goal) in SIZES {
        for load in &LOADS {
            let name = format!("{cpus} {}", load.name);
            if !name.contains(&wanted) {
                continue;
            }
            let Figures { virtual_ms, host_s, millions } = measure(machine, cpus, load, &image);
            let per_ms = host_s / virtual_ms;
            let met = if per_ms <= goal { "" } else { "  missed" };
            println!(
                "{name:<44} {per_ms:>12.3} {goal:>6} {:>14.2} {:>8.0}{met}",
                per_ms * 1e3 / f64::from(cpus),
                millions / host_s
            );
        }
    }
}
