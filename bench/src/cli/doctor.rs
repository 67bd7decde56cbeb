//! Options of `haltkick doctor`.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// Options of `haltkick doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// How to print the findings
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: Format,
    /// Short for --format json
    #[arg(long, hide = true)]
    pub(crate) json: bool,
    /// Measure this host's costs and write them as a machine for --engine sim
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "json"])]
    pub(crate) write_machine: Option<PathBuf>,
    /// Measure this host's scheduler with threads and write it as a host for --engine sim --sched host
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "json", "write_machine"])]
    pub(crate) write_host: Option<PathBuf>,
}
