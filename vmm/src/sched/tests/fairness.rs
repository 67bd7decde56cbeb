//! A guest's share under the scheduler of `--sched vmm` next to others, which may mean harm, in made-up time: their vCPUs come back
//! whenever and for whatever reason they like, and write what they like into what they share with the VMM. One guest is honest: its
//! vCPUs compute, and nothing else.
//!
//! Whatever the others do, the honest guest gets its share, no vCPU is lost or in two places, and the run ends. Its own vCPUs stay a few
//! slices apart. A vCPU that hands its turns to another one of its guest gives away all of its own turns and nothing else.

use std::time::Duration;

use haltkick_fuzzing::{Script, Target};

use crate::host::clock::{Clock, Moment};
use crate::sched::core::Queues;
use crate::sched::starts::Starts;
use crate::sched::{Rules, Share};

use super::Ground;
use super::world::{Attack, HONEST, SLICE_NS, Setting, World, WorldEnd, memories};

/// The time at which a run ends whose script is not read to its end.
const LONGEST_NS: u64 = 300 * SLICE_NS;

pub(crate) const TARGET: Target = Target { name: "scheduler", most_bytes: 1024, seeds: Vec::new, execute };

/// Lets the guests of `setting` do as `script` says, for `length_ns` at most.
///
/// # Panics
/// If the scheduler loses a vCPU, has one twice, or does not end.
fn play(setting: Setting, script: &[u8], length_ns: u64) -> WorldEnd {
    let ground = Ground::new(Clock::Simulated(Default::default()));
    let Clock::Simulated(clock) = &ground.clock else { unreachable!("just made") };
    clock.set(Moment { ns: 1, tsc: 1 });
    let count = setting.hostile + 1;
    let guest = |(index, memory)| {
        let mut guest = ground.guest_of_our_own(memory, true);
        (guest.index, guest.first_vcpu) = (index, index as u32 * setting.vcpus);
        guest.window.open(1);
        // Every other hostile guest has an image whose vCPUs are to say that they have started.
        if index % 2 == 1 {
            guest.starts = Starts::said_by(setting.vcpus);
        }
        guest
    };
    let guests: Vec<_> = memories(setting.vcpus, count).into_iter().enumerate().map(guest).collect();
    let mut world = World::new(setting, &guests, clock, &ground.notes, Script::new(script));
    world.run(length_ns);
    world.end()
}

/// The setting that each bit of `choice` decides something of.
fn chosen(choice: u8) -> Setting {
    Setting {
        rules: Rules {
            share: if choice & 1 == 0 { Share::Vcpu } else { Share::Guest },
            slice: Duration::from_nanos(SLICE_NS),
            grace: Duration::from_nanos(u64::from(choice >> 5 & 1) * SLICE_NS / 2),
            kick_yields: choice >> 6 & 1 != 0,
            ..Rules::default()
        },
        pcpus: 1 + usize::from(choice >> 1 & 1),
        queues: if choice >> 7 == 0 { Queues::PerPcpu } else { Queues::One },
        hostile: 1 + usize::from(choice >> 2 & 1) * 2,
        vcpus: 2 + u32::from(choice >> 3 & 3),
        attack: Attack::Anything,
    }
}

/// One execution: a setting and a script out of `bytes`.
///
/// # Panics
/// If an invariant does not hold.
fn execute(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let setting = chosen(script.byte());
    let ended = play(setting, script.rest(), LONGEST_NS);
    check_share(setting, &ended);
}

/// The honest guest's vCPUs always want to run: it gets its share at least. What it may lack, whatever the others do: each of their vCPUs
/// may be ahead by the credit, which is a slice, and by the slice with its grace that it was in then; and each pCPU may be in the middle
/// of a slice.
fn check_share(setting: Setting, ended: &WorldEnd) {
    let slice_ns = SLICE_NS + setting.rules.grace.as_nanos() as u64;
    let ahead_ns = setting.hostile as u64 * u64::from(setting.vcpus) * (SLICE_NS + slice_ns);
    let most_lacking_ns = ahead_ns + setting.pcpus as u64 * slice_ns;
    let guests = setting.hostile as u64 + 1;
    // All guests have the same number of vCPUs.
    let fair_ns = ended.length_ns * setting.pcpus as u64 / guests;
    let ran_ns: Vec<u64> = ended.each_ns.iter().map(|each_ns| each_ns.iter().sum()).collect();
    let had_ns = ran_ns[HONEST];
    assert!(
        had_ns + most_lacking_ns >= fair_ns,
        "the honest guest had {had_ns} ns of its {fair_ns}, the others {:?}, {} handoffs: {setting:?}",
        &ran_ns[1..],
        ended.handed
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::run_queues::MOST_APART_SLICES;

    #[test]
    fn an_honest_guest_gets_its_share_beside_guests_that_exchange_turns() {
        let mut handed = 0;
        for attack in [Attack::FeedOne, Attack::PassAround, Attack::KickOne, Attack::Lie] {
            // Two or four vCPUs.
            for choice in (0..=u8::MAX).filter(|choice| choice & 8 == 0) {
                let setting = Setting { attack, ..chosen(choice) };
                let ended = play(setting, &[], 300 * SLICE_NS);
                check_share(setting, &ended);
                handed += ended.handed;
            }
        }
        assert!(handed > 10_000, "{handed} handoffs in all: nothing was tried");
    }

    /// How far apart in CPU time the vCPUs of the honest guest are after this number of slices, in slices.
    fn apart(setting: Setting, slices: u64) -> f64 {
        let each_ns = &play(setting, &[], slices * SLICE_NS).each_ns[HONEST];
        let (least, most) = (each_ns.iter().min(), each_ns.iter().max());
        (most.expect("there are some") - least.expect("there are some")) as f64 / SLICE_NS as f64
    }

    /// Settings with compute-only guests alone, and next to a guest of wakers and sleepers. The counts are vCPUs of each guest.
    fn settings(pcpus: usize) -> impl Iterator<Item = Setting> {
        let all = pcpus as u32;
        let alone = [all + 1, all + all.div_ceil(4), 2 * all + 1, 4 * all].map(|vcpus| (0, vcpus));
        let beside = [all.div_ceil(2) + 1, all, 2 * all].map(|vcpus| (1, vcpus.next_multiple_of(2)));
        let attack = Attack::WakeEachOther;
        let all = alone.into_iter().chain(beside);
        all.map(move |(hostile, vcpus)| Setting { pcpus, hostile, vcpus, attack, ..chosen(0) })
    }

    #[test]
    fn vcpus_that_always_want_to_run_stay_a_few_slices_apart() {
        for pcpus in [2, 16, 256] {
            for setting in settings(pcpus) {
                let length = if pcpus > 16 { 60 } else { 300 };
                for slices in [length, length + 7, length * 2] {
                    let own = apart(setting, slices);
                    // The reference.
                    let one = apart(Setting { queues: Queues::One, ..setting }, slices);
                    assert!(
                        own <= MOST_APART_SLICES as f64,
                        "{own} slices apart, {one} with one queue: {setting:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_yield_gives_the_yielders_turns_to_its_target_and_nothing_else() {
        const VCPUS: u32 = 16;
        for share in [Share::Vcpu, Share::Guest] {
            for attack in [Attack::WaitForOne, Attack::PassAroundOne] {
                let rules = Rules { share, ..chosen(0).rules };
                let setting = Setting { rules, vcpus: VCPUS, attack, ..chosen(0) };
                let each_ns = play(setting, &[], 400 * SLICE_NS).each_ns.swap_remove(1);
                let (all_ns, worker_ns) = (each_ns.iter().sum::<u64>(), each_ns[VCPUS as usize - 1]);
                // It may be in the middle of a turn, or have waited for the others' slices.
                let due_ns = all_ns / u64::from(VCPUS) - 2 * SLICE_NS;
                let which = format!("{share:?} {attack:?}");
                assert!(worker_ns >= due_ns, "{which}: it had {worker_ns} of {due_ns} ns: {each_ns:?}");
                // All but the share of the vCPU that waits for no other.
                let (owner_ns, due_ns) = (each_ns[1], all_ns * u64::from(VCPUS - 1) / u64::from(VCPUS));
                let has_owner = attack == Attack::WaitForOne;
                assert!(
                    !has_owner || owner_ns * 10 >= due_ns * 9,
                    "{which}: the owner had {owner_ns} of {due_ns} ns: {each_ns:?}"
                );
            }
        }
    }
}
