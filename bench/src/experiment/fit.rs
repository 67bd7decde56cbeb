//! Fitting an experiment to the host: a ratio that would need more vCPUs than there can be, or that makes as many as another one,
//! is left out, and said so.

use super::contents::{Experiment, combined};
use crate::host::cpulist::CpuList;
use crate::settings::Supply;
use crate::settings::choices::Ratio;
use crate::text::exit::Result;

impl Experiment {
    /// Fits it to the pCPUs of this host, or of the machine that it simulates.
    pub(crate) fn fit_to(&mut self, supply: Supply<'_>, most_vcpus: usize) -> Result<Option<String>> {
        self.fit(self.most_pcpus(supply.allowed), most_vcpus)
    }

    /// The most pCPUs that one of its cells has, where this host has `allowed` to offer.
    fn most_pcpus(&self, allowed: &CpuList) -> usize {
        let varying =
            self.varying().into_iter().filter(|axis| ["cpus", "machine"].contains(&axis.key.as_str()));
        let values = varying.map(|axis| {
            // Machines that are alike but for guesses have as many CPUs.
            let values = axis.values.iter().map(|(value, _)| value.split('~').next().unwrap_or(value));
            let mut values: Vec<_> = values.map(|value| (axis.key.clone(), value.to_owned())).collect();
            values.dedup();
            values
        });
        let grid = combined(vec![vec![]], values);
        let each = self.arms.iter().flat_map(|arm| grid.iter().map(move |point| self.patch_of(arm, point)));
        each.map(|patch| patch.settings.pcpu_count(allowed)).max().unwrap_or(0)
    }

    /// Leaves out the file's ratios that are too large for a machine with `pcpus` pCPUs. Returns what is to be said of it.
    ///
    /// Ratios from the command line are not left out but complained about, when their cells are made.
    /// Few pCPUs have no room between 1 and 1.5: of the file's ratios that make as many vCPUs, the first is left.
    fn fit(&mut self, pcpus: usize, most_vcpus: usize) -> Result<Option<String>> {
        let vcpus = |ratio: &str| ratio.parse().map_or(0, |ratio: Ratio| ratio.vcpus(pcpus));
        let fits = |ratio: &str| (1..=most_vcpus).contains(&vcpus(ratio));
        let (mut too_large, mut equal): (Vec<String>, Vec<String>) = (vec![], vec![]);
        let mut seen: Vec<usize> = vec![];
        let mut is_left_out = |ratio: &str, is_alone: bool| {
            let is_equal = is_alone && seen.contains(&vcpus(ratio));
            seen.push(vcpus(ratio));
            let why = if fits(ratio) { &mut equal } else { &mut too_large };
            let is_left_out = is_equal || !fits(ratio);
            why.extend(is_left_out.then(|| ratio.to_owned()));
            is_left_out
        };
        let (mut at, had_points) = (None, !self.points.is_empty());
        for axis in self.axes.iter_mut().filter(|axis| axis.key == "ratio") {
            at = axis.values.first().and_then(|(_, at)| at.clone());
            axis.values.retain(|(ratio, at)| at.is_none() || !is_left_out(ratio, true));
        }
        self.points.retain(|point| !point.0.iter().any(|(key, it)| key == "ratio" && is_left_out(it, false)));
        if had_points && self.points.is_empty() || self.axes.iter().any(|axis| axis.values.is_empty()) {
            let message = format!(
                "on {pcpus} pCPUs each of these ratios would be more than {most_vcpus} vCPUs, so that nothing is left to run: choose \
                 fewer pCPUs with --cpus, or other ratios with --ratios"
            );
            return Err(self.source.complain(at.as_ref(), message));
        }
        too_large.dedup();
        if let Some(control) = &mut self.control {
            control.setting.retain(|key, value| key != "ratio" || !too_large.contains(value));
        }
        let said = |ratios: &[String], why: &str| {
            (!ratios.is_empty()).then(|| format!("left out: ratio {}{why}", ratios.join(", ")))
        };
        let more = format!(" on {pcpus} pCPUs, more than {most_vcpus} vCPUs; --cpus chooses fewer pCPUs");
        let as_many = format!(", on {pcpus} pCPUs as many vCPUs as another ratio");
        let said: Vec<String> =
            [said(&too_large, &more), said(&equal, &as_many)].into_iter().flatten().collect();
        Ok((!said.is_empty()).then(|| said.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::overrides::Overrides;
    use crate::experiment::plan::Plan;
    use crate::experiment::source::BUILT_IN;
    use crate::measure::synthetic::{built_in, experiment};

    fn of_text(text: &str) -> Experiment {
        experiment(&format!("{text}\n[[arm]]\nname = 'a'\n")).unwrap()
    }

    #[test]
    fn simulated_machines_are_as_large_as_they_are_wherever_the_experiment_runs() {
        let sim = "[settings]\nengine = 'sim'\nmachine = 'numaconnect-512'\n";
        let varied = "[settings]\nengine = 'sim'\n[grid]\nmachine = ['nehalem-2s', 'numaconnect-512~3/12']\n";
        for (settings, most) in [
            (String::new(), 2),
            (sim.into(), 512),
            (format!("{sim}cpus = '0-3'\n"), 4),
            (varied.into(), 512),
            (format!("{varied}cpus = ['all']\n"), 512),
            (format!("{sim}[grid]\ncpus = ['0-3', '0-63']\n"), 64),
        ] {
            assert_eq!(of_text(&settings).most_pcpus(&CpuList(vec![0, 1])), most, "{settings}");
        }
    }

    #[test]
    fn ratios_that_do_not_fit_or_are_alike_are_left_out() {
        let (many, close) = ("[grid]\nratio = [1, 2, 16, 32]", "[grid]\nratio = [1, 1.1, 1.5, 2]");
        let points = |ratio: u32| format!("[[point]]\nratio = {ratio}\n[[point]]\nratio = 32");
        let none = "nothing is left to run: choose fewer pCPUs with --cpus";
        for (text, pcpus, kept, expected) in [
            (many, 2, "1 2 16 32", ""),
            (many, 100, "1 2", "left out: ratio 16, 32 on 100 pCPUs, more than 1024 vCPUs"),
            (close, 16, "1 1.1 1.5 2", ""),
            (close, 2, "1 1.5 2", "left out: ratio 1.1, on 2 pCPUs as many vCPUs as another ratio"),
            (close, 1, "1 1.5", "left out: ratio"),
            (&points(8), 100, "8", "left out: ratio 32"),
            (&points(16), 100, "", none),
            ("[grid]\nratio = [16, 32]", 100, "", none),
        ] {
            let mut it = of_text(text);
            let said = it.fit(pcpus, 1024).map_or_else(|failure| failure.message, Option::unwrap_or_default);
            assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{text}: {said}");
            let left: Vec<_> = it.varying().into_iter().flat_map(|axis| axis.values).map(|it| it.0).collect();
            assert_eq!(left.join(" "), kept, "{text} on {pcpus} pCPUs");
        }
        let mut asked = built_in("overcommit");
        asked.apply(&Overrides { ratios: Some(vec![Ratio::whole(16)]), ..Overrides::default() }).unwrap();
        assert_eq!(asked.fit(100, 1024).unwrap(), None, "asked for on the command line");
    }

    #[test]
    fn every_built_in_experiment_is_planned_or_refused_on_any_host() {
        for (name, _) in BUILT_IN {
            let locks = built_in(name).locks();
            let image = haltkick_vmm::Image::embedded().with_locks(locks.iter().map(String::as_str)).unwrap();
            for pcpus in [1, 2, 64, 128, 129, 256, 300, 512] {
                let allowed = CpuList((0..pcpus).collect());
                let supply = Supply { image: &image, allowed: &allowed };
                let mut experiment = built_in(name);
                let planned = experiment
                    .fit_to(supply, haltkick_vmm::MAX_VCPUS)
                    .and_then(|_| Plan::new(&experiment, supply, 1).map(|plan| plan.cells().count()));
                match planned {
                    Ok(cells) => assert!(cells > 0, "{name} on {pcpus} pCPUs"),
                    // One chooses CPUs 0 and 1.
                    Err(failure) => assert!(
                        failure.message.contains("nothing is left to run")
                            || pcpus == 1 && failure.message.contains("CPU 1 does not exist"),
                        "{name} on {pcpus} pCPUs: {failure}"
                    ),
                }
            }
        }
    }
}
