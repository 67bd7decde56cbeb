//! `haltkick worst --replay`: one preemption, again and from the start.

use std::path::Path;
use std::time::Duration;

use haltkick_vmm::worst::{Attempt, Cut, Kind, Scope, replay as cut, survey};

use super::asked::Asked;
use crate::cli::{Format, WorstArgs};
use crate::results::preemption::{Preemption, Then};
use crate::show;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

pub(super) fn replay(args: &WorstArgs, path: &Path) -> Result<Exit> {
    let refuse = |message: String| Failure::usage(format!("--replay: {}: {message}", path.display()));
    if args.settings.all_given().next().is_some() {
        return Err(refuse("it has all settings: leave the others out".into()));
    }
    let file = Preemption::read(path)?;
    let mut asked = Asked::new(args, file.settings().map_err(refuse)?)?;
    if !file.is_of(&asked.image) {
        return Err(refuse(
            "it was found in another guest image, whose instructions are others: use that haltkick, or --guest".into(),
        ));
    }
    let vcpus = asked.run.guests[0].vcpus;
    if let Some(cut) = cuts_of(&file, asked.kind).iter().find(|cut| cut.vcpu >= vcpus) {
        return Err(refuse(format!("there is no vCPU {} in its guest", cut.vcpu)));
    }
    let [span, horizon] = [file.span_ns, file.horizon_ns].map(Duration::from_nanos);
    asked.scope = Scope { span, horizon, every: false };
    let run = asked.seeded(file.seed);
    let baseline = survey(&run, &asked.image, asked.scope, &asked.stop)?;
    asked.kind = super::kind(Duration::from_nanos(file.for_ns), file.takes_pcpu);
    let cuts = cuts_of(&file, asked.kind);
    match cut((&run, &asked.image), &baseline, &cuts, &asked.stop)? {
        Attempt::Held(effect, state) => {
            let same = format!("{:016x}", effect.fingerprint) == file.came_to;
            let lost = asked.lost(&effect, &cuts);
            let text = match args.format {
                Format::Table => show::worst::replayed(&file.place, lost, &effect, state.as_deref()),
                Format::Json => show::worst::replayed_json(lost, &effect, state.as_deref(), same)?,
            };
            output::data(&text)?;
            if same {
                return Ok(super::within(args, lost.0));
            }
            let was = &file.came_to;
            Err(Failure {
                exit: Exit::Untrusted,
                message: format!(
                    "{}: it came to something else then ({was}): another haltkick simulates differently",
                    path.display()
                ),
            })
        }
        Attempt::Broke(broken) => {
            output::data(&format!("{}\n{}", broken.what, broken.explanation))?;
            Ok(if broken.is_stuck { Exit::NoProgress } else { Exit::GuestFailed })
        }
        Attempt::NotCarriedOut(what) => Err(Failure::lacking(what)),
        Attempt::Unreached => Err(refuse("a vCPU never comes to its instruction".into())),
    }
}

/// Preemptions of a file.
fn cuts_of(file: &Preemption, kind: Kind) -> Vec<Cut> {
    let first = Cut { closes: file.closes, ..Cut::new(file.vcpu, file.instructions, kind) };
    let then = file.then.iter().map(|&Then { vcpu, instructions, .. }| Cut::new(vcpu, instructions, kind));
    std::iter::once(first).chain(then).collect()
}
