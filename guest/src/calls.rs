//! How the workloads take and release a lock: as a kernel does it, by calls at marked sites.
//!
//! There is one copy of each workload for all locks. Its lock and unlock sites call through [`TABLE`], which vCPU 0
//! fills before any other vCPU runs (T13: the pair may never change while a lock is held). Every site stands in a
//! section, and the VMM may rewrite it before the guest starts: as a direct call, or as the function itself where that
//! is no longer than the call, as the byte store of a native unlock.
#![expect(unsafe_code, reason = "calls through a table, with tokens whose type is forgotten in between")]

use core::arch::asm;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use haltkick_hypercalls::{OPERATION_LOCK, OPERATION_UNLOCK};
use haltkick_locks::{CachePadded, Domain as _, Lock, Queues};

use crate::locks::{GuestLock, Kind};

/// A lock's token on its way from a lock to an unlock that alone know its type: two registers.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Token(MaybeUninit<u64>, MaybeUninit<u64>);

/// What `lock` of kind `K` hands to `unlock`.
type TokenOf<K> = <<K as Kind>::Lock as Lock<<K as Kind>::Domain>>::Token;

/// Acquires the lock at an address.
pub(crate) type LockFunction = extern "C" fn(*const ()) -> Token;
/// Releases the lock at an address.
pub(crate) type UnlockFunction = extern "C" fn(*const (), Token);

/// What a site calls to acquire a lock of kind `K`.
pub(crate) extern "C" fn lock<K: Kind>(lock: *const ()) -> Token {
    const { assert!(size_of::<TokenOf<K>>() <= size_of::<Token>()) };
    const { assert!(align_of::<TokenOf<K>>() <= align_of::<Token>()) };
    // SAFETY: the table pairs this function with the addresses of locks of this kind.
    let lock = unsafe { &*lock.cast::<CachePadded<K::Lock>>() };
    let mut token = Token(MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the token fits, by the assertions.
    unsafe { (&raw mut token).cast::<TokenOf<K>>().write(lock.lock(K::domain())) };
    token
}

/// What a site calls to release a lock of kind `K`.
pub(crate) extern "C" fn unlock<K: Kind>(lock: *const (), token: Token) {
    // SAFETY: as in `lock`.
    let lock = unsafe { &*lock.cast::<CachePadded<K::Lock>>() };
    // SAFETY: `token` is what `lock::<K>` has written, for each section releases what it acquired.
    lock.unlock(K::domain(), unsafe { (&raw const token).cast::<TokenOf<K>>().read() });
}

/// The pair that unpatched sites call, and where its locks lie. Written by vCPU 0, before any other vCPU runs.
#[repr(C)]
struct Table {
    lock: AtomicPtr<()>,
    unlock: AtomicPtr<()>,
    locks: AtomicPtr<()>,
    stride: AtomicUsize,
    excludes: AtomicBool,
}

/// Offset of `unlock`, for the assembly.
const UNLOCK_SLOT: usize = core::mem::offset_of!(Table, unlock);

static TABLE: Table = Table {
    lock: AtomicPtr::new(null_mut()),
    unlock: AtomicPtr::new(null_mut()),
    locks: AtomicPtr::new(null_mut()),
    stride: AtomicUsize::new(0),
    excludes: AtomicBool::new(true),
};

/// One form of a lock, as the table takes it.
#[derive(Clone, Copy)]
pub(crate) struct Called {
    pub(crate) lock: LockFunction,
    pub(crate) unlock: UnlockFunction,
    /// Where locks number 0 and 1 lie.
    locks: fn() -> [*const (); 2],
    excludes: bool,
    word: u32,
    queues: fn() -> Option<Queues>,
}

impl Called {
    /// Those of kind `K`.
    pub(crate) const fn of<K: Kind>() -> Self {
        Self {
            lock: lock::<K>,
            unlock: unlock::<K>,
            locks: || [0, 1].map(|index| (&raw const *K::instance(index)).cast()),
            excludes: K::EXCLUDES,
            word: K::WORD,
            queues: || K::domain().queues(),
        }
    }

    /// Makes the sites call this. By vCPU 0, before any other vCPU runs.
    pub(crate) fn install(&self) {
        let [first, second] = (self.locks)();
        // Relaxed: the hypercall that lets the others start lies between this and their first instruction.
        TABLE.lock.store(self.lock as *mut (), Ordering::Relaxed);
        TABLE.unlock.store(self.unlock as *mut (), Ordering::Relaxed);
        TABLE.locks.store(first.cast_mut(), Ordering::Relaxed);
        TABLE.stride.store(second as usize - first as usize, Ordering::Relaxed);
        TABLE.excludes.store(self.excludes, Ordering::Relaxed);
        let control = crate::percpu::control();
        control.lock_stride.store((second as usize - first as usize) as u32, Ordering::Relaxed);
        control.lock_word.store(self.word, Ordering::Relaxed);
        control.locks.store(first as u64, Ordering::Relaxed);
        self.publish_queues(&control.queues);
    }

    fn publish_queues(&self, to: &haltkick_hypercalls::Queues) {
        let queues = (self.queues)().unwrap_or_default();
        // Relaxed: as in `install`.
        for (address, value) in
            [(&to.nodes, queues.nodes), (&to.in_use, queues.in_use), (&to.table, queues.table)]
        {
            address.store(value as u64, Ordering::Relaxed);
        }
        for (number, value) in [
            (&to.cpu_bytes, queues.cpu_bytes),
            (&to.node_bytes, queues.node_bytes),
            (&to.nodes_per_cpu, queues.nodes_per_cpu),
            (&to.next, queues.next),
            (&to.locked, queues.locked),
            (&to.table_entries, queues.table_entries),
        ] {
            number.store(value as u32, Ordering::Relaxed);
        }
    }
}

/// Calls through the slot at `TABLE + $offset`; with `marked`, the VMM may rewrite the call.
macro_rules! call {
    ($offset:expr, $($operation:expr)?, $($operand:tt)*) => {
        // SAFETY: the slot holds a function of these arguments, which `install` has stored. Whatever the VMM puts
        // here keeps to the same contract (System V ABI).
        unsafe {
            asm!(
                "2:",
                "call qword ptr [rip + {table} + {offset}]",
                $(
                    "3:",
                    ".pushsection .haltkick.sites, \"a\"",
                    ".quad 2b, {table} + {offset}",
                    concat!(".long 3b - 2b, ", $operation),
                    ".popsection",
                )?
                table = sym TABLE,
                offset = const $offset,
                $($operand)*
                clobber_abi("C"),
            )
        }
    };
}

/// A lock at marked sites: what the workloads use.
pub(crate) enum Sites {}

/// The same through the table, whatever the VMM rewrites: to tell what that is worth.
pub(crate) enum Unmarked {}

const _: () = assert!(OPERATION_LOCK == 0 && OPERATION_UNLOCK == 1);

macro_rules! sections {
    ($name:ident, ($($lock:literal)?), ($($unlock:literal)?)) => {
        impl GuestLock for $name {
            #[inline(always)]
            fn excludes() -> bool {
                TABLE.excludes.load(Ordering::Relaxed)
            }

            #[inline(always)]
            fn section(index: usize, section: impl FnOnce()) {
                // Relaxed: never changes after boot.
                let first = TABLE.locks.load(Ordering::Relaxed);
                let lock = first.wrapping_byte_add(index * TABLE.stride.load(Ordering::Relaxed));
                let (low, high): (MaybeUninit<u64>, MaybeUninit<u64>);
                call!(0, $($lock)?, in("rdi") lock, lateout("rax") low, lateout("rdx") high,);
                section();
                call!(UNLOCK_SLOT, $($unlock)?, in("rdi") lock, in("rsi") low, in("rdx") high,);
            }
        }
    };
}

sections!(Sites, ("0"), ("1"));
sections!(Unmarked, (), ());
