//! Guests with locks from objects. Arms, which are objects, run on every engine with all other locks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use haltkick_vmm::{Engine, HowOften, Run, Target, probe};
use support::{
    Settings, apply, deschedule, done, event, forms_of, ms, refused, reported, start, start_until, sum,
    trial, us,
};

use crate::{FLAGS, TAS, examples, linked, lock_of, root, text};

/// Every form of a lock excludes and gets something done.
fn excludes(config: &Run, object: &Path) {
    let image = linked(object);
    let forms = forms_of(image.locks.iter().rev().take(1));
    assert!(forms.first().is_some_and(|(lock, _)| *lock == lock_of(object)), "{forms:?}");
    for ((lock, pv), lock_count) in forms.iter().flat_map(|form| [(form, 1), (form, 3)]) {
        let config = config.clone().form(lock, *pv).lock_count(lock_count);
        let outcome = start_until(&config, |outcome| outcome.acquisitions() > 0);
        assert_eq!(outcome.lost_updates, Some(0), "{lock} pv {pv}");
    }
}

/// A simulated machine, on which a run is the same on every host, however busy.
fn on_two_simulated_cpus() -> Run {
    support::simulated("ivybridge-ex-4s", 2, 3)
}

/// A run under an object's native form on what is here.
fn here(object: &Path) -> Run {
    let engine = if probe().is_ok() { Engine::Kvm } else { Engine::Threads };
    // A host that is busy with something else gets nothing done in many a window, and nothing moves for seconds.
    let config = support::on(engine).window(ms(40)).min_sections(10).watchdog(Duration::from_secs(30));
    config.form(lock_of(object), false)
}

/// A run under an object's native form on a simulated machine.
fn simulated(object: &Path) -> Run {
    on_two_simulated_cpus().form(lock_of(object), false)
}

/// Returns the error of a failed run.
fn failed(config: &Run) -> String {
    start(config).expect_err("it fails").to_string()
}

const UNLOCK: &str = "void hk_unlock(struct lock *lock) {";

/// A test-and-set lock whose unlock begins with something more.
fn unlocking(name: &str, more: &str) -> PathBuf {
    text(name, &TAS.replace(UNLOCK, &format!("{UNLOCK} {more}")), &FLAGS)
}

#[apply(trial)]
fn a_fault_of_an_unlock_is_told_with_its_reason() {
    let page_fault = unlocking("fault", "__asm__ volatile(\"movl $1, 16\");");
    let late = unlocking("late", "hk_alloc(1, 1);");
    for (object, run, words) in [
        (&page_fault, here(&page_fault), &["#PF", "fault.o: hk_unlock+0x"][..]),
        (&late, simulated(&late), &["only hk_init may call it"]),
    ] {
        let error = failed(&run);
        assert!(words.iter().all(|words| error.contains(words)), "{}: {error}", object.display());
    }
}

#[apply(trial)]
fn locks_are_made_by_the_objects_init_and_its_events_are_counted() {
    // Free is 1 here, and a lock that was not made would never be taken.
    const EXCHANGE: &str = "__atomic_exchange_n(&lock->held, ";
    let source = TAS.replace(&format!("({EXCHANGE}1"), &format!("(!{EXCHANGE}0"));
    let source = source.replace("store_n(&lock->held, 0", "store_n(&lock->held, 1");
    let source = source.replace("hk_pause();\n", "hk_pause();\n    hk_count(my_own_event);\n");
    let source = source + "void hk_init(struct lock *lock) { lock->held = 1; }";
    let object = text("init", &source, &FLAGS);
    let outcome = done(&here(&object));
    let (counted, done) = (event(&outcome, "my_own_event"), outcome.acquisitions());
    assert!(done > 0 && counted >= done, "{counted} of {done}");
}

#[apply(trial)]
fn examples_and_objects_of_earlier_versions_exclude() {
    examples().iter().for_each(|path| excludes(&on_two_simulated_cpus(), path));
    for version in [1, 2] {
        let by_hand = format!(
            "void hk_lock(struct lock *);\nvoid hk_unlock(struct lock *);\nextern const hk_u32 hk_version, hk_lock_size, \
             hk_lock_align;\nconst hk_u32 hk_version = {version}, hk_lock_size = 1, hk_lock_align = 1;"
        );
        let source = TAS.replace("HK_LOCK(struct lock);", &by_hand);
        excludes(&on_two_simulated_cpus(), &text(&format!("version_{version}"), &source, &FLAGS));
    }
}

#[apply(trial)]
fn an_object_has_a_parameter_and_sees_yields_of_others() {
    let look = "static hk_u64 first, last;
        if (hk_parameter() != 7) hk_fail(\"another number\");
        last = hk_yield_count(1);
        if (!first) first = last;
        if (last - first > 2) { hk_count(saw_a_yield); }";
    let object = unlocking("version_three", look);
    let mut run = simulated(&object).vcpus(4);
    run.guests[0].ours_mut().expect("our own guest").lock_parameter = 7;
    let outcome = done(&run);
    assert!(event(&outcome, "saw_a_yield") > 0, "{:?}", outcome.lock_events);
    let error = failed(&simulated(&object));
    assert!(error.contains("another number"), "{error}");
}

#[apply(trial)]
fn an_event_that_is_chosen_at_run_time_is_counted() {
    let more = r#"
HK_EVENT(even_turns);
HK_EVENT(odd_turns);
void hk_unlock(struct lock *lock) {
    static const char *const turns[] = {hk_event_even_turns, hk_event_odd_turns};
    static hk_u32 turn;
    hk_count_event((hk_u32)(hk_u64)turns[turn++ % 2], 1);
    hk_count_event(HK_SLOT(even_turns), 0);"#;
    let object = text("chosen", &TAS.replace(UNLOCK, more), &FLAGS);
    let outcome = done(&simulated(&object));
    let [even, odd] = ["even_turns", "odd_turns"].map(|name| event(&outcome, name));
    assert!(even > 0 && even.abs_diff(odd) <= 1, "{even} and {odd}");
}

#[apply(trial)]
fn an_object_is_tried_or_interrupted_if_it_says_it_may() {
    let tries = "return !__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE);";
    let tries = format!("int hk_try_lock(struct lock *lock) {{ {tries} }}");
    for (name, more, workload, lock_count, times) in [
        ("tries", &*tries, "try-lock", 1, "try"),
        ("interrupted", "HK_MAY_BE_INTERRUPTED;", "interrupted", 2, "interrupt"),
    ] {
        let run = |more: &str| {
            let object = text(name, &format!("{TAS}{more}"), &FLAGS);
            // Without thinking the lock may never be free when it is tried, for as long as the simulated vCPUs keep in step.
            simulated(&object).workload(workload).lock_count(lock_count).hold(us(1)).think(us(1))
        };
        assert!(reported(&done(&run(more)), times) > 0, "{name}");
        refused(start(&run("")), "cannot be run with lock");
    }
}

#[apply(trial)]
fn an_object_is_stopped_at_a_point_of_its_own() {
    let object = examples()[0].with_file_name("anderson.c");
    let run = |at: &str| {
        let often = HowOften::Probability(1.0);
        let stop = deschedule(Target::Random, often, us(50), Some(at));
        simulated(&object).deschedule(stop)
    };
    let outcome = done(&run("waiting-in-slot"));
    let injected = outcome.injected.expect("the VMM schedules");
    assert!(sum(&injected) > 0, "{injected:?}");
    refused(start(&run("wating-in-slot")), "waiting-in-slot");
}

#[apply(trial)]
fn readers_of_an_object_share_its_lock() {
    const READ: &str = "void hk_read_lock(struct lock *lock)\n{\n";
    let source = std::fs::read_to_string(root().join("bench/tests/command/planted/flags.c")).unwrap();
    let counted = source.replace(READ, &format!("{READ}    hk_count(my_readers);\n"));
    let object = text("readers", &counted, &[&FLAGS[..], &["-Wno-unused-parameter"]].concat());
    let mut config = here(&object);
    config.guests[0].ours_mut().unwrap().shape.read_percent = 50;
    let outcome = done(&config);
    assert!(event(&outcome, "my_readers") > 0, "{:?}", outcome.lock_events);
}
