//! Parts of models in every storage form: what the ranks have together is the whole.

use hotseam_checkpoint::convert::Form;
use hotseam_checkpoint::random::Preset;
use hotseam_model::{Matrix, Model, ShardError, part};

fn model(preset: Preset, form: Form) -> Model {
    let (config, weights) = preset.build_as(form).expect("a model");
    Model::new(config, weights, 8)
}

/// Columns of all rows, one matrix after the other in each.
fn side_by_side(parts: &[Matrix]) -> Vec<f32> {
    let values: Vec<Vec<f32>> = parts.iter().map(Matrix::to_f32_vec).collect();
    let row = |row: usize| values.iter().zip(parts).flat_map(move |(v, m)| &v[row * m.k..(row + 1) * m.k]);
    (0..parts[0].n).flat_map(row).copied().collect()
}

fn one_after_another(parts: &[Matrix]) -> Vec<f32> {
    parts.iter().flat_map(Matrix::to_f32_vec).collect()
}

#[test]
fn ranks_have_the_values_of_the_whole_between_them() {
    for form in Form::ALL {
        let (whole, world) = (model(Preset::FlashLike, form), 2);
        let ranks: Vec<Model> = (0..world).map(|rank| whole.clone().of_rank(rank, world).unwrap()).collect();
        for rank in &ranks {
            assert_eq!((rank.config.num_attention_heads, rank.config.o_groups), (2, 1));
            assert_eq!(rank.config.n_routed_experts, whole.config.n_routed_experts, "the router is whole");
        }
        for (layer, want) in whole.weights.layers.iter().enumerate() {
            let at = |what: &str| format!("{form}, layer {layer}, {what}");
            let of = |pick: fn(&hotseam_model::LayerWeights) -> &Matrix| -> Vec<Matrix> {
                ranks.iter().map(|rank| pick(&rank.weights.layers[layer]).clone()).collect()
            };
            assert_eq!(one_after_another(&of(|l| &l.wq_b)), want.wq_b.to_f32_vec(), "{}", at("wq_b"));
            assert_eq!(one_after_another(&of(|l| &l.wo_a)), want.wo_a.to_f32_vec(), "{}", at("wo_a"));
            assert_eq!(side_by_side(&of(|l| &l.wo_b)), want.wo_b.to_f32_vec(), "{}", at("wo_b"));
            assert_eq!(one_after_another(&of(|l| &l.shared.w1)), want.shared.w1.to_f32_vec(), "{}", at("w1"));
            assert_eq!(one_after_another(&of(|l| &l.shared.w3)), want.shared.w3.to_f32_vec(), "{}", at("w3"));
            assert_eq!(side_by_side(&of(|l| &l.shared.w2)), want.shared.w2.to_f32_vec(), "{}", at("w2"));
            let sinks: Vec<f32> =
                ranks.iter().flat_map(|r| r.weights.layers[layer].attn_sink.to_f32_vec()).collect();
            assert_eq!(sinks, want.attn_sink.to_f32_vec(), "{}", at("attn_sink"));
            let experts: Vec<_> = ranks.iter().flat_map(|r| &r.weights.layers[layer].experts).collect();
            assert_eq!(experts.len(), want.experts.len(), "{}", at("experts"));
            for (got, want) in experts.iter().zip(&want.experts) {
                assert_eq!(
                    got.w2.data.bytes_ptr(),
                    want.w2.data.bytes_ptr(),
                    "{}",
                    at("an expert is not copied")
                );
            }
            for rank in &ranks {
                let own = &rank.weights.layers[layer];
                assert_eq!(own.gate.bytes_ptr(), want.gate.bytes_ptr(), "{}", at("gate"));
                assert_eq!(own.wq_a.data.bytes_ptr(), want.wq_a.data.bytes_ptr(), "{}", at("wq_a"));
            }
        }
    }
}

#[test]
fn a_rank_holds_no_expert_of_another_one() {
    let (mut config, mut weights) = Preset::FlashLike.build().unwrap();
    // As if a checkpoint had seven.
    config.n_routed_experts = 7;
    weights.layers.iter_mut().for_each(|layer| layer.experts.truncate(7));
    let whole = Model::new(config, weights, 8);
    for (rank, experts) in [(0, 0..3), (1, 3..7)] {
        let own = whole.clone().of_rank(rank, 2).unwrap();
        assert_eq!(part(7, rank, 2), experts);
        for (layer, all) in own.weights.layers.iter().zip(&whole.weights.layers) {
            let address = |e: &hotseam_model::Expert| e.w1.data.bytes_ptr();
            let (got, want) = (layer.experts.iter().map(address), all.experts[experts.clone()].iter());
            assert!(got.eq(want.map(address)));
        }
    }
}

#[test]
fn what_ranks_cannot_share_is_named_with_the_numbers_that_they_can() {
    let flash = || model(Preset::FlashLike, Form::Bf16);
    assert_eq!(flash().config.worlds(), [1, 2]);
    assert_eq!(model(Preset::ProLike, Form::Bf16).config.worlds(), [1]);
    let text = |rank, world| flash().of_rank(rank, world).expect_err("refused").to_string();
    assert_eq!(
        text(0, 3),
        "num_attention_heads is 4, which 3 ranks cannot share; expected a number of ranks that this model can have: 1, 2"
    );
    assert!(text(0, 4).starts_with("o_groups is 2, which 4 ranks cannot share"), "{}", text(0, 4));
    assert!(text(2, 2).starts_with("rank 2 of 2: expected a rank below"), "{}", text(2, 2));
    assert!(matches!(flash().of_rank(0, 0), Err(ShardError::Rank { rank: 0, world: 0 })));
    let pro = model(Preset::ProLike, Form::Bf16).of_rank(0, 3).expect_err("refused").to_string();
    assert!(pro.starts_with("moe_intermediate_size is 56, which 3 ranks cannot share"), "{pro}");
    let mut few = flash();
    few.config.n_routed_experts = 1;
    let error = few.of_rank(0, 2).expect_err("refused").to_string();
    assert!(error.starts_with("n_routed_experts is 1, which 2 ranks cannot share"), "{error}");
}

#[test]
fn a_weight_whose_blocks_are_cut_is_named() {
    let mut whole = model(Preset::FlashLike, Form::Bf16);
    // Three blocks of 128 for two ranks.
    let bytes = |dtype, shape: Vec<usize>| {
        let n = shape.iter().product();
        hotseam_model::Tensor::from_bytes(dtype, shape, vec![0x38; n]).unwrap()
    };
    let codes = bytes(hotseam_model::DType::E4m3, vec![128, 384]);
    let scales = bytes(hotseam_model::DType::E8m0, vec![1, 3]);
    whole.config.o_lora_rank = 192;
    let layer = &mut whole.weights.layers[2];
    layer.wo_b = Matrix::fp8(codes, scales).unwrap();
    for layer in &mut whole.weights.layers {
        layer.wo_a =
            Matrix::dense(hotseam_model::Tensor::from_f32(vec![384, 2], &[0.0; 768]).unwrap()).unwrap();
        if layer.wo_b.k != 384 {
            let values = hotseam_model::Tensor::from_f32(vec![1, 384], &[0.0; 384]).unwrap();
            layer.wo_b = Matrix::dense(values).unwrap();
        }
    }
    let error = whole.of_rank(1, 2).expect_err("a cut block").to_string();
    assert!(
        error.starts_with(
            "layer 2, wo_b: columns 192 to 384 of a fp8 matrix of 384 cut a block of 128; take fewer ranks"
        ),
        "{error}"
    );
}
