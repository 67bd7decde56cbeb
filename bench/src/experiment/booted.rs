//! Kernels as arms: whether they go together, and the guest that comes of what a file says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use haltkick_vmm::{LinuxGuest, RunConfig};

use super::boot::Boot;
use super::contents::{Arm, Experiment};
use super::source::At;
use crate::settings::value::Value;
use crate::settings::{Impossible, Settings, Supply, linux};
use crate::text::exit::Result;

/// How long a guest may take until it has powered off, where nobody says.
const DEFAULT_LIMIT: Duration = Duration::from_secs(600);

impl Experiment {
    /// Whether it compares kernels rather than locks.
    pub(crate) fn has_kernels(&self) -> bool {
        self.boot.kernel.is_some() || self.arms.iter().any(|arm| arm.boot.kernel.is_some())
    }

    /// Whether all arms are kernels, or none; and what compares them, and nothing else, is a figure.
    pub(super) fn check_boots(&self) -> Result<()> {
        let has_kernels = self.has_kernels();
        for arm in &self.arms {
            let boot = arm.boot.over(&self.boot);
            if has_kernels && boot.kernel.is_none() {
                let message = format!("arm '{}' has no kernel, where others have one", arm.name);
                return Err(self.source.complain(arm.patch.place("name").flatten(), message));
            }
            if let Some(at) = boot.place().filter(|_| !has_kernels) {
                return Err(self.source.complain(Some(at), "this is for arms that have a 'kernel'"));
            }
        }
        let compared = self.comparisons.iter().find(|it| it.of.figure().is_some() != has_kernels);
        match compared {
            None => Ok(()),
            Some(it) if has_kernels => {
                let message = format!(
                    "comparison '{}': of kernels, figures are compared that they print: of = \"figure:NAME\"",
                    it.name
                );
                Err(self.source.complain(None, message))
            }
            Some(it) => {
                let message = format!("comparison '{}': only arms with a 'kernel' print figures", it.name);
                Err(self.source.complain(None, message))
            }
        }
    }

    /// What is said nowhere else about running `arm`'s kernel, with `settings` of it and of all others, and whether what is said
    /// goes with a kernel.
    pub(super) fn boot(
        &self,
        arm: &Arm,
        settings: &Settings,
        supply: Supply<'_>,
    ) -> std::result::Result<Booted, Impossible> {
        let refused = settings.all_given().find(|(setting, value)| linux::is_refused(setting, value));
        if let Some((setting, _)) = refused {
            let message = "this is for our own guest: leave it out where arms have a kernel".into();
            return Err(Impossible { key: setting.name, message });
        }
        if linux::deschedules_by_activity(settings) {
            return Err(Impossible { key: "deschedule", message: linux::RANDOM_ONLY.into() });
        }
        let config = settings.resolve(supply)?;
        let limit = settings.given("window").map_or(DEFAULT_LIMIT, Value::time);
        let pv = settings.given("pv").is_none_or(Value::is_on);
        let config = RunConfig { pv, window: limit, warmup: Duration::ZERO, ..config };
        Ok(Booted {
            boot: arm.boot.over(&self.boot),
            memory_bytes: linux::memory_bytes(settings),
            limit,
            config,
        })
    }

    /// The guest, if its files are there.
    pub(super) fn linux_guest(&self, booted: &Booted) -> Result<LinuxGuest> {
        let boot = &booted.boot;
        let file = |named: &Option<(String, At)>| {
            let Some((path, at)) = named else { return Ok(None) };
            self.file_beside(path).map(Some).map_err(|message| self.source.complain(Some(at), message))
        };
        // An arm that the command line has added has none.
        let kernel = file(&boot.kernel)?
            .ok_or_else(|| self.source.complain(None, "an arm has no kernel, where others have one"))?;
        let words = boot.cmdline.as_ref().map(|(words, _)| words.as_str());
        let nopvspin = boot.nopvspin.as_ref().is_some_and(|(is_on, _)| *is_on).then_some("nopvspin");
        Ok(LinuxGuest {
            kernel,
            initrd: file(&boot.initrd)?,
            append: words.into_iter().chain(nopvspin).collect::<Vec<_>>().join(" "),
            memory_bytes: booted.memory_bytes,
            marker: boot.marker.as_ref().map_or(linux::DEFAULT_MARKER.into(), |(marker, _)| marker.clone()),
            limit: Some(booted.limit),
        })
    }

    /// A file that the experiment's file names: relative to where that lies.
    fn file_beside(&self, path: &str) -> std::result::Result<PathBuf, String> {
        let path = Path::new(&self.source.origin).parent().unwrap_or(Path::new("")).join(path);
        let told = path.display();
        match std::fs::metadata(&path) {
            Ok(file) if file.is_file() => Ok(path),
            Ok(_) => Err(format!("{told} is no file")),
            Err(error) => Err(format!("{told}: {error}")),
        }
    }
}

/// All that is known of a cell with a kernel before its files are looked for.
pub(super) struct Booted {
    boot: Boot,
    memory_bytes: u64,
    limit: Duration,
    pub(super) config: RunConfig,
}

#[cfg(test)]
mod tests {
    use haltkick_vmm::Image;

    use super::*;
    use crate::experiment::Source;
    use crate::experiment::contents::Patch;
    use crate::experiment::plan::{Cell, Plan};
    use crate::host::cpulist::CpuList;
    use crate::measure::synthetic::Scratch;

    const HEAD: &str = "format = 1\nname = \"k\"\ntitle = \"K\"\n";

    /// A directory with two files that may be kernels, and one that may be an initial RAM disk.
    fn directory(name: &str) -> Scratch {
        let scratch = Scratch::new(name);
        for file in ["old", "new", "initrd"] {
            std::fs::write(scratch.path().join(file), file).unwrap();
        }
        scratch
    }

    fn plan(directory: &Scratch, rest: &str) -> Result<Plan> {
        let origin = directory.path().join("k.toml").display().to_string();
        planned(&Experiment::parse(Source { origin, text: format!("{HEAD}{rest}") })?)
    }

    fn planned(experiment: &Experiment) -> Result<Plan> {
        let image = Image::embedded();
        Plan::new(experiment, Supply { image: &image, allowed: &CpuList(vec![0, 1]) }, 1)
    }

    fn guest<'a>(plan: &'a Plan, arm: &str) -> (&'a Cell, &'a LinuxGuest) {
        let cell = plan.cells().find(|cell| cell.arm == arm).unwrap();
        (cell, cell.linux.as_ref().unwrap())
    }

    #[test]
    fn an_arm_has_what_it_says_over_what_all_have_and_the_words_of_both() {
        let directory = directory("boot-over");
        let plan = plan(
            &directory,
            "[settings]\nkernel = \"old\"\ninitrd = \"initrd\"\ncmdline = \"quiet\"\nratio = 2\nmemory = \"128M\"\n\
             [[arm]]\nname = \"a\"\n\
             [[arm]]\nname = \"b\"\nkernel = \"new\"\ncmdline = \"x=1\"\nnopvspin = true\nmarker = \"there\"\n\
             [[arm]]\nname = \"c\"\npv = \"off\"\nwindow = \"30s\"\n[control]\narm = \"a\"\n",
        )
        .unwrap();
        let path = |name: &str| directory.path().join(name);
        let (cell, a) = guest(&plan, "a");
        assert_eq!(
            (&a.kernel, a.initrd.as_ref(), a.append.as_str()),
            (&path("old"), Some(&path("initrd")), "quiet")
        );
        assert_eq!((a.memory_bytes, a.limit, a.marker.as_str()), (128 << 20, Some(DEFAULT_LIMIT), "Run /"));
        assert_eq!((cell.config.pv, cell.config.vcpus, cell.ideal.as_ref()), (true, 4, None));
        let (_, b) = guest(&plan, "b");
        assert_eq!(
            (&b.kernel, b.append.as_str(), b.marker.as_str()),
            (&path("new"), "quiet x=1 nopvspin", "there")
        );
        let (cell, c) = guest(&plan, "c");
        assert_eq!((cell.config.pv, c.limit), (false, Some(Duration::from_secs(30))));
        assert_eq!(
            plan.cells().count(),
            4,
            "three arms, the other half of the A/A pair, and nothing without a lock"
        );
    }

    #[test]
    fn what_does_not_go_with_kernels_is_refused_before_anything_runs() {
        let directory = directory("boot-refused");
        let two = "[[arm]]\nname = \"a\"\nkernel = \"old\"\n[[arm]]\nname = \"b\"\nkernel = \"new\"\n";
        let compare = "[[compare]]\nname = \"b/a\"\narm = \"b\"\nbaseline = \"a\"\n";
        for (rest, complaint) in [
            ("[[arm]]\nname = \"a\"\nkernel = \"none\"\n".to_owned(), "k.toml:6:10: "),
            ("[[arm]]\nname = \"a\"\nkernel = \"none\"\n".to_owned(), "none: No such file"),
            ("[[arm]]\nname = \"a\"\nkernel = \".\"\n".to_owned(), "is no file"),
            (format!("[settings]\ninitrd = \"none\"\n{two}"), "none: No such file"),
            (
                "[[arm]]\nname = \"a\"\ninitrd = \"initrd\"\n".to_owned(),
                "k.toml:6:10: this is for arms that have a 'kernel'",
            ),
            ("[[arm]]\nname = \"a\"\nnopvspin = true\n".to_owned(), "this is for arms that have a 'kernel'"),
            (
                format!("{two}[[arm]]\nname = \"c\"\nlock = \"tas\"\n"),
                "arm 'c' has no kernel, where others have one",
            ),
            (
                format!("[settings]\nhold = \"1us\"\n{two}"),
                "k.toml:5:1: arm 'a': hold: this is for our own guest",
            ),
            (format!("[grid]\nthink = [\"1us\"]\n{two}"), "think: this is for our own guest"),
            (
                format!("[settings]\ndeschedule = \"holder,rate=5,for=1ms\"\n{two}"),
                "nobody knows what a vCPU",
            ),
            (format!("{two}{compare}"), "comparison 'b/a': of kernels, figures are compared"),
            (format!("{two}{compare}of = \"figure:A\"\n"), "a name that is not"),
            (
                format!("[[arm]]\nname = \"a\"\n[[arm]]\nname = \"b\"\n{compare}of = \"figure:x\"\n"),
                "only arms with a 'kernel' print figures",
            ),
            (format!("[settings]\nnopvspin = \"yes\"\n{two}"), "'nopvspin' must be true or false"),
            (format!("[grid]\nkernel = [\"old\"]\n{two}"), "unknown key 'kernel'"),
        ] {
            let failure = plan(&directory, &rest).map(|plan| plan.cells().count()).unwrap_err();
            assert!(failure.message.contains(complaint), "{rest}\n{failure}");
        }
    }
    #[test]
    fn an_arm_that_is_added_without_a_kernel_is_refused() {
        let directory = directory("boot-added");
        let origin = directory.path().join("k.toml").display().to_string();
        let text = format!("{HEAD}[[arm]]\nname = \"a\"\nkernel = \"old\"\n");
        let mut experiment = Experiment::parse(Source { origin, text }).unwrap();
        assert_eq!(planned(&experiment).unwrap().cells().count(), 1);
        let added = Arm { name: "b".into(), patch: Patch::default(), boot: Boot::default(), only: vec![] };
        experiment.arms.push(added);
        let failure = planned(&experiment).map(|plan| plan.cells().count()).unwrap_err();
        assert!(failure.message.contains("an arm has no kernel"), "{failure}");
    }
}
