//! Has the header of another abi_stable.

/// The header, by the name and in the form that every 0.x of abi_stable gives it.
#[repr(C)]
pub struct Header {
    magic: [u8; 32],
    major: u32,
    minor: u32,
}

/// That of abi_stable 0.10.
#[unsafe(no_mangle)]
pub static _1as_0lib_1header_0root_bmodule_bloader: Header =
    Header { magic: *b"abi stable library for Rust     ", major: 0, minor: 10 };
