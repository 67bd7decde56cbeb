//! State of a guest that the threads of one run share: whether it goes on, its window and its clock, and the meaning of any vCPU's
//! exit for the run as a whole. State that our own guest itself takes part in is [`Shared`]; a Linux guest shares nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use haltkick_hypercalls::VcpuArea;

use crate::guest::memory::Memory;
use crate::guest::tsc::GuestTsc;
use crate::guest::{Activity, reports};
use crate::host::cgroup::{Inherited, KernelThrottled};
use crate::host::clock::{Clock, Moment};
use crate::host::error::{RunError, system};
use crate::host::signal::Thread;
use crate::host::threads::lock;
use crate::image::disassemble::Disassembler;
use crate::image::file::Image;
use crate::machine::invalidate::Invalidations;
use crate::machine::vcpu::{Exit, NOT_CARRIED_OUT, Vcpu, reason_name};
use crate::observe::notes::Notes;
use crate::sched::hints::{ToldFlag, Watcher};
use crate::sched::loss::{GuestClock, Losses};
use crate::sched::quota::Purse;
use crate::sched::run_delay::RunDelays;
use crate::sched::starts::Starts;
use crate::sched::window::{Presence, WindowTimes};

pub(crate) struct GuestRun<'a> {
    /// State shared with the VMM; `None` for a kernel of its own, which starts its vCPUs itself and of which nothing is known.
    pub(crate) shared: Option<Shared<'a>>,
    pub(crate) vcpus: u32,
    pub(crate) tsc: GuestTsc,
    pub(crate) clock: &'a Clock,
    pub(crate) window: WindowTimes,
    pub(crate) watcher: &'a Watcher,
    /// Whether vCPUs sleep in KVM's hands.
    pub(crate) halts_in_kernel: bool,
    /// Position among the guests of the run.
    pub(crate) index: usize,
    /// Number of its first vCPU among those of all guests.
    pub(crate) first_vcpu: u32,
    pub(crate) notes: &'a Notes,
    /// The reason why a thread did not stay where it was pinned to, from the first that noticed.
    pub(crate) pinning_lost: OnceLock<String>,
    pub(crate) run_delays: RunDelays,
    pub(crate) starts: Starts,
    /// The CPU time that it has left; `None`: the VMM keeps no quota of it.
    pub(crate) purse: Option<Purse>,
    /// When it is there, and how long its window is asked to last; `None`: all the time.
    pub(crate) presence: Option<(Presence, u64)>,
    /// The quota that the kernel keeps; `None`: none.
    pub(crate) inherited_quota: Option<&'static Inherited>,
    booted: AtomicBool,
    stopping: AtomicBool,
    failure: Mutex<Option<RunError>>,
}

impl<'a> GuestRun<'a> {
    /// Creates the only guest of a run, with `vcpus` vCPUs, which share nothing with the VMM.
    pub(crate) fn new(
        vcpus: u32,
        tsc: GuestTsc,
        clock: &'a Clock,
        watcher: &'a Watcher,
        notes: &'a Notes,
    ) -> Self {
        Self {
            shared: None,
            vcpus,
            tsc,
            clock,
            window: WindowTimes::new(),
            watcher,
            halts_in_kernel: false,
            index: 0,
            first_vcpu: 0,
            notes,
            pinning_lost: OnceLock::new(),
            run_delays: RunDelays::default(),
            starts: Starts::default(),
            purse: None,
            presence: None,
            inherited_quota: None,
            booted: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// Whether its vCPUs are kept from running until some time.
    pub(crate) fn lies_aside(&self) -> bool {
        self.purse.is_some() || self.presence.is_some()
    }

    /// Returns the guest's clock at `now`, a moment of the host that has just passed.
    pub(crate) fn clock_at(&self, now: Moment) -> GuestClock<'_> {
        let now = Moment { ns: now.ns, tsc: self.tsc.of_host(now.tsc) };
        GuestClock { now, rate: self.tsc.rate(), window: &self.window }
    }

    /// When a vCPU that asks for a pCPU at `now_ns` is to ask again, as the guest is not there.
    pub(crate) fn absent_until(&self, now_ns: u64) -> Option<u64> {
        let (presence, length_ns) = self.presence?;
        presence.absent_until(&self.window, length_ns, now_ns)
    }

    /// `vcpu` says that the guest is booted: whether it is the one to say so, and says it for the first time. What a guest says
    /// later of its clock, or another vCPU, would move the clock under the feet of those who reckon with it.
    pub(crate) fn boots(&self, vcpu: u32) -> bool {
        // Relaxed: vCPU 0 is on one thread at a time.
        vcpu == 0 && !self.booted.swap(true, Ordering::Relaxed)
    }

    /// Number of a vCPU among those of all guests. What the guest names may be none.
    pub(crate) fn number_of(&self, vcpu: u32) -> u32 {
        self.first_vcpu.saturating_add(vcpu)
    }

    /// Whether some vCPUs have not begun to work yet, and none says when it has. It is the guest that says so, and one that lies harms
    /// itself.
    pub(crate) fn starts_unsaid(&self) -> bool {
        let Some(memory) = self.shared.as_ref().map(|shared| shared.memory) else { return false };
        // Relaxed: a hint.
        !self.starts.are_said() && memory.control().started.load(Ordering::Relaxed) < memory.vcpus()
    }

    /// The activity of `vcpu`, by its own word.
    pub(crate) fn activity(&self, vcpu: u32) -> Activity {
        self.shared.as_ref().map_or(Activity::Other, |shared| Activity::of(shared.area(vcpu)))
    }

    pub(crate) fn attributed(&self, vcpu: u32) -> Activity {
        let is_attributed = self.shared.as_ref().is_some_and(|shared| shared.attribution);
        if is_attributed { self.activity(vcpu) } else { Activity::Other }
    }

    /// Returns the activity of `vcpu`, checked against the lock's own record of its holder where that is kept. Where
    /// the two differ, the guest announces too early or too late.
    pub(crate) fn checked_activity(&self, vcpu: u32) -> Activity {
        let is_inside = self.shared.as_ref().and_then(|shared| shared.losses.is_inside(vcpu));
        match (is_inside, self.activity(vcpu)) {
            (Some(true), _) => Activity::Holder,
            (Some(false), Activity::Holder) => Activity::Other,
            (_, said) => said,
        }
    }

    /// Returns the activity of `vcpu`: by its own word at a point of its lock, else checked.
    pub(crate) fn activity_at(&self, point: Option<u32>, vcpu: u32) -> Activity {
        if point.is_some() { self.activity(vcpu) } else { self.checked_activity(vcpu) }
    }

    /// The activity of `vcpu` at `now_ns` by its own word, and whether that moment lies in the window.
    pub(crate) fn sampled(&self, vcpu: u32, now_ns: u64) -> (Activity, bool) {
        (self.activity(vcpu), self.window.contains(now_ns))
    }

    /// Whether vCPUs are to stop where they are. The thread that sets this kicks every thread afterwards.
    pub(crate) fn stopping(&self) -> bool {
        // Acquire pairs with the release in `stop`.
        self.stopping.load(Ordering::Acquire)
    }

    /// Every vCPU is to stop where it is. The caller kicks the threads.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Ends the run with `error`, unless it already failed: the first failure is the one that explains.
    pub(crate) fn fail(&self, error: RunError) {
        lock(&self.failure).get_or_insert(error);
    }

    pub(crate) fn take_failure(&self) -> Option<RunError> {
        lock(&self.failure).take()
    }

    pub(crate) fn failed(&self) -> bool {
        lock(&self.failure).is_some()
    }

    /// `thread` is about to run `vcpu`, and no other thread is.
    pub(crate) fn runs_on(&self, vcpu: u32, thread: Thread) {
        if let Some(shared) = &self.shared {
            shared.invalidations.runs_on(vcpu, thread);
        }
    }

    /// The kernel's counts of throttling up to now, if it keeps a quota. A failure is the guest's.
    pub(crate) fn quota_counts(&self) -> Option<KernelThrottled> {
        let counts = self.inherited_quota?.counts();
        counts.map_err(|error| self.fail(system("read the counts of a control group")(error))).ok()
    }

    /// KVM_RUN, with what other vCPUs asked of this one meanwhile.
    pub(crate) fn enter(&self, vcpu: &mut Vcpu) -> std::io::Result<Exit> {
        let Some(shared) = &self.shared else { return vcpu.run() };
        let area = shared.area(vcpu.id);
        shared.invalidations.before_entry(vcpu, area)?;
        let exit = vcpu.run();
        shared.invalidations.after_exit(vcpu.id, area);
        exit
    }

    /// Serves an exit that means the same under every scheduler. `false`: the vCPU must not be entered again.
    pub(crate) fn serve(&self, vcpu: &Vcpu, exit: Exit) -> bool {
        let id = vcpu.id;
        match (exit, &self.shared) {
            (Exit::Console(byte), Some(shared)) => shared.print(byte),
            (Exit::Panic, Some(shared)) => return self.fail_with(reports::panic(id, shared.area(id))),
            (Exit::Exception, Some(shared)) => {
                return self.fail_with(reports::exception(id, shared.area(id), shared.image.symbols()));
            }
            (Exit::Invalidate, Some(shared)) => shared.invalidations.ring(shared.memory, |_| false),
            // Rung at any other time, it would be the guest's mistake.
            (Exit::WorkDone, _) if self.window.contains(self.clock.now_ns()) => {
                self.window.close(self.clock.now_ns());
            }
            (Exit::Halt | Exit::Shutdown | Exit::Unexpected { .. }, _)
            | (Exit::Console(_) | Exit::Panic | Exit::Exception, None) => {
                return self.fail_with(self.surprise(vcpu, exit));
            }
            (
                Exit::Interrupted
                | Exit::Wait
                | Exit::Kick(_)
                | Exit::Yield(_)
                | Exit::Point(_)
                | Exit::Booted
                | Exit::Started
                | Exit::Left
                | Exit::Device
                | Exit::PauseLoop
                | Exit::Invalidate
                | Exit::WorkDone,
                _,
            ) => {}
        }
        true
    }

    /// Why `vcpu` cannot be run, which is the end of its guest and of no other.
    pub(crate) fn cannot_run(&self, vcpu: &Vcpu, source: std::io::Error) -> RunError {
        RunError::System { what: format!("run vCPU {} at {}", vcpu.id, self.place_of(vcpu)), source }
    }

    fn fail_with(&self, error: RunError) -> bool {
        self.fail(error);
        false
    }

    fn surprise(&self, vcpu: &Vcpu, exit: Exit) -> RunError {
        let what = match exit {
            Exit::Halt => "HLT, which this guest never does".to_owned(),
            Exit::Shutdown => "triple fault".to_owned(),
            Exit::Unexpected { reason: NOT_CARRIED_OUT, detail: at } => {
                return RunError::HostLacks(self.not_carried_out(at));
            }
            Exit::Unexpected { reason, detail } => format!("{} (detail {detail:#x})", reason_name(reason)),
            other => format!("{other:?}"),
        };
        /// The address where KVM for SVM leaves a vCPU that has shut down: its state is undefined then (AMD APM vol. 2, 15.14.3), so that
        /// KVM resets it.
        const RESET_VECTOR: u64 = 0xfff0;
        let at = match vcpu.pointers() {
            Ok((RESET_VECTOR, _)) if exit == Exit::Shutdown => {
                "an unknown place: KVM has reset the vCPU".into()
            }
            _ => self.place_of(vcpu),
        };
        RunError::GuestFailed { vcpu: vcpu.id, reason: format!("{what} at {at}") }
    }

    /// That a simulated CPU lacks the instruction at an address.
    fn not_carried_out(&self, at: u64) -> String {
        let image = self.shared.as_ref().map(|shared| shared.image);
        let text = image.and_then(|image| Disassembler::new(image).instruction(image, at));
        let place = image.map_or_else(|| format!("{at:#x}"), |image| image.symbols().describe(at));
        format!(
            "--engine sim does not carry out `{}` at {place}: compile the lock without it, or use --engine kvm",
            text.as_deref().unwrap_or("code outside of the image")
        )
    }

    /// The place where `vcpu` stands, by name if that is known.
    fn place_of(&self, vcpu: &Vcpu) -> String {
        match (vcpu.pointers(), &self.shared) {
            (Ok((address, _)), Some(shared)) => shared.image.symbols().describe(address),
            (Ok((address, _)), None) => format!("{address:#x}"),
            (Err(error), _) => format!("an unknown place ({error})"),
        }
    }
}

/// Most console text that is kept: the guest is not trusted to stop.
const CONSOLE_LIMIT: usize = 1 << 20;

/// Data that our own guest and the threads that run it share while it runs.
pub(crate) struct Shared<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) image: &'a Image,
    pub(crate) invalidations: Invalidations,
    /// Whether descheduling is attributed to what the vCPU was doing.
    pub(crate) attribution: bool,
    /// Values of each vCPU's `preempted` flag that the VMM has written, where it writes the flag.
    pub(crate) told: Vec<ToldFlag>,
    pub(crate) losses: Losses<'a>,
    console: Mutex<String>,
}

impl<'a> Shared<'a> {
    /// Makes the shared data for the guest of `image` in `memory`, whose workload takes `locks` locks. `vmm_schedules`:
    /// the VMM writes the `preempted` flags.
    pub(crate) fn new(
        memory: &'a Memory,
        image: &'a Image,
        locks: u32,
        (attribution, vmm_schedules): (bool, bool),
    ) -> Self {
        let vcpus = memory.vcpus();
        let marked = if vmm_schedules { vcpus } else { 0 };
        Self {
            memory,
            image,
            invalidations: Invalidations::new(vcpus),
            attribution,
            told: (0..marked).map(|_| ToldFlag::default()).collect(),
            losses: Losses::new(memory, locks),
            console: Mutex::default(),
        }
    }

    pub(crate) fn area(&self, vcpu: u32) -> &'a VcpuArea {
        self.memory.area(vcpu)
    }

    /// Tells the guest how many vCPUs have no pCPU, of all guests.
    pub(crate) fn tell_ready_vcpus(&self, count: u32) {
        // Relaxed: a hint.
        self.memory.control().ready_vcpus.store(count, Ordering::Relaxed);
    }

    pub(crate) fn print(&self, byte: u8) {
        let mut console = lock(&self.console);
        if console.len() < CONSOLE_LIMIT {
            console.push(if byte.is_ascii() { char::from(byte) } else { '\u{fffd}' });
        }
    }

    pub(crate) fn console(&self) -> String {
        lock(&self.console).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::tests::Ground;

    #[test]
    fn a_guest_is_booted_once_and_by_its_first_vcpu() {
        let ground = Ground::new(Clock::Host);
        let guest = ground.guest(2);
        assert_eq!([1, 0, 0, 1].map(|vcpu| guest.boots(vcpu)), [false, true, false, false]);
    }
}
