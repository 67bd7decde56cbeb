//! The firmware tables that a Linux guest needs: how many CPUs there are, where the serial port is, how to switch off.
//!
//! Two tables can list CPUs: ACPI and Intel's MP table. Only ACPI knows how to power off. Hardware-reduced ACPI
//! (ACPI 6.5, chapter 4.1) is the least: without PM timer, SCI and the legacy PIC, PIT and RTC; a sleep control register
//! and a reset register, a byte each. Section numbers are those of ACPI 6.5.

/// Address of the tables, in the area that is searched for them. They own 128 KiB, up to the end of the first MiB.
pub(crate) const TABLES: u64 = 0xe_0000;
/// The power switch.
pub(crate) const SLEEP_CONTROL_PORT: u16 = 0x600;
pub(crate) const SLEEP_STATUS_PORT: u16 = 0x601;
pub(crate) const RESET_PORT: u16 = 0x602;
/// Value that the guest writes there: SLP_EN with the type that `\_S5` has, in the place of SLP_TYPx (4.8.3.7).
pub(crate) const SLEEP_ENABLE: u8 = 1 << 5;
pub(crate) const SLEEP_TYPE_SHIFT: u8 = 2;
pub(crate) const SLEEP_TYPE_SOFT_OFF: u8 = 5;
pub(crate) const RESET_VALUE: u8 = 1;
/// First I/O port of the first serial port.
pub(crate) const SERIAL_PORT: u16 = 0x3f8;
pub(crate) const SERIAL_INTERRUPT: u32 = 4;

const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;

/// RSDP, DSDT, FADT, MADT and XSDT for `vcpus` CPUs, to be put at [`TABLES`]. The RSDP comes first.
pub(crate) fn tables(vcpus: u32) -> Vec<u8> {
    const RSDP_BYTES: usize = 36;
    let mut all = vec![0; RSDP_BYTES];
    let mut place = |table: Vec<u8>| {
        all.resize(all.len().next_multiple_of(16), 0);
        let address = TABLES + all.len() as u64;
        all.extend(table);
        address
    };
    let dsdt = place(table(*b"DSDT", 2, &DEFINITION_BLOCK.concat()));
    let fadt = place(table(*b"FACP", 6, &fadt(dsdt)));
    let madt = place(table(*b"APIC", 5, &madt(vcpus)));
    let xsdt = place(table(*b"XSDT", 1, &[fadt, madt].map(u64::to_le_bytes).concat()));
    all[..RSDP_BYTES].copy_from_slice(&rsdp(xsdt));
    all
}

/// A table with its header (5.2.6) and checksum.
fn table(signature: [u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    const HEADER_BYTES: usize = 36;
    const CHECKSUM: usize = 9;
    let mut table = Vec::with_capacity(HEADER_BYTES + body.len());
    table.extend(signature);
    table.extend(((HEADER_BYTES + body.len()) as u32).to_le_bytes());
    table.extend([revision, 0]);
    table.extend(*b"HLTKCKHALTKICK\x01\0\0\0HLTK\x01\0\0\0");
    table.extend(body);
    table[CHECKSUM] = checksum(&table);
    table
}

/// Returns the byte that makes all bytes add up to 0.
fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)).wrapping_neg()
}

/// 5.2.5.3. Two checksums: of the part that ACPI 1.0 had, and of all.
fn rsdp(xsdt: u64) -> Vec<u8> {
    let mut rsdp = b"RSD PTR \0HLTKCK\x02\0\0\0\0".to_vec();
    rsdp.extend(36_u32.to_le_bytes());
    rsdp.extend(xsdt.to_le_bytes());
    rsdp.extend([0; 4]);
    rsdp[8] = checksum(&rsdp[..20]);
    rsdp[32] = checksum(&rsdp);
    rsdp
}

/// The body of the FADT (5.2.9). Offsets count from the start of the table.
fn fadt(dsdt: u64) -> Vec<u8> {
    const NO_VGA: u16 = 1 << 2;
    const NO_CMOS_CLOCK: u16 = 1 << 5;
    const WBINVD: u32 = 1 << 0;
    const NO_FIXED_BUTTONS: u32 = 0b11 << 4;
    const HAS_RESET_REGISTER: u32 = 1 << 10;
    const HARDWARE_REDUCED: u32 = 1 << 20;
    let mut fadt = vec![0; 276];
    let mut put = |offset: usize, bytes: &[u8]| fadt[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(40, &(dsdt as u32).to_le_bytes());
    put(109, &(NO_VGA | NO_CMOS_CLOCK).to_le_bytes());
    put(112, &(WBINVD | NO_FIXED_BUTTONS | HAS_RESET_REGISTER | HARDWARE_REDUCED).to_le_bytes());
    put(116, &port_register(RESET_PORT));
    put(128, &[RESET_VALUE]);
    put(131, &[5]); // minor version
    put(140, &dsdt.to_le_bytes());
    put(244, &port_register(SLEEP_CONTROL_PORT));
    put(256, &port_register(SLEEP_STATUS_PORT));
    fadt.split_off(36)
}

/// A generic address (5.2.3.2): one byte in I/O space.
fn port_register(port: u16) -> Vec<u8> {
    let mut address = vec![1, 8, 0, 1];
    address.extend(u64::from(port).to_le_bytes());
    address
}

/// The body of the MADT (5.2.12): a local APIC per CPU, and the I/O APIC.
fn madt(vcpus: u32) -> Vec<u8> {
    const ENABLED: u32 = 1;
    let mut madt = LOCAL_APIC.to_le_bytes().to_vec();
    madt.extend([0; 4]); // no PIC
    for id in 0..vcpus as u8 {
        madt.extend([0, 8, id, id]);
        madt.extend(ENABLED.to_le_bytes());
    }
    madt.extend([1, 12, 0, 0]);
    madt.extend(IO_APIC.to_le_bytes());
    madt.extend([0; 4]); // its interrupts begin at 0
    madt
}

/// The DSDT's code (20.2) by lines of its source, with [`SLEEP_TYPE_SOFT_OFF`], [`SERIAL_PORT`] and [`SERIAL_INTERRUPT`] in it.
const DEFINITION_BLOCK: [&[u8]; 5] = [
    // Name (\_S5, Package () { 5, 0, 0, 0 })
    b"\x08_S5_\x12\x07\x04\x0a\x05\0\0\0",
    // Scope (\_SB) { Device (COM1) {
    b"\x10\x33\\_SB_\x5b\x82\x2bCOM1",
    // Name (_HID, EisaId ("PNP0501"))
    b"\x08_HID\x0c\x41\xd0\x05\x01",
    // Name (_UID, 0)
    b"\x08_UID\0",
    // Name (_CRS, ResourceTemplate () { IO (Decode16, 0x3f8, 0x3f8, 1, 8) IRQNoFlags () { 4 } }) } }
    b"\x08_CRS\x11\x10\x0a\x0d\x47\x01\xf8\x03\xf8\x03\x01\x08\x22\x10\0\x79\0",
];
