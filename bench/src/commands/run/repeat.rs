//! `haltkick run --repeat N`: the same cell N times, each with its lock-free companion and a seed of its own; one record
//! each, and the estimates that they give together.

use std::collections::BTreeMap;

use haltkick_vmm::{Guest, Image, Instruments, Run};

use crate::analysis::summary::Summary;
use crate::analysis::summary::trust;
use crate::cli::{Format, RunArgs};
use crate::commands::interrupt;
use crate::experiment::outline::Outline;
use crate::host::identity::Host;
use crate::host::noise;
use crate::measure::engine::{self, Engine, companion};
use crate::measure::fill::records;
use crate::record::Record;
use crate::record::figures::THROUGHPUT;
use crate::record::place::{Place, Role, beside};
use crate::show::table::{self, Detail};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::quantity::si;

/// Name of the experiment in its records.
const NAME: &str = "run";

pub(super) fn run(args: &RunArgs, run: &Run, image: &Image, instruments: Instruments) -> Result<Exit> {
    let stop = interrupt::catch()?;
    let (engine, host) = (engine::kvm(image, &stop, instruments.live), Host::probe());
    let (mut records, mut ending) = (Vec::new(), Ok(()));
    for repetition in 0..args.repeat {
        match once(args, run, image, (&engine, &host), repetition) {
            Ok(of_run) => {
                tell(args, repetition, &of_run)?;
                records.extend(of_run);
            }
            Err(failure) => {
                ending = Err(failure);
                break;
            }
        }
    }
    let outline = outline(args, run);
    if args.format == Format::Table && !records.is_empty() {
        output::data(&table::summary(&Summary::new(&outline, &records), Detail::Verbose))?;
    }
    // The reason for an early end comes first: it explains whatever went wrong then.
    ending.map(|()| if trust::lost(&outline, &records).is_empty() { Exit::Done } else { Exit::Untrusted })
}

fn once(
    args: &RunArgs,
    run: &Run,
    image: &Image,
    (engine, host): (Engine<'_>, &Host),
    repetition: u32,
) -> Result<Vec<Record>> {
    let run = with_seed(run, repetition);
    let place = Place {
        experiment: NAME.into(),
        cell_id: NAME.into(),
        arm: run.our(0).ours.lock.clone(),
        role: Role::Arm,
        setting: BTreeMap::new(),
        block: repetition,
        order_index: u64::from(repetition),
        replaces: vec![],
    };
    let (seen, origin) = engine::run_cell(engine, &noise::around, &run, host).map_err(|error| {
        let failure = Failure::from(error);
        Failure { message: format!("run {} of {}: {failure}", repetition + 1, args.repeat), ..failure }
    })?;
    let found = &seen.found;
    let lock_free = if args.no_ideal {
        Err("not asked for (--no-ideal)".into())
    } else {
        let work_rate = found.outcomes().next().expect("a run has a guest").work_rate;
        companion(engine, &run, image, work_rate)
    };
    Ok(records(&run, found, &origin, Some(&place), &lock_free))
}

/// The run with another seed for everything random.
fn with_seed(run: &Run, repetition: u32) -> Run {
    let seeded =
        |guest: &Guest| Guest { seed: guest.seed.wrapping_add(u64::from(repetition)), ..guest.clone() };
    Run { guests: run.guests.iter().map(seeded).collect(), ..run.clone() }
}

/// The outline that the records are sorted by: one arm at no setting, and the guests alongside its first.
fn outline(args: &RunArgs, run: &Run) -> Outline {
    let lock = &run.our(0).ours.lock;
    let others = run.guests[1..].iter().map(|guest| beside(lock, &guest.name));
    Outline {
        experiment: NAME.into(),
        title: format!("{} runs of {lock}", args.repeat),
        blocks: args.repeat,
        arms: std::iter::once(lock.clone()).chain(others).collect(),
        ..Outline::default()
    }
}

/// For programs the records; for people a sign of life.
fn tell(args: &RunArgs, repetition: u32, records: &[Record]) -> Result<()> {
    if args.format == Format::Json {
        return records.iter().try_for_each(output::json);
    }
    let per_second = records.iter().map(|record| format!("{}/s", si(record.amount(THROUGHPUT))));
    let per_second = per_second.collect::<Vec<_>>().join(", ");
    output::talk(&format!("run {} of {}: {per_second}", repetition + 1, args.repeat));
    Ok(())
}
