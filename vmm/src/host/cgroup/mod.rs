//! Control groups by which the kernel limits the CPU time of vCPUs' threads (`--quota` under the host's scheduler).
//!
//! A process that will be walled in makes its groups before, and keeps them for all its runs, until [`RemovesGroups`] is dropped. Others
//! make a group for a run and remove it after that.

mod group;
mod own;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::host::error::RunError;
use crate::host::known::Known;
use crate::host::locks::lock;
use crate::host::span::Span;

use group::{Group, KERNEL, remove_leftovers};
use own::Own;

pub(crate) use group::{Bandwidth, Counts};

/// Groups that this process keeps for its runs.
static KEPT: Mutex<Kept> = Mutex::new(Kept { is_keeping: false, groups: Vec::new() });

struct Kept {
    is_keeping: bool,
    /// Groups that no guest has.
    groups: Vec<Group>,
}

/// Whether a child of the own group can be made here, by making one: the directory of the own group.
///
/// # Errors
/// What was tried, and the kernel's answer.
pub fn control_groups() -> Known<PathBuf> {
    Ok(new_group()?.parent().to_owned())
}

fn new_group() -> Known<Group> {
    let own = Own::find(Path::new("/"))?;
    remove_leftovers(&own, KERNEL);
    Group::new(&own, KERNEL)
}

/// Makes groups for `count` guests, which this process keeps from now on.
pub(crate) fn keep(count: usize) -> Result<(), RunError> {
    let mut kept = lock(&KEPT);
    while kept.groups.len() < count {
        kept.groups.push(new_group().map_err(|why| lacks(&why.0))?);
        kept.is_keeping = true;
    }
    Ok(())
}

/// The directory in which kept groups lie, if there are any.
pub(crate) fn folder() -> Option<PathBuf> {
    lock(&KEPT).groups.first().map(|group| group.parent().to_owned())
}

/// Removes the groups of this process on drop.
#[derive(Debug)]
#[must_use]
pub struct RemovesGroups;

impl Drop for RemovesGroups {
    fn drop(&mut self) {
        let groups = {
            let mut kept = lock(&KEPT);
            kept.is_keeping = false;
            std::mem::take(&mut kept.groups)
        };
        drop(groups);
    }
}

/// A guest's group, for the length of a run.
#[derive(Debug)]
pub(crate) struct Lent(Option<Group>);

impl Lent {
    /// A group with this limit.
    pub(crate) fn new(bandwidth: Bandwidth) -> Result<Self, RunError> {
        let kept = lock(&KEPT).groups.pop();
        let group = match kept {
            Some(group) => group,
            None => new_group().map_err(|why| lacks(&why.0))?,
        };
        let lent = Self(Some(group));
        lent.group().limit(bandwidth).map_err(|error| {
            let Bandwidth { run, period, burst } = bandwidth;
            RunError::HostLacks(format!(
                "quota: the kernel refuses {}/{}+{} below {}: {error}; a control group above it may have less: use sched vmm",
                Span(run),
                Span(period),
                Span(burst),
                lent.group().parent().display()
            ))
        })?;
        Ok(lent)
    }

    pub(crate) fn group(&self) -> &Group {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut kept = lock(&KEPT);
        let is_keeping = kept.is_keeping;
        if is_keeping {
            kept.groups.extend(self.0.take());
        }
        drop(kept);
        // Else it is removed here, which may take its time.
        self.0 = None;
    }
}

/// That this host gives no group.
fn lacks(why: &str) -> RunError {
    RunError::HostLacks(format!(
        "quota: sched host needs a control group of its own: {why}; run as root, or under `systemd-run --user --scope -p \
         Delegate=cpu`, or use sched vmm"
    ))
}
