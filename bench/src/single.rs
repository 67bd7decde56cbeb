//! `haltkick run`: one cell, its lock-free companion, one record.

use std::cell::RefCell;
use std::path::Path;

use haltkick_vmm::{Image, Instruments, PROFILE_PERIODS, Profile, Readings, RunConfig};
use serde::Serialize;

use crate::cli::{Format, RunArgs};
use crate::cpulist;
use crate::duration::Span;
use crate::exit::{Exit, Failure, Result};
use crate::experiment;
use crate::failure::FailureRecord;
use crate::host::Host;
use crate::interrupt;
use crate::linux;
use crate::output;
use crate::print;
use crate::profile;
use crate::record::Record;
use crate::run::{self, Engine};
use crate::settings::{Settings, Supply};
use crate::several;
use crate::trace::TraceFile;

pub(crate) fn run(args: &RunArgs) -> Result<Exit> {
    if let Some(kernel) = &args.kernel {
        return linux::run(args, kernel);
    }
    let image = load(args.guest.as_deref())?;
    let allowed = cpulist::allowed()?;
    let config = settings(args)?
        .resolve(Supply { image: &image, allowed: &allowed })
        .map_err(|wrong| Failure::usage(format!("--{}: {}", wrong.key, wrong.message)))?;
    if args.perf_map {
        write_perf_map(&config, &image)?;
    }
    if !config.beside.is_empty() {
        return several::run(args, &config, &image);
    }
    let instruments = instruments(args)?;
    let trace_file = args.trace.as_deref().map(TraceFile::create).transpose()?;
    let stop = interrupt::catch()?;
    let readings: RefCell<Option<Readings>> = RefCell::default();
    let engine = |config: &RunConfig| {
        let mut read = Readings::default();
        // Only the run that was asked for is looked at, not the lock-free one that follows.
        let first = readings.borrow().is_none();
        let instruments = if first { instruments.clone() } else { Instruments::default() };
        let result = run::kvm_with_readings(config, &image, &stop, &instruments, &mut read);
        readings.borrow_mut().get_or_insert(read);
        result
    };
    let measured = measure(&engine, &config, &image, args.no_ideal);
    let readings = readings.take().unwrap_or_default();
    let traced = match (trace_file, &readings.trace) {
        (Some(file), Some(trace)) => Some(file.write(trace)?),
        _ => None,
    };
    if let Some(traced) = &traced {
        output::talk(&traced.story());
    }
    match measured {
        Ok(record) => conclude(Record { trace: traced, ..record }, readings.profile.as_ref(), args.format),
        Err(failure) => {
            if args.format == Format::Json
                && let Some(record) = FailureRecord::new(&config, &failure, readings)
            {
                output::data(&format!("{}\n", to_json(&record)?))?;
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

/// What the flags say, over what the guest set says.
fn settings(args: &RunArgs) -> Result<Settings> {
    let Some(path) = &args.guest_set else { return Ok(args.settings.clone()) };
    if !args.settings.vm.is_empty() {
        return Err(Failure::usage("--vm and --guest-set say the same thing in two places: use one"));
    }
    Ok(args.settings.clone().over(&experiment::guest_set(path)?))
}

/// The image to run: a file, or the one that was built with this program.
pub(crate) fn load(guest: Option<&Path>) -> Result<Image> {
    Ok(guest.map_or_else(|| Ok(Image::embedded()), Image::from_file)?)
}

/// Where `perf` looks for the symbols of code that no file holds.
fn write_perf_map(config: &RunConfig, image: &Image) -> Result<()> {
    if config.engine != haltkick_vmm::Engine::Threads {
        return Err(Failure::usage("--perf-map: only --engine threads runs the guest in this process"));
    }
    let path = format!("/tmp/perf-{}.map", std::process::id());
    std::fs::write(&path, image.symbols().perf_map())
        .map_err(|error| Failure::internal(format!("{path}: {error}")))
}

fn measure(engine: Engine<'_>, config: &RunConfig, image: &Image, no_ideal: bool) -> Result<Record> {
    let entry = |entries: &[haltkick_vmm::Entry], name: &str| {
        entries.iter().find(|entry| entry.name == name).cloned()
    };
    let lock_free = entry(&image.locks, &config.lock).is_some_and(|lock| lock.is_lock_free());
    let mut records = run::run_cell(engine, config, &Host::probe(), None, |outcome| {
        if lock_free {
            return Ok(run::per_second(outcome));
        }
        if no_ideal {
            return Err("not asked for (--no-ideal)".into());
        }
        run::companion(engine, config, image, outcome.work_rate)
            .map_err(|error| format!("the lock-free companion run failed: {error}"))
    })?;
    Ok(records.remove(0))
}

fn show(record: &Record, format: Format) -> Result<()> {
    match format {
        Format::Json => output::data(&format!("{}\n", to_json(record)?)),
        Format::Table => output::data(&print::record(record)),
    }?;
    for warning in &record.warnings {
        output::talk(&format!("haltkick: not to be trusted: {}", warning.message));
    }
    Ok(())
}

/// The record as one line of JSON.
pub(crate) fn to_json(record: &impl Serialize) -> Result<String> {
    serde_json::to_string(record).map_err(|error| Failure::internal(format!("the record as JSON: {error}")))
}
