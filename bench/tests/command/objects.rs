//! Lock objects on the command line, as the sources that it compiles: run, bench and check. What is linked and what is refused is
//! tested in the library. Two vCPUs in one section: the page shows lines of the lock.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::*;

/// A test-and-set lock. Lines that are looked for have a mark.
pub(crate) const TAS: &str = r#"
#include "haltkick.h"
struct lock { hk_u8 held; hk_u32 releases; };
HK_LOCK(struct lock);
void hk_lock(struct lock *lock)
{
    while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) // takes
        hk_pause();
}
static void release(struct lock *lock)
{
    __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE); // releases
}
void hk_unlock(struct lock *lock)
{
    release(lock);
}
"#;

/// The lock of [`TAS`], whose unlock does `before` ahead of its release and `after` behind it.
fn unlocking(before: &str, after: &str) -> String {
    TAS.replace("    release(lock);\n", &format!("    {before}\n    release(lock);\n    {after}\n"))
}

/// vCPU 1 forgets its twentieth release. (vCPU 0 has released thousands before the others start.)
fn forgets() -> String {
    const PV: &str = r#"
void hk_pv_lock(struct lock *lock)
{
    while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) {
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
    unlocking("if (hk_cpu() == 1 && ++lock->releases == 20) return;", "") + PV
}

#[apply(trial)]
fn a_run_that_an_object_fails_is_explained_by_the_objects_places() {
    let forgets = forgets();
    let fails = unlocking("if (hk_cpu() == 1) hk_fail(\"vCPU 1 must not be here\");", "");
    let directory = scratch("object-fails");
    let last = " was the last inside lock 0 and left ";
    let hangs = [last, "release is missing", "lock 0: no vCPU is inside now, vCPU "];
    let slept = ", which was inside last, did not release the lock";
    for (name, source, pv, code, says) in [
        ("forgets", &forgets, "off", 6, &hangs[..]),
        ("forgets", &forgets, "on", 6, &["  called from forgets.c: hk_pv_lock+", "forgets.c:", slept]),
        ("fails", &fails, "off", 5, &["vCPU 1 must not be here", "  called from fails.c: hk_unlock+"]),
    ] {
        let lock = format!("--lock-object {} --pv {pv}", written(format!("{directory}/{name}.c"), source));
        let place =
            "--engine sim --machine cascadelake-2s --cpus 0-1 --ratio 2 --window 500ms --watchdog 50ms";
        ends(code, &format!("run {lock} --no-ideal {place}")).says(says);
    }
}

/// Trials on threads, which run everywhere: KVM takes a minute for what is checked so.
const ON_THREADS: &str = "--engine threads --trust-image --window 1ms --warmup 1ms --time 1ms";

#[apply(trial)]
fn check_finds_nothing_in_a_lock_and_says_what_it_tried() {
    let object = written(format!("{}/mine.c", scratch("object-check")), TAS);
    ends(0, &format!("check {object} {ON_THREADS}")).prints(&[
        "no fault found",
        "native",
        "not reached in this time",
        "Cannot show",
    ]);
    // `show::cases` tests the rest of these formats.
    let junit = ends(0, &format!("check {object} {ON_THREADS} --format junit")).prints(&["failures=\"0\""]);
    assert!(junit.out.starts_with("<?xml"), "{junit}");
    refuses(&format!("check {object} --engine threads"), "--trust-image");
    refuses(&format!("check {object} --oracle off"), "--oracle off");
}

#[apply(kvm_trial)]
fn check_finds_what_is_wrong_and_says_how_to_see_it_again() {
    let source = TAS.replace("__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)", "lock->held > 1");
    let object = written(format!("{}/broken.c", scratch("object-broken")), source);
    let checked = ends(5, &format!("check {object} --format ktap"))
        .says(&["is broken: mutual exclusion violated"])
        .prints(&["KTAP version 1\n1..", "\nnot ok "]);
    let again = checked.err.lines().find_map(|line| line.trim_start().strip_prefix("haltkick run "));
    ends(5, &format!("run {}", again.expect("how to see it again")));
}

#[apply(kvm_trial)]
fn a_check_that_is_interrupted_blames_no_lock() {
    let object = written(format!("{}/mine.c", scratch("object-interrupted")), TAS);
    let mut check = started(&mut command(&format!("check {object} --time 10m --format ktap")));
    let mut lines = BufReader::new(check.child().stderr.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line.contains(" kinds: about ")), "the trials begin");
    check.signal(Signal::INT);
    let said = lines.collect::<Vec<_>>().join("\n");
    let checked = check.ended().with(&[130]).prints(&["# SKIP interrupted"]);
    assert!(!checked.out.contains("not ok") && !said.contains("is broken"), "{checked}{said}");
}

#[apply(trial)]
fn an_instruction_that_no_simulated_cpu_knows_blames_no_lock() -> Check {
    const LACKS: &str = "--engine sim does not carry out `xlat [rbx]` at tables.c: hk_unlock+0x";
    let directory = scratch("object-tables");
    let looks_up = "__asm__ volatile(\"xlatb\" :: \"b\"(lock), \"a\"(0));";
    let object = written(format!("{directory}/tables.c"), unlocking(looks_up, ""));
    // A vCPU comes to it only if the holder is taken off.
    let patient =
        TAS.replace("hk_pause();", &format!("if (++rounds == 3000) {looks_up}\n        else hk_pause();"));
    let patient = patient.replace("    while", "    hk_u32 rounds = 0;\n    while");
    let rare = written(format!("{directory}/rare.c"), patient);
    for (line, lacks) in [
        (format!("run --lock-object {object} --engine sim --no-ideal"), LACKS),
        (format!("check {object} --engine sim"), LACKS),
        (format!("worst --lock-object {object} --output {directory}/worst"), LACKS),
        (
            format!("worst --lock-object {rare} --samples 1 --output {directory}/rare"),
            "does not carry out `xlat [rbx]` at rare.c: hk_lock+0x",
        ),
    ] {
        let failed = ends(4, &format!("{line} --machine nehalem-2s --cpus 0-1 --vcpus 2")).says(&[lacks]);
        assert!(!failed.err.contains("is broken"), "{failed}");
    }
    kvm()?;
    ends(0, &format!("check {object} --time 1ms"))
        .prints(&["no fault found", &format!("left out: eight simulated pCPUs: {LACKS}")]);
}

#[apply(trial)]
fn a_lock_that_wants_more_memory_than_there_is_is_not_broken() {
    // Few vCPUs and few locks fit.
    let init = "void hk_init(struct lock *lock) { lock->held = !hk_alloc(hk_cpus() * 32768ul, 64); }";
    let object = written(format!("{}/large.c", scratch("object-large")), format!("{TAS}{init}"));
    let left_out = ["left out: many locks: hk_alloc: ", "left out: more than a byte can number: hk_alloc: "];
    ends(0, &format!("check {object} {ON_THREADS}")).prints(&["no fault found"]).prints(&left_out);
    let all_of_it = init.replace("hk_cpus() * 32768ul", "HK_ALLOC_MOST + 1");
    written(object.clone(), format!("{TAS}{all_of_it}"));
    let reason = "no trial can be run here: hk_alloc: 4194305 bytes more";
    ends(2, &format!("check {object} {ON_THREADS}")).says(&[reason]);
}

#[apply(trial)]
fn objects_that_cannot_be_linked_are_refused_in_one_line() {
    let typo = TAS.replace("hk_pause()", "hk_pauze()").replace("HK_LOCK", "void hk_pauze(void);\nHK_LOCK");
    let object = written(format!("{}/typo.c", scratch("object-refused")), typo);
    for line in ["run --lock-object", "check", "bench locks --with"] {
        refuses(&format!("{line} {object}"), "did you mean hk_pause?");
    }
}

#[apply(trial)]
fn a_lock_can_be_written_to_the_header_that_is_printed() {
    let directory = scratch("object-header");
    written(format!("{directory}/haltkick.h"), ends(0, "check --print-header").out);
    // A header next to the text comes before any other.
    let object = written(format!("{directory}/mine.c"), TAS.replace("haltkick.h", "./haltkick.h"));
    finished(&format!("run --lock-object {object} --engine threads --trust-image --window 1ms --no-ideal"));
    haltkick("check --print-header=rust").prints(&["pub unsafe trait RawLock"]);
}

/// From a folder with nothing but the source.
#[apply(trial)]
fn a_source_is_compiled_or_one_line_says_what_is_missing() -> Check {
    let directory = scratch("object-source");
    written(format!("{directory}/mine.c"), TAS);
    written(format!("{directory}/wrong.c"), "int hk_lock");
    let place = "--engine sim --machine skylake-8s --cpus 0-1 --duration 1ms --no-ideal";
    let run = |lock: &str, compiler: &str| {
        let mut run = command(&format!("run --lock-object {lock} {place}"));
        end_of(run.current_dir(&directory).env("CC", compiler))
    };
    run("mine.c", "cc").with(&[0]).prints(&["file:mine.c"]);
    let missing = "there is no no-such-compiler: get it with `apt install gcc`";
    let without = run("mine.c", "no-such-compiler").with(&[2]).says(&[missing]);
    assert_eq!(without.err.lines().count(), 1, "{without}");
    run("wrong.c", "cc").with(&[2]).says(&["wrong.c:1:"]);
}

#[apply(trial)]
fn a_lock_is_compared_with_itself_in_another_revision() -> Check {
    let directory = scratch("object-revisions");
    let within = |program: &str, line: &str| {
        let mut command = Command::new(program);
        command.args(line.split(' ')).current_dir(&directory);
        end_of(command.env("HALTKICK", HALTKICK).env("CHECK_TIME", "1s"))
    };
    has("gcc")?;
    let lock = written(format!("{directory}/lock.c"), TAS);
    for words in ["init -q", "add lock.c", "commit -q -m lock"] {
        within("git", &format!("-c user.name=A -c user.email=a@example.org {words}")).with(&[0]);
    }
    // Now each release takes ten microseconds.
    let waits = "for (hk_u64 end = hk_now() + hk_ticks(10000); hk_now() < end;) ;";
    written(lock, unlocking(waits, ""));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/ci/lock-against.sh");
    let place =
        "--set engine=sim --set machine=skylake-8s --set cpus=0-1 --set window=2ms --set warmup=500us";
    let output = within(script, &format!("lock.c HEAD --blocks 6 --ratios 1 {place}"))
        .with(&[0])
        .prints(&["### lock.c, now over HEAD", "no fault found"]);
    let now = output.out.lines().find(|line| line.contains("| now |")).expect("a row");
    let ratio = now.split('|').find_map(|cell| cell.trim().split_once('x')?.0.parse::<f64>().ok());
    assert!(ratio.is_some_and(|ratio| ratio < 0.5) && now.trim_end().ends_with(" - |"), "{now}");
    within(script, "lock.c").with(&[2]);
}

/// `examples/crate-lock`, as its README builds it.
#[apply(trial)]
fn a_lock_of_a_crate_excludes_and_its_pv_form_sleeps() -> Check {
    let directory = scratch("object-crate");
    let cargo = |line: &str| {
        let mut cargo = Command::new(env!("CARGO"));
        // Flags of this build are not for the lock: they would replace those of its own folder.
        cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("RUSTFLAGS");
        cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/crate-lock"));
        end_of(cargo.args(line.split(' ')))
    };
    let fetched = cargo("fetch --locked");
    if fetched.code != 0 {
        return skip(format_args!("the crate cannot be fetched: {fetched}"));
    }
    cargo(&format!("build --release --locked --offline --target-dir {directory}")).with(&[0]);
    let object = format!("{directory}/x86_64-unknown-none/release/libcrate_lock.a");
    for pv in ["off", "on"] {
        let kicks =
            excludes(&format!("--lock-object {object} --pv {pv}"))["figures"]["kicks_per_section"].as_f64();
        assert_eq!(kicks.expect("a figure") > 0.0, pv == "on", "{pv}: {kicks:?}");
    }
}

/// The locks of Concurrency Kit in `examples/locks/ck`, where its headers are installed.
#[apply(trial)]
fn locks_of_concurrency_kit_compile_link_and_run() -> Check {
    const HEADER: &str = "/usr/include/ck_spinlock.h";
    if !Path::new(HEADER).exists() {
        return skip(format_args!("there is no {HEADER}: get it with `apt install libck-dev`"));
    }
    has("cc")?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/locks/ck");
    let files = std::fs::read_dir(folder).expect("there are examples");
    let mut locks: Vec<_> = files.map(|file| file.expect("it can be listed").path()).collect();
    locks.retain(|path| path.extension().is_some_and(|it| it == "c"));
    assert_eq!(locks.len(), 8, "{locks:?}");
    for lock in locks {
        excludes(&format!("--lock 'file:{}'", lock.display()));
        if ["bytelock", "pflock", "rwlock"].iter().any(|name| lock.ends_with(format!("{name}.c"))) {
            excludes(&format!("--lock 'file:{}' --read-share 90%", lock.display()));
        }
    }
}

/// The record of a lock with more vCPUs than pCPUs, with sections and no lost update.
fn excludes(lock: &str) -> Value {
    const PLACE: &str = "--engine sim --machine skylake-8s --cpus 0-1 --ratio 4 --window 32ms";
    let record = ends(0, &format!("run {lock} --no-ideal --format json {PLACE}")).json();
    let figures = &record["figures"];
    assert!(figures["acquisitions"].as_u64() > Some(5) && figures["lost_updates"] == 0, "{lock}: {record}");
    record
}

/// vCPU 2 releases twice.
fn twice() -> String {
    const AGAIN: &str = "for (int round = 0; hk_cpu() == 2 && round < 20; round++)
        hk_pause();
    if (hk_cpu() == 2)
        __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE); // again";
    unlocking("", AGAIN)
}

/// It looks, and then stores, where it is to exchange.
fn plain() -> String {
    const LOOP: &str = "while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) // takes";
    const STORE: &str = "\n    __atomic_store_n(&lock->held, 1, __ATOMIC_RELAXED); // stores\n}\nstatic";
    let looks = TAS.replace(LOOP, "while (__atomic_load_n(&lock->held, __ATOMIC_ACQUIRE))");
    looks.replace("\n}\nstatic", STORE)
}

/// Its try takes nothing.
fn lies() -> String {
    format!("{TAS}int hk_try_lock(struct lock *lock) {{ return 1; }} // lies\n")
}

/// The line with a mark, as a page shows it.
fn line(name: &str, source: &str, mark: &str) -> String {
    let line = source.lines().position(|line| line.ends_with(&format!("// {mark}")));
    format!("/{name}.c:{} in ", line.expect("a mark") + 1)
}

/// The page about a run of an object, if it fails.
fn page(object: &str, more: &str) -> Option<String> {
    let ended = haltkick(&format!("run --lock-object {object} --no-ideal --think 0s {more}"));
    (ended.code == 5).then_some(ended.err)
}

#[apply(trial)]
fn a_simulated_machine_shows_how_two_vcpus_took_a_lock() {
    let place = "--engine sim --machine cascadelake-2s --cpus 0-1 --ratio 2 --window 10ms";
    let directory = scratch("meetings-simulated");
    for (name, source, workload, one, other, released) in [
        // A third vCPU may have released it in between, by the right of the lock that the second release gave it.
        ("twice", twice(), "critical-section", "takes", "takes", &["again", "releases"][..]),
        ("plain", plain(), "critical-section", "stores", "stores", &["releases"]),
        // Both vCPUs may have been lied to.
        ("lies", lies(), "try-lock", "lies", "", &[]),
    ] {
        let object = written(format!("{directory}/{name}.c"), &source);
        let page = page(&object, &format!("{place} --workload {workload}")).expect("a broken lock");
        assert!(page.contains(" came into the section of lock 0 while vCPU "), "{page}");
        let passages: Vec<&str> =
            page.split("\nvCPU ").filter(|passage| passage.contains(" took the lock ")).collect();
        assert_eq!(passages.len(), 2, "{page}");
        let shows = |passage: &str, mark: &str| {
            mark.is_empty() || passage.contains(&line(name, &source, mark)) && passage.contains("   > 0x")
        };
        let meets = |a: usize, b: usize| shows(passages[a], one) && shows(passages[b], other);
        assert!(meets(0, 1) || meets(1, 0), "{page}");
        let of_release = page.split("\nvCPU ").find(|passage| passage.contains(" released the lock last "));
        let is_shown = |mark: &&str| shows(of_release.unwrap_or("?"), mark);
        assert!(released.is_empty() || released.iter().any(is_shown), "{page}");
        assert!(!page.contains("A simulated machine tells"), "{page}");
    }
}

#[apply(kvm_trial)]
fn a_page_of_kvm_names_how_two_vcpus_took_a_lock() {
    let object = written(format!("{}/twice.c", scratch("meetings-kvm")), twice());
    // A busy host may let no two vCPUs meet in a window, or two before anybody has released the lock.
    let has_released = |page: &String| page.contains("  in twice.c: hk_unlock (0x");
    let again = |_| page(&object, "--vcpus 4 --window 200ms").filter(has_released);
    let page = (0..20).find_map(again).expect("a broken lock");
    let (met, _) = page.split_once("\nlock 0: ").expect("the state of the lock");
    for function in ["hk_lock", "hk_unlock"] {
        let (_, place) = met.split_once(&format!("  in twice.c: {function} (0x")).expect(&page);
        let line = place.lines().nth(1).unwrap_or_default();
        assert!(line.contains("/twice.c:") && line.ends_with(function), "{page}");
    }
    assert!(met.contains("A simulated machine tells the instructions"), "{page}");
}

#[apply(trial)]
fn a_preemption_that_lets_two_in_is_shown_with_lines() -> Check {
    let (directory, source) = (scratch("meetings-worst"), plain());
    let object = written(format!("{directory}/plain.c"), &source);
    let place = "--machine nehalem-2s --cpus 0-1 --slice 200us --find-bugs --think 30us";
    ends(5, &format!("worst --lock-object {object} {place} --output {directory}/worst"));
    let file = format!("{directory}/worst/broken-001.toml");
    if std::fs::exists(&file)? {
        // Otherwise it broke without a preemption.
        ends(5, &format!("worst --replay {file}")).prints(&[&line("plain", &source, "stores")]);
    }
}
