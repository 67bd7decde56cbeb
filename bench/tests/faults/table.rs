//! Outcome of each fault, as a table for people.

use std::collections::BTreeMap;
use std::fmt;

use crate::calls::{Call, name_of};
use crate::launcher::{Fault, Launched, Times};

/// How a command ended, and how often so: with what it said the first time.
#[derive(Debug, Default)]
struct Ends(BTreeMap<String, (u32, String)>);

/// Results of one command.
#[derive(Debug, Default)]
pub(crate) struct Table(BTreeMap<(Call, &'static str, bool), Ends>);

impl Table {
    pub(crate) fn note(&mut self, fault: Fault, launched: &Launched) {
        let storm = matches!(fault.times, Times::EveryOther);
        let ends = self.0.entry((fault.call, name_of(fault.error), storm)).or_default();
        let end = launched.status.map_or_else(|| "hung".into(), |status| status.to_string());
        let (count, _) = ends.0.entry(end).or_insert_with(|| (0, said(launched)));
        *count += 1;
    }
}

/// The line with which the command says why it ends.
fn said(launched: &Launched) -> String {
    let of_command = |line: &str| line.strip_prefix("haltkick: ").map(str::to_owned);
    launched.stderr.lines().find_map(of_command).unwrap_or_default()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| call | error | launches | ended | it said |\n| --- | --- | --- | --- | --- |")?;
        for ((call, error, storm), ends) in &self.0 {
            let storm = if *storm { ", every other call" } else { "" };
            for (end, (count, said)) in &ends.0 {
                writeln!(f, "| {call} | {error}{storm} | {count} | {end} | {said} |")?;
            }
        }
        Ok(())
    }
}
