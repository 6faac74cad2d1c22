//! What the fuzzer and the test of its corpus give to the reader: a small checkpoint, one file of which is replaced. The
//! first byte of an input names the file, the rest is its content.

use hotseam_checkpoint::random::Preset;
use hotseam_checkpoint::{CheckpointError, list, read};
use std::fs;
use tempfile::TempDir;

const SHARD: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Replaced by the rest of an input that begins with the byte.
pub(crate) const KINDS: [(u8, &str); 5] = [
    (b'c', "config.json"),
    (b'q', "hf_quant_config.json"),
    (b'i', INDEX),
    (b's', SHARD),
    // The header of the shard alone: its length is put before it, the data of the sound shard behind it.
    (b'h', SHARD),
];

/// A directory with a sound checkpoint.
pub(crate) struct Place {
    dir: TempDir,
    config: Vec<u8>,
    shard: Vec<u8>,
}

impl Place {
    /// Writes the checkpoint.
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().expect("a directory for temporary files");
        let file = |name: &str| dir.path().join(name);
        Preset::Tiny.write(dir.path()).expect("the preset is sound");
        let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let tensors = Preset::Tiny.tensors();
        hotseam_checkpoint::random::write(dir.path(), &Preset::Tiny.config_json(), &tensors, 1)
            .expect("as above");
        fs::rename(file("model-00001-of-00001.safetensors"), file(SHARD)).expect("one shard was written");
        names.iter().chain([&INDEX]).for_each(|name| fs::remove_file(file(name)).expect("it was written"));
        let content = |name: &str| fs::read(file(name)).expect("it was written");
        let (config, shard) = (content("config.json"), content(SHARD));
        Self { dir, config, shard }
    }

    /// Bytes of the header of the sound shard, without the length before it.
    pub(crate) fn header(&self) -> &[u8] {
        let length = u64::from_le_bytes(self.shard[..8].try_into().expect("eight bytes")) as usize;
        &self.shard[8..8 + length]
    }

    /// The sound configuration.
    #[allow(dead_code, reason = "the fuzzer starts from its corpus, the test from sound files too")]
    pub(crate) fn config(&self) -> &[u8] {
        &self.config
    }

    /// The sound shard.
    #[allow(dead_code, reason = "as above")]
    pub(crate) fn shard(&self) -> &[u8] {
        &self.shard
    }

    /// Reads and lists the checkpoint with the input in place, then puts the sound file back. `None` if the input names
    /// no file.
    pub(crate) fn read(&self, input: &[u8]) -> Option<Result<(), CheckpointError>> {
        let (kind, content) = input.split_first()?;
        let (_, name) = KINDS.iter().find(|(byte, _)| byte == kind)?;
        let path = self.dir.path().join(name);
        let written = match kind {
            b'h' => {
                let data = &self.shard[8 + self.header().len()..];
                let length = (content.len() as u64).to_le_bytes();
                fs::write(&path, [&length[..], content, data].concat())
            }
            _ => fs::write(&path, content),
        };
        written.expect("the directory can be written");
        let _ = list(self.dir.path());
        let result = read(self.dir.path(), |_, _| ()).map(drop);
        if let Err(error) = &result {
            assert!(!error.to_string().is_empty());
        }
        let sound = match *name {
            "config.json" => Some(&self.config),
            SHARD => Some(&self.shard),
            _ => None,
        };
        match sound {
            Some(sound) => fs::write(&path, sound),
            None => fs::remove_file(&path),
        }
        .expect("the directory can be written");
        Some(result)
    }
}
