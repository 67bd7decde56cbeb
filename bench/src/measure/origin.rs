//! Data of a record in addition to the outcome: when and where the run was, and what else ran there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use haltkick_vmm::Unknown;

use crate::host::identity::Host;
use crate::host::noise::{Found, NO_STEAL};
use crate::host::probe::hash;
use crate::host::stops::NO_STOPS;
use crate::record::Why;
use crate::text::timestamp;

/// Properties that the records of one run have in common.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(super) run_id: String,
    pub(super) started: String,
    pub(super) host: Host,
    /// Noise from what else ran, or why that is not known.
    pub(super) noise: Found,
}

impl Origin {
    pub(crate) fn new(started: SystemTime, host: Host, noise: Found) -> Self {
        Self { run_id: run_id(started), started: timestamp::rfc3339(started), host, noise }
    }

    /// The smallest share of the pCPUs' time that can be told from none.
    pub(crate) fn tick_resolution(&self) -> f64 {
        self.noise.as_ref().map_or(0.0, |(_, resolution)| *resolution)
    }
}

/// Why shares of the pCPUs' time are null.
pub(super) fn explain_noise(noise: &Found, why: &mut Why) {
    match noise {
        Err(Unknown(reason)) => {
            for share in ["others", "steal", "stopped"] {
                why.explain(format!("noise.{share}_share"), reason.clone());
            }
        }
        Ok((noise, _)) => {
            why.given("noise.steal_share", noise.steal_share, NO_STEAL);
            why.given("noise.stopped_share", noise.stopped_share, NO_STOPS);
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
