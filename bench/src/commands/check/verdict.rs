//! The trials that were made, what came of them, and what they cannot show.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use haltkick_vmm::{ByActivity, Entry, OurGuest, Outcome, Span};

use super::torture::{self, Part, Trial};
use crate::show::cases::Cases;
use crate::text::exit::{Exit, Failure};
use crate::text::output::shown;
use crate::text::quantity;

#[derive(Debug, Default)]
struct Form {
    pv: bool,
    /// Its parts, and whether any run was about them.
    parts: BTreeMap<Part, bool>,
    runs: u64,
    /// Most readers that were inside at once, as far as a workload has counted them.
    readers_inside: u64,
    sections: u64,
    /// Times that a vCPU was taken off its pCPU or went to sleep, by what it did.
    taken_off: ByActivity,
    vcpus: BTreeSet<u32>,
}

impl Form {
    fn name(&self) -> &'static str {
        if self.pv { "paravirtual" } else { "native" }
    }
}

#[derive(Debug)]
pub(super) struct Tried {
    forms: Vec<Form>,
    left_out: BTreeSet<String>,
    /// Why the first of these was.
    first_left_out: Option<Failure>,
    /// Trials that the time did not suffice for.
    pub(super) unreached: usize,
    /// Each trial by name, for programs.
    pub(super) cases: Cases,
}

impl Tried {
    pub(super) fn of(lock: &Entry, forms: &[bool]) -> Self {
        let form = |&pv: &bool| {
            let parts = torture::parts(lock, pv).map(|part| (part, false)).collect();
            Form { pv, parts, ..Form::default() }
        };
        let forms = forms.iter().map(form).collect();
        Self { forms, left_out: BTreeSet::new(), first_left_out: None, unreached: 0, cases: Cases::default() }
    }

    /// A run that came to its end.
    pub(super) fn add(&mut self, trial: &Trial, asked: OurGuest<'_>, outcome: &Outcome) {
        let Some(form) = self.forms.iter_mut().find(|form| form.pv == trial.pv) else { return };
        self.cases.passed(&trial.name);
        form.runs += 1;
        form.parts.insert(trial.kind.of, true);
        let inside = outcome.lock_events.iter().find(|(name, _)| name == "readers_inside");
        form.readers_inside = form.readers_inside.max(inside.map_or(0, |(_, readers)| *readers));
        form.sections = form.sections.saturating_add(outcome.acquisitions());
        form.vcpus.insert(asked.guest.vcpus);
        if let Some(off) = &outcome.preemptions {
            form.taken_off.add(off);
        }
    }

    /// A trial that cannot be run here.
    pub(super) fn left_out(&mut self, trial: &Trial, reason: Failure) {
        self.cases.skipped(&trial.name, &reason.message);
        let kind = trial.name.split(',').next().unwrap_or_default();
        self.left_out.insert(format!("{kind}: {reason}"));
        self.first_left_out.get_or_insert(reason);
    }

    /// The failure of a check without a trial that could be run.
    pub(super) fn nothing(&self) -> Failure {
        let (exit, reason) = match &self.first_left_out {
            Some(first) => (first.exit, &*first.message),
            None => (Exit::Usage, "see `haltkick doctor`"),
        };
        Failure { exit, message: format!("no trial can be run here: {reason}") }
    }

    pub(super) fn runs(&self) -> u64 {
        self.forms.iter().map(|form| form.runs).sum()
    }

    /// Parts of the lock that were in no run at all: what is said of the lock does not hold for them.
    pub(super) fn gaps(&self) -> Vec<String> {
        let of_form = |form: &Form| {
            let name = form.name();
            if form.runs == 0 {
                return vec![format!("the {name} form")];
            }
            let untried = form.parts.iter().filter(|(_, tried)| !**tried);
            untried.map(|(part, _)| format!("{} of the {name} form", part.in_words())).collect()
        };
        self.forms.iter().flat_map(of_form).collect()
    }

    /// The verdict on a lock in which nothing was found.
    pub(super) fn verdict(&self, object: &Path, time: Duration) -> String {
        let tenths = Duration::from_millis(100 * (time.as_millis() / 100).max(1) as u64);
        let mut text =
            format!("{}: no fault found in {} runs, {}\n\n", shown(object), self.runs(), Span(tenths));
        text += &self.table();
        let tries = self.forms.iter().any(|form| form.parts.contains_key(&Part::Try));
        let tries = if tries { ", tries that refuse a free lock" } else { "" };
        let _ = writeln!(
            text,
            "\nLooked for: two vCPUs in one section, updates lost, waiters left behind, hangs, faults, stack overflows{tries}."
        );
        for gap in self.gaps() {
            let _ = writeln!(text, "NOT TRIED: {gap}. Nothing is known of it.");
        }
        text += &self.doubts();
        text += CANNOT_SHOW;
        text
    }

    /// The trials that were made before the check was stopped.
    pub(super) fn so_far(&self, object: &Path) -> String {
        format!("{}: stopped; no fault found so far\n\n{}", shown(object), self.table())
    }

    fn table(&self) -> String {
        let mut text = String::from(
            "                                      vCPUs taken off while they\n\
             form           runs    sections     held   waited  were first    slept  vCPUs\n",
        );
        for form in &self.forms {
            let off = &form.taken_off;
            let most = form.vcpus.last().copied().unwrap_or(0);
            let least = form.vcpus.first().copied().unwrap_or(0);
            let _ = writeln!(
                text,
                "{:<12} {:>6}  {:>10} {:>8} {:>8}  {:>10} {:>8}  {least} to {most}",
                form.name(),
                form.runs,
                quantity::si(form.sections as f64),
                off.holder,
                off.waiter,
                off.head,
                off.halted,
            );
        }
        for form in self.forms.iter().filter(|form| form.readers_inside > 0) {
            let name = form.name();
            let _ =
                writeln!(text, "readers of the {name} form: up to {} inside at once", form.readers_inside);
        }
        for left_out in &self.left_out {
            let _ = writeln!(text, "left out: {left_out}");
        }
        if self.unreached > 0 {
            let _ = writeln!(text, "not reached in this time: {} trials (--time)", self.unreached);
        }
        text
    }

    /// Remarks about what looks strange, and is no fault.
    fn doubts(&self) -> String {
        let mut text = String::new();
        for form in &self.forms {
            let off = &form.taken_off;
            let name = form.name();
            if off.waiter + off.head == 0 && off.holder > 0 {
                let _ = writeln!(
                    text,
                    "The {name} form never said that it waits: its waiters count as vCPUs that do something else. Use hk_pause or \
                     hk_announce."
                );
            }
            if form.pv && off.halted == 0 && form.runs > 0 {
                let _ = writeln!(text, "The paravirtual form never slept: use hk_wait and hk_kick.");
            } else if form.pv && (1..FEW).contains(&off.halted) {
                let _ = writeln!(
                    text,
                    "The paravirtual form slept {} times: its wake-ups are hardly tested.",
                    off.halted
                );
            }
            if off.waiter > 0 && off.head == 0 {
                let _ = writeln!(
                    text,
                    "The {name} form never announced HK_HEAD: no vCPU was taken off because it was first in line."
                );
            }
        }
        text
    }
}

/// Fewer events than this show little.
const FEW: u64 = 100;

const CANNOT_SHOW: &str = "\
Cannot show: that there is no fault. What x86 orders by itself, other processors may not, and a compiler may from another
version on; an interleaving that takes one instruction in a hundred million may not have come; fairness was not judged
(haltkick run shows it).
";

#[cfg(test)]
mod tests {
    use haltkick_vmm::{Image, LockFlags};

    use super::*;

    #[test]
    fn what_was_in_no_run_is_named_and_is_no_all_clear() {
        let image = Image::embedded();
        let has_readers = |lock: &&Entry| lock.lock_flags().has(LockFlags::HAS_READERS);
        let lock = image.locks.iter().find(has_readers).expect("rwsem has");
        let mut tried = Tried::of(lock, &[false, true]);
        tried.forms[0].runs = 3;
        tried.forms[0].parts.insert(Part::Lock, true);
        assert_eq!(tried.gaps(), ["the readers' functions of the native form", "the paravirtual form"]);
        let verdict = tried.verdict(Path::new("mine.o"), Duration::from_secs(1));
        assert!(verdict.contains("NOT TRIED: the paravirtual form."), "{verdict}");
        for form in &mut tried.forms {
            form.runs = 3;
            form.parts.values_mut().for_each(|tried| *tried = true);
        }
        assert!(tried.gaps().is_empty());
    }
}
