//! Writes a random checkpoint: `random-model PRESET DIR [FORM]`.

use std::path::Path;
use std::process::ExitCode;

use hotseam_checkpoint::convert::Form;
use hotseam_checkpoint::random::Preset;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (preset, dir, form) = match args.as_slice() {
        [preset, dir] => (preset, dir, "bf16"),
        [preset, dir, form] => (preset, dir, form.as_str()),
        _ => {
            eprintln!(
                "usage: random-model PRESET DIR [FORM], where PRESET is one of {} and FORM one of {} (bf16 if left out)",
                Preset::ALL.map(Preset::name).join(", "),
                Form::ALL.map(Form::name).join(", ")
            );
            return ExitCode::from(2);
        }
    };
    match write(preset, Path::new(dir), form) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("random-model: {message}");
            ExitCode::FAILURE
        }
    }
}

fn write(preset: &str, dir: &Path, form: &str) -> Result<(), String> {
    let (preset, form): (Preset, Form) = (preset.parse()?, form.parse()?);
    preset.write_as(dir, form).map_err(|e| e.to_string())
}
