//! Machine code as text, with the image's names for what it refers to.

use std::sync::Arc;

use iced_x86::{
    Decoder, DecoderOptions, FastFormatter, Instruction, InstructionInfoFactory, OpAccess, Register,
    SymbolResolver, SymbolResult, UsedMemory,
};

use serde::{Serialize, Serializer};

use crate::image::file::Image;
use crate::image::symbols::Symbols;

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Address of the instruction.
    pub address: u64,
    /// Its bytes; in records as hexadecimal digits.
    #[serde(serialize_with = "hexadecimal")]
    pub bytes: Vec<u8>,
    /// Text of the instruction, in Intel syntax.
    pub text: String,
}

fn hexadecimal<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let digits: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    serializer.serialize_str(&digits.join(" "))
}

/// Decodes code of one image.
pub struct Disassembler {
    formatter: FastFormatter,
}

impl Disassembler {
    /// For code of `image`.
    #[must_use]
    pub fn new(image: &Image) -> Self {
        let names = Names(Arc::clone(image.symbols()));
        let mut formatter = FastFormatter::try_with_options(Some(Box::new(names)))
            .expect("a formatter without options to refuse");
        let options = formatter.options_mut();
        options.set_space_after_operand_separator(true);
        options.set_use_hex_prefix(true);
        options.set_uppercase_hex(false);
        Self { formatter }
    }

    /// The instructions of `code`, which lies at `address`. What is no instruction shows as `(bad)`.
    pub fn decode(&mut self, code: &[u8], address: u64) -> Vec<Line> {
        let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        decoder.into_iter().map(|instruction| self.line(&instruction, code, address)).collect()
    }

    /// Text of the image's instruction at an address, if code lies there.
    pub(crate) fn instruction(&mut self, image: &Image, address: u64) -> Option<String> {
        self.decode(image.code_at(address)?, address).first().map(|line| line.text.clone())
    }

    fn line(&mut self, instruction: &Instruction, code: &[u8], start: u64) -> Line {
        let at = (instruction.ip() - start) as usize;
        let mut text = String::new();
        self.formatter.format(instruction, &mut text);
        Line { address: instruction.ip(), bytes: code[at..at + instruction.len()].to_vec(), text }
    }
}

impl Image {
    /// The bytes in which an instruction at an address lies, if code does.
    pub(crate) fn code_at(&self, address: u64) -> Option<&[u8]> {
        const LONGEST: u64 = 15;
        (1..=LONGEST).rev().find_map(|length| self.bytes_at(address, length))
    }

    /// Whether the instruction at an address writes memory, of which that by the stack or frame pointer or GS is its vCPU's own.
    pub(crate) fn writes(&self, address: u64) -> bool {
        let Some(code) = self.code_at(address) else { return false };
        let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
        let is_own = |memory: &UsedMemory| {
            let is_local = memory.base() == Register::RBP && memory.displacement().cast_signed() < 0;
            is_local || memory.base() == Register::RSP || memory.segment() == Register::GS
        };
        let does_write = |memory: &UsedMemory| {
            use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
            matches!(memory.access(), Write | CondWrite | ReadWrite | ReadCondWrite) && !is_own(memory)
        };
        InstructionInfoFactory::new().info(&instruction).used_memory().iter().any(does_write)
    }
}

/// The lines around the instruction at `address`, up to three at each side. Empty when no instruction begins there.
pub(crate) fn around(lines: &[Line], address: u64) -> &[Line] {
    match lines.binary_search_by_key(&address, |line| line.address) {
        Ok(at) => &lines[at.saturating_sub(3)..lines.len().min(at + 4)],
        Err(_) => &[],
    }
}

/// Resolver of names for the formatter, which wants to own it.
struct Names(Arc<Symbols>);

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        _: &Instruction,
        _: u32,
        _: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        let (symbol, offset) = self.0.at(address)?;
        let name =
            if offset == 0 { symbol.short_name() } else { format!("{}+{offset:#x}", symbol.short_name()) };
        // The symbol is said to lie at the address itself, as the formatter would print the rest in its own way.
        Some(SymbolResult::with_string(address, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_of_the_image_decodes_to_its_last_byte() {
        let image = Image::embedded();
        let mut disassembler = Disassembler::new(&image);
        let (mut functions, mut named_calls) = (0, 0);
        for symbol in image.symbols().iter().filter(|symbol| symbol.is_function) {
            let code = image.bytes_at(symbol.address, symbol.size).expect("functions lie in the image");
            let lines = disassembler.decode(code, symbol.address);
            let bad = lines.iter().find(|line| line.text.contains("(bad)"));
            assert_eq!(bad, None, "{}", symbol.name);
            assert_eq!(lines.iter().map(|line| line.bytes.len() as u64).sum::<u64>(), symbol.size);
            functions += 1;
            named_calls += lines
                .iter()
                .filter(|line| line.text.starts_with("call ") && line.text.contains("::"))
                .count();
        }
        assert!(functions > 50 && named_calls > 50, "{functions} functions, {named_calls} calls by name");
    }

    #[test]
    fn a_window_of_lines_ends_where_the_function_does() {
        // Five times nop; pause; ret
        let image = Image::embedded();
        let code = [0x90, 0x90, 0x90, 0x90, 0x90, 0xf3, 0x90, 0xc3];
        let lines = Disassembler::new(&image).decode(&code, 0x1000);
        let text: Vec<_> = lines.iter().skip(4).map(|line| line.text.as_str()).collect();
        assert_eq!(text, ["nop", "pause", "ret"]);
        let lengths = [0x1000, 0x1003, 0x1005, 0x1006].map(|address| around(&lines, address).len());
        assert_eq!(lengths, [4, 7, 5, 0]);
    }
}
