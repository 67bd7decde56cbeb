//! Lock events, per thousand acquisitions.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::headed;
use crate::analysis::findings::setting_name;
use crate::analysis::summary::Summary;
use crate::record::Record;
use crate::record::figures::ACQUISITIONS;
use crate::record::place::Role;
use crate::text::quantity::event;

/// Lock events per thousand acquisitions: a table per arm, a column per setting.
pub(super) fn events(summary: &Summary, records: &[Record]) -> Option<Markup> {
    let tables: Vec<Markup> =
        summary.outline.arms.iter().filter_map(|arm| events_table(summary, arm, records)).collect();
    let content = html! {
        p {
            "Counts since boot, per thousand acquisitions in the window (and so a little too high by what happened in the \
             warm-up). Names are Linux's; latencies are sums of time."
        }
        @for table in &tables { (table) }
    };
    (!tables.is_empty()).then_some(content)
}

fn is_arm(record: &Record, arm: &str) -> bool {
    record.place.as_ref().is_some_and(|place| place.role == Role::Arm && place.arm == arm)
}

/// `None`: nothing happened.
fn events_table(summary: &Summary, arm: &str, records: &[Record]) -> Option<Markup> {
    let records: Vec<&Record> = records.iter().filter(|record| is_arm(record, arm)).collect();
    let events = records.iter().flat_map(|record| record.lock_events.iter());
    let names: BTreeSet<&str> = events.filter(|(_, count)| *count > 0.0).map(|(name, _)| name).collect();
    let mut settings: Vec<&BTreeMap<String, String>> =
        records.iter().filter_map(|record| Some(&record.place.as_ref()?.setting)).collect();
    settings.sort_by_key(|setting| summary.outline.rank(setting));
    settings.dedup();
    let heads = html! {
        th.name scope="col" { "event" }
        @for setting in &settings { th scope="col" { (setting_name(summary, setting)) } }
    };
    let rows = html! {
        @for name in &names {
            tr {
                th.name scope="row" { (name) }
                @for setting in &settings { td { (events_at(&records, setting, name)) } }
            }
        }
    };
    let table = html! { details { summary { (arm) } (headed(arm, &heads, &rows)) } };
    (!names.is_empty()).then_some(table)
}

fn events_at(records: &[&Record], setting: &BTreeMap<String, String>, name: &str) -> String {
    let here =
        records.iter().filter(|record| record.place.as_ref().is_some_and(|place| place.setting == *setting));
    let (mut events, mut acquisitions) = (0.0, 0.0);
    for record in here {
        events += record.lock_events.get(name).unwrap_or_default();
        acquisitions += record.amount(ACQUISITIONS);
    }
    if acquisitions == 0.0 {
        return format!("{} in all", event(name, events));
    }
    event(name, events * 1000.0 / acquisitions)
}
