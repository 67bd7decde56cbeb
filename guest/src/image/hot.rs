//! Statics that several vCPUs write while something is measured: each in lines of its own, in a section of its own.
//!
//! A padded static by itself is not enough: the optimiser shrinks a private one to the fields that are used, keeps its
//! alignment, and puts a neighbour behind it. One that stands in a named section and is marked as used stays as long as it is. A
//! test of the VMM reads the image's symbols.

/// A value alone on its pairs of lines, in memory that has no other use.
#[repr(C, align(128))]
pub(crate) struct Hot<T>(T);

impl<T> Hot<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> core::ops::Deref for Hot<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Declares such statics.
macro_rules! hot {
    ($($(#[$doc:meta])* $visibility:vis static $name:ident: $type:ty = $value:expr;)+) => {$(
        $(#[$doc])*
        #[used]
        #[expect(unsafe_code, reason = "a section of its own")]
        #[unsafe(link_section = ".haltkick.hot")]
        $visibility static $name: $crate::image::hot::Hot<$type> = $crate::image::hot::Hot::new($value);
    )+};
}

pub(crate) use hot;
