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

/// Words of the sources below. `DOING` is a try-lock that does something more, which the call keeps in the object.
const WORDS: &str = r#"
#define DOING(...) int hk_try_lock(struct lock *lock) { __VA_ARGS__; return lock->held; }
#define ASM(text) DOING(__asm__ volatile(text))
#define CHOOSE static int plain(void) { return 0; } static void *choose(void) { return plain; }
#define INDIRECT __attribute__((ifunc("choose")))
#define SET_UP(...) static int share; __VA_ARGS__ static void set_up(void) { share = 4; }
"#;

/// Sources behind [`TAS`]. A row has a name, the compiler's flags if they are not [`FLAGS`], what the refusal says, and indented lines.
/// One that says nothing is linked.
const SOURCES: &str = r#"
undefined: refers to hk_pauze; did you mean hk_pause?; hk_try_lock+0x
    void hk_pauze(void);
    DOING(hk_pauze())
printf: refers to p; which is not defined: include/haltkick.h has all that there is
    int printf(const char *, ...);
    DOING(printf("locked\n"))
vector: uses a vector or floating-point register; at hk_try_lock+0x => ASM("movaps %xmm1, %xmm2")
x87: vector or floating-point; at hk_try_lock+0x => ASM("fld1; fstp %st")
hlt: privileged; at hk_try_lock+0x => ASM("hlt")
cli: privileged; at hk_try_lock+0x => ASM("cli")
out: privileged; at hk_try_lock+0x => ASM("outb %al, %dx")
wrmsr: privileged; at hk_try_lock+0x => ASM("wrmsr")
mwait: waits in the CPU; at hk_try_lock+0x => ASM("mwait")
tpause: waits in the CPU; at hk_try_lock+0x => ASM("tpause %eax")
xbegin: a transaction; at hk_try_lock+0x => ASM("xbegin 1f; 1:")
syscall: system call; at hk_try_lock+0x => ASM("syscall")
int80: system call; at hk_try_lock+0x => ASM("int $0x80")
vmcall: system call; at hk_try_lock+0x => ASM("vmcall")
segment: segment register; at hk_try_lock+0x => ASM("movl %eax, %gs")
base: segment's base; at hk_try_lock+0x => ASM("wrgsbase %rax")
floating -O2 -ffreestanding -fno-pic -mno-red-zone: at hk_try_lock+0x; -mgeneral-regs-only
    float hk_scale = 2;
    int hk_try_lock(struct lock *lock) { return hk_scale * lock->held > 3.0f; }
unused:
    // Code out of reach of the exported functions is not loaded, and may be anything.
    __attribute__((section(".text.unused"))) void unused(void) { __asm__ volatile("hlt"); }
no_length: privileged; at hk_try_lock+0x
    // Functions without a length are read, too.
    __asm__(".globl hk_try_lock; hk_try_lock: hlt; xorl %eax, %eax; ret");
table:
    // Data between functions is no code.
    __asm__(".globl hk_try_lock; hk_try_lock: xorl %eax, %eax; ret");
    __asm__(".type table,@object; .size table,2; table: .byte 6, 6");
red_zone: below the stack pointer at hk_; -mno-red-zone => ASM("movl $0, -8(%rsp)")
red_zone_of_frame -O0 -ffreestanding -mgeneral-regs-only -fno-pic: below the stack pointer at hk_; -mno-red-zone
    // By the frame pointer, as compilers do in functions that call none.
    DOING(volatile int kept = 1; (void)kept)
frame -O0 -ffreestanding -mgeneral-regs-only -fno-pic -mno-red-zone: => DOING(volatile int kept = 1; (void)kept)
frame_of_128 -O0 -ffreestanding -mgeneral-regs-only -fno-pic -mno-red-zone:
    // 128 bytes are made by adding -128.
    DOING(volatile char kept[128]; kept[0] = 1; (void)kept[0])
pointer:
    // RBP may be a pointer like any other.
    DOING(__asm__ volatile("push %%rbp; mov %%rsp, %%rbp; add $8, %%rbp; mov -8(%%rbp), %%rax; pop %%rbp" ::: "rax"))
thread_local: thread-local; HK_PERCPU
    static __thread int mine;
    DOING(mine++)
narrow: relocation of type 12; -fno-pic => ASM("movw $hk_cpus, %ax")
much: takes more than 4096 KiB
    static char much[5 << 20];
    DOING(__atomic_fetch_add(&much[lock->held], 1, 0))
per_vcpu: wants 5000 bytes per vCPU: 4096 are the most
    struct node { char bytes[5000]; };
    HK_PERCPU(struct node);
    DOING(hk_percpu(0)->bytes[0]++)
no_size: does not say how much: write HK_PERCPU
    extern char hk_percpu_area[];
    DOING(hk_percpu_area[0]++)
large FLAGS -mcmodel=large -fpic: at hk_
    extern int elsewhere;
    int elsewhere;
    DOING(elsewhere++)
of_its_own FLAGS -Wno-attribute-alias: refers to mine, an indirect function; hk_init; (at
    // Resolvers of any type, here and below.
    CHOOSE
    static int mine(void) INDIRECT;
    DOING(mine())
of_all FLAGS -Wno-attribute-alias: refers to mine, an indirect function; hk_init; (at
    CHOOSE
    int mine(void);
    DOING(mine())
    int mine(void) INDIRECT;
in_a_table FLAGS -Wno-attribute-alias: refers to mine, an indirect function; hk_init; (at
    CHOOSE
    static int mine(void) INDIRECT;
    static int (*const volatile table[])(void) = {mine};
    DOING(table[0]())
exported FLAGS -Wno-attribute-alias: has hk_try_lock, an indirect function; hk_init
    CHOOSE
    int hk_try_lock(struct lock *) INDIRECT;
idle FLAGS -Wno-attribute-alias:
    // Without a reference to it, it does no harm.
    CHOOSE
    int mine(void);
    int mine(void) INDIRECT;
late: has a constructor set_up (.init_array.65000); hk_init
    SET_UP(__attribute__((constructor(65000))))
    DOING(lock->held += share)
by_hand: has a constructor set_up (.ctors); hk_init
    SET_UP()
    __attribute__((section(".ctors"), used)) static void (*const entry)(void) = set_up;
    DOING(lock->held += share)
early: has a constructor set_up (.preinit_array); hk_init
    SET_UP()
    __attribute__((section(".preinit_array"), used)) static void (*const entry)(void) = set_up;
    DOING(lock->held += share)
destructor:
    SET_UP(__attribute__((destructor)))
    DOING(lock->held += share)"#;

#[apply(trial)]
fn what_has_no_place_in_the_guest_is_refused() {
    let mut rows: Vec<(&str, String)> = vec![];
    for line in SOURCES.lines().skip(1) {
        match line.strip_prefix("    ") {
            Some(more) => rows.last_mut().expect("a row has begun").1 += &format!("{more}\n"),
            None => rows.push((line, String::new())),
        }
    }
    for (row, more) in rows {
        let (compiled, rest) = row.split_once(':').expect("a name ends with a colon");
        let (said, first) = rest.split_once(" => ").unwrap_or((rest, ""));
        let mut words = compiled.split(' ');
        let name = words.next().unwrap_or_default();
        let flags = words.flat_map(|flag| if flag == "FLAGS" { FLAGS.to_vec() } else { vec![flag] });
        let flags: Vec<_> = flags.collect();
        let flags = if flags.is_empty() { &FLAGS[..] } else { &flags[..] };
        let object = text(name, &format!("{TAS}{WORDS}{first}\n{more}"), flags);
        match said.trim() {
            "" => _ = linked(&object),
            said => refuses(&object, &said.split("; ").collect::<Vec<_>>()),
        }
    }
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
