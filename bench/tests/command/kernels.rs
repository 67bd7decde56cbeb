//! Linux guests that cannot be booted.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Check, apply, code, command, haltkick, kvm, refusal, scratch, stderr, stdout, trial};

/// An ELF file with one segment of `bytes` bytes at 16 MiB, which is where a kernel would be; nothing in it runs but `code`, then a halt.
pub(crate) fn pretended_kernel(directory: &Path, bytes: u64, code: &[u8]) -> String {
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
    let segment = [
        (64, 7 << 32 | 1),
        (72, 0),
        (80, LOADED_AT),
        (88, LOADED_AT),
        (96, 121 + code.len() as u64),
        (104, bytes),
    ];
    let path = directory.join("vmlinux");
    let file = [&header(&[&at[..], &segment].concat())[..], code, &[0xf4]].concat();
    std::fs::write(&path, file).expect("a file");
    path.display().to_string()
}

#[apply(trial)]
fn what_cannot_be_booted_as_linux_is_refused_in_one_line() {
    let directory = scratch("linux");
    let file = |name: &str, bytes: u64| {
        let path = directory.join(name);
        std::fs::File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
        path.display().to_string()
    };
    let no_kernels = format!("kernel={},{}", file("one", 9000), file("two", 9000));
    let refused = refusal(&["sweep", "--vary", &no_kernels, "--dry-run"]);
    assert!(refused.contains("one: it is no Linux kernel"), "{refused}");
    let (text, huge) = (file("zeroes", 100_000), file("huge", 1 << 30));
    let kernel = pretended_kernel(&directory, 4 << 20, &[]);
    for (arguments, expected) in [
        (&["--kernel", "/no/such/kernel"][..], "/no/such/kernel: No such file"),
        (&["--kernel", "/"], "/: it is no regular file but a directory"),
        (&["--kernel", "/dev/zero"], "/dev/zero: it is no regular file"),
        (&["--kernel", &text], "it is no Linux kernel: neither an ELF file (vmlinux) nor a bzImage"),
        (&["--kernel", &kernel, "--initrd", "/no/such/initrd"], "/no/such/initrd: No such file"),
        (&["--kernel", &kernel, "--initrd", "/dev/zero"], "/dev/zero: it is no regular file"),
        (&["--kernel", &kernel, "--initrd", "/"], "initrd /: it is no regular file but a directory"),
        (&["--kernel", &kernel, "--initrd", &file("none", 0)], "none: it is empty: give a cpio archive"),
        (
            &["--kernel", &kernel, "--initrd", &huge],
            "its 1024 MiB do not fit behind the kernel, which ends at 20 MiB of 256",
        ),
        (&["--kernel", &kernel, "--memory", "16MiB"], "unpacked it takes 20 MiB, and the guest has 16"),
        (&["--kernel", &kernel, "--memory", "18MiB"], "unpacked it takes 20 MiB, and the guest has 18"),
        (
            &["--kernel", &kernel, "--memory", "1MiB"],
            "no Linux kernel runs in less than 16 MiB: use --memory",
        ),
        (&["--kernel", &kernel, "--memory", "4GiB"], "3072 MiB of memory at most, not 4096"),
        (&["--kernel", &kernel, "--vcpus", "255"], "254 at most"),
        (&["--kernel", &kernel, "--append", &"x".repeat(3000)], "--append: the command line has 3023 bytes"),
        (&["--kernel", &kernel, "--lock", "ticket"], "--lock is for our own guest"),
        (&["--kernel", &kernel, "--engine", "threads"], "--engine is for our own guest"),
        (&["--kernel", &kernel, "--trace", "x.pftrace"], "--trace is for our own guest"),
        (
            &["--kernel", &kernel, "--deschedule", "holder"],
            "it is not known what a vCPU of a Linux guest is doing",
        ),
    ] {
        let mut all = vec!["run"];
        all.extend(arguments);
        let message = refusal(&all);
        assert!(message.contains(expected) && message.lines().count() == 1, "{arguments:?}: {message}");
    }
    for alone in ["--initrd", "--append", "--marker"] {
        let message = refusal(&["run", alone, "x"]);
        assert!(message.contains("--kernel <FILE>"), "{message}");
    }
}

/// Copies of a kernel whose header says something else: RISC-V, MIPS in its own order of bytes, an object file, a core dump, and one
/// of which a byte is missing.
#[apply(trial)]
fn a_file_that_is_no_kernel_is_refused_by_name_in_plans() {
    let directory = scratch("no-kernels");
    let kernel = pretended_kernel(&directory, 4 << 20, &[]);
    let whole = std::fs::read(&kernel).expect("a file");
    let copy = |name: &str, length: usize, edits: &[(usize, u8)]| {
        let mut bytes = whole[..length].to_vec();
        edits.iter().for_each(|(at, byte)| bytes[*at] = *byte);
        let path = directory.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path.display().to_string()
    };
    let all = whole.len();
    for (file, expected) in [
        (
            copy("riscv", all, &[(18, 243)]),
            "riscv: it is a 64-bit ELF file for machine RISC-V: give a bzImage",
        ),
        (copy("mips", all, &[(5, 2), (16, 0), (17, 2), (18, 0), (19, 8)]), "MIPS, big-endian"),
        (copy("object", all, &[(16, 1)]), "object: it is a relocatable object file"),
        (copy("core", all, &[(16, 4)]), "core: it is a core dump"),
        (copy("cut", all - 1, &[]), "cut: it is cut short: its segment at 0x1000000 takes"),
        (copy("none", 0, &[]), "none: it is empty"),
    ] {
        let vary = format!("kernel={kernel},{file}");
        let text = TWO_KERNELS.replace("old/vmlinux", &kernel).replace("new/vmlinux", &file);
        let experiment = directory.join("kernels.toml").display().to_string();
        std::fs::write(&experiment, text).expect("a file");
        for arguments in [
            &["run", "--kernel", &file][..],
            &["sweep", "--vary", &vary, "--vcpus", "1", "--dry-run"],
            &["bench", &experiment, "--dry-run"],
        ] {
            let message = refusal(arguments);
            let is_right = message.contains(expected) && !message.contains("--memory");
            assert!(is_right && message.lines().count() == 1, "{arguments:?}: {message}");
        }
        // The commit is not to blame for what cannot be booted, nor is it good.
        let bisected = haltkick(&["bisect", &vary, "--vcpus", "1", "--of", "figure:loop"]);
        assert_eq!(code(&bisected), 125, "{}", stderr(&bisected));
    }
}

#[apply(trial)]
fn a_kernels_complaints_count_and_what_programs_quote_does_not() -> Check {
    kvm()?;
    let directory = scratch("own-words");
    const RUN: &str = "[    0.500000] Run /init as init process\r\n";
    const STALL: &str = "[   22.000000] rcu: INFO: rcu_preempt self-detected stall on CPU\r\n";
    for (console, told) in [
        (format!("{RUN}{STALL}[   50.0 {STALL}{STALL}"), Some(("guest-stall", "(2 in all)"))),
        (format!("{RUN}the log has {STALL}"), None),
        ("Run /init\nBUG: Bad page state in process work".into(), Some(("guest-bug", "(1 in all)"))),
    ] {
        let kernel = printing_kernel(&directory, &console);
        let arguments = ["run", "--kernel", &kernel, "--vcpus", "1", "--duration", "60s", "--format", "json"];
        let output = haltkick(&arguments);
        let record: Value = serde_json::from_str(&stdout(&output)).expect("a record");
        let mut warnings = record["warnings"].as_array().expect("warnings").iter();
        let found = warnings.find(|it| it["code"].as_str().is_some_and(|code| code.starts_with("guest-")));
        assert_eq!((&record["end"], found.is_some()), (&"power-off".into(), told.is_some()), "{record}");
        if let (Some(found), Some((warning, words))) = (found, told) {
            assert_eq!((found["code"].as_str(), code(&output)), (Some(warning), 7), "{record}");
            assert!(found["message"].as_str().is_some_and(|message| message.contains(words)), "{record}");
            let message = stderr(&output);
            assert!(message.contains("invalid run: the guest's kernel reported"), "{message}");
        }
    }
    Ok(())
}

#[apply(trial)]
fn a_console_that_nobody_reads_keeps_neither_the_guest_nor_its_end() -> Check {
    kvm()?;
    // Lines of 60 letters to the serial port, forever.
    let code = [
        0x66, 0xba, 0xf8, 0x03, // mov dx, 0x3f8
        0xb9, 60, 0, 0, 0, // mov ecx, 60
        0xb0, b'x', // mov al, 'x'
        0xee, // out dx, al
        0xff, 0xc9, // dec ecx
        0x75, 0xfb, // jnz to the out
        0xb0, b'\n', // mov al, newline
        0xee,  // out dx, al
        0xeb, 0xef, // jmp to the mov ecx
    ];
    let kernel = pretended_kernel(&scratch("talks"), 4 << 20, &code);
    for signal in [false, true] {
        let limit = if signal { "1000s" } else { "3s" };
        let mut child = command(&["run", "--kernel", &kernel, "--vcpus", "1", "--duration", limit])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("haltkick can be started");
        std::thread::sleep(Duration::from_secs(3));
        if signal {
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("the child is ours");
        }
        let began = Instant::now();
        let ended = loop {
            match child.try_wait().expect("the child is ours") {
                Some(status) => break Some(status),
                None if began.elapsed() > Duration::from_secs(60) => break None,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        if ended.is_none() {
            child.kill().expect("the child is ours");
        }
        let expected = if signal { 130 } else { 6 };
        assert_eq!(ended.and_then(|status| status.code()), Some(expected), "blocked by its own stderr");
    }
    Ok(())
}

/// A kernel that prints `line` and powers off.
fn printing_kernel(directory: &Path, line: &str) -> String {
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

/// An experiment with two arms of which each boots a kernel of its own.
const TWO_KERNELS: &str = "format = 1\nname = \"kernels\"\ntitle = \"Two kernels\"\nblocks = 2\n\
    [settings]\nvcpus = 1\nwindow = \"60s\"\ncmdline = \"quiet\"\n\
    [[arm]]\nname = \"old\"\nkernel = \"old/vmlinux\"\n\
    [[arm]]\nname = \"new\"\nkernel = \"new/vmlinux\"\nnopvspin = true\n\
    [[compare]]\nname = \"new/old\"\narm = \"new\"\nbaseline = \"old\"\nof = \"figure:loop\"\n\
    [control]\narm = \"old\"\n";

/// One kernel after the other, each with and without another word.
const GRID: &str = "format = 1\nname = \"grid\"\ntitle = \"A grid\"\nblocks = 1\n\
    [settings]\nvcpus = 1\nwindow = \"60s\"\n\
    [grid]\nkernel = [\"old/vmlinux\", \"new/vmlinux\"]\n[[arm]]\nname = \"plain\"\n[[arm]]\nname = \"word\"\ncmdline = \"x=1\"\n\
    [[compare]]\nname = \"word/plain\"\narm = \"word\"\nbaseline = \"plain\"\nof = \"figure:loop\"\n";

#[apply(trial)]
fn kernels_vary_in_grids_and_sweeps_and_directories_of_them_are_compared() -> Check {
    kvm()?;
    let directory = scratch("varying-kernels");
    let [old, new] = [("old", 100), ("new", 200)].map(|(name, turns)| {
        printing_kernel(&directory.join(name), &format!("haltkick: loop={turns} turns/s"))
    });
    let path = |name: &str| directory.join(name).display().to_string();
    std::fs::write(path("grid.toml"), GRID).expect("a file");
    let output = haltkick(&["bench", &path("grid.toml"), "--output", &path("grid")]);
    assert!(matches!(code(&output), 0 | 7), "{}", stderr(&output));
    let shown = stdout(&output);
    assert!(shown.contains("old/vmlinux") && shown.contains("200 turns/s"), "{shown}");
    let manifest = std::fs::read_to_string(path("grid/manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    let kernels = manifest["kernels"].as_array().expect("kernels");
    assert_eq!(kernels.len(), 4, "two arms at two points of the grid");
    assert_eq!(kernels[1]["setting"]["kernel"], "new/vmlinux");
    assert_ne!(kernels[0]["kernel_sha256"], kernels[1]["kernel_sha256"]);

    let vary = format!("kernel={old},{new}");
    let sweep =
        ["sweep", "--vary", &vary, "--vcpus", "1", "--compare", "--of", "figure:loop", "--blocks", "2"];
    let into = |name: &str| haltkick(&[&sweep[..], &["--output", &path(name)]].concat());
    for name in ["before", "after"] {
        let output = into(name);
        assert!(matches!(code(&output), 0 | 7), "{}", stderr(&output));
        assert!(stdout(&output).contains("2.00x"), "{}", stdout(&output));
        // The next is measured with another kernel in the first one's place.
        printing_kernel(&directory.join("old"), "haltkick: loop=50 turns/s");
        if name == "before" {
            printing_kernel(&directory.join("new"), "haltkick: loop=100 turns/s");
        }
    }
    let output = haltkick(&["compare", &path("before"), &path("after")]);
    let shown = stdout(&output);
    assert_eq!(code(&output), 7, "two blocks are too few for a verdict: {shown}");
    assert!(shown.contains("loop") && shown.matches("0.500x").count() == 2, "{shown}");
    assert!(stderr(&output).contains("the second has another kernel"), "{}", stderr(&output));
    assert!(
        refusal(&["compare", &path("before"), &path("grid")]).contains("directories of the same experiment")
    );
    Ok(())
}

#[apply(trial)]
fn sweeps_of_kernels_are_planned_and_saved_like_those_of_locks() {
    let directory = scratch("sweep-kernels");
    for name in ["old", "new"] {
        printing_kernel(&directory.join(name), "nothing");
    }
    let here = |arguments: &[&str]| {
        let output = command(arguments).current_dir(&directory).output().expect("haltkick can be started");
        (code(&output), stdout(&output), stderr(&output))
    };
    let sweep = ["sweep", "--vary", "kernel=old/vmlinux,new/vmlinux", "--vary", "vcpus=1,2", "--dry-run"];
    std::fs::create_dir(directory.join("elsewhere")).expect("a directory");
    let compare = ["--append", "quiet a=1,2", "--compare", "--of", "figure:loop"];
    let save = ["--save", "elsewhere/mine.toml"];
    let (exit, planned, told) = here(&[&sweep[..], &compare, &save].concat());
    assert_eq!(exit, 0, "{told}");
    assert!(planned.contains("kernel-old-vmlinux_vcpus-2") && planned.contains("5 cells"), "{planned}");
    let (exit, again, told) = here(&["bench", "elsewhere/mine.toml", "--dry-run"]);
    assert_eq!((exit, again), (0, planned), "{told}");
    for (arguments, expected) in [
        (&["--compare"][..], "--compare: kernels are compared by figures that they print: --of figure:NAME"),
        (&["--hold", "1us"], "hold: this is for our own guest"),
        (&["--initrd", "none"], "none: No such file"),
        (&["--vary", "cmdline=a,b"], "cmdline: a semicolon separates values"),
        (&["--compare", "--of", "figure:A"], "a name that is not"),
        (&["--of", "figure:a"], "--compare"),
    ] {
        let (exit, _, told) = here(&[&sweep[..], arguments].concat());
        assert!(exit == 2 && told.contains(expected), "{arguments:?}: {exit}: {told}");
    }
}

#[apply(trial)]
fn two_kernels_are_compared_by_output_and_cannot_be_replaced() -> Check {
    kvm()?;
    let directory = scratch("two-kernels");
    for (name, turns) in [("old", 100), ("new", 200)] {
        printing_kernel(&directory.join(name), &format!("haltkick: loop={turns} turns/s"));
    }
    let (file, results) = (directory.join("kernels.toml"), directory.join("results"));
    std::fs::write(&file, TWO_KERNELS).expect("a file");
    let [file, results] = [&file, &results].map(|path| path.display().to_string());
    let output = haltkick(&["bench", &file, "--output", &results]);
    // 7: where ring 0 is interpreted, no figure of a kernel is valid.
    assert!(matches!(code(&output), 0 | 7), "{}", stderr(&output));
    let shown = stdout(&output);
    assert!(shown.contains("200 turns/s") && shown.contains("2.00x"), "{shown}");
    let records = std::fs::read_to_string(format!("{results}/runs.jsonl")).expect("records");
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(records.len(), 2 * 3, "two arms and the other half of the A/A pair");
    for record in &records {
        let (turns, file, words) = match record["place"]["arm"].as_str() {
            Some("old") => (100.0, "old/vmlinux", "console=ttyS0 panic=-1 quiet"),
            _ => (200.0, "new/vmlinux", "console=ttyS0 panic=-1 quiet nopvspin"),
        };
        assert_eq!(
            (record["end"].as_str(), record["figures"]["loop"].as_f64()),
            (Some("power-off"), Some(turns))
        );
        assert!(
            record["settings"]["kernel"].as_str().is_some_and(|kernel| kernel.ends_with(file)),
            "{record}"
        );
        assert_eq!(record["settings"]["command_line"], words);
    }
    assert!(haltkick(&["report", &results]).status.code().is_some_and(|code| matches!(code, 0 | 7)));
    let merged = directory.join("merged").display().to_string();
    let output = haltkick(&["merge", &results, "--output", &merged]);
    assert!(matches!(code(&output), 0 | 7), "{}", stderr(&output));

    // Killed and begun again, with another kernel in the file's place.
    let (first, _) = std::fs::read_to_string(format!("{results}/runs.jsonl"))
        .map(|text| {
            text.split_once('\n').map(|(first, rest)| (format!("{first}\n"), rest.len())).expect("lines")
        })
        .expect("records");
    std::fs::write(format!("{results}/runs.jsonl"), first).expect("a file");
    let output = haltkick(&["bench", "--resume", &results]);
    assert!(matches!(code(&output), 0 | 7), "{}", stderr(&output));
    let lines = |path: &str| std::fs::read_to_string(path).expect("records").lines().count();
    assert_eq!(lines(&format!("{results}/runs.jsonl")), 6, "it goes on where it was");
    printing_kernel(&directory.join("new"), "haltkick: loop=999 turns/s");
    let message = refusal(&["bench", "--resume", &results]);
    assert!(message.contains("was begun with other kernels: arm 'new'"), "{message}");
    std::fs::remove_file(directory.join("old/vmlinux")).expect("a file");
    let output = haltkick(&["bench", &file, "--output", &merged]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert!(stderr(&output).contains("kernels.toml:11:10: "), "{}", stderr(&output));
    assert!(stderr(&output).contains("old/vmlinux: No such file"), "{}", stderr(&output));
    Ok(())
}
