//! Effects and refusals of each operation, under every scheme.

use crate::shared::{GRANTER, MAPPER, to_map, under_every_scheme};
use crate::support::{STRANGER, Tickets, world};
use haltkick_grants::*;

/// A test in a world with five vCPUs, of which it has the first. The world is clean in the end.
fn in_a_world<S: Scheme>(test: fn(&World<S>, &Vcpu)) {
    let world = world::<S>(5);
    test(&world, &Vcpu::new(0, 1));
    let rest = world.rest();
    assert!(rest.is_clean(), "{rest:?}");
}

under_every_scheme! {
    in_a_world, Tickets;
    a_mapping_reaches_the_granters_page_until_it_is_unmapped
    devices_reach_what_is_mapped_as_far_as_it_is
    pins_and_flags_follow_the_mappings
    a_bad_request_gets_its_status_is_counted_and_changes_nothing
    a_full_pin_counter_refuses_one_more
    a_domain_without_handles_is_refused
    copies_go_by_grants_or_the_callers_own_pages
    domains_can_map_their_own_and_each_others_pages
    a_table_grows_up_to_its_limit
    swapped_entries_change_places
}

fn grant<S: Scheme>(world: &World<S>, reference: u32, flags: u32, number: u32) -> &'static SharedEntry {
    let entry = world.shared(GRANTER, reference);
    entry.publish(MAPPER, flags, number);
    entry
}

fn unmap<S: Scheme>(world: &World<S>, vcpu: &Vcpu, handles: &[u32]) -> Vec<(u32, Status)> {
    let mut refused = vec![];
    world.unmap(vcpu, MAPPER, handles, |handle, status| refused.push((handle, status))).unwrap();
    refused
}

fn a_mapping_reaches_the_granters_page_until_it_is_unmapped<S: Scheme>(world: &World<S>, vcpu: &Vcpu) {
    let vcpus = [vcpu, &Vcpu::new(1, 1)];
    grant(world, 3, PERMIT_ACCESS, 5);
    let handle = world.map(vcpu, MAPPER, to_map(3, HOST_MAP)).unwrap();
    for (value, vcpu) in vcpus.into_iter().enumerate() {
        // It has the translation cached now.
        let (mapped, writable) = world.mapped(vcpu, MAPPER, handle).unwrap();
        mapped.write(7, value as u64);
        assert!(writable);
        assert_eq!(world.page(GRANTER, 5).unwrap().read(7), value as u64);
    }
    assert_eq!(unmap(world, vcpu, &[handle]), []);
    assert!(vcpus.iter().all(|vcpu| world.mapped(vcpu, MAPPER, handle).is_err()), "a vCPU still has it");
}

fn devices_reach_what_is_mapped_as_far_as_it_is<S: Scheme>(world: &World<S>, vcpu: &Vcpu) {
    // One page by two entries.
    grant(world, 3, PERMIT_ACCESS, 5);
    grant(world, 4, PERMIT_ACCESS, 5);
    let map = |reference, flags| world.map(vcpu, MAPPER, to_map(reference, flags)).unwrap();
    let reads = map(3, HOST_MAP | READONLY_MAP);
    let reach = || [false, true].map(|write| world.device_reaches(vcpu, MAPPER, reads, write));
    assert_eq!(reach(), [true, !S::STRICT_IOMMU]);
    let writes = map(4, HOST_MAP);
    let writes_too = map(3, DEVICE_MAP);
    assert_eq!(reach(), [true, true]);
    assert_eq!(world.rest().reachable, usize::from(S::STRICT_IOMMU));
    unmap(world, vcpu, &[writes]);
    assert_eq!(reach(), [true, true], "there is another one for writing");
    unmap(world, vcpu, &[writes_too]);
    assert_eq!(reach(), [true, !S::STRICT_IOMMU]);
    unmap(world, vcpu, &[reads]);
    assert_eq!(reach(), [false, false]);
}

fn pins_and_flags_follow_the_mappings<S: Scheme>(world: &World<S>, vcpu: &Vcpu) {
    let entry = grant(world, 3, PERMIT_ACCESS, 5);
    let marks = || entry.word() & (READING | WRITING);
    let reads = world.map(vcpu, MAPPER, to_map(3, HOST_MAP | READONLY_MAP)).unwrap();
    assert_eq!(marks(), READING);
    let writes = world.map(vcpu, MAPPER, to_map(3, HOST_MAP | DEVICE_MAP)).unwrap();
    assert_eq!(marks(), READING | WRITING);
    assert!(!entry.revoke(), "in use");
    unmap(world, vcpu, &[writes]);
    assert_eq!(marks(), READING);
    assert_eq!(world.rest().pinned, 1);
    unmap(world, vcpu, &[reads]);
    assert_eq!(marks(), 0);
    assert!(entry.revoke());
}

#[expect(clippy::too_many_lines, reason = "it is one table")]
fn a_bad_request_gets_its_status_is_counted_and_changes_nothing<S: Scheme>(world: &World<S>, vcpu: &Vcpu) {
    use Status::*;
    type Asked<'a> = &'a dyn Fn() -> Result<(), Status>;
    // One entry is mapped meanwhile, so that there are counts to be changed; one handle has been used before.
    grant(world, 0, PERMIT_ACCESS, 0);
    grant(world, 1, PERMIT_ACCESS | READONLY, 1);
    grant(world, 2, ACCEPT_TRANSFER, 20);
    grant(world, 3, PERMIT_ACCESS, 99);
    let stale = world.map(vcpu, MAPPER, to_map(0, HOST_MAP)).unwrap();
    let handle = world.map(vcpu, MAPPER, to_map(0, HOST_MAP)).unwrap();
    unmap(world, vcpu, &[stale]);

    let map = |mapper, granter, reference, flags| {
        world.map(vcpu, mapper, MapRequest { granter, reference, flags }).map(drop)
    };
    let unmap_one = |mapper, handle| {
        let mut result = Ok(());
        world.unmap(vcpu, mapper, &[handle], |_, status| result = Err(status)).and(result)
    };
    let granted = |granter, reference| Place::Granted { granter, reference };
    let own = |number| Place::Own { number };
    let copy = |caller, source, destination, source_offset, length| {
        let request = CopyRequest { source, source_offset, destination, destination_offset: 16, length };
        world.copy(vcpu, caller, request)
    };
    let (from, to) = (granted(GRANTER, 1), granted(GRANTER, 0));
    let requests: &[(Status, &str, Asked<'_>)] = &[
        (BadDomain, "map by nobody", &|| map(9, GRANTER, 0, HOST_MAP)),
        (BadDomain, "map of nobody's", &|| map(MAPPER, u16::MAX, 0, HOST_MAP)),
        (BadReference, "map beyond the table", &|| map(MAPPER, GRANTER, 16, HOST_MAP)),
        (BadReference, "map far beyond the table", &|| map(MAPPER, GRANTER, u32::MAX, HOST_MAP)),
        (GeneralError, "map for nothing", &|| map(MAPPER, GRANTER, 0, 0)),
        (GeneralError, "map for nothing but reading", &|| map(MAPPER, GRANTER, 0, READONLY_MAP)),
        (GeneralError, "map with an unknown flag", &|| map(MAPPER, GRANTER, 0, HOST_MAP | 1 << 3)),
        (GeneralError, "map of what is not granted", &|| map(MAPPER, GRANTER, 4, HOST_MAP)),
        (GeneralError, "map of a place for a page", &|| map(MAPPER, GRANTER, 2, HOST_MAP)),
        (GeneralError, "map of what another one may map", &|| map(STRANGER, GRANTER, 3, HOST_MAP)),
        (GeneralError, "map of what another one has mapped", &|| map(STRANGER, GRANTER, 0, HOST_MAP)),
        (PermissionDenied, "map for writing", &|| map(MAPPER, GRANTER, 1, HOST_MAP)),
        (BadPage, "map of a page that the granter has not got", &|| map(MAPPER, GRANTER, 3, HOST_MAP)),
        (BadDomain, "unmap by nobody", &|| unmap_one(9, handle)),
        (BadHandle, "unmap once more", &|| unmap_one(MAPPER, stale)),
        (BadHandle, "unmap of what was never mapped", &|| unmap_one(MAPPER, 319)),
        (BadHandle, "unmap beyond maptrack", &|| unmap_one(MAPPER, 320)),
        (BadHandle, "unmap far beyond maptrack", &|| unmap_one(MAPPER, u32::MAX)),
        (BadHandle, "unmap of another one's handle", &|| unmap_one(STRANGER, handle)),
        (BadDomain, "copy by nobody", &|| copy(9, from, to, 8, 8)),
        (BadDomain, "copy of nobody's", &|| copy(MAPPER, granted(9, 1), to, 8, 8)),
        (BadDomain, "copy to nobody's", &|| copy(MAPPER, from, granted(9, 0), 8, 8)),
        (BadReference, "copy from beyond the table", &|| copy(MAPPER, granted(GRANTER, 16), to, 8, 8)),
        (BadReference, "copy to beyond the table", &|| copy(MAPPER, from, granted(GRANTER, 16), 8, 8)),
        (GeneralError, "copy of what is not granted", &|| copy(MAPPER, granted(GRANTER, 4), to, 8, 8)),
        (PermissionDenied, "copy to what may be read", &|| copy(MAPPER, to, from, 8, 8)),
        (BadPage, "copy of a page that the caller has not got", &|| copy(MAPPER, own(8), to, 8, 8)),
        (BadPage, "copy to a page that the caller has not got", &|| copy(MAPPER, from, own(8), 8, 8)),
        (BadCopyArgument, "copy of half a word", &|| copy(MAPPER, from, to, 8, 4)),
        (BadCopyArgument, "copy from the middle of a word", &|| copy(MAPPER, from, to, 4, 8)),
        (BadCopyArgument, "copy across the end", &|| copy(MAPPER, from, to, 8, PAGE_BYTES - 8)),
        (BadCopyArgument, "copy of very much", &|| copy(MAPPER, from, to, 8, usize::MAX & !7)),
        (BadDomain, "growth of nobody's table", &|| world.grow(vcpu, 9, 20)),
        (NoSpace, "growth beyond the limit", &|| world.grow(vcpu, GRANTER, 25)),
        (BadDomain, "size of nobody's table", &|| world.references(vcpu, 9).map(drop)),
        (BadDomain, "swap in nobody's table", &|| world.swap(vcpu, 9, 0, 1)),
        (BadReference, "swap with what is beyond the table", &|| world.swap(vcpu, GRANTER, 1, 16)),
        (BadReference, "swap of what is beyond the table", &|| world.swap(vcpu, GRANTER, 16, 1)),
        (Again, "swap of what is mapped", &|| world.swap(vcpu, GRANTER, 1, 0)),
    ];
    let entries =
        || [0, 1, 2, 3].map(|it| (world.shared(GRANTER, it).word(), world.shared(GRANTER, it).frame()));
    for (status, what, request) in requests {
        let (rest, entries_before, mut counted) = (world.rest(), entries(), counts(vcpu));
        assert_eq!(request(), Err(*status), "{what}");
        counted[Counter::Refused as usize] += 1;
        assert_eq!(counts(vcpu), counted, "{what}");
        assert_eq!((world.rest(), entries()), (rest, entries_before), "{what}");
    }
    // No pin has been lost or left.
    assert_eq!(unmap(world, vcpu, &[handle, handle]), [(handle, BadHandle)], "twice in a batch");
}

fn counts(vcpu: &Vcpu) -> [u64; Counter::COUNT] {
    Counter::ALL.map(|counter| vcpu.counted(counter))
}

fn a_full_pin_counter_refuses_one_more<S: Scheme>(world: &World<S>, vcpu: &Vcpu) {
    grant(world, 0, PERMIT_ACCESS, 0);
    let handles: Vec<u32> = (0..255).map(|_| world.map(vcpu, MAPPER, to_map(0, HOST_MAP)).unwrap()).collect();
    assert_eq!(world.map(vcpu, MAPPER, to_map(0, HOST_MAP)), Err(Status::GeneralError));
    let others = [DEVICE_MAP, HOST_MAP | READONLY_MAP, DEVICE_MAP | READONLY_MAP];
    let other_counters = others.map(|flags| world.map(vcpu, MAPPER, to_map(0, flags)).unwrap());
    unmap(world, vcpu, &handles);
    assert_eq!(vcpu.counted(Counter::Invalidate), 8, "one for each 32 of 255");
    unmap(world, vcpu, &other_counters);
}

fn a_domain_without_handles_is_refused<S: Scheme>(world: &World<S>, _: &Vcpu) {
    let vcpu = &Vcpu::new(1, 1);
    for reference in 0..2 {
        grant(world, reference, PERMIT_ACCESS, reference);
    }
    let mut handles = vec![];
    let status = loop {
        match world.map(vcpu, MAPPER, to_map(handles.len() as u32 % 2, HOST_MAP)) {
            Ok(handle) => handles.push(handle),
            Err(status) => break status,
        }
    };
    assert_eq!(status, Status::NoHandle);
    // One stays in each of five lists, where there are lists; a list that ran dry has stolen.
    let lists = S::MAPTRACK == MaptrackLocking::PerVcpu;
    assert_eq!(handles.len(), if lists { 315 } else { 320 });
    assert_eq!(vcpu.counted(Counter::Steal), if lists { 252 } else { 0 });
    unmap(world, vcpu, &handles);
}

fn copies_go_by_grants_or_the_callers_own_pages<S: Scheme>(world: &World<S>, vcpu: &Vcpu) {
    let granted = |reference| Place::Granted { granter: GRANTER, reference };
    let copy = |source, destination, length| {
        let request = CopyRequest { source, source_offset: 8, destination, destination_offset: 16, length };
        world.copy(vcpu, MAPPER, request)
    };
    grant(world, 0, PERMIT_ACCESS | READONLY, 0);
    grant(world, 1, PERMIT_ACCESS, 1);
    world.page(GRANTER, 0).unwrap().write(1, 77);
    assert_eq!(copy(granted(0), granted(1), 8), Ok(()));
    assert_eq!(world.page(GRANTER, 1).unwrap().read(2), 77);
    assert_eq!(copy(granted(1), Place::Own { number: 3 }, 4080), Ok(()));
    assert_eq!(world.page(MAPPER, 3).unwrap().read(3), 77);
    assert_eq!(copy(granted(1), granted(1), 64), Ok(()), "onto itself");
    assert_eq!(vcpu.counted(Counter::Copy), 3);
}

/// If both tables are locked, it is in one order: the locks that each vCPU holds are checked.
fn domains_can_map_their_own_and_each_others_pages<S: Scheme>(world: &World<S>, vcpu: &Vcpu) {
    for (mapper, granter) in [(MAPPER, MAPPER), (MAPPER, GRANTER), (GRANTER, MAPPER)] {
        world.shared(granter, 0).publish(mapper, PERMIT_ACCESS, 0);
        let handle = world.map(vcpu, mapper, MapRequest { granter, reference: 0, flags: HOST_MAP }).unwrap();
        world.unmap(vcpu, mapper, &[handle], |_, status| panic!("{status}")).unwrap();
    }
}

fn a_table_grows_up_to_its_limit<S: Scheme>(world: &World<S>, vcpu: &Vcpu) {
    grant(world, 23, PERMIT_ACCESS, 0);
    assert_eq!(world.map(vcpu, MAPPER, to_map(23, HOST_MAP)), Err(Status::BadReference));
    assert_eq!(world.grow(vcpu, GRANTER, 24), Ok(()));
    assert_eq!(world.grow(vcpu, GRANTER, 3), Ok(()), "not smaller");
    assert_eq!(world.references(vcpu, GRANTER), Ok(24));
    let handle = world.map(vcpu, MAPPER, to_map(23, HOST_MAP)).unwrap();
    unmap(world, vcpu, &[handle]);
}

fn swapped_entries_change_places<S: Scheme>(world: &World<S>, vcpu: &Vcpu) {
    grant(world, 1, PERMIT_ACCESS, 1);
    grant(world, 2, PERMIT_ACCESS | READONLY, 2);
    assert_eq!(world.swap(vcpu, GRANTER, 2, 1), Ok(()));
    assert_eq!(world.shared(GRANTER, 1).frame(), 2);
    assert_eq!(world.shared(GRANTER, 1).word() & READONLY, READONLY);
    assert_eq!(world.shared(GRANTER, 2).frame(), 1);
    assert_eq!(world.swap(vcpu, GRANTER, 1, 1), Ok(()), "with itself");
}
