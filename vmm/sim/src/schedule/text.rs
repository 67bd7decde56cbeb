//! Text of `perf script`, of `trace-cmd report` and of ftrace's `trace`.
//!
//! A vCPU's thread is known by its name, `CPU 0/KVM` in QEMU, `fc_vcpu 0` in Firecracker, `vcpu0` elsewhere, and from then on by its
//! number. One that is switched out in state R would rather run. One that slept is absent from its wake-up until it runs.
//!
//! ```text
//! unknown, runs   switched out in state R    ready: absent until it is switched in
//! unknown, runs   switched out               asleep
//! unknown, asleep woken                      ready
//! unknown, ready  switched in                runs
//! ```
//!
//! Any other order shows that the file lacks events: it is counted, and the time in doubt is no absence.

use std::collections::{BTreeMap, HashMap};

use super::Spells;
use super::lines::{self, Event, Line, Thread, What};

/// Longest time between the wake-up of a thread that sets out to sleep and its leaving the CPU.
const ON_ITS_WAY_NS: u64 = 100_000;
/// Longest time in which a thread that is switched out may still leave traces.
const LEAVING_NS: u64 = 20_000;
/// Name that recorders give to threads which they do not know.
const UNNAMED: &str = "<...>";

const LOST: &str = "events were lost: record with larger buffers";
const OUT_TWICE: &str = "a vCPU that has no CPU is switched out: record all CPUs";
const IN_TWICE: &str = "a vCPU that runs is switched in, or is on another CPU";
const ELSEWHERE: &str = "a vCPU runs where another thread is switched out";
const ACTS: &str = "a vCPU that has no CPU does something";
const SLEEPS: &str = "it has no wake-ups, and a vCPU slept: record sched_waking, too";
const UNWOKEN: &str = "a vCPU slept and runs without a wake-up: record sched_waking, too";
const NAMELESS: &str = "a thread is called <...>, and may be a vCPU's";

pub(super) fn read(text: &str) -> Result<Spells, String> {
    let mut replay = Replay { vcpus: vcpus_by_thread(text)?, ..Replay::default() };
    for (number, line) in lines::lines(text) {
        replay.line = number;
        replay.goes_on(&line).map_err(|message| format!("line {number}: {message}"))?;
    }
    if replay.vcpus.is_empty() {
        return Err("none of its threads is called as a vCPU's: CPU 0/KVM, fc_vcpu 0, vcpu0".into());
    }
    replay.finish()
}

/// The vCPUs, each of which has one thread, by the numbers of their threads. A name that a thread is switched or woken by is sure. The
/// recorder may have guessed the name of one that only ran.
fn vcpus_by_thread(text: &str) -> Result<HashMap<u32, u32>, String> {
    let (mut sure, mut guessed) = (BTreeMap::new(), BTreeMap::new());
    for (number, line) in lines::lines(text) {
        let Line::Event(Event { by, what, .. }) = line else { continue };
        let named = match what {
            What::Switch { out, into, .. } => [Some(out), Some(into)],
            What::Wakes { woken, .. } => [Some(woken), None],
            What::Other(_) => [None; 2],
        };
        for (name, pid) in named.into_iter().flatten() {
            let Some(vcpu) = vcpu_of(name) else { continue };
            let other = *sure.entry(vcpu).or_insert(pid);
            if other != pid {
                return Err(format!(
                    "line {number}: threads {other} and {pid} are both vCPU {vcpu}'s by their names: keep one \
                     guest's"
                ));
            }
        }
        if let Some((name, pid)) = by
            && let Some(vcpu) = vcpu_of(name)
        {
            guessed.entry(vcpu).or_insert(pid);
        }
    }
    guessed.retain(|vcpu, _| !sure.contains_key(vcpu));
    // Sure ones come last, and count.
    Ok(guessed.into_iter().chain(sure).map(|(vcpu, pid)| (pid, vcpu)).collect())
}

fn vcpu_of(name: &str) -> Option<u32> {
    let qemu = name.strip_prefix("CPU ").and_then(|rest| rest.strip_suffix("/KVM"));
    let others = ["fc_vcpu ", "vcpu-", "vcpu"].into_iter().find_map(|prefix| name.strip_prefix(prefix));
    qemu.or(others)?.trim().parse().ok()
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Place {
    #[default]
    Unknown,
    Runs(Option<u32>),
    Ready,
    Asleep,
}

/// A vCPU while the file is gone through.
#[derive(Clone, Copy, Default)]
struct Vcpu {
    place: Place,
    since_ns: u64,
    /// When it was woken last while it ran.
    woken_ns: Option<u64>,
}

/// The file's events so far.
#[derive(Default)]
struct Replay {
    spells: Spells,
    /// By the numbers of their threads.
    vcpus: HashMap<u32, u32>,
    states: BTreeMap<u32, Vcpu>,
    /// The vCPU that was switched in last on each CPU.
    on: HashMap<u32, u32>,
    line: usize,
    has_wakeups: bool,
    /// The line that tells of events that were overwritten, and how many.
    overwritten: Option<(usize, u64)>,
}

impl Replay {
    fn goes_on(&mut self, line: &Line<'_>) -> Result<(), String> {
        match line {
            Line::Event(event) => return self.event(event),
            Line::Broken(why) => return Err((*why).into()),
            Line::Lost(count) => {
                self.spells.doubt(LOST, self.line, *count);
                self.states.clear();
            }
            Line::Overwritten(count) => self.overwritten = Some((self.line, *count)),
            // The lines before lack a CPU.
            Line::Started => {
                let mut doubts = std::mem::take(&mut self.spells.doubts);
                doubts.retain(|doubt| doubt.what == LOST);
                self.spells = Spells { doubts, ..Spells::default() };
                self.states.clear();
                self.overwritten = None;
            }
        }
        Ok(())
    }

    fn event(&mut self, Event { at, cpu, by, what }: &Event<'_>) -> Result<(), String> {
        let at_ns = time(at);
        let by = by.and_then(|(_, pid)| self.vcpus.get(&pid).copied());
        match *what {
            What::Switch { out, state, into } => {
                let (left, entered) = (self.vcpu(out), self.vcpu(into));
                if left.or(entered).is_none() {
                    // Other programs' times may be anything.
                    at_ns.iter().for_each(|at_ns| self.spells.passes(*at_ns));
                }
                self.runs_elsewhere(*cpu, left);
                if let Some(vcpu) = left {
                    self.leaves(vcpu, at_ns.clone()?, *cpu, state)?;
                }
                if let Some(vcpu) = entered {
                    self.enters(vcpu, at_ns?, *cpu)?;
                }
            }
            What::Wakes { woken, begins } => {
                self.has_wakeups = true;
                let woken = self.vcpu(woken);
                if let Some(vcpu) = by {
                    self.acts(vcpu, at_ns.clone()?, *cpu, true);
                }
                match woken {
                    Some(vcpu) => self.is_woken(vcpu, at_ns?, begins)?,
                    None => at_ns.iter().for_each(|at_ns| self.spells.passes(*at_ns)),
                }
            }
            What::Other(name) => {
                if let (Some(vcpu), Ok(at_ns)) = (by, at_ns) {
                    self.acts(vcpu, at_ns, *cpu, matches!(name, "kvm_exit" | "kvm_entry"));
                }
            }
        }
        Ok(())
    }

    fn doubt(&mut self, what: &'static str) {
        self.spells.doubt(what, self.line, 1);
    }

    fn vcpu(&mut self, (name, pid): Thread<'_>) -> Option<u32> {
        let vcpu = self.vcpus.get(&pid).copied();
        if vcpu.is_none() && name == UNNAMED {
            self.doubt(NAMELESS);
        }
        vcpu
    }

    /// A thread is switched out on `cpu`, `left` if it is a vCPU's: no other one runs there.
    fn runs_elsewhere(&mut self, cpu: Option<u32>, left: Option<u32>) {
        let Some(vcpu) = cpu.and_then(|cpu| self.on.get(&cpu).copied()).filter(|vcpu| left != Some(*vcpu))
        else {
            return;
        };
        let state = self.states.entry(vcpu).or_default();
        if state.place == Place::Runs(cpu) {
            state.place = Place::Unknown;
            self.doubt(ELSEWHERE);
        }
    }

    /// The state of `vcpu` before an event at `at_ns`.
    fn before(&self, vcpu: u32, at_ns: u64) -> Result<Vcpu, String> {
        let before = self.states.get(&vcpu).copied().unwrap_or_default();
        if at_ns < before.since_ns {
            return Err(format!("vCPU {vcpu} goes back in time: sort the lines by time"));
        }
        Ok(before)
    }

    fn leaves(&mut self, vcpu: u32, at_ns: u64, cpu: Option<u32>, state: &str) -> Result<(), String> {
        let before = self.before(vcpu, at_ns)?;
        match before.place {
            Place::Ready | Place::Asleep => self.doubt(OUT_TWICE),
            Place::Runs(on) if differ(on, cpu) => self.doubt(IN_TWICE),
            Place::Runs(_) | Place::Unknown => {}
        }
        let is_ready = state.starts_with('R');
        if !is_ready {
            self.doubt(SLEEPS);
        }
        let place = if is_ready { Place::Ready } else { Place::Asleep };
        let woken_ns = before.woken_ns.filter(|woken_ns| at_ns.saturating_sub(*woken_ns) <= ON_ITS_WAY_NS);
        self.states.insert(vcpu, Vcpu { place, since_ns: at_ns, woken_ns });
        self.spells.sees(vcpu, at_ns)
    }

    fn enters(&mut self, vcpu: u32, at_ns: u64, cpu: Option<u32>) -> Result<(), String> {
        let before = self.before(vcpu, at_ns)?;
        match before.place {
            Place::Runs(_) => self.doubt(IN_TWICE),
            // One that sleeps was woken before it had left its CPU.
            Place::Asleep if before.woken_ns.is_none() => self.doubt(UNWOKEN),
            Place::Asleep | Place::Ready => self.spells.add(vcpu, before.since_ns, at_ns)?,
            Place::Unknown => {}
        }
        self.runs(vcpu, at_ns, cpu);
        self.spells.sees(vcpu, at_ns)
    }

    fn is_woken(&mut self, vcpu: u32, at_ns: u64, begins: bool) -> Result<(), String> {
        let before = self.before(vcpu, at_ns)?;
        self.spells.passes(at_ns);
        let since_ns = match before.place {
            // A kick may come before the thread that wanted to sleep has left its CPU: then it may stay.
            Place::Runs(_) => {
                self.states.insert(vcpu, Vcpu { woken_ns: begins.then_some(at_ns), ..before });
                return Ok(());
            }
            Place::Ready => return Ok(()),
            Place::Asleep if before.woken_ns.is_some() && !begins => before.since_ns,
            Place::Asleep | Place::Unknown => at_ns,
        };
        self.states.insert(vcpu, Vcpu { place: Place::Ready, since_ns, woken_ns: None });
        self.spells.sees(vcpu, since_ns)
    }

    /// The thread of `vcpu` does something that only a thread does which runs, if `surely`.
    fn acts(&mut self, vcpu: u32, at_ns: u64, cpu: Option<u32>, surely: bool) {
        let state = self.states.get(&vcpu).copied().unwrap_or_default();
        match state.place {
            Place::Ready | Place::Asleep if surely || at_ns > state.since_ns + LEAVING_NS => {
                self.doubt(ACTS);
            }
            Place::Runs(on) if differ(on, cpu) => self.doubt(IN_TWICE),
            Place::Unknown => {}
            _ => return,
        }
        self.runs(vcpu, at_ns, cpu);
    }

    fn runs(&mut self, vcpu: u32, since_ns: u64, cpu: Option<u32>) {
        self.states.insert(vcpu, Vcpu { place: Place::Runs(cpu), since_ns, woken_ns: None });
        if let Some(cpu) = cpu {
            self.on.insert(cpu, vcpu);
        }
    }

    fn finish(mut self) -> Result<Spells, String> {
        for (vcpu, state) in self.states.into_iter().filter(|(_, state)| state.place == Place::Ready) {
            self.spells.add(vcpu, state.since_ns, self.spells.last_ns.max(state.since_ns))?;
        }
        // Without any wake-up each sleep is one doubt; with some, each that lacks one.
        let moot = if self.has_wakeups { SLEEPS } else { UNWOKEN };
        self.spells.doubts.retain(|doubt| doubt.what != moot);
        if let Some((line, count)) = self.overwritten {
            self.spells.doubt(LOST, line, count);
        }
        Ok(self.spells)
    }
}

/// Whether these are two CPUs.
fn differ(on: Option<u32>, cpu: Option<u32>) -> bool {
    on.zip(cpu).is_some_and(|(on, cpu)| on != cpu)
}

/// Nanoseconds of a time in seconds with a fraction.
fn time(at: &str) -> Result<u64, String> {
    let wrong = || format!("the time {at} is no number of seconds with up to nine decimals");
    let (seconds, fraction) = at.split_once('.').ok_or_else(|| {
        format!(
            "times without a fraction, such as {at}, are cycles, counts or nanoseconds: record with the clock local or mono, or \
             convert them by trace-cmd report --ts2secs"
        )
    })?;
    let digits = fraction.len();
    if !(1..=9).contains(&digits) || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let seconds: u64 = seconds.parse().map_err(|_| wrong())?;
    let nanoseconds = fraction.parse::<u64>().map_err(|_| wrong())? * 10_u64.pow(9 - digits as u32);
    seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(nanoseconds)).ok_or_else(wrong)
}
