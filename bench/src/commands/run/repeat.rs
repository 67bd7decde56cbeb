//! `haltkick run --repeat N`: the same cell so many times, each with its lock-free companion and a seed of its own; one record
//! each, and the estimates that they give together.

use std::collections::BTreeMap;

use haltkick_vmm::{Found, Image, Instruments, RunConfig};

use crate::analysis::summary::Summary;
use crate::analysis::trust;
use crate::cli::{Format, RunArgs};
use crate::commands::interrupt;
use crate::experiment::names::beside;
use crate::experiment::outline::Outline;
use crate::experiment::place::{Place, Role};
use crate::host::identity::Host;
use crate::host::noise;
use crate::measure::engine::{self, Engine};
use crate::record::Record;
use crate::show::table::{self, Detail};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::quantity::si;

/// What its records call the experiment.
const NAME: &str = "run";

pub(super) fn run(
    args: &RunArgs,
    config: &RunConfig,
    image: &Image,
    instruments: Instruments,
) -> Result<Exit> {
    let stop = interrupt::catch()?;
    let (engine, host) = (engine::kvm(image, &stop, instruments.live), Host::probe());
    let (mut records, mut ending) = (Vec::new(), Ok(()));
    for repetition in 0..args.repeat {
        match once(args, config, image, (&engine, &host), repetition) {
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
    let outline = outline(args, config);
    if args.format == Format::Table && !records.is_empty() {
        output::data(&table::summary(&Summary::new(&outline, &records), Detail::Verbose))?;
    }
    // What ended it early is the reason for whatever went wrong then.
    ending.map(|()| if trust::lost(&outline, &records).is_empty() { Exit::Done } else { Exit::Untrusted })
}

fn once(
    args: &RunArgs,
    config: &RunConfig,
    image: &Image,
    (engine, host): (Engine<'_>, &Host),
    repetition: u32,
) -> Result<Vec<Record>> {
    let config = with_seed(config, repetition);
    let place = Place {
        experiment: NAME.into(),
        cell_id: NAME.into(),
        arm: config.lock.clone(),
        role: Role::Arm,
        setting: BTreeMap::new(),
        block: repetition,
        order_index: u64::from(repetition),
        replaces: vec![],
    };
    let ran = engine::run_cell(engine, &noise::around, &config).map_err(|error| {
        let failure = Failure::from(error);
        Failure { message: format!("run {} of {}: {failure}", repetition + 1, args.repeat), ..failure }
    })?;
    let lock_free = |found: &Found| {
        if args.no_ideal {
            return Err("not asked for (--no-ideal)".into());
        }
        let work_rate = found.outcomes().next().expect("a run has a guest").work_rate;
        engine::companion(engine, &config, image, work_rate)
            .map_err(|error| format!("the lock-free companion run failed: {error}").into())
    };
    Ok(engine::records(ran, &config, host, Some(&place), lock_free))
}

/// The same, with another seed for everything random.
fn with_seed(config: &RunConfig, repetition: u32) -> RunConfig {
    RunConfig {
        seed: config.seed.wrapping_add(u64::from(repetition)),
        beside: config.beside.iter().map(|guest| with_seed(guest, repetition)).collect(),
        ..config.clone()
    }
}

/// What the records are sorted by: one arm at no setting, and the guests beside its first.
fn outline(args: &RunArgs, config: &RunConfig) -> Outline {
    let others = config.beside.iter().map(|guest| beside(&config.lock, &guest.name));
    Outline {
        experiment: NAME.into(),
        title: format!("{} runs of {}", args.repeat, config.lock),
        blocks: args.repeat,
        arms: std::iter::once(config.lock.clone()).chain(others).collect(),
        ..Outline::default()
    }
}

/// For programs the records; for people a sign of life.
fn tell(args: &RunArgs, repetition: u32, records: &[Record]) -> Result<()> {
    if args.format == Format::Json {
        return records
            .iter()
            .try_for_each(|record| output::data(&format!("{}\n", output::to_json(record)?)));
    }
    let per_second = records.iter().map(|record| format!("{}/s", si(record.totals.acquisitions_per_second)));
    let per_second = per_second.collect::<Vec<_>>().join(", ");
    output::talk(&format!("run {} of {}: {per_second}", repetition + 1, args.repeat));
    Ok(())
}
