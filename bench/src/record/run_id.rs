//! The identifier that tells one run from all others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};

/// Sixteen hexadecimal digits that no other record bears.
pub(crate) fn run_id(started: SystemTime) -> String {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    // Relaxed: only distinctness matters.
    let serial = RUNS.fetch_add(1, Ordering::Relaxed);
    let since = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let digest = Sha256::digest(format!("{since} {} {serial}", std::process::id()));
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
