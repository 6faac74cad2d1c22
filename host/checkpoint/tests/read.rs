//! Reading sound checkpoints: the committed one and random ones.

use std::cell::RefCell;
use std::path::Path;

use hotseam_checkpoint::convert::Form;
use hotseam_checkpoint::random::{Preset, write};
use hotseam_checkpoint::{copy_resident, list, load, parse_config, read, read_config};
use hotseam_model::{DType, Format, LayerClass};
use sha2::{Digest, Sha256};

fn root(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn the_embedded_checkpoint_reads_whole() {
    let calls = RefCell::new(Vec::new());
    let dir = root("assets/nano-v4");
    let found = read(&dir, |done, total| calls.borrow_mut().push((done, total))).unwrap();
    assert!(found.notes.is_empty());
    let (cfg, w) = (found.config, found.weights);
    // The head shapes of DeepSeek-V4-Flash, so that its kernels run on it, and sizes that split over 4 ranks.
    assert_eq!(
        (cfg.head_dim, cfg.qk_rope_head_dim, cfg.index_head_dim, cfg.sliding_window),
        (512, 64, 128, 128)
    );
    assert_eq!((cfg.num_attention_heads, cfg.o_groups, cfg.hc_mult, cfg.hc_sinkhorn_iters), (8, 4, 4, 20));
    assert_eq!(cfg.compress_ratios, [0, 0, 4, 128, 4, 128, 4]);
    assert_eq!((cfg.num_hash_layers, cfg.index_topk), (3, 64));
    let yarn = cfg.rope_scaling.unwrap();
    assert_eq!((yarn.factor, yarn.original_max_position_embeddings), (16.0, 1024));
    assert_eq!((w.embed.dtype, &*w.embed.shape), (DType::Bf16, [4096, 256].as_slice()));
    for (i, layer) in w.layers.iter().enumerate() {
        assert_eq!(layer.compressor.is_some(), cfg.class(i) != LayerClass::Window, "layer {i}");
        assert_eq!(layer.indexer.is_some(), cfg.class(i) == LayerClass::Csa, "layer {i}");
        assert_eq!((layer.tid2eid.is_some(), layer.gate_bias.is_none()), (i < 3, i < 3), "layer {i}");
        assert_eq!(layer.experts.len(), 6);
        assert_eq!(layer.attn_norm.dtype, DType::F32);
        assert_eq!((layer.wo_a.n, layer.wo_a.k), (128, 1024));
    }
    let table = w.layers[0].tid2eid.as_ref().unwrap();
    assert_eq!((table.dtype, &*table.shape), (DType::I32, [4096, 2].as_slice()));
    assert!(table.i32().chunks(2).all(|pair| pair[0] != pair[1]));
    let tensors = list(&dir).unwrap();
    let calls = calls.into_inner();
    assert_eq!(calls.len(), tensors.len());
    assert!(calls.iter().enumerate().all(|(i, c)| *c == (i + 1, tensors.len())));
    assert!(tensors.iter().any(|t| t.name == "layers.0.ffn.gate.tid2eid" && t.dtype == "I64"));
}

#[test]
fn the_embedded_checkpoint_travels_with_the_binaries() {
    let files = std::fs::read_dir(root("assets/nano-v4")).unwrap();
    let sizes: Vec<u64> = files.map(|file| file.unwrap().metadata().unwrap().len()).collect();
    assert!(sizes.iter().all(|size| *size < 16 << 20), "{sizes:?}");
    assert!(sizes.iter().sum::<u64>() <= 32_000_000, "{sizes:?}");
}

#[test]
fn random_models_read_back_as_generated() {
    for preset in Preset::ALL {
        let dir = tempfile::tempdir().unwrap();
        preset.write(dir.path()).unwrap();
        let found = read(dir.path(), |_, _| ()).unwrap();
        assert_eq!(found.notes.len(), 1, "the MTP tensor is noted");
        let (config, w) = preset.build().unwrap();
        assert_eq!(found.config, config);
        assert_eq!(found.weights.embed.bf16(), w.embed.bf16());
        let values = w.embed.to_f32_vec();
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.1 && (square - 1.0).abs() < 0.1, "{preset}: mean {mean}, square {square}");
        // A bf16 norm is widened, f32 stays as it is.
        assert_eq!(found.weights.norm.dtype, DType::F32);
        assert_eq!(found.weights.layers[1].attn_sink.f32(), w.layers[1].attn_sink.f32());
    }
}

#[test]
fn copied_weights_are_those_of_the_files_and_need_them_no_more() {
    for form in [Form::Bf16, Form::Fp8Mxfp4, Form::Nvfp4] {
        let dir = tempfile::tempdir().unwrap();
        Preset::FlashLike.write_as(dir.path(), form).unwrap();
        let (_, mut mapped) = load(dir.path(), |_, _| ()).unwrap();
        let (_, mut copied) = load(dir.path(), |_, _| ()).unwrap();
        let size = copy_resident(&mut copied).unwrap();
        drop(dir);
        let (mapped, copied) = (mapped.tensors_mut(), copied.tensors_mut());
        let first = copied[0].bytes_ptr().addr();
        for (a, b) in mapped.iter().zip(&copied) {
            assert_eq!((a.dtype, &a.shape, a.bytes()), (b.dtype, &b.shape, b.bytes()), "{form}");
            let place = b.bytes_ptr().addr() - first;
            assert!(place + b.byte_len() <= size && place.is_multiple_of(64), "{form}: {place} of {size}");
        }
        // Whatever holds a tensor, its text shows it: none is left out.
        let (_, weights) = Preset::FlashLike.build_as(form).unwrap();
        assert_eq!(format!("{weights:?}").matches("Tensor(").count(), copied.len(), "{form}");
    }
}

#[test]
fn random_models_read_back_in_every_storage_form() {
    let (_, exact) = Preset::FlashLike.build().unwrap();
    for (form, linear, expert, worst) in [
        (Form::Bf16, Format::Bf16, Format::Bf16, 0.0),
        (Form::Fp8Mxfp4, Format::Fp8Block, Format::Mxfp4, 0.2),
        (Form::Nvfp4, Format::Fp8Block, Format::Nvfp4, 0.15),
    ] {
        let dir = tempfile::tempdir().unwrap();
        Preset::FlashLike.write_as(dir.path(), form).unwrap();
        let found = read(dir.path(), |_, _| ()).unwrap();
        let (config, built) = Preset::FlashLike.build_as(form).unwrap();
        assert_eq!((found.config, built.layers.len()), (config, 7));
        for ((layer, built), exact) in found.weights.layers.iter().zip(&built.layers).zip(&exact.layers) {
            assert_eq!((layer.wo_b.format, layer.experts[3].w2.format), (linear, expert), "{form}");
            assert_eq!(layer.experts[3].w2.to_f32_vec(), built.experts[3].w2.to_f32_vec());
            assert!(layer.compressor.as_ref().is_none_or(|c| c.wkv.format == Format::Bf16));
            let (near, far) = (layer.experts[3].w2.to_f32_vec(), exact.experts[3].w2.to_f32_vec());
            let rms = |values: &[f32]| values.iter().map(|v| v * v).sum::<f32>().sqrt();
            let error: Vec<f32> = near.iter().zip(&far).map(|(a, b)| a - b).collect();
            let relative = rms(&error) / rms(&far);
            assert!(relative <= worst && (relative > 0.0 || worst == 0.0), "{form}: {relative}");
        }
    }
    // Rows of 16 values hold no group of 32.
    let error = Preset::Tiny.tensors_as(Form::Fp8Mxfp4).unwrap_err();
    assert!(error.to_string().contains("multiple of 32 values, found 16"), "{error}");
}

/// The goldens hold for exactly these weights.
#[test]
fn random_models_are_those_of_the_goldens() {
    for preset in [Preset::FlashLike, Preset::ProLike] {
        let dir = tempfile::tempdir().unwrap();
        preset.write(dir.path()).unwrap();
        let mut digest = Sha256::new();
        for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
            digest.update(std::fs::read(dir.path().join(shard)).unwrap());
        }
        let hex: String = digest.finalize().iter().map(|b| format!("{b:02x}")).collect();
        let meta = std::fs::read_to_string(root(&format!("tests/goldens/{preset}.json"))).unwrap();
        let meta: serde_json::Value = serde_json::from_str(&meta).unwrap();
        assert_eq!(
            meta["weights_sha256"], hex,
            "{preset}: run scripts/make-goldens after changing the generator"
        );
    }
}

#[test]
fn one_shard_without_index_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name| dir.path().join(name);
    write(dir.path(), &Preset::Tiny.config_json(), &Preset::Tiny.tensors(), 1).unwrap();
    std::fs::rename(file("model-00001-of-00001.safetensors"), file("model.safetensors")).unwrap();
    std::fs::remove_file(file("model.safetensors.index.json")).unwrap();
    let (config, weights) = load(dir.path(), |_, _| ()).unwrap();
    assert_eq!(config, Preset::Tiny.config());
    assert_eq!(weights.layers.len(), 3);
}

#[test]
fn weights_outlive_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    Preset::Tiny.write(dir.path()).unwrap();
    let (_, weights) = load(dir.path(), |_, _| ()).unwrap();
    let embed = weights.embed.clone();
    drop((weights, dir));
    assert_eq!(embed.bf16().len(), 64 * 32);
    assert!(embed.bytes_ptr().addr().is_multiple_of(4));
}

#[test]
fn transformers_form_reads_as_the_official_one() {
    let official = read_config(&root("assets/nano-v4")).unwrap();
    let form = parse_config(include_str!("nano-transformers.json")).unwrap();
    assert_eq!(form, official);
}
