//! Runs of kernels whose consoles are made up.

use std::time::{Duration, SystemTime};

use haltkick_vmm::{LinuxEnd, LinuxOutcome};

use crate::experiment::plan::{Cell, Plan};
use crate::host::identity::Host;
use crate::host::noise::Noise;
use crate::measure::console::Heard;
use crate::measure::linux::{self, Seen};
use crate::measure::origin::Origin;
use crate::record::linux::LinuxRecord;

/// A guest that ends like this and has printed these lines.
pub(crate) fn seen(end: LinuxEnd, lines: &[String]) -> Seen {
    let mut heard = Heard::default();
    lines.iter().for_each(|line| heard.hear(line));
    let outcome = LinuxOutcome {
        end,
        run: Duration::from_secs(3),
        user_space: Some(Duration::from_secs(1)),
        cpu_time: Duration::from_secs(5),
        command_line: "console=ttyS0".into(),
        obstacle: None,
        pv_features: vec![],
        tsc_khz: 1_000_000,
        vm_exits: vec![],
        kvm_stats: Ok(vec![]),
        vcpus: vec![],
        pinning_lost: None,
    };
    Seen { outcome, heard }
}

/// All runs of a plan, each with what the cell prints in that block.
pub(crate) fn records(plan: &Plan, prints: impl Fn(&Cell, u32) -> Vec<String>) -> Vec<LinuxRecord> {
    let host = Host { host_id: Some("host-a".into()), ..Host::default() };
    let mut records = Vec::new();
    for block in 0..plan.outline.blocks {
        for cell in plan.cells() {
            let Seen { outcome, heard } = seen(LinuxEnd::PowerOff, &prints(cell, block));
            let origin = Origin::new(SystemTime::now(), host.clone(), Ok((Noise::default(), 0.01)));
            let place = cell.place(&plan.outline.experiment, block, records.len() as u64);
            let guest = cell.linux.as_ref().expect("the plan has kernels only");
            records.push(linux::record(&cell.run, guest, &outcome, heard, &origin, Some(place)));
        }
    }
    records
}
