//! Many vCPUs at once: the streaming disks with their hostile guest, and the order of locks.

use std::any::type_name;
use std::env;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::shared::Heap;
use crate::support::{MOST_VCPUS, Step, Tickets, on_each_vcpu, steps};
use haltkick_grants::*;
use haltkick_testing::tests;

const VCPUS: usize = if cfg!(miri) { 2 } else { MOST_VCPUS };
const DISKS: usize = if cfg!(miri) { 1 } else { 4 };
const ROUNDS: usize = if cfg!(miri) { 3 } else { 300 };

/// Schemes that disks stream under.
const SCHEMES: u64 = 13;
/// Counters of operations, both done and refused.
const OPERATIONS: [Counter; 6] =
    [Counter::Map, Counter::Unmap, Counter::Copy, Counter::Grow, Counter::Swap, Counter::Refused];

/// Operations that the streaming tests share: each goes on until it has done its part. `GRANT_OPERATIONS` sets it.
fn operations_wanted() -> u64 {
    env::var("GRANT_OPERATIONS").map_or(0, |n| n.parse().expect("GRANT_OPERATIONS is a number"))
}

/// Every disk is served by the first vCPU that comes, with everything that is hostile and occasional in
/// between. Once, or until enough has been done; each time all come to rest, everything is checked.
fn all_pages_come_home<S: Scheme>(arrangement: Arrangement) {
    let stream = Stream::<S>::new(&Heap, DISKS, VCPUS, arrangement);
    let wanted = operations_wanted() / SCHEMES;
    let (mut times, counted) = (0, Counter::ALL.map(|_| AtomicU64::new(0)));
    let count = |counter: Counter| counted[counter as usize].load(Relaxed);
    let operations = || OPERATIONS.into_iter().map(count).sum::<u64>();
    while times == 0 || operations() < wanted {
        times += 1;
        on_each_vcpu(VCPUS, times, |vcpu| {
            stream_for_a_while(&stream, vcpu);
            for counter in Counter::ALL {
                counted[counter as usize].fetch_add(vcpu.counted(counter), Relaxed);
            }
        });
        stream.rest().unwrap_or_else(|unrest| panic!("{unrest:?}"));
        assert_eq!(count(Counter::Map), count(Counter::Unmap));
    }
    let counts = Counter::ALL.map(|counter| format!("{} {}", counter.name(), count(counter)));
    println!(
        "{}, {arrangement:?}: {} operations, {times} times at rest, no violation ({})",
        type_name::<S>(),
        operations(),
        counts.join(", ")
    );
}

fn stream_for_a_while<S: Scheme>(stream: &Stream<S>, vcpu: &Vcpu) {
    for round in 0..ROUNDS {
        let mut disks = stream.disks_of(vcpu).cycle();
        let disk = disks.nth(vcpu.random(DISKS));
        if let Some(mut request) = disk.and_then(|disk| stream.claim(disk)) {
            stream.publish(vcpu, &request);
            stream.map(vcpu, &mut request);
            stream.move_data(vcpu, &request);
            stream.unmap(vcpu, &request);
            stream.finish(vcpu, request);
        }
        stream.torment(vcpu);
        stream.probe(vcpu);
        match round % 8 {
            0 => stream.grow(vcpu),
            1 => stream.swap(vcpu),
            _ => stream.torment(vcpu),
        }
    }
}

const FREE: Arrangement = Arrangement { bound: false, kernel_lock: None };
const BOUND: Arrangement = Arrangement { bound: true, ..FREE };
const GRANTER_LOCK: Arrangement = Arrangement { kernel_lock: Some(KernelLock::Granter), ..FREE };
const MAPPER_LOCK: Arrangement = Arrangement { kernel_lock: Some(KernelLock::Mapper), ..FREE };

tests! {
    under_one_lock_all_pages_come_home: all_pages_come_home::<Single<Tickets>>(FREE);
    under_one_lock_and_a_strict_iommu_all_pages_come_home: all_pages_come_home::<StrictSingle<Tickets>>(FREE);
    under_split_locks_all_pages_come_home: all_pages_come_home::<Split<Tickets>>(FREE);
    under_split_locks_and_a_strict_iommu_all_pages_come_home: all_pages_come_home::<StrictSplit<Tickets>>(FREE);
    with_an_unpadded_maptrack_lock_all_pages_come_home: all_pages_come_home::<Unpadded<Tickets>>(FREE);
    with_shorter_sections_all_pages_come_home: all_pages_come_home::<Brief<Tickets>>(FREE);
    bound_to_vcpus_all_pages_come_home: all_pages_come_home::<Split<Tickets>>(BOUND);
    with_a_lock_in_the_granters_kernel_all_pages_come_home: all_pages_come_home::<Split<Tickets>>(GRANTER_LOCK);
    with_a_lock_in_the_mappers_kernel_all_pages_come_home: all_pages_come_home::<Split<Tickets>>(MAPPER_LOCK);
    under_cleaned_locks_all_pages_come_home: all_pages_come_home::<Cleaned<Tickets>>(FREE);
    with_lists_per_vcpu_all_pages_come_home: all_pages_come_home::<Lists<Tickets>>(FREE);
    under_per_cpu_locks_all_pages_come_home: all_pages_come_home::<PerCpu<Tickets>>(FREE);
    under_fair_locks_all_pages_come_home: all_pages_come_home::<Fair<Tickets>>(FREE);
}

/// Each disk is some vCPU's, and no other one's.
#[test]
fn bound_disks_are_served_by_one_vcpu_each_and_others_by_all() {
    for (vcpus, disks) in [(2, 24), (3, 4), (4, 3), (5, 1)] {
        let served = |bound| {
            let arrangement = Arrangement { bound, kernel_lock: None };
            let stream = Stream::<Split<Tickets>>::new(&Heap, disks, vcpus, arrangement);
            let mut served = vec![0; disks];
            let of_all = (0..vcpus).flat_map(|vcpu| stream.disks_of(&Vcpu::new(vcpu, 1)));
            of_all.for_each(|disk| served[disk] += 1);
            served
        };
        assert_eq!(served(true), vec![1; disks]);
        assert_eq!(served(false), vec![vcpus; disks]);
    }
}

/// A lock of a kernel's own is taken twice for each page, and the look at rest notices if it does not exclude.
#[test]
fn a_kernels_own_lock_is_taken_when_pages_come_and_go() {
    for (arrangement, taken) in [(BOUND, 0), (GRANTER_LOCK, 2), (MAPPER_LOCK, 2)] {
        let (stream, vcpu) = (Stream::<Split<Tickets>>::new(&Heap, 1, 1, arrangement), Vcpu::new(0, 1));
        let steps = steps(|| {
            let mut request = stream.claim(0).unwrap();
            stream.publish(&vcpu, &request);
            stream.map(&vcpu, &mut request);
            stream.move_data(&vcpu, &request);
            stream.unmap(&vcpu, &request);
            stream.finish(&vcpu, request);
        });
        let kernels = steps.iter().filter(|step| matches!(step, Step::Take(Taken::Kernel, _))).count();
        assert_eq!(kernels, taken * SEGMENTS, "{arrangement:?}");
    }
}
