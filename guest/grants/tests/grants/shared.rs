//! What the tests with threads and with a model checker share.

use std::marker::PhantomData;

use haltkick_grants::*;
use haltkick_locks::UnfairRwLock;

/// Mapping and granting domain.
pub(crate) const MAPPER: u16 = 0;
pub(crate) const GRANTER: u16 = 1;

pub(crate) type StrictSingle<K> = Strict<Single<K>>;
pub(crate) type StrictSplit<K> = Strict<Split<K>>;

/// The heap. What is made here stays until the process ends.
pub(crate) struct Heap;

impl Memory for Heap {
    fn slice<T: Sync>(&self, length: usize, make: impl FnMut(usize) -> T) -> &'static [T] {
        (0..length).map(make).collect::<Vec<_>>().leak()
    }
}

/// The split as posted in 2013: a swap locks entries in the order of its arguments, under a lock that readers share.
pub(crate) struct Posted<K>(PhantomData<fn() -> K>);

impl<K: Kernel> Scheme for Posted<K> {
    type Kernel = K;
    type TableLock = UnfairRwLock;
    type TableDomain = K::Domain;
    const MAP: MapLocking = Split::<K>::MAP;
    const LOOK_LOCKED: bool = Split::<K>::LOOK_LOCKED;
    const MAPTRACK: MaptrackLocking = Split::<K>::MAPTRACK;
    const SWAP: SwapLocking = SwapLocking::AsGiven;

    fn new_table_lock() -> UnfairRwLock {
        UnfairRwLock::new()
    }

    fn table_domain(_: &Readers<K>) -> &K::Domain {
        K::domain()
    }
}
