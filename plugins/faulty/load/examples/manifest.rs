//! Lies in its manifest: the name is that of an attention variant, the functions are those of mHC.

use hotseam_faulty_load::{export, manifest, sound};

export!(sound(manifest!("attention/liar")));
