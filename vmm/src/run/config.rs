//! What a run is to do. Values are checked by [`RunConfig::check`] before anything is created.

use std::sync::Arc;
use std::time::Duration;

use crate::machine::capabilities::KernelHalts;
use crate::machine::pv_backend::PvBackend;
use crate::machine::ring::Ring;
use crate::machine::wanted::Wanted;
use crate::sched::deschedule::Deschedule;
use crate::sched::hints::PreemptedBy;
use crate::sched::{Rules, Sched, Share};

/// What runs the guest's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `/dev/kvm`.
    Kvm,
    /// The threads of this process, in user mode, at the image's own addresses.
    Threads,
    /// QEMU, in a process of its own.
    Qemu(Accelerator),
    /// A simulated machine, see [`RunConfig::simulated`].
    Sim,
}

/// What QEMU runs the guest's code with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Its emulator, a thread per CPU. Works everywhere; its figures say nothing about a real CPU.
    Tcg,
    /// `/dev/kvm`.
    Kvm,
}

/// A window that doubles until enough sections are done in it ends at so many times its length.
pub const MAX_WINDOWS: u32 = 16;

/// What the workload `mixed` does beyond taking locks in turn. The default is as many sections as fit into the window, all
/// of one length, none nested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mix {
    /// Sections that make up a fixed amount of work; the window ends when they are done.
    pub work_sections: Option<u64>,
    /// When that is done the vCPUs go on, uncounted, instead of leaving.
    pub go_on: bool,
    /// Work inside a long critical section.
    pub long_hold: Duration,
    /// One section of so many is long; 0: none.
    pub long_one_in: u32,
    /// One section of so many has another inside; 0: none.
    pub nested_one_in: u32,
}

impl Mix {
    /// Mean work inside a section, where a short one takes `hold`.
    #[must_use]
    pub fn mean_hold(&self, hold: Duration) -> Duration {
        match self.long_one_in {
            0 => hold,
            n => (hold * (n - 1) + self.long_hold) / n,
        }
    }
}

/// What sections touch, how long they are and when they begin, where that is not all alike. The default is: sections of one
/// length, locks in turn, thinking times of one length, nothing touched, nobody who only reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Thinking times (or times between arrivals) are exponentially distributed, not all alike.
    pub exponential_think: bool,
    /// How far the length of a section is off [`RunConfig::hold`], at most, in percent of it.
    pub hold_jitter_percent: u32,
    /// Locks are chosen with a probability that falls with their number to this power, in hundredths; 0: in turn.
    pub zipf_hundredths: u32,
    /// Mean time between two sections that each vCPU is to begin, whether it is done with the one before or not; `None`: it
    /// begins the next when it has thought.
    pub arrivals: Option<Duration>,
    /// Cache lines that a section walks.
    pub footprint_lines: u32,
    /// Those of them that it writes.
    pub dirty_lines: u32,
    /// Sections in a hundred that only read.
    pub read_percent: u32,
    /// Work inside those.
    pub read_hold: Duration,
}

/// Most cache lines that the sections of a run can walk: those of a section times locks (or vCPUs, without a lock).
pub const MOST_LINES: u64 = (8 << 20) / 64;

impl Shape {
    /// Whether all sections are of the length asked for, one after the other.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.footprint_lines == 0 && self.read_percent == 0 && self.arrivals.is_none()
    }
}

/// One cell: a guest, how it is scheduled, what it does and for how long.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// What runs the guest's code.
    pub engine: Engine,
    /// The machine of [`Engine::Sim`].
    pub simulated: Option<Arc<haltkick_sim::machine::Machine>>,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// The pCPUs that the vCPUs share, as host CPU numbers, without repetition.
    pub cpus: Vec<u32>,
    /// Privilege ring of the guest.
    pub ring: Ring,
    /// Who schedules.
    pub sched: Sched,
    /// How vCPUs sleep and are woken.
    pub pv_backend: PvBackend,
    /// How long KVM polls before it lets a vCPU sleep that halted in its hands; `None`: as the host is set up.
    pub halt_poll: Option<Duration>,
    /// Whether a spin loop in ring 0 may end in an exit (pause-loop exit, PAUSE filter).
    pub pause_exits: bool,
    /// Whether HLT in ring 0 ends in an exit. If not, the pCPU idles in the guest.
    pub hlt_exits: bool,
    /// Length of a slice under [`Sched::Vmm`].
    pub slice: Duration,
    /// Under [`Sched::Vmm`]: how much longer a vCPU may run that says it holds a lock when its slice ends; zero: no longer.
    pub grace: Duration,
    /// How much of a slice must be left for a lock that asks for that.
    pub slice_margin: Duration,
    /// Under [`Sched::Vmm`]: a vCPU that kicks another one awake hands it the pCPU.
    pub kick_yields: bool,
    /// Attribute descheduling to what the vCPU was doing.
    pub attribution: bool,
    /// Count cache events of the guest where the host has a PMU.
    pub pmu: bool,
    /// Show the run while it goes, if there is [somewhere to](crate::Instruments::live).
    pub live: bool,
    /// Take vCPUs off on purpose.
    pub deschedule: Option<Deschedule>,
    /// Name of the lock, from the image's table.
    pub lock: String,
    /// Use the lock's paravirtual form.
    pub pv: bool,
    /// Rewrite the call sites for the lock before the guest starts; else they call through a table.
    pub patch: bool,
    /// Let `vcpu_is_preempted` read the flag.
    pub preempted_hint: bool,
    /// Who is to write that flag under [`Sched::Host`].
    pub preempted_by: PreemptedBy,
    /// How long a paravirtual waiter spins before it sleeps.
    pub spin_threshold: Duration,
    /// How many rounds it spins instead; 0: it goes by that time.
    pub spin_rounds: u32,
    /// Name of the workload, from the image's table.
    pub workload: String,
    /// Work inside a critical section.
    pub hold: Duration,
    /// Work between critical sections.
    pub think: Duration,
    /// Number of locks the sections are spread over.
    pub lock_count: u32,
    /// What the workload `mixed` varies.
    pub mix: Mix,
    /// What the workload `critical-section` varies.
    pub shape: Shape,
    /// Watch over every section from inside.
    pub oracle: bool,
    /// Read the clock at the edges of sections between fences.
    pub ordered_stamps: bool,
    /// Memory for the guest's memory manager, in workloads that have one; rounded up to 2 MiB.
    pub memory_bytes: u64,
    /// Iterations of the work loop per 2^20 ns as measured earlier; `None`: the guest measures at boot.
    pub work_rate: Option<u64>,
    /// Time between the start of the last vCPU and the opening of the window.
    pub warmup: Duration,
    /// Length of the measuring window.
    pub window: Duration,
    /// The window doubles until so many sections are done in it, up to [`MAX_WINDOWS`] times its length; 0: it does not.
    pub min_sections: u64,
    /// End the run when nothing has moved for this long; `None`: derived from ratio and slice.
    pub watchdog: Option<Duration>,
    /// Seed of everything random.
    pub seed: u64,
    /// Name among the guests of a run.
    pub name: String,
    /// Guests that run at the same time under the same scheduler. Theirs are the settings of the guest; those of the run (pCPUs,
    /// scheduler, slice, window and the like) must be the same, and they have no others beside themselves.
    pub beside: Vec<Self>,
    /// What has equal shares, under [`Sched::Vmm`].
    pub share: Share,
}

impl RunConfig {
    /// What its schedulers go by.
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            sched: self.sched,
            share: self.share,
            pcpus: self.cpus.len(),
            slice: self.slice,
            grace: self.grace,
            kick_yields: self.kick_yields,
        }
    }

    /// What its machine is to be like, but for what depends on the image.
    pub(crate) fn machine(&self) -> Wanted {
        Wanted {
            vcpus: self.vcpus,
            ring: self.ring,
            pv_backend: self.pv_backend,
            vmm_schedules: self.sched == Sched::Vmm,
            halts: self.halts(),
            patch: None,
            pool_bytes: 0,
            trace_sections: 0,
        }
    }

    /// How its vCPUs halt and pause in KVM's hands.
    pub(crate) fn halts(&self) -> KernelHalts {
        KernelHalts { poll: self.halt_poll, pause_exits: self.pause_exits, hlt_exits: self.hlt_exits }
    }
}

/// One vCPU on CPU 0 that takes the guest's plain queue lock, nothing special: what a caller changes as it likes.
impl Default for RunConfig {
    fn default() -> Self {
        Self {
            engine: Engine::Kvm,
            simulated: None,
            vcpus: 1,
            cpus: vec![0],
            ring: Ring::Auto,
            sched: Sched::Vmm,
            pv_backend: PvBackend::Auto,
            halt_poll: None,
            pause_exits: true,
            hlt_exits: true,
            slice: Duration::from_millis(1),
            grace: Duration::ZERO,
            slice_margin: Duration::from_micros(10),
            kick_yields: false,
            attribution: true,
            pmu: false,
            live: false,
            deschedule: None,
            lock: "qspinlock".into(),
            pv: false,
            patch: true,
            preempted_hint: true,
            preempted_by: PreemptedBy::Auto,
            spin_threshold: Duration::from_micros(20),
            spin_rounds: 0,
            workload: "critical-section".into(),
            hold: Duration::from_micros(1),
            think: Duration::from_micros(2),
            lock_count: 1,
            mix: Mix::default(),
            shape: Shape::default(),
            oracle: true,
            ordered_stamps: true,
            memory_bytes: 64 << 20,
            work_rate: None,
            warmup: Duration::from_millis(20),
            window: Duration::from_secs(1),
            min_sections: 0,
            watchdog: None,
            seed: 1,
            name: "guest".into(),
            beside: vec![],
            share: Share::Vcpu,
        }
    }
}
