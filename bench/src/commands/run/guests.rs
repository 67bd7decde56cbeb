//! Our own guests: all of a run at once, their lock-free companions, one record each, joined by the run's id. A guest that
//! dies leaves the records of the others, which say so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use haltkick_vmm::{
    AnyOutcome, Explanation, Found, Image, Instruments, Known, OurGuest, Profile, Run, RunError, Trace,
    VirtualTime,
};

use crate::analysis::summary::Summary;
use crate::cli::{Format, RunArgs};
use crate::commands::interrupt;
use crate::experiment::outline::Outline;
use crate::experiment::plan::Cell;
use crate::host::identity::Host;
use crate::host::noise;
use crate::measure::engine::{self, Engine, companion};
use crate::measure::fill::{record, records};
use crate::measure::progress::shown;
use crate::record::figures::THROUGHPUT;
use crate::record::place::{Role, beside};
use crate::record::{FailureRecord, Record, Traced};
use crate::results::directory::OpenedFile;
use crate::show;
use crate::show::table::{self, Detail};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::quantity::si;

/// Runs the guests, and writes a trace and folded stacks in addition to their records where there are files for them.
pub(super) fn run(
    args: &RunArgs,
    run: &Run,
    image: &Image,
    instruments: &Instruments,
    (trace, folded): (Option<OpenedFile>, Option<OpenedFile>),
) -> Result<Exit> {
    let stop = interrupt::catch()?;
    let engine = |run: &Run| Ok(run_guests(run, image, &stop, instruments)?.into());
    let (seen, origin) = engine::run_cell(&engine, &noise::around, run, &Host::probe())?;
    let mut found = seen.found;
    let traced = trace.zip(found.trace.as_ref()).map(|(file, trace)| written(&file, trace));
    // A disk that is full costs the trace, not the run.
    let (traced, unwritten) =
        traced.transpose().map_or_else(|failure| (None, Some(failure)), |it| (it, None));
    let lock_free = lock_free(args, run, image, &found, &stop);
    let dead: Vec<String> =
        found.guests.iter().filter(|guest| guest.result.is_err()).map(|guest| guest.name.clone()).collect();
    let is_alone = found.guests.len() == 1;
    let (mut failed, mut trusted) = (None, true);
    let ended = std::mem::take(&mut found.guests);
    for (guest, asked) in ended.into_iter().zip(run.ours()) {
        let outcome = match guest.result {
            Ok(AnyOutcome::Ours(outcome)) => outcome,
            Ok(AnyOutcome::Linux(_)) => continue,
            Err(error) => {
                let of = (asked, is_alone);
                let failure = tell_failure(args, of, error.into(), guest.console, guest.explanation)?;
                failed.get_or_insert(failure);
                continue;
            }
        };
        let mut record = record(asked, &outcome, &found, &origin, None, &lock_free);
        if !dead.is_empty() {
            let message = format!("guest {} died meanwhile: this one had more of the pCPUs", dead.join(", "));
            record.warn("guest-died", message);
        }
        record.trace = traced.clone().filter(|_| asked.index == 0);
        if args.format == Format::Table && asked.index > 0 {
            output::data("\n")?;
        }
        trusted &= record.trusted;
        // A profile and a trace are of all guests, and come with the first.
        let profile = found.profile.as_ref().filter(|_| asked.index == 0);
        if let (Some(file), Some(profile)) = (&folded, profile) {
            file.write(show::profile::folded(profile, &asked.ours.lock).as_bytes())?;
        }
        tell(record, profile, args.format)?;
    }
    match failed.or(unwritten) {
        Some(failure) => Err(failure),
        None => Ok(if trusted { Exit::Done } else { Exit::Untrusted }),
    }
}

fn written(file: &OpenedFile, trace: &Trace) -> Result<Traced> {
    let bytes = file.fill(|file| trace.write(file)).map_err(|failure| Failure {
        message: format!("--trace: {failure}: the record is complete, the trace is lost"),
        ..failure
    })?;
    let (host_events, host_events_dropped) = trace.host_events();
    let (guest_sections, guest_sections_dropped) = trace.guest_sections();
    let traced = Traced {
        path: file.path.display().to_string(),
        bytes,
        host_events,
        host_events_dropped,
        guest_sections,
        guest_sections_dropped,
        guest_sections_implausible: trace.implausible_sections(),
        missing: trace.missing().to_vec(),
    };
    output::talk(&traced.story());
    Ok(traced)
}

/// Runs the guests, and shows how far a simulated machine is.
fn run_guests(
    run: &Run,
    image: &Image,
    stop: &AtomicBool,
    instruments: &Instruments,
) -> std::result::Result<Found, RunError> {
    if !run.engine.is_simulated() {
        return haltkick_vmm::run(run, image, instruments, stop);
    }
    let virtual_time = Arc::new(VirtualTime::default());
    let instruments = Instruments { virtual_time: Some(Arc::clone(&virtual_time)), ..instruments.clone() };
    shown(&virtual_time, run.warmup + run.window, || haltkick_vmm::run(run, image, &instruments, stop))
}

/// Throughput of each guest without a lock, or why it is not known.
fn lock_free(args: &RunArgs, run: &Run, image: &Image, found: &Found, stop: &AtomicBool) -> Known<Vec<f64>> {
    let Some(first) = found.outcomes().next() else { return Err("no guest lived".into()) };
    if found.failed().is_some() {
        return Err("a guest died, so that there is nothing to compare with".into());
    }
    let is_lock_free = |name: &str| image.locks.iter().any(|lock| lock.name == name && lock.is_lock_free());
    if let [guest] = &run.guests[..]
        && guest.ours().is_some_and(|ours| is_lock_free(&ours.lock))
    {
        return Ok(engine::per_second(found));
    }
    if args.no_ideal {
        return Err("not asked for (--no-ideal)".into());
    }
    let (real, instruments) = (engine::kvm(image, stop, None), Instruments::default());
    let either = |run: &Run| match run.engine.is_simulated() {
        true => Ok(run_guests(run, image, stop, &instruments)?.all()?.into()),
        false => real(run),
    };
    companion(&either, run, image, first.work_rate)
}

fn tell(mut record: Record, profile: Option<&Profile>, format: Format) -> Result<()> {
    if let Some(profile) = profile {
        let json = serde_json::to_value(profile);
        record.profile =
            Some(json.map_err(|error| Failure::internal(format!("the profile as JSON: {error}")))?);
    }
    super::tell(&record, format)?;
    if let (Some(profile), Format::Table) = (profile, format) {
        output::data(&format!("\n{}", show::profile::table(profile)))?;
    }
    Ok(())
}

/// Tells of a guest that failed: a page for people, and where it was the only one a record for programs.
fn tell_failure(
    args: &RunArgs,
    (asked, is_alone): (OurGuest<'_>, bool),
    failure: Failure,
    console: String,
    explanation: Option<Explanation>,
) -> Result<Failure> {
    let story = show::record::story(&console, explanation.as_ref());
    if !story.is_empty() {
        output::talk(&story);
    }
    if !is_alone {
        return Ok(Failure { message: format!("guest `{}`: {failure}", asked.guest.name), ..failure });
    }
    if args.format == Format::Json
        && let Some(explanation) = explanation
    {
        let record = FailureRecord::new(asked, &failure, console, explanation);
        output::json(&record)?;
    }
    Ok(failure)
}

/// Name of the experiment in its records.
const NAME: &str = "run";

/// `haltkick run --repeat N`: the same cell N times, each with its lock-free companion and a seed of its own; one record
/// each, and the estimates that they give together.
pub(super) fn repeat(args: &RunArgs, run: &Run, image: &Image, instruments: Instruments) -> Result<Exit> {
    let stop = interrupt::catch()?;
    let (engine, host) = (engine::kvm(image, &stop, instruments.live), Host::probe());
    let (mut records, mut ending) = (Vec::new(), Ok(()));
    for repetition in 0..args.repeat {
        match once(args, run, image, (&engine, &host, &stop), repetition) {
            Ok(of_run) => {
                tell_of(args, repetition, &of_run)?;
                records.extend(of_run);
            }
            Err(failure) => {
                ending = Err(failure);
                break;
            }
        }
    }
    let summary = Summary::new(&outline(args, run), &records);
    if args.format == Format::Table && !records.is_empty() {
        output::data(&table::summary(&summary, Detail::Verbose))?;
    }
    // The reason for an early end comes first: it explains whatever went wrong then.
    ending.map(|()| if summary.lost.is_empty() { Exit::Done } else { Exit::Untrusted })
}

fn once(
    args: &RunArgs,
    run: &Run,
    image: &Image,
    (engine, host, stop): (Engine<'_>, &Host, &AtomicBool),
    repetition: u32,
) -> Result<Vec<Record>> {
    let mut run = run.clone();
    for guest in &mut run.guests {
        guest.seed = guest.seed.wrapping_add(u64::from(repetition));
    }
    let cell = Cell {
        id: NAME.into(),
        arm: run.our(0).ours.lock.clone(),
        role: Role::Arm,
        setting: BTreeMap::new(),
        run,
        ideal: None,
    };
    let (run, place) = (&cell.run, cell.place(NAME, repetition, u64::from(repetition)));
    let (seen, origin) = engine::run_cell(engine, &noise::around, run, host).map_err(|error| {
        let failure = Failure::from(error);
        Failure { message: format!("run {} of {}: {failure}", repetition + 1, args.repeat), ..failure }
    })?;
    let found = &seen.found;
    let lock_free = lock_free(args, run, image, found, stop);
    Ok(records(run, found, &origin, Some(&place), &lock_free))
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
fn tell_of(args: &RunArgs, repetition: u32, records: &[Record]) -> Result<()> {
    if args.format == Format::Json {
        return records.iter().try_for_each(output::json);
    }
    let per_second = records.iter().map(|record| format!("{}/s", si(record.amount(THROUGHPUT))));
    let per_second = per_second.collect::<Vec<_>>().join(", ");
    output::talk(&format!("run {} of {}: {per_second}", repetition + 1, args.repeat));
    Ok(())
}
