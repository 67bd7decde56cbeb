//! Where the tables lie.

/// Memory for the tables: in the guest a static arena, on the host the heap. Nothing is given back.
pub trait Memory {
    /// `length` values, made by `make` from their index.
    fn slice<T: Sync>(&self, length: usize, make: impl FnMut(usize) -> T) -> &'static [T];
}
