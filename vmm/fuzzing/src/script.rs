//! Numbers out of bytes.

/// Numbers out of bytes, as long as there are any, then zeros.
#[derive(Debug)]
pub struct Script<'s>(&'s [u8]);

impl<'s> Script<'s> {
    /// The numbers in `bytes`.
    #[must_use]
    pub fn new(bytes: &'s [u8]) -> Self {
        Self(bytes)
    }

    /// Whether only zeros will come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes that are left.
    #[must_use]
    pub fn rest(&self) -> &'s [u8] {
        self.0
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Any number; small ones often.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::from_le_bytes([0; 8].map(|_: u8| self.byte())),
            253 => u64::from(self.byte()) << 56,
            252 => u64::from(self.byte()) << 20,
            small => u64::from(small),
        }
    }
}
