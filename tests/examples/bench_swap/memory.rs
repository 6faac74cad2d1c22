//! Resident memory of this process, all of it and that of mapped libraries.

use std::fs::read_to_string;

/// Kilobytes that are resident.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    pub(crate) all: u64,
    /// In mappings of files that end in `.so`.
    pub(crate) code: u64,
}

impl Resident {
    /// As it is now.
    pub(crate) fn now() -> Self {
        let smaps = read_to_string("/proc/self/smaps").expect("/proc/self/smaps");
        let (mut all, mut code, mut library) = (0, 0, false);
        for line in smaps.lines() {
            match line.strip_prefix("Rss:") {
                Some(rest) => {
                    let kb = rest.trim().trim_end_matches(" kB").parse().unwrap_or(0);
                    all += kb;
                    code += if library { kb } else { 0 };
                }
                // The head of a mapping: addresses, rights, offset, device, inode, path.
                None if line.split(' ').next().is_some_and(|word| word.contains('-')) => {
                    library = line.ends_with(".so") || line.contains(".so ");
                }
                None => {}
            }
        }
        Self { all, code }
    }
}

/// Gives back to the system what the allocator keeps for later, so that what is resident is in use.
pub(crate) fn trim() {
    // SAFETY: the call takes nothing but free memory.
    unsafe { libc::malloc_trim(0) };
}
