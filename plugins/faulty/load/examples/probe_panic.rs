//! Panics when it is asked whether it can run, inside the SDK's guard.

use hotseam_sdk::{Host, Mhc, NoOptions, Plugin, Result};

struct Faulty;

impl Plugin for Faulty {
    type Options = NoOptions;

    fn probe() -> Result<()> {
        panic!("told to panic in probe")
    }

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }
}

impl Mhc for Faulty {}

hotseam_sdk::export_plugin! {
    seam: mhc, plugin: Faulty, ops: [pre],
    name: "faulty/probe-panic", description: "a fault of loading", base: "mhc/cpu-stock",
    options: "{}", cpu: "[]"
}
