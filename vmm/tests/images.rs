//! Guest images that cannot be used are refused with one line, before anything is created.

use std::path::PathBuf;

use haltkick_hypercalls::ABI_VERSION;
use haltkick_vmm::{Engine, Image, RunError, check_guests};

/// The error for an image file of these bytes.
fn refusal(name: &str, bytes: &[u8]) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).expect("the test's directory can be written");
    match Image::from_file(&path) {
        Err(error @ RunError::Image { .. }) => {
            let text = error.to_string();
            assert!(text.contains(name), "{text}: names the file");
            assert!(!text.contains('\n'), "{text}: is one line");
            text
        }
        other => panic!("{name}: {other:?}"),
    }
}

/// The embedded image with `edit` applied.
fn edited(edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Image::embedded_elf().to_vec();
    edit(&mut bytes);
    bytes
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|window| window == what).expect("the image contains it")
}

#[test]
fn the_embedded_image_offers_locks_workloads_and_events() {
    let image = Image::embedded();
    for lock in ["none", "tas", "ticket", "mcs", "qspinlock"] {
        assert!(image.locks.iter().any(|entry| entry.name == lock && !entry.summary.is_empty()), "{lock}");
    }
    assert!(image.workloads.iter().any(|entry| entry.name == "critical-section"));
    assert!(image.events.iter().any(|event| event == "pv_kick_unlock"));
}

#[test]
fn the_embedded_image_is_accepted_from_a_file_too() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("good.elf");
    std::fs::write(&path, Image::embedded_elf()).expect("the test's directory can be written");
    assert_eq!(Image::from_file(&path).expect("it is a good image").locks, Image::embedded().locks);
}

#[test]
fn a_missing_file_is_refused() {
    let error = Image::from_file(&PathBuf::from("/no/such/file")).expect_err("there is no such file");
    assert!(error.to_string().contains("/no/such/file"));
}

#[test]
fn what_is_no_elf_file_is_refused() {
    assert!(refusal("empty", b"").contains("not an ELF file"));
    assert!(refusal("text", b"#!/bin/sh\nexit 0\n").contains("not an ELF file"));
}

#[test]
fn an_elf_file_of_another_machine_or_kind_is_refused() {
    const TYPE: usize = 16;
    const MACHINE: usize = 18;
    assert!(refusal("machine", &edited(|bytes| bytes[MACHINE] = 0xb7)).contains("x86-64"));
    assert!(refusal("shared", &edited(|bytes| bytes[TYPE] = 3)).contains("x86-64"));
}

#[test]
fn an_elf_file_without_our_note_is_refused() {
    let foreign = edited(|bytes| {
        let note = find(bytes, b"Haltkick\0");
        bytes[note] = b'X';
    });
    assert!(refusal("foreign", &foreign).contains("no Haltkick note"));
}

#[test]
fn another_abi_version_is_refused_and_both_versions_are_named() {
    let old = edited(|bytes| {
        let version = find(bytes, b"Haltkick\0") + 12;
        bytes[version..version + 4].copy_from_slice(&77_u32.to_le_bytes());
    });
    let text = refusal("old", &old);
    assert!(text.contains("77") && text.contains(&format!("version {ABI_VERSION}")), "{text}");
}

/// Offset of the note's descriptor.
fn note(bytes: &[u8]) -> usize {
    find(bytes, b"Haltkick\0") + 12
}

#[test]
fn an_image_with_another_abi_of_the_same_version_is_refused() {
    let other = edited(|bytes| {
        let at = note(bytes) + 16;
        bytes[at] ^= 1;
    });
    assert!(refusal("fingerprint", &other).contains("another state of the ABI"));
    // Written to the version, not compiled from the file.
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("no-fingerprint");
    let without = edited(|bytes| {
        let at = note(bytes) + 16;
        bytes[at..at + 8].fill(0);
    });
    std::fs::write(&path, without).expect("the test's directory can be written");
    Image::from_file(&path).expect("an image without a fingerprint is checked by its version");
}

#[test]
fn features_that_nobody_knows_are_refused() {
    let other = edited(|bytes| {
        let at = note(bytes) + 24;
        bytes[at + 7] |= 0x80;
    });
    assert!(refusal("features", &other).contains("does not know"));
}

#[test]
fn a_file_that_is_cut_short_anywhere_is_refused_or_whole() {
    let whole = Image::embedded_elf();
    for length in (0..whole.len()).step_by(whole.len() / 40) {
        refusal("short", &whole[..length]);
    }
}

#[test]
fn segments_and_entry_points_outside_the_images_place_are_refused() {
    const ENTRY: usize = 24;
    const PROGRAM_HEADERS: usize = 64;
    const HEADER_BYTES: usize = 56;
    const ADDRESS: usize = 16;
    let outside = edited(|bytes| bytes[ENTRY..ENTRY + 8].copy_from_slice(&0x10_u64.to_le_bytes()));
    assert!(refusal("entry", &outside).contains("entry point"));
    for (name, address) in [("low", 0x1000_u64), ("high", 1 << 40), ("wrap", u64::MAX - 100)] {
        let moved = edited(|bytes| {
            // The second program header is the first loadable one.
            let at = PROGRAM_HEADERS + HEADER_BYTES + ADDRESS;
            bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
        });
        refusal(name, &moved);
    }
}

#[test]
fn a_flipped_byte_of_the_headers_is_refused_or_harmless() {
    let whole = Image::embedded_elf();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("flipped");
    for at in 0..64 + 4 * 56 {
        for bit in [0, 4, 7] {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1 << bit;
            std::fs::write(&path, &bytes).expect("the test's directory can be written");
            let _ = Image::from_file(&path);
        }
    }
}

/// Offset in the file of a section's header and of its content, and the content's length.
fn section(bytes: &[u8], name: &str) -> (usize, usize, usize) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
    let half = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (headers, header_bytes, count, names_index) = (word(40), half(58), half(60), half(62));
    let header = |index: usize| headers + index * header_bytes;
    let (offset, size) = (24, 32);
    let names = word(header(names_index) + offset);
    (0..count)
        .map(header)
        .find(|&header| {
            let at = names
                + u32::from_le_bytes(bytes[header..header + 4].try_into().expect("four bytes")) as usize;
            bytes[at..].starts_with(name.as_bytes()) && bytes[at + name.len()] == 0
        })
        .map(|header| (header, word(header + offset), word(header + size)))
        .expect("the image has this section")
}

/// The refusal of the embedded image with `edit` applied to the content of a section.
fn section_refusal(file: &str, name: &str, edit: impl FnOnce(&mut [u8])) -> String {
    refusal(
        file,
        &edited(|bytes| {
            let (_, at, len) = section(bytes, name);
            edit(&mut bytes[at..at + len]);
        }),
    )
}

const SITES: &str = ".haltkick.sites";
const CALLS: &str = ".haltkick.calls";
const SITE_BYTES: usize = 24;

#[test]
fn call_sites_outside_the_code_are_refused() {
    for (name, address) in
        [("site-null", 0_u64), ("site-low", 0x1000), ("site-high", 1 << 40), ("site-wrap", u64::MAX - 2)]
    {
        let text = section_refusal(name, SITES, |sites| sites[..8].copy_from_slice(&address.to_le_bytes()));
        assert!(text.contains("not within its code") && text.contains(&format!("{address:#x}")), "{text}");
    }
    // Data is within the image, but no code.
    let slot = section_refusal("site-data", SITES, |sites| sites.copy_within(8..16, 0));
    assert!(slot.contains("not within its code"), "{slot}");
}

#[test]
fn call_sites_of_another_length_or_with_other_code_are_refused() {
    for (name, length) in
        [("site-empty", 0_u32), ("site-short", 5), ("site-long", 7), ("site-huge", u32::MAX)]
    {
        section_refusal(name, SITES, |sites| sites[16..20].copy_from_slice(&length.to_le_bytes()));
    }
    let moved = section_refusal("site-moved", SITES, |sites| sites[0] ^= 1);
    assert!(moved.contains("is no call through"), "{moved}");
    // The code itself is another: a jump through the slot in the place of the call.
    let other = refusal(
        "site-other",
        &edited(|bytes| {
            let (_, at, _) = section(bytes, SITES);
            let address = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize;
            let (header, text, _) = section(bytes, ".text");
            let base =
                u64::from_le_bytes(bytes[header + 16..header + 24].try_into().expect("eight bytes")) as usize;
            let code = text + address - base;
            assert_eq!(bytes[code..code + 2], [0xff, 0x15], "call [rip + ...]");
            bytes[code + 1] = 0x25;
        }),
    );
    assert!(other.contains("another instruction"), "{other}");
}

#[test]
fn call_sites_through_another_slot_are_refused() {
    let other = section_refusal("slot-other", SITES, |sites| sites[8] ^= 8);
    assert!(other.contains("is no call through") || other.contains("where another"), "{other}");
    let outside = section_refusal("slot-outside", SITES, |sites| sites[8..16].fill(0xff));
    assert!(outside.contains("outside its memory"), "{outside}");
    // Lock sites that say they unlock call through the slot of the lock.
    let swapped = section_refusal("operation-swapped", SITES, |sites| {
        for site in sites.chunks_exact_mut(SITE_BYTES).filter(|site| site[20] < 2).skip(1) {
            site[20] ^= 1;
        }
    });
    assert!(swapped.contains("where another"), "{swapped}");
    let unknown = section_refusal("operation-unknown", SITES, |sites| sites[20] = 9);
    assert!(unknown.contains("unknown operation 9"), "{unknown}");
}

#[test]
fn call_sites_that_overlap_are_refused() {
    let twice = section_refusal("site-twice", SITES, |sites| {
        let (first, rest) = sites.split_at_mut(SITE_BYTES);
        let same =
            rest.chunks_exact_mut(SITE_BYTES).find(|site| site[20] == first[20]).expect("two of a kind");
        same.copy_from_slice(first);
    });
    assert!(twice.contains("overlap"), "{twice}");
}

#[test]
fn sections_of_call_sites_that_are_no_whole_records_are_refused() {
    const SIZE: usize = 32;
    for name in [SITES, CALLS] {
        let cut = refusal(
            "cut-section",
            &edited(|bytes| {
                let (header, _, len) = section(bytes, name);
                bytes[header + SIZE..header + SIZE + 8].copy_from_slice(&(len as u64 - 1).to_le_bytes());
            }),
        );
        assert!(cut.contains(name), "{cut}");
        let beyond = refusal(
            "section-beyond",
            &edited(|bytes| {
                let (header, _, _) = section(bytes, name);
                bytes[header + SIZE..header + SIZE + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
            }),
        );
        assert!(beyond.contains(name), "{beyond}");
    }
    let fewer = refusal(
        "fewer-calls",
        &edited(|bytes| {
            let (header, _, len) = section(bytes, CALLS);
            bytes[header + SIZE..header + SIZE + 8].copy_from_slice(&(len as u64 - 80).to_le_bytes());
        }),
    );
    assert!(fewer.contains("two for each"), "{fewer}");
}

#[test]
fn lock_functions_outside_the_code_are_refused() {
    let outside =
        section_refusal("function", CALLS, |calls| calls[..8].copy_from_slice(&0x1000_u64.to_le_bytes()));
    assert!(outside.contains("0x1000") && outside.contains("outside its code"), "{outside}");
    let half = section_refusal("half", CALLS, |calls| calls[8..16].fill(0));
    assert!(half.contains("taken and not released"), "{half}");
}

#[test]
fn an_image_without_call_sites_has_nothing_to_patch() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("no-sites");
    let bytes = edited(|bytes| {
        let at = find(bytes, b".haltkick.sites\0");
        bytes[at + 1] = b'X';
    });
    std::fs::write(&path, bytes).expect("the test's directory can be written");
    let image = Image::from_file(&path).expect("sites are optional");
    assert_eq!(image.edits(1, false).expect("nothing to refuse"), []);
    assert_ne!(Image::embedded().edits(1, false).expect("it can be patched"), []);
}

#[test]
fn segments_that_overlap_are_refused_before_they_multiply() {
    const PROGRAM_HEADERS: usize = 64;
    const HEADER_BYTES: usize = 56;
    const LOADABLE: u32 = 1;
    let overlapping = edited(|bytes| {
        let header = |number: usize| {
            PROGRAM_HEADERS + number * HEADER_BYTES..PROGRAM_HEADERS + (number + 1) * HEADER_BYTES
        };
        let count = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
        let loadable: Vec<_> =
            (0..count).filter(|&number| bytes[header(number)][..4] == LOADABLE.to_le_bytes()).collect();
        // Makes two segments of one.
        let first = bytes[header(loadable[0])].to_vec();
        bytes[header(loadable[1])].copy_from_slice(&first);
    });
    let message = refusal("overlapping", &overlapping);
    assert!(message.contains("segments that overlap"), "{message}");
}

#[test]
fn what_is_no_regular_file_is_not_read() {
    for endless in ["/dev/zero", "/dev/random", "/"] {
        let message = Image::from_file(&PathBuf::from(endless)).expect_err("it is no image").to_string();
        assert!(message.contains("no regular file"), "{message}");
    }
    let pipe = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pipe");
    _ = std::fs::remove_file(&pipe);
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo can be run");
    assert!(made.success());
    // Opening it waits for a writer that never comes.
    let message = Image::from_file(&pipe).expect_err("it is no image").to_string();
    assert!(message.contains("no regular file"), "{message}");
}

#[test]
fn names_in_an_image_cannot_speak_to_the_terminal() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("names");
    let bytes = edited(|bytes| {
        let (_, at, _) = section(bytes, ".haltkick.locks");
        bytes[at..at + 5].copy_from_slice(b"\x1b[2J\0");
    });
    std::fs::write(&path, bytes).expect("the test's directory can be written");
    let image = Image::from_file(&path).expect("a name may be anything");
    assert_eq!(image.locks[0].name, "\u{fffd}[2J");
}

#[test]
fn code_that_begins_within_a_page_is_nothing_for_threads() {
    const LOADABLE: u64 = 1;
    const EXECUTABLE: u64 = 1;
    const HEADER_BYTES: usize = 56;
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("within-a-page");
    let bytes = edited(|bytes| {
        // One segment more, far behind the others; its program header behind theirs, before anything of the image.
        let address = 0x400_0008_u64;
        let header = [EXECUTABLE << 32 | LOADABLE, 0, address, address, 16, 16, 8];
        let at = 64 + usize::from(bytes[56]) * HEADER_BYTES;
        assert!(bytes[at..at + HEADER_BYTES].iter().all(|byte| *byte == 0), "there is room");
        bytes[at..at + HEADER_BYTES].copy_from_slice(header.map(u64::to_le_bytes).as_flattened());
        bytes[56] += 1;
    });
    std::fs::write(&path, bytes).expect("the test's directory can be written");
    let image = Image::from_file(&path).expect("on KVM it may be anywhere");
    assert!(check_guests(&support::on(Engine::Kvm), &image).is_ok());
    let refused = check_guests(&support::on(Engine::Threads), &image).expect_err("its page is not its own");
    assert!(refused.to_string().contains("no page begins"), "{refused}");
}
