//! Guest images that cannot be used are refused with one line, before anything is created.

use std::path::PathBuf;

use haltkick_vmm::{Image, RunError};

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
    assert!(text.contains("77") && text.contains("version 1"), "{text}");
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
fn any_flipped_byte_of_the_headers_is_refused_or_harmless_but_never_a_crash() {
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
