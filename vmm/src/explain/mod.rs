//! Explanation of a failed run: the state of every vCPU at the failure, and the vCPU at fault.
//!
//! Made after all threads have ended: nothing changes then, so registers, shared areas and locks belong together.
//! Everything that the guest wrote is shown as it is and believed nowhere: a number that is no vCPU's or no lock's is
//! left out, a time that lies in the future is no time.

mod meeting;
pub(crate) mod queues;
mod text;
mod verdict;
mod word;

use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Serialize, Serializer};

use crate::guest::Activity;
use crate::guest::memory::Memory;
use crate::host::clock::{Ticks, TscRate};
use crate::host::error::RunError;
use crate::image::disassemble::{Disassembler, Line, around};
use crate::image::file::Image;
use crate::image::symbols::{Frame, Lines};
use crate::machine::build::Machine;
use crate::observe::{Where, Whereabouts};
use crate::sched::Finished;

use queues::Locks;

pub(crate) use meeting::Seen;
pub use meeting::{Meeting, Passage};
pub use queues::{Census, Queue, Registered};
pub(crate) use queues::{forbids_stealing, left_behind};
pub use verdict::{Cause, Verdict};
pub use word::Word;

/// Most bytes of a function that are decoded to find where its instructions begin.
const LONGEST_FUNCTION: u64 = 64 << 10;

/// A failed run, explained.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The vCPU at fault, and the cause.
    pub verdict: Verdict,
    /// The first time that two vCPUs were found inside one section; null where the failure is another one, or none was seen.
    pub meeting: Option<Meeting>,
    /// The locks that anybody holds or waits for.
    pub locks: Vec<LockState>,
    /// The vCPUs registered as asleep, for unlock to kick; null where the lock's kind keeps no such register.
    pub sleepers: Option<Census>,
    /// vCPUs in equal states, the one at fault first, then the largest group last.
    pub groups: Vec<Group>,
    /// Every vCPU, in order.
    pub vcpus: Vec<VcpuState>,
}

/// The name of a place in explanations, in which a vCPU that sleeps is called halted.
fn place_name(at: Where) -> &'static str {
    if at == Where::Asleep { "halted" } else { at.name() }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
fn by_name<S: Serializer>(at: &Where, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(place_name(*at))
}

/// One vCPU.
#[derive(Clone, Debug, Serialize)]
pub struct VcpuState {
    /// Its index.
    pub vcpu: u32,
    /// The vCPU's whereabouts.
    #[serde(rename = "state", serialize_with = "by_name")]
    pub at: Where,
    /// Since when it has been off its pCPU; null while it runs, and where only the host or KVM knows.
    pub off_ns: Option<u64>,
    /// The vCPU's own statement of its activity: "holder", "head", "waiter" or "other".
    pub activity: &'static str,
    /// The lock that it says it holds or waits for.
    pub lock: Option<u32>,
    /// How long ago it says it asked for that lock.
    pub asked_ns: Option<u64>,
    /// Instruction pointer; null when KVM does not tell.
    pub rip: Option<u64>,
    /// Address in a lock object to which the code at `rip` returns; null where no object has called it.
    pub caller: Option<u64>,
    /// Index of its group.
    pub group: usize,
}

/// vCPUs in the same state at the same place.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// Which.
    pub vcpus: Vec<u32>,
    /// The whereabouts of these vCPUs.
    #[serde(rename = "state", serialize_with = "by_name")]
    pub place: Where,
    /// The vCPUs' own statement of their activity.
    pub activity: &'static str,
    /// The lock that they say they hold or wait for.
    pub lock: Option<u32>,
    /// Shortest and longest time off.
    pub off_ns: Option<[u64; 2]>,
    /// Shortest and longest time since they asked for the lock.
    pub asked_ns: Option<[u64; 2]>,
    /// Code location of the first of these vCPUs; null when KVM does not tell.
    pub at: Option<Location>,
    /// Code location in a lock object that has called that code; null where none has.
    pub called_from: Option<Location>,
}

/// A place in the guest's code.
#[derive(Clone, Debug, Serialize)]
pub struct Location {
    /// The address.
    pub address: u64,
    /// Function and offset; null outside the image.
    pub symbol: Option<String>,
    /// Source lines: innermost inlined function first. Empty when unknown.
    pub frames: Vec<Frame>,
    /// Instructions around it, as they are in guest memory.
    pub code: Vec<Line>,
}

/// One lock.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LockState {
    /// Its index.
    pub lock: u32,
    /// The vCPU in its section, as that one wrote when it entered.
    pub owner: Option<u32>,
    /// The vCPU that entered its section last, as that one wrote.
    pub last: Option<u32>,
    /// Nanoseconds from when that one left the section, before its release, to when the run was stopped; null where it is inside.
    pub left_ns: Option<u64>,
    /// vCPUs that say they hold it.
    pub holders: Vec<u32>,
    /// Sections entered since boot, by all vCPUs.
    pub entered: u64,
    /// The lock itself; null where the guest does not say where it lies and what it means.
    pub word: Option<Word>,
    /// Its queue in order; null where it has none, or where it is not in memory.
    pub queue: Option<Queue>,
    /// vCPUs that say they are first in its queue.
    pub heads: Vec<u32>,
    /// vCPUs that say they wait for it elsewhere.
    pub waiters: Vec<u32>,
}

pub(crate) struct Scene<'a> {
    pub(crate) image: &'a Image,
    pub(crate) machine: &'a Machine,
    pub(crate) locks: u32,
    /// The lock that they are, by its number in the image, and whether in its paravirtual form.
    pub(crate) lock: usize,
    pub(crate) pv: bool,
    pub(crate) finished: &'a [Finished],
    pub(crate) error: &'a RunError,
    /// Host time at which the run was stopped.
    pub(crate) stopped_ns: u64,
    pub(crate) stopped_tsc: u64,
}

impl Scene<'_> {
    /// How long before `now_tsc` the guest noted the time `tsc`; `None`: it has noted none, or one to come.
    fn before_ns(&self, now_tsc: u64, tsc: u64) -> Option<u64> {
        let ticks = now_tsc.checked_sub(tsc).filter(|_| tsc != 0)?;
        Some(TscRate::of_khz(self.machine.tsc_khz).nanoseconds(Ticks(ticks)).0)
    }
}

/// Explains a run that failed in the guest; `None` where the guest is not what failed.
pub(crate) fn explain(scene: &Scene<'_>) -> Option<Explanation> {
    let in_guest = matches!(
        scene.error,
        RunError::GuestPanic { .. }
            | RunError::GuestException { .. }
            | RunError::GuestFailed { .. }
            | RunError::ExclusionViolated(_)
            | RunError::NoProgress(_)
    );
    if !in_guest {
        return None;
    }
    let mut vcpus: Vec<_> = scene.finished.iter().map(|vcpu| vcpu_state(scene, vcpu)).collect();
    if matches!(scene.error, RunError::NoProgress(_)) {
        find_waiting_holders(scene, &mut vcpus);
    }
    let of_run = Locks::new(&scene.machine.memory, scene.locks);
    let locks = lock_states(scene, &vcpus, of_run.as_ref());
    let meeting = match scene.error {
        RunError::ExclusionViolated(_) => Meeting::of(scene),
        _ => None,
    };
    let verdict = verdict::verdict(scene.error, meeting.as_ref(), &vcpus, &locks);
    let groups = Places::new(scene).group(&mut vcpus, verdict.vcpu);
    let sleepers = of_run.and_then(|locks| locks.census());
    Some(Explanation { verdict, meeting, locks, sleepers, groups, vcpus })
}

fn vcpu_state(scene: &Scene<'_>, finished: &Finished) -> VcpuState {
    let activity = &scene.machine.memory.area(finished.vcpu.id).activity;
    let doing = Activity::of(scene.machine.memory.area(finished.vcpu.id));
    let lock = activity.lock.load(Ordering::Relaxed);
    let asked_tsc = activity.since_tsc.load(Ordering::Relaxed);
    let Whereabouts { at, since_ns } = finished.whereabouts;
    let concerned = doing != Activity::Other && lock < scene.locks;
    let rip = rip(scene, finished);
    let caller = rip
        .zip(finished.vcpu.pointers().ok())
        .and_then(|(rip, (_, rsp))| caller(scene.image, &scene.machine.memory, rip, rsp));
    VcpuState {
        vcpu: finished.vcpu.id,
        at,
        off_ns: since_ns.map(|since_ns| scene.stopped_ns.saturating_sub(since_ns)),
        activity: doing.name(),
        lock: concerned.then_some(lock),
        asked_ns: scene.before_ns(scene.stopped_tsc, asked_tsc).filter(|_| concerned),
        rip,
        caller,
        group: 0,
    }
}

/// A vCPU in a section calls itself a holder also while it waits for an inner lock, which it does not own: that is what it is stuck at.
fn find_waiting_holders(scene: &Scene<'_>, vcpus: &mut [VcpuState]) {
    let owner = |lock| scene.machine.memory.oracle(lock).owner.load(Ordering::Relaxed);
    for vcpu in vcpus.iter_mut().filter(|vcpu| vcpu.activity == Activity::Holder.name()) {
        let owns = |lock| owner(lock) == vcpu.vcpu + 1;
        if vcpu.lock.is_some_and(|at| !owns(at) && (0..scene.locks).any(owns)) {
            vcpu.activity = Activity::Waiter.name();
        }
    }
}

/// Instruction pointer of the vCPU; after an exception that of the exception, because the vCPU then stands in the handler.
fn rip(scene: &Scene<'_>, finished: &Finished) -> Option<u64> {
    match scene.error {
        RunError::GuestException { vcpu, .. } if *vcpu == finished.vcpu.id => {
            Some(scene.machine.memory.area(finished.vcpu.id).report.rip.load(Ordering::Relaxed))
        }
        _ => finished.vcpu.pointers().ok().map(|(rip, _)| rip),
    }
}

fn lock_states(scene: &Scene<'_>, vcpus: &[VcpuState], of_run: Option<&Locks<'_>>) -> Vec<LockState> {
    let all = (0..scene.locks).map(|lock| {
        let oracle = scene.machine.memory.oracle(lock);
        let doing = |activity: &str| -> Vec<u32> {
            let those = vcpus.iter().filter(|vcpu| vcpu.lock == Some(lock) && vcpu.activity == activity);
            those.map(|vcpu| vcpu.vcpu).collect()
        };
        let named = |word: &AtomicU32| {
            let vcpu = word.load(Ordering::Relaxed).checked_sub(1);
            vcpu.filter(|&vcpu| (vcpu as usize) < vcpus.len())
        };
        let owner = named(&oracle.owner);
        let left_tsc = oracle.left_tsc.load(Ordering::Relaxed);
        let heads = doing(Activity::Head.name());
        let is_first = |vcpu| heads.contains(&vcpu) || owner == Some(vcpu);
        let queue = of_run.and_then(|locks| locks.queue(lock, is_first));
        LockState {
            lock,
            owner,
            last: named(&oracle.last),
            left_ns: scene.before_ns(scene.stopped_tsc, left_tsc).filter(|_| owner.is_none()),
            holders: doing(Activity::Holder.name()),
            entered: oracle.entered.load(Ordering::Relaxed),
            word: of_run.and_then(|locks| locks.word(lock)),
            queue,
            heads,
            waiters: doing(Activity::Waiter.name()),
        }
    });
    let is_used = |lock: &LockState| {
        lock.owner.is_some()
            || [&lock.holders, &lock.heads, &lock.waiters].iter().any(|vcpus| !vcpus.is_empty())
    };
    all.filter(is_used).collect()
}

/// The state of the lock that `vcpu` is at, of `locks`, in words: its word, and how many queue; `None` where the guest does not say what
/// its locks look like.
pub(crate) fn lock_in_words(memory: &Memory, vcpu: u32, locks: u32) -> Option<String> {
    let said = |vcpu| &memory.area(vcpu).activity;
    // Relaxed: nothing runs while this is read.
    let lock = said(vcpu).lock.load(Ordering::Relaxed);
    let of_run = Locks::new(memory, locks).filter(|_| lock < locks)?;
    let leads = [Activity::Head, Activity::Holder];
    let is_first = |other| {
        let of_lock = said(other).lock.load(Ordering::Relaxed) == lock;
        of_lock && leads.contains(&Activity::of(memory.area(other)))
    };
    let queue = of_run.queue(lock, is_first).map(|queue| {
        let least = if queue.from_head { "" } else { "at least " };
        format!("; {least}{} in the queue", queue.vcpus.len())
    });
    Some(of_run.word(lock)?.meaning + &queue.unwrap_or_default())
}

/// Names places and gathers the vCPUs that are at the same one.
struct Places<'a> {
    scene: &'a Scene<'a>,
    lines: Option<Lines<'a>>,
    disassembler: Disassembler,
}

impl<'a> Places<'a> {
    fn new(scene: &'a Scene<'a>) -> Self {
        Self { scene, lines: scene.image.lines(), disassembler: Disassembler::new(scene.image) }
    }

    fn group(&mut self, vcpus: &mut [VcpuState], at_fault: Option<u32>) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        let mut keys = Vec::new();
        for vcpu in vcpus.iter() {
            let function = vcpu.caller.or(vcpu.rip).map(|address| self.function(address));
            // The one at fault stands alone.
            let alone = (Some(vcpu.vcpu) == at_fault).then_some(vcpu.vcpu);
            let key = (place_name(vcpu.at), vcpu.activity, vcpu.lock, function, alone);
            let place = keys.iter().position(|other| *other == key).unwrap_or_else(|| {
                keys.push(key);
                groups.push(Group {
                    vcpus: Vec::new(),
                    place: vcpu.at,
                    activity: vcpu.activity,
                    lock: vcpu.lock,
                    off_ns: None,
                    asked_ns: None,
                    at: vcpu.rip.map(|rip| self.location(rip)),
                    called_from: vcpu.caller.map(|address| self.return_location(address)),
                });
                groups.len() - 1
            });
            let group = &mut groups[place];
            group.vcpus.push(vcpu.vcpu);
            widen(&mut group.off_ns, vcpu.off_ns);
            widen(&mut group.asked_ns, vcpu.asked_ns);
        }
        // The one at fault first, then from small groups to large ones: what is rare is what is interesting.
        groups.sort_by_key(|group| {
            (!at_fault.is_some_and(|vcpu| group.vcpus.contains(&vcpu)), group.vcpus.len(), group.vcpus[0])
        });
        for (number, group) in groups.iter().enumerate() {
            group.vcpus.iter().for_each(|vcpu| vcpus[*vcpu as usize].group = number);
        }
        groups
    }

    /// Returns the functions that tell places apart: the one that holds the code and the one that it was inlined from.
    fn function(&self, rip: u64) -> (Option<u64>, Option<String>) {
        let symbol = self.scene.image.symbols().at(rip).map(|(symbol, _)| symbol.address);
        let frames = self.lines.as_ref().map(|lines| lines.frames(rip)).unwrap_or_default();
        (symbol, frames.into_iter().find(|frame| !frame.is_library()).and_then(|frame| frame.function))
    }

    /// The place of a call that returns to this address.
    fn return_location(&mut self, address: u64) -> Location {
        // A call of a function that never returns may be the last instruction of its function.
        Location { code: vec![], ..self.location(address - 1) }
    }

    fn location(&mut self, rip: u64) -> Location {
        let symbol = self.scene.image.symbols().at(rip);
        let code = symbol.and_then(|(symbol, _)| {
            let len = symbol.size.min(LONGEST_FUNCTION);
            let code = self.scene.machine.memory.read(symbol.address, len)?;
            let lines = self.disassembler.decode(&code, symbol.address);
            Some(around(&lines, rip).to_vec())
        });
        Location {
            address: rip,
            symbol: symbol.map(|(symbol, offset)| format!("{}+{offset:#x}", symbol.short_name())),
            frames: self.lines.as_ref().map(|lines| lines.frames(rip)).unwrap_or_default(),
            code: code.unwrap_or_default(),
        }
    }
}

fn widen(range: &mut Option<[u64; 2]>, value: Option<u64>) {
    if let Some(value) = value {
        let [least, most] = range.get_or_insert([value; 2]);
        (*least, *most) = ((*least).min(value), (*most).max(value));
    }
}

/// Words of a stack that are looked at.
const MOST_WORDS: u64 = 256;
/// The byte that begins a call of a function by its distance, and the length of such a call.
const CALL: (u8, u64) = (0xe8, 5);
/// The byte that begins a call through a register or memory, and the longest of such calls.
const CALL_THROUGH: (u8, u64) = (0xff, 7);

/// Returns the address in a lock object to which the code at `rip` returns; none where no object has called it.
///
/// The image has no frame pointers. Its functions for objects need few words of the stack, a panic some more, and above these lies the
/// address to which they return.
fn caller(image: &Image, memory: &Memory, rip: u64, rsp: u64) -> Option<u64> {
    let is_in_object = |address| image.objects.iter().any(|object| object.addresses.contains(&address));
    if is_in_object(rip) || image.objects.is_empty() {
        return None;
    }
    (0..MOST_WORDS).find_map(|word| {
        let bytes = memory.read(rsp.checked_add(word * 8)?, 8)?;
        let address = u64::from_le_bytes(bytes.try_into().ok()?);
        (is_in_object(address) && follows_call(memory, address)).then_some(address)
    })
}

/// Whether a call ends before this address.
fn follows_call(memory: &Memory, address: u64) -> bool {
    let bytes = |before: u64| memory.read(address.checked_sub(before)?, before);
    let is_through = |code: Vec<u8>| code[0] == CALL_THROUGH.0 && (code[1] >> 3) & 7 == 2;
    bytes(CALL.1).is_some_and(|code| code[0] == CALL.0)
        || (2..=CALL_THROUGH.1).any(|length| bytes(length).is_some_and(is_through))
}
