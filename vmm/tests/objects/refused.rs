//! Objects that cannot be linked are refused before anything is created, in one line that says what to do.

use std::path::Path;
use std::process::Command;

use haltkick_vmm::RunError;
use support::{apply, trial};

use crate::{FLAGS, TAS, link, linked, scratch, text};

/// Checks that a file is refused in one line, which names it and says all of `expected`.
#[track_caller]
fn refuses(object: &Path, expected: &[&str]) {
    match link(object) {
        Err(error @ RunError::LockObject { .. }) => {
            let text = error.to_string();
            assert!(text.contains(&*object.to_string_lossy()), "{text}: names the file");
            assert!(!text.contains('\n'), "{text}: is one line");
            for part in expected {
                assert!(text.contains(part), "{text}: does not say `{part}`");
            }
        }
        Err(other) => panic!("{}: {other}", object.display()),
        Ok(_) => panic!("{}: it was linked", object.display()),
    }
}

/// As [`refuses`], of what gcc makes of a lock with something more.
#[track_caller]
fn says(name: &str, more: &str, flags: &[&str], expected: &[&str]) {
    refuses(&text(name, &format!("{TAS}{more}"), flags), expected);
}

/// A lock with something more is linked.
#[track_caller]
fn links(name: &str, more: &str, flags: &[&str]) {
    linked(&text(name, &format!("{TAS}{more}"), flags));
}

/// A try-lock that does something more, which the call keeps in the object.
fn doing(what: &str) -> String {
    format!("int hk_try_lock(struct lock *lock) {{ {what}; return lock->held; }}")
}

#[apply(trial)]
fn an_undefined_symbol_is_named_with_the_nearest_that_exists() {
    let more = format!("void hk_pauze(void);\n{}", doing("hk_pauze()"));
    says("undefined", &more, &FLAGS, &["refers to hk_pauze", "did you mean hk_pause?", "hk_try_lock+0x"]);
    let more = format!("int printf(const char *, ...);\n{}", doing("printf(\"locked\\n\")"));
    says(
        "printf",
        &more,
        &FLAGS,
        &["refers to p", "which is not defined: include/haltkick.h has all that there is"],
    );
}

#[apply(trial)]
fn instructions_that_no_lock_may_have_are_named_with_their_place() {
    for (name, instruction, said) in [
        ("vector", "movaps %xmm1, %xmm2", "uses a vector or floating-point register"),
        ("x87", "fld1; fstp %st", "vector or floating-point"),
        ("hlt", "hlt", "privileged"),
        ("cli", "cli", "privileged"),
        ("out", "outb %al, %dx", "privileged"),
        ("wrmsr", "wrmsr", "privileged"),
        ("mwait", "mwait", "waits in the CPU"),
        ("tpause", "tpause %eax", "waits in the CPU"),
        ("xbegin", "xbegin 1f; 1:", "a transaction"),
        ("syscall", "syscall", "system call"),
        ("int80", "int $0x80", "system call"),
        ("vmcall", "vmcall", "system call"),
        ("segment", "movl %eax, %gs", "segment register"),
        ("base", "wrgsbase %rax", "segment's base"),
    ] {
        let more = doing(&format!("__asm__ volatile(\"{instruction}\")"));
        says(name, &more, &FLAGS, &[said, "at hk_try_lock+0x"]);
    }
    let scale =
        "float hk_scale = 2;\nint hk_try_lock(struct lock *lock) { return hk_scale * lock->held > 3.0f; }";
    let without = ["-O2", "-ffreestanding", "-fno-pic", "-mno-red-zone"];
    says("floating", scale, &without, &["at hk_try_lock+0x", "-mgeneral-regs-only"]);
    // Code out of reach of the exported functions is not loaded, and may be anything.
    let unused =
        "__attribute__((section(\".text.unused\"))) void unused(void) { __asm__ volatile(\"hlt\"); }";
    links("unused", unused, &FLAGS);
    // Functions without a length are read, too.
    let more = "__asm__(\".globl hk_try_lock; hk_try_lock: hlt; xorl %eax, %eax; ret\");";
    says("no_length", more, &FLAGS, &["privileged", "at hk_try_lock+0x"]);
    // Data between functions is no code.
    let table = "__asm__(\".globl hk_try_lock; hk_try_lock: xorl %eax, %eax; ret; .type table,@object; .size table,2; table: .byte 6, 6\");";
    links("table", table, &FLAGS);
}

#[apply(trial)]
fn memory_below_the_stack_pointer_is_refused() {
    let more = doing("__asm__ volatile(\"movl $0, -8(%rsp)\")");
    let said = ["below the stack pointer at hk_", "-mno-red-zone"];
    says("red_zone", &more, &FLAGS, &said);
    // By the frame pointer, as compilers do in functions that call none.
    let kept = doing("volatile int kept = 1; (void)kept");
    let unoptimized = ["-O0", "-ffreestanding", "-mgeneral-regs-only", "-fno-pic"];
    says("red_zone_of_frame", &kept, &unoptimized, &said);
    links("frame", &kept, &[&unoptimized[..], &["-mno-red-zone"]].concat());
    // 128 bytes are made by adding -128; and RBP may be a pointer like any other.
    let larger = doing("volatile char kept[128]; kept[0] = 1; (void)kept[0]");
    links("frame_of_128", &larger, &[&unoptimized[..], &["-mno-red-zone"]].concat());
    let pointer = doing(
        "__asm__ volatile(\"push %%rbp; mov %%rsp, %%rbp; add $8, %%rbp; mov -8(%%rbp), %%rax; pop %%rbp\" ::: \"rax\")",
    );
    links("pointer", &pointer, &FLAGS);
}

#[apply(trial)]
fn a_missing_or_wrong_export_is_named_with_what_resembles_it() {
    const MACRO: &str = "HK_LOCK(struct lock);";
    let wrong = |name: &str, source: &str, said: &str| refuses(&text(name, source, &FLAGS), &[said]);
    let lock_alone = TAS.split("void hk_unlock").next().unwrap_or_default();
    wrong("no_unlock", lock_alone, "does not define hk_unlock to its hk_lock");
    let mistyped = TAS.replace("void hk_unlock", "void hk_unlok(struct lock *);\nvoid hk_unlok");
    wrong("mistyped", &mistyped, "hk_unlock to its hk_lock: did you mean your hk_unlok?");
    let nothing = "int nothing(void);\nint nothing(void) { return 0; }";
    wrong("nothing", nothing, "does not define hk_lock: include/haltkick.h says");
    let declared = "void hk_lock(struct lock *);\nvoid hk_unlock(struct lock *);";
    let no_macro = TAS.replace(MACRO, declared);
    wrong("no_macro", &no_macro, "does not define hk_version: include haltkick.h and write HK_LOCK");
    let version = format!("{declared}\nextern const hk_u32 hk_version;\nconst hk_u32 hk_version = 4;");
    let said = "written to version 4 of haltkick.h, and this haltkick links versions 1 to 3";
    wrong("version", &TAS.replace(MACRO, &version), said);
    let wide = TAS.replace("hk_u8 held;", "hk_u8 held; char more[300];");
    wrong("wide", &wide, "has locks of 301 bytes, aligned to 1: 256 are the most");
    let data = TAS.replace("void hk_lock(struct lock *lock)", "static void other(struct lock *lock)");
    let data = data.replace(MACRO, "void hk_unlock(struct lock *);");
    let data = data + "void (*hk_lock)(struct lock *) = other;";
    wrong("data", &data, "has hk_lock, which is no function");
}

#[apply(trial)]
fn what_has_no_place_in_the_guest_is_refused() {
    let wrong = |name: &str, before: &str, does: &str, said: &[&str]| {
        says(name, &format!("{before}\n{}", doing(does)), &FLAGS, said);
    };
    wrong("thread_local", "static __thread int mine;", "mine++", &["thread-local", "HK_PERCPU"]);
    let narrow = "__asm__ volatile(\"movw $hk_cpus, %ax\")";
    wrong("narrow", "", narrow, &["relocation of type 12", "-fno-pic"]);
    let much = "__atomic_fetch_add(&much[lock->held], 1, 0)";
    wrong("much", "static char much[5 << 20];", much, &["takes more than 4096 KiB"]);
    let node = "struct node { char bytes[5000]; };\nHK_PERCPU(struct node);";
    wrong("per_vcpu", node, "hk_percpu(0)->bytes[0]++", &["wants 5000 bytes per vCPU: 4096 are the most"]);
    let (area, said) = ("extern char hk_percpu_area[];", "does not say how much: write HK_PERCPU");
    wrong("no_size", area, "hk_percpu_area[0]++", &[said]);
    let large = [&FLAGS[..], &["-mcmodel=large", "-fpic"]].concat();
    let more = format!("extern int elsewhere;\nint elsewhere;\n{}", doing("elsewhere++"));
    says("large", &more, &large, &["at hk_"]);
}

#[apply(trial)]
fn indirect_functions_are_refused_wherever_they_are_referred_to() {
    // Resolvers of any type.
    let flags = [&FLAGS[..], &["-Wno-attribute-alias"]].concat();
    let chosen = "static int plain(void) { return 0; }\nstatic void *choose(void) { return plain; }\n";
    let indirect = "__attribute__((ifunc(\"choose\")))";
    let of_each = [
        ("of_its_own", format!("static int mine(void) {indirect};\n{}", doing("mine()"))),
        ("of_all", format!("int mine(void);\n{}\nint mine(void) {indirect};", doing("mine()"))),
        ("in_a_table", {
            let table = "static int (*const volatile table[])(void) = {mine};";
            format!("static int mine(void) {indirect};\n{table}\n{}", doing("table[0]()"))
        }),
    ];
    for (name, more) in of_each {
        says(
            name,
            &format!("{chosen}{more}"),
            &flags,
            &["refers to mine, an indirect function", "hk_init", "(at "],
        );
    }
    let more = format!("{chosen}int hk_try_lock(struct lock *) {indirect};");
    says("exported", &more, &flags, &["has hk_try_lock, an indirect function", "hk_init"]);
    // Without a reference to it, it does no harm.
    links("idle", &format!("{chosen}int mine(void);\nint mine(void) {indirect};"), &flags);
}

#[apply(trial)]
fn constructors_of_what_is_needed_are_refused_by_their_names() {
    let by_hand = |section: &str| {
        let entry = format!(
            "__attribute__((section(\"{section}\"), used)) static void (*const entry)(void) = set_up;"
        );
        format!("static int share;\nstatic void set_up(void) {{ share = 4; }}\n{entry}")
    };
    let attribute = |how: &str| {
        format!("static int share;\n__attribute__(({how})) static void set_up(void) {{ share = 4; }}")
    };
    for (name, before, section) in [
        ("late", attribute("constructor(65000)"), ".init_array.65000"),
        ("by_hand", by_hand(".ctors"), ".ctors"),
        ("early", by_hand(".preinit_array"), ".preinit_array"),
    ] {
        let more = format!("{before}\n{}", doing("lock->held += share"));
        says(name, &more, &FLAGS, &[&format!("has a constructor set_up ({section})"), "hk_init"]);
    }
    let more = attribute("destructor");
    links("destructor", &format!("{more}\n{}", doing("lock->held += share")), &FLAGS);
}

#[apply(trial)]
fn what_is_no_object_is_refused() {
    refuses(Path::new("/no/such/lock.o"), &["cannot be read"]);
    refuses(Path::new("/no/such/lock.c"), &["there is no such file"]);
    let broken = scratch("broken.c");
    std::fs::write(&broken, "int x = y;").unwrap();
    // A compiler says more than one line.
    let refused = link(&broken).expect_err("it is broken").to_string();
    let has = |words: &str| refused.contains(words);
    assert!(has("is not compiled by ") && has("error") && has("broken.c"), "{refused}");
    for other in ["/dev/zero", "/"] {
        refuses(Path::new(other), &["no regular file"]);
    }
    refuses(&std::env::current_exe().unwrap(), &["is linked already"]);
    let object = text("ours", TAS, &FLAGS);
    // The machine stands at byte 18 of an ELF header (183: AArch64).
    let mut other = std::fs::read(&object).unwrap();
    other[18..20].copy_from_slice(&183_u16.to_le_bytes());
    for (name, bytes, said) in [
        ("aarch64.o", &other[..], "is compiled for Aarch64, and the guest is x86-64"),
        ("bitcode.o", b"BC\xc0\xde\x35\x14\0\0", "is LLVM bitcode"),
        ("junk.o", b"not an object", "is no object file: give what `cc -c` makes"),
        ("empty.a", b"!<arch>\n", "archive without object files"),
    ] {
        let path = scratch(name);
        std::fs::write(&path, bytes).unwrap();
        refuses(&path, &[said]);
    }
    let flags = [&FLAGS[..], &["-flto", "-fno-fat-lto-objects"]].concat();
    refuses(&text("gcc_lto", TAS, &flags), &["GCC's intermediate code", "without -flto"]);
    let thin = scratch("thin.a");
    _ = std::fs::remove_file(&thin);
    if Command::new("ar").arg("rcT").arg(&thin).arg(&object).status().is_ok_and(|status| status.success()) {
        refuses(&thin, &["thin archive"]);
    }
}
