//! `haltkick run` with several guests: one record per guest, joined by the run's id. A guest that dies leaves the records of
//! the others, which say so.

use std::time::SystemTime;

use haltkick_vmm::{Ended, Image, Instruments, Outcome, RunConfig};

use super::trace::{self, TraceFile};
use crate::cli::{Format, RunArgs};
use crate::commands::interrupt;
use crate::commands::run::single;
use crate::host::identity::Host;
use crate::host::noise::Watch;
use crate::measure::engine;
use crate::measure::fill::Origin;
use crate::measure::judge;
use crate::record::Record;
use crate::show::failure;
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
    let started = SystemTime::now();
    let watch = Watch::start(&config.cpus);
    let ended = haltkick_vmm::run_guests(config, image, &stop, instruments)?;
    // Profile and trace are of all guests, and come with the first.
    let (traced, written) = trace::write(trace_file, ended[0].readings.trace.as_ref());
    let origin = Origin::new(started, Host::probe(), watch.finish());
    let configs: Vec<&RunConfig> = engine::guests(config).collect();
    let outcomes: Vec<&Outcome> = ended.iter().filter_map(|ended| ended.result.as_ref().ok()).collect();
    let lock_free = match (outcomes.first(), args.no_ideal) {
        (_, true) => Err("not asked for (--no-ideal)".into()),
        (Some(outcome), _) if outcomes.len() == ended.len() => {
            let engine = engine::kvm(image, &stop);
            engine::companion(&engine, config, image, outcome.work_rate)
                .map_err(|error| format!("the lock-free companion run failed: {error}"))
        }
        _ => Err("a guest died, so that there is nothing to compare with".into()),
    };
    let dead = ended.iter().filter(|ended| ended.result.is_err());
    let dead: Vec<String> = dead.map(|ended| ended.name.clone()).collect();
    let (mut failed, mut trusted) = (None, true);
    for (index, (ended, config)) in ended.into_iter().zip(configs).enumerate() {
        let Ended { name, result, readings } = ended;
        match result {
            Ok(outcome) => {
                let lock_free = lock_free.as_ref().map(|each| each[index]).map_err(Clone::clone);
                let mut record = Record::new(config, &outcome, origin.context(None, lock_free));
                judge::judge(&mut record, config, &outcome, origin.tick_resolution());
                if !dead.is_empty() {
                    let message =
                        format!("guest {} died meanwhile: this one had more of the pCPUs", dead.join(", "));
                    record.warn("guest-died", message);
                }
                record.trace = traced.clone().filter(|_| index == 0);
                if args.format == Format::Table && index > 0 {
                    output::data("\n")?;
                }
                trusted &= single::conclude(record, readings.profile.as_ref(), args.format)? == Exit::Done;
            }
            Err(error) => {
                let story = failure::story(&readings);
                if !story.is_empty() {
                    output::talk(&story);
                }
                let failure = Failure::from(error);
                let message = format!("guest `{name}`: {failure}");
                failed.get_or_insert(Failure { message, ..failure });
            }
        }
    }
    match failed {
        Some(failure) => Err(failure),
        None => written.map(|()| if trusted { Exit::Done } else { Exit::Untrusted }),
    }
}
