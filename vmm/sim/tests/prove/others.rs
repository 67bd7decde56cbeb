//! Forms that today's image lacks, and a user's lock object may have: assembled here.
#![expect(unsafe_code, reason = "instructions are assembled here and read as bytes")]

std::arch::global_asm!(
    ".globl haltkick_others, haltkick_others_end",
    "haltkick_others:",
    "cqo; cdq; cwd; cdqe; cwde; cbw",
    "idiv rcx; idiv ecx; idiv cx; idiv cl; div cl; div cx",
    "imul rcx; imul cl; mul cx; mul ch; imul ax, cx",
    "movsx rax, bpl; movsx eax, word ptr [rsi]; movsxd rax, ecx; movzx eax, ah; mov dh, ah; add ch, bh",
    "rcl al, 1; rcl rax, cl; rcl ax, cl; rcr al, cl; rcr eax, cl; rcr rax, 1; rol al, cl; ror ax, cl",
    "shl al, cl; sar al, cl; shr word ptr [rsi], cl",
    "shld eax, ecx, cl; shrd eax, edx, cl; shld ax, dx, 5; shrd ax, dx, 5",
    "popcnt rax, rcx; lzcnt rax, rcx; lzcnt ax, cx; tzcnt ax, cx; movbe rax, [rsi]; movbe [rsi], ax",
    "btc eax, 33; btc word ptr [rsi], ax; btr eax, ecx",
    "cmpxchg bl, cl; cmpxchg ebx, ecx",
    "cmpxchg8b [rsi]; lock cmpxchg8b [rsi]; lock cmpxchg16b [rsi]",
    "cmpsb; repe cmpsq; repne scasb; lodsb",
    "pop qword ptr [rsp]; push qword ptr [rsp + 8]; popfq; sahf; leave",
    // Forms of instructions that not every CPU has.
    "andn eax, ecx, edx; andn rax, rcx, [rsi]; bextr eax, ecx, edx; bextr rax, [rsi], rcx",
    "blsi rax, rcx; blsi eax, [rsi]; blsmsk eax, ecx; blsmsk rax, [rsi]; blsr rax, rcx; blsr eax, [rsi]",
    "bzhi eax, ecx, edx; bzhi rax, [rsi], rcx; mulx rax, rcx, rbx; mulx eax, ecx, [rsi]; mulx rax, rax, rdx",
    "pdep eax, ecx, edx; pdep rax, rcx, [rsi]; pext rax, rcx, rdx; pext eax, ecx, [rsi]",
    "rorx eax, ecx, 0x25; rorx rax, [rsi], 0x3f; sarx eax, ecx, edx; sarx rax, [rsi], rcx",
    "shlx rax, rcx, rdx; shlx eax, [rsi], ecx; shrx eax, ecx, r9d; shrx r10, [rsi], rcx",
    "crc32 eax, cl; crc32 eax, ch; crc32 eax, cx; crc32 eax, ecx; crc32 rax, rcx",
    "crc32 eax, byte ptr [rsi]; crc32 rax, qword ptr [rsi]",
    "movnti [rsi], ecx; movnti [rsi], r9; clflush [rsi]; clflushopt [rsi]; clwb [rsi]",
    "haltkick_others_end:",
);

unsafe extern "C" {
    static haltkick_others: u8;
    static haltkick_others_end: u8;
}

pub(crate) const COUNT: usize = 100;

pub(crate) fn bytes() -> &'static [u8] {
    let (begin, end) = (&raw const haltkick_others, &raw const haltkick_others_end);
    // SAFETY: these are labels of the code above, the second one behind it.
    unsafe { std::slice::from_raw_parts(begin, end.offset_from_unsigned(begin)) }
}
