//! Which vCPU is at fault, and why.

use serde::Serialize;

use super::text::{duration, vcpu_list};
use super::{LockState, Meeting, VcpuState};
use crate::host::error::RunError;
use crate::observe::Where;

/// Off for less than this is nothing.
const LONG_OFF_NS: u64 = 100_000_000;

/// The cause of a failed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The guest panicked.
    Panic,
    /// The guest took an exception.
    Exception,
    /// The guest, or KVM, ended a vCPU in another way.
    GuestFailure,
    /// Two vCPUs were in one section.
    ExclusionBroken,
    /// The holder runs, and does not let go.
    HolderRuns,
    /// The holder is not running.
    HolderOff,
    /// The holder sleeps.
    HolderAsleep,
    /// The holder has left.
    HolderLeft,
    /// vCPUs wait for each other's locks.
    Deadlock,
    /// A vCPU sleeps, and no vCPU will kick it.
    LostWakeUp,
    /// No vCPU is inside, the next in the queue runs and does not get the lock, and the lock's word is not known.
    NotReleased,
    /// The lock is free, and the next in the queue runs and does not take it.
    HeadRuns,
    /// The next in the queue is not running.
    HeadOff,
    /// No other cause fits.
    Unknown,
}

/// The vCPU at fault, and the cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The cause of the failure.
    pub cause: Cause,
    /// The vCPU at fault; null if there is no telling.
    pub vcpu: Option<u32>,
    /// The lock that it is about, if any.
    pub lock: Option<u32>,
    /// One sentence.
    pub text: String,
}

/// Judges a failed run by what everybody was doing.
pub(super) fn verdict(
    error: &RunError,
    meeting: Option<&Meeting>,
    vcpus: &[VcpuState],
    locks: &[LockState],
) -> Verdict {
    let about = |cause, vcpu, text| Verdict { cause, vcpu, lock: None, text };
    match error {
        RunError::GuestPanic { vcpu, place, .. } => {
            about(Cause::Panic, Some(*vcpu), format!("vCPU {vcpu} panicked at {place}"))
        }
        RunError::GuestException { vcpu, name, .. } => {
            about(Cause::Exception, Some(*vcpu), format!("vCPU {vcpu} took {name}"))
        }
        RunError::GuestFailed { vcpu, .. } => about(
            Cause::GuestFailure,
            Some(*vcpu),
            format!("vCPU {vcpu} ended in a way that no guest should"),
        ),
        RunError::ExclusionViolated(_) => {
            let inside: Vec<_> =
                vcpus.iter().filter(|vcpu| vcpu.activity == "holder").map(|vcpu| vcpu.vcpu).collect();
            let met = meeting.map_or("two vCPUs were inside one section".into(), Meeting::text);
            let text = match inside.len() {
                0 => format!("{met}; both have left it since"),
                _ => format!("{met}; inside at the end: vCPU {}", vcpu_list(&inside)),
            };
            Verdict { lock: meeting.map(|it| it.lock), ..about(Cause::ExclusionBroken, None, text) }
        }
        _ => stuck(vcpus, locks),
    }
}

/// Judges a guest in which nothing moves: the lock that most wait for decides.
fn stuck(vcpus: &[VcpuState], locks: &[LockState]) -> Verdict {
    if let Some(verdict) = deadlock(vcpus, locks) {
        return verdict;
    }
    let waited_for = locks.iter().filter(|lock| !lock.heads.is_empty() || !lock.waiters.is_empty());
    let worst = waited_for.max_by_key(|lock| (lock.owner.is_some(), lock.heads.len() + lock.waiters.len()));
    if let Some(lock) = worst.or_else(|| locks.iter().find(|lock| lock.owner.is_some())) {
        let lock = innermost(vcpus, locks, lock);
        // One that has taken it may not yet, or no longer, have written that it is inside.
        let says_so = |vcpu: &&VcpuState| vcpu.activity == "holder" && vcpu.lock == Some(lock.lock);
        let owner = lock.owner.or_else(|| vcpus.iter().find(says_so).map(|vcpu| vcpu.vcpu));
        return match owner {
            Some(owner) => held(&vcpus[owner as usize], lock, vcpus),
            None => free(vcpus, lock),
        };
    }
    nobody_waits(vcpus)
}

/// The lock for which the owner of `lock` waits, and so on.
fn innermost<'a>(vcpus: &[VcpuState], locks: &'a [LockState], lock: &'a LockState) -> &'a LockState {
    let waited_for = |lock: &&'a LockState| {
        let owner = &vcpus[lock.owner? as usize];
        let at = owner.lock.filter(|at| *at != lock.lock && owner.activity != "holder")?;
        locks.iter().find(|other| other.lock == at)
    };
    // There is no circle, which would be a deadlock; or one that has come about meanwhile.
    std::iter::successors(Some(lock), waited_for).take(locks.len()).last().unwrap_or(lock)
}

fn deadlock(vcpus: &[VcpuState], locks: &[LockState]) -> Option<Verdict> {
    let owner_of = |lock: u32| locks.iter().find(|other| other.lock == lock)?.owner;
    // Returns the owner that a vCPU waits for, and the lock.
    let waits_for = |vcpu: u32| {
        let vcpu = &vcpus[vcpu as usize];
        let lock = vcpu.lock.filter(|_| vcpu.activity == "waiter" || vcpu.activity == "head")?;
        Some((lock, owner_of(lock)?))
    };
    for first in locks.iter().filter_map(|lock| lock.owner) {
        let (mut circle, mut at) = (vec![first], first);
        while let Some((lock, owner)) = waits_for(at) {
            if owner == first {
                let text = format!("deadlock: vCPUs {} wait for each other's locks", vcpu_list(&circle));
                return Some(Verdict { cause: Cause::Deadlock, vcpu: Some(first), lock: Some(lock), text });
            }
            if circle.contains(&owner) {
                break;
            }
            circle.push(owner);
            at = owner;
        }
    }
    None
}

/// Whether `vcpu` was off for most of the time that anybody waits for its lock: else it had turns, and did nothing with
/// them that helped.
fn is_off_for_long(vcpu: &VcpuState, vcpus: &[VcpuState]) -> bool {
    let waits = vcpus.iter().filter(|other| other.lock == vcpu.lock && other.vcpu != vcpu.vcpu);
    let longest_ns = waits.filter_map(|other| other.asked_ns).max().unwrap_or(0);
    vcpu.off_ns.is_some_and(|off_ns| off_ns > LONG_OFF_NS && off_ns > longest_ns / 2)
}

/// " for 1.2 s"; nothing where only KVM knows.
fn for_time(off_ns: Option<u64>) -> String {
    off_ns.map_or_else(String::new, |ns| format!(" for {}", duration(ns)))
}

fn held(owner: &VcpuState, lock: &LockState, vcpus: &[VcpuState]) -> Verdict {
    let (vcpu, number) = (owner.vcpu, lock.lock);
    let off = for_time(owner.off_ns);
    let (cause, what) = match owner.at {
        Where::Asleep => (Cause::HolderAsleep, format!("has slept{off}: no vCPU will kick it")),
        Where::Left => (Cause::HolderLeft, "has left without releasing it".into()),
        Where::Preempted(_) | Where::KeptOut(_) | Where::Ready if is_off_for_long(owner, vcpus) => {
            (Cause::HolderOff, format!("has been off its pCPU{off}"))
        }
        _ => (Cause::HolderRuns, "has run since, and does not release it".into()),
    };
    let text = format!("vCPU {vcpu} holds lock {number} and {what}");
    Verdict { cause, vcpu: Some(vcpu), lock: Some(number), text }
}

/// Judges a free lock that a vCPU waits for.
fn free(vcpus: &[VcpuState], lock: &LockState) -> Verdict {
    let number = lock.lock;
    let next = lock.heads.first().or(lock.waiters.first()).map(|&vcpu| &vcpus[vcpu as usize]);
    let Some(next) = next else { return nobody_waits(vcpus) };
    let vcpu = next.vcpu;
    let which = if lock.heads.contains(&vcpu) { "is first in the queue of" } else { "waits for" };
    let off = for_time(next.off_ns);
    // A word that is decoded says itself whether the lock is free.
    let last = lock.last.filter(|_| lock.word.is_none());
    let (cause, what) = match next.at {
        Where::Asleep => {
            let unreleased = last.map_or(String::new(), |last| {
                format!(", or vCPU {last}, which was inside last, did not release the lock")
            });
            let what =
                format!("has slept{off}, and no vCPU is inside to kick it: a wake-up was lost{unreleased}");
            (Cause::LostWakeUp, what)
        }
        Where::Preempted(_) | Where::KeptOut(_) | Where::Ready if is_off_for_long(next, vcpus) => {
            (Cause::HeadOff, format!("has been off its pCPU{off}"))
        }
        _ => match last {
            Some(last) => return not_released(last, lock.left_ns, vcpu, number),
            None => (Cause::HeadRuns, "runs, and does not take it".into()),
        },
    };
    let text = format!("vCPU {vcpu} {which} lock {number} and {what}");
    Verdict { cause, vcpu: Some(vcpu), lock: Some(number), text }
}

/// Judges a lock that `last` has left and that a running vCPU does not get.
fn not_released(last: u32, left_ns: Option<u64>, waiter: u32, lock: u32) -> Verdict {
    let left = left_ns.map_or(String::new(), |ns| format!(" and left {} ago", duration(ns)));
    let text = format!(
        "vCPU {last} was the last inside lock {lock}{left}, and vCPU {waiter}, which waits and runs, does not get it: the release is \
         missing, or waiters do not see it"
    );
    Verdict { cause: Cause::NotReleased, vcpu: Some(last), lock: Some(lock), text }
}

/// No lock is to blame.
fn nobody_waits(vcpus: &[VcpuState]) -> Verdict {
    let asleep = vcpus.iter().filter(|vcpu| vcpu.at == Where::Asleep);
    let Some(first) = asleep.clone().min_by_key(|vcpu| std::cmp::Reverse(vcpu.off_ns)) else {
        let text = "no vCPU holds a lock, waits for one, or sleeps".into();
        return Verdict { cause: Cause::Unknown, vcpu: None, lock: None, text };
    };
    let (vcpu, others) = (first.vcpu, asleep.count() - 1);
    let longest = first.off_ns.map_or_else(String::new, |ns| format!(" longest, for {}", duration(ns)));
    let text = format!(
        "vCPU {vcpu} has slept{longest}, and was not kicked ({others} others sleep): a wake-up was lost"
    );
    Verdict { cause: Cause::LostWakeUp, vcpu: Some(vcpu), lock: None, text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::Word;
    use crate::guest::Activity;

    const SECOND: u64 = 1_000_000_000;

    /// A vCPU that is concerned with lock 0, or with none.
    fn vcpu(at: Where, activity: &'static str, off_ns: Option<u64>) -> VcpuState {
        let lock = (activity != "other").then_some(0);
        VcpuState { vcpu: 0, at, off_ns, activity, lock, asked_ns: None, rip: None, caller: None, group: 0 }
    }

    fn running(activity: &'static str) -> VcpuState {
        vcpu(Where::Running, activity, None)
    }

    fn asleep(activity: &'static str, off_ns: u64) -> VcpuState {
        vcpu(Where::Asleep, activity, Some(off_ns))
    }

    fn off(activity: &'static str, off_ns: u64) -> VcpuState {
        vcpu(Where::Preempted(Activity::Holder), activity, Some(off_ns))
    }

    fn lock(owner: Option<u32>, heads: &[u32], waiters: &[u32]) -> LockState {
        let (heads, waiters) = (heads.to_vec(), waiters.to_vec());
        LockState { owner, entered: 1, heads, waiters, ..LockState::default() }
    }

    /// The verdict. vCPUs and locks are numbered by their places.
    fn judged(mut vcpus: Vec<VcpuState>, mut locks: Vec<LockState>) -> Verdict {
        vcpus.iter_mut().zip(0..).for_each(|(vcpu, number)| vcpu.vcpu = number);
        locks.iter_mut().zip(0..).for_each(|(lock, number)| lock.lock = number);
        verdict(&RunError::NoProgress(String::new()), None, &vcpus, &locks)
    }

    /// The cause and the vCPU at fault.
    fn judge(vcpus: Vec<VcpuState>, locks: Vec<LockState>) -> (Cause, Option<u32>) {
        let verdict = judged(vcpus, locks);
        (verdict.cause, verdict.vcpu)
    }

    #[test]
    fn a_holder_is_at_fault_for_what_it_does_while_others_wait() {
        for (holder, cause) in [
            (running("holder"), Cause::HolderRuns),
            (off("holder", 1_000_000), Cause::HolderRuns),
            (off("holder", SECOND), Cause::HolderOff),
            (asleep("holder", SECOND), Cause::HolderAsleep),
            (vcpu(Where::Left, "holder", None), Cause::HolderLeft),
        ] {
            // The verdict is equal when the holder has not yet written that it is inside.
            for owner in [Some(1), None] {
                let vcpus = vec![asleep("head", SECOND), holder.clone()];
                assert_eq!(judge(vcpus, vec![lock(owner, &[0], &[])]), (cause, Some(1)), "{holder:?}");
            }
        }
    }

    #[test]
    fn whom_locks_wait_for_in_the_end_is_named() {
        use Cause::{Deadlock, HeadOff, HeadRuns, HolderRuns, LostWakeUp, NotReleased, Unknown};
        let at_second_lock = |vcpu| VcpuState { lock: Some(1), ..vcpu };
        let early = VcpuState { asked_ns: Some(SECOND), ..asleep("head", SECOND) };
        let free = lock(None, &[1], &[0]);
        let unknown = LockState { last: Some(1), ..lock(None, &[], &[0]) };
        let word = Some(Word { address: 0, value: 0, meaning: "free".into() });
        let left = || vec![running("waiter"), running("other")];
        let waits = at_second_lock(asleep("waiter", SECOND));
        let chain = || vec![asleep("head", SECOND), waits.clone(), running("other")];
        let of_chain = |owner| vec![lock(Some(1), &[0], &[]), lock(owner, &[], &[1])];
        let two_held = |heads: &[u32]| vec![lock(Some(0), heads, &[]), lock(Some(1), &[], &[0])];
        for (vcpus, locks, cause, at_fault) in [
            // A holder with earlier turns is not excused by a missing one.
            (vec![early, off("holder", SECOND / 4)], vec![lock(Some(1), &[0], &[])], HolderRuns, Some(1)),
            // A sleeping head of a free lock was not kicked.
            (
                vec![asleep("waiter", 2 * SECOND), asleep("head", SECOND)],
                vec![free.clone()],
                LostWakeUp,
                Some(1),
            ),
            (vec![asleep("waiter", SECOND), running("head")], vec![free], HeadRuns, Some(1)),
            (vec![off("head", SECOND)], vec![lock(None, &[0], &[])], HeadOff, Some(0)),
            // Without any lock the longest sleeper is named.
            (vec![asleep("other", SECOND), asleep("other", 2 * SECOND)], vec![], LostWakeUp, Some(1)),
            (vec![running("other")], vec![], Unknown, None),
            // A lock of unknown state was not released by the last inside, unless its word says that it is free.
            (left(), vec![unknown.clone()], NotReleased, Some(1)),
            (left(), vec![LockState { word, ..unknown }], HeadRuns, Some(0)),
            // Holders that wait for each other, and a chain that ends: vCPU 1 holds what vCPU 0 waits for.
            (vec![waits.clone(), running("head")], two_held(&[1]), Deadlock, Some(0)),
            (vec![waits.clone(), at_second_lock(running("holder"))], two_held(&[]), HolderRuns, Some(1)),
            // An owner that waits for another lock is not blamed.
            (chain(), of_chain(None), LostWakeUp, Some(1)),
            (chain(), of_chain(Some(2)), HolderRuns, Some(2)),
        ] {
            assert_eq!(judge(vcpus.clone(), locks), (cause, at_fault), "{vcpus:?}");
        }
        assert_eq!(judged(chain(), of_chain(None)).lock, Some(1), "the lock at the chain's end");
    }
}
