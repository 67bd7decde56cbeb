//! RFLAGS, kept as what they are made of: most are overwritten before anybody looks.
//!
//! An addition of `a` and `b` has a carry out of every bit. All of these are one word, the *carries*: computed without
//! carrying, as `a & b | (a | b) & !sum`, for a subtraction likewise. Shifted up so that the operation's highest bit is bit 63,
//! ```text
//!   CF = carry out of the highest bit      = carries bit 63
//!   OF = carry into it differs from that   = bit 63 ^ bit 62
//!   ZF, SF = the result, sign-extended from the operation's width
//!   PF = parity of its lowest byte
//! ```
//! What these cannot express (POPF may set ZF and SF both) goes into `corrections`.

/// Flags that conditions depend on, but for parity.
pub(crate) const DECIDING: u64 = CARRY | ZERO | SIGN | OVERFLOW;
pub(crate) const ARITHMETIC: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW;
pub(crate) const CARRY: u64 = 1;
const PARITY: u64 = 1 << 2;
const ADJUST: u64 = 1 << 4;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
/// TF.
pub(crate) const TRAP: u64 = 1 << 8;
/// IF.
pub(crate) const INTERRUPTS: u64 = 1 << 9;
/// DF.
pub(crate) const BACKWARD: u64 = 1 << 10;
const OVERFLOW: u64 = 1 << 11;
/// IOPL.
pub(crate) const IO_LEVEL: u64 = 3 << 12;
/// NT.
pub(crate) const NESTED: u64 = 1 << 14;
/// RF.
pub(crate) const RESUME: u64 = 1 << 16;
/// AC.
pub(crate) const ALIGNMENT: u64 = 1 << 18;
/// ID.
pub(crate) const IDENTIFICATION: u64 = 1 << 21;
/// The bit that is always one.
const RESERVED: u64 = 1 << 1;

/// The operation's mask: `width` is 8, 16, 32 or 64.
#[inline(always)]
pub(crate) const fn mask(width: u32) -> u64 {
    u64::MAX >> (64 - width)
}

/// The lowest `width` bits as a signed number.
#[inline(always)]
pub(crate) const fn signed(value: u64, width: u32) -> i64 {
    (value << (64 - width)) as i64 >> (64 - width)
}

/// The default is no state of a CPU: it has ZF and PF.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    /// Sign-extended.
    result: u64,
    carries: u64,
    /// Bit 4: AF. Bits 8 to 15: added to the byte that PF is of. Bit 63: inverts SF.
    corrections: u64,
    /// All others.
    pub(crate) system: u64,
}

impl Flags {
    /// RFLAGS as the architecture has them.
    pub(crate) fn get(&self) -> u64 {
        self.arithmetic() | self.system | RESERVED
    }

    pub(crate) fn set(&mut self, value: u64) {
        self.system = value & !ARITHMETIC & !RESERVED;
        self.set_arithmetic(value);
    }

    pub(crate) fn arithmetic(&self) -> u64 {
        let flag = |condition: bool, flag| if condition { flag } else { 0 };
        flag(self.carry(), CARRY)
            | flag(self.parity(), PARITY)
            | self.corrections & ADJUST
            | flag(self.zero(), ZERO)
            | flag(self.sign(), SIGN)
            | flag(self.overflow(), OVERFLOW)
    }

    pub(crate) fn set_arithmetic(&mut self, value: u64) {
        let has = |flag| u64::from(value & flag != 0);
        // One, whose parity is odd, or zero, whose parity is even.
        self.result = 1 - has(ZERO);
        let parity = has(PARITY) ^ has(ZERO);
        self.corrections = value & ADJUST | parity << 8 | has(SIGN) << 63;
        self.set_carry_overflow(has(CARRY) != 0, has(OVERFLOW) != 0);
    }

    #[inline(always)]
    pub(crate) fn carry(&self) -> bool {
        (self.carries as i64) < 0
    }

    #[inline(always)]
    pub(crate) fn overflow(&self) -> bool {
        ((self.carries ^ self.carries << 1) as i64) < 0
    }

    #[inline(always)]
    pub(crate) fn zero(&self) -> bool {
        self.result == 0
    }

    #[inline(always)]
    pub(crate) fn sign(&self) -> bool {
        ((self.result ^ self.corrections) as i64) < 0
    }

    #[inline(always)]
    pub(crate) fn parity(&self) -> bool {
        ((self.result ^ self.corrections >> 8) as u8).count_ones() & 1 == 0
    }

    /// Condition `code` of Jcc, SETcc and CMOVcc: the lowest four bits of their opcodes.
    #[inline(always)]
    pub(crate) fn holds(&self, code: u8) -> bool {
        let condition = match code >> 1 {
            0 => self.overflow(),
            1 => self.carry(),
            2 => self.zero(),
            3 => self.carry() | self.zero(),
            4 => self.sign(),
            5 => self.parity(),
            6 => self.sign() != self.overflow(),
            _ => self.zero() | (self.sign() != self.overflow()),
        };
        condition != (code & 1 != 0)
    }

    #[inline(always)]
    pub(crate) fn logic<const W: u32>(&mut self, result: u64) {
        self.result = signed(result, W) as u64;
        self.carries = 0;
        self.corrections = 0;
    }

    /// `a + b + carry`, within `W` bits, and its flags.
    #[inline(always)]
    pub(crate) fn add<const W: u32>(&mut self, a: u64, b: u64, carry: u64) -> u64 {
        let sum = a.wrapping_add(b).wrapping_add(carry) & mask(W);
        self.carries = (a & b | (a | b) & !sum) << (64 - W);
        self.corrections = (a ^ b ^ sum) & ADJUST;
        self.result = signed(sum, W) as u64;
        sum
    }

    /// `a - b - borrow`, within `W` bits, and its flags.
    #[inline(always)]
    pub(crate) fn subtract<const W: u32>(&mut self, a: u64, b: u64, borrow: u64) -> u64 {
        let difference = a.wrapping_sub(b).wrapping_sub(borrow) & mask(W);
        self.carries = (!a & b | (!a | b) & difference) << (64 - W);
        self.corrections = (a ^ b ^ difference) & ADJUST;
        self.result = signed(difference, W) as u64;
        difference
    }

    /// `a + 1`: as an addition, but CF stays.
    #[inline(always)]
    pub(crate) fn increment<const W: u32>(&mut self, a: u64) -> u64 {
        let carry = self.carry();
        let sum = self.add::<W>(a, 1, 0);
        self.set_carry_overflow(carry, sum == 1 << (W - 1));
        sum
    }

    /// `a - 1`: as a subtraction, but CF stays.
    #[inline(always)]
    pub(crate) fn decrement<const W: u32>(&mut self, a: u64) -> u64 {
        let carry = self.carry();
        let difference = self.subtract::<W>(a, 1, 0);
        self.set_carry_overflow(carry, difference == mask(W) >> 1);
        difference
    }

    /// CF and OF alone.
    #[inline(always)]
    pub(crate) fn set_carry_overflow(&mut self, carry: bool, overflow: bool) {
        self.carries = u64::from(carry) << 63 | u64::from(carry ^ overflow) << 62;
    }

    #[inline(always)]
    pub(crate) fn set_carry(&mut self, carry: bool) {
        self.set_carry_overflow(carry, self.overflow());
    }

    /// Sets the flags that follow from a result alone: ZF, SF and PF, without AF.
    #[inline(always)]
    pub(crate) fn set_result<const W: u32>(&mut self, result: u64) {
        self.result = signed(result, W) as u64;
        self.corrections = 0;
    }

    /// ZF alone.
    pub(crate) fn set_zero(&mut self, zero: bool) {
        let others = self.arithmetic() & !ZERO;
        self.set_arithmetic(others | if zero { ZERO } else { 0 });
    }
}
