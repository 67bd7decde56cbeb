//! Small programs, assembled here.
#![expect(unsafe_code, reason = "programs for the simulated CPUs are assembled here and read as bytes")]

use crate::DONE;

/// The bytes of a program, up to and with its last instruction.
fn bytes_of(program: unsafe extern "C" fn()) -> &'static [u8] {
    const LAST: [u8; 2] = [0xe7, DONE as u8];
    let length = (0..).find(|&length| {
        // SAFETY: a function made of assembly that ends with these bytes; nothing behind them is read.
        let bytes: [u8; 2] = unsafe { (program as *const u8).add(length).cast::<[u8; 2]>().read_unaligned() };
        bytes == LAST
    });
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(program as *const u8, length.unwrap_or(0) + LAST.len()) }
}

macro_rules! programs {
    ($($name:ident: $($line:expr),+;)*) => {$(
        pub(crate) fn $name() -> &'static [u8] {
            #[unsafe(naked)]
            unsafe extern "C" fn program() {
                std::arch::naked_asm!($($line,)* "out 0x10, eax")
            }
            bytes_of(program)
        }
    )*};
}

/// Parts of programs. The end of a waiter that counts in RCX, and in R9 what its counts have decided: both are in RAX.
macro_rules! until_flag {
    () => {
        "4: cmp dword ptr [rdi], 0; je 2b; shl r9, 32; lea rax, [rcx + r9]"
    };
}

macro_rules! stay {
    () => {
        "mov ecx, 3000; 9: imul rdx, rdx; dec ecx; jnz 9b"
    };
}

/// Sets the value that a waiter reads, and then its flag.
macro_rules! set_flag {
    () => {
        "mov dword ptr [rdi + 64], 7; mov dword ptr [rdi], 1; mfence"
    };
}

/// Two lines, of which each CPU at last has its own alone, writes it, and looks at the other's. Then it stays in the guest for a while,
/// since a CPU that leaves gives its stores away.
macro_rules! write_then_look {
    ($between:literal) => {
        concat!(
            "lock inc dword ptr [rsi + 8]; ",
            stay!(),
            "; lock inc dword ptr [rdi + 8]; ",
            stay!(),
            "; mov dword ptr [rdi], 1; ",
            $between,
            "; mov eax, [rsi]; ",
            stay!(),
        )
    };
}

/// A branch reads flags that the round before has left.
macro_rules! branch_on_earlier {
    ($branch:literal, $look:literal) => {
        concat!(
            "xor ecx, ecx; 2: pause; ",
            $branch,
            "; inc r9d; 4: mov edx, [rdi]; lea edx, [rdx - 1]; inc edx; jnz 3f; inc ecx; ",
            $look,
            "; jmp 2b; 3: shl r9, 32; lea rax, [rcx + r9]",
        )
    };
}

programs! {
    // RDI: data. RSI: how often, or how long. RCX and others are free.
    add: "2: lock inc qword ptr [rdi]", "dec rsi", "jnz 2b";
    wait_for_flag: "2: pause", "cmp dword ptr [rdi], 0", "je 2b", "mov eax, [rdi + 64]";
    // The fence makes the flag visible at its own time: a CPU that leaves the guest before that gives its stores away a little early.
    work_then_set:
        "mov eax, 3", "2: imul rax, rax; .rept 3; imul rax, rax; .endr; dec rsi; jnz 2b", set_flag!();
    count_then_set: "2: dec rsi", "jnz 2b", set_flag!();
    count_then_swap: "2: dec rsi; jnz 2b; mov dword ptr [rdi + 64], 7; mov eax, 1; xchg [rdi], eax";
    wait_until:
        "2: pause; cmp dword ptr [rdi], 0; jne 3f; rdtsc; shl rdx, 32; or rax, rdx; cmp rax, rsi",
        "jb 2b; 3:";
    // RSI: how many lines. A counter in the first one goes up with each.
    store_to_lines:
        "mov rax, rdi; xor ecx, ecx",
        "2: inc rcx; mov qword ptr [rax], 7; add rax, 64; cmp rcx, rsi; jb 2b; mov [rdi + 8], rcx", "mfence";
    // RDI and RSI: two lines, which both CPUs use first.
    write_and_look: write_then_look!("");
    write_fence_and_look: write_then_look!("mfence");
    // Rounds that are counted, in various ways; the sum is in RAX.
    count: "xor eax, eax", "2: pause", "inc rax", "cmp dword ptr [rdi], 0", "je 2b";
    count_in_32_bits: "mov eax, 0xffffffd0", "2: pause; add eax, 3; cmp dword ptr [rdi], 0; je 2b";
    count_up_and_down:
        "mov ecx, 5; xor eax, eax",
        "2: pause; dec rdx; lea rax, [rax + rcx + 2]; cmp dword ptr [rdi], 0; je 2b; shl rdx, 32",
        "xor rax, rdx";
    // Counters that do something besides.
    count_to_a_bound:
        "xor eax, eax", "2: pause; inc rax; cmp rax, rsi; jae 3f; cmp dword ptr [rdi], 0; je 2b; 3:";
    count_down_to_zero: "mov eax, 3000", "2: pause; dec rax; jz 3f; cmp dword ptr [rdi], 0; je 2b; 3:";
    // It counts its rounds, looks at the clock in every 16th, and at another line in every 64th.
    wait_with_patience:
        "xor ecx, ecx",
        "2: pause; inc ecx; cmp dword ptr [rdi], 0; jne 3f; test cl, 63; jnz 4f; add r9d, [rdi + 64]",
        "4: test cl, 15; jnz 2b; rdtsc; shl rdx, 32; or rdx, rax; cmp rdx, rsi; jb 2b",
        "3: shl rcx, 32; lea rax, [rcx + r9]";
    // Waiters whose counters decide something now and then: R9 is zero at first.
    count_and_begin_anew:
        "xor ecx, ecx; xor edx, edx",
        "2: pause; mov eax, ecx; cmp eax, 50; lea ecx, [rax + 1]; cmove ecx, edx; test cl, 15",
        "jnz 4f; inc r9d", until_flag!();
    count_down_again_and_again:
        "mov ecx, 7", "2: pause; dec ecx; jnz 4f; mov ecx, 23; inc r9d", until_flag!();
    count_with_a_sign: "mov ecx, -20", "2: pause; inc ecx; cmp ecx, 3; jl 4f; inc r9d", until_flag!();
    count_below_zero: "mov ecx, 40", "2: pause; dec ecx; cmp rcx, 7; ja 4f; inc r9d", until_flag!();
    compare_the_lowest_byte:
        "xor ecx, ecx", "2: pause; add ecx, 3; cmp cl, 10; jae 4f; inc r9d", until_flag!();
    ask_for_parity: "xor ecx, ecx", "2: pause; inc ecx; test cl, 6; jp 4f; inc r9d", until_flag!();
    branch_on_earlier_flags: branch_on_earlier!("jz 4f", "test cl, 7");
    branch_on_earlier_parity: branch_on_earlier!("jp 4f", "test cl, 6");
    // A register of 32 bits begins anew, and is asked as one of 64.
    count_beyond_32_bits:
        "mov ecx, -300", "2: pause; cmp rcx, 5; jae 4f; inc r9d", "4: inc ecx", until_flag!();
    counters_change_places:
        "xor ecx, ecx; mov edx, 100",
        "2: pause; lea eax, [rcx + 1]; lea ecx, [rdx + 1]; mov edx, eax; test cl, 15; jnz 4f", "inc r9d",
        until_flag!();
    count_by_a_choice:
        "xor ecx, ecx", "2: pause; lea eax, [rcx + 1]; cmp ecx, 500; cmovb ecx, eax; cmovae ecx, r8d",
        until_flag!();
    // A register happens to be the count after a round, for a while.
    copy_a_count_with_a_bound:
        "xor ecx, ecx",
        "2: pause; lea eax, [rcx + 2]; add ecx, 2; cmp eax, 60; cmova ecx, r8d; test ecx, ecx",
        "jnz 4f; inc r9d", until_flag!();
    sum_of_a_counter:
        "xor eax, eax; xor ecx, ecx", "2: pause; inc rcx; add rax, rcx; cmp dword ptr [rdi], 0; je 2b";
    count_in_a_byte: "xor eax, eax", "2: pause", "inc al", "cmp dword ptr [rdi], 0", "je 2b";
    // Every second round leaves the registers of the one before the last, and the rounds between them store.
    store_every_second_round:
        "xor eax, eax", "2: pause; xor eax, 1; jz 2b; inc qword ptr [rdi]; cmp qword ptr [rdi], rsi; jb 2b";
    // Each eighth round stores.
    store_every_eighth_round:
        "xor eax, eax",
        "2: pause; inc eax; test eax, 7; jnz 2b; inc qword ptr [rdi]; cmp qword ptr [rdi], rsi; jb 2b";
    // A waiter that stores the same in each round; and one who takes that back, looks again later, and ends the wait.
    store_and_wait: "2: pause", "mov dword ptr [rdi + 64], 1", "cmp dword ptr [rdi], 0", "je 2b";
    take_back_and_look:
        stay!(), "mov dword ptr [rdi + 64], 0; mfence", stay!(),
        "mov eax, [rdi + 64]; mov dword ptr [rdi], 1; mfence";
    // Rounds that leave the guest.
    ask_and_wait: "2: pause", "out 0x11, eax", "cmp dword ptr [rdi], 0", "je 2b";
    // Eight lines that one CPU writes, and that another one loads when that is over: at once, and line by line before that.
    store_lines: "mov ecx, 8", "2: mov dword ptr [rdi], 1", "add rdi, 64", "dec ecx", "jnz 2b";
    load_lines: "mov ecx, 20000; 2: dec ecx; jnz 2b; mov rsi, rdi; mov ecx, 512; rep lodsb";
    touch_and_load_lines:
        "mov ecx, 20000; 2: dec ecx; jnz 2b",
        "mov rsi, rdi; mov ecx, 8; 3: mov eax, [rsi]; add rsi, 64; dec ecx; jnz 3b",
        "mov rsi, rdi; mov ecx, 512; rep lodsb";
    // RDI: a ticket lock (next, owner in lines of their own), and a counter behind it; R8: a product for the work loop.
    ticket:
        "2: mov eax, 1; lock xadd [rdi], eax", "3: cmp [rdi + 64], eax; je 4f; pause; jmp 3b",
        "4: inc qword ptr [rdi + 128]; mov ecx, 50",
        "5: imul r8, r8; .rept 3; imul r8, r8; .endr; dec rcx; jnz 5b; inc dword ptr [rdi + 64]",
        "dec rsi; jnz 2b";
    // RBX: rounds of work between two additions.
    add_and_work:
        "2: lock inc qword ptr [rdi]; mov rcx, rbx",
        "5: imul r8, r8; .rept 3; imul r8, r8; .endr; dec rcx; jnz 5b; dec rsi; jnz 2b";
    // Programs of instructions that take far longer than others, on lines that no other CPU has.
    pause_and_count: "2: pause", "inc qword ptr [rdi]", "dec rsi", "jnz 2b";
    look_at_the_clock: "2: rdtsc", "dec rsi", "jnz 2b";
    fence: "2: mfence", "dec rsi", "jnz 2b";
    // RDI: a line that only this CPU has had, written after that at RSI.
    store_to_two:
        "mov dword ptr [rdi], 0; mov ecx, 300; 9: dec ecx; jnz 9b",
        "mov dword ptr [rsi], 1; mov dword ptr [rdi], 1", stay!();
    // Copies the line at RSI, waits for a while (R8: the number of rounds), looks at that at RDI and then at the copy: both are in RAX.
    look_at_two:
        "mov eax, [rsi]; 2: dec r8; jnz 2b", "mov ecx, [rdi]; mov eax, [rsi]; lea rax, [rax + 2 * rcx]",
        stay!();
    // Fills what lies before the page tables.
    fill: "2: mov rdi, 0x8000; mov ecx, 0x3000; rep stosb; jmp 2b";
    // RDI + 62: a counter in two lines.
    add_across: "2: lock inc dword ptr [rdi + 62]", "dec rsi", "jnz 2b";
    // RDI + 62: a lock in two lines, which waiters look at before they try it. A plain store would become visible in two parts, between
    // which another CPU may come. RDI + 128: what it protects.
    lock_across:
        "2: mov eax, 0x01000001; xchg [rdi + 62], eax; test eax, eax; jz 4f",
        "3: pause; cmp dword ptr [rdi + 62], 0; jne 3b; jmp 2b",
        "4: inc qword ptr [rdi + 128]; xor eax, eax; xchg [rdi + 62], eax; dec rsi; jnz 2b";
    draw: "rdrand rax", "jc 2f", "xor eax, eax", "2:";
    // Programs of CPUs that walk tables and take exceptions.
    touch_pages: "2: inc dword ptr [rdi]; add rdi, 4096; dec rsi; jnz 2b";
    walk_and_store: "2: mov cr3, rax; mov rbx, [rdi]; mov [rdx], rsi; dec rsi; jnz 2b";
    drain_forever: "2: mov [rdi], rsi; mfence; jmp 2b";
    store_forever: "2: mov [rdi], rsi; jmp 2b";
    load_forever: "2: mov rax, [rdi]; jmp 2b";
    count_to_rsi: "2: inc rax; cmp rax, rsi; jne 2b";
    wait: "2: pause; cmp dword ptr [rdi], 0; je 2b";
    wait_for_a_byte: "2: pause; cmp byte ptr [rdi], 0; je 2b";
    begin_and_end: "out 0x11, eax; out 0x12, eax; iretq";
    // An entry of a table, and then its page.
    map_and_use: "mov [rdi], rbx; mov rax, [rsi]; mov [rsi + 8], rax";
    five_accesses:
        "mov [rdi], rbx; mov rax, [rdi]; lock inc qword ptr [rdi]; inc qword ptr [rdi + 64]; add rax, [rdi]";
    two_breakpoints: "2: mov rsp, rdi; int3; mov rsp, rbx; int3; dec rsi; jnz 2b";
    store_rax: "mov [rdi], rax";
    store_after_a_while: "2: dec ecx; jnz 2b; mov [rdi], rsi";
    // Loads, stores, pushes, calls, locked and repeated instructions, over the borders of lines and pages. Ring 3 may not halt: the
    // handler does.
    all_kinds:
        "push rax; inc qword ptr [rdi]; lock xadd [rdi + 0x3c], rax; mov [rdi + 0xffc], rax",
        "add rax, [rdi + 0xffb]; push rdi; mov ecx, 20; lea rsi, [rdi + 0x30]; lea rdi, [rdi + 0xfd0]",
        "rep movsd; pop rdi; call 2f; jmp 3f",
        "2: lock cmpxchg [rdi], rbx; xchg [rdi], eax; ret",
        "3: pop rax; hlt";
}
