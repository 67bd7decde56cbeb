//! Properties of a run, drawn from its number.

use std::time::Duration;

use haltkick_fuzzing::Random;
use haltkick_vmm::{Deschedule, HowOften, Image, PvBackend, Ring, Run, Sched, Share, Target, allowed_cpus};
use support::{Settings as _, deschedule, forms_of, ms, us};

/// One run: the honest guest and its neighbours.
pub(crate) struct Case {
    /// Runs that are counted together.
    pub(crate) group: String,
    pub(crate) run: Run,
    /// The attack of the second guest, if there is one.
    pub(crate) attack: Option<Attack>,
    /// Its vCPUs never sleep: where they had little CPU time, the host had none for them.
    pub(crate) is_always_busy: bool,
}

/// A workload that harms, or tries to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    pub(crate) workload: &'static str,
    /// It goes on for the whole window. If not, it ends its own guest sooner or later, and shares are not looked at.
    pub(crate) lasts: bool,
}

const ATTACKS: [Attack; 7] = [
    Attack::lasting("selftest-harm"),
    Attack::lasting("selftest-nonsense"),
    Attack::lasting("selftest-liar"),
    Attack::lasting("selftest-feeder"),
    Attack::lasting("selftest-flood"),
    Attack::lasting("selftest-split-lock"),
    // It runs the code that it has made up, and mostly dies of it.
    Attack { workload: "selftest-rewrite", lasts: false },
];
/// Takes until its time is up, which is long: it is rare.
const NEVER_STARTS: Attack = Attack { workload: "selftest-not-started", lasts: false };

impl Attack {
    pub(crate) const fn lasting(workload: &'static str) -> Self {
        Self { workload, lasts: true }
    }
}

/// A lost wake-up is lost forever; a busy host may keep a guest from moving for half a minute (this runs in the
/// background).
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

impl Case {
    /// Draws locks under all that befalls them for `soak`, an attack on an honest guest for `attacks`.
    pub(crate) fn new(kind: &str, number: u64, image: &Image) -> Self {
        let mut dice = Dice::new(number);
        if kind == "attacks" { attack(&mut dice, number) } else { soak(&mut dice, number, image) }
    }
}

/// At most two pCPUs, however many there are.
fn cpus(most: usize) -> Vec<u32> {
    allowed_cpus().into_iter().take(most.min(2)).collect()
}

fn soak(dice: &mut Dice, number: u64, image: &Image) -> Case {
    // Only locks that guard sections.
    let locks = image.locks.iter().filter(|lock| !lock.is_lock_free() && !lock.serves_faults());
    let (lock, pv) = dice.one(&forms_of(locks));
    let sched = dice.one(&[Sched::Vmm, Sched::Vmm, Sched::Host]);
    let cpus = cpus(1 + dice.below(4) as usize);
    let vcpus = dice.one(&[1, 2, 4, 8]) * cpus.len() as u32;
    let hostile = dice.one_in(4).then(|| dice.one(&ATTACKS));
    // Two runs in three are for the number of acquisitions: they have empty sections, and last longer.
    let (is_dense, by_vmm) = (!dice.one_in(3), sched == Sched::Vmm);
    // The order of what is drawn is part of what a number stands for.
    let honest = Run::default()
        .seed(number)
        .cpus(cpus)
        .vcpus(vcpus)
        .form(lock.clone(), pv)
        .pv_backend(PvBackend::Vmm)
        .sched(sched)
        .slice(us(dice.one(&[200, 500, 1_000, 4_000])))
        .grace(us(if by_vmm { dice.one(&[0, 0, 100]) } else { 0 }))
        .kick_yields(by_vmm && dice.one_in(4))
        .patch(!dice.one_in(4))
        .preempted_hint(!dice.one_in(4))
        .spin_threshold(us(dice.one(&[5, 20, 100])))
        // Descheduling goes with one guest only.
        .deschedule((hostile.is_none() && dice.one_in(2)).then(|| injection(dice)))
        .lock_count(dice.one(&[1, 1, 1, 3, 16]))
        .hold(Duration::from_nanos(if is_dense { 0 } else { dice.one(&[0, 0, 100, 1_000]) }))
        .think(Duration::from_nanos(dice.one(if is_dense { &[0, 0, 100] } else { &[0, 100, 100, 2_000] })))
        .warmup(ms(2))
        .window(ms(if is_dense { 2_000 } else { 400 }))
        .watchdog(PATIENCE);
    let group = format!("{lock} {}", if pv { "pv" } else { "native" });
    Case { group, run: with_beside(honest, hostile), attack: hostile, is_always_busy: false }
}

fn injection(dice: &mut Dice) -> Deschedule {
    let target = dice.one(&[Target::Holder, Target::Head, Target::Waiter, Target::Random]);
    let how_often = HowOften::PerSecond(dice.one(&[20.0, 200.0, 1_000.0]));
    deschedule(target, how_often, us(dice.one(&[50, 500, 3_000])), None)
}

fn attack(dice: &mut Dice, number: u64) -> Case {
    let attack = if dice.one_in(1000) { NEVER_STARTS } else { dice.one(&ATTACKS) };
    let (sched, sched_name) = dice.one(&[(Sched::Vmm, "vmm"), (Sched::Host, "host")]);
    let (ring, ring_name) = dice.one(&[(Ring::Ring0, "0"), (Ring::Ring3, "3")]);
    let cpus = cpus(1 + dice.below(2) as usize);
    // A spinning lock whose vCPUs never sleep: it always wants its share.
    let vcpus = dice.one(&[1, 2, 2, 4]) * cpus.len() as u32;
    let pv_backend = dice.one(&[PvBackend::Vmm, PvBackend::Vmm, PvBackend::Auto]);
    let share = if sched == Sched::Vmm { dice.one(&[Share::Vcpu, Share::Guest]) } else { Share::Vcpu };
    let honest = Run::default()
        .seed(number)
        .cpus(cpus)
        .vcpus(vcpus)
        .lock("tas")
        .sched(sched)
        .share(share)
        .ring(ring)
        .pv_backend(pv_backend)
        .warmup(ms(2))
        .window(ms(80))
        .watchdog(if attack.workload == NEVER_STARTS.workload { Duration::from_secs(1) } else { PATIENCE });
    let group = format!("{} {sched_name} {ring_name}", attack.workload);
    Case { group, run: with_beside(honest, Some(attack)), attack: Some(attack), is_always_busy: true }
}

/// The honest guest, and one that makes `attack`.
fn with_beside(honest: Run, attack: Option<Attack>) -> Run {
    let hostile = |attack: Attack| honest.clone().name("hostile").workload(attack.workload);
    let hostile = attack.map(|attack| hostile(attack).form("tas", false));
    honest.name("honest").beside(hostile)
}

/// The choices of a run, repeatable from its number.
struct Dice(Random);

impl Dice {
    fn new(number: u64) -> Self {
        Self(Random(number.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5eed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.draw() % bound
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    /// Draws whether it happens, once in `times`.
    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
