//! Addresses of the image's code and data: no figure may depend on what happens to be its neighbour.

use haltkick_vmm::Image;
use object::{Object as _, ObjectSymbol as _};

/// Pairs of lines are fetched together.
const PAIR: u64 = 128;
const LINE: u64 = 64;

fn symbols() -> Vec<(String, u64, u64)> {
    let file = object::File::parse(Image::embedded_elf()).expect("the image is an ELF file");
    let symbol = |symbol: object::Symbol<'_, '_>| {
        (symbol.name().unwrap_or_default().to_owned(), symbol.address(), symbol.size())
    };
    file.symbols().map(symbol).collect()
}

fn address_of(symbols: &[(String, u64, u64)], name: &str) -> u64 {
    symbols.iter().find(|symbol| symbol.0 == name).unwrap_or_else(|| panic!("the image has {name}")).1
}

/// The optimiser shrinks a padded static to what is used of it, keeps its alignment, and puts a neighbour behind it.
#[test]
fn statics_that_several_vcpus_write_have_their_lines_for_themselves() {
    let symbols = symbols();
    let hot = address_of(&symbols, "__haltkick_hot_start")..address_of(&symbols, "__haltkick_hot_end");
    let within: Vec<_> = symbols.iter().filter(|symbol| hot.contains(&symbol.1) && symbol.2 > 0).collect();
    for (name, address, size) in &within {
        assert!(address % PAIR == 0 && size % PAIR == 0, "{name}: {size} bytes at {address:#x}");
    }
    for expected in ["TURN", "TAKEN", "DONE", "TABLE", "INSTANCES"] {
        let found = within.iter().any(|symbol| symbol.0.contains(expected));
        assert!(found, "{expected} is not among the hot statics");
    }
}

#[test]
fn the_functions_of_all_locks_begin_a_line() {
    let image = Image::embedded();
    for (index, lock) in image.locks.iter().enumerate() {
        for pv in [false, true] {
            let calls = image.calls(index, pv).expect("the image tells of its locks");
            let functions = [calls.lock, calls.unlock, calls.read, calls.read_unlock];
            for function in functions.into_iter().flatten() {
                assert!(function % LINE == 0, "{}: {function:#x}", lock.name);
            }
        }
    }
}

/// A shared reference promises that the parts outside of cells never change, and the guest may write anywhere.
#[test]
fn what_host_and_guest_share_is_atomic_to_the_last_byte() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../hypercalls/src");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let text: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let mut structures = vec!["Control", "Oracle", "VcpuArea", "StealTime", "TraceSection"];
    let mut looked_at = 0;
    while let Some(name) = structures.pop() {
        let (_, rest) =
            text.split_once(&format!("pub struct {name} {{\n")).unwrap_or_else(|| panic!("{name}"));
        let (fields, _) = rest.split_once("\n}\n").expect("it has an end");
        let fields = fields.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        for (field, kind) in fields.filter_map(|line| line.trim_end_matches(',').split_once(": ")) {
            looked_at += 1;
            let element = kind.trim_start_matches('[').split([';', '<']).next().unwrap_or(kind);
            if !element.starts_with("Atomic") && element != "Padding" {
                assert!(text.contains(&format!("pub struct {element} {{")), "{name}: {field} is {kind}");
                structures.push(element);
            }
        }
    }
    assert!(looked_at > 50, "{looked_at} fields");
}
