//! Conversions between storage forms.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use common::{Files, formats_dir};
use hotseam_checkpoint::convert::{Change, Form, Options, Report, SHARD, convert};
use hotseam_checkpoint::random::Preset;
use hotseam_checkpoint::{Checkpoint, CheckpointError as E, list, read};
use hotseam_model::{Format, Matrix};
use tempfile::TempDir;

fn options(form: Form) -> Options {
    Options { form, shard: SHARD, threads: 2 }
}

fn run(from: &Path, to: &Path, form: Form) -> Report {
    convert(from, to, &options(form), |_, _| ()).unwrap()
}

fn load(dir: &Path) -> Checkpoint {
    read(dir, |_, _| ()).unwrap()
}

fn change<'a>(report: &'a Report, class: &str) -> &'a Change {
    report.changes.iter().find(|c| c.class == class).unwrap_or_else(|| panic!("{class}: {report:?}"))
}

/// Matrices of a checkpoint, in a fixed order.
fn matrices(found: &Checkpoint) -> Vec<&Matrix> {
    let layers = found.weights.layers.iter();
    layers
        .flat_map(|l| {
            let experts = l.experts.iter().chain([&l.shared]).flat_map(|e| [&e.w1, &e.w2, &e.w3]);
            let inner = l.indexer.iter().flat_map(|i| [&i.wq_b, &i.compressor.wkv, &i.compressor.wgate]);
            let outer = l.compressor.iter().flat_map(|c| [&c.wkv, &c.wgate]);
            [&l.wq_a, &l.wq_b, &l.wkv, &l.wo_a, &l.wo_b].into_iter().chain(outer).chain(inner).chain(experts)
        })
        .collect()
}

#[test]
fn each_form_reads_back_and_says_what_it_lost() {
    let work = TempDir::new().unwrap();
    let at = |name: &str| work.path().join(name);
    Preset::FlashLike.write(&at("source")).unwrap();
    fs::write(at("source").join("tokenizer.json"), "{}").unwrap();
    fs::write(at("source").join("notes.txt"), "mine").unwrap();
    let source = load(&at("source"));
    for (form, experts, low, high) in
        [(Form::Fp8Mxfp4, Format::Mxfp4, 0.1, 0.13), (Form::Nvfp4, Format::Nvfp4, 0.08, 0.1)]
    {
        let to = at(form.name());
        let report = run(&at("source"), &to, form);
        let found = load(&to);
        assert_eq!(found.config, source.config);
        assert_eq!(found.weights.embed.bytes(), source.weights.embed.bytes());
        let routed = change(&report, "routed experts");
        assert_eq!((routed.from, routed.to, routed.double_quantisation), ("bf16", experts.name(), false));
        assert_eq!((routed.matrices, routed.values), (7 * 8 * 3, 7 * 8 * 3 * 128 * 64));
        // Near-normal weights: the errors that the formats are known for.
        assert!((low..high).contains(&routed.figures.relative_rms), "{form}: {routed:?}");
        let fp8 = change(&report, "attention").figures;
        assert!((0.02..0.03).contains(&fp8.relative_rms) && fp8.clipped == 0.0, "{fp8:?}");
        assert!((30.0..34.0).contains(&fp8.snr_db.unwrap()), "{fp8:?}");
        assert!(report.changes.iter().all(|c| c.class != "compressor"), "compressors stay");
        // The report is what one computes from both checkpoints.
        let (mut square, mut error, mut worst) = (0.0, 0.0, 0.0f64);
        for (a, b) in matrices(&source).into_iter().zip(matrices(&found)) {
            if b.format == experts {
                for (a, b) in a.to_f32_vec().into_iter().zip(b.to_f32_vec()) {
                    square += f64::from(a).powi(2);
                    error += (f64::from(a) - f64::from(b)).powi(2);
                    worst = worst.max((f64::from(a) - f64::from(b)).abs());
                }
            }
        }
        assert_eq!(routed.figures.max_error, worst);
        assert!((routed.figures.relative_rms / (error / square).sqrt() - 1.0).abs() < 1e-9);
        assert_eq!(fs::read_to_string(to.join("tokenizer.json")).unwrap(), "{}");
        assert!(!to.join("notes.txt").exists());
        let written: u64 = list(&to).unwrap().iter().map(|t| t.bytes as u64).sum();
        assert_eq!(report.bytes_after, written);
        assert!(report.bytes_after < report.bytes_before);
    }
}

#[test]
fn gate_and_up_share_their_factor() {
    let work = TempDir::new().unwrap();
    Preset::FlashLike.write(&work.path().join("source")).unwrap();
    run(&work.path().join("source"), &work.path().join("to"), Form::Nvfp4);
    let found = load(&work.path().join("to"));
    let mut factors = BTreeSet::new();
    for expert in found.weights.layers.iter().flat_map(|l| &l.experts) {
        assert_eq!(expert.w1.global_scale, expert.w3.global_scale);
        factors.insert(expert.w1.global_scale.to_bits());
        // The factor is made for the larger of both, so neither clips far.
        let most = |m: &Matrix| m.to_f32_vec().into_iter().fold(0.0f32, |a, v| a.max(v.abs()));
        let larger = most(&expert.w1).max(most(&expert.w3));
        assert!((larger / (2688.0 * expert.w1.global_scale) - 1.0).abs() < 0.07, "{larger}");
    }
    assert!(factors.len() > 20, "{} factors for 56 experts", factors.len());
}

/// Quantised values are exact in bf16 (but those of NVFP4), so that form loses nothing and goes back to the same codes.
#[test]
fn bf16_holds_powers_of_two_exactly() {
    let work = TempDir::new().unwrap();
    let at = |name: &str| work.path().join(name);
    Preset::FlashLike.write_as(&at("official"), Form::Fp8Mxfp4).unwrap();
    let report = run(&at("official"), &at("bf16"), Form::Bf16);
    for change in &report.changes {
        assert_eq!((change.to, change.figures.max_error, change.figures.snr_db), ("bf16", 0.0, None));
    }
    let (official, bf16) = (load(&at("official")), load(&at("bf16")));
    for (a, b) in matrices(&official).into_iter().zip(matrices(&bf16)) {
        assert_eq!(b.format, Format::Bf16);
        assert_eq!(a.to_f32_vec(), b.to_f32_vec());
    }
    let text = fs::read_to_string(at("bf16").join("config.json")).unwrap();
    assert!(!text.contains("quantization_config") && !text.contains("expert_dtype"));
    run(&at("bf16"), &at("again"), Form::Fp8Mxfp4);
    let again = load(&at("again"));
    for (a, b) in matrices(&official).into_iter().zip(matrices(&again)) {
        assert_eq!(a.to_f32_vec(), b.to_f32_vec(), "quantising what is on the grid changes nothing");
    }
}

#[test]
fn double_quantisation_is_called_by_its_name() {
    let work = TempDir::new().unwrap();
    let at = |name: &str| work.path().join(name);
    Preset::FlashLike.write(&at("source")).unwrap();
    Preset::FlashLike.write_as(&at("official"), Form::Fp8Mxfp4).unwrap();
    let report = run(&at("official"), &at("nvfp4"), Form::Nvfp4);
    let routed = change(&report, "routed experts");
    assert_eq!((routed.from, routed.to, routed.double_quantisation), ("mxfp4", "nvfp4", true));
    assert!(routed.figures.relative_rms > 0.02, "{routed:?}");
    assert_eq!(report.changes.len(), 1, "FP8 stays as it is");
    assert!(
        report.notes.iter().any(|n| n.starts_with("double quantisation of routed experts, mxfp4 -> nvfp4")),
        "{:?}",
        report.notes
    );
    // It is worse than once, measured at the original.
    run(&at("source"), &at("once"), Form::Nvfp4);
    let source = load(&at("source"));
    let error = |dir: &str| {
        let found = load(&at(dir));
        let pairs = matrices(&source).into_iter().zip(matrices(&found));
        let experts = pairs.filter(|(_, b)| b.format == Format::Nvfp4);
        let squares = experts.map(|(a, b)| {
            let values = a.to_f32_vec().into_iter().zip(b.to_f32_vec());
            values.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
        });
        squares.sum::<f64>()
    };
    assert!(error("nvfp4") > 1.3 * error("once"), "{} {}", error("nvfp4"), error("once"));
}

/// Every container of the golden is read, and NVIDIA's optional tensors go where their matrix goes.
#[test]
fn the_golden_converts_to_every_form() {
    for form in Form::ALL {
        let work = TempDir::new().unwrap();
        let to = work.path().join("to");
        let report = run(&formats_dir(), &to, form);
        let (before, after) = (load(&formats_dir()), load(&to));
        for (a, b) in matrices(&before).into_iter().zip(matrices(&after)) {
            if a.format == b.format {
                assert_eq!(a.data.bytes(), b.data.bytes());
            }
            assert_ne!((form, b.format), (Form::Nvfp4, Format::Mxfp4));
        }
        let scales = list(&to).unwrap().iter().filter(|t| t.name.ends_with("input_scale")).count();
        assert_eq!(scales, if form == Form::Nvfp4 { 6 } else { 0 });
        assert!(report.notes.iter().any(|n| n.contains("multi-token")), "{:?}", report.notes);
        let table = |c: &Checkpoint| c.weights.layers[0].tid2eid.as_ref().unwrap().i32().to_vec();
        assert_eq!(table(&before), table(&after));
    }
}

#[test]
fn shards_keep_to_their_size_and_matrices_together() {
    let work = TempDir::new().unwrap();
    let at = |name: &str| work.path().join(name);
    Preset::FlashLike.write(&at("source")).unwrap();
    let limit = 300_000;
    let mut calls = Vec::new();
    let options = Options { shard: limit, ..options(Form::Fp8Mxfp4) };
    convert(&at("source"), &at("to"), &options, |done, total| calls.push((done, total))).unwrap();
    let tensors = list(&at("to")).unwrap();
    let shards: BTreeSet<&String> = tensors.iter().map(|t| &t.shard).collect();
    assert!(shards.len() > 10, "{shards:?}");
    for shard in shards {
        let own: Vec<_> = tensors.iter().filter(|t| t.shard == *shard).collect();
        let bytes: usize = own.iter().map(|t| t.bytes).sum();
        let modules: BTreeSet<&str> =
            own.iter().map(|t| t.name.trim_end_matches(".scale").trim_end_matches(".weight")).collect();
        assert!(bytes <= limit || modules.len() == 1, "{shard}: {bytes} bytes of {modules:?}");
    }
    for t in tensors.iter().filter(|t| t.name.ends_with(".scale")) {
        let weight = format!("{}.weight", t.name.trim_end_matches(".scale"));
        assert_eq!(tensors.iter().find(|w| w.name == weight).unwrap().shard, t.shard);
    }
    let last = calls.len();
    assert!(calls.iter().enumerate().all(|(i, c)| *c == (i + 1, last)));
    // The data begins at a multiple of 8 and wide elements come first, so each tensor is aligned.
    let shard = fs::read(at("to").join(&tensors[0].shard)).unwrap();
    assert!(u64::from_le_bytes(shard[..8].try_into().unwrap()).is_multiple_of(8));
}

#[test]
fn nothing_is_overwritten_and_nothing_half_done_has_the_name() {
    let work = TempDir::new().unwrap();
    let at = |name: &str| work.path().join(name);
    Preset::FlashLike.write(&at("source")).unwrap();
    fs::create_dir(at("there")).unwrap();
    let error = convert(&at("source"), &at("there"), &options(Form::Bf16), |_, _| ()).unwrap_err();
    assert!(matches!(&error, E::Exists { path } if *path == at("there")), "{error}");
    fs::create_dir(at("new.partial")).unwrap();
    let error = convert(&at("source"), &at("new"), &options(Form::Bf16), |_, _| ()).unwrap_err();
    assert!(matches!(&error, E::Exists { path } if *path == at("new.partial")), "{error}");

    // A source that does not pass leaves nothing behind.
    let mut files = Files::formats();
    files.tensor("layers.0.attn.wo_b.weight").data[0] = 0x7f;
    files.write();
    let to = at("damaged");
    let error = convert(files.dir.path(), &to, &options(Form::Bf16), |_, _| ()).unwrap_err();
    assert!(matches!(error, E::Value { .. }), "{error}");
    assert!(!to.exists() && !at("damaged.partial").exists());

    Preset::Tiny.write(&at("tiny")).unwrap();
    let error = convert(&at("tiny"), &at("out"), &options(Form::Fp8Mxfp4), |_, _| ()).unwrap_err();
    assert!(
        matches!(&error, E::Unstorable { name, format: Format::Mxfp4, k: 16 } if name.ends_with("w2.weight")),
        "{error}"
    );
    assert!(!at("out.partial").exists());
}

/// bf16 matrices are not looked through when they are read, so a conversion may meet a NaN half way.
#[test]
fn a_nan_on_the_way_is_named() {
    let mut files = Files::of(Preset::FlashLike);
    files.tensor("layers.6.attn.wkv.weight").data[6..8].copy_from_slice(&0x7fc0u16.to_le_bytes());
    files.write();
    let work = TempDir::new().unwrap();
    let to = work.path().join("out");
    let error = convert(files.dir.path(), &to, &options(Form::Nvfp4), |_, _| ()).unwrap_err();
    assert!(
        matches!(&error, E::Value { name, index: 3, .. } if name == "layers.6.attn.wkv.weight"),
        "{error}"
    );
    assert!(!to.exists() && work.path().join("out.partial").exists());
    // As bf16 it is copied, since that form changes nothing.
    convert(files.dir.path(), &work.path().join("copy"), &options(Form::Bf16), |_, _| ()).unwrap();
}
