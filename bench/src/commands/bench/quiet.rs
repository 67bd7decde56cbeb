//! `--wait-for-quiet`: no run begins while other processes use the pCPUs.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use crate::cli::Patience;
use crate::experiment::plan::Plan;
use crate::host::neighbours;
use crate::host::noise::{OTHERS_SHARE_LIMIT, Watch};
use crate::text::exit::{Failure, Result};
use crate::text::output;
use crate::text::quantity::{patience, significant};

/// How long the pCPUs are watched before each decision: long enough for ticks to tell 5 %, and for a pause between two jobs to
/// be none.
const LOOK: Duration = Duration::from_secs(3);

/// Waits, if that was asked for, until other processes use no more of the pCPUs than a run bears. Simulated cells need no pCPU.
pub(super) fn wait(patience: &Patience, plan: &Plan) -> Result<()> {
    let Some(most) = patience.wait_for_quiet else { return Ok(()) };
    let measured = plan.cells().filter(|cell| !cell.run.engine.is_simulated());
    let cpus: BTreeSet<u32> = measured.flat_map(|cell| cell.run.cpus.iter().copied()).collect();
    if cpus.is_empty() {
        return Ok(());
    }
    let cpus: Vec<u32> = cpus.into_iter().collect();
    let look = || {
        let watch = Watch::start(&cpus);
        thread::sleep(LOOK);
        let (noise, _) = watch.finish().map_err(|reason| reason.to_string())?;
        noise.others_share.ok_or_else(|| "nothing says what else runs".to_owned())
    };
    let who = || neighbours::using(&cpus).map_or_else(String::new, |names| format!(" ({names})"));
    let failed = |reason: String| Failure::usage(format!("--wait-for-quiet: {reason}; start without it"));
    until_quiet(most.0, look, who, output::talk).map_err(failed)
}

/// Looks until a share is small enough or `most` is over, at least once, and says what it waits for.
fn until_quiet(
    most: Duration,
    mut look: impl FnMut() -> std::result::Result<f64, String>,
    who: impl Fn() -> String,
    mut say: impl FnMut(&str),
) -> std::result::Result<(), String> {
    let looks = most.as_nanos().div_ceil(LOOK.as_nanos()).max(1);
    let long = patience(most.as_secs_f64());
    for past in 0..looks {
        let share = look()?;
        if share <= OTHERS_SHARE_LIMIT {
            if past > 0 {
                say("the pCPUs are quiet: begins");
            }
            return Ok(());
        }
        let (percent, limit) = (significant(share * 100.0), significant(OTHERS_SHARE_LIMIT * 100.0));
        if past + 1 == looks {
            say(&format!(
                "warning: after {long}, other processes still use {percent} % of the pCPUs{}: begins nevertheless",
                who()
            ));
        } else if past == 0 {
            say(&format!(
                "other processes use {percent} % of the pCPUs{}: waits up to {long} until it is {limit} % at most",
                who()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Message after looks that find these shares, and the number of looks.
    fn said(seconds: u64, shares: &[f64]) -> (Vec<String>, usize) {
        let (mut said, mut looks) = (Vec::new(), 0);
        let look = || {
            looks += 1;
            shares.get(looks - 1).copied().ok_or_else(|| "no look is left".to_owned())
        };
        let (most, who) = (Duration::from_secs(seconds), || " (make)".to_owned());
        until_quiet(most, look, who, |line| said.push(line.to_owned())).unwrap();
        (said, looks)
    }

    #[test]
    fn waiting_ends_with_the_first_quiet_look_or_at_the_limit() {
        assert_eq!(said(60, &[0.01]), (vec![], 1));
        let waits = "other processes use 50.0 % of the pCPUs (make): waits up to 1 min 0 s until it is 5.00 % at most";
        let lines = [waits, "the pCPUs are quiet: begins"].map(String::from).to_vec();
        assert_eq!(said(60, &[0.5, 0.2, 0.05]), (lines, 3));
        let (lines, looks) = said(9, &[0.5, 0.5, 0.4]);
        let begins =
            "warning: after 9 s, other processes still use 40.0 % of the pCPUs (make): begins nevertheless";
        assert_eq!((lines[1].as_str(), looks), (begins, 3));
        assert_eq!(said(0, &[0.5]).1, 1);
    }
}
