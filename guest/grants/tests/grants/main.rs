//! Grant tables on host threads, with the lock order checked.

mod concurrency;
mod operations;
mod posted;
mod scopes;
mod support;
