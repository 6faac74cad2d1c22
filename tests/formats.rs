//! nano-v4 in the formats of published checkpoints: the engine computes with codes and scales what it computes with the
//! f32 values they stand for, and a loader that reads them wrongly is far off.
//!
//! The bound is 1e-3 of the logits' range. The twin runs once with truth's arithmetic and once with stock's; with stock's
//! the bits are equal.

use hotseam_checkpoint::quantise::{global_scale, quantise};
use hotseam_engine::{Engine, EngineConfig};
use hotseam_model::{Expert, Format, Matrix, Model, Tensor, Weights};
use hotseam_ops::Amx;
use hotseam_slots::Rule;
use hotseam_tests::{Checkpoint, all, config, difference, goldens, logits, slots, stock, tapped};
use std::sync::Arc;

const BOUND: f32 = 1e-3;

/// What a published checkpoint has in which format.
#[derive(Clone, Copy)]
struct Formats {
    name: &'static str,
    /// Attention and indexer projections, and the shared expert.
    dense: Format,
    experts: Format,
}

const ALL: [Formats; 4] = [
    Formats { name: "bf16", dense: Format::Bf16, experts: Format::Bf16 },
    Formats { name: "fp8", dense: Format::Fp8Block, experts: Format::Fp8Block },
    Formats { name: "fp8-mxfp4", dense: Format::Fp8Block, experts: Format::Mxfp4 },
    Formats { name: "nvfp4", dense: Format::Bf16, experts: Format::Nvfp4 },
];

fn parts(expert: &mut Expert) -> [&mut Matrix; 3] {
    [&mut expert.w1, &mut expert.w2, &mut expert.w3]
}

/// Calls `f` with every matrix that published checkpoints quantise; true for those of routed experts.
fn for_each_matrix(weights: &mut Weights, f: &mut dyn FnMut(&mut Matrix, bool)) {
    for layer in &mut weights.layers {
        for matrix in [&mut layer.wq_a, &mut layer.wq_b, &mut layer.wkv, &mut layer.wo_a, &mut layer.wo_b] {
            f(matrix, false);
        }
        layer.indexer.iter_mut().for_each(|indexer| f(&mut indexer.wq_b, false));
        parts(&mut layer.shared).into_iter().for_each(|matrix| f(matrix, false));
        layer.experts.iter_mut().flat_map(parts).for_each(|matrix| f(matrix, true));
    }
}

fn coded(matrix: &Matrix, format: Format) -> Matrix {
    let values = matrix.to_f32_vec();
    let largest = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    quantise(format, &values, [matrix.n, matrix.k], global_scale(largest), 1)
        .expect("the format divides the rows")
}

fn nano(weights: Weights) -> Arc<Model> {
    Arc::new(Model::new(Checkpoint::Nano.model().config.clone(), weights, 4096))
}

/// The checkpoint in some formats.
fn packed(formats: Formats) -> Weights {
    let mut weights = Checkpoint::Nano.model().weights.clone();
    for_each_matrix(&mut weights, &mut |matrix, routed| {
        let format = if routed { formats.experts } else { formats.dense };
        if format != Format::Bf16 {
            *matrix = coded(matrix, format);
        }
    });
    weights
}

/// The f32 values of the packed checkpoint.
fn twin(packed: &Weights) -> Weights {
    let mut weights = packed.clone();
    for_each_matrix(&mut weights, &mut |matrix, _| {
        let values =
            Tensor::from_f32(vec![matrix.n, matrix.k], &matrix.to_f32_vec()).expect("as many as n * k");
        *matrix = Matrix::dense(values).expect("f32 values");
    });
    weights
}

/// Logits of every length, in one engine.
fn run(weights: Weights, variant: &str, lengths: &[usize]) -> Vec<Vec<f32>> {
    run_with(weights, all(variant), config(), lengths)
}

/// [`run`] with these rules and sizes.
fn run_with(weights: Weights, rules: Vec<Rule>, sizes: EngineConfig, lengths: &[usize]) -> Vec<Vec<f32>> {
    let model = nano(weights);
    let slots = slots(&model, &sizes, rules);
    let engine = Engine::start(model, slots, sizes).unwrap_or_else(|e| panic!("{e}"));
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let last = |length: &usize| logits(engine.submit(tapped(&tokens[..*length])).unwrap()).pop().unwrap().1;
    lengths.iter().map(last).collect()
}

const LENGTHS: [usize; 5] = [1, 5, 127, 260, 513];

#[test]
fn codes_give_the_logits_of_their_values() {
    for formats in ALL {
        let weights = packed(formats);
        let twin = twin(&weights);
        let got = run(weights, "cpu-stock", &LENGTHS);
        let same = run(twin.clone(), "cpu-stock", &LENGTHS);
        let truth = run(twin, "truth", &LENGTHS);
        let worst = got.iter().zip(&truth).map(|(a, b)| difference(a, b)).fold(0.0, f32::max);
        println!("{}: worst {worst:e} of the range against truth on the f32 twin", formats.name);
        assert!(worst < BOUND, "{}: {worst:e}", formats.name);
        for ((got, same), length) in got.iter().zip(&same).zip(LENGTHS) {
            assert!(
                got.iter().zip(same).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{} at {length}",
                formats.name
            );
        }
    }
}

#[test]
fn matrix_tiles_give_the_logits_of_truth() {
    let model = Checkpoint::Nano.model();
    let asked = EngineConfig { amx: true, ..config() };
    if let Err(missing) = Amx::detect() {
        eprintln!("no tiles here: {missing}");
        let slots = slots(&model, &config(), all("cpu-stock"));
        let refused = Engine::start(model, slots, asked).err().expect("a machine without tiles").to_string();
        assert!(refused.contains("engine.amx") && refused.contains(&missing.to_string()), "{refused}");
        return;
    }
    for formats in ALL {
        let weights = packed(formats);
        let truth = run(twin(&weights), "truth", &LENGTHS);
        let plain = run(weights.clone(), "cpu-stock", &LENGTHS);
        let tiles = run_with(weights.clone(), stock(true), asked.clone(), &LENGTHS);
        let chunks = run_with(weights, stock(true), EngineConfig { chunk: 37, ..asked.clone() }, &LENGTHS);
        let worst = |logits: &[Vec<f32>]| {
            logits.iter().zip(&truth).map(|(a, b)| difference(a, b)).fold(0.0, f32::max)
        };
        println!(
            "{}: tiles {:e}, without {:e} of the range against truth",
            formats.name,
            worst(&tiles),
            worst(&plain)
        );
        assert!(worst(&tiles) < 4.0 * worst(&plain).max(2e-7), "{}", formats.name);
        assert!(tiles != plain, "{}: tiles were not used", formats.name);
        assert!(tiles == chunks, "{}: chunks change the bits", formats.name);
    }
}

/// Codes or scales, changed.
fn edited(tensor: &Tensor, change: impl Fn(&mut Vec<u8>)) -> Tensor {
    let mut bytes = tensor.bytes().to_vec();
    change(&mut bytes);
    Tensor::from_bytes(tensor.dtype, tensor.shape.clone(), bytes).expect("as many bytes as before")
}

/// What a loader can get wrong, done to weights that are right.
type Fault = (&'static str, Formats, fn(&mut Weights));

fn experts(weights: &mut Weights, f: &dyn Fn(&mut Matrix)) {
    for_each_matrix(weights, &mut |matrix, routed| {
        if routed {
            f(matrix);
        }
    });
}

const FAULTS: [Fault; 6] = [
    ("the high nibble first", ALL[2], |weights| {
        experts(weights, &|m| {
            m.data = edited(&m.data, |bytes| bytes.iter_mut().for_each(|b| *b = b.rotate_left(4)));
        });
    }),
    ("groups of 16 read as groups of 32", ALL[3], |weights| {
        experts(weights, &|m| {
            let groups = m.k / 16;
            let scales = m.scales.as_ref().expect("NVFP4 has scales");
            // The scales of a row are taken for those of two rows, one for each 32 values.
            m.scales = Some(edited(scales, |bytes| {
                let given = bytes.clone();
                let at = |row: usize, group: usize| given[row * groups / 2 + group / 2];
                for (i, b) in bytes.iter_mut().enumerate() {
                    *b = at(i / groups, i % groups);
                }
            }));
        });
    }),
    ("the global factor dropped", ALL[3], |weights| experts(weights, &|m| m.global_scale = 1.0)),
    ("gate and up exchanged", ALL[2], |weights| {
        for layer in &mut weights.layers {
            layer.experts.iter_mut().for_each(|e| std::mem::swap(&mut e.w1, &mut e.w3));
        }
    }),
    ("the expert table shifted by one token", ALL[2], |weights| {
        for table in weights.layers.iter_mut().filter_map(|layer| layer.tid2eid.as_mut()) {
            let mut ids = table.i32().to_vec();
            ids.rotate_left(table.shape[1]);
            *table = Tensor::from_i32(table.shape.clone(), &ids).expect("as many ids as before");
        }
    }),
    ("block scales read down the columns", ALL[1], |weights| {
        for_each_matrix(weights, &mut |m, _| {
            let [rows, columns] = m.scales.as_ref().expect("FP8 has scales").shape[..] else { return };
            m.scales = m.scales.as_ref().map(|scales| {
                edited(scales, |bytes| {
                    let given = bytes.clone();
                    (0..rows * columns).for_each(|i| bytes[i] = given[i % rows * columns + i / rows]);
                })
            });
        });
    }),
];

#[test]
fn every_fault_of_a_loader_is_far_beyond_the_bound() {
    const LENGTHS: [usize; 2] = [5, 260];
    let right = ALL.map(|formats| run(twin(&packed(formats)), "cpu-stock", &LENGTHS));
    for (name, formats, spoil) in FAULTS {
        let mut weights = packed(formats);
        spoil(&mut weights);
        let got = run(weights, "cpu-stock", &LENGTHS);
        let want = &right[ALL.iter().position(|f| f.name == formats.name).unwrap()];
        let least = got.iter().zip(want).map(|(a, b)| difference(a, b)).fold(f32::MAX, f32::min);
        println!("{name} ({}): {least:e} of the range at least", formats.name);
        assert!(least > 5.0 * BOUND, "{name} ({}): {least:e}", formats.name);
    }
}
