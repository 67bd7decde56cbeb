//! The groups of tests: which program they are in, built by cargo as `cargo test --workspace` builds it and asked for its tests, and what
//! kind of machine they need.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Tests of one program in machines of one kind.
pub(crate) struct Group {
    pub(crate) name: &'static str,
    /// The test target, and the folder of its package.
    pub(crate) target: &'static str,
    pub(crate) package: &'static str,
    /// How many of the host's CPUs a machine takes: 1 emulates all of its CPUs in one thread, 2 each in one of its own.
    pub(crate) threads: usize,
    /// The least and the most tests for a machine.
    pub(crate) batch: (usize, usize),
    /// Silence of a machine that counts as a hang.
    pub(crate) silence: Duration,
    /// More options for `nested.sh run`.
    pub(crate) options: Vec<String>,
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Which of the program's tests.
    pub(crate) takes: fn(&str) -> bool,
}

/// The module parameter with which KVM keeps shadow page tables instead of nested ones.
const SHADOW_PAGING: &str = "kvm_amd.npt=0";

/// Interrupts between nested guests make QEMU 7.2 hang more often than all else.
fn by_interrupts(test: &str) -> bool {
    test.contains("_ipi")
}

/// All groups. `work` is for files that machines take along, `kernel` what nested.sh has unpacked.
pub(crate) fn all(work: &Path, kernel: &Path) -> Result<Vec<Group>, String> {
    Ok(vec![linux(work, kernel)?, interrupts(), guests(), qemu()?])
}

pub(crate) fn guests() -> Group {
    Group {
        name: "guests",
        target: "guests",
        package: "vmm",
        threads: 1,
        batch: (8, 64),
        silence: Duration::from_secs(120),
        options: vec![],
        variables: vec![],
        takes: |test| !by_interrupts(test),
    }
}

/// Guests whose vCPUs wake each other by interrupts: with a thread for each CPU fewer of these machines hang. Under QEMU 7.2's
/// nested paging such guests triple-fault at places that cannot fault, three tests of one suite on a busy host; the same was seen
/// of Linux guests and never under KVM's shadow paging.
fn interrupts() -> Group {
    Group {
        name: "guests woken by interrupts",
        threads: 2,
        batch: (16, 32),
        // A machine has come up after 7 s, or 20 on a busy host, each of these tests takes a second or two, and the machines hang
        // more often than others.
        silence: Duration::from_secs(40),
        options: ["--emulator", "multi", "--modparam", SHADOW_PAGING].map(String::from).into(),
        variables: vec![("HALTKICK_NESTED_IPI", "1".into())],
        takes: by_interrupts,
        ..guests()
    }
}

/// QEMU with KVM, in the machine. It finds its files there where it has them here.
fn qemu() -> Result<Group, String> {
    let program = told(Command::new("sh").args(["-c", "command -v qemu-system-x86_64"]))?;
    let mut options = Vec::from(["--memory", "1536", "--file", program.trim()].map(String::from));
    for directory in told(Command::new(program.trim()).args(["-L", "help"]))?.lines() {
        for file in ["pvh.bin", "bios-microvm.bin"] {
            let file = Path::new(directory).join(file);
            if file.exists() {
                options.extend(["--file".into(), file.display().to_string()]);
            }
        }
    }
    let variables = vec![("HALTKICK_QEMU", program.trim().into())];
    Ok(Group { name: "QEMU with KVM", target: "qemu", options, variables, takes: |_| true, ..guests() })
}

/// Kernels under haltkick in the machine: its own, with a user space of one static program. Such a kernel's own interrupts need a
/// thread for each of the emulator's CPUs, too. With those, QEMU 7.2's nested paging lets Linux triple-fault under stress (in eight
/// minutes of eight, on a busy host); with KVM's shadow paging it does not.
fn linux(work: &Path, kernel: &Path) -> Result<Group, String> {
    // Tests of guests that print figures: what `just linux-initrd` builds.
    let (initrd, loops) = (initrd(work)?, work.join("loops.cpio"));
    told(Command::new(crate::here().join("../../linux-guest/initrd.sh")).arg(&loops))?;
    let words = ["--emulator", "multi", "--modparam", SHADOW_PAGING, "--memory", "1536"];
    let mut options = Vec::from(words.map(String::from));
    let vmlinuz = kernel.join("vmlinuz");
    for (file, name) in [(vmlinuz, "vmlinuz"), (initrd, "initrd"), (loops, "loops")] {
        let place = format!("/linux/{name}");
        options.extend(["--file".into(), format!("{}:{place}", file.display())]);
    }
    Ok(Group {
        name: "Linux guests",
        target: "command",
        package: "bench",
        threads: 2,
        batch: (6, 12),
        silence: Duration::from_secs(300),
        options,
        variables: vec![("HALTKICK_LINUX", "/linux".into())],
        takes: |test| test.starts_with("linux::") || test.starts_with("random_descheduling"),
    })
}

/// The initial RAM disk of the Linux guests.
fn initrd(work: &Path) -> Result<PathBuf, String> {
    let archive = work.join("initrd.cpio");
    let script = r#"mkdir -p "$0/bin" "$0/dev" "$0/proc" && cp "$(command -v busybox)" "$0/bin/busybox" && cp "$1" "$0/init" &&
        cd "$0" && find . | busybox cpio -o -H newc -R 0:0 >"$2" 2>/dev/null"#;
    let init = crate::here().join("linux-init");
    told(Command::new("sh").args(["-c", script]).arg(work.join("initrd")).arg(init).arg(&archive))?;
    Ok(archive)
}

/// Paths of the test programs, by target, and of the `haltkick` command, which some of them start.
pub(crate) struct Programs {
    pub(crate) tests: BTreeMap<String, PathBuf>,
    pub(crate) haltkick: PathBuf,
}

impl Programs {
    /// Builds the programs of these groups, in `root`. The suite has copies of its own in `work`, so that a build
    /// meanwhile does not change the programs that it runs.
    pub(crate) fn build(root: &Path, work: &Path, groups: &[Group]) -> Result<Self, String> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // The packages that `just test-host` names, so that nothing is built twice with other features.
        cargo.args(["test", "--no-run", "--workspace", "--exclude", "haltkick-guest"]);
        cargo.args(["--message-format", "json-render-diagnostics", "--quiet"]).current_dir(root);
        for group in groups {
            cargo.args(["--test", group.target]);
        }
        let mut tests = BTreeMap::new();
        let mut haltkick = None;
        for line in told(cargo.stdin(Stdio::null()))?.lines() {
            // One about each thing that it has built, and others.
            let message: Value = serde_json::from_str(line).unwrap_or_default();
            let (target, Some(executable)) = (&message["target"], message["executable"].as_str()) else {
                continue;
            };
            match (target["kind"][0].as_str(), target["name"].as_str()) {
                (Some("test"), Some(name)) => {
                    let copy = work.join(name);
                    let copied = std::fs::copy(executable, &copy);
                    copied.map_err(|error| format!("failed to copy {executable}: {error}"))?;
                    tests.insert(name.to_owned(), copy);
                }
                (Some("bin"), Some("haltkick")) => haltkick = Some(PathBuf::from(executable)),
                _ => {}
            }
        }
        Ok(Self { tests, haltkick: haltkick.ok_or("cargo has built no haltkick")? })
    }

    pub(crate) fn of(&self, group: &Group) -> Result<&Path, String> {
        let program = self.tests.get(group.target).map(PathBuf::as_path);
        program.ok_or_else(|| format!("cargo has built no test {}", group.target))
    }

    /// The names of a group's tests, in the order in which the program has them.
    pub(crate) fn tests(&self, group: &Group) -> Result<Vec<String>, String> {
        let mut program = Command::new(self.of(group)?);
        program.arg("--list").env("HALTKICK_NESTED", "1").env_remove("HALTKICK_TESTS");
        let list = told(program.stdin(Stdio::null()).stderr(Stdio::null()))?;
        let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(tests.filter(|test| (group.takes)(test)).map(String::from).collect())
    }
}

/// Returns the output of a command that has to succeed. Its complaints stay where the command has them.
fn told(command: &mut Command) -> Result<String, String> {
    let output = command.stdout(Stdio::piped()).spawn().and_then(std::process::Child::wait_with_output);
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => Err(format!("failed to run {command:?}: {}", output.status)),
        Err(error) => Err(format!("failed to run {command:?}: {error}")),
    }
}
