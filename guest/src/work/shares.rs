//! Sections of which some only read, as a run asks for them (`--read-share`, `--read-hold`).

use core::sync::atomic::AtomicU32;

use crate::cpu::percpu::{boot, control};
use crate::cpu::time::iterations;
use crate::lock::measure::{Sections, Times, count, count_read, end_round_in};
use crate::work::choice::Choices;

/// Sections of both kinds.
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
