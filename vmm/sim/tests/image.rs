//! No guest can come to an instruction that the interpreter lacks.

mod forms;

use std::collections::BTreeSet;

use haltkick_sim::{Access, Bus, Moment, Verdict, covers};

/// A machine whose CPUs never run.
struct Nothing;

impl Bus for Nothing {
    fn touch(&mut self, _: Moment, _: u64, _: Access) -> Verdict {
        Verdict::Stop
    }

    fn load(&mut self, _: u64, _: usize) -> u64 {
        0
    }

    fn store(&mut self, _: u64, _: usize, _: u64) {}

    fn clock(&mut self, _: Moment) -> u64 {
        0
    }
}

#[test]
fn every_instruction_of_the_image_is_covered() {
    let all = forms::instructions();
    let mnemonics: BTreeSet<_> =
        all.iter().map(|(instruction, _)| format!("{:?}", instruction.mnemonic())).collect();
    let lacking: BTreeSet<_> = all
        .iter()
        .filter(|(instruction, _)| !covers::<Nothing>(instruction))
        .map(|(instruction, bytes)| (format!("{:?}", instruction.code()), bytes, instruction.ip()))
        .collect();
    println!("{} instructions, {} mnemonics, {} forms", all.len(), mnemonics.len(), forms::forms(1).len());
    assert!(all.len() > 100_000 && mnemonics.len() > 80, "the image was found");
    assert!(
        lacking.is_empty(),
        "{} not covered, among them {:x?}",
        lacking.len(),
        lacking.iter().take(20).collect::<Vec<_>>()
    );
}
