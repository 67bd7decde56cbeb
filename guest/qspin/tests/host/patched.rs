//! Locks that are made paravirtual by patching their code.
#![expect(unsafe_code, reason = "code is written")]

use std::collections::BTreeSet;

use haltkick_qspin::*;
use haltkick_testing::write_code;

use crate::{
    chosen::{contend, sleeps},
    support::Cpus,
};

#[test]
fn only_a_lock_of_the_patched_choice_is_paravirtual() {
    patched_choice! { Patched; Left; }
    // SAFETY: no lock of this choice has been made, so no CPU is at these places.
    let places = unsafe { Patched::make_paravirtual(|place, jump| write_code(place, jump)) };
    assert!(places > 3, "{places}: lock_slow, unlock, in two layouts");
    let until_asleep = |host: &Cpus| host.until_counted(1, Event::PvWaitHead);
    let paravirtual = [
        contend::<Chosen<Patched>, DefaultWord>(until_asleep),
        contend::<Chosen<Patched>, Whole>(until_asleep),
        contend::<Chosen<Patched, WorkConserving>, DefaultWord>(until_asleep),
    ];
    assert!(paravirtual.iter().all(|host| host.events(Event::LockPending) == 0));
    let native = contend::<Chosen<Left>, DefaultWord>(|host| host.until_paused(1, 100));
    assert_eq!(sleeps(&native), 0);
    assert!(native.events(Event::LockPending) > 0);
}

#[test]
fn each_place_is_a_nop_or_store_until_patched_to_one_jump() {
    patched_choice! { Form; }
    assert!(!Form::is_paravirtual());
    let domain = QSpinDomain::<Cpus, 1>::new(Cpus::impatient(1));
    let lock = QSpinLock::<Chosen<Form>>::new();
    Cpus::become_cpu(0);
    lock.lock(&domain);
    lock.unlock(&domain, ());
    let patch = || {
        let mut jumps = BTreeSet::new();
        // SAFETY: no lock of this choice is made; code in one place is as good as in the other.
        let places = unsafe {
            Form::make_paravirtual(|place, jump| {
                let before = place.cast::<[u8; 5]>().cast_const().read_unaligned();
                // MOV of a byte with a distance of four bytes, maybe with a prefix for the register.
                let is_store = before[0] == 0xc6 || (before[0] == 0x41 && before[1] == 0xc6);
                let is_native = before == [0x0f, 0x1f, 0x44, 0, 0] || is_store;
                assert!(is_native || before == jump, "{before:x?} at {place:?}");
                jumps.insert((place.addr(), jump));
                write_code(place, jump);
            })
        };
        assert_eq!(jumps.len(), places, "each once");
        jumps
    };
    let first = patch();
    assert!(!first.is_empty() && Form::is_paravirtual());
    assert_eq!(patch(), first);
}
