//! Lock objects: other people's locks as relocatable ELF files, linked behind an image before any vCPU runs.
//!
//! `include/haltkick.h` is the contract, docs/lock-objects.md says what is linked and how. What comes out is an image like any
//! other, an ELF file with a few segments more, so that every engine runs it. Nothing in an object is believed unchecked, and
//! what cannot be linked is refused in one line.

mod archive;
mod arms;
mod compile;
mod contract;
mod instructions;
mod layout;
mod link;
mod member;
mod resolve;
mod source;

pub use arms::{ARMS, Arm};
pub use contract::FILE_PREFIX;
pub(crate) use contract::MOST_POINTS;
#[cfg(any(test, fuzzing))]
pub(super) use layout::MOST_BYTES;
pub(crate) use link::{LinkedObject, Part, Wanted};
pub(crate) use resolve::{Offer, Used};
pub use source::HEADER;
