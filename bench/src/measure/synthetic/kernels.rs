//! Runs of kernels whose consoles are made up.

use std::time::{Duration, SystemTime};

use haltkick_vmm::{AnyOutcome, Complaints, LinuxEnd, LinuxOutcome, Run};

use crate::experiment::plan::{Cell, Plan};
use crate::host::identity::Host;
use crate::host::noise::Noise;
use crate::measure::console::Heard;
use crate::measure::linux;
use crate::measure::origin::Origin;
use crate::measure::run_result::RunResult;
use crate::measure::synthetic::outcome::found;
use crate::record::Record;

/// A guest that ends like this and has printed these lines.
pub(crate) fn seen(run: &Run, end: LinuxEnd, lines: &[String]) -> RunResult {
    let mut heard = Heard::default();
    lines.iter().for_each(|line| heard.hear(line));
    let outcome = LinuxOutcome {
        end,
        run: Duration::from_secs(3),
        user_space: Some(Duration::from_secs(1)),
        complaints: Complaints::new(),
        command_line: "console=ttyS0".into(),
        obstacle: None,
        pv_features: vec![],
        tsc_khz: 1_000_000,
        vm_exits: vec![],
        kvm_stats: Ok(vec![]),
        vcpus: vec![],
        pinning_lost: None,
    };
    let found = found(run, Duration::from_secs(5), vec![AnyOutcome::Linux(Box::new(outcome))]);
    RunResult { found, heard, inside: None }
}

/// All runs of a plan, each with what the cell prints in that block.
pub(crate) fn records(plan: &Plan, prints: impl Fn(&Cell, u32) -> Vec<String>) -> Vec<Record> {
    let host = Host { host_id: Some("host-a".into()), ..Host::default() };
    let mut records = Vec::new();
    for block in 0..plan.outline.blocks {
        for cell in plan.cells() {
            let seen = seen(&cell.run, LinuxEnd::PowerOff, &prints(cell, block));
            let origin = Origin::new(SystemTime::now(), host.clone(), Ok((Noise::default(), 0.01)));
            let place = cell.place(&plan.outline.experiment, block, records.len() as u64);
            records.push(linux::record(&cell.run, &seen, &origin, Some(place)));
        }
    }
    records
}
