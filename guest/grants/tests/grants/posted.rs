//! The split as posted in 2013: a swap locks entries in the order of its arguments, under a lock that readers share.

use std::marker::PhantomData;

use haltkick_grants::{Kernel, MapLocking, MaptrackLocking, Readers, Scheme, Split, SwapLocking};
use haltkick_locks::UnfairRwLock;

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
