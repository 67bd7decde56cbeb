//! Machine code on AArch64.
#![expect(unsafe_code, reason = "code is read")]

use haltkick_locks::*;

use crate::support::Cpus;

/// A native unlock, as a kernel has it.
#[inline(never)]
fn unlock(lock: &QSpinLock<Native>, domain: &QSpinDomain<Cpus, 1>) {
    lock.unlock(domain, ());
}

#[test]
fn a_native_unlock_is_one_store_release_of_a_byte() {
    const RET: u32 = 0xd65f_03c0;
    let is_stlrb = |word: u32| word & 0xffff_fc1f == 0x089f_fc1f; // of WZR
    let is_exclusive = |word: u32| word & 0x3f00_0000 == 0x0800_0000 && !is_stlrb(word);
    let start = (unlock as fn(&QSpinLock<Native>, &QSpinDomain<Cpus, 1>) as *const ()).cast::<u32>();
    // SAFETY: the function is code that ends with RET, and instructions are words.
    let code: Vec<u32> = (0..16).map(|at| unsafe { start.add(at).read() }).collect();
    let end = code.iter().position(|word| *word == RET).expect("a leaf function ends soon");
    assert_eq!(code[..end].iter().filter(|word| is_stlrb(**word)).count(), 1, "{code:x?}");
    assert!(!code[..end].iter().any(|word| is_exclusive(*word)), "{code:x?}");
}
