//! Lock objects on the command line: run, bench and check. What is linked and what is refused is tested in the library.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::interrupted::signal;
use crate::support::{
    Check, apply, code, command, haltkick, kvm, refusal, scratch, skip, stderr, stdout, trial,
};

/// The object that gcc makes of a text, as documented.
pub(crate) fn compiled(directory: &Path, name: &str, source: &str) -> Result<String, crate::support::Failed> {
    let (text, object) = (directory.join(format!("{name}.c")), directory.join(format!("{name}.o")));
    std::fs::write(&text, source).expect("the scratch directory can be written");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
    let flags = ["-O2", "-g", "-ffreestanding", "-mgeneral-regs-only", "-mno-red-zone", "-fno-pic", "-c"];
    let made =
        Command::new("gcc").args(flags).arg(text).arg("-I").arg(include).arg("-o").arg(&object).status();
    match made {
        Ok(status) if status.success() => Ok(object.to_string_lossy().into_owned()),
        Ok(status) => panic!("gcc: {status}"),
        Err(error) => skip(format_args!("gcc: {error}")),
    }
}

const TAS: &str = r#"
#include "haltkick.h"
struct lock { hk_u8 held; };
HK_LOCK(struct lock);
void hk_lock(struct lock *lock)
{
    while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE))
        hk_pause();
}
void hk_unlock(struct lock *lock) { __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE); }
"#;

/// vCPU 1 forgets its twentieth release. (vCPU 0 has released thousands before the others start.)
const FORGETS: &str = r#"
#include "haltkick.h"
struct lock { hk_u8 held; hk_u32 releases; };
HK_LOCK(struct lock);
static int taken(struct lock *lock) { return __atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE); }
void hk_lock(struct lock *lock)
{
    while (taken(lock))
        hk_pause();
}
void hk_unlock(struct lock *lock)
{
    if (hk_cpu() != 1 || ++lock->releases != 20)
        __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE);
}
void hk_pv_lock(struct lock *lock)
{
    while (taken(lock)) {
        hk_announce(HK_WAITER);
        hk_wait(&lock->held, 1);
    }
}
void hk_pv_unlock(struct lock *lock)
{
    hk_unlock(lock);
    for (hk_u32 cpu = 0; cpu < hk_cpus(); cpu++)
        hk_kick(cpu);
}
"#;

#[apply(trial)]
fn a_forgotten_release_names_the_last_holder_and_the_objects_place() -> Check {
    let object = compiled(&scratch("object-forgets"), "forgets", FORGETS)?;
    let told = |pv: &str| {
        let run =
            ["run", "--lock-object", &object, "--pv", pv, "--no-ideal", "--ratio", "2", "--window", "500ms"];
        let place = ["--engine", "sim", "--machine", "cascadelake-2s", "--cpus", "0-1", "--watchdog", "50ms"];
        let output = haltkick(&[&run[..], &place].concat());
        assert_eq!(code(&output), 6, "{}", stderr(&output));
        stderr(&output)
    };
    let (spins, sleeps) = (told("off"), told("on"));
    let last = " was the last inside lock 0 and left ";
    assert!(
        spins.starts_with("vCPU ") && spins.contains(last) && spins.contains("release is missing"),
        "{spins}"
    );
    assert!(spins.contains("lock 0: no vCPU is inside now, vCPU "), "{spins}");
    assert!(sleeps.contains(", which was inside last, did not release the lock"), "{sleeps}");
    assert!(
        sleeps.contains("  called from forgets.o: hk_pv_lock+") && sleeps.contains("forgets.c:"),
        "{sleeps}"
    );
    Ok(())
}

#[apply(trial)]
fn an_object_ends_the_run_with_a_text_of_its_own() -> Check {
    const UNLOCK: &str = "void hk_unlock(struct lock *lock) {";
    let fails = format!("{UNLOCK} if (hk_cpu() == 1) hk_fail(\"vCPU 1 must not be here\");");
    let object = compiled(&scratch("object-fails"), "fails", &TAS.replace(UNLOCK, &fails))?;
    let place =
        ["--engine", "sim", "--machine", "cascadelake-2s", "--cpus", "0-1", "--ratio", "2", "--no-ideal"];
    let output = haltkick(&[&["run", "--lock-object", &object][..], &place].concat());
    let told = stderr(&output);
    assert_eq!(code(&output), 5, "{told}");
    assert!(
        told.contains("vCPU 1 must not be here") && told.contains("  called from fails.o: hk_unlock+"),
        "{told}"
    );
    Ok(())
}

#[apply(trial)]
fn a_lock_object_runs_and_its_record_names_it() -> Check {
    kvm()?;
    let object = compiled(&scratch("object-run"), "mine", TAS)?;
    let arguments = [
        "run",
        "--lock-object",
        &object,
        "--ratio",
        "2",
        "--duration",
        "50ms",
        "--format",
        "json",
        "--no-ideal",
    ];
    // On a host that is busy with something else a whole run may come to nothing.
    for _ in 0..20 {
        let output = haltkick(&arguments);
        assert!(matches!(code(&output), 0 | 7), "{}", stderr(&output));
        let record: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("a record");
        assert_eq!(record["settings"]["lock"], format!("file:{object}"));
        assert_eq!(record["settings"]["pv"], false);
        if record["figures"]["acquisitions"].as_u64().is_some_and(|count| count > 0) {
            return Ok(());
        }
    }
    panic!("nothing was done");
}

#[apply(trial)]
fn an_experiment_has_arms_from_objects_and_is_resumed_with_the_same() -> Check {
    kvm()?;
    let directory = scratch("object-bench");
    let object = compiled(&directory, "mine", TAS)?;
    let other = compiled(&directory, "other", TAS)?;
    let file = directory.join("e.toml");
    let text = format!(
        "format = 1\nname = \"e\"\ntitle = \"e\"\nblocks = 1\n[settings]\nratio = 2\nwindow = \"20ms\"\nwarmup = \"20ms\"\n\
         [[arm]]\nname = \"ours\"\nlock = \"tas\"\n[[arm]]\nname = \"theirs\"\nlock = \"file:{other}\"\n"
    );
    std::fs::write(&file, text).expect("the scratch directory can be written");
    let (file, results) = (file.to_string_lossy().into_owned(), directory.join("results"));
    let output = results.to_string_lossy().into_owned();
    let done = haltkick(&["bench", &file, "--with", &object, "--output", &output]);
    assert!(matches!(code(&done), 0 | 7), "{}", stderr(&done));
    for arm in ["ours", "theirs", "mine.o"] {
        assert!(stdout(&done).contains(arm), "{arm}: {}", stdout(&done));
    }
    // A repetition has nothing to do; another file is another experiment.
    let again = haltkick(&["bench", "--resume", &output]);
    assert!(matches!(code(&again), 0 | 7), "{}", stderr(&again));
    compiled(
        &directory,
        "mine",
        &format!("{TAS}\nint hk_try_lock(struct lock *lock) {{ return !lock->held; }}"),
    )?;
    let refused = refusal(&["bench", "--resume", &output]);
    assert!(refused.contains("lock objects that have changed"), "{refused}");
    Ok(())
}

#[apply(trial)]
fn check_finds_nothing_in_a_lock_and_says_what_it_tried() -> Check {
    let object = compiled(&scratch("object-check"), "mine", TAS)?;
    // Threads run everywhere; KVM takes a minute for what this is about.
    let arguments = [
        "check",
        &object,
        "--time",
        "1ms",
        "--engine",
        "threads",
        "--trust-image",
        "--window",
        "1ms",
        "--warmup",
        "1ms",
    ];
    let checked = haltkick(&arguments);
    assert_eq!(code(&checked), 0, "{}{}", stdout(&checked), stderr(&checked));
    for part in ["no fault found", "native", "not reached in this time", "Cannot show"] {
        assert!(stdout(&checked).contains(part), "{part}: {}", stdout(&checked));
    }
    let refused = refusal(&["check", &object, "--engine", "threads"]);
    assert!(refused.contains("--trust-image"), "{refused}");
    Ok(())
}

#[apply(trial)]
fn check_finds_what_is_wrong_and_says_how_to_see_it_again() -> Check {
    kvm()?;
    let source = TAS.replace("__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)", "lock->held > 1");
    let object = compiled(&scratch("object-broken"), "broken", &source)?;
    let checked = haltkick(&["check", &object]);
    assert_eq!(code(&checked), 5, "{}{}", stdout(&checked), stderr(&checked));
    let said = stderr(&checked);
    assert!(said.contains("is broken: mutual exclusion violated"), "{said}");
    let command =
        said.lines().find(|line| line.trim_start().starts_with("haltkick run")).expect("how to see it again");
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    let again = haltkick(&words);
    assert_eq!(code(&again), 5, "{command}: {}", stderr(&again));
    Ok(())
}

#[apply(trial)]
fn a_check_that_is_interrupted_blames_no_lock() -> Check {
    kvm()?;
    let object = compiled(&scratch("object-interrupted"), "mine", TAS)?;
    let mut child = command(&["check", &object, "--time", "10m", "--format", "ktap"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("haltkick can be started");
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line.contains(" kinds: about ")), "the trials begin");
    signal(&child, rustix::process::Signal::INT);
    let said = lines.collect::<Vec<_>>().join("\n");
    let checked = child.wait_with_output().unwrap();
    assert_eq!(code(&checked), 130, "{said}");
    let verdicts = stdout(&checked);
    assert!(verdicts.contains("# SKIP interrupted") && !verdicts.contains("not ok"), "{verdicts}");
    assert!(!said.contains("is broken"), "{said}");
    Ok(())
}

/// A lock whose readers do not wait: only sections that read can show it.
#[apply(trial)]
fn check_tries_the_functions_of_readers() -> Check {
    let readers = "void hk_read_lock(struct lock *lock) { (void)lock; }
        void hk_read_unlock(struct lock *lock) { (void)lock; }";
    let object = compiled(&scratch("object-readers"), "readers", &format!("{TAS}{readers}"))?;
    let checked = haltkick(&["check", &object, "--engine", "threads", "--trust-image"]);
    assert_eq!(code(&checked), 5, "{}{}", stdout(&checked), stderr(&checked));
    let refused = refusal(&["check", &object, "--oracle", "off"]);
    assert!(refused.contains("--oracle off"), "{refused}");
    Ok(())
}

#[apply(trial)]
fn an_instruction_that_no_simulated_cpu_knows_blames_no_lock() -> Check {
    const UNLOCK: &str = "void hk_unlock(struct lock *lock) {";
    const LACKS: &str = "--engine sim does not carry out `xlat [rbx]` at tables.o: hk_unlock+0x";
    let directory = scratch("object-tables");
    let looks_up = "__asm__ volatile(\"xlatb\" :: \"b\"(lock), \"a\"(0));";
    let object = compiled(&directory, "tables", &TAS.replace(UNLOCK, &format!("{UNLOCK} {looks_up}")))?;
    let place = ["--machine", "nehalem-2s", "--cpus", "0-1", "--vcpus", "2"];
    let into = |name: &str| directory.join(name).to_string_lossy().into_owned();
    for (name, words) in [
        ("run", &["run", "--lock-object", &object, "--engine", "sim", "--no-ideal"][..]),
        ("check", &["check", &object, "--engine", "sim"]),
        ("worst", &["worst", "--lock-object", &object, "--output", &into("worst")]),
    ] {
        let failed = haltkick(&[words, &place].concat());
        let said = stderr(&failed);
        assert!(code(&failed) == 4 && said.contains(LACKS) && !said.contains("is broken"), "{name}: {said}");
    }
    // A vCPU comes to it only if the holder is taken off.
    let patient =
        TAS.replace("hk_pause();", &format!("if (++rounds == 3000) {looks_up}\n        else hk_pause();"));
    let patient = patient.replace("    while", "    hk_u32 rounds = 0;\n    while");
    let rare = compiled(&directory, "rare", &patient)?;
    let cut = ["worst", "--lock-object", &rare, "--samples", "1", "--output", &into("rare")];
    let failed = haltkick(&[&cut[..], &place].concat());
    let said = stderr(&failed);
    assert!(
        code(&failed) == 4 && said.contains("does not carry out `xlat [rbx]` at rare.o: hk_lock+0x"),
        "{said}"
    );
    kvm()?;
    let checked = haltkick(&["check", &object, "--time", "1ms"]);
    assert_eq!(code(&checked), 0, "{}{}", stdout(&checked), stderr(&checked));
    let said = stdout(&checked);
    assert!(
        said.contains("no fault found")
            && said.contains(&format!("left out: eight simulated pCPUs: {LACKS}")),
        "{said}"
    );
    Ok(())
}

#[apply(trial)]
fn a_lock_that_wants_more_memory_than_there_is_is_not_broken() -> Check {
    // Few vCPUs and few locks fit.
    let init = "void hk_init(struct lock *lock) { lock->held = !hk_alloc(hk_cpus() * 32768ul, 64); }";
    let object = compiled(&scratch("object-large"), "large", &format!("{TAS}{init}"))?;
    let short =
        ["--time", "1ms", "--engine", "threads", "--trust-image", "--window", "1ms", "--warmup", "1ms"];
    let checked = haltkick(&[&["check", &object][..], &short].concat());
    let said = stdout(&checked);
    assert_eq!(code(&checked), 0, "{said}{}", stderr(&checked));
    for part in [
        "no fault found",
        "left out: many locks: hk_alloc: ",
        "left out: more than a byte can number: hk_alloc: ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let all_of_it = init.replace("hk_cpus() * 32768ul", "HK_ALLOC_MOST + 1");
    let object = compiled(&scratch("object-too-large"), "large", &format!("{TAS}{all_of_it}"))?;
    let refused = refusal(&[&["check", &object][..], &short].concat());
    assert!(refused.contains("no trial can be run here: hk_alloc: 4194305 bytes more"), "{refused}");
    Ok(())
}

#[apply(trial)]
fn objects_that_cannot_be_linked_are_refused_in_one_line() -> Check {
    let directory = scratch("object-refused");
    let object = compiled(
        &directory,
        "typo",
        &TAS.replace("hk_pause()", "hk_pauze()").replace("HK_LOCK", "void hk_pauze(void);\nHK_LOCK"),
    )?;
    for arguments in
        [&["run", "--lock-object", &object][..], &["check", &object], &["bench", "locks", "--with", &object]]
    {
        let refused = refusal(arguments);
        assert!(refused.contains("did you mean hk_pause?") && refused.lines().count() == 1, "{refused}");
    }
    let missing = refusal(&["run", "--lock", "file:/no/such/lock.o"]);
    assert!(missing.contains("/no/such/lock.o cannot be read"), "{missing}");
    Ok(())
}

#[apply(trial)]
fn a_lock_can_be_written_to_the_header_that_is_printed() -> Check {
    let directory = scratch("object-header");
    let printed = haltkick(&["check", "--print-header"]);
    assert_eq!(code(&printed), 0, "{}", stderr(&printed));
    std::fs::write(directory.join("haltkick.h"), stdout(&printed))
        .expect("the scratch directory can be written");
    // A header next to the text comes before any other.
    let object = compiled(&directory, "mine", &TAS.replace("haltkick.h", "./haltkick.h"))?;
    let run = [
        "run",
        "--lock-object",
        &object,
        "--engine",
        "threads",
        "--trust-image",
        "--window",
        "1ms",
        "--no-ideal",
    ];
    assert!([0, 7].contains(&code(&haltkick(&run))));
    assert!(stdout(&haltkick(&["check", "--print-header=rust"])).contains("pub unsafe trait RawLock"));
    let neither = refusal(&["check"]);
    assert!(neither.contains("<FILE>"), "{neither}");
    Ok(())
}

/// From a folder with nothing but the source.
#[apply(trial)]
fn a_source_is_compiled_or_one_line_says_what_is_missing() -> Check {
    let directory = scratch("object-source");
    std::fs::write(directory.join("mine.c"), TAS).expect("the scratch directory can be written");
    let run = |lock: &str, compiler: &str| {
        let mut run = command(&["run", "--lock-object", lock, "--engine", "sim", "--machine", "skylake-8s"]);
        run.args(["--cpus", "0-1", "--duration", "1ms", "--no-ideal"]).current_dir(&directory);
        run.env("CC", compiler).output().expect("haltkick can be run")
    };
    let done = run("mine.c", "cc");
    assert_eq!(code(&done), 0, "{}", stderr(&done));
    assert!(stdout(&done).contains("file:mine.c"), "{}", stdout(&done));
    let without = run("mine.c", "no-such-compiler");
    assert_eq!(code(&without), 2, "{}", stderr(&without));
    let said = stderr(&without);
    assert!(said.contains("there is no no-such-compiler: get it with `apt install gcc`"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    std::fs::write(directory.join("wrong.c"), "int hk_lock").expect("the scratch directory can be written");
    let wrong = run("wrong.c", "cc");
    assert_eq!(code(&wrong), 2, "{}", stderr(&wrong));
    assert!(stderr(&wrong).contains("wrong.c:1:"), "{}", stderr(&wrong));
    Ok(())
}

/// A sleeping lock of the futex kind. As LOSSY it drops every second wake-up.
const SLEEPING: &str = r#"
#include "haltkick.h"
struct lock { hk_u32 word, wakes; hk_u64 asleep; };
HK_LOCK(struct lock);
static int try_lock(struct lock *lock)
{
    hk_u32 free = 0;
    return __atomic_compare_exchange_n(&lock->word, &free, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}
void hk_pv_lock(struct lock *lock)
{
    hk_u64 bit = 1ull << hk_cpu();
    for (int i = 0; i < 100; i++) {
        if (try_lock(lock))
            return;
        hk_pause();
    }
    for (;;) {
        __atomic_fetch_or(&lock->asleep, bit, __ATOMIC_SEQ_CST);
        if (__atomic_exchange_n(&lock->word, 2, __ATOMIC_SEQ_CST) == 0)
            break;
        hk_wait_u32(&lock->word, 2);
    }
    __atomic_fetch_and(&lock->asleep, ~bit, __ATOMIC_SEQ_CST);
}
void hk_pv_unlock(struct lock *lock)
{
    if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_SEQ_CST) != 2)
        return;
    hk_u64 asleep = __atomic_load_n(&lock->asleep, __ATOMIC_SEQ_CST);
    if (!asleep)
        return;
    hk_u32 first = (hk_u32)__builtin_ctzll(asleep);
    __atomic_fetch_and(&lock->asleep, ~(1ull << first), __ATOMIC_SEQ_CST);
#ifdef LOSSY
    if (__atomic_fetch_add(&lock->wakes, 1, __ATOMIC_RELAXED) % 2)
        return;
#endif
    hk_kick(first);
}
"#;

/// The last of them starves its sleepers at this ratio, since it wakes the first one it finds: that is no wake-up lost.
#[apply(trial)]
fn only_lost_wake_ups_make_a_run_invalid() -> Check {
    let directory = scratch("object-lossy");
    let lossy = compiled(&directory, "lossy", &format!("#define LOSSY\n{SLEEPING}"))?;
    let sound = compiled(&directory, "sound", SLEEPING)?;
    for (lock, slept, expected) in [
        (["--lock-object", &lossy, "--pv=on"], true, 7),
        (["--lock", "qspinlock", "--pv=on"], false, 0),
        (["--lock-object", &sound, "--pv=on"], true, 0),
    ] {
        let machine = ["--engine=sim", "--machine=nehalem-2s", "--cpus=0-1"];
        let run = ["run", "--ratio=8", "--duration=100ms", "--no-ideal", "--format=json"];
        let output = haltkick(&[&run[..], &machine, &lock].concat());
        assert_eq!(code(&output), expected, "{lock:?}: {}", stderr(&output));
        let record: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("a record");
        let vcpus = record["per_vcpu"].as_array().expect("the vCPUs");
        let asleep = vcpus.iter().filter(|vcpu| vcpu["run_ns"] == 0).count();
        assert_eq!(asleep > 0, slept, "{lock:?}: {asleep}");
        let codes: Vec<&str> = record["warnings"]
            .as_array()
            .expect("the warnings")
            .iter()
            .filter_map(|warning| warning["code"].as_str())
            .collect();
        let warned = if expected == 7 { &["asleep-throughout"][..] } else { &[] };
        assert_eq!(codes, warned, "{lock:?}");
    }
    Ok(())
}

#[apply(trial)]
fn a_lock_is_compared_with_itself_in_another_revision() -> Check {
    let directory = scratch("object-revisions");
    let within = |program: &str, arguments: &[&str]| {
        let command = Command::new(program)
            .args(arguments)
            .current_dir(&directory)
            .env("HALTKICK", env!("CARGO_BIN_EXE_haltkick"))
            .env("CHECK_TIME", "1s")
            .output();
        command.unwrap_or_else(|error| panic!("{program}: {error}"))
    };
    if Command::new("gcc").arg("--version").output().is_err() {
        return skip("there is no gcc");
    }
    let lock = directory.join("lock.c");
    std::fs::write(&lock, TAS).expect("the scratch directory can be written");
    let author = ["-c", "user.name=A", "-c", "user.email=a@example.org"];
    for words in [&["init", "-q"][..], &["add", "lock.c"], &["commit", "-q", "-m", "lock"]] {
        assert!(within("git", &[&author[..], words].concat()).status.success(), "{words:?}");
    }
    // Now each release takes ten microseconds.
    let slow = TAS.replace(
        "void hk_unlock(struct lock *lock) {",
        "void hk_unlock(struct lock *lock) { for (hk_u64 end = hk_now() + hk_ticks(10000); hk_now() < end;) ;",
    );
    std::fs::write(&lock, slow).expect("the scratch directory can be written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/ci/lock-against.sh");
    let script = script.to_str().expect("it is UTF-8");
    let place = ["engine=sim", "machine=skylake-8s", "cpus=0-1", "window=2ms", "warmup=500us"];
    let settings = place.iter().flat_map(|setting| ["--set", setting]);
    let words: Vec<&str> =
        ["lock.c", "HEAD", "--blocks", "6", "--ratios", "1"].into_iter().chain(settings).collect();
    let output = within(script, &words);
    let said = stdout(&output);
    assert_eq!(code(&output), 0, "{said}{}", stderr(&output));
    assert!(said.contains("### lock.c, now over HEAD") && said.contains("no fault found"), "{said}");
    let now = said.lines().find(|line| line.contains("| now |")).unwrap_or_else(|| panic!("{said}"));
    let ratio = now.split('|').find_map(|cell| cell.trim().split_once('x')?.0.parse::<f64>().ok());
    assert!(ratio.is_some_and(|ratio| ratio < 0.5) && now.trim_end().ends_with(" - |"), "{now}");
    let nothing = within(script, &["lock.c"]);
    assert_eq!(code(&nothing), 2, "{}", stderr(&nothing));
    Ok(())
}

/// `examples/crate-lock`, as its README builds it.
#[apply(trial)]
fn a_lock_of_a_crate_excludes_and_its_pv_form_sleeps() -> Check {
    let directory = scratch("object-crate");
    let cargo = |arguments: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        // Flags of this build are not for the lock: they would replace those of its own folder.
        cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("RUSTFLAGS");
        cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/crate-lock"));
        cargo.args(arguments).output().expect("cargo has started this test")
    };
    let fetched = cargo(&["fetch", "--locked"]);
    if !fetched.status.success() {
        return skip(format_args!("the crate cannot be fetched: {}", stderr(&fetched)));
    }
    let target = directory.to_str().expect("it is UTF-8");
    let built = cargo(&["build", "--release", "--locked", "--offline", "--target-dir", target]);
    assert!(built.status.success(), "{}", stderr(&built));
    let object = directory.join("x86_64-unknown-none/release/libcrate_lock.a");
    let place = ["--engine=sim", "--machine=skylake-8s", "--cpus=0-1", "--ratio=4", "--window=20ms"];
    for pv in ["--pv=off", "--pv=on"] {
        let lock = ["run", "--lock-object", object.to_str().expect("it is UTF-8"), pv];
        let output = haltkick(&[&lock[..], &place, &["--no-ideal", "--format=json"]].concat());
        assert_eq!(code(&output), 0, "{pv}: {}", stderr(&output));
        let record: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("a record");
        let figure = |name: &str| record["figures"][name].as_f64().expect("a figure");
        assert!(figure("acquisitions") > 100.0 && figure("lost_updates") == 0.0, "{pv}: {record}");
        assert_eq!(figure("kicks_per_section") > 0.0, pv == "--pv=on", "{pv}: {record}");
    }
    Ok(())
}
