//! Tests of the cost and the worth of a directed yield: vCPUs that hand their turns to another of their guest give away
//! all of their own turns and nothing else.

use crate::sched::Share;
use crate::sched::core::Queues;
use crate::sched::harm::{Attack, Setting, play};

const SLICE_NS: u64 = 1_000_000;
const LENGTH_NS: u64 = 400 * SLICE_NS;
const VCPUS: u32 = 16;

/// CPU time of each vCPU of a guest on one pCPU, next to a guest that always wants to run.
fn each_ns(share: Share, attack: Attack) -> Vec<u64> {
    let setting = Setting {
        share,
        pcpus: 1,
        queues: Queues::PerPcpu,
        hostile: 1,
        vcpus: VCPUS,
        grace: false,
        kick_yields: false,
        attack,
    };
    play(setting, &[], LENGTH_NS).each_ns.swap_remove(1)
}

#[test]
fn an_owner_whom_all_waiters_yield_to_has_their_turns() {
    for share in [Share::Vcpu, Share::Guest] {
        let each_ns = each_ns(share, Attack::WaitForOne);
        let (all_ns, owner_ns) = (each_ns.iter().sum::<u64>(), each_ns[1]);
        // All but the share of the vCPU that waits for no other.
        let due_ns = all_ns * u64::from(VCPUS - 1) / u64::from(VCPUS);
        assert!(owner_ns * 10 >= due_ns * 9, "the owner had {owner_ns} of {due_ns} ns: {each_ns:?}");
    }
}

#[test]
fn a_vcpu_without_yields_to_it_has_its_own_turns() {
    for share in [Share::Vcpu, Share::Guest] {
        for attack in [Attack::WaitForOne, Attack::PassAroundOne] {
            let each_ns = each_ns(share, attack);
            let (all_ns, worker_ns) = (each_ns.iter().sum::<u64>(), each_ns[VCPUS as usize - 1]);
            // It may be in the middle of a turn, or have waited for the others' slices.
            let due_ns = all_ns / u64::from(VCPUS) - 2 * SLICE_NS;
            assert!(worker_ns >= due_ns, "{attack:?}: it had {worker_ns} of {due_ns} ns: {each_ns:?}");
        }
    }
}
