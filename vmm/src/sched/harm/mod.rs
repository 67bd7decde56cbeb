//! Guests that mean harm, made up, under the scheduler of `--sched vmm`, in made-up time: their vCPUs come back whenever and for
//! whatever reason they like, and write what they like into what they share with the VMM. One guest is honest: its vCPUs
//! compute, and nothing else.
//!
//! Whatever the others do, the honest guest gets its share, no vCPU is lost or in two places, and the run ends.

mod behaviour;
mod memories;
mod setting;
mod world;

use std::sync::OnceLock;

use haltkick_fuzzing::{Script, Target, no_seeds};

use crate::guest::tsc::GuestTsc;
use crate::host::clock::{Clock, Moment, SimulatedClock};
use crate::host::time::TscRate;
use crate::image::file::Image;
use crate::observe::notes::Notes;
use crate::sched::Share;
use crate::sched::core::Queues;
use crate::sched::guest_run::GuestRun;
use crate::sched::hints::Watcher;
use crate::sched::shared::Shared;
use crate::sched::starts::Starts;
use memories::Memories;
use setting::{HONEST, SLICE_NS};
use world::{World, WorldEnd};

pub(crate) use setting::{Attack, Setting};

/// The time at which a run ends whose script is not read to its end.
const LONGEST_NS: u64 = 300 * SLICE_NS;
/// Locks that the guests say they take.
const LOCKS: u32 = 1;

pub(crate) const TARGET: Target = Target { name: "scheduler", most_bytes: 1024, seeds: no_seeds, execute };

fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(Image::embedded)
}

/// Lets the guests of `setting` do as `script` says, for `length_ns` at most.
///
/// # Panics
/// If the scheduler loses a vCPU, has one twice, or does not end.
pub(crate) fn play(setting: Setting, script: &[u8], length_ns: u64) -> WorldEnd {
    let clock = Clock::Simulated(SimulatedClock::default());
    let Clock::Simulated(simulated) = &clock else { unreachable!("just made") };
    simulated.set(Moment { ns: 1, tsc: 1 });
    let (notes, watcher) = (Notes::none(), Watcher::nothing("made up"));
    let count = setting.hostile + 1;
    let memories = Memories::take(setting.vcpus, count, LOCKS);
    let guests: Vec<_> = memories
        .all
        .iter()
        .take(count)
        .enumerate()
        .map(|(index, memory)| {
            let tsc = GuestTsc::new(TscRate::of_khz(1_000_000), 0);
            let shared = Shared::new(memory, image(), LOCKS, &tsc, (true, true));
            let mut guest = GuestRun::new(setting.vcpus, tsc, &clock, &watcher, &notes);
            guest.shared = Some(shared);
            (guest.index, guest.first_vcpu) = (index, index as u32 * setting.vcpus);
            guest.window.open(1);
            // Every other hostile guest has an image whose vCPUs are to say that they have started.
            if index % 2 == 1 {
                guest.starts = Starts::said_by(setting.vcpus);
            }
            guest
        })
        .collect();
    let mut world = World::new(setting, &guests, simulated, &notes, Script::new(script));
    world.run(length_ns);
    world.end()
}

/// One execution: a setting and a script out of `bytes`.
///
/// # Panics
/// If an invariant does not hold.
fn execute(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let choice = script.byte();
    let setting = Setting {
        share: if choice & 1 == 0 { Share::Vcpu } else { Share::Guest },
        pcpus: 1 + usize::from(choice >> 1 & 1),
        queues: if choice >> 7 == 0 { Queues::PerPcpu } else { Queues::One },
        hostile: 1 + usize::from(choice >> 2 & 1) * 2,
        vcpus: 2 + u32::from(choice >> 3 & 3),
        grace: choice >> 5 & 1 != 0,
        kick_yields: choice >> 6 & 1 != 0,
        attack: Attack::Anything,
    };
    let ended = play(setting, script.rest(), LONGEST_NS);
    check_share(setting, &ended);
}

/// The most that the honest guest may lack of its share, whatever the others do: each of their vCPUs may be ahead by the credit, which is a
/// slice, and by the slice with its grace that it was in then; and each pCPU may be in the middle of a slice.
fn most_lacking_ns(setting: Setting) -> u64 {
    let slice_ns = if setting.grace { SLICE_NS * 3 / 2 } else { SLICE_NS };
    let ahead_ns = setting.hostile as u64 * u64::from(setting.vcpus) * (SLICE_NS + slice_ns);
    ahead_ns + setting.pcpus as u64 * slice_ns
}

/// The honest guest's vCPUs always want to run: it gets its share at least.
fn check_share(setting: Setting, ended: &WorldEnd) {
    let guests = setting.hostile as u64 + 1;
    // All guests have the same number of vCPUs.
    let fair_ns = ended.length_ns * setting.pcpus as u64 / guests;
    let had_ns = ended.ran_ns[HONEST];
    assert!(
        had_ns + most_lacking_ns(setting) >= fair_ns,
        "the honest guest had {had_ns} ns of its {fair_ns}, the others {:?}, {} handoffs: {setting:?}",
        &ended.ran_ns[1..],
        ended.handed
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> impl Iterator<Item = Setting> {
        (0..128_u32).map(|choice| Setting {
            share: if choice & 1 == 0 { Share::Vcpu } else { Share::Guest },
            pcpus: 1 + (choice >> 1 & 1) as usize,
            queues: if choice >> 6 & 1 == 0 { Queues::PerPcpu } else { Queues::One },
            hostile: 1 + (choice >> 2 & 1) as usize * 2,
            vcpus: 2 + (choice >> 3 & 1) * 2,
            grace: choice >> 4 & 1 != 0,
            kick_yields: choice >> 5 & 1 != 0,
            attack: Attack::Anything,
        })
    }

    #[test]
    fn an_honest_guest_gets_its_share_beside_guests_that_exchange_turns() {
        let mut handed = 0;
        for attack in [Attack::FeedOne, Attack::PassAround, Attack::KickOne, Attack::Lie] {
            for setting in settings() {
                let setting = Setting { attack, ..setting };
                let ended = play(setting, &[], 300 * SLICE_NS);
                check_share(setting, &ended);
                handed += ended.handed;
            }
        }
        assert!(handed > 10_000, "{handed} handoffs in all: nothing was tried");
    }

    #[test]
    fn fuzz_scheduler_an_honest_guest_gets_its_share_whatever_others_do() {
        TARGET.run();
    }
}
