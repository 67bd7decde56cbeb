//! From settings to a cell that can exist here: what depends on several settings, on the image's names, on this host's CPUs.
//! All that a setting decides by itself stands in the table.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haltkick_vmm::{
    ARMS, Accelerator, Engine, Entry, Guest, Image, MAX_VCPUS, Ours, Presence, Refused, Ring, Run, Sched,
    Span, System, WorkloadFlags,
};

use super::choices::{self, Ratio};
use super::pause_loops::PauseLoops;
use super::row::{Apply, ns};
use super::{Settings, Supply, Value, WITH_PV, default_name, in_range, machines, rounds, table};
use crate::host::cpu_choice::{self, CpuChoice};
use crate::host::cpulist::CpuList;
use crate::text::nearest;

/// vCPUs per pCPU, if their number is not given, and if they fit.
const DEFAULT_RATIO: u32 = 8;
/// The longest that a fixed amount of work may take, unless a window is given.
const LONGEST_WORK: Duration = Duration::from_secs(60);
const DEFAULT_WINDOW: Duration = Duration::from_secs(1);
const SHORTEST_WINDOW: Duration = Duration::from_millis(1);
const SHORTEST_WARMUP: Duration = Duration::from_millis(20);

/// Length of the window on a simulated machine: a second would be a minute of simulation for a hundred CPUs.
const SIMULATED_WINDOW: Duration = Duration::from_millis(50);
const SIMULATED_WARMUP: Duration = Duration::from_millis(5);

/// Upper limit of a run: a longer one is most often a forgotten unit.
const LONGEST_SIMULATION: Duration = Duration::from_secs(3600);
/// Time that the simulation of one busy pCPU takes, in units of simulated time: 1 to 3 was seen, less where it spins or sleeps.
const SLOWDOWN: u32 = 2;

/// About how long a run on a simulated machine takes.
pub(crate) fn simulated_for(run: &Run) -> Duration {
    (run.warmup + run.window) * (SLOWDOWN * run.cpus.len() as u32)
}

impl Settings {
    /// Fills in the defaults and checks that the cell can exist here.
    pub(crate) fn resolve(&self, supply: Supply<'_>) -> Result<Run, Refused> {
        self.check_bounds()?;
        let (common, vms) = (self.of_run(), self.guests());
        let of_vms = vms.iter().map(|vm| vm.settings.clone().over(&common));
        let each = if vms.is_empty() { vec![common.clone()] } else { of_vms.collect() };
        each.iter().try_for_each(Self::check_bounds)?;
        let mut run = common.run(supply)?;
        for (index, settings) in each.iter().enumerate() {
            let mut guest = settings.guest(&run, supply.image)?;
            if let Some(vm) = vms.get(index) {
                guest.name = vm.name.clone().unwrap_or_else(|| default_name(index));
                // Guests that do the same must not do it in step.
                let step = if vm.settings.given("seed").is_some() { 0 } else { index as u64 };
                guest.seed = guest.seed.wrapping_add(step);
            }
            run.guests.push(guest);
        }
        if let Some(name) = common.given("host").map(Value::text) {
            run.host = Some(Arc::new(machines::find_host(name).map_err(refused("host"))?));
        }
        (run.warmup, run.window) = common.times(&run)?;
        finish_simulated(&mut run)?;
        if let Some(path) = common.given("schedule").map(Value::text) {
            run.schedule = Some(Arc::new(machines::find_schedule(path).map_err(refused("schedule"))?));
        }
        common.given("ple").map_or(Ok(()), |loops| loops.to::<PauseLoops>().put(&mut run))?;
        run.check_settings()?;
        check_descheduling(&run, supply.image)?;
        Ok(run)
    }

    /// The run, without guests yet, and so without the times that they need.
    fn run(&self, supply: Supply<'_>) -> Result<Run, Refused> {
        let engine = self.engine()?;
        let cpus = self.pcpus(&engine, supply.allowed).map_err(refused("cpus"))?.0;
        let (warmup, window) = (Duration::ZERO, Duration::ZERO);
        let mut run = Run { engine, cpus, warmup, window, guests: vec![], ..Run::default() };
        for setting in table::all() {
            if let (Apply::Run(apply), Some(value)) = (&setting.apply, self.given(setting.name)) {
                apply(&mut run, value);
            }
        }
        if matches!(run.engine, Engine::Qemu(_)) && self.given("sched").is_none() {
            // QEMU's vCPUs are threads that only the host can schedule.
            run.rules.sched = Sched::Host;
        }
        if run.engine.is_simulated() && run.ring == Ring::Auto {
            // As kernels do: their waiters spin there, and their pause loops exit where the host has such exits.
            run.ring = Ring::Ring0;
        }
        Ok(run)
    }

    fn guest(&self, run: &Run, image: &Image) -> Result<Guest, Refused> {
        let vcpus = self.vcpu_count(run.cpus.len() as u32)?;
        let (lock, pv) = self.lock_form(&image.locks)?;
        let seed = self.given("seed").map_or(Guest::default().seed, Value::to);
        let mut ours = Ours { lock, ..Ours::default() };
        for setting in table::all() {
            if let (Apply::Ours(apply), Some(value)) = (&setting.apply, self.given(setting.name)) {
                apply(&mut ours, value);
            }
        }
        self.check_workload(&ours.workload, pv, image)?;
        self.finish_sections(&mut ours, vcpus)?;
        let quota = self.given("quota").and_then(|value| value.by(choices::quota));
        let presence = match (self.time("from"), self.time("until")) {
            (None, None) => None,
            (from, until) => Some(Presence { from: from.unwrap_or_default(), until }),
        };
        Ok(Guest { vcpus, pv, seed, quota, presence, system: System::Ours(ours), ..Guest::default() })
    }

    fn check_bounds(&self) -> Result<(), Refused> {
        let mut given = self.all_given();
        given.try_for_each(|(setting, value)| setting.check(value.text()).map_err(refused(setting.name)))
    }

    /// Whether the image has the workload, and the workload all that was asked for.
    fn check_workload(&self, name: &str, pv: bool, image: &Image) -> Result<(), Refused> {
        let workload = find("workload", name, &image.workloads)?;
        if workload.workload_flags().has(WorkloadFlags::NEEDS_PARAVIRT) && !pv {
            return refuse(
                "pv",
                format!("workload '{name}' needs vCPUs that sleep, and none sleeps without it: use pv on"),
            );
        }
        let strange = table::all()
            .filter(|setting| self.given(setting.name).is_some())
            .find(|setting| !workload.workload_flags().has(setting.workloads));
        let Some(setting) = strange else { return Ok(()) };
        let fits =
            |workload: &&Entry| workload.workload_flags().has(setting.workloads) && !workload.is_selftest();
        let fitting: Vec<_> =
            image.workloads.iter().filter(fits).map(|workload| workload.name.as_str()).collect();
        let others = match &fitting[..] {
            [only] => format!("workload {only}"),
            several => format!("one of {}", several.join(", ")),
        };
        let strange = match setting.qualifies {
            None => format!("workload '{name}' has no such thing"),
            Some(_) => format!("what stands behind the slash is nothing for workload '{name}'"),
        };
        refuse(setting.qualifies.unwrap_or(setting.name), format!("{strange}: use {others}"))
    }

    /// Sets properties of sections that depend on another setting.
    fn finish_sections(&self, ours: &mut Ours, vcpus: u32) -> Result<(), Refused> {
        ours.shape.long_hold_ns = ns(self.time("long-hold").unwrap_or(ours.hold));
        ours.shape.read_hold_ns = ns(self.time("read-hold").unwrap_or(ours.hold));
        ours.check()?;
        if let Some(work) = self.time("work") {
            let section = ours.shape.mean_hold(ours.hold) + ours.think;
            if section.is_zero() {
                return refuse("work", "there is no work to divide: give hold or think a length");
            }
            ours.shape.work_sections = (work.as_nanos() / section.as_nanos()).max(1) as u64;
        }
        if let Some(each) = self.given("each") {
            ours.shape.work_sections = each.to::<u64>() * u64::from(vcpus);
        }
        Ok(())
    }

    /// Time in which each vCPU has as many turns as are asked for; enough for a figure, unless a window is given.
    fn turns(&self, run: &Run) -> Duration {
        let by_default = if self.given("window").is_none() { rounds::LEAST } else { 0 };
        rounds::last(run, self.given("min-turns").map_or(by_default, Value::to))
    }

    fn times(&self, run: &Run) -> Result<(Duration, Duration), Refused> {
        let has_work = |guest: &Guest| guest.ours().is_some_and(|ours| ours.shape.work().is_some());
        let (warmup, window) = if run.engine.is_simulated() {
            // Fixed work takes as long as it does; a lock that needs four times as long is cut off.
            (SIMULATED_WARMUP, SIMULATED_WINDOW.max(self.time("work").unwrap_or_default() * 4))
        } else {
            let window = if run.guests.iter().any(has_work) { LONGEST_WORK } else { DEFAULT_WINDOW };
            ((rounds::round(run) * 2).max(SHORTEST_WARMUP), window)
        };
        let is_whole = self.given("window").is_none() && !run.engine.is_simulated();
        let window = self.time("window").unwrap_or(window).max(self.turns(run));
        let window = if is_whole { rounds::whole(window, rounds::period(run)) } else { window };
        if window < SHORTEST_WINDOW {
            return refuse("window", "the window is too short to count in: 1ms at least");
        }
        Ok((self.time("warmup").unwrap_or(warmup), window))
    }

    fn engine(&self) -> Result<Engine, Refused> {
        let engine = self.given("engine").map_or("kvm", Value::text);
        Ok(match (engine, self.given("machine").map(Value::text)) {
            ("sim", Some(name)) => Engine::Sim(Arc::new(machines::find(name).map_err(refused("machine"))?)),
            ("sim", None) => {
                let advice = "name one of `haltkick list machines`, or a file";
                return refuse("machine", format!("engine sim simulates a machine: {advice}"));
            }
            (_, Some(_)) => {
                return refuse("machine", "only engine sim simulates a machine: use engine sim");
            }
            ("kvm", None) => Engine::Kvm,
            ("threads", None) => Engine::Threads,
            ("qemu-kvm", None) => Engine::Qemu(Accelerator::Kvm),
            ("qemu", None) if Path::new("/dev/kvm").exists() => Engine::Qemu(Accelerator::Kvm),
            ("qemu" | "qemu-tcg", None) => Engine::Qemu(Accelerator::Tcg),
            (other, None) => unreachable!("{other} is no word for an engine"),
        })
    }

    /// The pCPUs of a run on `engine`, where this host has `allowed` to offer.
    fn pcpus(&self, engine: &Engine, allowed: &CpuList) -> Result<CpuList, String> {
        let given = self.given("cpus").map(Value::to::<CpuChoice>);
        let Some(machine) = engine.machine() else {
            return given.map_or_else(|| Ok(cpu_choice::by_default(allowed)), |choice| choice.here(allowed));
        };
        let all = CpuList((0..machine.topology.cpus()).collect());
        given.map_or(Ok(all.clone()), |choice| choice.simulated(&all))
    }

    fn vcpu_count(&self, pcpus: u32) -> Result<u32, Refused> {
        if let Some(vcpus) = self.given("vcpus") {
            return Ok(vcpus.to());
        }
        let most = MAX_VCPUS as u32 / pcpus;
        let by_default = Ratio::whole(DEFAULT_RATIO.min(most).max(1));
        let vcpus = self.given("ratio").map_or(by_default, Value::to).vcpus(pcpus as usize) as u32;
        if vcpus > MAX_VCPUS as u32 && most > 0 {
            let too_many = format!("{vcpus} vCPUs on {pcpus} pCPUs are more than the {MAX_VCPUS} of a run");
            return refuse("ratio", format!("{too_many}: use ratio {most}, or fewer pCPUs (--cpus node:0)"));
        }
        let range = in_range(vcpus, &(1..=MAX_VCPUS as u32));
        range.or_else(|why| refuse("ratio", format!("{vcpus} vCPUs on {pcpus} pCPUs: {why}")))?;
        Ok(vcpus)
    }

    /// How many pCPUs a run would have, where this host has `allowed` to offer.
    pub(crate) fn pcpu_count(&self, allowed: &CpuList) -> usize {
        let engine = self.engine().unwrap_or_default();
        // A wrong choice is refused when the runs are made.
        self.pcpus(&engine, allowed).map_or(allowed.0.len(), |cpus| cpus.0.len())
    }

    /// Name and form of the lock, if the image has both.
    pub(crate) fn lock_form<'a>(&self, locks: &'a [Entry]) -> Result<(String, bool), Refused> {
        let lock = self.lock_entry(locks)?;
        let name = lock.name.clone();
        let (native, paravirt) = (lock.has_native(), lock.has_paravirt());
        let pv = match (self.named_lock().1, self.given("pv").map(Value::is_on)) {
            (true, Some(false)) => {
                return refuse("pv", format!("lock '{name}{WITH_PV}' says pv on: leave one out"));
            }
            (is_named, asked) => asked.unwrap_or(is_named || !native),
        };
        let (form, other, has): (_, _, fn(&Entry) -> bool) = match pv {
            true if !paravirt => ("paravirtual", "off", Entry::has_paravirt),
            false if !native => ("native", "on", Entry::has_native),
            _ => return Ok((name, pv)),
        };
        // A lock in several layouts is one name.
        let family = |lock: &'a Entry| lock.name.split_once('/').map_or(lock.name.as_str(), |(name, _)| name);
        let mut with: Vec<&str> = locks.iter().filter(|lock| has(lock)).map(family).collect();
        with.dedup();
        let of_one = if pv { "; NAME+pv asks a single lock for it" } else { "" };
        let with = with.join(", ");
        refuse("pv", format!("lock '{name}' has no {form} form: use pv {other}, or one of {with}{of_one}"))
    }

    /// The lock's name, and whether its paravirtual form is named with it: `qspinlock+pv`.
    fn named_lock(&self) -> (&str, bool) {
        let default = || table::find("lock").and_then(|row| row.default).expect("a row with a default");
        let name = self.given("lock").map_or_else(default, Value::text);
        name.strip_suffix(WITH_PV).map_or((name, false), |name| (name, true))
    }

    /// The image's entry for lock and layout, which is called `lock/layout` where there are several.
    fn lock_entry<'a>(&self, locks: &'a [Entry]) -> Result<&'a Entry, Refused> {
        let (name, _) = self.named_lock();
        let layouts = layouts(locks, name);
        let Some(layout) = self.given("layout").map(Value::text) else {
            let first = layouts.first().map_or(name.to_owned(), |layout| format!("{name}/{layout}"));
            return find("lock", &first, locks);
        };
        if layouts.is_empty() {
            find("lock", name, locks)?;
            let advice = "leave it out, or take another lock";
            return refuse("layout", format!("lock '{name}' has no layouts to choose from: {advice}"));
        }
        if !layouts.contains(&layout) {
            let there_is = layouts.join(", ");
            return refuse("layout", format!("lock '{name}' has no layout '{layout}': it has {there_is}"));
        }
        find("lock", &format!("{name}/{layout}"), locks)
    }

    fn time(&self, name: &str) -> Option<Duration> {
        self.given(name).map(Value::time)
    }
}

/// Sets the rate that a simulated machine decides, and refuses a run that takes too long there.
fn finish_simulated(run: &mut Run) -> Result<(), Refused> {
    let Some(machine) = run.engine.machine() else { return Ok(()) };
    run.work_rate = run.work_rate.or_else(|| Some(machine.work_rate()));
    let takes = simulated_for(run);
    if takes > LONGEST_SIMULATION {
        let (simulated, pcpus) = (Span(run.warmup + run.window), run.cpus.len());
        let hours = takes.as_secs().div_ceil(3600);
        let would = format!("{simulated} simulated on {pcpus} pCPUs would take about {hours} hours");
        return refuse("window", format!("{would}: use a shorter window, or fewer pCPUs"));
    }
    Ok(())
}

fn refuse<T>(about: &'static str, message: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::new(about, message))
}

/// The refusal of a setting for a reason that comes later.
fn refused(about: &'static str) -> impl FnOnce(String) -> Refused {
    move |message| Refused { about, message }
}

/// Checks that the image has vCPUs that the policy of descheduling means.
fn check_descheduling(run: &Run, image: &Image) -> Result<(), Refused> {
    let Some(policy) = &run.deschedule else { return Ok(()) };
    run.ours().try_for_each(|asked| {
        let lock = find("lock", &asked.ours.lock, &image.locks)?;
        let workload = find("workload", &asked.ours.workload, &image.workloads)?;
        policy.check(lock, workload, image).map(drop)
    })
}

/// The layouts in which the image has lock `name`; none if it has it in one form only.
pub(crate) fn layouts<'a>(locks: &'a [Entry], name: &str) -> Vec<&'a str> {
    locks
        .iter()
        .filter_map(|lock| lock.name.split_once('/'))
        .filter(|(lock, _)| *lock == name)
        .map(|(_, layout)| layout)
        .collect()
}

fn find<'a>(kind: &'static str, name: &str, entries: &'a [Entry]) -> Result<&'a Entry, Refused> {
    entries.iter().find(|entry| entry.name == name).ok_or_else(|| {
        // A lock in several layouts is one name.
        let mut names: Vec<&str> = entries.iter().filter_map(|entry| entry.name.split('/').next()).collect();
        names.dedup();
        // An arm is linked where it is named: it is among the locks of an image that was asked for it only.
        if kind == "lock" {
            names.extend(ARMS.iter().map(|arm| arm.name));
        }
        Refused::new(kind, nearest::unknown(kind, name, &names))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::settings;

    fn resolve(given: &[(&str, &str)]) -> Result<Run, Refused> {
        settings(given).resolve(Supply { image: &Image::embedded(), allowed: &CpuList(vec![0, 1]) })
    }

    #[test]
    fn the_defaults_of_the_table_are_those_of_the_library() {
        let resolved = resolve(&[("vcpus", "1"), ("cpus", "0")]).unwrap();
        let mut library = Run::default();
        // These follow the length of a section.
        let ours = library.guests[0].ours_mut().unwrap();
        (ours.shape.long_hold_ns, ours.shape.read_hold_ns) = (ns(ours.hold), ns(ours.hold));
        assert_eq!(resolved, library);
        for setting in table::all() {
            let default = setting.default_text().filter(|_| setting.qualifies.is_none());
            let Some(written) = default.map(|default| setting.read(&default).unwrap()) else { continue };
            assert_eq!(setting.check(&written), Ok(()), "{}", setting.name);
            match setting.apply {
                Apply::Run(apply) => apply(&mut library, Value(&written)),
                Apply::Ours(apply) => apply(library.guests[0].ours_mut().unwrap(), Value(&written)),
                Apply::Combined => {}
            }
        }
        assert_eq!(resolved, library, "those that the help tells");
    }

    #[test]
    fn a_window_is_long_enough_for_turns_and_for_work() {
        let one = "cpus=0 ratio=8 slice=1ms window=1ms/8";
        let sim = "engine=sim machine=nehalem-2s cpus=0 ratio=8";
        let modelled = "engine=sim machine=skylake-8s cpus=0-7 sched=host ratio=4 host=linux-7.3";
        for (given, more, ms) in [
            (one, "", 64.0),
            (one, "window=100ms", 100.0),
            // Turns are those of the vCPUs of all guests.
            (one, "guests=4", 4.0 * 64.0),
            (one, "guests=4 share=guest", 4.0 * 64.0),
            (sim, "", 64.0),
            (sim, "ratio=1", SIMULATED_WINDOW.as_secs_f64() * 1e3),
            (sim, "window=1ms/20", 160.0),
            (sim, "workload=mixed work=200ms", 800.0),
            (sim, "workload=mixed work=200ms window=70ms", 70.0),
            // Without a window: eight rounds of the scheduler.
            ("cpus=0-1", "", DEFAULT_WINDOW.as_secs_f64() * 1e3),
            ("cpus=0-1", "ratio=500", 4000.0),
            ("cpus=0-1", "ratio=500 window=5ms", 5.0),
            // Slices on eight CPUs are four times those on one: 0.7 ms in the model.
            (modelled, "", 8.0 * 4.0 * 2.8),
        ] {
            let words = format!("{given} {more}");
            let pairs: Vec<_> = words.split(' ').filter_map(|word| word.split_once('=')).collect();
            let window_ms = resolve(&pairs).unwrap().window.as_secs_f64() * 1e3;
            assert!((window_ms - ms).abs() < 1e-6, "{words}: {window_ms}");
        }
    }

    #[test]
    fn guests_that_are_alike_differ_in_name_and_seed() {
        let resolved = resolve(&[("guests", "3"), ("ratio", "1"), ("lock", "tas"), ("seed", "7")]).unwrap();
        let each = resolved.guests.iter().map(|guest| (guest.name.as_str(), guest.seed, guest.vcpus));
        assert_eq!(each.collect::<Vec<_>>(), [("a", 7, 2), ("b", 8, 2), ("c", 9, 2)]);
        assert!(resolved.guests.iter().all(|guest| guest.ours().is_some_and(|ours| ours.lock == "tas")));
        assert_eq!(resolve(&[("guests", "1")]).unwrap(), resolve(&[]).unwrap());
        assert_eq!(resolve(&[("guests", "27")]).unwrap_err().about, "guests");
        // The later one counts.
        assert_eq!(resolve(&[("guests", "3"), ("vm", "lock=tas; lock=ticket")]).unwrap().guests.len(), 2);
    }

    #[test]
    fn a_lock_with_its_form_is_one_word() {
        for (given, form) in [
            (&[("lock", "qspinlock+pv")][..], Ok(("qspinlock", true))),
            (&[("lock", "qspinlock+pv"), ("pv", "on")], Ok(("qspinlock", true))),
            (&[("lock", "qspinlock")], Ok(("qspinlock", false))),
            (&[("lock", "qspinlock+pv"), ("pv", "off")], Err("pv")),
            (&[("lock", "tas+pv")], Err("pv")),
            (&[("lock", "qspinlok+pv")], Err("lock")),
        ] {
            let resolved = resolve(given).map(|run| (run.our(0).ours.lock.clone(), run.guests[0].pv));
            let resolved = resolved.as_ref().map(|(lock, pv)| (lock.as_str(), *pv)).map_err(|it| it.about);
            assert_eq!(resolved, form, "{given:?}");
        }
    }

    #[test]
    fn sections_write_lines_that_they_walk_and_others_have_no_shape() {
        assert_eq!(resolve(&[("footprint", "4/4")]).unwrap().our(0).ours.shape.dirty_lines, 4);
        let shape = resolve(&[("footprint", "4/embed/2")]).unwrap().our(0).ours.shape;
        assert!(shape.dirty_lines == 2 && shape.flags.has(haltkick_vmm::ShapeFlags::EMBED));
        assert_eq!(resolve(&[("grace", "5us/user")]).unwrap_err().about, "grace");
        assert_eq!(resolve(&[("footprint", "4/5")]).unwrap_err().about, "footprint");
        assert_eq!(resolve(&[("zipf", "0.99")]).unwrap().our(0).ours.shape.zipf_hundredths, 99);
        assert_eq!(resolve(&[("spin-threshold", "linux")]).unwrap().our(0).ours.spin_rounds, 1 << 15);
        assert_eq!(resolve(&[("workload", "compute"), ("zipf", "0.99")]).unwrap_err().about, "zipf");
    }

    #[test]
    fn the_default_is_eight_vcpus_per_pcpu_or_what_fits() {
        let sim = |more: &[(&str, &str)]| {
            resolve(&[&[("engine", "sim"), ("machine", "numaconnect-512")], more].concat())
        };
        assert_eq!(resolve(&[]).unwrap().guests[0].vcpus, 16);
        assert_eq!(resolve(&[("ratio", "1.5")]).unwrap().guests[0].vcpus, 3);
        assert_eq!(resolve(&[("ratio", "1.5"), ("cpus", "0")]).unwrap().guests[0].vcpus, 2);
        assert_eq!(sim(&[]).unwrap().guests[0].vcpus, 1024);
        assert_eq!(sim(&[("cpus", "0-127")]).unwrap().guests[0].vcpus, 1024);
        assert_eq!(sim(&[("cpus", "0-128")]).unwrap().guests[0].vcpus, 7 * 129);
        let refused = sim(&[("ratio", "8")]).unwrap_err();
        assert_eq!(refused.about, "ratio");
        assert!(refused.message.contains("4096 vCPUs on 512 pCPUs"), "{}", refused.message);
    }

    #[test]
    fn given_settings_override_lower_ones_and_a_ratio_overrides_vcpus() {
        let below = settings(&[("vcpus", "6"), ("hold", "5us")]);
        let both = settings(&[("ratio", "2"), ("duration", "50ms")]).over(&below);
        assert_eq!((both.given("vcpus"), both.given("ratio")), (None, Some(Value("2"))));
        let times = [Duration::from_micros(5), Duration::from_millis(50)];
        assert_eq!(["hold", "window"].map(|key| both.time(key)), times.map(Some));
    }
}
