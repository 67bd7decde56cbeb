//! The record of a Linux guest as people read it.

use std::fmt::Write as _;

use crate::record::figure::Figure;
use crate::record::linux::{Config, LinuxRecord, PerVcpu};
use crate::text::quantity::{count, si, significant, time_ns};

/// The record as people read it.
pub(crate) fn record(record: &LinuxRecord) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| _ = writeln!(text, "{name:<14} {value}");
    let Config { vcpus, sched, pv, .. } = &record.config;
    let pcpus = record.config.cpus.len();
    line(
        "guest",
        format!(
            "Linux, {vcpus} vCPUs on {pcpus} pCPUs, sched {sched}, pv {}",
            if *pv { "on" } else { "off" }
        ),
    );
    if !record.config.pv_features.is_empty() {
        line("offered", record.config.pv_features.join(", "));
    }
    let end = record.failure.as_ref().map_or(record.end.to_owned(), |failure| format!("failed: {failure}"));
    line("end", format!("{end}, after {}", time_ns(record.timing.run_ns as f64)));
    if let Some(inside) = &record.inside {
        let release = inside.host.kernel.as_deref().unwrap_or("of unknown release");
        line("kernel", format!("{release} ({})", record.config.kernel));
    }
    let unseen = || format!("unknown: {}", record.why["timing.user_space_ns"]);
    line("user space", record.timing.user_space_ns.map_or_else(unseen, |ns| time_ns(ns as f64)));
    if !record.per_vcpu.is_empty() {
        let sum = |of: fn(&PerVcpu) -> Option<u64>| record.per_vcpu.iter().map(of).sum::<Option<u64>>();
        let time = |ns: Option<u64>| ns.map_or_else(|| "unknown".to_owned(), |ns| time_ns(ns as f64));
        line(
            "vCPUs",
            format!(
                "running {}, descheduled {}, halted {}",
                time(sum(|vcpu| vcpu.run_ns)),
                time(sum(|vcpu| vcpu.descheduled_ns)),
                time(sum(|vcpu| vcpu.halted_ns))
            ),
        );
        let descheduled = sum(|vcpu| Some(vcpu.descheduled)).unwrap_or_default();
        let halts = sum(|vcpu| vcpu.halts).map_or_else(|| "unknown".to_owned(), count);
        line("times", format!("descheduled {}, halted {halts}", count(descheduled)));
    }
    if let (Some(injected), Some(policy)) = (record.injected, &record.config.deschedule) {
        line("injected", format!("{} ({policy})", count(injected)));
    }
    // The record of a workload inside, which is shown whole, has its figures.
    let figures = record.figures.iter().filter(|_| record.inside.is_none());
    for (name, Figure { value, unit, .. }) in figures {
        line(name, format!("{} {unit}", si(*value)));
    }
    if let Some(events) = record.lock_events.as_ref() {
        line("lock events", format!("{} kinds, with --format json", events.len()));
    }
    if let Some(share) = record.noise.others_share {
        line("others", format!("{} % of the pCPUs", significant(share * 100.0)));
    }
    if let Some(inside) = &record.inside {
        text += &format!("\ninside\n{}", super::record::record(inside));
    }
    text
}
