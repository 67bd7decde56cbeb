//! `--ple gap=128,window=4096,target=holder`: limits of pause loops in a model of a host, and where spinners yield to.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use haltkick_vmm::hosts::{Host, Pause, PauseCounter, Target};
use haltkick_vmm::{Refused, Ring, Run};

use super::in_range;
use crate::text::nearest;

/// A longer gap is longer than any PAUSE.
const GAPS: RangeInclusive<u64> = 1..=1_000_000;
const WINDOWS: RangeInclusive<u64> = 1..=1_000_000_000;

const TARGETS: [(&str, Target); 4] = [
    ("round-robin", Target::RoundRobin),
    ("last-kicked", Target::LastKicked),
    ("holder", Target::Holder),
    ("only-holder", Target::OnlyHolder),
];

/// Limits of pause loops, and the targets of spinners; `None`: as the host file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PauseLoops {
    /// Ticks of the time stamp counter between two PAUSEs of a loop, at most.
    gap: Option<u64>,
    /// The first window: ticks, or PAUSEs.
    window: Option<u64>,
    /// The vCPU that a spinner yields to.
    target: Option<Target>,
}

impl PauseLoops {
    /// The limits of a run, if its guests' pause loops exit by a model of a host.
    pub(crate) fn of(run: &Run) -> Option<Self> {
        let pause = run.host.as_ref()?.pause.filter(|pause| run.halts.pause_exits && acts(run, pause))?;
        // Left out where it is KVM's, as in records from before there was a choice.
        let target = Some(pause.target).filter(|target| *target != Target::default());
        Some(Self { gap: Some(pause.gap), window: Some(pause.window), target })
    }

    /// Changes the model of a host that `run` has.
    pub(super) fn put(self, run: &mut Run) -> Result<(), Refused> {
        let refuse = |message| Err(Refused::new("ple", message));
        if !run.engine.is_simulated() {
            return refuse(
                "only a model of a host takes them: use engine sim. KVM has one gap and one window for all guests, \
                 parameters ple_gap and ple_window of kvm_intel; pause-exits off ends the exits of one run",
            );
        }
        let Some(host) = &run.host else {
            return refuse("only a model of a host has pause-loop exits: use sched host, and host");
        };
        if !run.halts.pause_exits {
            return refuse("pause-exits is off: leave one of the two out");
        }
        let Some(pause) = host.pause else { return refuse("the host file has no [pause]: add it there") };
        if !acts(run, &pause) {
            return refuse("Intel's pause loops exit in ring 0 only: use ring 0");
        }
        let (gap, window) = (self.gap.unwrap_or(pause.gap), self.window.unwrap_or(pause.window));
        let target = self.target.unwrap_or(pause.target);
        let pause = Pause { gap, window, target, ..pause };
        run.host = Some(Arc::new(Host { pause: Some(pause), ..Host::clone(host) }));
        Ok(())
    }
}

/// Whether guests run in a ring in which pause loops exit.
fn acts(run: &Run, pause: &Pause) -> bool {
    run.ring == Ring::Ring0 || pause.counter == PauseCounter::Pauses
}

impl FromStr for PauseLoops {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut loops = Self::default();
        for part in text.split(',').map(str::trim) {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!("'{part}' is no option: write gap=N, window=N or target=WHICH"));
            };
            let given_before = match key {
                "gap" => loops.gap.replace(number(key, value, GAPS)?).is_some(),
                "window" => loops.window.replace(number(key, value, WINDOWS)?).is_some(),
                "target" => {
                    let found = TARGETS.iter().find(|(name, _)| *name == value);
                    let names = TARGETS.map(|(name, _)| name);
                    let (_, target) = found.ok_or_else(|| nearest::unknown("target", value, &names))?;
                    loops.target.replace(*target).is_some()
                }
                _ => return Err(nearest::unknown("option", key, &["gap", "window", "target"])),
            };
            if given_before {
                return Err(format!("'{part}' gives the {key} a second time"));
            }
        }
        Ok(loops)
    }
}

fn number(key: &str, text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let number: u64 = text.parse().map_err(|error| format!("'{text}' is no whole number: {error}"))?;
    let bounds = in_range(number, &range);
    bounds.map(|()| number).map_err(|message| format!("{key}: {message}"))
}

impl fmt::Display for PauseLoops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("gap", self.gap), ("window", self.window)];
        let parts = parts.into_iter().filter_map(|(key, number)| Some(format!("{key}={}", number?)));
        let target = TARGETS.iter().find(|(_, target)| Some(*target) == self.target);
        let target = target.map(|(name, _)| format!("target={name}"));
        f.write_str(&parts.chain(target).collect::<Vec<_>>().join(","))
    }
}
