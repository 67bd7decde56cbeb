//! The machine to be simulated: how many CPUs, where they are, and what everything costs.
//!
//! A machine is described by a TOML file in which every figure names its source ([`file`]). Such files of machines on which
//! published lock experiments ran are built in ([`presets`]).

mod file;
pub(crate) mod loops;
mod topology;

pub use file::{CHOICES, Guess, Preset, presets};
pub use loops::{LongestLoop, PauseLimits};
pub use topology::{CpuPlace, Topology};

use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

use crate::sourced::{choice, ghz, ns, permille, thousandths, us_as_ps, value, whole};
use loops::ROUND;

/// Picoseconds in a nanosecond.
pub const PS_PER_NS: u64 = 1000;

/// A machine, read and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Its name on the command line, or that in its file.
    pub name: String,
    /// Its description, in a line.
    pub title: String,
    /// Places of its CPUs.
    pub topology: Topology,
    /// Costs of everything that takes time.
    pub costs: Costs,
    /// How it behaves where real machines differ, or are not known well enough.
    pub model: Model,
    /// The file that describes it, word for word: a record keeps it.
    pub text: String,
}

/// Costs of everything that takes time, in picoseconds where the name does not say otherwise.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Costs {
    /// Frequency of the time stamp counter and of the cores, in kHz.
    #[serde(rename = "clock-ghz", deserialize_with = "ghz")]
    pub clock_khz: u64,
    /// Any other instruction, on a core whose sibling is idle.
    #[serde(rename = "instruction-ns", deserialize_with = "ns")]
    pub instruction_ps: u64,
    /// PAUSE.
    #[serde(skip)]
    pub pause_ps: u64,
    /// PAUSE as its file gives it: in nanoseconds, or in cycles of the core.
    #[serde(default, deserialize_with = "given")]
    pause_ns: Option<f64>,
    #[serde(default, deserialize_with = "given")]
    pause_cycles: Option<f64>,
    #[serde(default, deserialize_with = "given")]
    core_ghz: Option<f64>,
    /// Reading the time stamp counter.
    #[serde(rename = "rdtsc-ns", deserialize_with = "ns")]
    pub rdtsc_ps: u64,
    /// A fence with nothing outstanding.
    #[serde(rename = "fence-ns", deserialize_with = "ns")]
    pub fence_ps: u64,
    /// A locked read-modify-write of a line that the core owns, beyond an instruction.
    #[serde(rename = "rmw-ns", deserialize_with = "ns")]
    pub rmw_ps: u64,
    /// A load that hits in the core's own cache, beyond an instruction.
    #[serde(rename = "hit-ns", deserialize_with = "ns")]
    pub hit_ps: u64,
    /// Stores that may wait for their lines.
    #[serde(rename = "store-buffer-entries", deserialize_with = "whole::<1, 1024, _, _>")]
    pub store_buffer: usize,
    /// Speed of a thread whose sibling is busy, in thousandths of its speed alone.
    #[serde(rename = "busy-sibling-speed", deserialize_with = "permille::<100, 1000, _>")]
    pub busy_sibling_permille: u64,
    /// Getting a line from elsewhere.
    #[serde(skip)]
    pub line: LineCosts,
    /// Costs of being a guest.
    #[serde(skip)]
    pub guest: GuestCosts,
}

/// Time to get a line of 64 bytes, in picoseconds.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LineCosts {
    /// From the other thread of the core.
    #[serde(rename = "sibling-ns", deserialize_with = "ns")]
    pub sibling_ps: u64,
    /// From another core of the same cluster (AMD: of the same CCX). That of the socket, where there are no clusters.
    #[serde(rename = "near-ns", default, deserialize_with = "ns")]
    pub near_ps: u64,
    /// From another core of the same socket.
    #[serde(rename = "socket-ns", deserialize_with = "ns")]
    pub socket_ps: u64,
    /// From another socket that is this many hops away, beginning with one hop.
    #[serde(rename = "hops-ns", default, deserialize_with = "thousandths::<0, 1_000_000_000, _>")]
    pub hops_ps: Vec<u64>,
    /// A copy of a line that others in the socket (or cluster) share already, from their common cache; also from one of many such
    /// copies to the next.
    #[serde(rename = "shared-ns", deserialize_with = "ns")]
    pub shared_ps: u64,
    /// From memory, for a line that no core has.
    #[serde(rename = "memory-ns", deserialize_with = "ns")]
    pub memory_ps: u64,
    /// The time to invalidate all copies over the way to the farthest, in thousandths: within the socket.
    #[serde(rename = "invalidate-factor", deserialize_with = "permille::<1000, 10_000, _>")]
    pub upgrade_socket_permille: u64,
    /// The factor where the farthest copy is one hop away, two hops, and so on.
    #[serde(rename = "upgrade-hops", default, deserialize_with = "thousandths::<1, 10, _>")]
    pub upgrade_hops_permille: Vec<u64>,
    /// Time from one transfer to the next of a line for which requests queue, in thousandths of the latency; within a cluster.
    #[serde(rename = "occupancy-near", default, deserialize_with = "permille::<10, 2000, _>")]
    pub occupancy_near_permille: u64,
    /// This time between clusters of a socket.
    #[serde(rename = "occupancy-socket", deserialize_with = "permille::<10, 2000, _>")]
    pub occupancy_socket_permille: u64,
    /// This time between sockets.
    #[serde(rename = "occupancy-far", deserialize_with = "permille::<10, 2000, _>")]
    pub occupancy_far_permille: u64,
    /// Most transfers in a row within a cluster while requests from elsewhere wait; also most writes of an owner while such a request
    /// is on its way.
    #[serde(deserialize_with = "whole::<1, 1_000_000, _, _>")]
    pub grants_in_a_row: u32,
}

impl LineCosts {
    /// Time from one transfer within a cluster to the next, of a line for which requests queue.
    pub(crate) fn near_visit_ps(&self) -> u64 {
        self.near_ps * self.occupancy_near_permille / 1000
    }
}

/// Costs of being a guest of a hypervisor, in picoseconds.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct GuestCosts {
    /// An exit and the next entry, with nothing between.
    #[serde(rename = "exit-ns", deserialize_with = "ns")]
    pub exit_ps: u64,
    /// The timer interrupt at the end of a slice, beyond an exit.
    #[serde(rename = "timer-ns", deserialize_with = "ns")]
    pub timer_ps: u64,
    /// Time that a kick takes from the vCPU that kicks, beyond an exit.
    #[serde(rename = "kick-ns", deserialize_with = "ns")]
    pub kick_ps: u64,
    /// From a kick to the first instruction of a vCPU whose pCPU was idle, where that slept lightly.
    #[serde(rename = "wake-ns", deserialize_with = "ns")]
    pub wake_ps: u64,
    /// Another vCPU on the same pCPU.
    #[serde(rename = "switch-ns", deserialize_with = "ns")]
    pub switch_ps: u64,
    /// Each of these times is uniformly up to this share longer or shorter, in thousandths.
    #[serde(rename = "scatter", deserialize_with = "permille::<0, 900, _>")]
    pub scatter_permille: u64,
    /// Idle states: a pCPU takes longer to wake up, the longer it has been idle.
    #[serde(default)]
    pub idle: Vec<IdleCost>,
}

/// Cost of an idle state, in picoseconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct IdleCost {
    /// Idle for at least this long.
    #[serde(rename = "after-us", deserialize_with = "after_us")]
    pub after_ps: u64,
    /// Takes this much longer to wake up.
    #[serde(rename = "wake-us", deserialize_with = "us_as_ps")]
    pub wake_ps: u64,
}

/// Deserializes a number with its source. A file may lack both, but not one of them.
fn given<'d, D: Deserializer<'d>>(from: D) -> Result<Option<f64>, D::Error> {
    value(from).map(Some)
}

/// Deserializes the time after which a pCPU is in an idle state, which is a choice and has no source, as picoseconds.
fn after_us<'d, D: Deserializer<'d>>(from: D) -> Result<u64, D::Error> {
    Ok((choice::<1_000_000_000_000, _>(from)? * 1e6).round() as u64)
}

impl Machine {
    /// Ticks of the time stamp counter at a time.
    #[must_use]
    pub fn ticks_at(&self, at_ps: u64) -> u64 {
        (u128::from(at_ps) * u128::from(self.costs.clock_khz) / 1_000_000_000) as u64
    }

    /// Rounds of the loop that stands for work which a CPU without a busy sibling does in 2^20 ns.
    #[must_use]
    pub fn work_rate(&self) -> u64 {
        (1_000 << 20) / (ROUND * self.costs.instruction_ps)
    }

    /// How much longer an idle pCPU takes to wake up after `idle_ps`.
    #[must_use]
    pub fn deep_wake_ps(&self, idle_ps: u64) -> u64 {
        let states = self.costs.guest.idle.iter();
        states.filter(|state| state.after_ps <= idle_ps).map(|state| state.wake_ps).max().unwrap_or(0)
    }
}

/// The `[model]` section of a machine file: choices between ways in which real machines may behave, each of which has a default. A
/// finding that depends on one of them says so, after it was tried with all.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Model {
    /// pCPU of a vCPU that wakes up.
    pub placement: Placement,
    /// The transfer of a line takes up to this share longer or shorter than the machine's figure, drawn anew for each. Every transfer
    /// takes some time: it is a half at most.
    #[serde(deserialize_with = "choice::<500, _>")]
    pub jitter: f64,
    /// Time of a vCPU that has others drop translations.
    pub invalidation: Invalidation,
    /// Work that takes speed from the other thread of a core.
    pub smt: Smt,
    /// How long a store stays in the store buffer.
    pub stores: Stores,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            placement: Placement::Last,
            jitter: 0.05,
            invalidation: Invalidation::Free,
            smt: Smt::Busy,
            stores: Stores::Prompt,
        }
    }
}

impl Model {
    /// The least that a transfer takes whose figure is `ps`.
    pub(crate) fn least_ps(&self, ps: u64) -> u64 {
        ps - self.jitter_ps(ps)
    }

    /// Time of a transfer whose figure is `ps`, by a random number.
    pub(crate) fn jittered_ps(&self, ps: u64, random: u64) -> u64 {
        self.least_ps(ps) + random % (2 * self.jitter_ps(ps) + 1)
    }

    fn jitter_ps(&self, ps: u64) -> u64 {
        (ps as f64 * self.jitter) as u64
    }
}

/// pCPU of a vCPU that wakes up, if several pCPUs are idle.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The one that it ran on last; if that is busy, one nearby, as Linux and KVM place threads.
    Last,
    /// On the pCPU with the lowest number.
    Lowest,
}

/// Time of a vCPU that has others drop translations, beyond its exit.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Invalidation {
    /// One message reaches all, and takes no time beyond the exit.
    Free,
    /// `kick-ns` for each of them that runs.
    Kicks,
}

/// How long a store to a line that other cores have used stays in the store buffer.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Stores {
    /// Until its line has come.
    Prompt,
    /// For up to [`MOST_LATE_PS`] longer, drawn anew for each. x86 allows that: a lock that it breaks lacks a barrier.
    Late,
}

/// How much longer a late store stays in the store buffer at most: about as long as it takes to leave the guest, which empties it.
pub const MOST_LATE_PS: u64 = 400 * PS_PER_NS;

/// Work that takes speed from the other thread of a core.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Smt {
    /// All but a parked spin loop: stalls on lines, too.
    Busy,
    /// Instructions only: all of `busy-sibling-speed` while a thread executes, a tenth of that loss while it spins with PAUSE, none
    /// while it waits for lines.
    Issue,
}

/// Texts that call themselves machines.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzed {
    use haltkick_fuzzing::Target;

    use super::{LineCosts, Machine, presets};

    /// Fuzzed reading of machine files.
    pub const TARGET: Target = Target { name: "machine", most_bytes: 256, seeds, execute };

    fn seeds() -> Vec<Vec<u8>> {
        presets().iter().map(|preset| preset.text.as_bytes().to_vec()).collect()
    }

    /// Any text is refused, or is a machine on which every line has a way and the clock goes forwards.
    fn execute(bytes: &[u8]) {
        let Ok(machine) = Machine::parse("any.toml", &String::from_utf8_lossy(bytes)) else { return };
        let LineCosts { hops_ps, upgrade_hops_permille, .. } = &machine.costs.line;
        let most_hops = usize::from(machine.topology.most_hops());
        assert!(hops_ps.len() >= most_hops && upgrade_hops_permille.len() >= most_hops);
        let ticks = [0, 1, 12_345, 1_000_000_007, u64::MAX / 2].map(|at_ps| machine.ticks_at(at_ps));
        assert!(ticks[0] == 0 && ticks[3] > 0 && ticks.is_sorted(), "{}: {ticks:?}", machine.name);
        _ = (machine.work_rate(), machine.deep_wake_ps(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_machine_any_text_is_refused_or_is_a_machine() {
        fuzzed::TARGET.run();
    }

    #[test]
    fn long_texts_take_time_in_proportion_to_their_length() {
        fuzzed::TARGET.grow();
    }
}
