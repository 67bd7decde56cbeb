//! What rows and rare columns mean whose names do not say.

use crate::analysis::summary::Summary;
use crate::experiment::names::{BESIDE, LOCK_FREE};
use crate::experiment::place::Role;

/// A line for each kind of row or column that needs one.
pub(crate) fn lines(summary: &Summary) -> Vec<String> {
    let mut lines = Vec::new();
    let rows = || summary.rows.iter();
    let numbered = rows().find(|row| {
        row.role == Role::Ideal && row.arm.strip_prefix(LOCK_FREE).is_some_and(|rest| rest.starts_with(' '))
    });
    if let Some(row) = numbered.filter(|row| !row.arm.contains(BESIDE)) {
        lines.push(format!(
            "{}: arms that differ in more than the lock have an ideal each, {LOCK_FREE} for the first of them",
            row.arm
        ));
    }
    let beside = rows().filter(|row| row.role == Role::Beside).find_map(|row| row.arm.split_once(BESIDE));
    if let Some((arm, guest)) = beside {
        lines.push(format!("{arm}{BESIDE}{guest}: guest {guest}, which ran beside the first guest of {arm}"));
    }
    if summary.counts_overtaking() {
        lines.push("overtaken: sections that others began in the worst wait of all runs".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Sketch, World};
    use crate::record::Record;
    use crate::show::table;

    fn shown(sketch: &Sketch) -> String {
        let plan = sketch.plan(2);
        table::summary(&Summary::new(&plan.outline, &World::new(1).records(&plan)))
    }

    #[test]
    fn rows_for_a_second_ideal_and_for_a_guest_beside_are_explained_and_others_need_no_word() {
        let plain = Sketch::new().arm("a", "tas");
        assert!(!shown(&plain).contains("ideal each") && !shown(&plain).contains("beside"));
        let longer = plain.clone().arm_with("longer", "lock = \"tas\"\nhold = \"5us\"");
        assert!(
            shown(&longer).contains("lock-free 2: arms that differ in more than the lock"),
            "{}",
            shown(&longer)
        );
        let beside = plain.arm_with("pair", "vm = \"lock=tas; name=b,lock=ticket\"");
        let expected = "pair / b: guest b, which ran beside the first guest of pair";
        assert!(shown(&beside).contains(expected), "{}", shown(&beside));
    }

    #[test]
    fn the_worst_overtaking_of_all_runs_is_a_column_where_it_is_counted() {
        let plan = Sketch::new().arm("a", "tas").arm("b", "tas").plan(3);
        let mut records = World::new(1).records(&plan);
        let none = table::summary(&Summary::new(&plan.outline, &records));
        assert!(!none.contains("overtaken"), "{none}");
        let of_a = |record: &&mut Record| record.place.as_ref().is_some_and(|place| place.arm == "a");
        for (record, most) in records.iter_mut().filter(of_a).zip([5, 17385, 12]) {
            record.lock_events.insert("overtaken_most".into(), most);
        }
        let shown = table::summary(&Summary::new(&plan.outline, &records));
        let line_of = |arm: &str| {
            shown
                .lines()
                .find(|line| line.split_whitespace().any(|word| word == arm))
                .expect("a line for each arm")
        };
        assert!(line_of("a").contains("17385") && line_of("b").trim_end().ends_with('-'), "{shown}");
        assert!(shown.contains("overtaken: sections that others began"), "{shown}");
    }
}
