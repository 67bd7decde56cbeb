//! Grant tables on host threads, with the lock order checked.

mod concurrency;
mod operations;
mod scopes;
mod shared;
mod support;
