//! The table where the number of guests varies: a line for all guests of an arm.

use super::{FAINT, Field, by_setting, of_axes, of_headline, plus_minus};
use crate::analysis::statistics::Estimate;
use crate::analysis::summary::{Summary, Together};
use crate::experiment::place::Role;
use crate::text::quantity::{si, time_ns};

/// Columns between the arm's name and the first comparison.
pub(super) const HEADER: [&str; 4] = ["all guests", "slowest guest", "slowest vCPU", "p99"];

/// The lines of each setting.
pub(super) fn groups(summary: &Summary) -> Vec<Vec<Vec<Field>>> {
    by_setting(&summary.together, |row| &row.setting, |row, is_first| vec![line(summary, row, is_first)])
}

fn line(summary: &Summary, row: &Together, new_setting: bool) -> Vec<Field> {
    let mut fields = of_axes(summary, &row.setting, row.vcpus, new_setting);
    let named = fields.len();
    let or_none = |it: &Option<Estimate>, show: fn(&Estimate) -> String| {
        Field::new(it.as_ref().map_or("-".into(), show))
    };
    let rate = |it: &Estimate| format!("{}/s", si(it.hodges_lehmann));
    fields.push(Field::new(row.arm.as_str()));
    fields.push(or_none(&row.per_second, |it| format!("{}/s{}", si(it.hodges_lehmann), plus_minus(it))));
    fields.push(or_none(&row.slowest_guest_per_second, rate));
    fields.push(or_none(&row.slowest_vcpu_per_second, rate));
    // Without a lock no vCPU waits: what looks like a wait is a slice that ends between two timestamps.
    let p99 = row.wait_p99_ns.as_ref().filter(|_| row.role != Role::Ideal);
    fields.push(Field::new(p99.map_or("-".into(), |it| time_ns(it.hodges_lehmann))));
    if row.role == Role::Ideal {
        fields[named..].iter_mut().for_each(|field| field.style = FAINT);
    }
    fields.extend(of_headline(summary, &row.setting, &row.arm, None));
    fields
}
