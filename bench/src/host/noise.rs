//! Other load on the pCPUs: tick counts of `/proc/stat` around a run, less the CPU time of this process and its
//! children.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haltkick_vmm::{Known, SchedStat, sched_stat_of_this_thread};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::host::probe;

/// Unit of `/proc/stat`.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// Other load on the pCPUs meanwhile, as shares of their time.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Noise {
    /// Busy with other processes and interrupts.
    pub(crate) others_share: Option<f64>,
    /// Taken by the outer host; null if it does not say.
    pub(crate) steal_share: Option<f64>,
    /// Time of all pCPUs that these are shares of.
    #[serde(default)]
    pub(crate) of_ns: u64,
    /// Share of their lives that the run's threads, one per pCPU, were ready and had no pCPU because others used it: counted
    /// in nanoseconds, where `others_share` is counted in ticks. Null where vCPUs have a thread each.
    #[serde(default)]
    pub(crate) run_delay_share: Option<f64>,
    /// Share of the run in which the process was stopped (SIGSTOP, a debugger, a freezer), or the host suspended.
    #[serde(default)]
    pub(crate) stopped_share: Option<f64>,
}

/// More than this share of the pCPUs used by others spoils a run, and what is compared where
/// [`Measure`](crate::experiment::measure::Measure) says nothing else.
pub(crate) const OTHERS_SHARE_LIMIT: f64 = 0.05;
/// Code of the warning that others used more.
pub(crate) const BUSY_NEIGHBOUR: &str = "busy-neighbour";
/// More than this share of the pCPUs taken by the outer host spoils a run.
pub(crate) const STEAL_SHARE_LIMIT: f64 = 0.02;
/// More than this share of a run in which nothing of it could run spoils it.
pub(crate) const STOPPED_SHARE_LIMIT: f64 = 0.05;

/// Runs something and says what else ran on the CPUs meanwhile: the kernel's counts say it, or in tests what is tested.
pub(crate) type Watcher<'a> = &'a dyn Fn(&[u32], &mut dyn FnMut()) -> Found;

/// Other load and the smallest share that can be told from none, or why that is unknown.
pub(crate) type Found = Known<(Noise, f64)>;

/// The [`Watcher`] that looks at this host.
pub(crate) fn around(cpus: &[u32], run: &mut dyn FnMut()) -> Found {
    let watch = Watch::start(cpus);
    run();
    watch.finish()
}

/// The moment before a run.
pub(crate) struct Watch {
    start: Instant,
    own: Duration,
    ticks: Result<Ticks, String>,
    cpus: Vec<u32>,
    stops: Stops,
}

#[derive(Clone, Copy)]
struct Ticks {
    busy: u64,
    idle: u64,
    steal: u64,
    /// Ticks of all CPUs since boot.
    ever_stolen: u64,
}

/// Why a share of stolen time is null.
pub(crate) const NO_STEAL: &str = "this is a virtual machine, and the one below has reported no stolen time since boot: it does not count, or took none";

/// Why nothing else is known to have run on a simulated machine.
pub(crate) use haltkick_vmm::NOTHING_ELSE_RUNS as SIMULATED;

/// Whether the outer host can be believed when it reports no stolen time: if it ever reported some, or if there is none.
fn steal_is_known(ticks: Ticks) -> bool {
    ticks.ever_stolen > 0 || probe::has_cpu_flag("hypervisor") == Ok(false)
}

impl Watch {
    pub(crate) fn start(cpus: &[u32]) -> Self {
        let stops = Stops::watch();
        Self { start: Instant::now(), own: own_cpu_time(), ticks: read(cpus), cpus: cpus.to_vec(), stops }
    }

    /// Returns the other load since the start, and the smallest share that the ticks can tell from none.
    pub(crate) fn finish(self) -> Found {
        let stopped = self.stops.finish();
        let before = self.ticks?;
        let after = read(&self.cpus)?;
        let own = own_cpu_time().saturating_sub(self.own).as_secs_f64();
        let elapsed = self.start.elapsed().as_secs_f64();
        let offered = elapsed * self.cpus.len() as f64;
        let steal_share = (seconds(before.steal, after.steal) / offered).clamp(0.0, 1.0);
        let noise = Noise {
            others_share: Some(others_share((before, after), own, offered)),
            steal_share: steal_is_known(after).then_some(steal_share),
            of_ns: (offered * 1e9) as u64,
            run_delay_share: None,
            stopped_share: stopped.ok().map(|stopped| (stopped.as_secs_f64() / elapsed).min(1.0)),
        };
        Ok((noise, 2.0 * TICK.as_secs_f64() * self.cpus.len() as f64 / offered))
    }
}

fn seconds(before: u64, after: u64) -> f64 {
    after.saturating_sub(before) as f64 * TICK.as_secs_f64()
}

/// Returns the share of `offered` seconds that others were busy, while this process was for `own`.
///
/// Busy time is sampled at ticks: a guest that a quota stops and starts at ticks seems busy for longer than it is. Idle time is measured on
/// kernels that stop the tick meanwhile. So the lesser one counts: a neighbour shows in both.
fn others_share((before, after): (Ticks, Ticks), own: f64, offered: f64) -> f64 {
    let busy = seconds(before.busy, after.busy);
    let not_idle = offered - seconds(before.idle, after.idle) - seconds(before.steal, after.steal);
    ((busy.min(not_idle) - own) / offered).clamp(0.0, 1.0)
}

fn own_cpu_time() -> Duration {
    now(ClockId::ProcessCPUTime) + children_cpu_time()
}

fn now(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Returns the CPU time of children that have ended, such as a QEMU.
fn children_cpu_time() -> Duration {
    let stat = probe::text("/proc/self/stat").unwrap_or_default();
    // Their user and system time.
    let ticks: u64 =
        [16, 17].iter().filter_map(|it| probe::stat_field(&stat, *it)?.parse::<u64>().ok()).sum();
    TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
}

fn read(cpus: &[u32]) -> Result<Ticks, String> {
    parse(&probe::text("/proc/stat")?, cpus)
}

/// Sums the lines `cpuN user nice system idle iowait irq softirq steal guest guest_nice`.
fn parse(stat: &str, cpus: &[u32]) -> Result<Ticks, String> {
    let fields_of = |name: &str| -> Result<Vec<u64>, String> {
        stat.lines()
            .filter_map(|line| line.split_once(' '))
            .find(|(key, _)| *key == name)
            .map(|(_, rest)| rest.split_ascii_whitespace().filter_map(|field| field.parse().ok()).collect())
            .ok_or_else(|| format!("/proc/stat: no line {name}"))
    };
    let ever_stolen = fields_of("cpu").ok().and_then(|fields| fields.get(7).copied()).unwrap_or(0);
    let mut sum = Ticks { busy: 0, idle: 0, steal: 0, ever_stolen };
    for cpu in cpus {
        let name = format!("cpu{cpu}");
        let fields = fields_of(&name)?;
        let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = fields[..] else {
            return Err(format!("/proc/stat: line {name} has {} fields, 8 expected", fields.len()));
        };
        sum.busy += user + nice + system + irq + softirq;
        sum.idle += idle + iowait;
        sum.steal += steal;
    }
    Ok(sum)
}

/// Why it is not known for how long a process was stopped.
pub(crate) const NO_STOPS: &str = "/proc/thread-self/schedstat does not tell how long a thread waited";

/// Between two looks.
const EACH: Duration = Duration::from_millis(20);
/// A busy machine, or one below it, may delay a look by so much.
const LATE: Duration = Duration::from_millis(30);

/// Looks for time in which the process was stopped: by SIGSTOP or a debugger, by a freezer, or with its whole host.
///
/// A thread sleeps for short times and looks how long they took by a clock that goes on while the host is suspended. What is beyond
/// the sleep, and is neither the thread's own CPU time nor time that it waited for a CPU, is time in which nothing could run.
struct Stops {
    /// Dropped, it ends the thread.
    end: Sender<()>,
    thread: Option<JoinHandle<Known<Duration>>>,
}

impl Stops {
    fn watch() -> Self {
        let (end, ended) = channel();
        let looks = move || {
            let mut stopped = Duration::ZERO;
            loop {
                // It goes on while the host is suspended.
                let since = now(ClockId::Boottime);
                let before = sched_stat_of_this_thread().ok_or(NO_STOPS)?;
                let ends = ended.recv_timeout(EACH) == Err(RecvTimeoutError::Disconnected);
                let after = sched_stat_of_this_thread().ok_or(NO_STOPS)?;
                let known = EACH + awake(after).saturating_sub(awake(before));
                let beyond = now(ClockId::Boottime).saturating_sub(since).saturating_sub(known);
                if beyond > LATE {
                    stopped += beyond;
                }
                match ends {
                    true if after.run_ns == 0 => return Err(NO_STOPS.into()),
                    true => return Ok(stopped),
                    false => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("stops".into()).spawn(looks).ok();
        Self { end, thread }
    }

    /// How long this process was stopped since, but for stops shorter than a look.
    ///
    /// # Errors
    /// Why that is not known.
    fn finish(self) -> Known<Duration> {
        drop(self.end);
        let thread = self.thread.ok_or("no thread could be started to look")?;
        thread.join().expect("a panic has ended the process")
    }
}

fn awake(stat: SchedStat) -> Duration {
    Duration::from_nanos(stat.run_ns + stat.delay_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  60 0 30 5 1 0 1 9 0 0\n\
                        cpu0 10 1 20 4 1 2 3 5 7 0\n\
                        cpu1 50 0 10 1 0 0 1 4 0 0\n\
                        intr 5\n";

    #[test]
    fn busy_time_of_the_runs_cpus_is_neither_idle_nor_stolen() {
        for (cpus, found) in [(&[0][..], Some((36, 5))), (&[0, 1], Some((97, 9))), (&[2], None)] {
            assert_eq!(parse(STAT, cpus).ok().map(|ticks| (ticks.busy, ticks.steal)), found, "{cpus:?}");
        }
    }

    #[test]
    fn stolen_time_is_unknown_where_the_hypervisor_never_reported_any() {
        let stolen = parse(STAT, &[0]).unwrap();
        assert!(steal_is_known(stolen), "nine ticks since boot");
        let never = parse(&STAT.replace(" 9 0 0", " 0 0 0").replace(" 5 7 0", " 0 7 0"), &[0]).unwrap();
        let virtual_machine = probe::has_cpu_flag("hypervisor") == Ok(true);
        assert_eq!((never.ever_stolen, steal_is_known(never)), (0, !virtual_machine));
    }

    #[test]
    fn neighbours_show_in_busy_and_in_idle_time() {
        let start = Ticks { busy: 0, idle: 0, steal: 0, ever_stolen: 0 };
        let after = |busy, idle| (start, Ticks { busy, idle, ..start });
        // Four seconds of two CPUs, of which this process had two: a neighbour had one, or none was there.
        assert_eq!(others_share(after(300, 100), 2.0, 4.0), 0.25);
        assert_eq!(others_share(after(200, 200), 2.0, 4.0), 0.0);
        // Ticks found the process whenever its quota let it run.
        assert_eq!(others_share(after(300, 200), 2.0, 4.0), 0.0);
        let stolen = Ticks { steal: 100, ..after(200, 100).1 };
        assert_eq!(others_share((start, stolen), 2.0, 4.0), 0.0, "the outer host is no neighbour");
    }

    #[test]
    fn ones_own_work_is_not_somebody_elses() {
        let watch = Watch::start(&crate::host::cpulist::allowed().unwrap().0);
        let end = Instant::now() + Duration::from_millis(200);
        while Instant::now() < end {}
        let own = own_cpu_time().saturating_sub(watch.own);
        assert!(own >= Duration::from_millis(20), "spun for 200 ms and used {own:?}");
    }
}
