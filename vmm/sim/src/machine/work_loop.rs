//! The loop that stands for work in a guest: it is time, not instructions.
//!
//! A guest that works for a microsecond multiplies a register with itself, four times a round, and counts another one down:
//!
//! ```text
//! 2: imul p, p ; imul p, p ; imul p, p ; imul p, p ; dec n ; jnz 2b
//! ```
//!
//! A board recognises these instructions, and when a CPU comes to them it moves time on and sets both registers, instead of
//! executing round after round.

/// Multiplications in a round.
const MULTIPLICATIONS: usize = 4;
/// Instructions in a round.
pub(crate) const ROUND: u64 = MULTIPLICATIONS as u64 + 2;

/// A loop that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLoop {
    /// Address of its first instruction.
    pub head: u64,
    /// Address behind its last one.
    pub end: u64,
    /// Number of the register that is multiplied.
    pub product: u8,
    /// Number of the register that is counted down.
    pub left: u8,
}

impl WorkLoop {
    /// All of them in `code`, whose first byte is at `address`.
    #[must_use]
    pub fn find_all(code: &[u8], address: u64) -> Vec<Self> {
        let here = (0..code.len()).filter_map(|at| Self::at(&code[at..], address + at as u64));
        here.collect()
    }

    fn at(code: &[u8], head: u64) -> Option<Self> {
        /// `imul r64, r64` and `dec r64`, both with a REX prefix, and `jnz` with a distance of one byte.
        const BYTES: usize = MULTIPLICATIONS * 4 + 3 + 2;
        let code: &[u8; BYTES] = code.first_chunk()?;
        let (multiply, rest) = code.split_at(4);
        let [rex, 0x0f, 0xaf, operands] = *multiply else { return None };
        let (product, same) = (register(rex >> 2 & 1, operands >> 3), register(rex, operands));
        let repeats = code.chunks(4).take(MULTIPLICATIONS).all(|again| again == multiply);
        if rex & 0xfa != 0x48 || operands & 0xc0 != 0xc0 || product != same || !repeats {
            return None;
        }
        let [rex, 0xff, operands, 0x75, distance] = rest[(MULTIPLICATIONS - 1) * 4..] else { return None };
        if rex & 0xfe != 0x48 || operands & 0xf8 != 0xc8 || distance != (BYTES as u8).wrapping_neg() {
            return None;
        }
        Some(Self { head, end: head + BYTES as u64, product, left: register(rex, operands) })
    }

    pub(crate) fn after(mut product: u64, rounds: u64) -> u64 {
        // An odd number is 1 after its square has been squared 62 times; an even one is 0 after 6 times.
        const SETTLED: u64 = 64 / MULTIPLICATIONS as u64;
        for _ in 0..rounds.min(SETTLED) * MULTIPLICATIONS as u64 {
            product = product.wrapping_mul(product);
        }
        product
    }
}

fn register(high: u8, low: u8) -> u8 {
    (high & 1) << 3 | low & 7
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `imul r9, r9` four times, `dec rax`, `jnz` to the first.
    fn code() -> Vec<u8> {
        let mut code = [0x4d, 0x0f, 0xaf, 0xc9].repeat(4);
        code.extend([0x48, 0xff, 0xc8, 0x75, 0xeb]);
        code
    }

    #[test]
    fn the_loop_is_found_with_its_registers() {
        let mut bytes = vec![0x90; 3];
        bytes.extend(code());
        bytes.push(0xc3);
        let expected = WorkLoop { head: 0x1003, end: 0x1018, product: 9, left: 0 };
        assert_eq!(WorkLoop::find_all(&bytes, 0x1000), [expected]);
    }

    #[test]
    fn a_loop_that_differs_in_one_byte_is_not_taken_for_it() {
        for at in 0..code().len() {
            let mut other = code();
            other[at] ^= 0x40;
            assert_eq!(WorkLoop::find_all(&other, 0), [], "byte {at}");
        }
    }
}
