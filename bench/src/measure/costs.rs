//! Uncontended costs of lock and instrument.

use haltkick_vmm::{Costs, Engine, OurGuest, Outcome};

use crate::record::why::Why;
use crate::record::{InstrumentCost, LockCost};

pub(super) fn lock_cost(asked: OurGuest<'_>, outcome: &Outcome, why: &mut Why) -> LockCost {
    let ticks = outcome.pair_ticks;
    let cycles = |ticks: Option<u64>| ticks.map(|ticks| ticks as f64 / 1024.0);
    let called = ticks.through_table.is_some();
    let unpatched = match &asked.run.engine {
        Engine::Qemu(_) => "QEMU starts the image as it is, without patching it",
        _ if !asked.ours.patch => "patch is off",
        _ => "no call site was patched",
    };
    let no_site = "no call site: this lock is compiled into the workloads";
    for (field, known, reason) in [
        ("patched_tsc_cycles", ticks.patched.is_some(), if called { unpatched } else { no_site }),
        ("through_table_tsc_cycles", called, no_site),
        ("compiled_in_tsc_cycles", ticks.compiled_in.is_some(), "the guest image does not measure it"),
        ("lock_bytes", outcome.calls.is_some(), "the guest image does not say"),
        ("cpu_bytes", outcome.calls.is_some(), "the guest image does not say"),
    ] {
        if !known {
            why.explain(format!("lock_cost.{field}"), reason);
        }
    }
    LockCost {
        patched_tsc_cycles: cycles(ticks.patched),
        through_table_tsc_cycles: cycles(ticks.through_table),
        compiled_in_tsc_cycles: cycles(ticks.compiled_in),
        lock_bytes: outcome.calls.map(|calls| calls.lock_bytes),
        cpu_bytes: outcome.calls.map(|calls| calls.cpu_bytes),
        patched_sites: outcome.patched_sites as u64,
        instrument: Some(instrument_cost(asked, outcome, why)),
    }
}

fn instrument_cost(asked: OurGuest<'_>, outcome: &Outcome, why: &mut Why) -> InstrumentCost {
    let cycles = |ticks: Option<u64>| ticks.map(|ticks| ticks as f64 / 1024.0);
    let Costs { stamp, ordered_stamp, oracle, section, counting } = outcome.costs;
    let unsaid = "the guest image does not measure it";
    for (field, known, reason) in [
        ("stamp_tsc_cycles", stamp.is_some(), unsaid),
        ("ordered_stamp_tsc_cycles", ordered_stamp.is_some(), unsaid),
        ("oracle_tsc_cycles", oracle.is_some(), if asked.ours.oracle { unsaid } else { "the oracle is off" }),
        ("section_tsc_cycles", section.is_some(), unsaid),
        ("counting_tsc_cycles", counting.is_some(), unsaid),
    ] {
        if !known {
            why.explain(format!("lock_cost.instrument.{field}"), reason);
        }
    }
    InstrumentCost {
        stamp_tsc_cycles: cycles(stamp),
        ordered_stamp_tsc_cycles: cycles(ordered_stamp),
        oracle_tsc_cycles: cycles(oracle),
        section_tsc_cycles: cycles(section),
        counting_tsc_cycles: cycles(counting),
    }
}
