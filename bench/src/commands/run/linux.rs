//! `haltkick run --kernel`: a Linux guest. Its console goes to stderr as it comes, its record to stdout at the end.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use haltkick_vmm::{
    Image, LinuxConsole, LinuxEnd, LinuxGuest, Needs, RunConfig, Target, printable, run_linux,
};

use crate::cli::{Format, RunArgs};
use crate::commands::interrupt;
use crate::experiment::user_defaults;
use crate::host::cpulist;
use crate::host::identity::Host;
use crate::host::noise::Watch;
use crate::measure::console::Heard;
use crate::measure::{self, origin::Origin};
use crate::record::linux::LinuxRecord;
use crate::settings::choices::DescheduleChoice;
use crate::settings::deschedule::Policy;
use crate::settings::value::Value;
use crate::settings::{Linux, Supply, table};
use crate::show;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;
use crate::text::quantity::time_ns;

/// Enough for a distribution's kernel and a small initramfs.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// What kernels say before they start the first program, unless they are told to be quiet.
const DEFAULT_MARKER: &str = "Run /";

/// Boots the kernel of `args`, runs it to its end, prints its record.
pub(crate) fn run(args: &RunArgs, kernel: &Path) -> Result<Exit> {
    refuse_what_is_for_our_own_guest(args)?;
    let image = Image::embedded();
    let allowed = cpulist::allowed()?;
    // What is for our own guest only says nothing here.
    let is_used = |key: &str| table::find(key).is_some_and(|setting| setting.linux == Linux::Used);
    let defaults = user_defaults::of_user()?.only(is_used)?;
    defaults.told().iter().for_each(|line| output::talk(line));
    let config = super::resolve(&args.settings, &defaults, Supply { image: &image, allowed: &allowed })?;
    let settings = args.settings.clone().over(&defaults.settings);
    // Unlike a lock's, these are there unless somebody hides them.
    let config = RunConfig { pv: settings.given("pv").is_none_or(Value::is_on), ..config };
    let linux = LinuxGuest {
        kernel: kernel.into(),
        initrd: args.initrd.clone(),
        append: args.append.clone().unwrap_or_default(),
        memory_bytes: settings.given("memory").map_or(DEFAULT_MEMORY_BYTES, Value::bytes),
        marker: args.marker.clone().unwrap_or_else(|| DEFAULT_MARKER.into()),
        limit: settings.given("window").map(Value::time),
    };
    let reads = std::iter::once(&linux.kernel).chain(&linux.initrd).cloned().collect();
    haltkick_vmm::confine_process(&Needs { reads, ..Needs::default() })?;
    let stop = interrupt::catch()?;
    let (started, watch) = (SystemTime::now(), Watch::start(&config.cpus));
    let heard = Arc::new(Mutex::new(Heard::default()));
    let hears = Arc::clone(&heard);
    let console = LinuxConsole {
        hears: Box::new(move |line| hears.lock().unwrap_or_else(PoisonError::into_inner).hear(line)),
        shows: Box::new(|line| output::pass_on(&printable(line))),
    };
    let warn = |obstacle: &str| {
        output::talk(&format!(
            "haltkick: {obstacle}: a kernel, which lives there, may take hours to boot or not run at all; use a host with VMX or SVM"
        ));
    };
    let outcome = run_linux(&config, &linux, console, warn, &stop)?;
    let origin = Origin::new(started, Host::probe(), watch.finish());
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let record = measure::linux::record(&config, &linux, &outcome, heard, &origin);
    conclude(&record, outcome.end, args.format)
}

fn conclude(record: &LinuxRecord, end: LinuxEnd, format: Format) -> Result<Exit> {
    match format {
        Format::Json => output::data(&format!("{}\n", output::to_json(record)?)),
        Format::Table => output::data(&show::linux::record(record)),
    }?;
    for warning in &record.warnings {
        output::talk(&format!("haltkick: not to be trusted: {}", warning.message));
    }
    let after = time_ns(record.timing.run_ns as f64);
    let failure = |exit: Exit, message: String| Err(Failure { exit, message });
    match end {
        LinuxEnd::PowerOff if record.trusted => Ok(Exit::Done),
        LinuxEnd::PowerOff => Ok(Exit::Untrusted),
        LinuxEnd::Reset => failure(
            Exit::GuestFailed,
            format!("the guest asked for a reset after {after}, and not to be switched off"),
        ),
        LinuxEnd::Panic => failure(
            Exit::GuestFailed,
            format!("the guest's kernel panicked after {after}: its console says why"),
        ),
        LinuxEnd::TimeLimit => failure(
            Exit::NoProgress,
            format!(
                "the guest had not powered off after {after}: let it run `poweroff -f`, or give it more with --duration"
            ),
        ),
        LinuxEnd::Failed(error) => Err(error.into()),
    }
}

/// Every option is either used for Linux guests too, or refused; of settings the table says which.
fn refuse_what_is_for_our_own_guest(args: &RunArgs) -> Result<()> {
    let refused = args.settings.all_given().find(|(setting, value)| match setting.linux {
        Linux::Used => false,
        Linux::Refused => true,
        Linux::Only(word) => value.text() != word,
    });
    let options = [
        ("guest-set", args.guest_set.is_some()),
        ("guest", args.guest.is_some()),
        ("no-ideal", args.no_ideal),
        ("profile", args.profile.is_some()),
        ("trace", args.trace.is_some()),
        ("perf-map", args.perf_map),
        ("repeat", args.repeat > 1),
    ];
    let option = options.into_iter().find_map(|(name, given)| given.then_some(name));
    if let Some(name) = refused.map(|(setting, _)| setting.name).or(option) {
        return Err(Failure::usage(format!(
            "--{name} is for our own guest on /dev/kvm: leave it out with --kernel"
        )));
    }
    match args.settings.given("deschedule").map(Value::deschedule) {
        Some(DescheduleChoice(Some(Policy(policy))))
            if policy.target != Target::Random || policy.at.is_some() =>
        {
            Err(Failure::usage(
                "--deschedule: nobody knows what a vCPU of a Linux guest is doing: use random, without at=",
            ))
        }
        _ => Ok(()),
    }
}
