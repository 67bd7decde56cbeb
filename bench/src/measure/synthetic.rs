//! Runs whose truth is known, so that everything behind the engine can be tested without KVM.
//!
//! A [`Sketch`] writes an experiment file and plans it; a [`World`] stands for a host with its guests: it knows what each
//! cell's throughput really is, how runs scatter around it, which runs are disturbed, and what the host cannot tell. From
//! the two come whole records ([`World::records`]), or a session that runs on the world instead of the VMM
//! ([`World::session`]).
//!
//! The engine sees what a real one sees, the configuration: two arms with the same settings have the same truth.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use haltkick_vmm::{
    AnyOutcome, ByActivity, Complaints, Costs, Ended, Found, Guest, Ideal, Image, Known, LinuxEnd,
    LinuxOutcome, OurGuest, Outcome, PairTicks, PreemptedSource, PvBackend, Ring, Run, RunDelay, RunError,
    TicksHistogram, VcpuOutcome, WorkSpeed,
};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};

use crate::analysis::summary::Summary;
use crate::experiment::overrides::Overrides;
use crate::experiment::plan::Plan;
use crate::experiment::{Experiment, Source};
use crate::host::cpulist::CpuList;
use crate::host::identity::Host;
use crate::host::noise::{self, Noise, Watcher};
use crate::measure::calibrate::{CALIBRATION_BOOTS, Calibration, Calibrations};
use crate::measure::console::{Heard, RunResult};
use crate::measure::engine::{self, Engine};
use crate::measure::progress::Progress;
use crate::measure::session::Session;
use crate::measure::{fill, linux};
use crate::record::Record;
use crate::results::directory::Directory;
use crate::results::manifest::{self, Manifest};
use crate::settings::{Settings, Supply};
use crate::text::exit;

type Disturbed = dyn Fn(OurGuest<'_>, u64) -> bool + Send + Sync;
type Adjust = dyn Fn(OurGuest<'_>, &mut Outcome) + Send + Sync;

pub(crate) struct World {
    truth: Box<dyn Fn(OurGuest<'_>) -> f64 + Send + Sync>,
    shape: Shape,
    host: Host,
    disturbed: Box<Disturbed>,
    noise: Known<()>,
    adjust: Box<Adjust>,
    state: Mutex<WorldState>,
}

struct WorldState {
    scatter: Scatter,
    /// Runs so far, those for calibration too.
    runs: u64,
    /// Whether the last run was disturbed.
    disturbed: bool,
}

/// Share of the pCPUs that a disturber takes, and by which throughput falls.
const DISTURBERS_SHARE: f64 = 0.4;

impl World {
    /// A quiet host on which every lock does a million sections a second, always.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            truth: Box::new(|_| 1e6),
            shape: Shape::LogNormal(0.0),
            host: Host { host_id: Some("host-a".into()), ..Host::default() },
            disturbed: Box::new(|_, _| false),
            noise: Ok(()),
            adjust: Box::new(|_, _| ()),
            state: Mutex::new(WorldState { scatter: Scatter::new(seed), runs: 0, disturbed: false }),
        }
    }

    /// Sections per second that a cell really does: the median of its runs. Of cells with a lock; those without do as much
    /// as their work allows.
    pub(crate) fn truth(self, per_second: impl Fn(OurGuest<'_>) -> f64 + Send + Sync + 'static) -> Self {
        Self { truth: Box::new(per_second), ..self }
    }

    pub(crate) fn shape(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// Which host this is; `None` where it has no machine id.
    pub(crate) fn host_id(self, id: Option<&str>) -> Self {
        Self { host: Host { host_id: id.map(String::from), ..self.host }, ..self }
    }

    /// Disturbs runs, chosen by their configuration and their number: they lose throughput and are invalid.
    /// The number counts all runs from 0, also the three for calibration that a session may begin with.
    pub(crate) fn disturbed(
        self,
        disturbed: impl Fn(OurGuest<'_>, u64) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { disturbed: Box::new(disturbed), ..self }
    }

    /// A host that does not tell what else ran.
    pub(crate) fn without_noise(self, reason: &'static str) -> Self {
        Self { noise: Err(reason.into()), ..self }
    }

    /// Changes outcomes last: fields that are missing, runs without sections, whatever a test needs.
    pub(crate) fn adjust(self, adjust: impl Fn(OurGuest<'_>, &mut Outcome) + Send + Sync + 'static) -> Self {
        Self { adjust: Box::new(adjust), ..self }
    }

    pub(crate) fn runs(&self) -> u64 {
        self.state().runs
    }

    /// The engine that [`Session`] and [`engine::run_cell`] run cells with.
    pub(crate) fn engine(&self) -> impl Fn(&Run) -> Result<RunResult, RunError> + '_ {
        |run| Ok(self.run(run).into())
    }

    /// The watcher that tells a session what else ran meanwhile.
    pub(crate) fn watcher(&self) -> impl Fn(&[u32], &mut dyn FnMut()) -> noise::Found + '_ {
        |_, run| {
            run();
            self.noise.clone()?;
            let others_share = if self.state().disturbed { DISTURBERS_SHARE } else { 0.0 };
            let of_ns = 100_000_000;
            let noise = Noise {
                others_share: Some(others_share),
                steal_share: Some(0.0),
                of_ns,
                run_delay_share: None,
                stopped_share: Some(0.0),
            };
            Ok((noise, 0.0))
        }
    }

    fn state(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().expect("nobody panics with it")
    }

    fn run(&self, run: &Run) -> Found {
        let disturbed = (self.disturbed)(run.our(0), self.runs());
        let mut state = self.state();
        state.runs += 1;
        state.disturbed = disturbed;
        let slowed = if disturbed { 1.0 - DISTURBERS_SHARE } else { 1.0 };
        let factor = state.scatter.next(self.shape) * slowed;
        let outcomes: Vec<Outcome> = run.ours().map(|asked| self.outcome(asked, factor)).collect();
        let cpu_time = outcomes[0].window * run.cpus.len() as u32;
        let outcomes = outcomes.into_iter().map(|outcome| AnyOutcome::Ours(Box::new(outcome)));
        found(run, cpu_time, outcomes.collect())
    }

    fn outcome(&self, asked: OurGuest<'_>, factor: f64) -> Outcome {
        let truth = if asked.ours.lock == "none" { lock_free(asked) } else { (self.truth)(asked) };
        let mut outcome = outcome_of(asked, truth * factor);
        (self.adjust)(asked, &mut outcome);
        outcome
    }

    /// All records of the plan's blocks, in the order in which a session would run them.
    pub(crate) fn records(&self, plan: &Plan) -> Vec<Record> {
        let (engine, watcher) = (self.engine(), self.watcher());
        let mut records = Vec::new();
        for block in 0..plan.outline.blocks {
            let mut ideals: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            for cell in plan.block(block) {
                let place = cell.place(&plan.outline.experiment, block, records.len() as u64);
                let ran = engine::run_cell(&engine, &watcher, &cell.run, &self.host);
                let (RunResult { found, .. }, origin) = ran.expect("a world runs whatever it is asked to");
                let per_second = engine::per_second(&found);
                let lock_free = cell.ideal.as_deref().map_or(&per_second, |id| &ideals[id]).clone();
                ideals.insert(&cell.id, per_second);
                records.extend(fill::records(&cell.run, &found, &origin, Some(&place), &Ok(lock_free)));
            }
        }
        records
    }

    pub(crate) fn summary(&self, plan: &Plan) -> Summary {
        Summary::new(&plan.outline, &self.records(plan))
    }

    pub(crate) fn manifest(&self, plan: &Plan) -> Manifest {
        Manifest {
            schema: manifest::SCHEMA.into(),
            schema_version: manifest::SCHEMA_VERSION,
            outline: plan.outline.clone(),
            kernels: linux::files(plan).expect("kernels of a test are there"),
            files: plan.cells().flat_map(|cell| crate::record::settings::files(&cell.run)).collect(),
            seed: plan.seed,
            host: self.host.clone(),
            ..Manifest::default()
        }
    }

    /// A session on this host that begins in an empty directory; engine and watcher are those of this world.
    pub(crate) fn session<'a>(
        &self,
        plan: &'a Plan,
        engine: Engine<'a>,
        watcher: Watcher<'a>,
        scratch: &Scratch,
    ) -> Session<'a> {
        let measure = |run: &Run| Calibration::measure(engine, run, &Image::embedded(), CALIBRATION_BOOTS);
        let calibrations = Calibrations::of_plan(plan, &[], &self.host, measure);
        let host = self.host.clone();
        Session {
            plan,
            engine,
            watcher,
            host,
            calibrations: calibrations.expect("a world runs whatever it is asked to"),
            versions: linux::versions(plan).expect("kernels of a test are there"),
            directory: Directory::create(scratch.path()).expect("it is empty"),
            records: vec![],
            progress: Progress::start(),
            failed: vec![],
            simulators: None,
            ordered: BTreeMap::new(),
        }
    }
}

/// A tick is a nanosecond.
const TSC_KHZ: u64 = 1_000_000;
/// Length of most waits; one in ten takes ten times as long.
const WAIT_NS: u64 = 5_000;

/// Sections per second without any lock: as many as the pCPUs have time for.
fn lock_free(asked: OurGuest<'_>) -> f64 {
    let section = asked.ours.shape.mean_hold(asked.ours.hold) + asked.ours.think;
    asked.run.cpus.len().min(asked.guest.vcpus as usize) as f64
        / section.max(Duration::from_nanos(1)).as_secs_f64()
}

#[expect(clippy::too_many_lines, reason = "its one literal names every field of an outcome")]
pub(crate) fn outcome_of(asked: OurGuest<'_>, per_second: f64) -> Outcome {
    let of_work = asked.ours.shape.work().map(|sections| {
        (sections, Duration::from_secs_f64((sections as f64 / per_second.max(1e-3)).min(1e6)))
    });
    let (sections, window, completion) = match of_work {
        Some((sections, took)) if took <= asked.run.window => (sections, took, Some(took)),
        _ => ((per_second * asked.run.window.as_secs_f64()).round() as u64, asked.run.window, None),
    };
    let vcpus = u64::from(asked.guest.vcpus);
    let share = asked.run.cpus.len() as f64 / asked.guest.vcpus as f64;
    let run_ns = (window.as_nanos() as f64 * share.min(1.0)) as u64;
    let vcpu = |index: u64| VcpuOutcome {
        acquisitions: sections / vcpus + u64::from(index < sections % vcpus),
        run_ns: Some(run_ns),
        steal_ns: Some(window.as_nanos() as u64 - run_ns),
        preemptions: 10,
        waits: Some(0),
        kicks: Some(0),
        ..VcpuOutcome::default()
    };
    Outcome {
        ring: if asked.run.ring == Ring::Ring0 { Ring::Ring0 } else { Ring::Ring3 },
        ring_reason: "as the test has it".into(),
        pv_backend: PvBackend::Vmm,
        pv_backend_reason: "as the test has it".into(),
        tsc_khz: TSC_KHZ,
        work_rate: asked.run.work_rate.unwrap_or(1 << 20),
        memory_bytes: 0,
        residence: Err("no memory in a test".into()),
        start_up: Duration::from_millis(1),
        patched_sites: 0,
        pair_ticks: PairTicks::default(),
        calls: None,
        window,
        completion,
        lock_cpu: None,
        lost_updates: (asked.ours.lock != "none").then_some(0),
        wait: waits(sections),
        costs: Costs::default(),
        ideal: Ideal::Serial,
        unlock: TicksHistogram::default(),
        times: vec![],
        reads: 0,
        tsc_steps_back: 0,
        pending_waits: Ok(vec![]),
        work: vec![Some(WorkSpeed { over_promised: 1.0, pieces: 100 }); asked.guest.vcpus as usize],
        hold: histogram(&[(asked.ours.hold.as_nanos() as u64, sections)]),
        entered: vec![],
        lock_events: vec![],
        vm_exits: vec![],
        kvm_stats: Err("no KVM in a test".into()),
        preemptions: Some(ByActivity { other: 10 * vcpus, ..ByActivity::default() }),
        preempted_ns: Some(ByActivity { other: 1_000_000 * vcpus, ..ByActivity::default() }),
        lost_ns: Some(ByActivity::default()),
        skipped_losses: 0,
        closed: Err("no heads in a test".into()),
        hint: None,
        graces: None,
        throttled: None,
        throttled_by_kernel: None,
        handed: None,
        injected: None,
        switches: Err("no switches in a test".into()),
        preempted_source: Ok(PreemptedSource::Vmm),
        pinning_lost: None,
        vcpus: (0..vcpus).map(vcpu).collect(),
    }
}

/// Findings of a run whose guests came to these outcomes.
pub(crate) fn found(run: &Run, cpu_time: Duration, outcomes: Vec<AnyOutcome>) -> Found {
    let ended = |(guest, outcome): (&Guest, AnyOutcome)| Ended {
        name: guest.name.clone(),
        result: Ok(outcome),
        explanation: None,
        console: String::new(),
    };
    Found {
        started: Ok(Duration::from_millis(1)),
        cpu_before: Ok(Duration::from_millis(2)),
        cpu_time,
        windows: 1,
        run_delay: Ok(RunDelay { alive: cpu_time, delayed: Duration::ZERO }),
        pmu: Err("no PMU in a test".into()),
        schedule: None,
        profile: None,
        trace: None,
        guests: run.guests.iter().zip(outcomes).map(ended).collect(),
    }
}

fn waits(sections: u64) -> TicksHistogram {
    let long = sections / 10;
    histogram(&[(WAIT_NS, sections - long), (10 * WAIT_NS, long)])
}

fn histogram(values: &[(u64, u64)]) -> TicksHistogram {
    let mut histogram = TicksHistogram::empty();
    values.iter().filter(|(_, count)| *count > 0).for_each(|&(value, count)| histogram.count(value, count));
    histogram
}

/// A guest that ends like this and has printed these lines.
pub(crate) fn seen(run: &Run, end: LinuxEnd, lines: &[String]) -> RunResult {
    let mut heard = Heard::default();
    lines.iter().for_each(|line| heard.hear(line));
    let outcome = LinuxOutcome {
        end,
        run: Duration::from_secs(3),
        user_space: Some(Duration::from_secs(1)),
        complaints: Complaints::new(),
        command_line: "console=ttyS0".into(),
        obstacle: None,
        pv_features: vec![],
        tsc_khz: 1_000_000,
        vm_exits: vec![],
        kvm_stats: Ok(vec![]),
        vcpus: vec![],
        pinning_lost: None,
    };
    let found = found(run, Duration::from_secs(5), vec![AnyOutcome::Linux(Box::new(outcome))]);
    RunResult { found, heard, inside: None }
}

/// The experiment of a file with these lines behind its format, name and title. Complaints name it `x.toml`.
pub(crate) fn experiment(rest: &str) -> exit::Result<Experiment> {
    let text = format!("format = 1\nname = 'x'\ntitle = 'X'\n{rest}");
    Experiment::parse(Source { origin: "x.toml".into(), text })
}

pub(crate) fn built_in(name: &str) -> Experiment {
    Experiment::parse(Source::find(name).unwrap()).unwrap()
}

/// Settings of the command line, over those of an experiment.
pub(crate) fn overrides(sets: &[(&str, &str)]) -> Overrides {
    let sets = sets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Overrides { sets, ..Overrides::default() }
}

/// The plan of an experiment on CPUs 0 and 1 of a host that need not have them.
pub(crate) fn planned(experiment: &Experiment) -> exit::Result<Plan> {
    let locks = experiment.locks();
    let image =
        Image::embedded().with_locks(locks.iter().map(String::as_str)).expect("locks of a test are there");
    Plan::new(experiment, Supply { image: &image, allowed: &CpuList(vec![0, 1]) }, 1)
}

pub(crate) fn settings(given: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    given.iter().for_each(|(key, value)| settings.set(key, value).expect("a good value"));
    settings
}

/// An experiment in the making, on CPUs 0 and 1 of a host that need not have them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sketch {
    head: String,
    grid: String,
    arms: String,
}

impl Sketch {
    /// No arms yet; a window of 50 ms.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Two arms: `a` with a test-and-set lock, `b` with a ticket lock.
    pub(crate) fn two() -> Self {
        Self::new().arm("a", "tas").arm("b", "ticket")
    }

    /// The ratio of two arms, `b` over `a`.
    pub(crate) fn compared(self) -> Self {
        self.compare("b/a", "b", "a")
    }

    /// A line of the file's head, such as `trial-blocks = 10`.
    pub(crate) fn head(mut self, line: &str) -> Self {
        self.head += &format!("{line}\n");
        self
    }

    pub(crate) fn axis(mut self, key: &str, values: &[impl std::fmt::Debug]) -> Self {
        self.grid += &format!("{key} = {values:?}\n");
        self
    }

    /// An arm with its lock, which is paravirtual where it is called `LOCK pv`.
    pub(crate) fn arm(self, name: &str, lock: &str) -> Self {
        let (lock, pv) = lock.strip_suffix(" pv").map_or((lock, ""), |lock| (lock, "pv = \"on\"\n"));
        self.arm_with(name, &format!("lock = {lock:?}\n{pv}"))
    }

    pub(crate) fn arm_with(mut self, name: &str, settings: &str) -> Self {
        self.arms += &format!("[[arm]]\nname = {name:?}\n{settings}\n");
        self
    }

    pub(crate) fn compare(mut self, name: &str, arm: &str, baseline: &str) -> Self {
        self.arms += &format!("[[compare]]\nname = {name:?}\narm = {arm:?}\nbaseline = {baseline:?}\n");
        self
    }

    pub(crate) fn control(mut self, arm: &str) -> Self {
        self.arms += &format!("[control]\narm = {arm:?}\n");
        self
    }

    pub(crate) fn plan(&self, blocks: u32) -> Plan {
        let Self { head, grid, arms } = self;
        let text = format!(
            "format = 1\nname = \"sketch\"\ntitle = \"A sketch\"\nblocks = {blocks}\n{head}[settings]\nwindow = \"50ms\"\n\
             [grid]\n{grid}{arms}"
        );
        let source = Source { origin: "sketch.toml".into(), text };
        let experiment = Experiment::parse(source).expect("a sketch is a good file");
        planned(&experiment).expect("a sketch is possible")
    }

    /// The plan of [`Self::plan`], and its records of a quiet host.
    pub(crate) fn measured(&self, blocks: u32) -> (Plan, Vec<Record>) {
        let plan = self.plan(blocks);
        let records = World::new(1).records(&plan);
        (plan, records)
    }
}

/// Requires all of `parts` in a text.
#[track_caller]
pub(crate) fn assert_has(text: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(text.contains(part), "{part} is not in:\n{text}"));
}

/// Text for a terminal, without its colours.
pub(crate) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

/// An empty directory of one test's own.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("haltkick-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file at `path` below it.
    pub(crate) fn put(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("it is below")).expect("a directory below");
        fs::write(path, text).expect("a file below");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Relative noise of a run; the number is its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    /// Log-normal: a tail towards fast runs, symmetric only in the logarithm.
    LogNormal(f64),
    /// The logarithm has an exponential tail towards slow runs and none towards fast ones, as a host does that only takes.
    Skewed(f64),
    /// Student's t with two degrees of freedom, which has no variance: now and then a run is far off.
    HeavyTailed(f64),
}

pub(crate) struct Scatter {
    rng: ChaCha8Rng,
}

impl Scatter {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The next run's throughput over the true one.
    pub(crate) fn next(&mut self, shape: Shape) -> f64 {
        // Above 0, at most 1.
        let mut uniform = || 1.0 - self.rng.random::<f64>();
        // Box and Muller.
        let normal = (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
        // With mean 1; so is the mean of two squared normal values distributed.
        let mut exponential = || -uniform().ln();
        match shape {
            Shape::LogNormal(deviation) => (deviation * normal).exp(),
            Shape::Skewed(mean) => (mean * (std::f64::consts::LN_2 - exponential())).exp(),
            Shape::HeavyTailed(scale) => (scale * normal / exponential().sqrt()).clamp(-3.0, 3.0).exp(),
        }
    }
}
