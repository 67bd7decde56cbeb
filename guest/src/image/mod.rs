//! Parts of the image at places of their own: text of fixed length in tables that the VMM reads there, and statics in
//! lines of their own.
//!
//! Several vCPUs write those statics while something is measured. A padded static by itself is not enough: the optimiser
//! shrinks a private one to the fields that are used, keeps its alignment, and puts a neighbour behind it. One that stands
//! in a named section and is marked as used stays as long as it is. A test of the VMM reads the image's symbols.

/// `text`, and zeros behind it, at least one.
pub(crate) const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let (mut field, text) = ([0; N], text.as_bytes());
    assert!(text.len() < N, "a table entry's text is too long");
    let mut i = 0;
    while i < text.len() {
        field[i] = text[i];
        i += 1;
    }
    field
}

/// Declares statics that are alone on their lines, in memory that has no other use.
macro_rules! hot {
    ($($(#[$doc:meta])* $visibility:vis static $name:ident: $type:ty = $value:expr;)+) => {$(
        $(#[$doc])*
        #[used]
        #[expect(unsafe_code, reason = "a section of its own")]
        #[unsafe(link_section = ".haltkick.hot")]
        $visibility static $name: haltkick_locks::CachePadded<$type> = haltkick_locks::CachePadded::new($value);
    )+};
}

pub(crate) use hot;
