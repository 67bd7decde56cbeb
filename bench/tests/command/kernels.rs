//! Linux guests: those that cannot be booted, kernels that are compared, and workloads inside: of a real kernel in QEMU's emulator, and of
//! programs that say they are QEMU and lie. QEMU itself: absent, too old, silent, emulating.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::*;

/// An ELF file with one segment of `bytes` bytes at 16 MiB, which is where a kernel would be; nothing in it runs but `code`, then a halt.
pub(crate) fn pretended_kernel(directory: &str, bytes: u64, code: &[u8]) -> String {
    const LOADED_AT: u64 = 16 << 20;
    let header = |words: &[(usize, u64)]| {
        let mut header = vec![0_u8; 64 + 56];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        for (offset, word) in words {
            header[*offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        }
        header
    };
    // Type and machine; version; entry; program headers at 64; one of 56 bytes. Segment: loadable, from 0, to there, this long.
    let at = [(16, 1 << 32 | 62 << 16 | 2), (24, LOADED_AT + 120), (32, 64), (52, 1 << 32 | 56 << 16 | 64)];
    let length = 121 + code.len() as u64;
    let segment = [(64, 7 << 32 | 1), (72, 0), (80, LOADED_AT), (88, LOADED_AT), (96, length), (104, bytes)];
    let file = [&header(&[&at[..], &segment].concat())[..], code, &[0xf4]].concat();
    written(format!("{directory}/vmlinux"), file)
}

/// Which lines complain: `engines::linux::console`.
#[apply(kvm_trial)]
fn a_run_of_a_kernel_that_complains_is_invalid() {
    const RUN: &str = "[    0.500000] Run /init as init process\r\n";
    const STALL: &str = "[   22.000000] rcu: INFO: rcu_preempt self-detected stall on CPU\r\n";
    let warning = format!("[   23.000000] WARNING: \u{1b}[2J{}\r\n", "x".repeat(1000));
    let kernel = printing_kernel(&scratch("own-words"), &[RUN, STALL, STALL, &warning].concat());
    let ended = ends(7, &format!("run --kernel {kernel} --vcpus 1 --duration 60s --format json"));
    let record = ended.says(&["invalid run: the guest's kernel reported"]).json();
    let [stall, warning] = ["guest-stall", "guest-warning"].map(|code| {
        let mut warnings = record["warnings"].as_array().expect("warnings").iter();
        warnings.find(|it| it["code"] == code).and_then(|it| it["message"].as_str()).expect(code)
    });
    assert!(record["end"] == "power-off" && stall.contains("an RCU stall (2 in all): "), "{record}");
    assert!(warning.len() < 300 && !warning.contains('\u{1b}'), "{warning}");
}

#[apply(kvm_trial)]
fn a_kernel_that_prints_forever_ends_by_its_limit_or_a_signal() {
    // mov dx, 0x3f8; mov al, newline; out dx, al; jmp to the out. Its output is not read.
    let code = [0x66, 0xba, 0xf8, 0x03, 0xb0, b'\n', 0xee, 0xeb, 0xfd];
    let kernel = pretended_kernel(&scratch("talks"), 4 << 20, &code);
    for (limit, signal, expected) in [("3s", None, 6), ("1000s", Some(Signal::INT), 130)] {
        let line = format!("run --kernel {kernel} --vcpus 1 --duration {limit}");
        let mut run = started(&mut command(&line));
        std::thread::sleep(std::time::Duration::from_secs(3));
        signal.into_iter().for_each(|signal| run.signal(signal));
        let ended = eventually("its end", || run.child().try_wait().expect("the child is ours"));
        assert_eq!(ended.code(), Some(expected));
    }
}

/// A kernel that prints `line` and powers off.
fn printing_kernel(directory: &str, line: &str) -> String {
    std::fs::create_dir_all(directory).expect("a scratch directory");
    let code = [
        0x48, 0x8d, 0x35, 21, 0, 0, 0,    // lea rsi, the text behind this code
        0xac, // lodsb
        0x84, 0xc0, // test al, al
        0x74, 7, // jz to the mov dx, 0x600
        0x66, 0xba, 0xf8, 0x03, // mov dx, 0x3f8
        0xee, // out dx, al
        0xeb, 0xf4, // jmp to the lodsb
        0x66, 0xba, 0x00, 0x06, // mov dx, 0x600: the sleep control register
        0xb0, 0x34, // mov al, "soft off"
        0xee, // out dx, al
        0xeb, 0xfe, // jmp to itself
    ];
    pretended_kernel(directory, 4 << 20, &[&code[..], line.as_bytes(), b"\n\0"].concat())
}

/// Two kernels, of which the new one does twice as many turns.
fn old_and_new(directory: &str) -> [String; 2] {
    [("old", 100), ("new", 200)].map(|(name, turns)| {
        printing_kernel(&format!("{directory}/{name}"), &format!("haltkick: loop={turns} turns/s"))
    })
}

/// An experiment with two arms of which each boots a kernel of its own.
const TWO_KERNELS: &str = "format = 1\nname = \"kernels\"\ntitle = \"Two kernels\"\nblocks = 2\n\
    [settings]\nvcpus = 1\nwindow = \"60s\"\ncmdline = \"quiet\"\n\
    [[arm]]\nname = \"old\"\nkernel = \"old/vmlinux\"\n\
    [[arm]]\nname = \"new\"\nkernel = \"new/vmlinux\"\nnopvspin = true\n\
    [[compare]]\nname = \"new/old\"\narm = \"new\"\nbaseline = \"old\"\nof = \"figure:loop\"\n\
    [control]\narm = \"old\"\n";

#[apply(kvm_trial)]
fn kernels_vary_in_sweeps_and_directories_of_them_are_compared() {
    let directory = scratch("varying-kernels");
    let [old, new] = old_and_new(&directory);
    let sweep = format!("sweep --vary kernel={old},{new} --vcpus 1 --compare --of figure:loop --blocks 2");
    finished(&format!("{sweep} --output {directory}/before")).prints(&["2.00x"]);
    // The next is measured with other kernels in their place.
    printing_kernel(&format!("{directory}/old"), "haltkick: loop=50 turns/s");
    printing_kernel(&format!("{directory}/new"), "haltkick: loop=100 turns/s");
    finished(&format!("{sweep} --output {directory}/after")).prints(&["2.00x"]);
    // Two blocks are too few for a verdict.
    let compared = ends(7, &format!("compare {directory}/before {directory}/after"))
        .prints(&["loop"])
        .says(&["the second has another kernel"]);
    assert_eq!(compared.out.matches("0.500x").count(), 2, "{compared}");
    let merge = format!("merge {directory}/before {directory}/after --output {directory}/none --anyway");
    refuses(&merge, "measured with other kernels than");
}

#[apply(trial)]
fn sweeps_of_kernels_are_planned_and_saved_like_those_of_locks() {
    let directory = scratch("sweep-kernels");
    for name in ["old", "new"] {
        printing_kernel(&format!("{directory}/{name}"), "nothing");
    }
    let here = |line: &str| end_of(command(line).current_dir(&directory)).with(&[0]);
    let sweep = "sweep --vary kernel=old/vmlinux,new/vmlinux --vary vcpus=1,2 --dry-run";
    std::fs::create_dir(format!("{directory}/elsewhere")).expect("a directory");
    let compare = "--initrd old/vmlinux --append 'quiet a=1,2' --compare --of figure:loop";
    let planned = here(&format!("{sweep} {compare} --save elsewhere/mine.toml"))
        .prints(&["kernel-old-vmlinux_vcpus-2", "5 cells"]);
    assert_eq!(here("bench elsewhere/mine.toml --dry-run").out, planned.out);
}

#[apply(kvm_trial)]
fn two_kernels_are_compared_by_output_and_cannot_be_replaced() {
    let directory = scratch("two-kernels");
    let [old, new] = old_and_new(&directory);
    let file = written(format!("{directory}/kernels.toml"), TWO_KERNELS);
    let [results, merged] = ["results", "merged"].map(|name| format!("{directory}/{name}"));
    // Not valid where ring 0 is interpreted.
    finished(&format!("bench {file} --output {results}")).prints(&["200 turns/s", "2.00x"]);
    assert_eq!(records(&results).len(), 2 * 3, "two arms and the other half of the A/A pair");
    for record in records(&results) {
        let (turns, file, words) = match record["place"]["arm"].as_str() {
            Some("old") => (100.0, "old/vmlinux", "console=ttyS0 panic=-1 quiet"),
            _ => (200.0, "new/vmlinux", "console=ttyS0 panic=-1 quiet nopvspin"),
        };
        let found = (record["end"].as_str(), record["figures"]["loop"].as_f64());
        assert_eq!(found, (Some("power-off"), Some(turns)));
        let kernel = record["settings"]["kernel"].as_str().expect("a kernel");
        assert!(kernel.ends_with(file) && record["settings"]["command_line"] == words, "{record}");
    }
    finished(&format!("report {results}"));
    finished(&format!("merge {results} --output {merged}"));
    let swept = format!("{directory}/swept");
    finished(&format!("sweep --vary kernel={old},{new} --vcpus 1 --blocks 1 --output {swept}"));
    refuses(&format!("compare {swept} {results}"), "directories of the same experiment");

    // Killed and begun again, with another kernel in the file's place.
    cut(&results, 1);
    let resume = format!("bench --resume {results}");
    finished(&resume);
    assert_eq!(records(&results).len(), 6, "it goes on where it was");
    printing_kernel(&format!("{directory}/new"), "haltkick: loop=999 turns/s");
    refuses(&resume, "was begun with other kernels: arm 'new'");
    std::fs::remove_file(format!("{directory}/old/vmlinux")).expect("a file");
    ends(3, &format!("bench {file} --output {merged}"))
        .says(&["kernels.toml:11:1: ", "old/vmlinux: No such file"]);
}

/// The kernel that `bench/tests/nested/nested.sh setup` unpacks, or one of this host.
fn a_kernel() -> Result<PathBuf, Failed> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nested/kernel/vmlinuz");
    let installed = std::fs::read_dir("/boot").into_iter().flatten().flatten().map(|entry| entry.path());
    let installed = installed.filter(|path| path.to_string_lossy().starts_with("/boot/vmlinuz-"));
    let readable = |path: &PathBuf| std::fs::File::open(path).is_ok();
    match std::iter::once(unpacked).chain(installed).find(readable) {
        Some(path) => Ok(path),
        None => skip("no kernel to boot: bench/tests/nested/nested.sh setup gets one"),
    }
}

#[apply(trial)]
fn a_lock_runs_on_threads_of_a_real_kernel() -> Check {
    haltkick_vmm::find_qemu().or_else(skip)?;
    let line = format!(
        "run --kernel {} --engine qemu-tcg --vcpus 2 --duration 2m --format json \
         --append 'quiet tsc=reliable no_timer_check mitigations=off' \
         --workload-inside 'run --lock ticket --ratio 2 --duration 300ms --seed 7'",
        a_kernel()?.display()
    );
    // Ten seconds suffice. While compilers run, one kernel in thirty hangs in QEMU 7.2's emulator, before user space or with
    // an RCU stall, for want of a vCPU's timer. That is no fault of this program, and it does not come three times in a row.
    let hung = |ended: &Ended| ended.err.contains("had not powered off");
    let ended = (0..2).map(|_| haltkick(&line)).find(|ended| !hung(ended));
    // An emulator's figures are not valid.
    let ended = ended.unwrap_or_else(|| haltkick(&line)).with(&[7]);
    assert!(!ended.err.contains("haltkick-inside"), "its lines are not for people: {ended}");
    let record = ended.json();
    let inside = &record["inside"];
    assert_valid("run", &record);
    assert_valid("run", inside);
    assert_eq!((&record["settings"]["engine"], &record["end"]), (&"qemu-tcg".into(), &"power-off".into()));
    let settings = ["engine", "sched", "lock", "vcpus", "seed"].map(|name| &inside["settings"][name]);
    assert_eq!(settings, [&json!("threads"), &json!("host"), &json!("ticket"), &json!(4), &json!(7)]);
    let rate = |record: &Value| record["figures"]["acquisitions_per_second"].as_f64();
    assert!(rate(inside) > Some(0.0) && rate(inside) == rate(&record), "{record:#}");
    assert!(record["figures"]["user_space_ns"].as_u64() > Some(0), "{}", record["figures"]);
    // It was that kernel, and not the one of this host.
    let here = read("/proc/sys/kernel/osrelease");
    assert!(inside["host"]["kernel"].is_string() && inside["host"]["kernel"] != here.trim(), "{inside}");
}

/// A run whose QEMU does what `script` says.
fn pretended(name: &str, script: &str) -> Ended {
    let kernel = pretended_kernel(&scratch(&format!("{name}-kernel")), 4 << 20, &[]);
    let run = format!("run --kernel {kernel} --engine qemu --vcpus 1 --duration 10s --format json");
    let mut run = command(&format!("{run} --workload-inside 'run --lock ticket'"));
    end_of(run.env("HALTKICK_QEMU", pretended_qemu(name, script)))
}

#[apply(trial)]
fn a_console_that_lies_ends_the_run_without_a_record() {
    let flood = "yes 'haltkick-inside| xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' | head -c 40000000";
    // Other reasons are those of `measure::console`.
    let reason = "the workload inside failed: the record has more than 8 MiB";
    let ended = pretended("inside-huge", flood).with(&[5]).says(&[reason]);
    assert!(ended.err.len() < 10_000, "{} bytes", ended.err.len());
    assert_eq!(ended.err.matches("the workload inside failed").count(), 1, "{ended}");
    let record = ended.json();
    assert!(record["trusted"] == false && record["failure"].as_str().unwrap().contains("8 MiB"), "{record}");
    assert!(record["inside"].is_null() && record["why"]["inside"].as_str().unwrap().contains("8 MiB"));
    let panics = "echo 'Kernel panic - not syncing: so it goes'; exec sleep 1000";
    // This QEMU says more than a pipe holds.
    let dies = "printf 'its reason \\033[2J\\n' >&2; head -c 300000 /dev/zero | tr '\\0' x >&2; exit 3";
    for (name, script, code, reason) in [
        ("inside-dead", dies, 4, "its reason"),
        ("inside-panic", panics, 5, "kernel panicked"),
        ("inside-stuck", "exec sleep 1000", 6, "had not powered off"),
    ] {
        let ended = pretended(name, script).with(&[code]).says(&[reason]);
        assert!(!ended.err.contains('\u{1b}'), "{:?}", ended.err);
    }
}

#[apply(trial)]
fn a_qemu_that_leaves_a_child_ends_the_run_and_the_child() {
    let noted = format!("{}/child", scratch("inside-child"));
    // It keeps the console open.
    let left = pretended("inside-left", &format!("sleep 1000 & echo $! > {noted}"));
    left.with(&[5]).says(&["it did not say how it ended"]);
    wait_for_end(read(noted).trim());
}

/// A program that says it is a QEMU which is new enough, and then does what `script` says.
pub(crate) fn pretended_qemu(name: &str, script: &str) -> String {
    let says = "[ \"$1\" = --version ] && echo 'QEMU emulator version 7.2.0' && exit";
    program(name, &format!("{says}\n{script}"))
}

fn program(name: &str, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let program = written(format!("{}/qemu", scratch(name)), format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a program");
    program
}

/// `haltkick run --engine qemu` with that program.
pub(crate) fn with_qemu(program: &str, line: &str) -> Command {
    let mut command = Command::new(HALTKICK);
    command.args(words(&format!("run --engine qemu-tcg --no-ideal {line}"))).env("HALTKICK_QEMU", program);
    command
}

/// Waits for the end of a process. A killed one without a parent may still be on its way out.
pub(crate) fn wait_for_end(pid: &str) {
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    };
    eventually("a process ends", || state().is_none_or(|state| state == 'Z').then_some(()));
}

#[apply(trial)]
fn missing_or_too_old_qemu_ends_with_a_line_of_advice() {
    let old = program("old-qemu", "echo 'QEMU emulator version 4.2.1'");
    for (program, reason) in [("/no/such/qemu", "cannot be run"), (&old, "5.0 is needed")] {
        let ended = end_of(&mut with_qemu(program, ""));
        let ended = ended.with(&[4]).says(&[reason, "apt install qemu-system-x86"]);
        assert!(ended.err.lines().count() == 1 && ended.out.is_empty(), "{ended}");
    }
}

#[apply(trial)]
fn a_silent_qemu_ends_with_its_time_limit_and_the_run() {
    let pid = format!("{}/pid", scratch("silent-qemu-pid"));
    let script = format!("echo $$ > {pid}.new && mv {pid}.new {pid}\nexec sleep 1000");
    let silent = pretended_qemu("silent-qemu", &script);
    let begun =
        || eventually("QEMU is started", || Some(std::fs::read_to_string(&pid).ok()?.trim().to_owned()));
    end_of(&mut with_qemu(&silent, "--watchdog 200ms --duration 20ms"))
        .with(&[6])
        .says(&["no progress: QEMU's guest has not ended"]);
    wait_for_end(&begun());
    for (signal, expected) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        std::fs::remove_file(&pid).unwrap();
        let mut run = started(&mut with_qemu(&silent, ""));
        let qemu = begun();
        run.signal(signal);
        assert_eq!(run.child().wait().unwrap().code(), expected);
        wait_for_end(&qemu);
    }
}

#[apply(trial)]
fn an_emulated_record_keeps_the_schema_and_says_it_is_incomparable() -> Check {
    let program = haltkick_vmm::find_qemu().or_else(skip)?;
    let run = "--vcpus 4 --lock qspinlock --pv on --duration 50ms";
    let record = end_of(&mut with_qemu(&program, &format!("{run} --format json"))).with(&[7]).json();
    assert_valid("run", &record);
    assert_eq!(record["settings"]["engine"], "qemu-tcg");
    assert!(record["trusted"] == false && is_warned(&record, "emulated"), "{}", record["warnings"]);
    end_of(&mut with_qemu(&program, run)).prints(&["emulated, not comparable"]);
}
