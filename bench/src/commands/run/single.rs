//! One guest: a run, its lock-free companion, one record.

use std::cell::RefCell;

use haltkick_vmm::{Image, Instruments, PROFILE_PERIODS, Profile, Readings, RunConfig};

use super::trace::{self, TraceFile};
use crate::cli::{Format, RunArgs};
use crate::commands::interrupt;
use crate::host::identity::Host;
use crate::host::noise;
use crate::measure::engine::{self, Engine};
use crate::record::Record;
use crate::record::failure::FailureRecord;
use crate::show;
use crate::show::profile;
use crate::text::duration::Span;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

pub(crate) fn run(
    args: &RunArgs,
    config: &RunConfig,
    image: &Image,
    instruments: &Instruments,
    trace_file: Option<TraceFile>,
) -> Result<Exit> {
    let stop = interrupt::catch()?;
    let readings: RefCell<Option<Readings>> = RefCell::default();
    let engine = |config: &RunConfig| {
        let mut read = Readings::default();
        // Only the run that was asked for is looked at, not the lock-free one that follows.
        let first = readings.borrow().is_none();
        let instruments = if first { instruments.clone() } else { Instruments::default() };
        let result = engine::kvm_with_readings(config, image, &stop, &instruments, &mut read);
        readings.borrow_mut().get_or_insert(read);
        result
    };
    let measured = measure(&engine, config, image, args.no_ideal);
    let readings = readings.take().unwrap_or_default();
    let (traced, written) = trace::write(trace_file, readings.trace.as_ref());
    match measured {
        Ok(record) => {
            let exit = conclude(Record { trace: traced, ..record }, readings.profile.as_ref(), args.format)?;
            written.map(|()| exit)
        }
        Err(failure) => {
            if args.format == Format::Json
                && let Some(record) = FailureRecord::new(config, &failure, readings)
            {
                output::data(&format!("{}\n", output::to_json(&record)?))?;
            }
            Err(failure)
        }
    }
}

/// What the run is to be looked at with.
pub(crate) fn instruments(args: &RunArgs) -> Result<Instruments> {
    let profile = args.profile.map(|period| period.0);
    let (shortest, longest) = PROFILE_PERIODS;
    if let Some(period) = profile.filter(|period| !(shortest..=longest).contains(period)) {
        return Err(Failure::usage(format!(
            "--profile: a period of {} is out of range: {} to {}",
            Span(period),
            Span(shortest),
            Span(longest)
        )));
    }
    Ok(Instruments { profile, trace: args.trace.is_some() })
}

pub(crate) fn conclude(mut record: Record, profile: Option<&Profile>, format: Format) -> Result<Exit> {
    if let Some(profile) = profile {
        let json = serde_json::to_value(profile);
        record.profile =
            Some(json.map_err(|error| Failure::internal(format!("the profile as JSON: {error}")))?);
    }
    show(&record, format)?;
    if let (Some(profile), Format::Table) = (profile, format) {
        output::data(&format!("\n{}", profile::table(profile)))?;
    }
    Ok(if record.trusted { Exit::Done } else { Exit::Untrusted })
}

fn measure(engine: Engine<'_>, config: &RunConfig, image: &Image, no_ideal: bool) -> Result<Record> {
    let entry = |entries: &[haltkick_vmm::Entry], name: &str| {
        entries.iter().find(|entry| entry.name == name).cloned()
    };
    let lock_free = entry(&image.locks, &config.lock).is_some_and(|lock| lock.is_lock_free());
    let mut records = engine::run_cell(engine, &noise::around, config, &Host::probe(), None, |outcome| {
        if lock_free {
            return Ok(engine::per_second(outcome));
        }
        if no_ideal {
            return Err("not asked for (--no-ideal)".into());
        }
        engine::companion(engine, config, image, outcome.work_rate)
            .map_err(|error| format!("the lock-free companion run failed: {error}"))
    })?;
    Ok(records.remove(0))
}

fn show(record: &Record, format: Format) -> Result<()> {
    match format {
        Format::Json => output::data(&format!("{}\n", output::to_json(record)?)),
        Format::Table => output::data(&show::record::record(record)),
    }?;
    for warning in &record.warnings {
        output::talk(&format!("haltkick: not to be trusted: {}", warning.message));
    }
    Ok(())
}
