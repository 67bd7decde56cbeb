//! Which locks one page costs, mapped and unmapped, and what is done under them.

use crate::support::{GRANTER, MAPPER, Step, Tickets, steps, world};
use haltkick_grants::*;

/// Acquisitions of each kind of lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Acquisitions {
    maptrack: usize,
    readers: usize,
    writers: usize,
    entries: usize,
}

/// What one page mapped and unmapped takes.
fn for_one_page<S: Scheme>() -> (Vec<Step>, Vec<Step>) {
    let (world, vcpu) = (world::<S>(1), Vcpu::new(0, 1));
    world.shared(GRANTER, 3).publish(MAPPER, PERMIT_ACCESS, 5);
    let (mut handle, request) = (0, MapRequest { granter: GRANTER, reference: 3, flags: HOST_MAP });
    let map = steps(|| handle = world.map(&vcpu, MAPPER, request).unwrap());
    let unmap = steps(|| world.unmap(&vcpu, MAPPER, &[handle], |_, status| panic!("{status}")).unwrap());
    assert!(world.rest().is_clean());
    (map, unmap)
}

fn acquisitions<S: Scheme>() -> Acquisitions {
    let (map, unmap) = for_one_page::<S>();
    let mut of = Acquisitions::default();
    for step in map.into_iter().chain(unmap) {
        match step {
            Step::Take(Taken::Maptrack(_)) => of.maptrack += 1,
            Step::Take(Taken::TableRead(_)) => of.readers += 1,
            Step::Take(Taken::TableWrite(_)) => of.writers += 1,
            Step::Take(Taken::Entry(_)) => of.entries += 1,
            Step::Drop(_) | Step::PageTable => {}
        }
    }
    of
}

#[test]
fn a_page_takes_so_many_locks_under_each_scheme() {
    let count = |maptrack, readers, writers, entries| Acquisitions { maptrack, readers, writers, entries };
    assert_eq!(acquisitions::<Single<Tickets>>(), count(0, 4, 2, 0), "six of one kind");
    for (scheme, found) in [
        ("split", acquisitions::<Split<Tickets>>()),
        ("cleaned", acquisitions::<Cleaned<Tickets>>()),
        ("lists", acquisitions::<Lists<Tickets>>()),
        ("per-CPU", acquisitions::<PerCpu<Tickets>>()),
        ("fair", acquisitions::<Fair<Tickets>>()),
    ] {
        assert_eq!(found, count(2, 3, 0, 3), "{scheme}");
    }
}
