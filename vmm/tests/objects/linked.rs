//! Result of linking an object: a lock among the image's own, with names and lines, called at the same sites.

use haltkick_vmm::{Form, Image, Operation};
use support::{apply, trial};

use crate::{FLAGS, TAS, archive, link, linked, lock_of, root, scratch, text};

#[apply(trial)]
fn sites_are_rewritten_for_an_object_as_for_a_lock_of_ours() {
    let image = linked(&text("tas_sites", TAS, &FLAGS));
    let lock = image.locks.len() - 1;
    let edits = image.edits(lock, false).unwrap();
    let ours = image.locks.iter().position(|lock| lock.name == "tas").expect("there is tas");
    assert_eq!(edits.len(), image.edits(ours, false).unwrap().len());
    let lock = edits.iter().find(|edit| edit.operation == Operation::Lock).expect("a site");
    let Form::Call(target) = lock.form else { panic!("{lock:?}") };
    assert!(image.symbols().describe(target).starts_with("tas_sites.o: hk_lock+0x0"), "{lock:?}");
    for edit in &edits {
        let is_alike = match edit.operation {
            Operation::Lock => edit.form == lock.form,
            // mov byte ptr [rdi], 0
            Operation::Unlock => matches!(edit.form, Form::Inline(_)) && edit.after[..3] == [0xc6, 0x07, 0],
            _ => true,
        };
        assert!(is_alike, "{edit:?}");
    }
}

#[apply(trial)]
fn events_and_points_of_an_object_are_known_by_their_names() {
    let does =
        "hk_count(my_own_event); hk_count(lock_slowpath); hk_point(my_own_point); hk_point(tail_published);";
    let more = format!("int hk_try_lock(struct lock *lock) {{ {does} return lock->held; }}");
    let object = text("named", &format!("{TAS}{more}"), &FLAGS);
    let (image, own) = (linked(&object), Image::embedded());
    assert_eq!(image.events.len(), own.events.len() + 1);
    assert_eq!(image.events.last().map(String::as_str), Some("my_own_event"));
    assert_eq!(image.events[..own.events.len()], own.events[..]);
    assert_eq!(image.points.len(), own.points.len() + 1);
    assert_eq!(image.points.last().map(|point| &*point.name), Some("my-own-point"));
    assert!(image.locks.last().is_some_and(|lock| lock.has_points() && lock.name == lock_of(&object)));
    let rust = std::fs::read_to_string(root().join("examples/locks/ticket.rs"))
        .unwrap()
        .replace("../../include", &root().join("include").to_string_lossy())
        .replace("fn lock(&self) {", "fn lock(&self) { haltkick_point!(\"in_rust\");");
    let path = scratch("points_in_rust.rs");
    std::fs::write(&path, rust).unwrap();
    let image = linked(&path);
    assert_eq!(image.points.last().map(|point| &*point.name), Some("in-rust"));
}

#[apply(trial)]
fn there_is_room_for_16_objects() {
    let one = text("one_of_many", TAS, &FLAGS);
    let many: Vec<String> = (0..17).map(|link| lock_of(&one.with_extension(format!("{link}.o")))).collect();
    for link in &many {
        let link = link.trim_start_matches("file:");
        _ = std::fs::remove_file(link);
        std::os::unix::fs::symlink(&one, link).unwrap();
    }
    let many = Image::embedded().with_locks(many.iter().map(String::as_str));
    let refused = many.expect_err("there is room for 16").to_string();
    assert!(refused.contains("room for 16 lock objects"), "{refused}");
}

/// Code with other ways to refer to data: the values it reads must be those that stand there.
#[apply(trial)]
fn position_independent_code_statics_and_constants_are_linked() {
    let more = r#"
static const char *const names[] = { "one", "two" };
static int counts[3] = { 7, 8, 9 };
static int zeros[64];
int common;
const char *hk_name(int which);
const char *hk_name(int which) { return names[which]; }
__asm__(".pushsection .data\n.balign 8\n.type ahead, @object\n.size ahead, 8\nahead: .quad counts - .\n.popsection");
extern const long ahead __attribute__((visibility("hidden")));
int hk_try_lock(struct lock *lock)
{
    zeros[lock->held]++;
    common += counts[lock->held] + ahead;
    return hk_name(lock->held)[0] == 'o';
}
"#;
    for (name, flags) in [
        ("fixed", &["-fno-pic"][..]),
        ("pic", &["-fpic"]),
        ("pie", &["-fpie", "-fno-plt"]),
        ("common", &["-fno-pic", "-fcommon"]),
        ("sections", &["-fno-pic", "-ffunction-sections", "-fdata-sections"]),
        ("large", &["-fno-pic", "-mcmodel=large"]),
    ] {
        let object = text(&format!("model_{name}"), &format!("{TAS}{more}"), &[&FLAGS[..4], flags].concat());
        let image = linked(&object);
        let value = |symbol: &str| {
            let wanted = format!("model_{name}.o: {symbol}");
            image.symbols().iter().find(|symbol| symbol.name == wanted).map(|symbol| symbol.address)
        };
        let read = |address: u64| {
            let bytes = image.bytes_at(address, 8).expect("it is loaded");
            u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
        };
        let names = value("names").expect("the object has names");
        assert_eq!(image.bytes_at(read(names), 4), Some(&b"one\0"[..]), "{name}");
        assert_eq!(image.bytes_at(read(names + 8), 4), Some(&b"two\0"[..]), "{name}");
        let counts = value("counts").expect("the object has counts");
        assert_eq!(read(counts), 8 << 32 | 7, "{name}");
        let ahead = value("ahead").expect("the object has a distance");
        assert_eq!(ahead.wrapping_add(read(ahead)), counts, "{name}");
    }
}

#[apply(trial)]
fn zeros_of_one_name_have_the_size_of_the_largest() {
    let flags = [&FLAGS[..], &["-fcommon"]].concat();
    let few = r#"
int first[1], second[1];
int *ends[2] = { first, second };
int other(void);
int hk_try_lock(struct lock *lock) { return other() + *ends[lock->held]; }
"#;
    let few = text("few_zeros", &format!("{TAS}{few}"), &flags);
    let many = "int first[64];\nint other(void);\nint other(void) { return first[63]; }";
    let image = linked(&archive("zeros.a", &[&few, &text("many_zeros", many, &flags)]));
    let ends = image.symbols().iter().find(|symbol| symbol.name == "zeros.a: ends").expect("no ends");
    let ends = image.bytes_at(ends.address, 16).expect("it is loaded").as_chunks().0;
    assert!(u64::from_le_bytes(ends[0]) + 256 <= u64::from_le_bytes(ends[1]), "{ends:x?}");
}

#[apply(trial)]
fn of_an_archive_what_is_needed_is_linked() {
    let calls = "int helper(int);\nint hk_try_lock(struct lock *lock) { return helper(lock->held); }";
    let lock = text("archived", &format!("{TAS}{calls}"), &FLAGS);
    let helper = text("helper", "int helper(int);\nint helper(int x) { return x + 1; }", &FLAGS);
    let constructs = "__attribute__((constructor)) void f(void) { missing(); }";
    let unused = text("unneeded", &format!("void missing(void);\nvoid f(void);\n{constructs}"), &FLAGS);
    let image = linked(&archive("locks.a", &[&unused, &lock, &helper]));
    let named = |name: &str| image.symbols().iter().any(|symbol| symbol.name == name);
    assert!(named("locks.a: helper") && named("locks.a: hk_lock") && !named("locks.a: f"));
    link(&lock).expect_err("alone it lacks its helper");
}
