//! Panics in a constructor, which the dynamic linker runs: nothing can unwind there, so the process ends.

use hotseam_faulty_load::{export, manifest, sound};

extern "C" fn constructor() {
    panic!("told to panic in a constructor");
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

export!(sound(manifest!("faulty/constructor-panic")));
