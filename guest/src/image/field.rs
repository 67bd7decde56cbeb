//! Text in fields of fixed length, for tables that the VMM reads from the image.

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
