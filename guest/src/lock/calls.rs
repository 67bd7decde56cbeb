//! How the workloads take and release a lock: as a kernel does it, by calls at marked sites.
//!
//! There is one copy of each workload for all locks. Its sites call through [`TABLE`], which vCPU 0 fills before any other vCPU
//! runs (T13: what it holds may never change while a lock is held): lock, unlock, read, read-unlock. Every site stands
//! in an ELF section, and the VMM may rewrite it before the guest starts: as a direct call, or as the function itself where that is no longer than the call, as the byte store of a
//! native unlock. So all locks are entered alike.
#![expect(unsafe_code, reason = "calls through a table, with tokens whose type is forgotten in between")]

use core::arch::asm;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use haltkick_hypercalls::{OPERATION_LOCK, OPERATION_READ, OPERATION_READ_UNLOCK, OPERATION_UNLOCK};
use haltkick_locks::RwLock as _;

use crate::cpu::percpu::boot;
use crate::image::hot;
use crate::lock::kind::{INSTANCE_BYTES, Kind};

/// A lock's token on its way from a lock to an unlock that alone know its type: two registers.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Token(MaybeUninit<u64>, MaybeUninit<u64>);

/// Acquires the lock at an address.
pub(crate) type LockFunction = unsafe extern "C" fn(*const ()) -> Token;
/// Acquires the lock at an address if it is free; not 0: it did.
pub(crate) type TryFunction = unsafe extern "C" fn(*const ()) -> i32;
/// Releases the lock at an address.
pub(crate) type UnlockFunction = unsafe extern "C" fn(*const (), Token);

/// Makes a token of what a lock hands out.
#[inline(always)]
fn pack<T>(token: T) -> Token {
    const { assert!(size_of::<T>() <= size_of::<Token>() && align_of::<T>() <= align_of::<Token>()) };
    let mut packed = Token(MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the token fits, by the assertion.
    unsafe { (&raw mut packed).cast::<T>().write(token) };
    packed
}

/// # Safety
/// `token` is from `pack::<T>`, and is unpacked once.
#[inline(always)]
unsafe fn unpack<T>(token: Token) -> T {
    // SAFETY: the caller's promise.
    unsafe { (&raw const token).cast::<T>().read() }
}

/// # Safety
/// A lock of kind `K` lies at `lock`, for as long as the guest lives.
#[inline(always)]
unsafe fn at<K: Kind>(lock: *const ()) -> &'static K::Lock {
    // SAFETY: the caller's promise.
    unsafe { &*lock.cast() }
}

/// Acquires a lock of kind `K`, for reading if `READS`; called by sites.
///
/// # Safety
/// A lock of that kind lies at `lock`, for as long as the guest lives. The table pairs this function with such addresses.
pub(crate) unsafe extern "C" fn lock<K: Kind, const READS: bool>(lock: *const ()) -> Token {
    // SAFETY: the caller's promise.
    let (lock, domain) = (unsafe { at::<K>(lock) }, K::domain());
    if READS { pack(lock.read(domain)) } else { pack(lock.write(domain)) }
}

/// Releases a lock of kind `K`, which was acquired for reading if `READS`; called by sites.
///
/// # Safety
/// As for [`lock`], which has returned this token, and it has not been used since.
pub(crate) unsafe extern "C" fn unlock<K: Kind, const READS: bool>(lock: *const (), token: Token) {
    // SAFETY: the caller's promise.
    unsafe {
        let (lock, domain) = (at::<K>(lock), K::domain());
        if READS { lock.read_unlock(domain, unpack(token)) } else { lock.write_unlock(domain, unpack(token)) }
    }
}

/// How sites call one form of a lock. Laid out as [`haltkick_hypercalls::LockCalls`], for the VMM to read from the image.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) lock: Option<LockFunction>,
    pub(crate) unlock: Option<UnlockFunction>,
    pub(crate) read: Option<LockFunction>,
    pub(crate) read_unlock: Option<UnlockFunction>,
    pub(crate) lock_bytes: u32,
    pub(crate) cpu_bytes: u32,
}

const _: () = assert!(size_of::<Calls>() == size_of::<haltkick_hypercalls::LockCalls>());

/// Functions that unpatched sites call, and addresses of the locks. Written by vCPU 0, before any other vCPU
/// runs.
#[repr(C)]
struct Table {
    slots: [AtomicPtr<()>; 4],
    /// Address of lock number 0.
    locks: AtomicUsize,
    excludes: AtomicBool,
}

hot! {
    static TABLE: Table = Table {
        slots: [const { AtomicPtr::new(null_mut()) }; 4],
        locks: AtomicUsize::new(0),
        excludes: AtomicBool::new(true),
    };
}

/// Makes the sites call these, for locks that begin at `locks`. By vCPU 0, before any other vCPU runs.
pub(crate) fn install(calls: &Calls, locks: usize, excludes: bool) {
    let address = |function: Option<LockFunction>| function.map_or(null_mut(), |it| it as *mut ());
    let release = |function: Option<UnlockFunction>| function.map_or(null_mut(), |it| it as *mut ());
    let addresses =
        [address(calls.lock), release(calls.unlock), address(calls.read), release(calls.read_unlock)];
    // Relaxed: the hypercall that lets the others start lies between this and their first instruction.
    for (slot, address) in TABLE.slots.iter().zip(addresses) {
        slot.store(address, Ordering::Relaxed);
    }
    TABLE.locks.store(locks, Ordering::Relaxed);
    TABLE.excludes.store(excludes, Ordering::Relaxed);
}

/// Whether the locks of this run exclude; the one that does not is the measure of the ideal.
#[inline(always)]
pub(crate) fn excludes() -> bool {
    // Relaxed, here and below: never changes after boot.
    TABLE.excludes.load(Ordering::Relaxed)
}

#[inline(always)]
fn instance(index: usize) -> usize {
    debug_assert!(index < boot().lock_count as usize);
    TABLE.locks.load(Ordering::Relaxed) + index * INSTANCE_BYTES
}

/// The word after the `bytes` bytes of lock `index`, in the line in which the lock ends.
#[inline(always)]
pub(crate) fn beside(index: usize, bytes: usize) -> &'static AtomicU64 {
    let offset = bytes.next_multiple_of(size_of::<AtomicU64>());
    assert!(offset < INSTANCE_BYTES, "an instance of {bytes} bytes has no room beside it");
    // SAFETY: within the instance, behind the lock, zero from the start and aligned as the instance is; only atomics refer to it.
    unsafe { &*((instance(index) + offset) as *const AtomicU64) }
}

/// Calls through slot `$slot` of the table; with an operation, the VMM may rewrite the call.
macro_rules! call {
    ($slot:literal, $($operation:expr)?, $($operand:tt)*) => {
        // SAFETY: the slot holds a function of these arguments, which `install` has stored. Whatever the VMM puts
        // here keeps to the same contract (System V ABI).
        unsafe {
            asm!(
                "2:",
                concat!("call qword ptr [rip + {table} + 8 * ", $slot, "]"),
                $(
                    "3:",
                    ".pushsection .haltkick.sites, \"a\"",
                    concat!(".quad 2b, {table} + 8 * ", $slot),
                    ".long 3b - 2b, {operation}",
                    ".popsection",
                    operation = const $operation,
                )?
                table = sym TABLE,
                $($operand)*
                clobber_abi("C"),
            )
        }
    };
}

/// Does `section` while the calling vCPU holds lock number `index`.
#[inline(always)]
pub(crate) fn with_lock(index: usize, section: impl FnOnce()) {
    let lock = instance(index);
    let (low, high): (MaybeUninit<u64>, MaybeUninit<u64>);
    call!(0, OPERATION_LOCK, in("rdi") lock, lateout("rax") low, lateout("rdx") high,);
    section();
    call!(1, OPERATION_UNLOCK, in("rdi") lock, in("rsi") low, in("rdx") high,);
}

/// Acquires the lock at an address.
///
/// # Safety
/// A lock of the run's kind, which needs no token, lies at `lock`, for as long as the guest lives.
#[inline(always)]
pub(crate) unsafe fn lock_at(lock: *const ()) {
    call!(0, OPERATION_LOCK, in("rdi") lock,);
}

/// Releases the lock at an address.
///
/// # Safety
/// As for [`lock_at`], by which the calling vCPU has acquired this lock.
#[inline(always)]
pub(crate) unsafe fn unlock_at(lock: *const ()) {
    call!(1, OPERATION_UNLOCK, in("rdi") lock,);
}

/// Does `section` while the calling vCPU holds lock number `index`, if `take` gets it at once; says whether. For locks without a
/// token, which all are that have such a function.
#[inline(always)]
pub(crate) fn with_lock_if_free(index: usize, take: TryFunction, section: impl FnOnce()) -> bool {
    let lock = instance(index);
    // SAFETY: `take` is from `object::try_lock`: the lock at this address is of its kind.
    if unsafe { take(lock as *const ()) } == 0 {
        return false;
    }
    section();
    call!(1, OPERATION_UNLOCK, in("rdi") lock, in("rsi") 0, in("rdx") 0,);
    true
}

/// Does `section` while no other vCPU is in [`with_lock`] of the same lock. Where readers share, others may be in here.
#[inline(always)]
pub(crate) fn with_read_lock(index: usize, section: impl FnOnce()) {
    let lock = instance(index);
    let (low, high): (MaybeUninit<u64>, MaybeUninit<u64>);
    call!(2, OPERATION_READ, in("rdi") lock, lateout("rax") low, lateout("rdx") high,);
    section();
    call!(3, OPERATION_READ_UNLOCK, in("rdi") lock, in("rsi") low, in("rdx") high,);
}

/// Runs `section` at sites that the VMM does not rewrite: to measure the worth of the rewriting.
#[inline(always)]
pub(crate) fn with_lock_through_table(index: usize, section: impl FnOnce()) {
    let lock = instance(index);
    let (low, high): (MaybeUninit<u64>, MaybeUninit<u64>);
    call!(0, , in("rdi") lock, lateout("rax") low, lateout("rdx") high,);
    section();
    call!(1, , in("rdi") lock, in("rsi") low, in("rdx") high,);
}
