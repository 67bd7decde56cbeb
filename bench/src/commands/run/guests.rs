//! Our own guests: all of a run at once, their lock-free companions, one record each, joined by the run's id. A guest that
//! dies leaves the records of the others, which say so.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use haltkick_vmm::{
    Ended, Image, Instruments, Known, Outcome, Profile, Readings, RunConfig, RunError, VirtualTime,
};

use super::trace::{self, TraceFile};
use crate::cli::{Format, RunArgs};
use crate::commands::interrupt;
use crate::host::identity::Host;
use crate::host::noise::{self, Watch};
use crate::measure::origin::Origin;
use crate::measure::progress::{WORTH_SAYING, shown};
use crate::measure::{engine, judge};
use crate::record::Record;
use crate::record::failure::FailureRecord;
use crate::results::opened::OpenedFile;
use crate::settings::simulated_for;
use crate::show;
use crate::text::duration::Span;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

/// What is written beside the record.
pub(super) struct Files {
    pub(super) trace: Option<TraceFile>,
    pub(super) folded: Option<OpenedFile>,
}

pub(super) fn run(
    args: &RunArgs,
    config: &RunConfig,
    image: &Image,
    instruments: &Instruments,
    files: Files,
) -> Result<Exit> {
    let stop = interrupt::catch()?;
    if config.simulated.is_some() && simulated_for(config) > WORTH_SAYING {
        output::talk(&format!(
            "simulates {} pCPUs: about {}",
            config.cpus.len(),
            Span(simulated_for(config))
        ));
    }
    let (started, watch) = (SystemTime::now(), Watch::start(&config.cpus));
    let ended = run_guests(config, image, &stop, instruments)?;
    let noise = if config.simulated.is_some() { Err(noise::SIMULATED.into()) } else { watch.finish() };
    let origin = Origin::new(started, Host::probe(), noise);
    // Profile and trace are of all guests, and come with the first.
    let (traced, written) = trace::write(files.trace, ended[0].readings.trace.as_ref());
    let lock_free = lock_free(args, config, image, &ended, &stop);
    let dead: Vec<String> =
        ended.iter().filter(|ended| ended.result.is_err()).map(|ended| ended.name.clone()).collect();
    let is_alone = ended.len() == 1;
    let (mut failed, mut trusted) = (None, true);
    for (index, (ended, config)) in ended.into_iter().zip(engine::guests(config)).enumerate() {
        let Ended { name: _, result, readings } = ended;
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(error) => {
                let failure = tell_failure(args, config, is_alone, error, readings)?;
                failed.get_or_insert(failure);
                continue;
            }
        };
        let lock_free = lock_free.as_ref().map(|each| each[index]).map_err(Clone::clone);
        let mut record = Record::new(config, &outcome, origin.context(None, lock_free));
        judge::judge(&mut record, config, &outcome, origin.tick_resolution());
        if !dead.is_empty() {
            let message = format!("guest {} died meanwhile: this one had more of the pCPUs", dead.join(", "));
            record.warn("guest-died", message);
        }
        record.trace = traced.clone().filter(|_| index == 0);
        if args.format == Format::Table && index > 0 {
            output::data("\n")?;
        }
        trusted &= record.trusted;
        if let (Some(file), Some(profile)) = (&files.folded, &readings.profile) {
            file.write(show::profile::folded(profile, &config.lock).as_bytes())?;
        }
        tell(record, readings.profile.as_ref(), args.format)?;
    }
    match failed {
        Some(failure) => Err(failure),
        None => written.map(|()| if trusted { Exit::Done } else { Exit::Untrusted }),
    }
}

/// Runs the guests, and shows how far a simulated machine is.
fn run_guests(
    config: &RunConfig,
    image: &Image,
    stop: &AtomicBool,
    instruments: &Instruments,
) -> std::result::Result<Vec<Ended>, RunError> {
    if config.simulated.is_none() {
        return haltkick_vmm::run_guests(config, image, stop, instruments);
    }
    let virtual_time = Arc::new(VirtualTime::default());
    let instruments = Instruments { virtual_time: Some(Arc::clone(&virtual_time)), ..instruments.clone() };
    shown(&virtual_time, config.warmup + config.window, || {
        haltkick_vmm::run_guests(config, image, stop, &instruments)
    })
}

/// Throughput of each guest without a lock, or why it is not known.
fn lock_free(
    args: &RunArgs,
    config: &RunConfig,
    image: &Image,
    ended: &[Ended],
    stop: &AtomicBool,
) -> Known<Vec<f64>> {
    let outcomes: Vec<&Outcome> = ended.iter().filter_map(|ended| ended.result.as_ref().ok()).collect();
    let [first, ..] = outcomes[..] else { return Err("no guest lived".into()) };
    if outcomes.len() < ended.len() {
        return Err("a guest died, so that there is nothing to compare with".into());
    }
    let is_lock_free = |name: &str| image.locks.iter().any(|lock| lock.name == name && lock.is_lock_free());
    if config.beside.is_empty() && is_lock_free(&config.lock) {
        return Ok(engine::per_second(first));
    }
    if args.no_ideal {
        return Err("not asked for (--no-ideal)".into());
    }
    let (real, simulator) = (engine::kvm(image, stop, None), engine::simulator(image, stop, None));
    let either = |config: &RunConfig| {
        if config.simulated.is_none() {
            return real(config);
        }
        let virtual_time = Arc::new(VirtualTime::default());
        shown(&virtual_time, config.warmup + config.window, || simulator(config, Arc::clone(&virtual_time))).0
    };
    engine::companion(&either, config, image, first.work_rate)
        .map_err(|error| format!("the lock-free companion run failed: {error}").into())
}

/// Shows a record, and what speaks against it.
fn tell(mut record: Record, profile: Option<&Profile>, format: Format) -> Result<()> {
    if let Some(profile) = profile {
        let json = serde_json::to_value(profile);
        record.profile =
            Some(json.map_err(|error| Failure::internal(format!("the profile as JSON: {error}")))?);
    }
    match format {
        Format::Json => output::data(&format!("{}\n", output::to_json(&record)?)),
        Format::Table => output::data(&show::record::record(&record)),
    }?;
    for warning in &record.warnings {
        output::talk(&format!("haltkick: not to be trusted: {}", warning.message));
    }
    if let (Some(profile), Format::Table) = (profile, format) {
        output::data(&format!("\n{}", show::profile::table(profile)))?;
    }
    Ok(())
}

/// Tells of a guest that failed: a page for people, and where it was the only one a record for programs.
fn tell_failure(
    args: &RunArgs,
    config: &RunConfig,
    is_alone: bool,
    error: RunError,
    readings: Readings,
) -> Result<Failure> {
    let story = show::failure::story(&readings);
    if !story.is_empty() {
        output::talk(&story);
    }
    let failure = Failure::from(error);
    if !is_alone {
        return Ok(Failure { message: format!("guest `{}`: {failure}", config.name), ..failure });
    }
    if args.format == Format::Json
        && let Some(record) = FailureRecord::new(config, &failure, readings)
    {
        output::data(&format!("{}\n", output::to_json(&record)?))?;
    }
    Ok(failure)
}
