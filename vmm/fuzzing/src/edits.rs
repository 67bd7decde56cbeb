//! Changes to what is right.

/// `whole` with some of its bytes from `from` on changed, as `edits` say: three bytes for a place, one for how much, and what is
/// written there.
#[must_use]
pub fn edited(whole: &[u8], edits: &[u8], from: usize) -> Vec<u8> {
    const INTERESTING: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, 1 << 63, u64::MAX];
    let mut bytes = whole.to_vec();
    for edit in edits.chunks_exact(8) {
        let place = u32::from_le_bytes([edit[0], edit[1], edit[2], 0]) as usize;
        let at = from + place % whole.len().saturating_sub(from).max(1);
        let value = match edit[3] % 3 {
            0 => INTERESTING[usize::from(edit[4] % 8)].wrapping_sub(u64::from(edit[5] % 4)),
            _ => u64::from(u32::from_le_bytes([edit[4], edit[5], edit[6], edit[7]])),
        };
        let length = [1, 2, 4, 8][usize::from(edit[3] >> 6)];
        for (slot, byte) in bytes[at..].iter_mut().zip(value.to_le_bytes()).take(length) {
            *slot = byte;
        }
    }
    bytes
}
