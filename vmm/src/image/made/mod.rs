//! Small files made by hand, each with all that its kind can have: what is executed on arbitrary bytes edits them. The embedded
//! image would do, but it is a thousand times as long, and so are executions then.

mod elf;
pub(crate) mod guest;
pub(crate) mod lock;
pub(crate) mod nested;
