//! `haltkick list`: what there is to choose from.

use std::fmt::Write as _;

use haltkick_vmm::Target;
use haltkick_vmm::machines::{Preset, presets};

use crate::cli::{ListArgs, Listed};
use crate::commands::guest_image;
use crate::experiment::{self, BUILT_IN};
use crate::settings::layouts;
use crate::text::exit::{Exit, Result};
use crate::text::output;

pub(crate) fn list(args: &ListArgs) -> Result<Exit> {
    let mut text = String::new();
    match args.what {
        Listed::Experiments => {
            for (name, file) in BUILT_IN {
                let _ = writeln!(text, "{name:<18} {}", experiment::summary(file));
            }
        }
        Listed::Locks => {
            let locks = &guest_image::load(args.guest.as_deref())?.locks;
            for lock in locks {
                let forms = match (lock.has_native(), lock.has_paravirt()) {
                    (true, true) => "pv on, off",
                    (false, true) => "pv on",
                    _ => "",
                };
                // A lock in several layouts is listed once, by the first.
                let name = lock.name.split('/').next().unwrap_or_default();
                let layouts = layouts(locks, name);
                if layouts.first().is_some_and(|first| !lock.name.ends_with(first)) {
                    continue;
                }
                let _ = write!(text, "{name:<18} {forms:<11} {}", lock.summary);
                if !layouts.is_empty() {
                    let _ = write!(text, "; --layout {}", layouts.join(", "));
                }
                text.push('\n');
            }
        }
        Listed::Machines => {
            for machine in presets().iter().map(Preset::machine) {
                let cpus = machine.topology.cpus();
                let _ = writeln!(text, "{:<18} {cpus:>4} CPUs  {}", machine.name, machine.title);
            }
        }
        Listed::Points => {
            for point in &guest_image::load(args.guest.as_deref())?.points {
                let who = Target::of_point(point).map_or("", Target::name);
                let _ = writeln!(text, "{:<18} {:<11} {}", point.name, who, point.summary);
            }
        }
        Listed::Workloads => {
            let workloads = &guest_image::load(args.guest.as_deref())?.workloads;
            let width = workloads.iter().map(|workload| workload.name.len()).max().unwrap_or(0);
            for workload in workloads {
                let _ = write!(text, "{:<width$} {}", workload.name, workload.summary);
                let times: Vec<_> = workload.times.iter().filter(|name| !name.is_empty()).cloned().collect();
                if !times.is_empty() {
                    let _ = write!(text, "; reports {}", times.join(", "));
                }
                text.push('\n');
            }
        }
    }
    output::data(&text)?;
    Ok(Exit::Done)
}
