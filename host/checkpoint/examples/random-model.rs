//! Writes a random checkpoint: `random-model PRESET DIR`.

use std::path::PathBuf;
use std::process::ExitCode;

use hotseam_checkpoint::random::Preset;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [preset, dir] = args.as_slice() else {
        eprintln!(
            "usage: random-model PRESET DIR, where PRESET is one of {}",
            Preset::ALL.map(Preset::name).join(", ")
        );
        return ExitCode::from(2);
    };
    let dir = PathBuf::from(dir);
    let result = preset.parse::<Preset>().and_then(|p| p.write(&dir).map_err(|e| e.to_string()));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("random-model: {message}");
            ExitCode::FAILURE
        }
    }
}
