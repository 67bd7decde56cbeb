//! What the threads of one run share, and what any vCPU's exit means to the run as a whole.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use haltkick_hypercalls::VcpuArea;

use crate::guest::activity::Activity;
use crate::guest::memory::Memory;
use crate::guest::tsc::GuestTsc;
use crate::host::clock::now_ns;
use crate::host::error::RunError;
use crate::host::locks::lock;
use crate::image::file::Image;
use crate::machine::exits::Exit;
use crate::machine::invalidate::Invalidations;
use crate::machine::vcpu::{Vcpu, reason_name};
use crate::observe::notes::Notes;
use crate::sched::hints::Watcher;
use crate::sched::loss::Losses;
use crate::sched::mark::Mark;
use crate::sched::run_delay::RunDelays;
use crate::sched::window::WindowTimes;

/// Most console text that is kept: the guest is not trusted to stop.
const CONSOLE_LIMIT: usize = 1 << 20;

/// What the threads must know of a guest's settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) vcpus: u32,
    pub(crate) locks: u32,
    /// Whether descheduling is attributed to what the vCPU was doing.
    pub(crate) attribution: bool,
    pub(crate) vmm_schedules: bool,
}

/// One guest of a run, as seen by all threads.
pub(crate) struct GuestRun<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) image: &'a Image,
    pub(crate) tsc: GuestTsc,
    pub(crate) window: WindowTimes,
    pub(crate) invalidations: Invalidations,
    /// What watches the host's scheduler.
    pub(crate) watcher: &'a Watcher,
    /// Whether the VMM is the one who writes the `preempted` flags.
    pub(crate) keeps_books: bool,
    /// Whether vCPUs sleep in KVM's hands; no, unless the caller says so.
    pub(crate) halts_in_kernel: bool,
    /// Whether it is a Linux guest: a kernel that starts its vCPUs itself, and of which nothing is known; no, unless the caller
    /// says so.
    pub(crate) runs_linux: bool,
    /// What the VMM has told of each vCPU by its `preempted` flag.
    pub(crate) marks: Vec<Mark>,
    /// Whether descheduling is attributed to what the vCPU was doing.
    pub(crate) attribution: bool,
    /// Who waits for what.
    pub(crate) losses: Losses<'a>,
    /// Position among the guests of the run.
    pub(crate) index: usize,
    /// Number of its first vCPU among those of all guests.
    pub(crate) first_vcpu: u32,
    /// Where threads hand in what they noted for a profile and a trace.
    pub(crate) notes: &'a Notes,
    /// What became of a thread that did not stay where it was pinned to: the first that noticed.
    pub(crate) pinning_lost: OnceLock<String>,
    /// How long the runners were ready without a pCPU.
    pub(crate) run_delays: RunDelays,
    stopping: AtomicBool,
    failure: Mutex<Option<RunError>>,
    console: Mutex<String>,
}

impl<'a> GuestRun<'a> {
    /// `place`: its position among the guests of the run, and the number of its first vCPU among those of all.
    pub(crate) fn new(
        work: Work,
        (memory, watcher): (&'a Memory, &'a Watcher),
        image: &'a Image,
        tsc: GuestTsc,
        place: (usize, u32),
        notes: &'a Notes,
    ) -> Self {
        let rate = tsc.rate();
        Self {
            memory,
            image,
            tsc,
            window: WindowTimes::new(),
            invalidations: Invalidations::new(memory.vcpus()),
            watcher,
            keeps_books: work.vmm_schedules,
            halts_in_kernel: false,
            runs_linux: false,
            marks: (0..work.vcpus).map(|_| Mark::default()).collect(),
            attribution: work.attribution,
            losses: Losses::new(memory, work.vcpus, work.locks, rate),
            index: place.0,
            first_vcpu: place.1,
            notes,
            pinning_lost: OnceLock::new(),
            run_delays: RunDelays::default(),
            stopping: AtomicBool::new(false),
            failure: Mutex::new(None),
            console: Mutex::new(String::new()),
        }
    }

    /// Number of a vCPU among those of all guests.
    pub(crate) fn number_of(&self, vcpu: u32) -> u32 {
        self.first_vcpu + vcpu
    }

    pub(crate) fn area(&self, vcpu: u32) -> &VcpuArea {
        self.memory.area(vcpu)
    }

    /// Whether some vCPUs have not begun to work yet. It is the guest that says so, and one that lies harms itself. Linux says
    /// nothing.
    pub(crate) fn is_starting(&self) -> bool {
        // Relaxed: a hint.
        !self.runs_linux && self.memory.control().started.load(Ordering::Relaxed) < self.memory.vcpus()
    }

    /// Whether vCPUs are to stop where they are. Whoever sets this kicks every thread afterwards.
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

    /// The failure, taken out.
    pub(crate) fn take_failure(&self) -> Option<RunError> {
        lock(&self.failure).take()
    }

    /// Whether something failed.
    pub(crate) fn failed(&self) -> bool {
        lock(&self.failure).is_some()
    }

    /// What the guest wrote.
    pub(crate) fn console(&self) -> String {
        lock(&self.console).clone()
    }

    /// What `vcpu` says it is doing.
    pub(crate) fn activity(&self, vcpu: u32) -> Activity {
        Activity::of(self.area(vcpu))
    }

    /// What `vcpu` is doing, with the lock's own word for who is inside where that is kept. Partner of [`Self::activity`], which
    /// is what descheduling is attributed by: where the two differ, the guest announces too early or too late.
    pub(crate) fn checked_activity(&self, vcpu: u32) -> Activity {
        match (self.losses.is_inside(vcpu), self.activity(vcpu)) {
            (Some(true), _) => Activity::Holder,
            (Some(false), Activity::Holder) => Activity::Other,
            (_, said) => said,
        }
    }

    /// KVM_RUN, with what other vCPUs asked of this one meanwhile.
    pub(crate) fn enter(&self, vcpu: &mut Vcpu) -> std::io::Result<Exit> {
        let area = self.area(vcpu.id);
        self.invalidations.before_entry(vcpu, area)?;
        let exit = vcpu.run();
        self.invalidations.after_exit(vcpu.id, area);
        exit
    }

    /// Serves an exit that means the same under every scheduler. `false`: the vCPU must not be entered again.
    pub(crate) fn serve(&self, vcpu: &Vcpu, exit: Exit) -> bool {
        match exit {
            Exit::Console(byte) => {
                let mut console = lock(&self.console);
                if console.len() < CONSOLE_LIMIT {
                    console.push(if byte.is_ascii() { char::from(byte) } else { '\u{fffd}' });
                }
                true
            }
            Exit::Panic => self.fail_with(self.panic_report(vcpu.id)),
            Exit::Exception => self.fail_with(self.exception_report(vcpu.id)),
            Exit::Halt | Exit::Shutdown | Exit::Unexpected { .. } => {
                self.fail_with(self.surprise(vcpu, exit))
            }
            Exit::Interrupted
            | Exit::Wait
            | Exit::Kick(_)
            | Exit::Yield(_)
            | Exit::Point(_)
            | Exit::Booted
            | Exit::Left
            | Exit::Device
            | Exit::Invalidate => true,
            Exit::WorkDone => {
                // Rung at any other time, it would be the guest's mistake.
                if self.window.contains(now_ns()) {
                    self.window.close();
                }
                true
            }
        }
    }

    fn fail_with(&self, error: RunError) -> bool {
        self.fail(error);
        false
    }

    pub(crate) fn panic_report(&self, vcpu: u32) -> RunError {
        let report = &self.area(vcpu).report;
        let text = |bytes: &[std::sync::atomic::AtomicU8], used: u32| {
            let bytes: Vec<u8> =
                bytes.iter().take(used as usize).map(|byte| byte.load(Ordering::Relaxed)).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        RunError::GuestPanic {
            vcpu,
            message: text(&report.message, report.message_len.load(Ordering::Relaxed)),
            file: text(&report.file, report.file_len.load(Ordering::Relaxed)),
            line: report.code.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn exception_report(&self, vcpu: u32) -> RunError {
        const PAGE_FAULT: u64 = 14;
        let report = &self.area(vcpu).report;
        let vector = report.code.load(Ordering::Relaxed);
        let detail = if vector == PAGE_FAULT {
            format!(", address {:#x}", report.cr2.load(Ordering::Relaxed))
        } else {
            String::new()
        };
        RunError::GuestException {
            vcpu,
            name: vector_name(vector),
            vector,
            error_code: report.error_code.load(Ordering::Relaxed),
            location: self.image.symbols().describe(report.rip.load(Ordering::Relaxed)),
            detail,
        }
    }

    fn surprise(&self, vcpu: &Vcpu, exit: Exit) -> RunError {
        /// Where KVM for SVM leaves a vCPU that has shut down: its state is undefined then (AMD APM vol. 2, 15.14.3), so that
        /// KVM resets it.
        const RESET_VECTOR: u64 = 0xfff0;
        let what = match exit {
            Exit::Halt => "HLT, which this guest never does".to_owned(),
            Exit::Shutdown => "triple fault".to_owned(),
            Exit::Unexpected { reason, detail } => format!("{} (detail {detail:#x})", reason_name(reason)),
            other => format!("{other:?}"),
        };
        let at = match vcpu.instruction_pointer() {
            Ok(RESET_VECTOR) if exit == Exit::Shutdown => {
                "a place that nobody knows: KVM has reset the vCPU".into()
            }
            Ok(address) if self.runs_linux => format!("{address:#x}"),
            Ok(address) => self.image.symbols().describe(address),
            Err(error) => format!("an unknown place ({error})"),
        };
        RunError::GuestFailed { vcpu: vcpu.id, reason: format!("{what} at {at}") }
    }
}

/// Mnemonic of an exception vector (Intel SDM vol. 3, table 6-1).
fn vector_name(vector: u64) -> &'static str {
    const NAMES: [&str; 22] = [
        "#DE",
        "#DB",
        "NMI",
        "#BP",
        "#OF",
        "#BR",
        "#UD",
        "#NM",
        "#DF",
        "coprocessor",
        "#TS",
        "#NP",
        "#SS",
        "#GP",
        "#PF",
        "reserved",
        "#MF",
        "#AC",
        "#MC",
        "#XM",
        "#VE",
        "#CP",
    ];
    NAMES.get(vector as usize).copied().unwrap_or("interrupt")
}
