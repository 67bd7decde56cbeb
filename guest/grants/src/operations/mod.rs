//! Operations of a hypervisor on grant tables, one each file.

mod copy;
mod maintain;
mod map;
mod reach;
mod rest;
mod transfer;
mod unmap;
mod world;

pub use copy::{CopyRequest, Place};
pub use map::MapRequest;
pub use rest::Rest;
pub use transfer::TransferRequest;
pub use unmap::BATCH;
pub use world::World;
