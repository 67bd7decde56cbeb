//! Two vCPUs in one section: the page shows lines of the lock.

use crate::objects::compiled;
use crate::support::{Check, apply, ends, haltkick, kvm_trial, scratch, trial};

/// vCPU 2 releases twice. Lines that are looked for have a mark.
const TWICE: &str = r#"
#include "haltkick.h"
struct lock { hk_u32 held; };
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
    for (int round = 0; hk_cpu() == 2 && round < 20; round++)
        hk_pause();
    if (hk_cpu() == 2)
        __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE); // again
}
"#;

/// It looks, and then stores, where it is to exchange.
fn plain() -> String {
    const LOOP: &str = "while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE)) // takes";
    const STORE: &str = "\n    __atomic_store_n(&lock->held, 1, __ATOMIC_RELAXED); // stores\n}\nstatic";
    let looks = TWICE.replace(LOOP, "while (__atomic_load_n(&lock->held, __ATOMIC_ACQUIRE))");
    looks.replace("\n}\nstatic", STORE).replace("hk_cpu() == 2", "0")
}

/// Its try takes nothing.
fn lies() -> String {
    TWICE.replace("hk_cpu() == 2", "0") + "int hk_try_lock(struct lock *lock) { return 1; } // lies\n"
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
fn a_simulated_machine_shows_how_two_vcpus_took_a_lock() -> Check {
    let place = "--engine sim --machine cascadelake-2s --cpus 0-1 --ratio 2 --window 10ms";
    let directory = scratch("meetings-simulated");
    for (name, source, workload, one, other, released) in [
        // A third vCPU may have released it in between, by the right of the lock that the second release gave it.
        ("twice", TWICE, "critical-section", "takes", "takes", &["again", "releases"][..]),
        ("plain", &plain(), "critical-section", "stores", "stores", &["releases"]),
        // Both vCPUs may have been lied to.
        ("lies", &lies(), "try-lock", "lies", "", &[]),
    ] {
        let object = compiled(&directory, name, source)?;
        let page = page(&object, &format!("{place} --workload {workload}")).expect("a broken lock");
        assert!(page.contains(" came into the section of lock 0 while vCPU "), "{page}");
        let passages: Vec<&str> =
            page.split("\nvCPU ").filter(|passage| passage.contains(" took the lock ")).collect();
        assert_eq!(passages.len(), 2, "{page}");
        let shows = |passage: &str, mark: &str| {
            mark.is_empty() || passage.contains(&line(name, source, mark)) && passage.contains("   > 0x")
        };
        let meets = |a: usize, b: usize| shows(passages[a], one) && shows(passages[b], other);
        assert!(meets(0, 1) || meets(1, 0), "{page}");
        let of_release = page.split("\nvCPU ").find(|passage| passage.contains(" released the lock last "));
        let is_shown = |mark: &&str| shows(of_release.unwrap_or("?"), mark);
        assert!(released.is_empty() || released.iter().any(is_shown), "{page}");
        assert!(!page.contains("A simulated machine tells"), "{page}");
    }
    Ok(())
}

#[apply(kvm_trial)]
fn a_page_of_kvm_names_how_two_vcpus_took_a_lock() -> Check {
    let directory = scratch("meetings-kvm");
    for (name, source, workload, takes) in [
        ("twice", TWICE, "critical-section", "hk_lock"),
        ("plain", &plain(), "critical-section", "hk_lock"),
        ("lies", &lies(), "try-lock", "hk_try_lock"),
    ] {
        let object = compiled(&directory, name, source)?;
        // A busy host may let no two vCPUs meet in a window, or two before anybody has released the lock.
        let again = || page(&object, &format!("--vcpus 4 --window 200ms --workload {workload}"));
        let has_released = |page: &String| page.contains(&format!("  in {name}.o: hk_unlock (0x"));
        let page = (0..20).find_map(|_| again().filter(has_released)).expect("a broken lock");
        let (met, _) = page.split_once("\nlock 0: ").expect("the state of the lock");
        for function in [takes, "hk_unlock"] {
            let (_, place) = met.split_once(&format!("  in {name}.o: {function} (0x")).expect(&page);
            let line = place.lines().nth(1).unwrap_or_default();
            assert!(line.contains(&format!("/{name}.c:")) && line.ends_with(function), "{page}");
        }
        assert!(met.contains("A simulated machine tells the instructions"), "{page}");
    }
    Ok(())
}

#[apply(trial)]
fn a_preemption_that_lets_two_in_is_shown_with_lines() -> Check {
    let (directory, source) = (scratch("meetings-worst"), plain());
    let object = compiled(&directory, "plain", &source)?;
    let place = "--machine nehalem-2s --cpus 0-1 --slice 200us --find-bugs --think 100us";
    ends(5, &format!("worst --lock-object {object} {place} --output {directory}/worst"));
    let file = format!("{directory}/worst/broken-001.toml");
    if std::fs::exists(&file)? {
        // Otherwise it broke without a preemption.
        ends(5, &format!("worst --replay {file}")).prints(&[&line("plain", &source, "stores")]);
    }
    Ok(())
}
