//! `haltkick doctor --write-host FILE`: this host's scheduler as a host for `--engine sim --sched host`, as far as plain threads and
//! `/sys` can show it.
//!
//! The file of the nearest built-in host gives what cannot be measured, with its sources.

use std::time::{Duration, SystemTime};

use haltkick_vmm::hosts::{self, Fair, Host, scale};
use haltkick_vmm::{Gap, allowed_cpus, gaps};

use crate::analysis::statistics::median;
use crate::host::cpulist::CpuList;
use crate::host::{identity, probe};
use crate::text::exit::{Failure, Result};
use crate::text::{output, timestamp};

/// The first Linux with EEVDF, and the first whose CPUs have one flat queue for fair tasks.
const EEVDF: (u32, u32) = (6, 6);
const FLAT: (u32, u32) = (7, 3);
/// A gap from this length on is a change of threads; shorter ones are ticks and interrupts.
const CHANGE_NS: u64 = 300_000;
/// A gap up to this length may be a tick.
const MOST_TICK_NS: u64 = 100_000;
/// Ticks a second that Linux is configured for.
const FREQUENCIES: [u32; 4] = [100, 250, 300, 1000];
/// Changes whose times concentrate this much within a tick's period end at ticks (1: all at one phase).
const CONCENTRATED: f64 = 0.8;
/// Gap of AMD's filter without a threshold: all PAUSEs are of one loop.
const MOST_GAP: &str = "1000000";
/// Changes that tell a period from chance.
const LEAST_CHANGES: usize = 20;
/// Moves of threads that tell how often the host balances.
const LEAST_MOVES: usize = 5;
/// Milliseconds between two balances of a busy CPU, for each CPU of the host.
const BUSY_BALANCE_MS: f64 = 16.0;

/// A value of a host file, behind its section and its key.
type Value = (&'static str, &'static str, String);

/// Measures: the file of a host with this name, and what of it is measured.
pub(super) fn measured(name: &str) -> Result<(String, String)> {
    let allowed = allowed_cpus();
    let online =
        probe::text("/sys/devices/system/cpu/online").ok().and_then(|list| list.parse::<CpuList>().ok());
    let online = online.map_or(allowed.len(), |online| online.0.len()) as u32;
    output::talk("measuring slices, ticks and moves of threads: 6 seconds, best on a quiet host");
    let preset = nearest_preset();
    let mut values = of_modules();
    values.extend(of_threads(&allowed, online, &preset.host())?);
    let text = file(name, preset.text, &values);
    Host::parse(name, &text).map_err(|error| Failure::internal(error.to_string()))?;
    let here: Vec<String> = values.iter().map(|(section, key, _)| format!("{section}.{key}")).collect();
    let said = format!(
        "from this host {}; the rest is of {}; try: haltkick run --engine sim --sched host --host",
        here.join(", "),
        preset.name,
    );
    Ok((text, said))
}

/// The built-in host whose kernel is nearest to this one.
fn nearest_preset() -> hosts::HostPreset {
    let release = probe::text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let name = match version(&release) {
        Some(version) if version < (4, 20) => "cfs-2015",
        Some(version) if version < EEVDF => "cfs-2019",
        Some(version) if version < FLAT => "linux-6.12",
        _ => "linux-7.3",
    };
    *hosts::presets().iter().find(|preset| preset.name == name).expect("a built-in host")
}

/// Major and minor number of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Halt polling and pause-loop exits, as parameters of KVM's modules tell them.
fn of_modules() -> Vec<Value> {
    let number = |module: &str, name: &str| -> Option<f64> {
        probe::text(format!("/sys/module/{module}/parameters/{name}")).ok()?.parse().ok()
    };
    let us = |name| number("kvm", name).map(|ns| format!("{}", ns / 1000.0));
    let plain = |module, name| number(module, name).map(|it| format!("{it}"));
    let vendor = identity::kvm_module().unwrap_or_default();
    // No loop has PAUSEs so close to each other: its exits are off.
    let off_if_0 = |text: String| if text == "0" { "1".into() } else { text };
    let (gap, window, counter) = match vendor.as_str() {
        module @ "kvm_intel" => (plain(module, "ple_gap").map(off_if_0), plain(module, "ple_window"), None),
        module @ "kvm_amd" => {
            let count = plain(module, "pause_filter_count");
            let is_off = count.as_deref() == Some("0");
            let gap = plain(module, "pause_filter_thresh");
            let gap = gap.map(|text| if text == "0" { MOST_GAP.into() } else { text });
            let gap = if is_off { Some("1".into()) } else { gap };
            (gap, count.filter(|_| !is_off), Some("\"pauses\"".into()))
        }
        _ => (None, None, None),
    };
    [
        ("halt-polling", "most-us", us("halt_poll_ns")),
        ("halt-polling", "start-us", us("halt_poll_ns_grow_start")),
        ("halt-polling", "shrink", plain("kvm", "halt_poll_ns_shrink")),
        ("pause", "gap", gap),
        ("pause", "window", window),
        ("pause", "counter", counter),
    ]
    .into_iter()
    .filter_map(|(section, key, text)| Some((section, key, text?)))
    .collect()
}

/// Ticks, slices and moves, as threads that always run see them.
fn of_threads(cpus: &[u32], online: u32, preset: &Host) -> Result<Vec<Value>> {
    let first = &cpus[..1];
    let alone = gaps(first, 1, Duration::from_secs(1))?;
    let two = gaps(first, 2, Duration::from_secs(2))?;
    let mut values = Vec::new();
    let mut put = |section, key, text: String| values.push((section, key, text));
    let changes: Vec<u64> = two.iter().flatten().filter(|gap| is_change(gap)).map(|gap| gap.at_ns).collect();
    let tick_hz = ticks_a_second(&changes);
    if let Some(hz) = tick_hz {
        put("scheduler", "hz", hz.to_string());
        if let Some(ns) = tick_cost_ns(&alone[0], hz) {
            put("costs", "tick-us", format!("{:.1}", ns / 1000.0));
        }
    }
    let exact = tick_hz.is_none() && changes.len() >= LEAST_CHANGES;
    let ran: Vec<f64> = two.iter().flat_map(|gaps| spells_ns(gaps)).collect();
    let told_ns = probe::text("/sys/kernel/debug/sched/base_slice_ns").ok().and_then(|ns| ns.parse().ok());
    if ran.len() >= LEAST_CHANGES {
        let on_all_ns: f64 = told_ns.unwrap_or_else(|| slice_ns(median(&ran), tick_hz));
        let slice_us = on_all_ns / 1000.0 / scale(online) as f64;
        match preset.fair {
            Fair::Eevdf(_) => {
                put("eevdf", "exact-slices", exact.to_string());
                put("eevdf", "base-slice-us", format!("{slice_us:.0}"));
            }
            // Two threads share the period in which each runs once.
            Fair::Cfs(_) => put("cfs", "latency-us", format!("{:.0}", 2.0 * slice_us)),
        }
    }
    if cpus.len() >= 2 {
        let time = Duration::from_secs(3);
        let three = gaps(&cpus[..2], 3, time)?;
        let moves = three.iter().flatten().filter(|gap| gap.moved).count();
        if moves >= LEAST_MOVES {
            let period_ms = time.as_secs_f64() * 1000.0 / moves as f64;
            put("balance", "patience", patience(period_ms, online).to_string());
        }
    }
    Ok(values)
}

/// Balances in a row that find one thread more elsewhere and leave it there, given the time from one move to the next.
fn patience(period_ms: f64, online: u32) -> u32 {
    let balances = (period_ms / (BUSY_BALANCE_MS * f64::from(online))).round();
    (balances as u32).clamp(1, 1000) - 1
}

fn is_change(gap: &Gap) -> bool {
    gap.length_ns >= CHANGE_NS
}

/// How long a thread ran between two changes.
fn spells_ns(gaps: &[Gap]) -> Vec<f64> {
    let changes: Vec<&Gap> = gaps.iter().filter(|gap| is_change(gap)).collect();
    changes.windows(2).map(|two| (two[1].at_ns - two[0].at_ns - two[0].length_ns) as f64).collect()
}

/// A slice, given the time that threads ran. One that ends at ticks is rounded up to the next, so half of a tick too long.
fn slice_ns(ran_ns: f64, tick_hz: Option<u32>) -> f64 {
    let tick_ns = tick_hz.map_or(0.0, |hz| 1e9 / f64::from(hz));
    if ran_ns > tick_ns { ran_ns - tick_ns / 2.0 } else { ran_ns }
}

/// The least frequency of ticks at which the changes of threads lie, if they lie at any.
fn ticks_a_second(changes_ns: &[u64]) -> Option<u32> {
    if changes_ns.len() < LEAST_CHANGES {
        return None;
    }
    let concentration = |hz: u32| {
        let (mut x, mut y) = (0.0, 0.0);
        for at_ns in changes_ns {
            let phase = *at_ns as f64 * f64::from(hz) / 1e9 * std::f64::consts::TAU;
            (x, y) = (x + phase.cos(), y + phase.sin());
        }
        f64::hypot(x, y) / changes_ns.len() as f64
    };
    FREQUENCIES.into_iter().find(|hz| concentration(*hz) >= CONCENTRATED)
}

/// The time of a tick, if a lone thread has about as many short gaps as there are ticks.
fn tick_cost_ns(alone: &[Gap], hz: u32) -> Option<f64> {
    let short: Vec<f64> =
        alone.iter().filter(|gap| gap.length_ns <= MOST_TICK_NS).map(|gap| gap.length_ns as f64).collect();
    let ticks = f64::from(hz);
    (0.5 * ticks..=2.0 * ticks).contains(&(short.len() as f64)).then(|| median(&short))
}

/// The file of a built-in host with other values, each with the source `here`.
fn file(name: &str, preset: &str, values: &[Value]) -> String {
    let host = identity::Host::probe();
    let kernel = host.kernel.as_deref().unwrap_or("unknown");
    let mut section = "";
    let lines = preset.lines().map(|line| {
        if let Some(head) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = head;
        }
        let key = line.split_once(" = ").map_or("", |(key, _)| key);
        match (section, key) {
            ("", "name") => return format!("name = {}", output::in_toml(name)),
            ("", "title") => {
                let title = format!("kernel {kernel}, measured {}", timestamp::rfc3339(SystemTime::now()));
                return format!("title = {}", output::in_toml(&title));
            }
            ("sources", "") if line == "[sources]" => {
                return format!(
                    "{line}\nhere = {{ grade = \"M\", text = \"measured by haltkick doctor on this host\" }}"
                );
            }
            _ => {}
        }
        match values.iter().find(|value| (value.0, value.1) == (section, key)) {
            Some((.., text)) => format!("{key} = {{ value = {text}, source = \"here\" }}"),
            None => line.to_owned(),
        }
    });
    lines.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gaps of a thread that runs for `ran_ns` and is off for `off_ns`, again and again.
    fn turns(ran_ns: u64, off_ns: u64) -> Vec<Gap> {
        let turn = |i: u64| Gap { at_ns: i * (ran_ns + off_ns) + ran_ns, length_ns: off_ns, moved: false };
        (0..100).map(turn).collect()
    }

    #[test]
    fn changes_at_ticks_tell_their_least_frequency_and_their_cost() {
        let at = |ns: u64| (0..100).map(|i| 12_345 + i * ns).collect::<Vec<u64>>();
        assert_eq!(ticks_a_second(&at(4_000_000)), Some(250));
        assert_eq!(ticks_a_second(&at(3_000_000)), Some(1000));
        assert_eq!(ticks_a_second(&at(2_818_181)), None);
        assert_eq!(ticks_a_second(&at(4_000_000)[..LEAST_CHANGES - 1]), None);
        // The cost needs about as many gaps as ticks.
        let gaps = turns(1_000_000, 2_000);
        assert_eq!([100, 1000].map(|hz| tick_cost_ns(&gaps, hz)), [Some(2000.0), None]);
    }

    #[test]
    fn slices_end_half_a_tick_early_and_moves_tell_patience() {
        assert_eq!([Some(1000), None].map(|hz| slice_ns(4e6, hz)), [3.5e6, 4e6]);
        assert_eq!(spells_ns(&turns(3_000_000, 5_000_000)), vec![3e6; 99]);
        // A tick does not end a spell.
        assert!(spells_ns(&turns(3_000_000, CHANGE_NS - 1)).is_empty());
        let periods_ms = [1.0, 32.0, 160.0, 1e9];
        assert_eq!(periods_ms.map(|period_ms| patience(period_ms, 2)), [0, 0, 4, 999]);
    }

    #[test]
    fn measured_values_replace_those_of_the_preset_and_name_their_source() {
        let name = "my \"fast\" lab\\box, DEL \u{7f}, tab \t,\nline";
        for preset in hosts::presets() {
            let values = [("costs", "tick-us", "0.125".to_owned())];
            let text = file(name, preset.text, &values);
            assert!(text.contains("tick-us = { value = 0.125, source = \"here\" }"), "{text}");
            let read: toml::Table = text.parse().unwrap();
            assert_eq!(read["name"].as_str(), Some(name));
            let host = Host::parse("here", &file("here", preset.text, &values)).unwrap();
            assert_eq!((host.costs.tick_ns, host.hz), (125, preset.host().hz));
        }
    }

    #[test]
    fn a_kernels_release_has_two_numbers_or_none() {
        let releases = ["5.15.0-91-generic", "6.18.44-fc-v669", "7.3-rc1", "next"];
        assert_eq!(releases.map(version), [Some((5, 15)), Some((6, 18)), Some((7, 3)), None]);
    }
}
