//! KVM's counters of a vCPU (KVM_GET_STATS_FD, Linux 5.14): exits that the VMM never sees, such as those at HLT and
//! PAUSE.
#![expect(unsafe_code, reason = "kvm-ioctls does not have this ioctl")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _};
use std::os::unix::fs::FileExt as _;

vmm_sys_util::ioctl_io_nr!(KVM_GET_STATS_FD, kvm_bindings::KVMIO, 0xce);

/// The largest file that is taken for one: a hundred statistics of a hundred bytes.
const MOST_BYTES: u32 = 64 << 10;
/// `flags` of a descriptor: the low four bits are the type, 0 for what only ever grows.
const TYPE_MASK: u32 = 0xf;
/// Bytes of a descriptor before its name: flags, exponent, size, offset, bucket size.
const DESCRIPTOR_BYTES: u32 = 16;

/// The cumulative statistics of the vCPU (or VM) behind `fd`, by KVM's names.
pub(crate) fn read(fd: &impl AsRawFd) -> io::Result<Vec<(String, u64)>> {
    // SAFETY: the ioctl takes no argument and returns a new file descriptor.
    let stats = unsafe { libc::ioctl(fd.as_raw_fd(), KVM_GET_STATS_FD() as _, 0) };
    if stats < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just returned to us, and not owned elsewhere.
    let file = unsafe { File::from_raw_fd(stats) };
    parse(&file).map_err(|error| io::Error::new(error.kind(), format!("KVM's statistics: {error}")))
}

fn parse(file: &File) -> io::Result<Vec<(String, u64)>> {
    let word = |at: u32| {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, u64::from(at)).map(|()| u32::from_ne_bytes(bytes))
    };
    // The header: flags, length of a name, number of descriptors, and where id, descriptors and data are.
    let (name_bytes, count, descriptors, data) = (word(4)?, word(8)?, word(16)?, word(20)?);
    let each = DESCRIPTOR_BYTES.saturating_add(name_bytes);
    let total = each.saturating_mul(count);
    if total > MOST_BYTES {
        return Err(io::Error::other("a header that makes no sense"));
    }
    let mut bytes = vec![0; total as usize];
    file.read_exact_at(&mut bytes, u64::from(descriptors))?;
    let fields = |descriptor: &[u8]| {
        let field = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| descriptor[at + i]));
        (field(0), u16::from_ne_bytes([descriptor[6], descriptor[7]]), field(8))
    };
    let descriptors = bytes.chunks_exact(each as usize);
    let single = descriptors.filter(|descriptor| {
        let (flags, elements, offset) = fields(descriptor);
        flags & TYPE_MASK == 0 && elements == 1 && offset < MOST_BYTES
    });
    let end = single.clone().map(|descriptor| fields(descriptor).2 + 8).max().unwrap_or(0);
    let mut block = vec![0; end as usize];
    file.read_exact_at(&mut block, u64::from(data))?;
    let value = |descriptor: &[u8]| {
        let (_, _, offset) = fields(descriptor);
        let name = &descriptor[DESCRIPTOR_BYTES as usize..];
        let used = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let value = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| block[offset as usize + i]);
        (String::from_utf8_lossy(&name[..used]).into_owned(), u64::from_ne_bytes(value))
    };
    Ok(single.map(value).collect())
}
