//! Runs that cannot be: one line, exit code 2, nothing done.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use crate::kernels::{pretended_kernel, pretended_qemu, with_qemu};
use crate::support::*;

/// Lines of the command, and what their refusals say. `{DIR}` has the files of [`fixtures`], `{SIM}` is a simulated run, and `{QEMU}` one
/// whose start would be noted: a refusal comes before any guest, even that of calibration. What the library
/// refuses is in vmm/tests/refusals.rs.
const REFUSED: &str = "\
run --vcpus 0 => haltkick: --vcpus: 0 is out of range: 1 to 1024
run --workload tasks --vcpus 2 --tasks 0 => haltkick: --tasks: 0 is out of range: 1 to 1024
run --lock tikcet => haltkick: --lock: unknown lock 'tikcet': did you mean 'ticket'?
run --workload critical => haltkick: --workload: unknown workload 'critical': did you mean 'critical-section'?
run --slice 10us => haltkick: --slice: 10us is out of range: 50us to 100ms
run --hold 2s => haltkick: --hold: 2s is out of range: 1s at most
run --vm slice=1ms => slice belongs to the run: give it as --slice
run --vm preempted-hint=on/bpf => belongs to the run
run --vm lokc=tas => did you mean 'lock'?
run --vm lock => KEY=VALUE
run --vm name=a --vm name=a => haltkick: two guests are called `a`: give each a name of its own
run --work 1s => haltkick: --work: workload 'critical-section' has no such thing: use workload mixed
run --workload selftest-unborn --work 1s => workload 'selftest-not-started' has no such thing
run --workload mixed --nested-one-in 2 => --nested-one-in: nested sections need a second lock: use locks 2 or more
run --workload selftest-lost-kick --lock qspinlock => \
    --pv: workload 'selftest-lost-kick' needs vCPUs that sleep, and none sleeps without it: use pv on
run --watchdog 0s => haltkick: --watchdog: 0s is out of range: 10ms to 86400s
run --work-rate 500000 => haltkick: `--work-rate` is gone: the host's rate is measured at each start
run --grace 2ms => haltkick: --grace: 2ms is out of range: a slice, 1ms, at most
run --grace 50us --sched host => haltkick: --grace: only the VMM's own scheduler can grant it: use --sched vmm
run --ple window=4096 => haltkick: --ple: only a model of a host takes them: use engine sim. KVM has one gap and one window for all \
    guests, parameters ple_gap and ple_window of kvm_intel; pause-exits off ends the exits of one run
run --workload hand-off --pv on --deschedule holder => haltkick: --deschedule: no vCPU holds or awaits a lock in workload 'hand-off': \
    deschedule random vCPUs, or use one of critical-section,
run --deschedule random,for=1m => haltkick: --deschedule: for=60s is out of range: 1us to 10s
run --lock mutex --layout flat => --layout: lock 'mutex' has no layout 'flat': it has packed, split, cached, prev-cpu
run --lock tas --layout packed => --layout: lock 'tas' has no layouts to choose from: leave it out, or take another lock
run --lock tsa --layout packed => haltkick: --lock: unknown lock 'tsa': did you mean 'tas'?
run --profile=1us => haltkick: --profile: a period of 1us is out of range: 100us to 100ms
run --hold '5 lightyears' => unknown unit 'lightyears'
run --cpus 1000 => CPU 1000 does not exist or is not allowed here: this process may use
run --cpus socket:1 => 'socket:1' names no CPUs
run --cpus node: => 'node:' needs a number, such as node:0
run --cpus 0- => '0-' is no CPU list
run --cpus 3-1 => '3-1' in '3-1' runs backwards: write 1-3
run --cpus 0-99999999 => 99999999
run --pv maybe => invalid value 'maybe'
run --lock tas --pv on => has no paravirtual form: use pv off, or one of ticket, qspinlock,
run --lock qspinlock-v16 --pv off => no native form: use pv on, or one of none, tas,
run --perf-map => only --engine threads
run --trace run.json => no JSON: write --trace run.pftrace
run --trace /nonexistent/run.pftrace => --trace: /nonexistent/run.pftrace:
run --folded x => --profile
run --engine sim --machine skylake-8s --profile=1ms => counts all time instead of samples
run {SIM} --repeat 3 --profile => cannot be used with
run --vcpus 4 --ratio 2 => cannot be used with
run --guest-set x --vm lock=tas => cannot be used with
run --guest-set x --guests 2 => cannot be used with
{QEMU} --trace /nonexistent/run.pftrace => haltkick: --trace:
{QEMU} --profile=1us => haltkick:
{QEMU} --perf-map => haltkick:
{QEMU} --vm name=a --vm name=a => haltkick: two guests are called
{QEMU} --vm name=a --vm name=b => haltkick:
run 2us => error: unexpected argument '2us' found
run --lock disasm --nothing => error: unexpected argument '--nothing' found
run --set nothing=1 => error: unexpected argument '--set' found
run --set=hold=2us => haltkick: `haltkick run` takes settings as flags: --hold 2us
run --vary ratio=1,2 => haltkick: `haltkick run` has no --vary: `haltkick sweep` has
bench overcommit --ratio 4 => haltkick: `haltkick bench` takes settings of runs as --set ratio=VALUE
flips mcs tas --machine M => haltkick: `flips` is gone: `haltkick sweep --vary lock=A,B
disasm qspinlock => haltkick: `disasm` is gone: `objdump
doctor --json => haltkick: `doctor --json` is gone: `haltkick doctor --format json`
bench overcommit --set hold => write KEY=VALUE
bench overcomit => unknown experiment 'overcomit': did you mean 'overcommit'?
bench overcommit --ratios 1,4096 => ratio: 4096 is out of range
bench overcommit --ratios 8,1,8 => --ratios: 8 stands there twice
bench overcommit --set lock=mcs => --set lock: arm 'virt-tas (no PV)' sets it itself
bench unfair --ratios 2,8 => sets it itself
bench /dev/zero => /dev/zero: it has more than 1048576 bytes, which are the most
bench overcommit --output {DIR}/one => output directory {DIR}/one:
bench overcommit --output /proc/haltkick => output directory /proc/haltkick:
bench overcommit --output {DIR}/endless => already holds an experiment
bench overcommit --output {DIR}/new --jobs 2 => --jobs: only simulated cells run at the same time
bench overcommit --jobs 0 => --jobs
bench --resume {DIR} --robust => cannot be used with
reproduce qspinlok => did you mean 'qspinlock'?
reproduce sim-pv => unknown experiment of a reference study 'sim-pv': there is qspinlock, unfair, osq, fault, grant
reproduce --engine sim qspinlock => 'qspinlock': there is sim-native, sim-pv, sim-fault, sim-osq, sim-queue, sim-grant
reproduce --robust => use `haltkick bench NAME --robust`
report {DIR}/endless => manifest.json: it is no regular file
report results --export latex=table.tex => `--export latex` is gone
check => <FILE>
run --lock file:/no/such/lock.o => /no/such/lock.o cannot be read

sweep --vary lock => 'lock' is no KEY=VALUE,...
sweep --vary lokc=tas => unknown setting 'lokc': did you mean 'lock'?
sweep --vary ratio=1,1 => 1 stands there twice
sweep --vary ratio=, => ratio has no values
sweep --vary ratio=1,2 lock=tas,mcs => error: unexpected argument 'lock=tas,mcs' found
sweep --vary ratio=1,2 --set window=1ms => haltkick: `haltkick sweep` takes settings as flags: --window 1ms
sweep --vary slice=1us => 1us is out of range
sweep --vary vm=lock=tas => several guests are varied in an experiment file
sweep --vary kernle=a => unknown setting 'kernle': did you mean 'kernel'?
sweep --vary deschedule=holder,rate=100 => a semicolon separates values
sweep --vary lock=mcs,file:{DIR}/one,file:{DIR}/a,b => {DIR}/a,b has a comma in its name
sweep --vary kernel={DIR}/one,{DIR}/a,b => {DIR}/a,b has a comma in its name
sweep --vary cmdline=a,b => cmdline: a semicolon separates values
sweep --vary 'cmdline=a;b' => this is for arms that have a 'kernel'
sweep --vary kernel=, => kernel has no values
sweep --vary kernel=a,b --marker '' => --marker: an empty text names nothing
sweep --vary ratio=1,2 --vary vcpus=4 => --vary vcpus: --vary ratio says the same
sweep --vary slice=1ms --vary slice=2ms => --vary slice: --vary slice says the same
sweep --vary ratio=1,2 --vcpus 4 => --vary ratio: --vcpus says the same
sweep --vary window=1s,2s --duration 1s => --vary window: --duration says the same
sweep --vary kernel=a,b --kernel c --compare --of figure:x => --vary kernel: --kernel says the same
sweep --vary kernel=a,b --compare => --compare: kernels are compared by figures
sweep --vary lock=tas,mcs --compare --of troughput => did you mean 'throughput'?
sweep --vary lock=tas --compare => --compare: there is only one thing to compare
sweep --vary lock=tas,ticket --compare=tikcet => --compare: unknown arm 'tikcet': did you mean 'ticket'?
sweep --vary lock=ticket,mcs --workload interrupted {SIM} => cell lock-free: workload `interrupted` needs a lock for interrupts
{LOAD} lock-share=30%: => write lock-share=PERCENT:ARM, such as lock-share=23%:ticket
{LOAD} 30%:ticket => write lock-share=PERCENT:ARM, such as lock-share=23%:ticket
{LOAD} lock-share=100%:ticket => '100%' is not below 100%
{LOAD} lock-share=23:ticket => write a percentage, such as 2%
{LOAD} lock-share=30%:ticket --engine threads => --load-to: think is solved by simulated runs
{LOAD} lock-share=30%:tikcet {NEHALEM} => --load-to: there is no arm 'tikcet'
{LOAD} lock-share=30%:ticket {NEHALEM} --vary slice=1ms,2ms => is run at several settings
{LOAD} lock-share=30%:ticket {NEHALEM} --ratio 1 --window 1ms --workload line-add => does not tell the time in locks
sweep --vary kernel={DIR}/one,{DIR}/two --dry-run => one: it is no Linux kernel
sweep --vary kernel={DIR}/vast,{DIR}/two --dry-run => vast: it has 1099511627776 bytes, and 3221225472 are the most
sweep --vary kernel={DIR}/one,{DIR}/two --initrd {DIR}/vast --dry-run => vast: it has 1099511627776 bytes, and 3221225472 are the most

run --sched host --quota 20ms/10ms => \
    -p CPUQuota=200% -p CPUQuotaPeriodSec=10ms haltkick ...`, with --quota inherited
run --sched vmm --quota inherited => only under sched host: use that
run --sched host --quota 1ms/2ms --engine qemu => --quota: QEMU's vCPUs have none: use engine kvm
run {NEHALEM} --sched host --quota inherited --host linux-6.12 => --quota: the model of a host has none: use sched vmm
run --engine sim --machine nehalem-2 => unknown machine 'nehalem-2': did you mean 'nehalem-2s'?
run --engine sim => --machine: engine sim simulates a machine: name one of `haltkick list machines`
run --engine threads --machine milan-1s => --machine: only engine sim simulates a machine: use engine sim
run --engine sim --machine {DIR}/none.toml => No such file
run --engine sim --machine {DIR}/bad.toml => {DIR}/bad.toml
run {NEHALEM} --each 5 => --each
run {NEHALEM} --sched host => --sched: a simulated machine needs a model of the host
run {NEHALEM} --host linux-7.3 => --host: the VMM schedules: use sched host
run {NEHALEM} --sched host --host linux-7.4 => did you mean 'linux-7.3'?
run {NEHALEM} --sched host --host cfs-2015 --deschedule holder => --deschedule: the model
run {NEHALEM} --ple gap=256 => --ple: only a model of a host has pause-loop exits: use sched host, and host
run {NEHALEM} --sched host --host linux-7.3 --ple gap=256 --pause-exits off => --ple: pause-exits is off
run {NEHALEM} --sched host --host linux-7.3 --ring 3 --ple gap=256 => --ple: Intel's pause loops exit in ring 0
run {NEHALEM} --sched host --host linux-7.3 --from 1ms => --from: only the VMM's own scheduler
run {NEHALEM} --from 1s => --from: 1s is beyond the window
run {NEHALEM} --from 1ms/1001ms => --from: 1.001s is beyond the window
run {NEHALEM} --from 0s/1ms --min-sections 9 => --from: the window cannot grow
run {NEHALEM} --from 2ms/1ms => --from: the guest goes at 1ms and comes at 2ms
run {NEHALEM} --cpus 0-16 => CPU 16
run {NEHALEM} --cpus cores => 'cores' is about this host: list CPUs of the simulated machine, which has
run {SIM} --ratio 1 --schedule /nonexistent => --schedule: /nonexistent: No such file
run {SIM} --ratio 1 --schedule {DIR}/nonsense => nonsense: line 1: a switch without ==>
run {SIM} --schedule {DIR}/schedule => use one guest with 2 vCPUs at most
run --schedule {DIR}/schedule => only engine sim
run {NEHALEM} --cpus 0-1 --ratio 1 --window 200ms --schedule {DIR}/schedule => use a shorter window

worst --lock mcs => --machine: name one of
worst qspinlock => haltkick: `haltkick worst` takes a lock as a flag: --lock qspinlock
worst --replay {DIR}/bad.toml => missing field
report results --export MARKDOWN => did you mean 'markdown'? There is markdown
report results --export markdown= => markdown= names no file
report results --export csv => `--export csv` is gone
worst --replay /nonexistent.toml => --replay: /nonexistent.toml
worst --machine nehalem-2s --lock mcs --engine kvm => --engine: only a simulated machine
worst --machine nehalem-2s --lock none => --lock: no vCPU holds
worst --machine nehalem-2s --lock mcs --sched host --host linux-6.12 --take pcpu => --take: a model of a host's scheduler
worst --machine nehalem-2s --lock mcs --for 1s => --for: a preemption lasts 100ms
worst --machine nehalem-2s --lock mcs --work 1s => --work:
worst --machine nehalem-2s --lock mcs --output {DIR} => is there already

run --kernel /no/such/kernel => /no/such/kernel: No such file
run --kernel / => /: it is no regular file but a directory
run --kernel /dev/zero => /dev/zero: it is no regular file
run --kernel {DIR}/riscv => riscv: it is a 64-bit ELF file for
run --kernel {DIR}/cut => cut: it is cut short: its
sweep --vary kernel={DIR}/vmlinux,{DIR}/cut --vcpus 1 --dry-run => cut: it is cut short: its
{BOOT} --initrd /no/such/initrd => /no/such/initrd: No such file
{BOOT} --initrd {DIR}/none => none: it is empty: give a cpio archive
{BOOT} --initrd {DIR}/huge => its 1024 MiB do not fit behind the kernel, which ends at 20 MiB of 256
{BOOT} --memory 16MiB => unpacked it takes 20 MiB, and the guest has 16
{BOOT} --memory 1MiB => no Linux kernel runs in less than 16 MiB: use --memory
{BOOT} --memory 4GiB => 3072 MiB of memory at most, not 4096
{BOOT} --vcpus 255 => 254 at most
{BOOT} --append {LONG} => --append: the command line has 3023 bytes
{BOOT} --lock ticket => --lock: this is for our own guest
{BOOT} --engine threads => --engine: this is for our own guest
{BOOT} --trace x.pftrace => cannot be used with '--
{BOOT} --guest-set x => cannot be used with '--
{BOOT} --guest x => cannot be used with '--
{BOOT} --no-ideal => cannot be used with '--
{BOOT} --profile => cannot be used with '--
{BOOT} --perf-map => cannot be used with '--
{BOOT} --repeat 2 => cannot be used with '--
{BOOT} --deschedule holder => it is not known what a vCPU of a Linux guest is doing
{BOOT} --engine qemu => add --workload-inside 'run --lock ticket'
{BOOT} --workload-inside 'bench overcommit' => it begins with 'run'
{BOOT} --workload-inside \"run --lock 'ticket\" => a quote has no end
{BOOT} --workload-inside 'run --trace x' => '--trace'
{BOOT} --workload-inside 'run --format json' => '--format'
{BOOT} --workload-inside 'run --hold never' => never
run --kernel {DIR}/one --workload-inside 'run --guests 2' => one guest
{BOOT} --workload-inside 'run --vm lock=ticket' => one guest
{BOOT} --workload-inside 'run --lock file:a.o' => a lock object is a file of this host
{BOOT} --workload-inside 'run --lock tickt' => did you mean 'ticket'
{BOOT} --workload-inside 'run --cpus 5' --vcpus 2 => --workload-inside: --cpus
{BOOT} --workload-inside 'run --lock ticket' --lock ticket => put it into workload-inside
{BOOT} --workload-inside 'run --lock ticket' --engine threads => --engine: this is for our own guest
{BOOT} --workload-inside 'run --lock ticket' --engine qemu --sched vmm => use --sched host
{BOOT} --workload-inside 'run --lock ticket' --initrd x => cannot be used with '--initrd
run --workload-inside 'run --lock ticket' => --kernel <FILE>
run --initrd x => --kernel <FILE>
run --append x => --kernel <FILE>
run --marker x => --kernel <FILE>
";

/// A kernel of 4 MiB, `vmlinux`, copies whose header says RISC-V and of which a byte is missing, and other files that cannot be used.
fn fixtures() -> String {
    let directory = scratch("refused");
    let mut kernel = fs::read(pretended_kernel(&directory, 4 << 20, &[])).expect("a file");
    written(format!("{directory}/cut"), &kernel[..kernel.len() - 1]);
    kernel[18] = 243;
    written(format!("{directory}/riscv"), kernel);
    for (name, bytes) in
        [("one", 9000), ("two", 9000), ("a,b", 9000), ("none", 0), ("huge", 1 << 30), ("vast", 1 << 40)]
    {
        let file = fs::File::create(format!("{directory}/{name}"));
        file.and_then(|file| file.set_len(bytes)).expect("a file");
    }
    fs::create_dir(format!("{directory}/endless")).expect("a directory");
    symlink("/dev/zero", format!("{directory}/endless/manifest.json")).expect("a link");
    written(format!("{directory}/bad.toml"), "format = 1\n");
    written(format!("{directory}/nonsense"), "1.5: sched_switch: vcpu0 nonsense\n");
    let switches = "CPU 0/KVM-9 [000] 1.5: sched_switch: CPU 0/KVM:9 [120] R ==> x:1 [120]\n\
                    x-1 [000] 1.6: sched_switch: x:1 [120] S ==> CPU 0/KVM:9 [120]\n";
    written(format!("{directory}/schedule"), switches);
    directory
}

#[apply(trial)]
fn what_cannot_be_is_refused_in_a_line_that_helps() {
    let (directory, long) = (fixtures(), "x".repeat(3000));
    let words = [
        ("{BOOT}", "run --kernel {DIR}/vmlinux"),
        ("{LOAD}", "sweep --vary lock=ticket,mcs --load-to"),
        ("{NEHALEM}", "--engine sim --machine nehalem-2s"),
        ("{QEMU}", "run --engine qemu-tcg --no-ideal"),
        ("{SIM}", SIMULATED),
        ("{LONG}", long.as_str()),
        ("{DIR}", directory.as_str()),
    ];
    let begun = format!("{directory}/begun");
    let qemu = pretended_qemu("refused-qemu", &format!("touch {begun}\nexit 1"));
    let files = || fs::read_dir(&directory).expect("a directory").map(|file| file.expect("a file"));
    let lengths =
        || files().map(|it| (it.path(), it.metadata().map_or(0, |it| it.len()))).collect::<BTreeSet<_>>();
    let before = lengths();
    for row in REFUSED.lines().filter(|row| !row.is_empty()) {
        let whole = words.into_iter().fold(row.to_owned(), |row, (word, text)| row.replace(word, text));
        let (line, part) = whole.split_once(" => ").expect("a row has two parts");
        let said = refusal(command(line).env("HALTKICK_QEMU", &qemu));
        assert!(said.contains(part), "{line}: '{part}' is not in: {said}");
    }
    assert_eq!(lengths(), before, "a file was made or written, or a guest began");
    end_of(&mut with_qemu(&qemu, "--watchdog 200ms"));
    assert!(fs::exists(begun).unwrap(), "one that is not refused does start");
    // Only workloads that take locks are named.
    let named = refusal(&mut command("run --workload hand-off --pv on --deschedule holder"));
    assert!(!named.contains("compute") && !named.contains("selftest"), "{named}");
    // The commit is not to blame for what cannot be booted, nor is it good.
    ends(125, &format!("bisect kernel={directory}/vmlinux,{directory}/cut --vcpus 1 --of figure:loop"));
}

#[apply(trial)]
fn a_variable_that_is_gone_is_refused_with_the_new_way() {
    let with = |name: &str, value: &str, line: &str| end_of(command(line).env(name, value));
    for (name, line, code) in
        [("HALTKICK_SPIN_THRESHOLD", "list locks", 2), ("HALTKICK_DEFAULTS", "bisect lock=a,b", 129)]
    {
        with(name, "2ms", line).with(&[code]).says(&[&format!("haltkick: {name} is gone")]);
    }
    with("HALTKICK_SLICE", "", "list locks").with(&[0]);
}

#[apply(trial)]
fn code_of_a_file_runs_in_this_process_only_if_trusted() {
    let image = haltkick_vmm::Image::embedded_elf();
    let image = written(format!("{}/image", scratch("trusted-guest")), image);
    let run = format!("run --engine threads --no-ideal --duration 20ms --guest {image}");
    for line in [&run, &format!("bench overcommit --quick --set engine=threads --guest {image}")] {
        let said = refusal(&mut command(line));
        assert!(said.contains("with all your rights") && said.contains("--trust-image"), "{said}");
    }
    finished(&format!("{run} --trust-image"));
}
