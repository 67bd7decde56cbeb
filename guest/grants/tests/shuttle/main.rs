//! Grant tables under random schedules with few, but ill-chosen, preemptions.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p haltkick-grants --test shuttle`
//!
//! Spinlocks sleep here, so CPUs that wait for each other are a deadlock that shuttle reports.
//! `haltkick_testing::try_schedules` says how to try more schedules, and how to run a failure again.

#![cfg(shuttle)]

mod machine;
#[path = "../grants/shared.rs"]
mod shared;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use haltkick_grants::*;
use machine::{Sleeping, play_out};
use shared::{GRANTER, MAPPER, to_map, under_every_scheme};

under_every_scheme! {
    run, Sleeping;
    pins_add_up_whatever_the_granter_does
    a_handle_that_two_cpus_unmap_is_unmapped_once
    a_grant_is_not_mixed_up_with_its_partner_in_a_swap
    devices_reach_a_page_while_one_of_two_entries_leads_there
    a_page_that_was_taken_back_is_not_mapped
    opposite_swaps_of_one_pair_come_through
}

fn run(test: fn()) {
    test();
}

fn unmap<S: Scheme>(world: &World<S>, vcpu: &Vcpu, handle: u32) {
    world.unmap(vcpu, MAPPER, &[handle], |handle, status| panic!("handle {handle}: {status}")).unwrap();
}

/// Two map one entry, for reading or writing, while the granter takes it back, grants it anew, or names another page.
fn pins_add_up_whatever_the_granter_does<S: Scheme>() {
    play_out::<S, _>(
        3,
        |world| world.shared(GRANTER, 0).publish(MAPPER, PERMIT_ACCESS, 0),
        |cpu, vcpu, world, ()| {
            let entry = world.shared(GRANTER, 0);
            for _ in 0..2 {
                match (cpu, vcpu.random(3)) {
                    (0, 0) => entry.publish(MAPPER, PERMIT_ACCESS, 0),
                    (0, 1) => entry.overwrite_frame(1),
                    (0, _) => _ = entry.revoke(),
                    (_, kind) => map_and_unmap(world, vcpu, [0, READONLY_MAP, READONLY_MAP][kind]),
                }
            }
        },
        |_, ()| (),
    );
}

fn map_and_unmap<S: Scheme>(world: &World<S>, vcpu: &Vcpu, readonly: u32) {
    if let Ok(handle) = world.map(vcpu, MAPPER, to_map(0, HOST_MAP | readonly)) {
        let (_, writable) = world.mapped(vcpu, MAPPER, handle).expect("what was mapped is there");
        assert_eq!(writable, readonly == 0);
        assert!(world.device_reaches(vcpu, MAPPER, handle, writable), "as long as it is mapped");
        unmap(world, vcpu, handle);
    }
}

fn a_handle_that_two_cpus_unmap_is_unmapped_once<S: Scheme>() {
    play_out::<S, _>(
        2,
        |world| {
            world.shared(GRANTER, 0).publish(MAPPER, PERMIT_ACCESS, 0);
            let handle = world.map(&Vcpu::new(0, 1), MAPPER, to_map(0, HOST_MAP)).unwrap();
            (handle, AtomicUsize::new(0))
        },
        |_, vcpu, world, (handle, refused)| {
            let refuse = |_, status| {
                assert_eq!(status, Status::BadHandle);
                refused.fetch_add(1, Relaxed);
            };
            world.unmap(vcpu, MAPPER, &[*handle], refuse).unwrap();
        },
        |_, (_, refused)| assert_eq!(refused.load(Relaxed), 1),
    );
}

/// Page 0 is granted for writing, page 1 for reading. Whatever entry leads there meanwhile, page 1 must not be
/// writable.
fn a_grant_is_not_mixed_up_with_its_partner_in_a_swap<S: Scheme>() {
    play_out::<S, _>(
        3,
        |world| {
            world.shared(GRANTER, 0).publish(MAPPER, PERMIT_ACCESS, 0);
            world.shared(GRANTER, 1).publish(MAPPER, PERMIT_ACCESS | READONLY, 1);
        },
        |cpu, vcpu, world, ()| {
            if cpu == 0 {
                // Refused while one is mapped.
                _ = world.swap(vcpu, GRANTER, 1, 0);
                return world.grow(vcpu, GRANTER, 3).unwrap();
            }
            let reference = vcpu.random(3) as u32;
            if let Ok(handle) = world.map(vcpu, MAPPER, to_map(reference, HOST_MAP)) {
                let (page, _) = world.mapped(vcpu, MAPPER, handle).expect("what was mapped is there");
                assert!(std::ptr::eq(page, world.page(GRANTER, 0).unwrap()), "page 1 can be written");
                unmap(world, vcpu, handle);
            }
        },
        |_, ()| (),
    );
}

fn devices_reach_a_page_while_one_of_two_entries_leads_there<S: Scheme>() {
    play_out::<S, _>(
        2,
        |world| {
            (0..2).for_each(|reference| world.shared(GRANTER, reference).publish(MAPPER, PERMIT_ACCESS, 0))
        },
        |cpu, vcpu, world, ()| {
            let readonly = [0, READONLY_MAP][vcpu.random(2)];
            let handle = world.map(vcpu, MAPPER, to_map(cpu as u32, HOST_MAP | readonly)).unwrap();
            assert!(world.device_reaches(vcpu, MAPPER, handle, readonly == 0));
            unmap(world, vcpu, handle);
        },
        |_, ()| (),
    );
}

/// The granter takes its page back as soon as it may; from then on neither a mapping nor a cached translation leads there.
fn a_page_that_was_taken_back_is_not_mapped<S: Scheme>() {
    play_out::<S, _>(
        3,
        |world| {
            world.shared(GRANTER, 0).publish(MAPPER, PERMIT_ACCESS, 0);
            let handle = world.map(&Vcpu::new(1, 1), MAPPER, to_map(0, HOST_MAP)).unwrap();
            // Shuttle's, so that others may come between a look at it and what precedes it.
            (handle, shuttle::sync::atomic::AtomicBool::new(false))
        },
        |cpu, vcpu, world, (handle, taken_back)| match cpu {
            0 => {
                for _ in 0..2 {
                    taken_back.fetch_or(world.shared(GRANTER, 0).revoke(), Relaxed);
                }
            }
            1 => {
                for unmapped_before in [false, true] {
                    if unmapped_before {
                        unmap(world, vcpu, *handle);
                    }
                    if let Ok(other) = world.map(vcpu, MAPPER, to_map(0, HOST_MAP)) {
                        assert!(!taken_back.load(Relaxed), "mapped, and taken back");
                        unmap(world, vcpu, other);
                    }
                }
            }
            _ => {
                // Cached by this vCPU now, if it is not too late.
                _ = world.mapped(vcpu, MAPPER, *handle);
                if taken_back.load(Relaxed) {
                    assert!(world.mapped(vcpu, MAPPER, *handle).is_err(), "cached, and taken back");
                }
            }
        },
        |_, _| (),
    );
}

/// Two vCPUs swap one pair in opposite orders.
fn opposite_swaps_of_one_pair_come_through<S: Scheme>() {
    play_out::<S, _>(
        2,
        |_| (),
        |cpu, vcpu, world, ()| {
            let (a, b) = [(0, 1), (1, 0)][cpu];
            world.swap(vcpu, GRANTER, a, b).unwrap();
        },
        |_, ()| (),
    );
}
