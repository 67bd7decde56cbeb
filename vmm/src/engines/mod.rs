//! Engines that run a guest: our own VMM, on KVM or in this process; QEMU; and our own VMM, under a Linux kernel as the guest.
//!
//! If two vCPUs were inside one section on a simulated machine, it is looked into: the run is the same each time, so it is made once more
//! up to that moment, with a witness of the instructions by which the lock is taken and released.

pub(crate) mod linux;
pub(crate) mod lock_code;
mod meddler;
pub(crate) mod qemu;
pub(crate) mod vmm;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use haltkick_sim::board::{Step, Watching, Witness};
use haltkick_sim::{Access, Cpu};

use crate::explain::{Meeting, Seen};
use crate::host::clock::{Ticks, TscRate, read_tsc};
use crate::host::error::RunError;
use crate::image::author::Author;
use crate::image::file::Image;
use crate::machine::vm::allow_open_files;
use crate::observe::Instruments;
use crate::run::asked::{Engine, Run};
use crate::run::check::choose;
use crate::run::outcome::Found;

use lock_code::{LockCode, Part};
use vmm::Watched;

/// Refuses what cannot be run, as far as that can be told before anything is created.
///
/// # Errors
/// [`RunError::Usage`], and what the host lacks for guests of this size.
pub fn check_guests(run: &Run, image: &Image) -> Result<(), RunError> {
    choose(run, image)?;
    match (run.linux(), &run.engine) {
        // How much memory and how many vCPUs there may be is QEMU's own choice.
        (Some((_, linux)), Engine::Qemu(_)) => linux::load::check(linux)?,
        (Some((guest, linux)), _) => linux::refuse(run, guest, linux)?,
        (None, _) => {}
    }
    // The calibration has fewer vCPUs, and would ask for too few.
    match run.engine {
        Engine::Kvm => allow_open_files(run.guests.iter().map(|guest| guest.vcpus).sum()),
        _ => Ok(()),
    }
}

/// Runs guests, as [`run`] says, and has a run on a simulated machine watched.
pub(crate) fn run_watched(
    run: &Run,
    image: &Image,
    instruments: &Instruments,
    stop: &AtomicBool,
    watched: Watched<'_>,
) -> Result<Found, RunError> {
    // The counter of a simulated machine begins with the run.
    let start_tsc = if run.engine.is_simulated() { 0 } else { read_tsc() };
    if let Some(linux) = run.linux() {
        return match run.engine {
            Engine::Qemu(accelerator) => qemu::linux::run(run, linux, accelerator, stop, instruments),
            _ => linux::run(run, linux, stop, instruments),
        };
    }
    instruments.check()?;
    let chosen = choose(run, image)?;
    match run.engine {
        Engine::Kvm | Engine::Threads | Engine::Sim(_) => {
            vmm::run(run, image, &chosen, stop, instruments, (start_tsc, watched))
        }
        Engine::Qemu(accelerator) => qemu::run(run.our(0), image, chosen[0], accelerator, stop, instruments),
    }
}

/// Picoseconds in a nanosecond.
const PS: u64 = 1000;
/// How long before the vCPUs asked for the lock releases are looked for.
const BEFORE_NS: u64 = 50_000;

/// Runs guests, all at the same time, to the end of the window.
///
/// `stop` is polled: setting it (from a signal handler) ends the run with [`RunError::Interrupted`].
///
/// # Errors
/// What concerns all guests: settings that make no sense, what the host lacks, a request to stop. How each guest ended is found.
pub fn run(
    run: &Run,
    image: &Image,
    instruments: &Instruments,
    stop: &AtomicBool,
) -> Result<Found, RunError> {
    let mut found = run_watched(run, image, instruments, stop, Watched::default())?;
    for meeting in meetings(&mut found) {
        meeting.is_on_hardware = !run.engine.is_simulated();
        // With a trace the guest has more to do.
        let same = Instruments { trace: instruments.trace, ..Instruments::default() };
        look(run, image, meeting, |looking, over| {
            let watched = Watched { window: None, witness: Some(looking) };
            run_watched(run, image, &same, over, watched).map(|_| ())
        });
    }
    Ok(found)
}

/// Sections that two vCPUs were in.
pub(crate) fn meetings(found: &mut Found) -> impl Iterator<Item = &mut Meeting> {
    found.guests.iter_mut().filter_map(|guest| guest.explanation.as_mut()?.meeting.as_mut())
}

/// Has `again` make a run on a simulated machine once more, with a witness that looks how the vCPUs of `meeting` came to it. It is asked to
/// stop when that is seen. What cannot be seen stays as it is.
pub(crate) fn look(
    run: &Run,
    image: &Image,
    meeting: &mut Meeting,
    again: impl FnOnce(Looking, &AtomicBool) -> Result<(), RunError>,
) {
    // The witness cannot tell vCPUs of two guests apart.
    let machine = run.engine.machine().filter(|_| run.guests.len() == 1);
    let code = machine.and_then(|_| LockCode::new(run.our(0), image, true).ok());
    let (Some(machine), Some(code)) = (machine, code) else { return };
    let at_ns = TscRate::of_khz(machine.costs.clock_khz).nanoseconds(Ticks(meeting.tsc)).0;
    let before = [Some(&meeting.came), meeting.inside.as_ref(), meeting.released.as_ref()];
    let before_ns = before.into_iter().flatten().filter_map(|passage| passage.before_ns).max().unwrap_or(0);
    let over = Arc::new(AtomicBool::new(false));
    let vcpus = run.guests[0].vcpus as usize;
    let seen = Rc::new(RefCell::new(Passages {
        code,
        span_ps: at_ns.saturating_sub(before_ns + BEFORE_NS) * PS..at_ns * PS,
        takes: vec![VecDeque::new(); vcpus],
        took: vec![VecDeque::new(); vcpus],
        gave: VecDeque::new(),
        over: Arc::clone(&over),
        other: None,
    }));
    // It ends by that request, with nothing to tell.
    _ = again(Rc::clone(&seen), &over);
    let seen = seen.borrow();
    let took: Vec<Seen> = seen.took.iter().filter_map(|way| by(image, way.iter(), |_| true)).collect();
    let came = took.iter().find(|took| took.vcpu == meeting.came.vcpu).map_or(at_ns, |took| took.at_ns);
    let before = seen.gave.iter().filter(|(seen, _)| seen.at_ns <= came);
    let released = by(image, before, |access| access != Access::Read);
    let lock = image.locks.iter().position(|lock| lock.name == run.our(0).ours.lock);
    let author = Author::new(image, lock.unwrap_or(usize::MAX), run.guests[0].pv);
    meeting.see((image, &author), at_ns, &took, released);
}

/// The instruction of `way` that did it: the last one that accessed, as `counts` says, a line that several cores have used. Where the vCPU
/// that was there last has no such one, because it was alone with the lock so far, its last one that writes.
fn by<'w>(
    image: &Image,
    way: impl DoubleEndedIterator<Item = &'w Executed> + Clone,
    counts: impl Fn(Access) -> bool,
) -> Option<Seen> {
    let shared = way.clone().rfind(|(_, shared)| shared.is_some_and(&counts)).map(|(seen, _)| *seen);
    let writes = way.clone().rfind(|(seen, _)| image.writes(seen.address)).map(|(seen, _)| *seen);
    match (shared, writes) {
        (Some(shared), Some(writes)) if shared.vcpu != writes.vcpu && shared.at_ns < writes.at_ns => {
            Some(writes)
        }
        (Some(seen), _) | (None, Some(seen)) => Some(seen),
        (None, None) => way.last().map(|(seen, _)| *seen),
    }
}

/// An instruction, and its strongest access to a line that several cores have used.
type Executed = (Seen, Option<Access>);

/// Most instructions of a call that are kept, and of all releases.
const MOST_OF_CALL: usize = 256;
const MOST_OF_RELEASES: usize = 4096;

/// The witness, which its maker goes on to look at.
pub(crate) type Looking = Rc<RefCell<Passages>>;

pub(crate) struct Passages {
    code: LockCode,
    span_ps: std::ops::Range<u64>,
    /// For each vCPU: instructions by which it is about to take the lock, and those by which it took it last.
    takes: Vec<VecDeque<Executed>>,
    took: Vec<VecDeque<Executed>>,
    /// Instructions by which the lock was released.
    gave: VecDeque<Executed>,
    over: Arc<AtomicBool>,
    /// Another witness, which stands at instructions that it chooses.
    pub(crate) other: Option<Watching>,
}

impl Witness for Passages {
    fn wants_steps(&self, at_ps: u64) -> bool {
        at_ps >= self.span_ps.start
    }

    fn stands(&mut self, cpu: &mut Cpu, at_ps: u64) -> Option<u64> {
        match &self.other {
            Some(other) => other.borrow_mut().stands(cpu, at_ps),
            None => {
                cpu.asked_at = u64::MAX;
                None
            }
        }
    }

    fn step(&mut self, step: &Step) {
        if step.at_ps >= self.span_ps.end {
            // Relaxed: a request.
            self.over.store(true, Ordering::Relaxed);
            return;
        }
        let (part, does_take) = (self.code.part(step.number, step.rip, step.rsp), self.code.takes(step));
        let address = self.code.home(step.rip);
        let seen = (Seen { vcpu: step.number, at_ns: step.at_ps / PS, address }, step.shared);
        let vcpu = step.number as usize;
        let (Some(takes), Some(took)) = (self.takes.get_mut(vcpu), self.took.get_mut(vcpu)) else { return };
        match (part, does_take) {
            (Some(Part::Taken), _) => *took = std::mem::take(takes),
            // Code that stands in a call's place returns to nowhere.
            (Some(Part::Code), Some(true)) if address != step.rip => *took = [seen].into(),
            (Some(Part::Code), Some(true)) => keep(takes, seen, MOST_OF_CALL),
            (Some(Part::Code), Some(false)) => keep(&mut self.gave, seen, MOST_OF_RELEASES),
            _ => {}
        }
    }
}

/// Adds to the `most` last ones.
fn keep(last: &mut VecDeque<Executed>, seen: Executed, most: usize) {
    if last.len() == most {
        last.pop_front();
    }
    last.push_back(seen);
}
