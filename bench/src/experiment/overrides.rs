//! Changes of an experiment by the command line.

use clap::builder::PossibleValuesParser;
use clap::{Args, Command, FromArgMatches as _};
use haltkick_vmm::Span;

use super::contents::{Arm, Axis, Experiment, PointValues, Quick};
use crate::host::cpu_choice::CpuChoice;
use crate::settings::choices::{Offer as _, Ratio, SCHEDULERS};
use crate::settings::{self, table};
use crate::text::exit::{Failure, Result};

/// Changes of an experiment file by the command line.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub(crate) struct Overrides {
    /// The file's quick variant: fewer or shorter runs
    #[arg(long)]
    pub(crate) quick: bool,
    /// Change a setting for all cells, such as hold=5us, or what boots a kernel; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) sets: Vec<(String, String)>,
    /// Ratios to run instead of the file's, such as 1,8,32
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub(crate) ratios: Option<Vec<Ratio>>,
    /// Host CPUs to use: cores, node:N, llc:N, isolated, all, or a list such as 0,2-3
    #[arg(long, value_name = "CPUS")]
    pub(crate) cpus: Option<CpuChoice>,
    /// Which scheduler preempts the vCPUs: vmm or host
    #[arg(long, value_name = "SCHEDULER", value_parser = PossibleValuesParser::new(SCHEDULERS.offered()),
          hide_possible_values = true)]
    pub(crate) sched: Option<String>,
    /// Length of each measuring window
    #[arg(long, value_name = "TIME")]
    pub(crate) window: Option<Span>,
    /// Add the lock in this object file as an arm, with all else as the file has it; may be given several times
    #[arg(long, value_name = "FILE")]
    pub(crate) with: Vec<String>,
    /// Passes over all cells
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) blocks: Option<u32>,
    /// Tell of each comparison on a simulated machine whether it is robust: on N machines like it, too, instead of as many as the
    /// file's [robust] says; with --quick as well, if there are five blocks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=200), num_args = 0..=1,
          require_equals = true, default_missing_value = "12")]
    pub(crate) robust: Option<u32>,
    /// Seed of the order and of everything random [default: 1]
    #[arg(long, value_name = "N", value_parser = settings::seed)]
    pub(crate) seed: Option<u64>,
}

impl Overrides {
    /// The arguments that say the same, for manifests and for commands to copy.
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        let sets = self.sets.iter().map(|(key, value)| ("set", Some(format!("{key}={value}"))));
        let with = self.with.iter().map(|file| ("with", Some(file.clone())));
        let joined = |ratios: &Vec<Ratio>| ratios.iter().map(Ratio::to_string).collect::<Vec<_>>().join(",");
        let ratios = [("ratios", self.ratios.as_ref().map(joined))];
        let others = [
            ("blocks", self.blocks.map(|it| it.to_string())),
            ("robust", self.robust.map(|it| it.to_string())),
            ("seed", self.seed.map(|it| it.to_string())),
        ];
        let all = sets.chain(with).chain(ratios).chain(self.of_settings()).chain(others);
        let valued = all.filter_map(|(flag, value)| Some(format!("--{flag}={}", value?)));
        valued.chain(self.quick.then(|| "--quick".to_owned())).collect()
    }

    /// Flags that are settings, and their values.
    fn of_settings(&self) -> [(&'static str, Option<String>); 3] {
        [
            ("cpus", self.cpus.as_ref().map(CpuChoice::to_string)),
            ("sched", self.sched.clone()),
            ("window", self.window.as_ref().map(Span::to_string)),
        ]
    }

    /// Partner of [`Overrides::to_arguments`].
    pub(crate) fn from_arguments(arguments: &[String]) -> std::result::Result<Self, clap::Error> {
        let known = Self::augment_args(Command::new("haltkick").no_binary_name(true));
        Self::from_arg_matches(&known.try_get_matches_from(arguments)?)
    }
}

fn key_value(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.into(), value.into())),
        _ => Err("write KEY=VALUE, such as hold=5us".into()),
    }
}

impl Experiment {
    pub(crate) fn apply(&mut self, overrides: &Overrides) -> Result<()> {
        if overrides.quick {
            let quick = self.quick.take().ok_or_else(|| {
                let origin = &self.source.origin;
                Failure::usage(format!(
                    "{origin} has no [quick] part: drop --quick, or use --blocks and --window"
                ))
            })?;
            self.be_quick(&quick);
        }
        // An explicit number of blocks is meant as that number.
        if overrides.quick || overrides.blocks.is_some() {
            self.target_precision = None;
        }
        self.blocks = overrides.blocks.unwrap_or(self.blocks);
        let flags = overrides.of_settings().into_iter();
        let flags = flags.filter_map(|(key, value)| Some((format!("--{key}"), key, value?)));
        let sets = overrides.sets.iter();
        let sets = sets.map(|(key, value)| (format!("--set {key}"), key.as_str(), value.clone()));
        for (flag, key, value) in flags.chain(sets) {
            let set = self.override_values(key, vec![value], false);
            set.map_err(|error| Failure::usage(format!("{flag}: {error}")))?;
        }
        if let Some(ratios) = &overrides.ratios {
            let ratios = ratios.iter().map(Ratio::to_string).collect();
            let set = self.override_values("ratio", ratios, true);
            set.map_err(|error| Failure::usage(format!("--ratios: {error}")))?;
        }
        self.add_machines_like(overrides)?;
        self.check_boots()
    }

    fn be_quick(&mut self, quick: &Quick) {
        self.blocks = quick.blocks.unwrap_or(self.blocks);
        self.settings = quick.patch.over(&self.settings);
        let left = |key: &str, value: &str| {
            let axis = quick.axes.iter().find(|axis| axis.key == key);
            axis.is_none_or(|axis| axis.values.iter().any(|(known, _)| known == value))
        };
        for Axis { key, values } in &mut self.axes {
            values.retain(|(value, _)| left(key, value));
        }
        if let Some(arms) = &quick.arms {
            self.arms.retain(|arm| arms.iter().any(|(name, _)| *name == arm.name));
        }
        let names = self.arms_and_beside();
        self.comparisons.retain(|it| [&it.arm, &it.baseline].into_iter().all(|name| names.contains(name)));
        self.control.take_if(|control| !names.contains(&control.arm));
        if let Some(control) = &mut self.control {
            control.setting.retain(|key, value| left(key, value));
        }
    }

    /// Values of a setting for all cells, or of what boots all kernels: axes give way to them. Words for the command line replace those
    /// that all arms have. Unless it `varies`, a single value is no axis where there was none.
    fn override_values(
        &mut self,
        key: &str,
        values: Vec<String>,
        varies: bool,
    ) -> std::result::Result<(), String> {
        if let Some(twice) = values.iter().enumerate().find(|(i, value)| values[..*i].contains(value)) {
            return Err(format!("{} stands there twice", twice.1));
        }
        let setting = table::named(key)?;
        let key = setting.name;
        values.iter().try_for_each(|value| setting.read(value).map(drop))?;
        let displaced: Vec<&str> = std::iter::once(key).chain(setting.instead_of).collect();
        self.is_set_by_none(&displaced)?;
        let is_displaced = |axis: &Axis| displaced.contains(&axis.key.as_str());
        if !varies && !self.axes.iter().any(is_displaced) {
            return values.iter().try_for_each(|value| self.settings.set(key, value, None));
        }
        self.axes.retain(|axis| !is_displaced(axis) || axis.key == key);
        let values = values.into_iter().map(|value| (value, None)).collect();
        match self.axes.iter_mut().find(|axis| axis.key == key) {
            Some(axis) => axis.values = values,
            None => self.axes.push(Axis { key: key.into(), values }),
        }
        Ok(())
    }

    /// No point and no arm sets one of these itself; words of an arm for the command line stand behind others.
    pub(super) fn is_set_by_none(&self, displaced: &[&str]) -> std::result::Result<(), String> {
        let in_points =
            |point: &PointValues| point.0.iter().any(|(key, _)| displaced.contains(&key.as_str()));
        if self.points.iter().any(in_points) {
            return Err("the points of this experiment set it: change a copy of the file (--print)".into());
        }
        let sets = |arm: &Arm, key: &str| key != table::CMDLINE && arm.patch.place(key).is_some();
        match self.arms.iter().find(|arm| displaced.iter().any(|key| sets(arm, key))) {
            Some(arm) => {
                Err(format!("arm '{}' sets it itself: change a copy of the file (--print)", arm.name))
            }
            None => Ok(()),
        }
    }
}
