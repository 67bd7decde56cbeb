//! The next step of a vCPU: which lock, for how long, and when; and sections of which some only read.
//!
//! By default everything is of one length and the locks come in turn, which keeps vCPUs in step; the settings behind
//! `--think-distribution`, `--hold-jitter`, `--zipf` and `--arrivals` take them out of it.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use haltkick_hypercalls::ShapeFlags;

use crate::cpu::percpu::{boot, control, cpu};
use crate::cpu::time::{iterations, now, ticks, work};
use crate::image::hot;
use crate::lock::measure::{Sections, Times, count, count_read, end_round_in, is_over};
use crate::monitor::hypercall;
use crate::work::random::{Random, log2, power_of_half};

/// The most that [`zipf`] can choose from.
pub(crate) const MOST_RANKS: usize = 4096;

hot! {
    /// Sums of the weights of the ranks up to each. Written by vCPU 0 before any other runs.
    static WEIGHTS: [AtomicU64; MOST_RANKS] = [const { AtomicU64::new(0) }; MOST_RANKS];
}

/// vCPU 0, before any other vCPU runs: the weight of rank n, from 1 on, is n to the power of minus `--zipf`.
pub(crate) fn prepare() {
    let power = u64::from(boot().shape.zipf_hundredths);
    if power == 0 {
        return;
    }
    let mut sum = 0;
    for (rank, weight) in (1..).zip(WEIGHTS.iter()) {
        sum += power_of_half(log2(rank) * power / 100).max(1);
        // Relaxed: the hypercall that starts the other vCPUs comes later.
        weight.store(sum, Ordering::Relaxed);
    }
}

/// One of the first `ranks` (at most [`MOST_RANKS`]), the first most often.
pub(crate) fn zipf(random: &mut Random, ranks: usize) -> usize {
    let weights = &WEIGHTS[..ranks];
    let drawn = random.below(weights[ranks - 1].load(Ordering::Relaxed));
    weights.partition_point(|sum| sum.load(Ordering::Relaxed) <= drawn)
}

pub(crate) fn dice() -> Random {
    dice_of(cpu())
}

/// The dice of vCPU or task `number`.
fn dice_of(number: usize) -> Random {
    Random::new(boot().seed, number)
}

/// The settings of a run in iterations of the work loop, and this vCPU's dice.
pub(crate) struct Choices {
    pub(crate) random: Random,
    hold: u64,
    jitter_percent: u32,
    think: u64,
    is_exponential: bool,
    index: usize,
    locks: usize,
    is_zipf: bool,
    /// Mean TSC ticks between two arrivals; 0: there are none.
    arrival_ticks: u64,
    /// When the next section is to begin.
    intended: u64,
}

impl Choices {
    pub(crate) fn of_this_vcpu() -> Self {
        Self::of(cpu())
    }

    /// The settings, with the dice of vCPU or task `number`.
    pub(crate) fn of(number: usize) -> Self {
        let boot = boot();
        let locks = boot.lock_count as usize;
        Self {
            random: dice_of(number),
            hold: iterations(boot.hold_ns),
            jitter_percent: boot.shape.hold_jitter_percent,
            think: iterations(boot.think_ns),
            is_exponential: boot.shape.flags.has(ShapeFlags::EXPONENTIAL_THINK),
            index: number % locks,
            locks,
            is_zipf: boot.shape.zipf_hundredths > 0,
            arrival_ticks: ticks(boot.shape.arrivals_ns),
            intended: 0,
        }
    }

    /// Out of step from the beginning: vCPUs that begin in step stay in step for long. From the run's seed.
    pub(crate) fn begun(mut self) -> Self {
        work(self.random.below(self.think + 1));
        if self.arrival_ticks > 0 {
            self.intended = now() + self.random.below(self.arrival_ticks + 1);
        }
        self
    }

    /// Rounds, until `round` says that it was the last, with time to think between two.
    #[inline(always)]
    pub(crate) fn rounds(self, mut round: impl FnMut(&mut Self) -> bool) {
        let mut choices = self.begun();
        while round(&mut choices) {
            choices.think();
        }
    }

    /// The lock of the next section: each in turn, each vCPU beginning at another one; or by chance.
    #[inline(always)]
    pub(crate) fn lock(&mut self) -> usize {
        if self.is_zipf {
            return zipf(&mut self.random, self.locks);
        }
        let index = self.index;
        self.index = if index + 1 == self.locks { 0 } else { index + 1 };
        index
    }

    /// The length of the next section.
    #[inline(always)]
    pub(crate) fn hold(&mut self) -> u64 {
        if self.jitter_percent == 0 { self.hold } else { self.random.about(self.hold, self.jitter_percent) }
    }

    /// A length like `mean`, as `--think-distribution` says.
    #[inline(always)]
    pub(crate) fn like(&mut self, mean: u64) -> u64 {
        if self.is_exponential { self.random.exponential(mean) } else { mean }
    }

    /// Spends the time between two sections: in work, or waiting where sections are to begin by the clock.
    #[inline(always)]
    pub(crate) fn think(&mut self) {
        if self.arrival_ticks == 0 {
            let think = self.think;
            work(self.like(think));
        }
    }

    /// The next section is to begin: returns when it is time for it, with the time at which that was, or at which it was to be
    /// if this vCPU is late. `None` where sections do not begin by the clock.
    ///
    /// A vCPU that is late begins at once, and its wait is counted from the time that was intended: otherwise a
    /// delay would also delay the requests that would have shown it (coordinated omission).
    #[inline(always)]
    pub(crate) fn arrive(&mut self) -> Option<u64> {
        if self.arrival_ticks == 0 {
            return None;
        }
        let intended = self.intended;
        let until_next = self.like(self.arrival_ticks);
        self.intended = intended + until_next;
        while now() < intended {
            if is_over() {
                break;
            }
            // This close, a yield would make it late. (A twentieth of a millisecond, by the TSC's kilohertz.)
            if intended.saturating_sub(now()) > boot().tsc_khz / 20 {
                hypercall::yield_to(None);
            } else {
                spin_loop();
            }
        }
        Some(intended)
    }
}

/// Sections of both kinds, as a run asks for them (`--read-share`, `--read-hold`).
pub(crate) struct Shares {
    sections: Sections,
    read_percent: u32,
    read_hold: u64,
    window: &'static AtomicU32,
}

impl Shares {
    pub(crate) fn of_this_vcpu() -> Self {
        Self {
            sections: Sections::of_this_vcpu(),
            read_percent: boot().shape.read_percent,
            read_hold: iterations(boot().shape.read_hold_ns),
            window: &control().window,
        }
    }

    /// Does one section under lock `index`, which was to begin at `intended` if that is said: either `read`, which
    /// says whether what it read was whole, or `write`. Each is told its iterations of work. Returns whether there is
    /// to be another section.
    #[inline(always)]
    pub(crate) fn round(
        &self,
        choices: &mut Choices,
        index: usize,
        intended: Option<u64>,
        read: impl FnOnce(u64) -> bool,
        write: impl FnOnce(u64),
    ) -> bool {
        let reads = choices.random.percent(self.read_percent);
        let times = if reads {
            self.sections.shared(index, || read(self.read_hold))
        } else {
            let hold = choices.hold();
            self.sections.exclusive(index, || write(hold))
        };
        let times = Times { asked: intended.unwrap_or(times.asked), ..times };
        end_round_in(self.window, || if reads { count_read(&times) } else { count(&times) })
    }
}
