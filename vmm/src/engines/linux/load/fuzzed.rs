//! Files that call themselves kernels.

use std::io::Cursor;

use haltkick_fuzzing::{Script, Target, edited, no_seeds};

use super::{HIGH_MEMORY, Kernel, LinuxMemory};

pub(crate) const TARGET: Target = Target { name: "kernel", most_bytes: 256, seeds: no_seeds, execute };

const MEMORY: u64 = 32 << 20;

thread_local! {
    /// Kept for the next one: a loader does not ask what was there before.
    static KEPT: LinuxMemory = LinuxMemory::new(MEMORY).expect("a small guest's memory");
}

/// Edits of a bzImage and of an ELF kernel, or a whole file: refused, or loaded.
fn execute(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    _ = match script.byte() % 3 {
        0 => loaded(&edited(&bz_image(HIGH_MEMORY, 1 << 20), script.rest(), 0x1f1)),
        1 => loaded(&edited(&elf(5, 1, 64), script.rest(), 0)),
        _ => loaded(script.rest()),
    };
}

pub(super) fn loaded(bytes: &[u8]) -> Result<Kernel, String> {
    KEPT.with(|memory| {
        let mut file = Cursor::new(bytes);
        let kernel = Kernel::read(&mut file)?.within(MEMORY)?;
        memory.load_kernel(&kernel, &mut file).map_err(|error| error.to_string())?;
        Ok(kernel)
    })
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A bzImage with nothing in it, which says that it wants `init_size` bytes at `pref_address`.
pub(super) fn bz_image(pref_address: u64, init_size: u32) -> Vec<u8> {
    let mut bytes = vec![0; 8192];
    put(&mut bytes, 0x1f1, &[1]);
    put(&mut bytes, 0x1f4, &((8192 - 2 * 512) / 16_u32).to_le_bytes());
    put(&mut bytes, 0x202, b"HdrS");
    put(&mut bytes, 0x206, &0x20f_u16.to_le_bytes());
    put(&mut bytes, 0x211, &[1]);
    put(&mut bytes, 0x214, &(HIGH_MEMORY as u32).to_le_bytes());
    put(&mut bytes, 0x236, &1_u16.to_le_bytes());
    put(&mut bytes, 0x258, &pref_address.to_le_bytes());
    put(&mut bytes, 0x260, &init_size.to_le_bytes());
    bytes
}

/// An ELF kernel with `headers` program headers of type `kind`, each of which names `bytes` bytes from the file's beginning, for a
/// page of its own.
pub(super) fn elf(headers: u16, kind: u32, bytes: u64) -> Vec<u8> {
    let mut file = vec![0; 64 + 56 * usize::from(headers)];
    put(&mut file, 0, b"\x7fELF\x02\x01\x01");
    put(&mut file, 16, &[2, 0, 62, 0, 1]);
    put(&mut file, 24, &(16_u64 << 20).to_le_bytes());
    put(&mut file, 32, &64_u64.to_le_bytes());
    put(&mut file, 52, &[64, 0, 56, 0]);
    put(&mut file, 56, &headers.to_le_bytes());
    for number in 0..usize::from(headers) {
        let at = 64 + 56 * number;
        put(&mut file, at, &kind.to_le_bytes());
        put(&mut file, at + 24, &((16_u64 << 20) + ((number as u64) << 12)).to_le_bytes());
        put(&mut file, at + 32, &bytes.to_le_bytes());
        put(&mut file, at + 40, &bytes.to_le_bytes());
    }
    file
}

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_kernel_any_file_is_refused_or_loaded() {
        super::TARGET.run();
    }
}
