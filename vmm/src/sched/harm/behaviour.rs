//! Behaviour of the vCPUs: when they come back to the scheduler, what for, and what they write before.

use std::sync::atomic::Ordering::Relaxed;

use haltkick_fuzzing::Script;

use crate::guest::activity::Activity;
use crate::machine::exits::Exit;
use crate::sched::harm::setting::{Attack, HONEST, SLICE_NS, Setting};
use crate::sched::queue::Task;

/// The behaviour of the vCPUs of all guests.
pub(super) struct Behaviour<'s> {
    setting: Setting,
    script: Script<'s>,
}

impl<'s> Behaviour<'s> {
    pub(super) fn new(setting: Setting, script: Script<'s>) -> Self {
        Self { setting, script }
    }

    /// Whether nothing new will happen: all vCPUs do as a script says, and that is at its end.
    pub(super) fn is_over(&self) -> bool {
        self.setting.attack == Attack::Anything && self.script.is_over()
    }

    /// After how long a vCPU whose turn has lasted `ran_ns` comes back by itself, and what for.
    pub(super) fn next(&mut self, task: &Task<'_>, ran_ns: u64) -> (u64, Exit) {
        const NEVER: (u64, Exit) = (u64::MAX, Exit::Interrupted);
        const MOMENT_NS: u64 = 100_000;
        let (id, vcpus) = (task.vcpu.id, self.setting.vcpus);
        let has_begun = task.guest.shared.as_ref().is_none_or(|shared| {
            let started = &shared.memory.control().started;
            // Relaxed: one thread.
            started.load(Relaxed) >= vcpus
        });
        if task.guest.index == HONEST || self.setting.attack != Attack::Anything {
            let lies = task.guest.index != HONEST && self.setting.attack == Attack::Lie;
            if id == 0 && !has_begun && !(lies && task.guest.checked_activity(0) == Activity::Holder) {
                return (MOMENT_NS / 2, self.boots(task, lies));
            }
        }
        if task.guest.index == HONEST {
            return NEVER;
        }
        match self.setting.attack {
            Attack::Anything => self.anything(task),
            Attack::FeedOne if id == 0 => (MOMENT_NS, Exit::Yield(Some(1))),
            Attack::PassAround => (MOMENT_NS, Exit::Yield(Some((id + 1) % vcpus))),
            Attack::KickOne if id == 0 => (MOMENT_NS, Exit::Kick(1)),
            Attack::KickOne if id == 1 => (SLICE_NS.saturating_sub(ran_ns + 1), Exit::Wait),
            Attack::WakeEachOther if id % 2 == 0 => (3 * MOMENT_NS, Exit::Kick(id + 1)),
            Attack::WakeEachOther => (2 * MOMENT_NS, Exit::Wait),
            Attack::WaitForOne if id != 1 && id + 1 < vcpus => (MOMENT_NS / 100, Exit::Yield(Some(1))),
            Attack::PassAroundOne if id + 1 < vcpus => {
                (MOMENT_NS / 100, Exit::Yield(Some((id + 1) % (vcpus - 1))))
            }
            Attack::FeedOne | Attack::KickOne | Attack::Lie | Attack::WaitForOne | Attack::PassAroundOne => {
                NEVER
            }
        }
    }

    /// The first vCPU boots its guest, and says for all of them that they have begun; one that lies says otherwise.
    fn boots(&mut self, task: &Task<'_>, lies: bool) -> Exit {
        let shared = task.guest.shared.as_ref().expect("all share");
        for vcpu in 0..self.setting.vcpus {
            let state =
                if lies { haltkick_hypercalls::ACTIVITY_HOLDER } else { haltkick_hypercalls::ACTIVITY_OTHER };
            shared.area(vcpu).activity.state.store(state, Relaxed);
        }
        if !lies {
            shared.memory.control().started.store(self.setting.vcpus, Relaxed);
        }
        Exit::Booted
    }

    fn anything(&mut self, task: &Task<'_>) -> (u64, Exit) {
        let shared = task.guest.shared.as_ref().expect("all share");
        let script = &mut self.script;
        for _ in 0..script.byte() % 4 {
            let structure = ["control", "vcpu", "vcpu", "oracle"][usize::from(script.byte() % 4)];
            let (index, offset, value) =
                (script.number() as u32, u64::from(script.byte()) * 8, script.number());
            shared.memory.deposit(structure, index, offset, value);
        }
        let after_ns = match script.byte() {
            short @ 0..128 => u64::from(short) * 100,
            long => u64::from(long - 127) * 20_000,
        };
        let exit = match script.byte() % 32 {
            0..8 => Exit::Yield(Some(script.number() as u32)),
            8..10 => Exit::Yield(None),
            10..17 => Exit::Kick(script.number() as u32),
            17..20 => Exit::Wait,
            20 => Exit::Booted,
            21 => Exit::Point(script.number() as u32),
            22 => Exit::Invalidate,
            23 => Exit::WorkDone,
            24 => Exit::Console(script.byte()),
            25 => Exit::Device,
            27 => Exit::Started,
            // Seldom: the guest is over then.
            26 => match script.number() {
                0 => Exit::Panic,
                1 => Exit::Exception,
                2 => Exit::Left,
                3 => Exit::Halt,
                4 => Exit::Shutdown,
                5 => Exit::Unexpected { reason: script.number() as u32, detail: script.number() },
                _ => Exit::Interrupted,
            },
            _ => Exit::Interrupted,
        };
        (after_ns, exit)
    }
}
