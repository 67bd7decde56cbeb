//! Kernels as arms: whether they go together, and the guest that comes of what a file says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use haltkick_vmm::{Linux, RamDisk, Refused, Run, System, printable};

use super::contents::{Arm, Experiment, Patch};
use super::source::At;
use super::workload_inside::{DEFAULT_MARKER, WorkloadInside};
use crate::experiment::measure::Measure;
use crate::settings::{Settings, Supply, Value, choices, table};
use crate::text::exit::{Failure, Result};
use crate::text::quantity::MemorySize;

/// Memory for a distribution's kernel and a small initramfs.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// Time limit, at which a guest that hangs ends.
const DEFAULT_LIMIT: Duration = Duration::from_secs(600);

impl Experiment {
    pub(crate) fn has_kernels(&self) -> bool {
        let mut patches = std::iter::once(&self.settings).chain(self.arms.iter().map(|arm| &arm.patch));
        patches.any(|patch| patch.text("kernel").is_some()) || self.varies("kernel").is_some()
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
        let varies = table::BOOT.iter().filter_map(|row| Some((row.name, self.varies(row.name)?)));
        let of_arms = self.arms.iter().flat_map(|arm| arm.patch.said());
        let mut said = of_arms.chain(self.settings.said()).chain(varies);
        if let Some((key, at)) = said.next().filter(|_| !has_kernels) {
            return Err(self.blame_boot(key, at, "this is for arms that have a 'kernel'"));
        }
        let has_none = |arm: &&Arm| self.patch_of(arm, &[]).text("kernel").is_none();
        let without = self.arms.iter().find(has_none).filter(|_| self.varies("kernel").is_none());
        if let Some(arm) = without.filter(|_| has_kernels) {
            let message = format!("arm '{}' has no kernel, where others have one", arm.name);
            return Err(self.source.complain(arm.patch.place("name").flatten(), message));
        }
        let inside = |arm: &Arm| self.patch_of(arm, &[]).text(table::WORKLOAD_INSIDE).is_some();
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

    /// The kernel of `patch` and what goes with it, if the files are there.
    pub(super) fn boot<'a>(&self, patch: &'a Patch) -> Result<Boot<'a>> {
        let file = |key: &str| {
            let Some((path, at)) = patch.text(key).zip(patch.place(key)) else { return Ok(None) };
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
        let words = patch.text(table::CMDLINE);
        let nopvspin = (patch.text(table::NOPVSPIN) == Some("true")).then_some("nopvspin");
        Ok(Boot {
            kernel,
            initrd: file("initrd")?,
            words: words.into_iter().chain(nopvspin).collect::<Vec<_>>().join(" "),
            marker: patch.text("marker"),
            inside: patch.text(table::WORKLOAD_INSIDE),
        })
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

/// Files and words with which a Linux guest boots, in addition to its settings.
pub(crate) struct Boot<'a> {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: Option<PathBuf>,
    /// Words for its command line.
    pub(crate) words: String,
    pub(crate) marker: Option<&'a str>,
    /// The workload that is run inside.
    pub(crate) inside: Option<&'a str>,
}

impl Boot<'_> {
    /// The run of these settings with this kernel, if they go with one.
    pub(crate) fn run(self, settings: &Settings, supply: Supply<'_>) -> std::result::Result<Run, Refused> {
        let mut given = settings.all_given();
        if let Some((setting, _)) = given.find(|(setting, value)| setting.is_refused_for_linux(*value)) {
            let message =
                "this is for our own guest: leave it out with a kernel, or put it into workload-inside";
            return Err(Refused::new(setting.name, message));
        }
        // The VMM does not know what a vCPU of Linux is doing.
        let policy = settings.given("deschedule").and_then(|policy| policy.by(choices::deschedule));
        policy.map_or(Ok(()), |policy| policy.check_for_linux())?;
        let mut run = settings.resolve(supply)?;
        // How long it may take until it has powered off.
        let limit = settings.given("window").map_or(DEFAULT_LIMIT, Value::time);
        let memory = settings.given("memory").map(Value::to::<MemorySize>);
        let mut linux = Linux {
            kernel: self.kernel,
            initrd: self.initrd.map(RamDisk::File),
            append: self.words,
            memory_bytes: memory.map_or(DEFAULT_MEMORY_BYTES, |size| size.bytes),
            marker: self.marker.unwrap_or(DEFAULT_MARKER).into(),
            limit: Some(limit),
        };
        let guest = &mut run.guests[0];
        if let Some(words) = self.inside {
            let put = match linux.initrd {
                Some(_) => Err("a RAM disk is made for it: leave 'initrd' out".into()),
                None => WorkloadInside::read(words).and_then(|it| it.put_into(&mut linux, guest.vcpus)),
            };
            put.map_err(|message| Refused::new(table::WORKLOAD_INSIDE, printable(&message)))?;
        }
        // Unlike a lock's, paravirtual features are there unless they are hidden.
        guest.pv = settings.given("pv").is_none_or(Value::is_on);
        guest.system = System::Linux(linux);
        (run.window, run.warmup) = (limit, Duration::ZERO);
        Ok(run)
    }
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

    fn parsed(directory: &Scratch, rest: &str) -> Result<Experiment> {
        let origin = directory.path().join("k.toml").display().to_string();
        Experiment::parse(Source { origin, text: format!("format = 1\nname = 'k'\ntitle = 'K'\n{rest}") })
    }

    /// The plan of these lines, after these changes by the command line.
    fn applied(directory: &Scratch, rest: &str, sets: &[(&str, &str)]) -> Result<Plan> {
        let mut experiment = parsed(directory, rest)?;
        experiment.apply(&overrides(sets))?;
        planned(&experiment)
    }

    fn complaint(planned: Result<Plan>) -> String {
        planned.map(|plan| plan.cells().count()).unwrap_err().message
    }

    /// Two arms with the kernel that is set elsewhere.
    const ARMS: &str = "[[arm]]\nname = 'a'\n[[arm]]\nname = 'b'\npv = 'off'\n";

    /// Each cell in a line: its guest's files, words, marker, form, vCPUs, MiB and limit.
    fn told(plan: &Plan) -> Vec<String> {
        let of_cell = |cell: &Cell| {
            let (guest, linux) = cell.run.linux().unwrap();
            let files = linux.files().map(|path| path.file_name().unwrap().display().to_string());
            let files = files.collect::<Vec<_>>().join("+");
            let (words, marker, mib) = (&linux.append, &linux.marker, linux.memory_bytes >> 20);
            let (pv, vcpus, limit) = (guest.pv, guest.vcpus, linux.limit.unwrap().as_secs());
            assert_eq!(cell.ideal, None, "there is nothing without a lock");
            format!("{}: {files} '{words}' '{marker}' pv={pv} {vcpus} {mib} {limit}", cell.id)
        };
        plan.cells().map(of_cell).collect()
    }

    #[test]
    fn what_an_arm_says_of_its_kernel_goes_over_what_all_say() {
        let settings = "kernel = 'old'\ninitrd = 'initrd'\ncmdline = 'quiet'\nratio = 2\nmemory = '128M'\n";
        let of_all = format!(
            "[settings]\n{settings}[[arm]]\nname = 'a'\n\
             [[arm]]\nname = 'b'\nkernel = 'new'\ncmdline = 'x=1'\nnopvspin = true\nmarker = 'there'\n\
             [[arm]]\nname = 'c'\npv = 'off'\nwindow = '30s'\n[control]\narm = 'a'\n"
        );
        // Words of all places are joined; an arm's own choice goes before the grid's.
        let varied = "[settings]\ncmdline = 'quiet'\nvcpus = 1\n[[point]]\nkernel = 'old'\ncmdline = 'i=0,1'\n\
             [[point]]\nkernel = 'new'\ncmdline = 'i=0-1'\n[grid]\nnopvspin = [true]\n\
             [[arm]]\nname = 'a'\ncmdline = 'x'\n\
             [[arm]]\nname = 'b'\nnopvspin = false\nonly = { nopvspin = true, kernel = 'old' }\n\
             [control]\narm = 'a'\ncmdline = 'i=0-1'\n";
        let expected = [
            "a: old+initrd 'quiet' 'Run /' pv=true 4 128 600",
            "b: new+initrd 'quiet x=1 nopvspin' 'there' pv=true 4 128 600",
            "c: old+initrd 'quiet' 'Run /' pv=false 4 128 30",
            "a_control: old+initrd 'quiet' 'Run /' pv=true 4 128 600",
            "a_kernel-old_cmdline-i-0-1_nopvspin-true: old 'quiet i=0,1 x nopvspin' 'Run /' pv=true 1 256 600",
            "b_kernel-old_cmdline-i-0-1_nopvspin-true: old 'quiet i=0,1' 'Run /' pv=true 1 256 600",
            "a_kernel-new_cmdline-i-0-1~2_nopvspin-true: new 'quiet i=0-1 x nopvspin' 'Run /' pv=true 1 256 600",
            "a_kernel-new_cmdline-i-0-1~2_nopvspin-true_control: new 'quiet i=0-1 x nopvspin' 'Run /' pv=true 1 256 600",
        ];
        let directory = directory("boot-over");
        let found = [&of_all[..], varied].map(|rest| told(&applied(&directory, rest, &[]).unwrap()));
        assert_eq!(found.concat(), expected);
    }

    #[test]
    fn arms_may_be_workloads_inside_one_kernel() {
        let directory = directory("boot-inside");
        let plan = applied(
            &directory,
            "[settings]\nkernel = 'old'\ncmdline = 'quiet'\nengine = 'qemu-tcg'\n\
             [[arm]]\nname = 'a'\nworkload-inside = 'run --lock ticket'\n\
             [[arm]]\nname = 'b'\nworkload-inside = 'run --lock mcs --sched vmm'\n\
             [[arm]]\nname = 'c'\nworkload-inside = 'run --engine kvm'\n",
            &[],
        );
        let plan = plan.unwrap();
        let guests: Vec<_> = plan.cells().map(|cell| cell.run.linux().unwrap().1).collect();
        let [a, b, c] = guests[..] else { panic!("{} cells", guests.len()) };
        assert_eq!(a.append, "quiet haltkick.inside=run+--lock+ticket+--engine+threads+--sched+host");
        // Threads of the kernel, unless a workload says otherwise.
        assert_eq!(b.append, "quiet haltkick.inside=run+--lock+mcs+--sched+vmm+--engine+threads");
        assert_eq!(c.append, "quiet haltkick.inside=run+--engine+kvm");
        assert_eq!((&a.initrd, a.program().is_some()), (&b.initrd, true));
        assert!(a.files().count() >= 2 && a.marker != DEFAULT_MARKER, "{a:?}");
    }

    /// Lines of files, a change by the command line, and what the refusal says.
    const REFUSED: &str = "\
[[arm]]|name = 'a'|kernel = 'none' =>  => k.toml:6:1: .. none: No such file
[[arm]]|name = 'a'|kernel = '.' =>  => is no file
[settings]|initrd = 'none'|{TWO} =>  => none: No such file
[settings]|initrd = 'initrd'|workload-inside = 'run'|{TWO} =>  => k.toml:6:1: arm 'a': workload-inside: a RAM disk
[settings]|workload-inside = 'run --lock x'|{TWO} =>  => k.toml:5:1: arm 'a': workload-inside: --lock: unknown
[settings]|workload-inside = 'bench'|{TWO} =>  => workload-inside: it begins with 'run'
[settings]|hold = '1us'|{TWO} =>  => k.toml:5:1: arm 'a': hold: this is for our own guest
[grid]|think = ['1us']|{TWO} =>  => think: this is for our own guest
[settings]|deschedule = 'holder,rate=5,for=1ms'|{TWO} =>  => it is not known what a vCPU
[grid]|kernel = ['none']|{ARMS} =>  => k.toml:5:11: .. none: No such file
[settings]|kernel = 'old'|{ARMS} => kernel=old => kernel: old: No such file
{TWO} => kernel={HERE} => --set kernel: arm 'a' sets it itself
[[point]]|kernel = 'old'|[[point]]|kernel = 'new'|{ARMS} => kernel={HERE} => --set kernel: the points of this experiment set it
{ARMS} => initrd={HERE} => initrd: this is for arms that have a 'kernel'
[settings]|kernel = 'old'|{ARMS} => nopvspin=yes => --set nopvspin: 'yes' is neither true nor false
[settings]|kernel = 'old'|{ARMS} => kernle=x => --set kernle: unknown setting 'kernle': did you mean 'kernel'?
{ARMS}|[[compare]]|name = 'b/a'|arm = 'b'|baseline = 'a' => kernel={HERE} => comparison 'b/a': of kernels, figures are compared
";

    /// A path of the command line starts where the command was given, not where the file lies.
    #[test]
    fn what_does_not_go_with_kernels_is_refused_before_anything_runs() {
        let directory = directory("boot-refused");
        let here = directory.path().join("new").display().to_string();
        let two = "[[arm]]|name = 'a'|kernel = 'old'|[[arm]]|name = 'b'|kernel = 'new'";
        let words = [("{TWO}", two), ("{ARMS}", ARMS), ("{HERE}", &*here), ("|", "\n")];
        for row in REFUSED.lines() {
            let row = words.into_iter().fold(row.to_owned(), |row, (word, text)| row.replace(word, text));
            let parts: Vec<&str> = row.split(" => ").collect();
            let [lines, set, expected] = parts[..] else { panic!("{row} has not three parts") };
            let sets: Vec<_> = set.split_once('=').into_iter().collect();
            let message = complaint(applied(&directory, lines, &sets));
            assert!(expected.split(" .. ").all(|part| message.contains(part)), "{row}\n{message}");
        }
    }

    #[test]
    fn the_command_line_changes_kernels_and_their_words() {
        let directory = directory("boot-set");
        let here = directory.path().join("new").display().to_string();
        let of_all = format!("[settings]\nkernel = 'old'\ncmdline = 'quiet'\n{ARMS}cmdline = 'x'\n");
        let of_grid = format!("[grid]\nkernel = ['old', 'new']\n{ARMS}");
        let sets = [("kernel", &*here), ("cmdline", "a=b c"), ("nopvspin", "true"), ("vcpus", "3")];
        let all = told(&applied(&directory, &of_all, &sets).unwrap());
        assert_eq!(all[1], "b: new 'a=b c x nopvspin' 'Run /' pv=false 3 256 600");
        let one = applied(&directory, &of_grid, &[("kernel", &here)]).unwrap();
        assert_eq!((one.cells().count(), one.outline.axes[0].values.len()), (2, 1));
    }

    #[test]
    fn an_arm_that_is_added_without_a_kernel_is_refused() {
        let directory = directory("boot-added");
        let mut experiment = parsed(&directory, "[[arm]]\nname = 'a'\nkernel = 'old'\n").unwrap();
        let added = Arm { name: "b".into(), patch: Patch::default(), only: vec![] };
        experiment.arms.push(added);
        let message = complaint(planned(&experiment));
        assert!(message.contains("an arm has no kernel"), "{message}");
    }
}
