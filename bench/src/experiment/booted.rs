//! Kernels as arms: whether they go together, and the guest that comes of what a file says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use haltkick_vmm::{Linux, RamDisk, Refused, Run, System, printable};

use super::contents::{self, Arm, Experiment, Patch};
use super::source::At;
use super::workload_inside::WorkloadInside;
use crate::experiment::measure::Measure;
use crate::settings::{Settings, Supply, Value, linux};
use crate::text::exit::{Failure, Result};

impl Experiment {
    pub(crate) fn has_kernels(&self) -> bool {
        let mut patches = std::iter::once(&self.settings).chain(self.arms.iter().map(|arm| &arm.patch));
        patches.any(|patch| patch.boot("kernel").is_some()) || self.varies("kernel").is_some()
    }

    /// The place where `key` varies, if it does.
    fn varies(&self, key: &str) -> Option<Option<&At>> {
        let axis = self.axes.iter().find(|axis| axis.key == key);
        let of_axis = axis.map(|axis| axis.values.first().and_then(|(_, at)| at.as_ref()));
        let point = self.points.iter().find(|point| point.0.iter().any(|(each, _)| each == key));
        of_axis.or_else(|| point.map(|point| Some(&point.1)))
    }

    /// Whether all arms are kernels, or none; and what compares them, and nothing else, is a figure.
    pub(super) fn check_boots(&self) -> Result<()> {
        let has_kernels = self.has_kernels();
        let varies = contents::BOOT.iter().filter_map(|key| Some((*key, self.varies(key)?)));
        let of_arms = self.arms.iter().flat_map(|arm| arm.patch.said());
        let mut said = of_arms.chain(self.settings.said()).chain(varies);
        if let Some((key, at)) = said.next().filter(|_| !has_kernels) {
            return Err(self.blame_boot(key, at, "this is for arms that have a 'kernel'"));
        }
        let has_none = |arm: &&Arm| self.patch_of(arm, &[]).boot("kernel").is_none();
        let without = self.arms.iter().find(has_none).filter(|_| self.varies("kernel").is_none());
        if let Some(arm) = without.filter(|_| has_kernels) {
            let message = format!("arm '{}' has no kernel, where others have one", arm.name);
            return Err(self.source.complain(arm.patch.place("name").flatten(), message));
        }
        let inside = |arm: &Arm| self.patch_of(arm, &[]).boot(contents::WORKLOAD_INSIDE).is_some();
        let runs_inside = self.arms.iter().all(inside);
        let is_wrong = |of: &Measure| match of {
            Measure::Printed(_) => !has_kernels || runs_inside,
            _ => has_kernels && !runs_inside,
        };
        let Some(it) = self.comparisons.iter().find(|it| is_wrong(&it.of)) else { return Ok(()) };
        let message = match (has_kernels, runs_inside) {
            (true, false) => "of kernels, figures are compared that they print: of = \"figure:NAME\"",
            (true, true) => {
                "a workload inside has the figures of any run: of = \"throughput\", or a name of `haltkick list figures`"
            }
            (false, _) => "only arms with a 'kernel' print figures",
        };
        Err(self.source.complain(None, format!("comparison '{}': {message}", it.name)))
    }

    /// A complaint about what was said of the kernel at a place, or on the command line.
    fn blame_boot(&self, key: &str, at: Option<&At>, message: &str) -> Failure {
        match at {
            Some(at) => self.source.complain(Some(at), message),
            None => Failure::usage(format!("{key}: {message}")),
        }
    }

    /// `run`, whose settings are those of `patch`, with the kernel that is said to boot there, if its files are there.
    pub(super) fn with_kernel(&self, patch: &Patch, mut run: Run) -> Result<Run> {
        let file = |key: &str| {
            let Some((path, at)) = patch.boot(key).zip(patch.place(key)) else { return Ok(None) };
            let found = match at {
                // Files that the experiment names are relative to the directory of its own.
                Some(_) => file(Path::new(&self.source.origin).parent().unwrap_or(Path::new("")).join(path)),
                None => file(path.into()),
            };
            found.map(Some).map_err(|message| self.blame_boot(key, at, &message))
        };
        // An arm that the command line has added has none.
        let kernel = file("kernel")?
            .ok_or_else(|| self.source.complain(None, "an arm has no kernel, where others have one"))?;
        let words = patch.boot(contents::CMDLINE);
        let nopvspin = (patch.boot(contents::NOPVSPIN) == Some("true")).then_some("nopvspin");
        let mut linux = Linux {
            kernel,
            initrd: file("initrd")?.map(RamDisk::File),
            append: words.into_iter().chain(nopvspin).collect::<Vec<_>>().join(" "),
            memory_bytes: linux::memory_bytes(&patch.settings),
            marker: patch.boot("marker").unwrap_or(linux::DEFAULT_MARKER).into(),
            limit: Some(linux::limit(&patch.settings)),
        };
        if let Some(words) = patch.boot(contents::WORKLOAD_INSIDE) {
            let inside = WorkloadInside::read(words).expect("it was read before");
            let put = match linux.initrd {
                Some(_) => Err("a RAM disk is made for it: leave 'initrd' out".into()),
                None => inside.put_into(&mut linux, run.guests[0].vcpus),
            };
            let at = patch.place(contents::WORKLOAD_INSIDE).flatten();
            put.map_err(|message| self.blame_boot(contents::WORKLOAD_INSIDE, at, &printable(&message)))?;
        }
        run.guests[0].system = System::Linux(linux);
        Ok(run)
    }
}

fn file(path: PathBuf) -> std::result::Result<PathBuf, String> {
    let told = path.display();
    match std::fs::metadata(&path) {
        Ok(file) if file.is_file() => Ok(path),
        Ok(_) => Err(format!("{told} is no file")),
        Err(error) => Err(format!("{told}: {error}")),
    }
}

/// The run of these settings, but for the kernel, if they go with one.
pub(super) fn resolve(settings: &Settings, supply: Supply<'_>) -> std::result::Result<Run, Refused> {
    let refused = settings.all_given().find(|(setting, value)| linux::is_refused(setting, value));
    if let Some((setting, _)) = refused {
        let message = "this is for our own guest: leave it out where arms have a kernel".into();
        return Err(Refused { about: setting.name, message });
    }
    linux::check_descheduling(settings)?;
    let mut run = settings.resolve(supply)?;
    run.guests[0].pv = settings.given("pv").is_none_or(Value::is_on);
    (run.window, run.warmup) = (linux::limit(settings), Duration::ZERO);
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Source;
    use crate::experiment::plan::{Cell, Plan};
    use crate::measure::synthetic::{Scratch, overrides, planned};

    /// A directory with two files that may be kernels, and one that may be an initial RAM disk.
    fn directory(name: &str) -> Scratch {
        let scratch = Scratch::new(name);
        ["old", "new", "initrd"].iter().for_each(|file| scratch.put(file, file));
        scratch
    }

    fn parsed(directory: &Scratch, rest: &str) -> Experiment {
        let origin = directory.path().join("k.toml").display().to_string();
        let text = format!("format = 1\nname = 'k'\ntitle = 'K'\n{rest}");
        Experiment::parse(Source { origin, text }).unwrap()
    }

    /// The plan of a file there, with these settings of the command line.
    fn plan(directory: &Scratch, rest: &str, sets: &[(&str, &str)]) -> Plan {
        let mut experiment = parsed(directory, rest);
        experiment.apply(&overrides(sets)).unwrap();
        planned(&experiment).unwrap()
    }

    /// Two arms with the kernel that is set elsewhere.
    const ARMS: &str = "[[arm]]\nname = 'a'\n[[arm]]\nname = 'b'\npv = 'off'\n";

    fn guest<'a>(plan: &'a Plan, arm: &str) -> (&'a Cell, &'a Linux) {
        let cell = plan.cells().find(|cell| cell.arm == arm).unwrap();
        (cell, cell.run.linux().unwrap().1)
    }

    #[test]
    fn an_arm_overrides_the_common_settings_and_adds_its_words() {
        let directory = directory("boot-over");
        let plan = plan(
            &directory,
            "[settings]\nkernel = 'old'\ninitrd = 'initrd'\ncmdline = 'quiet'\nratio = 2\nmemory = '128M'\n\
             [[arm]]\nname = 'a'\n\
             [[arm]]\nname = 'b'\nkernel = 'new'\ncmdline = 'x=1'\nnopvspin = true\nmarker = 'there'\n\
             [[arm]]\nname = 'c'\npv = 'off'\nwindow = '30s'\n[control]\narm = 'a'\n",
            &[],
        );
        let path = |name: &str| directory.path().join(name);
        let (cell, a) = guest(&plan, "a");
        assert_eq!((&a.kernel, &a.initrd), (&path("old"), &Some(RamDisk::File(path("initrd")))));
        assert_eq!((a.memory_bytes, a.limit), (128 << 20, Some(linux::DEFAULT_LIMIT)));
        assert_eq!((cell.run.guests[0].pv, cell.run.guests[0].vcpus, cell.ideal.as_ref()), (true, 4, None));
        let b = guest(&plan, "b").1;
        assert_eq!((&b.kernel, &*b.append, &*b.marker), (&path("new"), "quiet x=1 nopvspin", "there"));
        let (cell, c) = guest(&plan, "c");
        assert_eq!((cell.run.guests[0].pv, c.limit), (false, Some(Duration::from_secs(30))));
        // Three arms, the other half of the A/A pair, and nothing without a lock.
        assert_eq!(plan.cells().count(), 4);
    }

    #[test]
    fn arms_may_be_workloads_inside_one_kernel() {
        let directory = directory("boot-inside");
        let plan = plan(
            &directory,
            "[settings]\nkernel = 'old'\ncmdline = 'quiet'\nengine = 'qemu-tcg'\n\
             [[arm]]\nname = 'a'\nworkload-inside = 'run --lock ticket'\n\
             [[arm]]\nname = 'b'\nworkload-inside = 'run --lock mcs --sched vmm'\n\
             [[arm]]\nname = 'c'\nworkload-inside = 'run --engine kvm'\n",
            &[],
        );
        let (a, b) = (guest(&plan, "a").1, guest(&plan, "b").1);
        assert_eq!(a.append, "quiet haltkick.inside=run+--lock+ticket+--engine+threads+--sched+host");
        // Threads of the kernel, unless a workload says otherwise.
        assert_eq!(b.append, "quiet haltkick.inside=run+--lock+mcs+--sched+vmm+--engine+threads");
        assert_eq!(guest(&plan, "c").1.append, "quiet haltkick.inside=run+--engine+kvm");
        assert_eq!((&a.initrd, a.program().is_some()), (&b.initrd, true));
        assert!(a.files().count() >= 2 && a.marker != linux::DEFAULT_MARKER, "{a:?}");
    }

    #[test]
    fn kernels_command_lines_and_vcpus_vary_and_their_words_are_joined() {
        let directory = directory("boot-grid");
        let plan = plan(
            &directory,
            "[settings]\ncmdline = 'quiet'\n[grid]\nkernel = ['old', 'new']\ncmdline = ['', 'isolcpus=0,1', 'isolcpus=0-1']\n\
             nopvspin = [true, false]\nvcpus = [2, 4]\n[[arm]]\nname = 'a'\ncmdline = 'x=1'\n\
             [[arm]]\nname = 'b'\nnopvspin = false\nonly = { kernel = 'new', nopvspin = true, cmdline = '' }\n\
             [control]\narm = 'a'\nkernel = 'new'\ncmdline = 'isolcpus=0-1'\nnopvspin = false\n",
            &[],
        );
        assert_eq!(plan.cells().count(), 2 * 3 * 2 * 2 + 2 + 1);
        let ids: std::collections::BTreeSet<&str> = plan.cells().map(|cell| cell.id.as_str()).collect();
        assert_eq!(ids.len(), plan.cells().count(), "every cell has an id of its own: {ids:?}");
        assert!(ids.contains("a_kernel-new_cmdline-isolcpus-0-1~2_nopvspin-true_vcpus-4"), "{ids:?}");
        for cell in plan.cells() {
            let (_, guest) = cell.run.linux().unwrap();
            let value = |key: &str| cell.setting[key].as_str();
            assert_eq!(guest.kernel, directory.path().join(value("kernel")));
            assert_eq!(cell.run.guests[0].vcpus.to_string(), value("vcpus"));
            let of_arm = if cell.arm == "a" { "x=1" } else { "" };
            // An arm's own word goes before the grid's.
            let nopvspin = if cell.arm == "a" && value("nopvspin") == "true" { "nopvspin" } else { "" };
            let mut words = vec!["quiet", value("cmdline"), of_arm, nopvspin];
            words.retain(|words| !words.is_empty());
            assert_eq!(guest.append, words.join(" "));
        }
        let control = plan.cells().find(|cell| cell.id.ends_with("_control")).unwrap();
        let chosen = |key: &str| control.setting[key].as_str();
        assert_eq!((chosen("kernel"), chosen("cmdline")), ("new", "isolcpus=0-1"));
    }

    #[test]
    fn the_command_line_changes_kernels() {
        let directory = directory("boot-set");
        let here = directory.path().join("new").display().to_string();
        let of_all = format!("[settings]\nkernel = 'old'\ncmdline = 'quiet'\n{ARMS}cmdline = 'x'\n");
        let of_grid = format!("[grid]\nkernel = ['old', 'new']\n{ARMS}");
        let sets = [("kernel", &*here), ("cmdline", "a=b c"), ("nopvspin", "true"), ("vcpus", "3")];
        let all = plan(&directory, &of_all, &sets);
        let (cell, b) = guest(&all, "b");
        assert_eq!((&b.kernel, b.append.as_str()), (&PathBuf::from(&here), "a=b c x nopvspin"));
        assert_eq!(cell.run.guests[0].vcpus, 3);
        let one = plan(&directory, &of_grid, &[("kernel", &here)]);
        assert_eq!((one.cells().count(), one.outline.axes[0].values.len()), (2, 1));
    }

    #[test]
    fn an_arm_that_is_added_without_a_kernel_is_refused() {
        let directory = directory("boot-added");
        let mut experiment = parsed(&directory, "[[arm]]\nname = 'a'\nkernel = 'old'\n");
        let added = Arm { name: "b".into(), patch: Patch::default(), only: vec![] };
        experiment.arms.push(added);
        let message = planned(&experiment).map(|plan| plan.cells().count()).unwrap_err().message;
        assert!(message.contains("an arm has no kernel"), "{message}");
    }
}
