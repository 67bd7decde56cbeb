//! The suite against machines that are scripts: what it makes of machines that pass, fail, flake, die, hang and say nothing.

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::group::Group;
use crate::history::{Outcome, Verdict};
use crate::ledger::Ledger;
use crate::machine::Launcher;
use crate::suite::{Bounds, End, Machines, Results, run};
use crate::transcript::Event;
use crate::verdict::{Objection, objections, summary};

/// Actions of a test in the machines that run it, one after the other; passes once there is nothing more.
type Script = &'static [(&'static str, &'static [Does])];

#[derive(Clone, Copy)]
enum Does {
    Pass,
    Fail(&'static str),
    /// Fails, or passes, after a CPU of the machine stood still.
    FailStill(&'static str),
    PassStill,
    Skip,
    /// The machine dies during it.
    Kill,
    /// The program in the machine ends during it.
    Crash,
    /// The program ends well before it.
    Vanish,
}
use Does::{Crash, Fail, FailStill, Kill, Pass, PassStill, Skip, Vanish};

/// Machines in which tests do what the script says.
struct Fake {
    script: Mutex<Vec<(String, VecDeque<Does>)>>,
    /// The tests of each machine.
    lives: Mutex<Vec<Vec<String>>>,
}

impl Fake {
    fn new(script: Script) -> Self {
        let script = script.iter().map(|(test, does)| (test.to_string(), does.iter().copied().collect()));
        Self { script: Mutex::new(script.collect()), lives: Mutex::default() }
    }

    fn next(&self, test: &str) -> Does {
        let mut script = self.script.lock().unwrap();
        let does = script.iter_mut().find(|(name, _)| name == test).map(|(_, does)| does);
        does.and_then(|does| does.pop_front()).unwrap_or(Pass)
    }
}

impl Machines for Fake {
    fn run(&self, _: &Group, tests: &[String], tell: &mut dyn FnMut(Event)) -> End {
        self.lives.lock().unwrap().push(tests.to_vec());
        for test in tests {
            let does = self.next(test);
            if !matches!(does, Vanish) {
                tell(Event::Started(test.clone()));
            }
            if matches!(does, FailStill(_) | PassStill) {
                tell(Event::StoodStill { cpu: 1, ms: 900 });
            }
            let verdict = match does {
                Pass | PassStill => Verdict::Passed,
                Fail(told) | FailStill(told) => Verdict::Failed(told.into()),
                Skip => Verdict::Ignored,
                Kill => return End::Died("it hung".into()),
                Crash => return End::Program(139),
                Vanish => return End::Program(0),
            };
            tell(Event::Ended(test.clone(), verdict));
        }
        End::Program(0)
    }
}

fn group() -> Group {
    Group {
        name: "fake",
        target: "guests",
        package: "",
        threads: 1,
        batch: (2, 4),
        silence: Duration::from_secs(60),
        options: vec![],
        variables: vec![],
        takes: |_| true,
    }
}

fn bounds(cpus: usize) -> Bounds {
    Bounds { cpus, time: Duration::from_secs(60) }
}

fn suite(script: Script) -> (Results, Vec<Vec<String>>) {
    let tests = script.iter().map(|(test, _)| test.to_string()).collect();
    let fake = Fake::new(script);
    let results = run(&[(group(), tests)], &fake, &bounds(1), &|_| {});
    (results, fake.lives.into_inner().unwrap())
}

fn outcome<'a>(results: &'a Results, test: &str) -> &'a Outcome {
    &results.tests.iter().find(|tested| tested.test == test).expect("a test of the suite").outcome
}

fn ledger(text: &str) -> Ledger {
    Ledger::parse(&format!("machines-die-at-most = 1\nflaky-at-most = 2\n{text}")).unwrap()
}

const KNOWN: &str = r#"
    [[flaky]]
    tests = "flaky*"
    told = "stood still"
    reason = "emulated CPUs do"
    rate = "1 of 10"
    at-most = 1
"#;

#[test]
fn a_suite_in_which_all_pass_passes() {
    let (results, lives) = suite(&[("a", &[]), ("b", &[]), ("c", &[])]);
    assert_eq!(objections(&results, &ledger(""), true), []);
    assert_eq!((results.machines, results.deaths.len()), (2, 0));
    assert_eq!(lives.concat(), ["a", "b", "c"], "each test in one machine");
}

#[test]
fn all_failures_are_told_and_the_tests_after_them_are_run() {
    const NO: &[Does] = &[Fail("no 1"), Fail("no 2"), Fail("no 3")];
    let (results, _) = suite(&[("a", NO), ("b", &[]), ("c", NO), ("d", &[])]);
    let told = ["no 1", "no 2", "no 3"].map(String::from).to_vec();
    assert_eq!(outcome(&results, "a"), &Outcome::Failed { told });
    assert_eq!((outcome(&results, "b"), outcome(&results, "d")), (&Outcome::Passed, &Outcome::Passed));
    let failed = |test: &str| Objection::Failed(test.into());
    let objections = objections(&results, &ledger(""), true);
    assert_eq!(objections, [failed("a"), failed("c")]);
    let summary = summary(&results, &ledger(""), &objections);
    assert!(
        summary.contains("no 2")
            && summary.contains("FAILED: a failed")
            && summary.contains("FAILED: c failed")
    );
}

#[test]
fn a_flake_that_the_ledger_does_not_know_fails_the_suite() {
    let (results, _) = suite(&[("flaky-1", &[Fail("stood still for 3 s"), Pass]), ("b", &[])]);
    assert!(matches!(outcome(&results, "flaky-1"), Outcome::Flaky { .. }));
    assert_eq!(objections(&results, &ledger(KNOWN), true), []);
    let unknown = Objection::UnknownFlakes { tests: vec!["flaky-1".into()], most: 0 };
    assert_eq!(objections(&results, &ledger(""), true), std::slice::from_ref(&unknown));
    let lenient = ledger("unknown-at-most = 1");
    assert_eq!(objections(&results, &lenient, true), [], "one is borne");
    assert!(summary(&results, &lenient, &[]).contains("NOT KNOWN"), "and told");
    // It says something else than what is known of it.
    let (results, _) = suite(&[("flaky-1", &[Fail("two were inside"), Pass]), ("b", &[])]);
    assert_eq!(objections(&results, &ledger(KNOWN), true), [unknown]);
}

#[test]
fn only_the_failure_in_a_stalled_machine_mentions_the_stall() {
    let (results, _) = suite(&[("a", &[FailStill("no")]), ("b", &[PassStill]), ("c", &[Fail("no")])]);
    let still = Outcome::Flaky { told: vec!["no\nCPU 1 of the machine stood still for 900 ms".into()] };
    assert_eq!(outcome(&results, "a"), &still);
    assert_eq!(outcome(&results, "b"), &Outcome::Passed);
    assert_eq!(outcome(&results, "c"), &Outcome::Flaky { told: vec!["no".into()] });
}

#[test]
fn more_flakes_than_the_ledger_states_fail_the_suite() {
    const ONCE: &[Does] = &[Fail("stood still"), Pass];
    let (results, _) = suite(&[("flaky-1", ONCE), ("flaky-2", ONCE), ("b", &[])]);
    let of_these = Objection::MoreFlakesThan { what: "of flaky*".into(), most: 1, seen: 2 };
    assert_eq!(objections(&results, &ledger(KNOWN), true), [of_these]);
    let (results, _) = suite(&[("flaky-1", ONCE), ("flaky-2", ONCE), ("flaky-3", ONCE)]);
    let in_all = Objection::MoreFlakesThan { what: "in all".into(), most: 2, seen: 3 };
    let more = KNOWN.replace("at-most = 1", "at-most = 9");
    assert_eq!(objections(&results, &ledger(&more), true), [in_all]);
}

#[test]
fn results_before_a_machines_death_count_and_other_tests_run_again() {
    let (results, lives) = suite(&[("a", &[]), ("b", &[Kill]), ("c", &[]), ("d", &[])]);
    assert!(results.tests.iter().all(|tested| tested.outcome == Outcome::Passed));
    let runs = |test: &str| lives.iter().flatten().filter(|run| *run == test).count();
    assert_eq!((runs("a"), runs("b")), (1, 2), "{lives:?}");
    assert_eq!(lives.last().unwrap(), &["b"], "what a machine died in goes alone, and last");
    assert_eq!(results.deaths, ["fake, during b: it hung"]);
    assert_eq!(objections(&results, &ledger(""), true), [], "one death is borne");
}

#[test]
fn tests_of_a_dead_machine_run_again_each_alone() {
    let (results, lives) = suite(&[("a", &[Fail("stood still")]), ("b", &[Kill]), ("c", &[]), ("d", &[])]);
    assert!(lives.contains(&vec!["b".into()]) && lives.contains(&vec!["a".into()]), "{lives:?}");
    assert_eq!(outcome(&results, "b"), &Outcome::Passed);
}

#[test]
fn repeated_deaths_in_a_test_and_too_many_deaths_fail_the_suite() {
    let (results, _) = suite(&[("a", &[]), ("b", &[Kill; 9]), ("c", &[])]);
    assert_eq!(outcome(&results, "b"), &Outcome::MachineDied { why: vec!["it hung".into(); 3] });
    assert_eq!(outcome(&results, "c"), &Outcome::Passed);
    let died = Objection::MachineDied("b".into());
    assert_eq!(
        objections(&results, &ledger(""), true),
        [died, Objection::MoreDeathsThan { most: 1, seen: 3 }]
    );
}

#[test]
fn a_program_that_ends_during_a_test_has_failed_it() {
    let (results, _) = suite(&[("a", &[]), ("b", &[Crash, Crash, Crash]), ("c", &[])]);
    let Outcome::Failed { told } = outcome(&results, "b") else { panic!("{:?}", outcome(&results, "b")) };
    assert!(told.iter().all(|told| told == "the test program ended with code 139 during it"), "{told:?}");
    assert_eq!(outcome(&results, "c"), &Outcome::Passed);
}

#[test]
fn a_suite_that_tested_nothing_has_not_passed() {
    let (results, _) = suite(&[]);
    assert_eq!(objections(&results, &ledger(""), false), [Objection::NothingTested]);
}

#[test]
fn a_test_without_any_report_counts_as_not_tested() {
    let (results, lives) = suite(&[("a", &[]), ("b", &[Vanish; 99]), ("c", &[])]);
    let why = "4 machines in a row told nothing: the test program ended with code 0".to_string();
    assert_eq!(outcome(&results, "b"), &Outcome::NotTested { why: why.clone() });
    assert!(lives.len() < 9, "{lives:?}");
    let objections = objections(&results, &ledger(""), true);
    assert!(objections.contains(&Objection::NotTested { test: "b".into(), why }), "{objections:?}");
}

#[test]
fn a_skip_is_no_pass_unless_the_ledger_says_why() {
    let (results, _) = suite(&[("a", &[]), ("big", &[Skip])]);
    let [Objection::NotTested { test, .. }] = &objections(&results, &ledger(""), true)[..] else {
        panic!("a test that was skipped has passed")
    };
    assert_eq!(test, "big");
    let known = "[[not-tested]]\ntests = \"big\"\nreason = \"too big\"";
    assert_eq!(objections(&results, &ledger(known), true), []);
}

#[test]
fn unused_entries_of_the_ledger_fail_a_whole_suite() {
    let known = format!("{KNOWN}\n[[not-tested]]\ntests = \"a\"\nreason = \"too big\"");
    let (results, _) = suite(&[("a", &[])]);
    let stale = |tests: &str| Objection::Stale(tests.into());
    assert_eq!(objections(&results, &ledger(&known), true), [stale("flaky*"), stale("a")]);
    assert_eq!(objections(&results, &ledger(&known), false), [], "a part of the suite cannot know");
}

#[test]
fn after_the_time_limit_nothing_begins_and_the_rest_is_untested() {
    let bounds = Bounds { cpus: 1, time: Duration::ZERO };
    let results = run(&[(group(), vec!["a".into()])], &Fake::new(&[]), &bounds, &|_| {});
    assert_eq!(results.machines, 0);
    assert_eq!(outcome(&results, "a"), &Outcome::NotTested { why: "the time for the suite was up".into() });
}

/// Machines that count how many of them run at once.
#[derive(Default)]
struct Crowd(Mutex<(usize, usize)>);

impl Machines for Crowd {
    fn run(&self, group: &Group, tests: &[String], tell: &mut dyn FnMut(Event)) -> End {
        let mut crowd = self.0.lock().unwrap();
        crowd.0 += group.threads;
        crowd.1 = crowd.1.max(crowd.0);
        drop(crowd);
        std::thread::sleep(Duration::from_millis(50));
        for test in tests {
            tell(Event::Ended(test.clone(), Verdict::Passed));
        }
        self.0.lock().unwrap().0 -= group.threads;
        End::Program(0)
    }
}

#[test]
fn machines_run_side_by_side_within_the_cpus_there_are() {
    let tests = |letter: &str| (0..20).map(|index| format!("{letter}{index}")).collect::<Vec<_>>();
    let groups = [(group(), tests("a")), (Group { threads: 2, ..group() }, tests("b"))];
    for cpus in [2, 3] {
        let crowd = Crowd::default();
        let results = run(&groups, &crowd, &bounds(cpus), &|_| {});
        assert_eq!(objections(&results, &ledger(""), true), []);
        assert_eq!(crowd.0.lock().unwrap().1, cpus, "at most");
    }
}

/// Runs two tests in a machine that is this script; stops the suite after `stop_after`.
fn scripted(name: &str, script: &str, silence: Duration, stop_after: Option<Duration>) -> Results {
    let work = std::env::temp_dir().join(format!("haltkick-nested.{}.{name}", std::process::id()));
    std::fs::create_dir_all(&work).unwrap();
    let path = work.join("machine");
    std::fs::write(&path, format!("#!/usr/bin/env bash\n{script}")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let stop = AtomicBool::new(false);
    let program = |_: &Group| PathBuf::from("program");
    let machines =
        Launcher { script: path, root: &work, program: &program, haltkick: Path::new("/x"), stop: &stop };
    let group = Group { silence, ..group() };
    let results = std::thread::scope(|scope| {
        if let Some(after) = stop_after {
            let stop = &stop;
            scope.spawn(move || {
                std::thread::sleep(after);
                stop.store(true, Ordering::Relaxed);
            });
        }
        run(&[(group, vec!["a".into(), "b".into()])], &machines, &bounds(1), &|_| {})
    });
    std::fs::remove_dir_all(work).unwrap();
    results
}

/// Starts each test that it is asked for, in the words of the test programs.
const SAY: &str = r#"
    started() { printf '{ "type": "test", "event": "started", "name": "%s" }\n' "$1"; }
    ended() { printf '{ "type": "test", "name": "%s", "event": "%s" }\n' "$1" "$2"; }
    IFS=, read -ra tests <<<"$HALTKICK_TESTS"
"#;

#[test]
fn a_launchers_words_and_exit_code_are_understood() {
    let script = r#"
        [[ $* == "run --timeout "*" program --format json --test-threads 1" ]] || exit 2
        for test in "${tests[@]}"; do started "$test"; echo "guests say something"; ended "$test" ok; done"#;
    let results = scripted("passes", &format!("{SAY}{script}"), Duration::from_secs(60), None);
    assert_eq!(objections(&results, &ledger(""), true), []);
    let script = r#"started a; echo "the last words of the kernel" >&2; exit 125"#;
    let results = scripted("dies", &format!("{SAY}{script}"), Duration::from_secs(60), None);
    let Outcome::MachineDied { why } = outcome(&results, "a") else { panic!("{:?}", outcome(&results, "a")) };
    assert!(why[0].contains("the last words of the kernel"), "{why:?}");
}

#[test]
fn a_silent_machine_is_ended_and_its_script_may_clean_up() {
    let trace = std::env::temp_dir().join(format!("haltkick-nested.{}.cleaned", std::process::id()));
    let script = format!(
        "trap 'kill $!; echo x >>{}; ended b ok; started a; exit 143' TERM\nstarted a\nsleep 20 & wait",
        trace.display()
    );
    let results = scripted("hangs", &format!("{SAY}{script}"), Duration::from_secs(1), None);
    assert!(
        matches!(outcome(&results, "a"), Outcome::MachineDied { why } if why[0].contains("not a word for 1 s"))
    );
    assert_eq!(outcome(&results, "b"), &Outcome::Passed, "what it told at its end counts");
    let cleaned = std::fs::read_to_string(&trace).unwrap();
    std::fs::remove_file(trace).unwrap();
    assert_eq!(cleaned.lines().count(), 3, "each machine");
}

#[test]
fn a_suite_that_is_stopped_ends_at_once_and_has_not_passed() {
    // A machine that is not stopped would end by itself, and have failed the test.
    let script = format!("{SAY}trap 'kill $!; exit 143' TERM; started a; sleep 20 & wait");
    let results = scripted("stops", &script, Duration::from_secs(600), Some(Duration::from_millis(100)));
    assert_eq!(results.machines, 1);
    assert_eq!(outcome(&results, "a"), &Outcome::NotTested { why: "the suite was stopped".into() });
    assert!(!objections(&results, &ledger(""), false).is_empty());
}
