//! Place and size of the tables.

/// Memory for the tables: in the guest a static arena, on the host the heap. Nothing is given back.
pub trait Memory {
    /// `length` values, made by `make` from their index.
    fn slice<T: Sync>(&self, length: usize, make: impl FnMut(usize) -> T) -> &'static [T];
}

/// How large a world is.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// vCPUs that take part.
    pub vcpus: usize,
    /// Domains, numbered from 0.
    pub domains: usize,
    /// Entries of each table at first.
    pub references: usize,
    /// Entries that a table can grow to.
    pub most_references: usize,
    /// Mappings that a domain can have.
    pub handles: usize,
    /// Page frames of the machine, and frame numbers of each domain.
    pub frames: usize,
}
