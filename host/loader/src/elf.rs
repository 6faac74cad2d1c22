//! A look at an ELF file before it is opened. The dynamic linker maps a truncated file without complaint and the
//! process dies of SIGBUS at the first touch of what is missing, so the extents are checked here.

const HEADER: usize = 64;
const ET_DYN: u16 = 3;
const PT_LOAD: u32 = 1;
const PROGRAM_HEADER: usize = 56;

#[cfg(target_arch = "x86_64")]
const MACHINE: (u16, &str) = (62, "x86-64");
#[cfg(target_arch = "aarch64")]
const MACHINE: (u16, &str) = (183, "AArch64");

/// Checks that `bytes` is a whole 64-bit shared object for this machine; the error says what is wrong.
pub(crate) fn check(bytes: &[u8]) -> Result<(), String> {
    if bytes.get(..4) != Some(b"\x7fELF".as_slice()) {
        return Err(format!("not an ELF file: it starts with {:02x?}", &bytes[..bytes.len().min(4)]));
    }
    if bytes.len() < HEADER {
        return Err(truncated(bytes.len(), HEADER as u64));
    }
    if bytes[4] != 2 || bytes[5] != 1 {
        return Err("expected a 64-bit little-endian ELF file, found another class".to_owned());
    }
    let (kind, machine) = (u16_at(bytes, 16), u16_at(bytes, 18));
    if kind != ET_DYN {
        return Err(format!("expected a shared object (ELF type {ET_DYN}), found ELF type {kind}"));
    }
    if machine != MACHINE.0 {
        return Err(format!("expected machine {} ({}), found machine {machine}", MACHINE.0, MACHINE.1));
    }

    let (ph_offset, ph_size, ph_count) = (u64_at(bytes, 32), u16_at(bytes, 54), u16_at(bytes, 56));
    let (sh_offset, sh_size, sh_count) = (u64_at(bytes, 40), u16_at(bytes, 58), u16_at(bytes, 60));
    if usize::from(ph_size) != PROGRAM_HEADER {
        return Err(format!("expected program headers of {PROGRAM_HEADER} bytes, found {ph_size}"));
    }
    let table =
        |offset: u64, size: u16, count: u16| offset.saturating_add(u64::from(size) * u64::from(count));
    let mut end = table(ph_offset, ph_size, ph_count).max(table(sh_offset, sh_size, sh_count));
    if end <= bytes.len() as u64 {
        for header in bytes[ph_offset as usize..].chunks_exact(PROGRAM_HEADER).take(ph_count.into()) {
            if u32_at(header, 0) == PT_LOAD {
                end = end.max(u64_at(header, 8).saturating_add(u64_at(header, 32)));
            }
        }
    }
    if end > bytes.len() as u64 { Err(truncated(bytes.len(), end)) } else { Ok(()) }
}

fn truncated(have: usize, need: u64) -> String {
    format!("the file is truncated: expected at least {need} bytes, found {have}")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
