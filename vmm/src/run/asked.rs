//! Settings of a run and of each of its guests, and what a guest is told of them. Values are checked by [`Run::check`] before anything
//! is created.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use haltkick_hypercalls::{
    ABI_FINGERPRINT, ABI_VERSION, BootBlock, BootFlags, GuestAddress, Shape, WorkloadFlags,
};
use haltkick_sim::hosts::Host;
use haltkick_sim::machine::Machine;
use haltkick_sim::schedule::Schedule;

use crate::guest::placement::Numa;
use crate::host::clock::{Nanoseconds, TscRate};
use crate::host::error::Refused;
use crate::host::text::Span;
use crate::image::file::Image;
use crate::machine::{KernelHalts, PvBackend, Ring, Wanted};
use crate::sched::deschedule::Deschedule;
use crate::sched::hints::PreemptedBy;
use crate::sched::quota::Quota;
use crate::sched::window::Presence;
use crate::sched::{Rules, Sched};

/// The engine that runs the guest's code.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Engine {
    /// `/dev/kvm`.
    #[default]
    Kvm,
    /// The threads of this process, in user mode, at the image's own addresses.
    Threads,
    /// QEMU, in a process of its own.
    Qemu(Accelerator),
    /// This simulated machine.
    Sim(Arc<Machine>),
}

impl Engine {
    /// The simulated machine, if it is one.
    #[must_use]
    pub fn machine(&self) -> Option<&Arc<Machine>> {
        if let Self::Sim(machine) = self { Some(machine) } else { None }
    }

    /// Whether it is a simulated machine.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.machine().is_some()
    }
}

/// The accelerator that QEMU runs the guest's code with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Its emulator, a thread per CPU. Works everywhere; its figures say nothing about a real CPU.
    Tcg,
    /// `/dev/kvm`.
    Kvm,
}

/// Upper bound of a doubling window, in multiples of its length; such a window doubles until it holds enough sections.
pub const MAX_WINDOWS: u32 = 16;

/// Most cache lines that the sections of a run can walk: those of a section times locks (or vCPUs, without a lock).
pub const MOST_LINES: u64 = (8 << 20) / 64;

/// A run: what executes its guests, how they are scheduled and measured, and the guests.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Engine that runs the guests' code.
    pub engine: Engine,
    /// The pCPUs that the vCPUs share, as host CPU numbers, without repetition.
    pub cpus: Vec<u32>,
    /// NUMA nodes of the guests' memory.
    pub numa: Numa,
    /// Privilege ring of the guests.
    pub ring: Ring,
    /// How vCPUs sleep and are woken.
    pub pv_backend: PvBackend,
    /// Writer of the `preempted` flag under [`Sched::Host`].
    pub preempted_by: PreemptedBy,
    /// How vCPUs halt and pause in KVM's hands.
    pub halts: KernelHalts,
    /// The rules that vCPUs are scheduled by.
    pub rules: Rules,
    /// Under [`Sched::Host`] on a simulated machine: the model of the host's scheduler.
    pub host: Option<Arc<Host>>,
    /// Take vCPUs off on purpose.
    pub deschedule: Option<Deschedule>,
    /// The recorded schedule that is repeated, on a simulated machine on which each vCPU has a pCPU.
    pub schedule: Option<Arc<Schedule>>,
    /// Time between the start of the last vCPU and the opening of the window.
    pub warmup: Duration,
    /// Length of the measuring window.
    pub window: Duration,
    /// The window doubles until each guest has done this number of sections in it, up to [`MAX_WINDOWS`] times its length; 0: it does not.
    pub min_sections: u64,
    /// After the window, wait until every vCPU has left, and fail if one never does.
    pub drain: bool,
    /// End the run when nothing has moved for this long; `None`: derived from ratio and slice.
    pub watchdog: Option<Duration>,
    /// Iterations of the work loop per 2^20 ns as measured earlier; `None`: the guest measures at boot.
    pub work_rate: Option<u64>,
    /// Attribute descheduling to what the vCPU was doing.
    pub attribution: bool,
    /// Count cache events of the guest where the host has a PMU.
    pub pmu: bool,
    /// Show the run while it goes, if there is [somewhere to](crate::Instruments::live).
    pub live: bool,
    /// The guests, which all run at the same time.
    pub guests: Vec<Guest>,
}

/// One guest of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Guest {
    /// Name among the guests of a run.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Use the lock's paravirtual form.
    pub pv: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// Under [`Sched::Vmm`]: CPU time of its vCPUs in each period.
    pub quota: Option<Quota>,
    /// Under [`Sched::Vmm`]: when it is there; `None`: all the time.
    pub presence: Option<Presence>,
    /// The system that it boots.
    pub system: System,
}

/// The system that a guest boots.
#[derive(Clone, Debug, PartialEq)]
pub enum System {
    /// Our own guest, whose vCPUs take locks.
    Ours(Ours),
    /// An unmodified Linux kernel. Its `pv` is whether CPUID offers what Linux's paravirtual spin locks need.
    Linux(Linux),
}

/// A Linux guest: a kernel, and all that is around it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Linux {
    /// An ELF `vmlinux` or a `bzImage`.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    pub initrd: Option<RamDisk>,
    /// Words for the kernel's command line, behind our own.
    pub append: String,
    /// Memory of the guest.
    pub memory_bytes: u64,
    /// A piece of a line of the console that says: user space is there.
    pub marker: String,
    /// How long the guest may take until it has powered off.
    pub limit: Option<Duration>,
}

/// The initial RAM disk of a Linux guest.
#[derive(Clone, Debug, PartialEq)]
pub enum RamDisk {
    /// A file, as it is.
    File(PathBuf),
    /// Made when the guest is: holds a program, which is the first process.
    Program(Program),
}

/// A program with all that it needs to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Its file.
    pub file: PathBuf,
    /// Shared libraries and their loader, each of which it expects at this path; none if it is static.
    pub libraries: Vec<PathBuf>,
}

/// The work of our own guest: the lock that it takes, and all around that.
#[derive(Clone, Debug, PartialEq)]
pub struct Ours {
    /// Name of the lock, from the image's table.
    pub lock: String,
    /// Rewrite the call sites for the lock before the guest starts; else they call through a table.
    pub patch: bool,
    /// Let `vcpu_is_preempted` read the flag.
    pub preempted_hint: bool,
    /// How long a paravirtual waiter spins before it sleeps.
    pub spin_threshold: Duration,
    /// How many rounds it spins instead; 0: it goes by that time.
    pub spin_rounds: u32,
    /// A lock object's own number.
    pub lock_parameter: u32,
    /// How much of a slice must be left for a lock that asks for that.
    pub slice_margin: Duration,
    /// Name of the workload, from the image's table.
    pub workload: String,
    /// Work inside a critical section.
    pub hold: Duration,
    /// Work between critical sections.
    pub think: Duration,
    /// Number of locks the sections are spread over.
    pub lock_count: u32,
    /// Tasks of the workload `tasks`; `None`: one for each vCPU.
    pub tasks: Option<u32>,
    /// On which vCPUs these run.
    pub fold: Fold,
    /// Variations of sections, for workloads that have them.
    pub shape: Shape,
    /// Watch over every section from inside.
    pub oracle: bool,
    /// Read the clock at the edges of sections between fences.
    pub ordered_stamps: bool,
    /// Memory for the guest's memory manager, in workloads that have one; rounded up to 2 MiB.
    pub memory_bytes: u64,
}

impl Linux {
    /// The files that it boots.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let libraries = self.program().into_iter().flat_map(|program| &program.libraries);
        let disk = self.initrd.iter().map(RamDisk::path).chain(libraries.map(PathBuf::as_path));
        std::iter::once(self.kernel.as_path()).chain(disk)
    }

    /// The program that it holds, if it was made for one.
    #[must_use]
    pub fn program(&self) -> Option<&Program> {
        if let Some(RamDisk::Program(program)) = &self.initrd { Some(program) } else { None }
    }
}

impl RamDisk {
    /// Its file, or that of its program.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Program(Program { file: path, .. }) => path,
        }
    }
}

/// A guest of ours with the run that it is part of.
#[derive(Clone, Copy, Debug)]
pub struct OurGuest<'a> {
    /// The run.
    pub run: &'a Run,
    /// Its position among the guests of the run.
    pub index: usize,
    /// The guest.
    pub guest: &'a Guest,
    /// Its work.
    pub ours: &'a Ours,
}

impl OurGuest<'_> {
    /// vCPUs for which the guest has pCPUs if these are shared equally by guest, at least one.
    fn share_in_pcpus(self) -> u32 {
        let share = self.run.cpus.len() / self.run.guests.len();
        (share.max(1) as u32).min(self.guest.vcpus)
    }

    /// Returns the machine that the guest needs, except for the parts that depend on the image.
    pub(crate) fn machine(&self) -> Wanted {
        Wanted {
            vcpus: self.guest.vcpus,
            ring: self.run.ring,
            pv_backend: self.run.pv_backend,
            vmm_schedules: !self.run.has_vcpu_threads(),
            halts: self.run.halts,
            patch: None,
            pool_bytes: 0,
            trace_sections: 0,
        }
    }
}

impl Run {
    /// The run with another window, of which each guest is there for the share that it was.
    #[must_use]
    pub fn with_window(mut self, window: Duration) -> Self {
        let share = window.as_secs_f64() / self.window.as_secs_f64();
        for presence in self.guests.iter_mut().filter_map(|guest| guest.presence.as_mut()) {
            presence.from = presence.from.mul_f64(share);
            presence.until = presence.until.map(|until| until.mul_f64(share).min(window));
        }
        self.window = window;
        self
    }

    /// Whether the kernel of this host schedules the vCPUs, a thread for each; under a model of a host the VMM does.
    pub(crate) fn has_vcpu_threads(&self) -> bool {
        self.rules.sched == Sched::Host && self.host.is_none()
    }

    /// The model of a host that schedules the vCPUs, without pause-loop exits if the run has none.
    pub(crate) fn modelled_host(&self) -> Option<Host> {
        let host = Host::clone(self.host.as_ref()?);
        Some(Host { pause: host.pause.filter(|_| self.halts.pause_exits), ..host })
    }

    /// Our own guests with their run, in order.
    pub fn ours(&self) -> impl Iterator<Item = OurGuest<'_>> {
        self.guests
            .iter()
            .enumerate()
            .filter_map(|(index, guest)| Some(OurGuest { run: self, index, guest, ours: guest.ours()? }))
    }

    /// Our own guest at a position among the guests of the run.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn our(&self, index: usize) -> OurGuest<'_> {
        self.ours().find(|asked| asked.index == index).expect("a guest of our own")
    }

    /// The Linux guest, which runs alone, and its kernel.
    #[must_use]
    pub fn linux(&self) -> Option<(&Guest, &Linux)> {
        let guest = self.guests.first()?;
        Some((guest, guest.linux()?))
    }
}

impl Guest {
    /// The work of our own guest; `None` where it boots Linux.
    #[must_use]
    pub fn ours(&self) -> Option<&Ours> {
        if let System::Ours(ours) = &self.system { Some(ours) } else { None }
    }

    /// Mutable access to the same work.
    #[must_use]
    pub fn ours_mut(&mut self) -> Option<&mut Ours> {
        if let System::Ours(ours) = &mut self.system { Some(ours) } else { None }
    }

    /// The kernel that it boots; `None` where it is our own guest.
    #[must_use]
    pub fn linux(&self) -> Option<&Linux> {
        if let System::Linux(linux) = &self.system { Some(linux) } else { None }
    }
}

/// A guest on CPU 0, nothing special: a start for callers, who change it as they like.
impl Default for Run {
    fn default() -> Self {
        Self {
            engine: Engine::Kvm,
            cpus: vec![0],
            numa: Numa::default(),
            ring: Ring::Auto,
            pv_backend: PvBackend::Auto,
            preempted_by: PreemptedBy::Auto,
            halts: KernelHalts::default(),
            rules: Rules::default(),
            host: None,
            deschedule: None,
            schedule: None,
            warmup: Duration::from_millis(20),
            window: Duration::from_secs(1),
            min_sections: 0,
            drain: false,
            watchdog: None,
            work_rate: None,
            attribution: true,
            pmu: false,
            live: false,
            guests: vec![Guest::default()],
        }
    }
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            name: "guest".into(),
            vcpus: 1,
            pv: false,
            seed: 1,
            quota: None,
            presence: None,
            system: System::Ours(Ours::default()),
        }
    }
}

impl Default for Ours {
    fn default() -> Self {
        Self {
            lock: "qspinlock".into(),
            patch: true,
            preempted_hint: true,
            spin_threshold: Duration::from_micros(20),
            spin_rounds: 0,
            lock_parameter: 0,
            slice_margin: Duration::from_micros(10),
            workload: "critical-section".into(),
            hold: Duration::from_micros(1),
            think: Duration::from_micros(2),
            lock_count: 1,
            tasks: None,
            fold: Fold::Off,
            shape: Shape::default(),
            oracle: true,
            ordered_stamps: true,
            memory_bytes: 64 << 20,
        }
    }
}

/// The choice of vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fold {
    /// All, always.
    #[default]
    Off,
    /// As many as its share of the pCPUs, where all guests have equal shares, as if it knew.
    Oracle,
    /// As many as this governor says.
    Governor(Governor),
}

/// Parameters of the guest's steal governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Governor {
    /// Time between two samples.
    pub interval: Duration,
    /// Up to this share of stolen time, in hundredths of a percent, one vCPU more is preferred.
    pub low: u32,
    /// Above this share one fewer is.
    pub high: u32,
}

impl Governor {
    /// Linux' defaults.
    pub const LINUX: Self = Self { interval: Duration::from_secs(1), low: 200, high: 500 };
}

/// In a shorter time the law takes no sample.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(100);

impl Fold {
    /// The governor, if there is one.
    #[must_use]
    pub fn governor(self) -> Option<Governor> {
        if let Self::Governor(governor) = self { Some(governor) } else { None }
    }

    /// Refuses parameters that are no governor's.
    pub(crate) fn check(self) -> Result<(), Refused> {
        let Some(Governor { interval, low, high }) = self.governor() else { return Ok(()) };
        let is_out = !(SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval);
        let message = format!("an interval of {} is out of range: 1ms to 100s", Span(interval));
        Refused::when(is_out, "fold", message)?;
        let message = "the low threshold is below the high one, and that below 100%";
        Refused::when(low >= high || high >= 10_000, "fold", message)
    }
}

/// The image's table entries that a run uses, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    pub(crate) lock: u32,
    pub(crate) workload: u32,
    /// Slow-path point at which instrumented locks ring; below 64.
    pub(crate) point: Option<u32>,
}

/// Returns the guest's boot block, for a clock of `tsc_khz` ticks a millisecond. Addresses are filled in when the block is written.
pub(crate) fn boot_block(asked: OurGuest<'_>, chosen: Chosen, tsc_khz: u64) -> BootBlock {
    let governor = asked.ours.fold.governor();
    let rate = TscRate::of_khz(tsc_khz);
    let ticks = |duration: Duration| rate.ticks(duration.into()).0;
    let nanoseconds = |duration: Duration| Nanoseconds::from(duration).0;
    BootBlock {
        abi_version: ABI_VERSION,
        vcpus: asked.guest.vcpus,
        lock: chosen.lock,
        workload: chosen.workload,
        flags: BootFlags::NONE
            .with_if(asked.guest.pv, BootFlags::PARAVIRT)
            .with_if(asked.ours.preempted_hint, BootFlags::PREEMPTED_HINT)
            .with_if(!asked.run.rules.grace.is_zero(), BootFlags::GRACE)
            .with_if(asked.ours.oracle, BootFlags::ORACLE)
            .with_if(asked.ours.ordered_stamps, BootFlags::ORDERED_STAMPS)
            .with_if(says_started(&asked.run.engine), BootFlags::EACH_SAYS_STARTED),
        lock_count: asked.ours.lock_count,
        fingerprint: ABI_FINGERPRINT,
        tsc_khz,
        hold_ns: nanoseconds(asked.ours.hold),
        think_ns: nanoseconds(asked.ours.think),
        work_rate: asked.run.work_rate.unwrap_or(0),
        spin_threshold_ticks: ticks(asked.ours.spin_threshold),
        seed: asked.guest.seed,
        slice_margin_ticks: ticks(asked.ours.slice_margin),
        points: chosen.point.map_or(0, |point| 1 << point),
        shape: asked.ours.shape,
        spin_rounds: asked.ours.spin_rounds,
        tasks: asked.ours.tasks.unwrap_or(asked.guest.vcpus),
        // These vCPUs run the guest's tasks at first.
        preferred_vcpus: match asked.ours.fold {
            Fold::Off | Fold::Governor(_) => asked.guest.vcpus,
            Fold::Oracle => asked.share_in_pcpus(),
        },
        fold_interval_ticks: governor.map_or(0, |governor| ticks(governor.interval)),
        fold_low: governor.map_or(0, |governor| governor.low),
        fold_high: governor.map_or(0, |governor| governor.high),
        lock_parameter: asked.ours.lock_parameter,
        // Each by its name, so that a setting which is added cannot be forgotten here.
        vcpu_areas: GuestAddress(0),
        control: GuestAddress(0),
        oracles: GuestAddress(0),
        page_table: GuestAddress(0),
        pool: GuestAddress(0),
        pool_bytes: 0,
        preempted_flags: GuestAddress(0),
        trace_rings: GuestAddress(0),
        trace_sections: 0,
        entries: GuestAddress(0),
    }
}

/// Whether each vCPU of the guest says that it has started. On a simulated machine a start costs nothing that could be saved.
pub(crate) fn says_started(engine: &Engine) -> bool {
    matches!(engine, Engine::Kvm | Engine::Threads)
}

/// Memory for the guest's memory manager, if the workload has one.
pub(crate) fn pool_bytes(asked: OurGuest<'_>, image: &Image, workload: usize) -> u64 {
    let uses_memory = image.workloads[workload].workload_flags().has(WorkloadFlags::USES_MEMORY);
    if uses_memory { asked.ours.memory_bytes } else { 0 }
}
