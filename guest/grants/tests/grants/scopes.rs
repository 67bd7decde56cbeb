//! Which locks one page costs, mapped and unmapped, and what is done under them.

use crate::shared::{GRANTER, MAPPER};
use crate::support::{Step, Tickets, steps, world};
use haltkick_grants::*;

/// Steps of mapping one page and of unmapping it.
fn for_one_page<S: Scheme>() -> (Vec<Step>, Vec<Step>) {
    let (world, vcpu) = (world::<S>(1), Vcpu::new(0, 1));
    world.shared(GRANTER, 3).publish(MAPPER, PERMIT_ACCESS, 5);
    let (mut handle, request) = (0, MapRequest { granter: GRANTER, reference: 3, flags: HOST_MAP });
    let map = steps(|| handle = world.map(&vcpu, MAPPER, request).unwrap());
    let unmap = steps(|| world.unmap(&vcpu, MAPPER, &[handle], |_, status| panic!("{status}")).unwrap());
    assert!(world.rest().is_clean());
    (map, unmap)
}

/// Returns the steps of a map and of an unmap with the locks that they are under: `L` is the mapper's table,
/// `R` the granter's, `!` for writing, `pte` the change of the page table.
fn scopes<S: Scheme>() -> [String; 2] {
    let (map, unmap) = for_one_page::<S>();
    [map, unmap].map(|steps| {
        let words = steps.into_iter().map(|step| match step {
            Step::Take(Taken::Maptrack(_), _) => "maptrack{".into(),
            Step::Take(Taken::TableRead(domain), _) => format!("{}{{", table(domain)),
            Step::Take(Taken::TableWrite(domain), _) => format!("{}!{{", table(domain)),
            Step::Take(Taken::Entry(_), _) => "entry{".into(),
            Step::Take(Taken::Kernel, _) => "kernel{".into(),
            Step::Drop(_) => "}".into(),
            Step::PageTable => "pte".into(),
        });
        words.collect::<Vec<_>>().join(" ")
    })
}

fn table(domain: u16) -> &'static str {
    ["L", "R"][usize::from(domain)]
}

/// Nine locks of one kind for one page.
#[test]
fn before_2013_both_tables_are_held_in_map_and_unmap() {
    assert_eq!(scopes::<Single<Tickets>>(), ["L!{ } R{ } pte L{ R{ } }", "L{ } L{ R{ pte } } R{ } L!{ }"]);
}

#[test]
fn as_posted_table_and_entry_are_held_and_handles_go_back_last() {
    let posted = ["maptrack{ } R{ entry{ pte } }", "L{ } R{ entry{ pte } } R{ entry{ } } maptrack{ }"];
    assert_eq!(scopes::<Split<Tickets>>(), posted);
}

#[test]
fn with_shorter_sections_a_map_changes_the_page_table_outside() {
    let map = "maptrack{ } R{ entry{ } } pte";
    assert_eq!(scopes::<Brief<Tickets>>(), [map, "R{ entry{ pte } } R{ entry{ maptrack{ } } }"]);
    for found in [
        scopes::<Cleaned<Tickets>>(),
        scopes::<Lists<Tickets>>(),
        scopes::<PerCpu<Tickets>>(),
        scopes::<Fair<Tickets>>(),
    ] {
        assert_eq!(found, [map, "R{ entry{ pte } } R{ entry{ } } maptrack{ }"]);
    }
}

/// A page without another mapping becomes reachable, and unreachable again: two more changes of page tables.
#[test]
fn with_a_strict_iommu_the_table_is_write_locked_and_maptrack_counts() {
    let split = [
        "maptrack{ } R!{ entry{ pte maptrack{ } pte } }",
        "L{ } R!{ entry{ pte maptrack{ } pte } } R{ entry{ } } maptrack{ }",
    ];
    assert_eq!(scopes::<StrictSplit<Tickets>>(), split);
    let single = ["L!{ } R!{ } pte L{ R{ pte } }", "L{ } L{ R{ pte pte } } R{ } L!{ }"];
    assert_eq!(scopes::<StrictSingle<Tickets>>(), single);
}

/// Returns the places of the maptrack lock and of the lock of the mapper's table, in lines of 64 bytes.
fn lines<S: Scheme>() -> [usize; 2] {
    let (map, unmap) = for_one_page::<S>();
    let line_of = |wanted| {
        map.iter().chain(&unmap).find_map(|step| match step {
            Step::Take(taken, address) if *taken == wanted => Some(address / 64),
            _ => None,
        })
    };
    [Taken::Maptrack(0), Taken::TableRead(MAPPER)].map(|taken| line_of(taken).expect("it is taken"))
}

#[test]
fn the_maptrack_lock_has_its_own_line_unless_unpadded() {
    let [maptrack, table] = lines::<Split<Tickets>>();
    assert_ne!(maptrack, table);
    let [maptrack, table] = lines::<Unpadded<Tickets>>();
    assert_eq!(maptrack, table);
    assert_eq!(scopes::<Unpadded<Tickets>>(), scopes::<Split<Tickets>>());
}
