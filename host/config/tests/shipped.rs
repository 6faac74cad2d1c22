//! The files in `configs/` are valid.

use std::path::Path;

#[test]
fn every_shipped_configuration_loads() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let mut count = 0;
    for entry in std::fs::read_dir(&directory).expect("configs/ exists") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let config = hotseam_config::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
            assert!(config.model.path.is_absolute());
            count += 1;
        }
    }
    assert!(count > 0, "no configuration found in {}", directory.display());
}
