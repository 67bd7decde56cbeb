//! `haltkick run --kernel`: a Linux guest. Its console goes to stderr as it comes, its record to stdout at the end.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use haltkick_vmm::{Image, Linux as Kernel, Needs, RamDisk, System, printable};

use crate::cli::RunArgs;
use crate::commands::{guest_image, interrupt};
use crate::experiment::workload_inside::WorkloadInside;
use crate::host::identity::Host;
use crate::host::noise::Watch;
use crate::host::{cpulist, walls};
use crate::measure::{self, fill::Origin};
use crate::settings::value::Value;
use crate::settings::{Supply, linux};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

/// Boots the kernel of `args`, runs it to its end, prints its record.
pub(crate) fn run(args: &RunArgs, kernel: &Path) -> Result<Exit> {
    refuse_what_is_for_our_own_guest(args)?;
    let wrong_inside = |message: String| Failure::usage(printable(&format!("--workload-inside: {message}")));
    let inside = args.linux.workload_inside.as_deref().map(WorkloadInside::read).transpose();
    let inside = inside.map_err(wrong_inside)?;
    let image = Image::embedded();
    let allowed = cpulist::allowed()?;
    let mut run = args.settings.resolve(Supply { image: &image, allowed: &allowed })?;
    guest_image::say_before(&allowed, std::iter::once(&run));
    let settings = &args.settings;
    // Unlike a lock's, these are there unless they are hidden.
    run.guests[0].pv = settings.given("pv").is_none_or(Value::is_on);
    let mut linux = Kernel {
        kernel: kernel.into(),
        initrd: args.linux.initrd.clone().map(RamDisk::File),
        append: args.linux.append.clone().unwrap_or_default(),
        memory_bytes: linux::memory_bytes(settings),
        marker: args.linux.marker.clone().unwrap_or_else(|| linux::DEFAULT_MARKER.into()),
        limit: Some(linux::limit(settings)),
    };
    if let Some(inside) = inside {
        inside.put_into(&mut linux, run.guests[0].vcpus).map_err(wrong_inside)?;
    }
    run.guests[0].system = System::Linux(linux);
    haltkick_vmm::check_guests(&run, &image)?;
    walls::confine(&Needs::of([&run]))?;
    let stop = interrupt::catch()?;
    let (started, watch) = (SystemTime::now(), Watch::start(&run.cpus));
    let shows = Arc::new(|line: &str| output::pass_on(&printable(line)));
    let seen = measure::linux::boot(&run, &image, shows, &stop)?;
    let origin = Origin::new(started, Host::probe(), watch.finish());
    let record = measure::linux::record(&run, &seen, &origin, None);
    super::tell(&record, args.format)?;
    match measure::linux::failure(seen) {
        Some(failure) => Err(failure),
        None if record.trusted => Ok(Exit::Done),
        None => Ok(Exit::Untrusted),
    }
}

/// Every option is either used for Linux guests too, or refused; of settings the table says which.
fn refuse_what_is_for_our_own_guest(args: &RunArgs) -> Result<()> {
    let refused = args.settings.all_given().find(|(setting, value)| linux::is_refused(setting, value));
    let options = [
        ("guest-set", args.guest_set.is_some()),
        ("guest", args.image.guest.is_some()),
        ("no-ideal", args.no_ideal),
        ("profile", args.profile.is_some()),
        ("trace", args.trace.is_some()),
        ("perf-map", args.perf_map),
        ("repeat", args.repeat > 1),
    ];
    let option = options.into_iter().find_map(|(name, given)| given.then_some(name));
    if let Some(name) = refused.map(|(setting, _)| setting.name).or(option) {
        return Err(Failure::usage(format!(
            "--{name} is for our own guest on /dev/kvm: leave it out with --kernel, or put it into --workload-inside"
        )));
    }
    Ok(linux::check_descheduling(&args.settings)?)
}
