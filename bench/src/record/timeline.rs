//! Place of each vCPU in the beginning of the window, as a record keeps it: short, and legible by people and programs
//! alike.

use haltkick_vmm::{Timeline as Noted, Where};
use serde::{Deserialize, Serialize};

/// Place of each vCPU in the beginning of the window, bin by bin.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Timeline {
    /// Length of a bin: half a slice. The first begins when the window opens. There are 100 for each of up to
    /// 256 vCPUs of a run, and fewer for more: 25 for 1024.
    pub(crate) bin_ns: u64,
    /// A text for each vCPU, in order, with a digit for each bin: tenths of it that the vCPU was on a pCPU, rounded down. 9 is all of
    /// it, too.
    pub(crate) on_pcpu: Vec<String>,
    /// A text for each vCPU with a letter for each bin: its place for most of the time without a pCPU. Taken off its
    /// pCPU as holder of a lock (h), first in a queue (f), waiting in it (w) or none of these (o); ready, after a sleep
    /// or having given up its pCPU (r); asleep (s). A point: it was on a pCPU all the time.
    pub(crate) off_pcpu: Vec<String>,
}

/// Letters of [`Noted::OFF`].
pub(crate) const LETTERS: [char; Noted::OFF.len()] = ['h', 'f', 'w', 'o', 'r', 's'];
/// The letter of a vCPU that was never off.
pub(crate) const NEVER_OFF: char = '.';

impl Timeline {
    /// Makes the timeline of all vCPUs, in a window of this length.
    pub(crate) fn new(vcpus: &[&Noted], window_ns: u64) -> Option<Self> {
        let bin_ns = vcpus.first()?.bin_ns();
        Some(Self {
            bin_ns,
            on_pcpu: vcpus.iter().map(|vcpu| on_pcpu(vcpu, window_ns)).collect(),
            off_pcpu: vcpus.iter().map(|vcpu| off_pcpu(vcpu, window_ns)).collect(),
        })
    }
}

fn on_pcpu(vcpu: &Noted, window_ns: u64) -> String {
    let digit = |ns: u32| (b'0' + (u64::from(ns) * 10 / vcpu.bin_ns()).min(9) as u8) as char;
    vcpu.of(Where::Running, window_ns).map(digit).collect()
}

fn off_pcpu(vcpu: &Noted, window_ns: u64) -> String {
    let each: Vec<Vec<u32>> = Noted::OFF.iter().map(|at| vcpu.of(*at, window_ns).collect()).collect();
    let letter = |bin: usize| {
        let (most, letter) =
            each.iter().zip(LETTERS).map(|(bins, letter)| (bins[bin], letter)).max_by_key(|(ns, _)| *ns)?;
        (most > 0).then_some(letter)
    };
    let bins = each.first().map_or(0, Vec::len);
    (0..bins).map(|bin| letter(bin).unwrap_or(NEVER_OFF)).collect()
}
