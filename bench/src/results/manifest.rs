//! `manifest.json`: what was planned, by which program, on which host.

use std::collections::BTreeMap;
use std::path::Path;

use haltkick_vmm::{input, printable};
use serde::{Deserialize, Serialize};

use crate::experiment::outline::Outline;
use crate::host::facts::Fact;
use crate::host::identity::Host;
use crate::record::Record;
use crate::results::directory::{MANIFEST, read_json, read_records};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output::clean;

pub(crate) const SCHEMA: &str = "haltkick.manifest";
pub(crate) const SCHEMA_VERSION: u32 = 2;
/// Limit of a manifest; that of an experiment has about 16 KiB.
const MOST_BYTES: u64 = 64 << 20;

/// One experiment.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Manifest {
    /// "haltkick.manifest".
    pub(crate) schema: String,
    /// 2.
    pub(crate) schema_version: u32,
    /// When the experiment began, RFC 3339.
    pub(crate) started: String,
    /// The command as it was given.
    pub(crate) command_line: Vec<String>,
    /// The experiment file as it was read, and what the command line changed in it.
    pub(crate) source: ManifestSource,
    /// Order of the results.
    pub(crate) outline: Outline,
    /// The kernels of the arms, where arms are kernels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) kernels: Vec<KernelFiles>,
    /// Files of simulated machines, and of hosts whose schedulers are modelled, by the SHA-256 of their text: `settings` of records
    /// name them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) files: BTreeMap<String, String>,
    /// Seed of the order and of everything random.
    pub(crate) seed: u64,
    /// The host in short.
    pub(crate) host: Host,
    /// The host in full: each fact a value, or null with the reason.
    pub(crate) facts: BTreeMap<String, Fact>,
    /// The group `noise` of the facts again, at the end; null while the experiment runs, or if it was killed.
    pub(crate) noise_after: Option<BTreeMap<String, Fact>>,
    /// Runs that are left out, since they made no progress, and the one whose failure ended the experiment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) failed: Vec<FailedRun>,
}

/// A run that has no record, since it failed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct FailedRun {
    /// The cell.
    pub(crate) cell_id: String,
    /// The block.
    pub(crate) block: u32,
    /// Message of its failure.
    pub(crate) message: String,
    /// The exit code, if the failure ended the experiment; null if the run made no progress, nor did a second one, and the
    /// experiment went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended_with: Option<u8>,
}

/// Files that an arm boots.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct KernelFiles {
    /// The arm.
    pub(crate) arm: String,
    /// Settings that change the files; empty if they are the same at all settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) setting: BTreeMap<String, String>,
    /// The kernel's file.
    pub(crate) kernel: String,
    /// SHA-256 of its content.
    pub(crate) kernel_sha256: String,
    /// The initial RAM disk's file; null: none.
    pub(crate) initrd: Option<String>,
    /// SHA-256 of its content.
    pub(crate) initrd_sha256: Option<String>,
    /// Words on the kernel's command line behind our own.
    pub(crate) command_line: String,
}

impl KernelFiles {
    /// Describes how this kernel differs from `other`, by content and not by path.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let (arm, Self { kernel, .. }) = (self.name(), self);
        if arm != other.name() {
            return Some(format!("arm '{arm}' is '{}'", other.name()));
        }
        if self.kernel_sha256 != other.kernel_sha256 {
            return Some(format!("arm '{arm}': {kernel} is another kernel"));
        }
        if self.initrd_sha256 != other.initrd_sha256 {
            let initrd = self.initrd.as_deref().unwrap_or("no initrd");
            return Some(format!("arm '{arm}': {initrd} is another initial RAM disk"));
        }
        (self.command_line != other.command_line)
            .then(|| format!("arm '{arm}' has another command line: '{}'", other.command_line))
    }

    /// The arm, and what varies.
    pub(crate) fn name(&self) -> String {
        let setting: String = self.setting.iter().map(|(key, value)| format!(", {key} {value}")).collect();
        format!("{}{setting}", self.arm)
    }

    /// The first difference between the kernels of two experiments, in words.
    pub(crate) fn first_difference(these: &[Self], those: &[Self]) -> Option<String> {
        if these.len() != those.len() {
            return Some(format!("{} kernels and {}", these.len(), those.len()));
        }
        these.iter().zip(those).find_map(|(this, that)| this.difference(that))
    }
}

/// Origin of the plan.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ManifestSource {
    /// A path, or the name of a built-in experiment.
    pub(crate) origin: String,
    /// The file's text.
    pub(crate) text: String,
    /// Changes by the command line.
    pub(crate) overrides: Vec<String>,
}

impl Manifest {
    pub(crate) fn has_kernels(&self) -> bool {
        !self.kernels.is_empty()
    }

    /// Whether it was a first look, with the experiment's `[quick]` part.
    pub(crate) fn is_quick(&self) -> bool {
        self.source.overrides.iter().any(|option| option == "--quick")
    }

    /// Notes runs that failed; forgets earlier ones that have a record by now.
    pub(crate) fn note_failed(&mut self, failed: Vec<FailedRun>, records: &[Record]) {
        let all = std::mem::take(&mut self.failed).into_iter().chain(failed);
        let mut all: BTreeMap<_, _> = all.map(|run| ((run.cell_id.clone(), run.block), run)).collect();
        for place in records.iter().filter_map(|record| record.place.as_ref()) {
            all.remove(&(place.cell_id.clone(), place.block));
        }
        self.failed = all.into_values().collect();
    }

    /// The id of each cell with failed runs, and a warning of them.
    pub(crate) fn failed_cells(&self) -> Vec<(&str, String)> {
        let mut cells: BTreeMap<&str, Vec<&FailedRun>> = BTreeMap::new();
        self.failed.iter().for_each(|run| cells.entry(&run.cell_id).or_default().push(run));
        let of_cell = |(cell, runs): (&str, Vec<&FailedRun>)| match runs
            .iter()
            .find(|run| run.ended_with.is_some())
        {
            Some(last) => format!("FAILED: this ended the experiment: {}", last.message),
            None => {
                let blocks = runs.iter().map(|run| run.block.to_string()).collect::<Vec<_>>().join(", ");
                format!("FAILED: {cell} made no progress, twice, in blocks {blocks}, and has no runs there")
            }
        };
        cells.into_iter().map(|of| (of.0, of_cell(of))).collect()
    }

    /// The end of whatever is made of the records, if runs failed: nothing is known of these.
    pub(crate) fn ending_of_failed(&self) -> Option<Exit> {
        let is_guest = |run: &FailedRun| run.ended_with == Some(Exit::GuestFailed as u8);
        let of_any = || if self.failed.iter().any(is_guest) { Exit::GuestFailed } else { Exit::NoProgress };
        (!self.failed.is_empty()).then(of_any)
    }

    /// The records of its directory, with the files that their runs read.
    pub(crate) fn records(&self, directory: &Path) -> Result<Vec<Record>> {
        let mut records = read_records(directory)?;
        for record in &mut records {
            let named =
                ["machine_sha256", "host_sha256"].into_iter().filter_map(|name| record.settings.text(name));
            let known = named.filter_map(|name| self.files.get_key_value(name));
            record.files = known.map(|(name, text)| (name.clone(), text.clone())).collect();
        }
        Ok(records)
    }

    pub(crate) fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(MANIFEST);
        let complain = |message: String| Failure::usage(printable(&format!("{}: {message}", path.display())));
        let text = input::read_text(&path, MOST_BYTES)
            .map_err(|error| complain(format!("{error}: give a directory that `haltkick bench` made")))?;
        let manifest: Self =
            read_json(text.as_bytes(), (SCHEMA, SCHEMA_VERSION), clean).map_err(|reason| {
                complain(format!("{reason}: restore the file, or use the haltkick that wrote it"))
            })?;
        match manifest.outline.trial_blocks {
            Some(0) => Err(complain("trials of 0 blocks: restore the file".into())),
            _ => Ok(manifest),
        }
    }
}
