//! Guest images and settings that cannot be used are refused with one line, before anything is created: settings by every entrance of the
//! library.

use std::path::{Path, PathBuf};
use std::time::Duration;

use haltkick_hypercalls::ABI_VERSION;
use haltkick_vmm::{
    Accelerator, Bandwidth, Engine, Fold, Governor, HowOften, Image, Instruments, MAX_LOCKS, PvBackend,
    Quota, Ring, Run, RunError, Sched, Shape, Target, check_guests,
};
use support::{Settings, config, deschedule, ms, start_with, us, watched};

/// The embedded image with `edit` applied, in a file of this name.
fn edited(name: &str, edit: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut bytes = Image::embedded_elf().to_vec();
    edit(&mut bytes);
    std::fs::write(&path, bytes).expect("the test's directory can be written");
    path
}

/// The refusal of the embedded image with `edit` applied, in a file of this name, which says all of `expected`.
fn refused(name: &str, edit: impl FnOnce(&mut Vec<u8>), expected: &[&str]) {
    match Image::from_file(&edited(name, edit)) {
        Err(error @ RunError::Image { .. }) => {
            let text = error.to_string();
            assert!(text.contains(name), "{text}: names the file");
            assert!(!text.contains('\n'), "{text}: is one line");
            for part in expected {
                assert!(text.contains(part), "{name}: {text}: does not say `{part}`");
            }
        }
        other => panic!("{name}: {other:?}"),
    }
}

/// The embedded image with `edit` applied, which can be used.
fn accepted(name: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Image {
    Image::from_file(&edited(name, edit)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|window| window == what).expect("the image contains it")
}

/// The eight bytes at `at`, as a number.
fn word(bytes: &[u8], at: usize) -> usize {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")) as usize
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

type Edit<'a> = &'a dyn Fn(&mut Vec<u8>);

/// An edit of what begins with our note's name: name, and from byte 12 on the descriptor.
fn at_note(edit: fn(&mut [u8])) -> impl Fn(&mut Vec<u8>) {
    move |bytes| {
        let note = find(bytes, b"Haltkick\0");
        edit(&mut bytes[note..]);
    }
}

#[test]
fn a_file_that_is_no_image_is_refused_with_the_reason() {
    const TYPE: usize = 16;
    const MACHINE: usize = 18;
    const ENTRY: usize = 24;
    // The second program header is the first loadable one.
    const ADDRESS: usize = 64 + 56 + 16;
    let version = format!("version {ABI_VERSION}");
    let rows: [(&str, Edit<'_>, &[&str]); 11] = [
        ("empty", &Vec::clear, &["not an ELF file"]),
        ("text", &|bytes| *bytes = b"#!/bin/sh\nexit 0\n".to_vec(), &["not an ELF file"]),
        ("machine", &|bytes| bytes[MACHINE] = 0xb7, &["x86-64"]),
        ("shared", &|bytes| bytes[TYPE] = 3, &["x86-64"]),
        ("foreign", &at_note(|note| note[0] = b'X'), &["no Haltkick note"]),
        ("old", &at_note(|note| note[12..16].copy_from_slice(&77_u32.to_le_bytes())), &["77", &version]),
        ("fingerprint", &at_note(|note| note[28] ^= 1), &["another state of the ABI"]),
        ("entry", &|bytes| put(bytes, ENTRY, 0x10), &["entry point"]),
        ("low", &|bytes| put(bytes, ADDRESS, 0x1000), &[]),
        ("high", &|bytes| put(bytes, ADDRESS, 1 << 40), &[]),
        ("wrap", &|bytes| put(bytes, ADDRESS, u64::MAX - 100), &[]),
    ];
    for (name, edit, expected) in rows {
        refused(name, edit, expected);
    }
}

#[test]
fn an_image_without_a_fingerprint_is_checked_by_its_version() {
    // Written to the version, not compiled from the file.
    accepted("no-fingerprint", at_note(|note| note[28..36].fill(0)));
}

#[test]
fn a_file_that_is_cut_short_anywhere_is_refused() {
    let whole = Image::embedded_elf().len();
    for length in (0..whole).step_by(whole / 40) {
        refused("short", |bytes| bytes.truncate(length), &[]);
    }
}

/// Offset in the file of a section's header and of its content, and the content's length.
fn section(bytes: &[u8], name: &str) -> (usize, usize, usize) {
    let half = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (headers, header_bytes, count, names_index) = (word(bytes, 40), half(58), half(60), half(62));
    let header = |index: usize| headers + index * header_bytes;
    let (offset, size) = (24, 32);
    let names = word(bytes, header(names_index) + offset);
    (0..count)
        .map(header)
        .find(|&header| {
            let at = names
                + u32::from_le_bytes(bytes[header..header + 4].try_into().expect("four bytes")) as usize;
            bytes[at..].starts_with(name.as_bytes()) && bytes[at + name.len()] == 0
        })
        .map(|header| (header, word(bytes, header + offset), word(bytes, header + size)))
        .expect("the image has this section")
}

const SITES: &str = ".haltkick.sites";
const CALLS: &str = ".haltkick.calls";
const SITE_BYTES: usize = 24;

type EditSection<'a> = &'a dyn Fn(&mut [u8]);

#[test]
fn call_sites_and_lock_functions_that_cannot_be_are_refused() {
    // Lock sites that say they unlock call through the slot of the lock.
    let swaps = |sites: &mut [u8]| {
        for site in sites.chunks_exact_mut(SITE_BYTES).filter(|site| site[20] < 2).skip(1) {
            site[20] ^= 1;
        }
    };
    let repeats = |sites: &mut [u8]| {
        let (first, rest) = sites.split_at_mut(SITE_BYTES);
        let same =
            rest.chunks_exact_mut(SITE_BYTES).find(|site| site[20] == first[20]).expect("two of a kind");
        same.copy_from_slice(first);
    };
    let long = |length: u32| move |sites: &mut [u8]| sites[16..20].copy_from_slice(&length.to_le_bytes());
    let rows: [(&str, &str, EditSection<'_>, &[&str]); 17] = [
        ("site-null", SITES, &|sites| put(sites, 0, 0), &["not within its code", "0x0"]),
        ("site-low", SITES, &|sites| put(sites, 0, 0x1000), &["not within its code", "0x1000"]),
        ("site-high", SITES, &|sites| put(sites, 0, 1 << 40), &["not within its code", "0x10000000000"]),
        (
            "site-wrap",
            SITES,
            &|sites| put(sites, 0, u64::MAX - 2),
            &["not within its code", "0xfffffffffffffffd"],
        ),
        // Data is within the image, but no code.
        ("site-data", SITES, &|sites| sites.copy_within(8..16, 0), &["not within its code"]),
        ("site-empty", SITES, &long(0), &[]),
        ("site-short", SITES, &long(5), &[]),
        ("site-long", SITES, &long(7), &[]),
        ("site-huge", SITES, &long(u32::MAX), &[]),
        ("site-moved", SITES, &|sites| sites[0] ^= 1, &["is no call through"]),
        ("site-twice", SITES, &repeats, &["overlap"]),
        ("slot-other", SITES, &|sites| sites[8] ^= 8, &["through 0x"]),
        ("slot-outside", SITES, &|sites| sites[8..16].fill(0xff), &["outside its memory"]),
        ("operation-swapped", SITES, &swaps, &["where another"]),
        ("operation-unknown", SITES, &|sites| sites[20] = 9, &["unknown operation 9"]),
        ("function", CALLS, &|calls| put(calls, 0, 0x1000), &["0x1000", "outside its code"]),
        ("half", CALLS, &|calls| calls[8..16].fill(0), &["taken and not released"]),
    ];
    for (name, of, edit, expected) in rows {
        let edit_section = |bytes: &mut Vec<u8>| {
            let (_, at, len) = section(bytes, of);
            edit(&mut bytes[at..at + len]);
        };
        refused(name, edit_section, expected);
    }
}

#[test]
fn a_call_site_with_other_code_is_refused() {
    // A jump through the slot in the place of the call.
    let jumps = |bytes: &mut Vec<u8>| {
        let (_, at, _) = section(bytes, SITES);
        let (header, text, _) = section(bytes, ".text");
        let code = text + word(bytes, at) - word(bytes, header + 16);
        assert_eq!(bytes[code..code + 2], [0xff, 0x15], "call [rip + ...]");
        bytes[code + 1] = 0x25;
    };
    refused("site-other", jumps, &["another instruction"]);
}

#[test]
fn sections_of_call_sites_that_are_no_whole_records_are_refused() {
    const SIZE: usize = 32;
    let sized = |name, size: fn(usize) -> u64| {
        move |bytes: &mut Vec<u8>| {
            let (header, _, len) = section(bytes, name);
            put(bytes, header + SIZE, size(len));
        }
    };
    for name in [SITES, CALLS] {
        refused("cut-section", sized(name, |len| len as u64 - 1), &[name]);
        refused("section-beyond", sized(name, |_| 1 << 40), &[name]);
    }
    refused("fewer-calls", sized(CALLS, |len| len as u64 - 80), &["two for each"]);
}

#[test]
fn an_image_without_call_sites_has_nothing_to_patch() {
    // Sites are optional.
    let image = accepted("no-sites", |bytes| {
        let at = find(bytes, b".haltkick.sites\0");
        bytes[at + 1] = b'X';
    });
    assert_eq!(image.edits(1, false).expect("nothing to refuse"), []);
    assert_ne!(Image::embedded().edits(1, false).expect("it can be patched"), []);
}

#[test]
fn segments_that_overlap_are_refused_before_they_multiply() {
    const PROGRAM_HEADERS: usize = 64;
    const HEADER_BYTES: usize = 56;
    const LOADABLE: u32 = 1;
    let overlaps = |bytes: &mut Vec<u8>| {
        let header = |number: usize| {
            PROGRAM_HEADERS + number * HEADER_BYTES..PROGRAM_HEADERS + (number + 1) * HEADER_BYTES
        };
        let count = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
        let loadable: Vec<_> =
            (0..count).filter(|&number| bytes[header(number)][..4] == LOADABLE.to_le_bytes()).collect();
        // Makes two segments of one.
        let first = bytes[header(loadable[0])].to_vec();
        bytes[header(loadable[1])].copy_from_slice(&first);
    };
    refused("overlapping", overlaps, &["segments that overlap"]);
}

#[test]
fn what_is_no_regular_file_is_not_read() {
    let missing = Image::from_file(Path::new("/no/such/file")).expect_err("it is not there").to_string();
    assert!(missing.contains("/no/such/file"), "{missing}");
    for endless in ["/dev/zero", "/dev/random", "/"] {
        let message = Image::from_file(Path::new(endless)).expect_err("it is no image").to_string();
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
    // A name may be anything.
    let image = accepted("names", |bytes| {
        let (_, at, _) = section(bytes, ".haltkick.locks");
        bytes[at..at + 5].copy_from_slice(b"\x1b[2J\0");
    });
    assert_eq!(image.locks[0].name, "\u{fffd}[2J");
}

#[test]
fn code_that_begins_within_a_page_is_nothing_for_threads() {
    const LOADABLE: u64 = 1;
    const EXECUTABLE: u64 = 1;
    const HEADER_BYTES: usize = 56;
    // On KVM it may be anywhere.
    let image = accepted("within-a-page", |bytes| {
        // One segment more, far behind the others; its program header behind theirs, before anything of the image.
        let address = 0x400_0008_u64;
        let header = [EXECUTABLE << 32 | LOADABLE, 0, address, address, 16, 16, 8];
        let at = 64 + usize::from(bytes[56]) * HEADER_BYTES;
        assert!(bytes[at..at + HEADER_BYTES].iter().all(|byte| *byte == 0), "there is room");
        bytes[at..at + HEADER_BYTES].copy_from_slice(header.map(u64::to_le_bytes).as_flattened());
        bytes[56] += 1;
    });
    assert!(check_guests(&support::on(Engine::Kvm), &image).is_ok());
    let refused = check_guests(&support::on(Engine::Threads), &image).expect_err("its page is not its own");
    assert!(refused.to_string().contains("no page begins"), "{refused}");
}

fn base() -> Run {
    support::on(Engine::Threads)
}

/// A quota of `run_us` microseconds in a millisecond, which the VMM can keep.
fn quota(run_us: u64) -> Quota {
    let [run, period] = [run_us, 1000].map(Duration::from_micros);
    Quota::Own(Bandwidth { run, period, burst: Duration::ZERO })
}

/// Rows of refused runs under KVM, most of which no engine would run. The command's own tests have more, which the library refuses for it.
fn refused_on_kvm() -> Vec<(Run, &'static str)> {
    let stops = |target| config().deschedule(deschedule(target, HowOften::PerSecond(100.0), ms(1), None));
    let interrupted = |lock, pv| config().workload("interrupted").form(lock, pv).lock_count(2);
    let in_kernel = |backend| config().pv_backend(backend).sched(Sched::Host);
    let beside = |other: Run| config().name("a").beside([other]);
    let too_many = Shape { footprint_lines: 1 << 20, ..Shape::default() };
    vec![
        (config().vcpus(1025), "1025 vCPUs"),
        (config().cpus(vec![100_000]), "CPU 100000"),
        (config().lock("mutex-of-steel"), "mutex-of-steel"),
        (config().workload("nap"), "nap"),
        (config().form("mcs", true), "mcs"),
        (config().workload("grant-split").form("mcs", false), "mcs"),
        (config().lock_count(MAX_LOCKS + 1), "locks"),
        (config().workload("overtaking").oracle(false), "overtaking"),
        (config().shape(too_many), "too many"),
        (stops(Target::Waiter).workload("compute"), "compute"),
        (stops(Target::Head).workload("hand-off"), "hand-off"),
        (interrupted("unfair-ticket", false), "these go with it"),
        (interrupted("qspinlock", true).lock_count(1), "--locks 2"),
        (config().workload("fault-many").form("tas", false), "mmap-sem"),
        (in_kernel(PvBackend::Kvm).sched(Sched::Vmm), "--pv-backend"),
        (in_kernel(PvBackend::Ipi).sched(Sched::Vmm), "--pv-backend"),
        (in_kernel(PvBackend::Kvm).ring(Ring::Ring3), "--pv-backend"),
        (in_kernel(PvBackend::Ipi).ring(Ring::Ring3), "--pv-backend"),
        (config().halt_poll(us(0)), "--halt-poll"),
        (beside(config().lock("nothing").name("b")), "there is no lock"),
    ]
}

/// Rows of refused runs that other engines lack something for.
fn refused_elsewhere() -> Vec<(Run, &'static str)> {
    let qemu = || support::on(Engine::Qemu(Accelerator::Tcg)).sched(Sched::Host);
    let simulated = || support::simulated("ivybridge-ex-4s", 4, 2);
    let stop = deschedule(Target::Random, HowOften::PerSecond(10.0), ms(1), None);
    let interrupted = base().workload("interrupted").form("qspinlock", true).lock_count(2);
    vec![
        (base().slice(us(0)), "slice"),
        (base().cpus([base().cpus[0]; 2].to_vec()), "twice"),
        (base().cpus(vec![]), "pCPU"),
        (base().vcpus(0), "vCPU"),
        (base().lock_count(0), "locks"),
        (base().sched(Sched::Host).kick_yields(true), "scheduler"),
        (base().sched(Sched::Host).quota(quota(500)), "quota"),
        (base().ring(Ring::Ring0), "ring 3"),
        (base().workload("selftest-page-fault"), "page tables"),
        (interrupted, "use --engine kvm"),
        (simulated().pv_backend(PvBackend::Ipi), "put to sleep by the VMM"),
        (qemu().sched(Sched::Vmm), "--sched host"),
        (qemu().deschedule(stop), "deschedules on purpose"),
        (qemu().ring(Ring::Ring3), "ring 0"),
        (qemu().pv_backend(PvBackend::Vmm), "no doorbells"),
        (qemu().halt_poll(us(0)), "--halt-poll"),
        (qemu().shape(Shape { work_sections: 8, ..Shape::default() }), "--work"),
        (qemu().fold(Fold::Governor(Governor::LINUX)), "stolen time"),
        (qemu().workload("selftest-page-fault"), "page tables"),
        (qemu().vcpus(255), "254"),
    ]
}

#[test]
fn settings_that_cannot_be_are_refused_before_anything_runs() {
    let image = Image::embedded();
    check_guests(&base(), &image).expect("the base can be run");
    for (config, says) in refused_on_kvm().into_iter().chain(refused_elsewhere()) {
        support::refused(start_with(&config, &image), says);
    }
    // Settings that concern the run alone are refused without an image, too.
    for (config, says) in &refused_elsewhere()[..7] {
        support::refused(config.check(), says);
    }
    let traced = Instruments { trace: true, ..Instruments::default() };
    let qemu = support::on(Engine::Qemu(Accelerator::Tcg)).sched(Sched::Host);
    support::refused(watched(&qemu, &traced), "--trace");
}

#[test]
fn a_point_beyond_the_64th_is_refused() {
    let mut image = Image::embedded();
    let point = image.points[0].clone();
    let lock = image.locks.iter().find(|lock| lock.has_points() && lock.has_paravirt()).unwrap().name.clone();
    while image.points.len() < 65 {
        let mut another = point.clone();
        another.name = format!("point{}", image.points.len());
        image.points.push(another);
    }
    let at = |index: usize| {
        let (often, length) = (HowOften::Probability(0.5), ms(1));
        let point = Some(image.points[index].name.as_str());
        base().lock(lock.clone()).deschedule(deschedule(Target::Random, often, length, point))
    };
    check_guests(&at(63), &image).expect("it has a bit");
    support::refused(check_guests(&at(64), &image), "first 64");
}
