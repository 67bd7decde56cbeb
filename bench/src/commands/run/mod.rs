//! `haltkick run`: guests of ours, or Linux.

mod guests;

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haltkick_vmm::{Engine, Image, Instruments, Needs, Run, printable};

use crate::cli::{Format, RunArgs};
use crate::commands::{guest_image, interrupt};
use crate::experiment::Boot;
use crate::host::identity::Host;
use crate::host::{cpulist, noise};
use crate::measure::calibrate::Calibration;
use crate::record::Record;
use crate::results::directory::{OpenedFile, create_anew};
use crate::results::live::LiveFile;
use crate::settings::{Supply, rounds};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::{experiment, measure, show};

pub(crate) fn run(args: &RunArgs) -> Result<Exit> {
    if let Some(kernel) = &args.linux.kernel {
        return boot(args, kernel);
    }
    let flags = args.settings.clone();
    let settings = match &args.guest_set {
        Some(path) => flags.over(&experiment::read_guest_set(path)?),
        None => flags,
    };
    let image = guest_image::load(args.image.guest.as_deref(), settings.locks())?;
    let allowed = cpulist::allowed()?;
    let run = settings.resolve(Supply { image: &image, allowed: &allowed })?;
    guest_image::say_before(&allowed, std::iter::once(&run));
    guest_image::check_trust(&args.image, &image, std::iter::once(&run.engine))?;
    // All that can be refused is refused before a guest starts, that of the calibration included.
    haltkick_vmm::check_guests(&run, &image)?;
    let instruments = instruments(args, &run.engine)?;
    if let Some(path) =
        args.trace.as_ref().filter(|it| it.extension().is_some_and(|it| it.eq_ignore_ascii_case("json")))
    {
        let (json, named) = (path.display(), path.with_extension("pftrace"));
        return Err(Failure::usage(format!(
            "--trace {json}: the trace is Perfetto's own format, and no JSON: write --trace {}",
            named.display()
        )));
    }
    if args.perf_map {
        write_perf_map(&run, &image)?;
    }
    // Before the guest starts: a long run is not lost to a wrong path. Once it is open, no other file needs to be written.
    let trace = args.trace.as_deref().map(|path| OpenedFile::open("--trace", path)).transpose()?;
    let folded = args.folded.as_deref().map(|path| OpenedFile::open("--folded", path)).transpose()?;
    let live = run.live.then(LiveFile::of_process).transpose()?;
    let instruments = Instruments { live: live.as_ref().map(LiveFile::live), ..instruments };
    let needs = Needs { looked_into: args.perf_map, ..Needs::of([&run]) };
    guest_image::confine(&needs)?;
    let run = calibrated(run, &image)?;
    let ended = match args.repeat > 1 {
        true => guests::repeat(args, &run, &image, instruments),
        false => guests::run(args, &run, &image, &instruments, (trace, folded)),
    }?;
    rounds::tell_of_too_few(std::iter::once(&run));
    Ok(ended)
}

/// Boots a Linux kernel, runs it to its end, prints its record. Its console goes to stderr as it comes, its record to stdout at the end.
fn boot(args: &RunArgs, kernel: &str) -> Result<Exit> {
    let image = Image::embedded();
    let allowed = cpulist::allowed()?;
    let boot = Boot {
        kernel: kernel.into(),
        initrd: args.linux.initrd.as_ref().map(Into::into),
        words: args.linux.append.clone().unwrap_or_default(),
        marker: args.linux.marker.as_deref(),
        inside: args.linux.workload_inside.as_deref(),
    };
    let run = boot.run(&args.settings, Supply { image: &image, allowed: &allowed })?;
    guest_image::say_before(&allowed, std::iter::once(&run));
    haltkick_vmm::check_guests(&run, &image)?;
    guest_image::confine(&Needs::of([&run]))?;
    let stop = interrupt::catch()?;
    let shows = || Arc::new(|line: &str| output::pass_on(&printable(line)));
    let engine = |run: &Run| measure::linux::boot(run, &image, shows(), &stop);
    let (seen, origin) = measure::engine::run_cell(&engine, &noise::around, &run, &Host::probe())?;
    let record = measure::linux::record(&run, &seen, &origin, None);
    tell(&record, args.format)?;
    match measure::linux::ending(&seen).1 {
        Some(failure) => Err(failure),
        None if record.trusted => Ok(Exit::Done),
        None => Ok(Exit::Untrusted),
    }
}

/// Mean time between the samples of a pCPU, unless it is said.
const DEFAULT_PERIOD: Duration = Duration::from_millis(1);

fn instruments(args: &RunArgs, engine: &Engine) -> Result<Instruments> {
    let profile = args.profile.map(|period| period.map_or(DEFAULT_PERIOD, |period| period.0));
    if engine.is_simulated() && args.profile.flatten().is_some() {
        return Err(Failure::usage(
            "--profile=TIME: a simulated machine counts all time instead of samples: leave =TIME out",
        ));
    }
    let instruments = Instruments { profile, trace: args.trace.is_some(), ..Instruments::default() };
    instruments.check()?;
    Ok(instruments)
}

/// The run with the work rate of this host, unless one was given.
fn calibrated(run: Run, image: &Image) -> Result<Run> {
    if run.work_rate.is_some() {
        return Ok(run);
    }
    let stop = interrupt::catch()?;
    let engine = measure::engine::kvm(image, &stop, None);
    let work_rate = Some(Calibration::measure(&engine, &run, image, 1)?.work_rate);
    Ok(Run { work_rate, ..run })
}

/// Shows a record, and what speaks against it. A failure is told as one.
fn tell(record: &Record, format: Format) -> Result<()> {
    match format {
        Format::Json => output::json(record),
        Format::Table => output::data(&show::record::record(record)),
    }?;
    for warning in record.warnings.iter().filter(|it| record.failure.as_ref() != Some(&it.message)) {
        output::talk(&format!("haltkick: invalid run: {}", warning.message));
    }
    Ok(())
}

/// Writes the file in which `perf` looks for the symbols of code that no file holds.
fn write_perf_map(run: &Run, image: &Image) -> Result<()> {
    if run.engine != Engine::Threads {
        return Err(Failure::usage("--perf-map: only --engine threads runs the guest in this process"));
    }
    let path = format!("/tmp/perf-{}.map", std::process::id());
    let mut file = create_anew(Path::new(&path)).map_err(|error| {
        Failure::usage(format!(
            "--perf-map: {path}: {error}: remove what is there, it is none of this user's maps"
        ))
    })?;
    file.write_all(image.symbols().perf_map().as_bytes())
        .map_err(|error| Failure::internal(format!("--perf-map: {path}: {error}")))
}
