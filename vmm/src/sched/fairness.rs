//! How far apart vCPUs come that always want to run: queues of their own for all pCPUs, with one queue as reference.

use crate::sched::Share;
use crate::sched::core::Queues;
use crate::sched::harm::{Attack, Setting, play};
use crate::sched::run_queues::MOST_APART_SLICES;

const SLICE_NS: u64 = 1_000_000;

/// How far apart in CPU time the vCPUs of the guest that computes are after this number of slices, in slices.
fn apart(setting: Setting, slices: u64) -> f64 {
    let each_ns = &play(setting, &[], slices * SLICE_NS).each_ns[0];
    let (least, most) = (each_ns.iter().min(), each_ns.iter().max());
    (most.expect("there are some") - least.expect("there are some")) as f64 / SLICE_NS as f64
}

/// Settings with compute-only guests alone, and next to a guest of wakers and sleepers. The counts are vCPUs of each guest.
fn settings(pcpus: usize) -> impl Iterator<Item = Setting> {
    let all = pcpus as u32;
    let alone = [all + 1, all + all.div_ceil(4), 2 * all + 1, 4 * all].map(|vcpus| (0, vcpus));
    let beside = [all.div_ceil(2) + 1, all, 2 * all].map(|vcpus| (1, vcpus.next_multiple_of(2)));
    alone.into_iter().chain(beside).map(move |(hostile, vcpus)| Setting {
        share: Share::Vcpu,
        pcpus,
        queues: Queues::PerPcpu,
        hostile,
        vcpus,
        grace: false,
        kick_yields: false,
        attack: Attack::WakeEachOther,
    })
}

#[test]
fn vcpus_that_always_want_to_run_stay_a_few_slices_apart() {
    for pcpus in [2, 16, 256] {
        for setting in settings(pcpus) {
            let length = if pcpus > 16 { 60 } else { 300 };
            for slices in [length, length + 7, length * 2] {
                let own = apart(setting, slices);
                let one = apart(Setting { queues: Queues::One, ..setting }, slices);
                println!(
                    "{pcpus} pCPUs, {} guests of {} vCPUs, {slices} slices: {own:.2} slices apart, {one:.2} with one queue",
                    setting.hostile + 1,
                    setting.vcpus
                );
                assert!(
                    own <= MOST_APART_SLICES as f64,
                    "{own} slices apart, {one} with one queue: {setting:?}"
                );
            }
        }
    }
}
