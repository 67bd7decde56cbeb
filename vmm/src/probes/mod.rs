//! Abilities of this host, measured on guests that are made for it.

pub(crate) mod costs;
pub(crate) mod kvm;
pub(crate) mod round_trip;
pub(crate) mod spells;
