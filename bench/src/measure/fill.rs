//! From a run to its records, one for each guest that came to its end. Every figure that the run did not find out becomes null, with the reason.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use haltkick_vmm::{Found, Known, OurGuest, Outcome, Run, RunDelay, Sched, Unknown};

use super::judge::judge;
use crate::host::identity::Host;
use crate::host::noise::{self, NO_STEAL, NO_STOPS, Noise};
use crate::host::probe::hash;
use crate::record::figures::{FIGURES, OfOurs};
use crate::record::place::{Place, Role};
use crate::record::settings::{Settings, files};
use crate::record::{Figures, PerVcpu, Record, SCHEMA, SCHEMA_VERSION, Timeline, Why};
use crate::text::timestamp;

/// Explains figures of single vCPUs that were not measured.
pub(super) fn explain_vcpus(vcpus: &[PerVcpu], why: &mut Why) {
    let unmeasured = "it is not measured with this scheduler and back end on this host";
    let inside = "nothing inside a Linux guest is known to the VMM";
    let is_linux = vcpus.iter().any(|vcpu| vcpu.acquisitions.is_none());
    let any = |value: fn(&PerVcpu) -> Option<u64>| vcpus.iter().any(|vcpu| value(vcpu).is_none());
    for (name, is_null, reason) in [
        ("acquisitions", any(|vcpu| vcpu.acquisitions), inside),
        ("run_ns", any(|vcpu| vcpu.run_ns), unmeasured),
        ("steal_ns", any(|vcpu| vcpu.steal_ns), unmeasured),
        ("waits", any(|vcpu| vcpu.waits), unmeasured),
        ("kicks", any(|vcpu| vcpu.kicks), if is_linux { inside } else { unmeasured }),
    ] {
        if is_null {
            why.explain(format!("per_vcpu.{name}"), reason);
        }
    }
}

/// All figures that the table has of a run. A reason that the members of a family share stands once.
fn figures(of: &OfOurs<'_>, why: &mut Why) -> Figures {
    let mut figures = Figures::default();
    for row in FIGURES {
        let members = why.known(row.name, row.of_ours(of)).unwrap_or_default();
        let first = members.first().and_then(|(_, value)| value.as_ref().err().cloned());
        let is_shared =
            first.is_some() && members.iter().all(|(_, value)| value.as_ref().err() == first.as_ref());
        for (name, value) in members {
            if figures.has(&name) {
                continue; // A row of its own says more than its family.
            }
            let value = value.and_then(|value| match value.is_finite() {
                true => Ok(value),
                false => Err("it is no finite number".into()),
            });
            let value = why.known(if is_shared { row.name } else { &name }, value);
            figures.set(name, value);
        }
    }
    figures
}

/// The timeline of a run; of an experiment only where it is drawn: a record may be twice as long with it.
fn timeline(
    asked: OurGuest<'_>,
    outcome: &Outcome,
    place: Option<&Place>,
    why: &mut Why,
) -> Option<Timeline> {
    let is_drawn = |place: &Place| place.block == 0 && matches!(place.role, Role::Arm | Role::Beside);
    let noted: Option<Vec<_>> = outcome.vcpus.iter().map(|vcpu| vcpu.timeline.as_ref()).collect();
    let reason: String = match noted {
        _ if !place.is_none_or(is_drawn) => "records have it of the first run of each arm".into(),
        Some(noted) => {
            return Timeline::new(&noted, u64::try_from(outcome.window.as_nanos()).unwrap_or(u64::MAX));
        }
        None if asked.run.rules.sched == Sched::Vmm => "only KVM and the simulated machine note it".into(),
        None => "the host's scheduler decides which vCPU runs when: run --trace shows it".into(),
    };
    why.explain("timeline", reason);
    None
}

/// The record of a guest that came to this `outcome`. `lock_free` holds the throughput of each guest of the run without a lock.
pub(crate) fn record(
    asked: OurGuest<'_>,
    outcome: &Outcome,
    found: &Found,
    origin: &Origin,
    place: Option<Place>,
    lock_free: &Known<Vec<f64>>,
) -> Record {
    let mut why = Why::default();
    let settings = Settings::of_ours(asked, outcome, &mut why);
    let lock_free = lock_free.as_ref().map(|each| each[asked.index]).map_err(Clone::clone);
    let of = OfOurs::new(asked, outcome, found, lock_free);
    let figures = figures(&of, &mut why);
    let timeline = timeline(asked, outcome, place.as_ref(), &mut why);
    let share = |delay: RunDelay| delay.delayed.as_secs_f64() / delay.alive.as_secs_f64();
    let per_vcpu: Vec<PerVcpu> = outcome.vcpus.iter().map(Into::into).collect();
    explain_vcpus(&per_vcpu, &mut why);
    let run_delay = found.run_delay.clone().map(share);
    let mut record = Record {
        files: files(asked.run),
        figures,
        timeline,
        at_least: of.times.iter().flat_map(|times| times.at_least()).collect(),
        distributions: of.times.iter().map(|times| (times.name.into(), times.buckets())).collect(),
        schedule: found.schedule,
        vm_exits: outcome.vm_exits.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
        per_vcpu,
        ..origin.record(place, settings, run_delay, &outcome.kvm_stats, why)
    };
    for (name, count) in &outcome.lock_events {
        record.lock_events.set(name.clone(), *count as f64);
    }
    judge(&mut record, asked, outcome, found, origin.tick_resolution());
    record
}

/// The records of our own guests of a run, all of which came to their end.
pub(crate) fn records(
    run: &Run,
    found: &Found,
    origin: &Origin,
    place: Option<&Place>,
    lock_free: &Known<Vec<f64>>,
) -> Vec<Record> {
    let records = run.ours().zip(found.outcomes()).map(|(asked, outcome)| {
        let beside = |place: &Place| place.beside(&asked.guest.name);
        let place = place.map(|place| if asked.index == 0 { place.clone() } else { beside(place) });
        record(asked, outcome, found, origin, place, lock_free)
    });
    records.collect()
}

/// Properties that the records of one run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    run_id: String,
    started: String,
    host: Host,
    /// Noise from what else ran, or why that is not known.
    noise: noise::Found,
}

impl Origin {
    pub(crate) fn new(started: SystemTime, host: Host, noise: noise::Found) -> Self {
        Self { run_id: run_id(started), started: timestamp::rfc3339(started), host, noise }
    }

    /// The smallest share of the pCPUs' time that can be told from none.
    pub(crate) fn tick_resolution(&self) -> f64 {
        self.noise.as_ref().map_or(0.0, |(_, resolution)| *resolution)
    }

    /// The record of a run of which nothing is known yet but what all runs have.
    pub(super) fn record(
        &self,
        place: Option<Place>,
        settings: Settings,
        run_delay_share: Known<f64>,
        kvm_stats: &Known<Vec<(String, u64)>>,
        mut why: Why,
    ) -> Record {
        let noise = self.noise.as_ref().map(|(noise, _)| noise.clone());
        match &noise {
            Err(Unknown(reason)) => ["others", "steal", "stopped"]
                .into_iter()
                .for_each(|share| why.explain(format!("noise.{share}_share"), reason.clone())),
            Ok(noise) => {
                why.known("noise.steal_share", noise.steal_share.ok_or(NO_STEAL.into()));
                why.known("noise.stopped_share", noise.stopped_share.ok_or(NO_STOPS.into()));
            }
        }
        let run_delay_share = why.known("noise.run_delay_share", run_delay_share);
        for (path, reason) in self.host.why() {
            why.explain(format!("host.{path}"), reason);
        }
        Record {
            schema: SCHEMA.into(),
            schema_version: SCHEMA_VERSION,
            run_id: self.run_id.clone(),
            started: self.started.clone(),
            place,
            settings,
            host: self.host.clone(),
            sandbox: why.known("sandbox", haltkick_vmm::walls().calls).is_some(),
            landlock_abi: why.known("landlock_abi", haltkick_vmm::walls().files),
            end: "finished".into(),
            kvm_stats: why.known("kvm_stats", kvm_stats.clone()).map(BTreeMap::from_iter),
            noise: Noise { run_delay_share, ..noise.unwrap_or_default() },
            trusted: true,
            why: why.0,
            ..Record::default()
        }
    }
}

/// Sixteen hexadecimal digits that no other record bears.
pub(crate) fn run_id(started: SystemTime) -> String {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only distinctness matters.
    let serial = RUNS.fetch_add(1, Ordering::Relaxed);
    let since = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    hash(format!("{since} {} {serial}", std::process::id()))[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::measure::fuzzed::{good, record_of};
    use crate::settings::table;

    #[test]
    fn fairness_needs_two_sections_per_vcpu_and_else_has_a_reason() {
        for (counts, jain) in [([2, 2, 2], Some(1.0)), ([1, 2, 2], None), ([0, 0, 0], None)] {
            let mut outcome = good();
            outcome.vcpus.iter_mut().zip(counts).for_each(|(vcpu, count)| vcpu.acquisitions = count);
            let record = record_of(&outcome, Ok(1e6));
            let is_explained = record.why("jain").is_some_and(|why| why.contains("sections among 3 vCPUs"));
            assert_eq!((record.figure("jain"), is_explained), (jain, jain.is_none()), "{counts:?}");
        }
    }

    #[test]
    fn every_setting_has_its_field_and_every_field_its_setting() {
        let record = record_of(&good(), Ok(1e6));
        let mut unknown: BTreeSet<&str> = record.settings.iter().map(|(name, _)| name).collect();
        let told_with_others = "beside ring_reason pv_backend_reason spin_rounds schedule_sha256 machine_sha256 \
                                host_sha256 preempted_flag";
        told_with_others.split(' ').for_each(|name| assert!(unknown.remove(name), "{name}"));
        // Fields that tell of others, too, or of what came of them. Counts of a PMU are figures, and a run that a watchdog or a drain
        // ends has no record.
        let elsewhere = "ring=ring layout=lock pv-backend=pv_backend preempted-by=preempted_flag memory=memory_bytes \
                         each=work_sections min-turns=window_ns guests=guest pmu= drain= watchdog=";
        let elsewhere: Vec<_> = elsewhere.split(' ').filter_map(|pair| pair.split_once('=')).collect();
        for setting in table::all().filter(|setting| !table::boots(setting.name)) {
            let of_other = || elsewhere.iter().find(|(it, _)| *it == setting.name);
            let is_told = match setting.in_record {
                Some((name, _)) => unknown.remove(name),
                None => of_other().is_some_and(|(_, field)| {
                    unknown.remove(field);
                    field.is_empty() || record.settings.iter().any(|(known, _)| known == *field)
                }),
            };
            assert!(is_told, "{} is told nowhere", setting.name);
        }
        assert!(unknown.is_empty(), "no setting fills {unknown:?}");
    }
}
