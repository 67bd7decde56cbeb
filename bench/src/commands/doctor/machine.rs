//! `haltkick doctor --write-machine FILE`: this host as a machine for `--engine sim`, as far as it can be measured.
//!
//! Only single instructions, lines and lock-free guests are timed. What the machine then says of locks is a prediction.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use haltkick_vmm::machines::Machine;
use haltkick_vmm::{CpuCosts, Engine, Found, Image, Instruments, Outcome, Run, transfer_ns};

use super::plain_run;
use crate::analysis::statistics::median;
use crate::host::cpulist;
use crate::host::identity::Host;
use crate::host::topology::{CoreOfCpu, Places};
use crate::text::exit::{Failure, Result};
use crate::text::{output, timestamp};

/// Runs of each guest, of which the middle one counts. They take turns: what disturbs the host for a while disturbs few of each.
const RUNS: usize = 9;
const WINDOW: Duration = Duration::from_millis(40);
/// Slices whose ends are counted against [`LONG_SLICE`].
const SHORT_SLICE: Duration = Duration::from_micros(200);
const LONG_SLICE: Duration = Duration::from_millis(20);
/// Work of a vCPU before it wakes the other one up, which sleeps meanwhile.
///
/// Always more than zero: where an exit takes long, the other one would be on its way to sleep still, and the kick would be latched.
const SLEEPS: [Duration; 4] = [
    Duration::from_micros(20),
    Duration::from_micros(100),
    Duration::from_micros(500),
    Duration::from_millis(2),
];
/// Times of the interpreter for an instruction that are tried first: the rest of a section's time is then known.
const TRIED_NS: [f64; 2] = [0.1, 1.0];

/// Measured times, in nanoseconds.
#[derive(Clone)]
struct Measured {
    cpu: CpuCosts,
    instruction_ns: f64,
    sibling_ns: Option<f64>,
    socket_ns: Option<f64>,
    far_ns: Option<f64>,
    guest: GuestCosts,
}

/// Costs of leaving a guest, and of coming back.
#[derive(Clone)]
struct GuestCosts {
    exit_ns: f64,
    switch_ns: f64,
    kick_ns: f64,
    wake_up: Option<WakeUp>,
    timer_ns: f64,
}

/// Measures: the file of a machine with this name, and what to do with it.
pub(super) fn measured(name: &str) -> Result<(String, String)> {
    let allowed = cpulist::allowed()?;
    let places = Places::of(&allowed.0).map_err(Failure::lacking)?;
    output::talk(
        "measuring instructions, cache lines and guests without locks: a few seconds, best on a quiet host",
    );
    let text = Measured::here(&places)?.file(name, &places);
    let machine = Machine::parse(name, &text).map_err(|error| Failure::internal(error.to_string()))?;
    let said = format!("{} CPUs; try: haltkick run --engine sim --machine", machine.topology.cpus());
    Ok((text, said))
}

impl Measured {
    fn here(places: &Places) -> Result<Self> {
        let cpus = &places.cpus;
        let (first, at) = cpus[0];
        let cpu = CpuCosts::measure(first)?;
        let transfer = |fits: &dyn Fn(&CoreOfCpu) -> bool| {
            let other = cpus[1..].iter().find(|(_, place)| fits(place));
            other.map(|(other, _)| transfer_ns([first, *other])).transpose().map_err(Failure::from)
        };
        let is_sibling = |place: &CoreOfCpu| place.package == at.package && place.core == at.core;
        let sibling_ns = transfer(&is_sibling)?;
        let socket_ns = transfer(&|place| place.package == at.package && !is_sibling(place))?;
        let far_ns = transfer(&|place| place.package != at.package)?;
        let guests = Guests::new(first)?;
        let other = cpus.iter().map(|(cpu, _)| *cpu).find(|cpu| *cpu != first);
        let guest = guests.costs(first, other)?;
        let mut measured = Self { cpu, instruction_ns: TRIED_NS[0], sibling_ns, socket_ns, far_ns, guest };
        measured.instruction_ns = guests.instruction_ns(&measured, places)?;
        Ok(measured)
    }

    /// The file. What this host cannot show is a guess, and says so.
    fn file(&self, name: &str, places: &Places) -> String {
        let host = Host::probe();
        let title = format!(
            "{}, kernel {}, measured {}",
            host.cpu_model.as_deref().unwrap_or("a CPU of an unknown model"),
            host.kernel.as_deref().unwrap_or("unknown"),
            timestamp::rfc3339(SystemTime::now())
        );
        let mut text = String::new();
        let _ = writeln!(
            text,
            "format = 1\nname = {}\ntitle = {}\n\n[sources]\n\
             here = {{ grade = \"M\", text = \"measured by haltkick doctor on this host\" }}\n\
             E = {{ grade = \"E\", text = \"a guess: this host cannot show it, or has too few CPUs to\" }}\n\n\
             [topology]\nsockets = {}\ncores-per-socket = {}\nthreads-per-core = {}\nsource = \"here\"\n",
            output::in_toml(name),
            output::in_toml(&title),
            places.packages,
            places.cores_per_package,
            places.threads_per_core,
        );
        let cpu = &self.cpu;
        figure(&mut text, "\n[cpu]\nclock-ghz", cpu.tsc_khz as f64 / 1e6, "here");
        figure(&mut text, "instruction-ns", self.instruction_ns, "here");
        figure(&mut text, "pause-ns", cpu.pause_ns, "here");
        figure(&mut text, "rdtsc-ns", cpu.rdtsc_ns, "here");
        figure(&mut text, "fence-ns", cpu.fence_ns, "here");
        figure(&mut text, "rmw-ns", cpu.rmw_ns, "here");
        figure(&mut text, "hit-ns", self.instruction_ns, "E");
        figure(&mut text, "store-buffer-entries", 56.0, "E");
        figure(&mut text, "busy-sibling-speed", 0.6, "E");
        let or_guess = |measured: Option<f64>, guess: f64| measured.map_or((guess, "E"), |ns| (ns, "here"));
        let (sibling_ns, sibling) = or_guess(self.sibling_ns, 10.0);
        figure(&mut text, "\n[line]\nsibling-ns", sibling_ns, sibling);
        let (socket_ns, socket) = or_guess(self.socket_ns, 50.0);
        figure(&mut text, "socket-ns", socket_ns, socket);
        if let Some(far_ns) = self.far_ns {
            // One distance: which sockets are neighbours is not looked at.
            let _ = writeln!(text, "hops-ns = [{{ value = {far_ns:.3}, source = \"here\" }}]");
            let _ = writeln!(text, "upgrade-hops = [{{ value = 1, source = \"E\" }}]");
        }
        figure(&mut text, "shared-ns", 5.0, "E");
        figure(&mut text, "memory-ns", cpu.memory_ns, "here");
        figure(&mut text, "invalidate-factor", 1.6, "E");
        figure(&mut text, "occupancy-socket", 0.5, "E");
        figure(&mut text, "occupancy-far", 1.0, "E");
        figure(&mut text, "grants-in-a-row", 4.0, "E");
        figure(&mut text, "\n[guest]\nexit-ns", self.guest.exit_ns, "here");
        figure(&mut text, "timer-ns", self.guest.timer_ns, "here");
        figure(&mut text, "kick-ns", self.guest.kick_ns, "here");
        let (wake_ns, wake) = or_guess(self.guest.wake_up.as_ref().map(|it| it.wake_ns), 4000.0);
        figure(&mut text, "wake-ns", wake_ns, wake);
        figure(&mut text, "switch-ns", self.guest.switch_ns, "here");
        figure(&mut text, "scatter", 0.2, "E");
        for (after_us, wake_us) in self.guest.wake_up.iter().flat_map(|wake_up| &wake_up.idle) {
            let _ = writeln!(text, "\n[[guest.idle]]\nafter-us = {after_us:.1}");
            figure(&mut text, "wake-us", *wake_us, "here");
        }
        text
    }
}

/// A line of the file. `key` may begin with the head of its table.
fn figure(text: &mut String, key: &str, value: f64, source: &str) {
    let _ = writeln!(text, "{key} = {{ value = {value:.3}, source = \"{source}\" }}");
}

/// Guests without locks, on KVM and on simulated machines.
struct Guests {
    image: Image,
    base: Run,
    stop: AtomicBool,
}

impl Guests {
    fn new(cpu: u32) -> Result<Self> {
        let (image, run) = plain_run(&[("vcpus", "1"), ("lock", "none"), ("slice", "20ms")])?;
        let run = Run { cpus: vec![cpu], window: WINDOW, warmup: WINDOW / 8, ..run };
        Ok(Self { image, base: run, stop: AtomicBool::new(false) })
    }

    fn run(&self, run: &Run) -> Result<Outcome> {
        let found = haltkick_vmm::run(run, &self.image, &Instruments::default(), &self.stop);
        found.and_then(Found::outcome).map_err(Failure::from)
    }

    /// Costs of leaving a guest on pCPU `first`, and of waking one up there and on `other`.
    fn costs(&self, first: u32, other: Option<u32>) -> Result<GuestCosts> {
        let mut guests = vec![
            self.one(1, "selftest-yield", LONG_SLICE),
            self.one(2, "selftest-yield", LONG_SLICE),
            self.hand_over(&[first], Duration::ZERO),
            self.one(1, "compute", SHORT_SLICE),
            self.one(1, "compute", LONG_SLICE),
        ];
        guests
            .extend(other.iter().flat_map(|other| SLEEPS.map(|hold| self.hand_over(&[first, *other], hold))));
        let periods_ns = self.periods_ns(&guests)?;
        let [exit_ns, two_ns, here_ns, short_ns, long_ns, there_ns @ ..] = &periods_ns[..] else {
            return Err(Failure::internal("a guest was not timed"));
        };
        // If two vCPUs yield, each operation is an exit and a change of vCPUs.
        let switch_ns = (two_ns - exit_ns).max(0.0);
        // A handoff on one CPU: an exit to kick, another one to wait, and a change of vCPUs.
        let kick_ns = (here_ns - 2.0 * exit_ns - switch_ns).max(0.0);
        let holds_ns = SLEEPS.map(|hold| hold.as_nanos() as f64);
        let hand_overs: Vec<_> = holds_ns.into_iter().zip(there_ns.iter().copied()).collect();
        let lost = 1.0 - long_ns / short_ns;
        Ok(GuestCosts {
            exit_ns: *exit_ns,
            switch_ns,
            kick_ns,
            wake_up: other.map(|_| WakeUp::from_hand_overs(&hand_overs, *exit_ns, kick_ns)),
            timer_ns: (lost * SHORT_SLICE.as_nanos() as f64 - exit_ns).max(0.0),
        })
    }

    fn one(&self, vcpus: u32, workload: &str, slice: Duration) -> Run {
        let mut run = self.base.clone();
        (run.rules.slice, run.guests[0].vcpus) = (slice, vcpus);
        run.guests[0].ours_mut().expect("it was made for our guest").workload = workload.into();
        run
    }

    /// Two vCPUs that hand a token to each other, each after it has worked for `hold`.
    fn hand_over(&self, cpus: &[u32], hold: Duration) -> Run {
        let mut run = self.one(2, "hand-off", LONG_SLICE);
        run.cpus = cpus.to_vec();
        // Enough of them where each takes long.
        run.window = WINDOW.max(hold * 40);
        run.guests[0].pv = true;
        let ours = run.guests[0].ours_mut().expect("it was made for our guest");
        (ours.lock, ours.hold) = ("qspinlock".into(), hold);
        run
    }

    /// The time of an operation of each of these guests on KVM.
    fn periods_ns(&self, guests: &[Run]) -> Result<Vec<f64>> {
        let mut periods_ns = vec![Vec::new(); guests.len()];
        for _ in 0..RUNS {
            for (guest, periods_ns) in guests.iter().zip(&mut periods_ns) {
                let outcome = self.run(guest)?;
                periods_ns.push(outcome.window.as_nanos() as f64 / outcome.acquisitions() as f64);
            }
        }
        Ok(periods_ns.iter().map(|periods_ns| median(periods_ns)).collect())
    }

    /// The time of an instruction with which an empty section of the guest takes, simulated, what it takes on KVM.
    fn instruction_ns(&self, measured: &Measured, places: &Places) -> Result<f64> {
        let runs = (0..RUNS).map(|_| section_ns(&self.run(&self.base)?)).collect::<Result<Vec<_>>>()?;
        let wanted_ns = median(&runs);
        let simulated = |instruction_ns: f64| {
            let text = Measured { instruction_ns, ..measured.clone() }.file("trial", places);
            let machine =
                Machine::parse("trial", &text).map_err(|error| Failure::internal(error.to_string()))?;
            let run = Run {
                work_rate: Some(machine.work_rate()),
                engine: Engine::Sim(Arc::new(machine)),
                cpus: vec![0],
                window: Duration::from_millis(2),
                warmup: Duration::from_millis(1),
                ..self.base.clone()
            };
            section_ns(&self.run(&run)?)
        };
        let [low, high] = [simulated(TRIED_NS[0])?, simulated(TRIED_NS[1])?];
        let slope = (high - low) / (TRIED_NS[1] - TRIED_NS[0]);
        // Faster than any processor is a section that was not timed well.
        Ok((TRIED_NS[0] + (wanted_ns - low) / slope).clamp(0.05, 10.0))
    }
}

/// An empty section, in nanoseconds, for any number of them that the guest times at once.
fn section_ns(outcome: &Outcome) -> Result<f64> {
    let ticks = outcome.costs.section.ok_or_else(|| Failure::internal("the guest timed no section"))?;
    Ok(ticks as f64 * 1e6 / outcome.tsc_khz as f64)
}

/// The cost of a wake-up, as machine files say it.
#[derive(Clone, Debug, PartialEq)]
struct WakeUp {
    /// Cost after the shortest sleep, in nanoseconds.
    wake_ns: f64,
    /// `after-us` and `wake-us` of each deeper idle state, in microseconds, ascending.
    idle: Vec<(f64, f64)>,
}

impl WakeUp {
    /// From handoffs between two pCPUs, ascending: each with the work before the token is passed on, and with the time from one passing on
    /// to the next. An exit and a kick cost that much on this host.
    ///
    /// A period is the work, half of an exit and the kick, after which the sleeper is ready, and what is left: its way out of the
    /// sleep and into the guest. It had slept since it had passed the token on, kicked, and left its guest once more, which is a
    /// period less an exit.
    fn from_hand_overs(hand_overs: &[(f64, f64)], exit_ns: f64, kick_ns: f64) -> Self {
        let wake =
            |(hold_ns, period_ns): &(f64, f64)| (period_ns - hold_ns - exit_ns / 2.0 - kick_ns).max(0.0);
        let slept = |(_, period_ns): &(f64, f64)| (period_ns - exit_ns).max(1000.0);
        let wake_ns = hand_overs.first().map_or(0.0, wake);
        let (mut idle, mut deepest_ns) = (Vec::new(), 0.0);
        for pair in hand_overs.windows(2) {
            let longer_ns = wake(&pair[1]) - wake_ns;
            // A state begins half way between the sleeps that were tried, on a scale of ratios. Steps below a microsecond are noise.
            if longer_ns > deepest_ns + 1000.0 {
                let after_ns = (slept(&pair[0]) * slept(&pair[1])).sqrt();
                idle.push((after_ns / 1000.0, longer_ns / 1000.0));
                deepest_ns = longer_ns;
            }
        }
        Self { wake_ns, idle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_costs_of_longer_sleeps_are_idle_states() {
        let of = |measured: &[(f64, f64)]| WakeUp::from_hand_overs(measured, 1000.0, 1500.0);
        let alike = of(&[(0.0, 5000.0), (20_000.0, 25_100.0), (500_000.0, 504_900.0)]);
        assert_eq!(alike, WakeUp { wake_ns: 3000.0, idle: vec![] });
        let wake_up = of(&[(0.0, 5000.0), (20_000.0, 37_000.0), (500_000.0, 640_000.0)]);
        let [(first_after, first), (second_after, second)] = wake_up.idle[..] else { panic!("{wake_up:?}") };
        assert_eq!((first, second), (12.0, 135.0));
        assert!((4.0..36.0).contains(&first_after) && (36.0..639.0).contains(&second_after), "{wake_up:?}");
        // No time is less than none where the host was busy.
        let busy = of(&[(0.0, 900.0), (20_000.0, 19_000.0)]);
        assert_eq!(busy, WakeUp { wake_ns: 0.0, idle: vec![] });
    }
}
