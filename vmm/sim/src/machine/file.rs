//! The files that describe machines, some of which are built in.

use serde::Deserialize;

use super::{Costs, GuestCosts, IdleCost, LineCosts, Machine, Model, PS_PER_NS, Topology};
use crate::sourced::{Figure, FileError, Sources, read};

/// No cost is longer than this: a second.
const MOST_NS: f64 = 1e9;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    format: u32,
    name: String,
    title: String,
    sources: Sources,
    topology: TopologyTable,
    cpu: CpuTable,
    line: LineTable,
    guest: GuestTable,
    #[serde(default)]
    model: Model,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TopologyTable {
    sockets: u32,
    cores_per_socket: u32,
    threads_per_core: u32,
    cores_per_cluster: Option<u32>,
    hops: Option<Vec<Vec<u8>>>,
    #[serde(rename = "source")]
    _source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct CpuTable {
    clock_ghz: Figure,
    core_ghz: Option<Figure>,
    instruction_ns: Figure,
    pause_ns: Option<Figure>,
    pause_cycles: Option<Figure>,
    rdtsc_ns: Figure,
    fence_ns: Figure,
    rmw_ns: Figure,
    hit_ns: Figure,
    store_buffer_entries: Figure,
    busy_sibling_speed: Figure,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LineTable {
    sibling_ns: Figure,
    near_ns: Option<Figure>,
    socket_ns: Figure,
    #[serde(default)]
    hops_ns: Vec<Figure>,
    shared_ns: Figure,
    memory_ns: Figure,
    invalidate_factor: Figure,
    #[serde(default)]
    upgrade_hops: Vec<Figure>,
    occupancy_near: Option<Figure>,
    occupancy_socket: Figure,
    occupancy_far: Figure,
    grants_in_a_row: Figure,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct GuestTable {
    exit_ns: Figure,
    timer_ns: Figure,
    kick_ns: Figure,
    wake_ns: Figure,
    switch_ns: Figure,
    scatter: Figure,
    #[serde(default)]
    idle: Vec<IdleTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct IdleTable {
    after_us: f64,
    wake_us: Figure,
}

/// Most scatter of what it costs to be a guest.
const MOST_SCATTER: f64 = 0.9;

impl Machine {
    /// Reads a machine from the text of its file; `name` is for messages.
    ///
    /// # Errors
    /// [`FileError`]: what is wrong, where, and what would be right.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        let refuse = |what: String| FileError { kind: "machine", name: name.into(), what };
        let file: File = read(text, |file: &File| (file.format, &file.sources)).map_err(refuse)?;
        let table = &file.topology;
        let counts = [table.sockets, table.cores_per_socket, table.threads_per_core];
        let topology = Topology::new(counts, table.cores_per_cluster, table.hops.as_deref())
            .map_err(|what| refuse(format!("[topology]: {what}")))?;
        file.model.check().map_err(refuse)?;
        let costs = costs(&file, &topology).map_err(refuse)?;
        Ok(Self { name: file.name, title: file.title, topology, costs, model: file.model, text: text.into() })
    }
}

/// Nanoseconds as picoseconds.
fn ps(key: &str, figure: &Figure) -> Result<u64, String> {
    Ok((figure.within(key, 0.0, MOST_NS)? * PS_PER_NS as f64).round() as u64)
}

fn permille(key: &str, figure: &Figure, least: f64, most: f64) -> Result<u64, String> {
    Ok((figure.within(key, least, most)? * 1000.0).round() as u64)
}

fn costs(file: &File, topology: &Topology) -> Result<Costs, String> {
    let cpu = &file.cpu;
    let clock_ghz = cpu.clock_ghz.within("cpu.clock-ghz", 0.1, 10.0)?;
    let instruction_ps = ps("cpu.instruction-ns", &cpu.instruction_ns)?;
    if instruction_ps == 0 {
        return Err("cpu.instruction-ns is 0: time would stand still".into());
    }
    Ok(Costs {
        clock_khz: (clock_ghz * 1e6).round() as u64,
        instruction_ps,
        pause_ps: pause_ps(cpu)?,
        rdtsc_ps: ps("cpu.rdtsc-ns", &cpu.rdtsc_ns)?,
        fence_ps: ps("cpu.fence-ns", &cpu.fence_ns)?,
        rmw_ps: ps("cpu.rmw-ns", &cpu.rmw_ns)?,
        hit_ps: ps("cpu.hit-ns", &cpu.hit_ns)?,
        store_buffer: cpu.store_buffer_entries.within("cpu.store-buffer-entries", 1.0, 1024.0)? as usize,
        busy_sibling_permille: permille("cpu.busy-sibling-speed", &cpu.busy_sibling_speed, 0.1, 1.0)?,
        line: line_costs(&file.line, topology)?,
        guest: guest_costs(&file.guest)?,
    })
}

/// The time of PAUSE, which is known in nanoseconds or in cycles of the core.
fn pause_ps(cpu: &CpuTable) -> Result<u64, String> {
    match (&cpu.pause_ns, &cpu.pause_cycles, &cpu.core_ghz) {
        (Some(pause), None, None) => ps("cpu.pause-ns", pause),
        (None, Some(cycles), Some(core)) => {
            let cycles = cycles.within("cpu.pause-cycles", 0.0, 1e6)?;
            let core_ghz = core.within("cpu.core-ghz", 0.1, 10.0)?;
            Ok((cycles / core_ghz * PS_PER_NS as f64).round() as u64)
        }
        _ => Err("cpu: give either pause-ns, or pause-cycles and core-ghz".into()),
    }
}

/// Time to invalidate copies: within a socket, and by hops.
fn upgrades(line: &LineTable) -> Result<(u64, Vec<u64>), String> {
    let factor = |key, figure| permille(key, figure, 1.0, 10.0);
    let flat = factor("line.invalidate-factor", &line.invalidate_factor)?;
    let hops = line.upgrade_hops.iter().map(|figure| factor("line.upgrade-hops", figure));
    let mut hops = hops.collect::<Result<Vec<_>, _>>()?;
    if !hops.is_empty() && hops.len() != line.hops_ns.len() {
        return Err(format!(
            "line.upgrade-hops has {} figures, and line.hops-ns {}: give one for each distance, or none",
            hops.len(),
            line.hops_ns.len()
        ));
    }
    hops.resize(line.hops_ns.len(), flat);
    Ok((flat, hops))
}

fn line_costs(line: &LineTable, topology: &Topology) -> Result<LineCosts, String> {
    let socket_ps = ps("line.socket-ns", &line.socket_ns)?;
    let hops = line.hops_ns.iter().map(|figure| ps("line.hops-ns", figure));
    let hops_ps = hops.collect::<Result<Vec<_>, _>>()?;
    let needed = usize::from(topology.most_hops());
    if hops_ps.len() < needed {
        return Err(format!(
            "line.hops-ns has {} figures, and the farthest socket is {needed} hops away",
            hops_ps.len()
        ));
    }
    let near_ps = line.near_ns.as_ref().map(|near| ps("line.near-ns", near)).transpose()?;
    if near_ps.is_none() && topology.clusters() != topology.sockets() {
        return Err("line.near-ns is missing: the topology has clusters within a socket".into());
    }
    let occupancy = |key, figure| permille(key, figure, 0.01, 2.0);
    let occupancy_socket_permille = occupancy("line.occupancy-socket", &line.occupancy_socket)?;
    let near = line.occupancy_near.as_ref();
    let near = near.map(|near| occupancy("line.occupancy-near", near)).transpose()?;
    let (upgrade_socket_permille, upgrade_hops_permille) = upgrades(line)?;
    Ok(LineCosts {
        sibling_ps: ps("line.sibling-ns", &line.sibling_ns)?,
        near_ps: near_ps.unwrap_or(socket_ps),
        socket_ps,
        hops_ps,
        shared_ps: ps("line.shared-ns", &line.shared_ns)?,
        memory_ps: ps("line.memory-ns", &line.memory_ns)?,
        upgrade_socket_permille,
        upgrade_hops_permille,
        occupancy_near_permille: near.unwrap_or(occupancy_socket_permille),
        occupancy_socket_permille,
        occupancy_far_permille: occupancy("line.occupancy-far", &line.occupancy_far)?,
        grants_in_a_row: line.grants_in_a_row.within("line.grants-in-a-row", 1.0, 1e6)? as u32,
    })
}

fn guest_costs(guest: &GuestTable) -> Result<GuestCosts, String> {
    let idle = guest.idle.iter().map(|state| {
        let wake_us = state.wake_us.within("guest.idle.wake-us", 0.0, MOST_NS / 1000.0)?;
        if !(0.0..=1e9).contains(&state.after_us) {
            return Err(format!("guest.idle.after-us is {}: it must be 0 to 1e9", state.after_us));
        }
        let ps = |us: f64| (us * 1000.0 * PS_PER_NS as f64).round() as u64;
        Ok(IdleCost { after_ps: ps(state.after_us), wake_ps: ps(wake_us) })
    });
    let scatter = guest.scatter.within("guest.scatter", 0.0, MOST_SCATTER)?;
    Ok(GuestCosts {
        scatter_permille: (scatter * 1000.0).round() as u64,
        exit_ps: ps("guest.exit-ns", &guest.exit_ns)?,
        timer_ps: ps("guest.timer-ns", &guest.timer_ns)?,
        kick_ps: ps("guest.kick-ns", &guest.kick_ns)?,
        wake_ps: ps("guest.wake-ns", &guest.wake_ns)?,
        switch_ps: ps("guest.switch-ns", &guest.switch_ns)?,
        idle: idle.collect::<Result<_, _>>()?,
    })
}

/// A machine that is built in.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// All of them, the oldest first.
        #[must_use]
        pub const fn presets() -> &'static [Preset] {
            &[$(Preset { name: $name, text: include_str!(concat!("../../machines/", $name, ".toml")) }),*]
        }
    };
}

presets![
    "nehalem-2s",
    "numaconnect-512",
    "westmere-ex-8s",
    "westmere-ex-4s",
    "opteron-2s",
    "sandybridge-2s",
    "ivybridge-ex-4s",
    "haswell-2s",
    "broadwell-2s",
    "skylake-8s",
    "skylake-2s",
    "cascadelake-2s",
    "cascadelake-2s-96",
    "icelake-2s",
    "icelake-2s-72",
    "milan-1s",
    "genoa-2s",
    "sapphirerapids-2s",
    "sapphirerapids-8s",
];

impl Preset {
    /// The machine.
    ///
    /// # Panics
    /// If its file is bad: a test reads all of them.
    #[must_use]
    pub fn machine(&self) -> Machine {
        Machine::parse(self.name, self.text).expect("the files of the presets are tested")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replaces the whole line that begins with `key`.
    fn with_line(text: &str, key: &str, line: &str) -> String {
        let lines = text.lines().map(|old| if old.starts_with(key) { line } else { old });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_bad_file_is_refused_with_the_place_and_the_remedy() {
        let good = presets()[0].text;
        for (key, line, message) in [
            ("socket-ns", "", "missing field `socket-ns`"),
            (
                "socket-ns",
                "socket-ns = { value = -1, source = \"E\" }",
                "line.socket-ns is -1: it must be 0 to",
            ),
            ("socket-ns", "socket-ns = { value = nan, source = \"E\" }", "line.socket-ns is NaN"),
            (
                "socket-ns",
                "socket-ns = { value = 1, source = \"rumour\" }",
                "`rumour` is not among [sources]",
            ),
            ("socket-ns", "socket-ns = 47", "expected { value = ..., source"),
            ("instruction-ns", "instruction-ns = { value = 0, source = \"E\" }", "time would stand still"),
            ("format", "format = 9", "format 9 is unknown"),
            ("sockets", "sockets = 400", "CPUs: at most 1024"),
            ("title", "title = \"\"\ntypo = 1", "unknown field `typo`"),
            ("[cpu]", "[model]\njiter = 0\n[cpu]", "unknown field `jiter`"),
            ("[cpu]", "[model]\njitter = 0.6\n[cpu]", "model.jitter is 0.6: it must be 0 to 0.5"),
            ("[cpu]", "[model]\njitter = nan\n[cpu]", "model.jitter is NaN"),
            (
                "[cpu]",
                "[model]\nplacement = \"first\"\n[cpu]",
                "unknown variant `first`, expected `last` or `lowest`",
            ),
        ] {
            let bad = with_line(good, key, line);
            assert_ne!(bad.trim_end(), good.trim_end(), "the change did nothing");
            let error = Machine::parse("test", &bad).expect_err("the file is bad").to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    /// A pause loop of a guest ends in an exit where its PAUSEs are closer than 128 ticks of the TSC, which is slower than the core.
    #[test]
    fn pause_lasts_cycles_of_the_core_and_not_of_the_tsc() {
        let text =
            presets().iter().find(|preset| preset.name == "cascadelake-2s").expect("it is built in").text;
        let costs = |text: &str| Machine::parse("test", text).map(|machine| machine.costs);
        let Costs { clock_khz, pause_ps, .. } = costs(text).expect("the file is good");
        assert_eq!((clock_khz, pause_ps), (2_500_000, 43_750));
        let faster = with_line(text, "core-ghz", "core-ghz = { value = 3.5, source = \"E\" }");
        let faster = costs(&faster).expect("the file is good");
        assert_eq!((faster.clock_khz, faster.pause_ps), (2_500_000, 40_000));
        let both = with_line(
            text,
            "fence-ns",
            "fence-ns = { value = 1, source = \"E\" }\npause-ns = { value = 1, source = \"E\" }",
        );
        for bad in [with_line(text, "core-ghz", ""), both] {
            let error = costs(&bad).expect_err("PAUSE has no time, or two").to_string();
            assert!(error.contains("give either pause-ns, or pause-cycles and core-ghz"), "{error}");
        }
    }

    #[test]
    fn an_upgrade_takes_as_much_longer_as_its_distance_says() {
        let text = presets().iter().find(|preset| preset.name == "skylake-8s").expect("it is built in").text;
        let upgrades = |text: &str| {
            let line = Machine::parse("test", text).expect("the file is good").costs.line;
            (line.upgrade_socket_permille, line.upgrade_hops_permille)
        };
        assert_eq!(upgrades(text), (1350, vec![1000; 2]));
        assert_eq!(upgrades(&with_line(text, "upgrade-hops", "")), (1350, vec![1350; 2]));
        let short = with_line(text, "upgrade-hops", "upgrade-hops = [{ value = 2, source = \"E\" }]");
        let error = Machine::parse("test", &short).expect_err("one is missing").to_string();
        assert!(error.contains("line.upgrade-hops has 1 figures, and line.hops-ns 2"), "{error}");
    }

    #[test]
    fn every_preset_has_its_own_name_and_longer_ways_farther_away() {
        for preset in presets() {
            let Machine { name, topology, costs, .. } = preset.machine();
            assert_eq!(name, preset.name);
            assert!(costs.pause_ps > 0 && topology.cpus() > 1, "{name}");
            let LineCosts { sibling_ps, near_ps, socket_ps, hops_ps, .. } = costs.line;
            let by_distance = [&[sibling_ps, near_ps, socket_ps], &hops_ps[..]].concat();
            assert!(by_distance.is_sorted(), "{name}: {by_distance:?}");
        }
    }
}
