//! Receipts tell who wrote the KV that a phase reads: what was "cleared" because it runs in decode only may read keys
//! that another variant wrote in prefill.

use hotseam_engine::{Engine, EngineConfig, Event, Origin, Request, Topology};
use hotseam_evidence::trace::Trace;
use hotseam_model::LayerClass;
use hotseam_slots::{LayoutPolicy, Phase, Rule};
use hotseam_tests::{Checkpoint, all, config, engine, goldens, rule};

const PROMPT: usize = 300;
const ANSWER: usize = 9;

fn with(rules: &[(&str, &str)]) -> Vec<Rule> {
    let mut all = all("cpu-stock");
    all.extend(rules.iter().map(|(select, variant)| rule(select, variant)));
    all
}

fn start(rules: &[(&str, &str)], topology: Topology) -> Engine {
    engine(Checkpoint::Nano, with(rules), EngineConfig { topology, chunk: 128, ..config() })
}

fn request(tokens: usize) -> Request {
    Request::greedy(goldens::ladder(Checkpoint::Nano).tokens[..PROMPT].to_vec(), tokens)
}

fn ask(engine: &Engine) {
    engine.submit(request(ANSWER)).unwrap().tokens().unwrap();
    // The last step is counted before the client hears of its token.
    assert!(engine.stats().step > 0);
}

/// Origins of index keys read in decode: (writer phase, writer variant, reader variant, items), by layer.
fn keys(engine: &Engine) -> Vec<(u32, Option<Phase>, String, String, u64)> {
    let read = |o: &Origin| o.component == "index_keys" && o.reader.phase == Some(Phase::Decode);
    let origins = engine.origins("live");
    let row = |o: &Origin| {
        let (writer, reader) = (o.writer_variant.clone(), o.reader_variant.clone());
        (o.reader.layer.unwrap(), o.writer.phase, writer, reader, o.items)
    };
    origins.iter().filter(|o| read(o)).map(row).collect()
}

#[test]
fn keys_of_another_layout_cannot_be_swapped_for_decode_alone() {
    let engine = start(&[("indexer", "indexer/cpu-stock{keys: fp8}")], Topology::Single);
    let bf16 = rule("indexer@decode", "indexer/cpu-sm120{keys: bf16}");
    let error = engine.slots().swap("live", bf16, LayoutPolicy::Refuse).unwrap_err().to_string();
    assert!(error.contains("key-fp8-hadamard") && error.contains("key-bf16"), "{error}");
    assert!(error.contains("share a pool"), "{error}");
}

#[test]
fn keys_that_decode_reads_are_shown_as_written_in_prefill() {
    let rules =
        [("indexer", "indexer/cpu-stock{keys: fp8}"), ("indexer@decode", "indexer/cpu-sm120{keys: fp8}")];
    let engine = start(&rules, Topology::Single);
    ask(&engine);
    let model = Checkpoint::Nano.model();
    let csa = |layer: &u32| model.config.class(*layer as usize) == LayerClass::Csa;
    let layers: Vec<u32> = (0..model.config.num_hidden_layers as u32).filter(csa).collect();
    let (stock, sm120) = ("indexer/cpu-stock{keys: fp8}", "indexer/cpu-sm120{keys: fp8}");
    // The first token comes from prefill, so 8 steps read 75 entries each that prefill wrote. Decode closes the groups
    // that end at 303 and 307, in its 4th and 8th step.
    let steps = ANSWER as u64 - 1;
    let prefill = |layer: &u32| (*layer, Some(Phase::Prefill), stock.into(), sm120.into(), steps * 75);
    let decode = |layer: &u32| (*layer, Some(Phase::Decode), sm120.into(), sm120.into(), 5 + 1);
    let want: Vec<_> = layers.iter().map(prefill).chain(layers.iter().map(decode)).collect();
    assert_eq!(keys(&engine), want);

    let snapshot = engine.slots().snapshot("live").unwrap();
    let trace = Trace::of(&snapshot).with_origins(&engine.origins("live"));
    let row = trace.written.iter().find(|row| row.component == "index_keys" && row.crosses()).unwrap();
    assert_eq!((&row.layers, row.items, row.steps), (&layers, steps * 75, steps));
    assert_eq!((row.writer.phase, row.reader.phase), (Some(Phase::Prefill), Some(Phase::Decode)));
    let generation =
        |variant: &str| engine.slots().registry().generation(&variant.parse().unwrap()).unwrap().hash.clone();
    assert_eq!((&row.writer.hash, &row.reader.hash), (&generation(stock), &generation(sm120)));
    let text = trace.to_string();
    let line = format!(
        "    written prefill  {} {stock}\n    read    decode   {} {sm120}",
        &row.writer.hash[..12],
        &row.reader.hash[..12]
    );
    assert!(text.contains(&line), "{text}");
    let json = serde_json::to_string(&trace).unwrap();
    assert_eq!(serde_json::from_str::<Trace>(&json).unwrap(), trace);
}

#[test]
fn every_component_has_its_writer_and_its_carrier() {
    let engine = start(&[("indexer", "indexer/cpu-sm120{keys: bf16}")], Topology::Paired);
    ask(&engine);
    let origins = engine.origins("live");
    let config = &Checkpoint::Nano.model().config;
    for component in ["swa", "c4", "c128", "index_keys", "c4_state", "index_state"] {
        let crossing = origins.iter().filter(|o| {
            o.component == component
                && o.writer.phase == Some(Phase::Prefill)
                && o.reader.phase == Some(Phase::Decode)
        });
        let layers: Vec<usize> = crossing
            .map(|o| {
                assert_eq!(o.carrier.as_deref(), Some("kv_transport/local"), "{o:?}");
                assert_eq!(o.writer.layer, o.reader.layer);
                o.reader.layer.unwrap() as usize
            })
            .collect();
        let has = |layer: &usize| match (component, config.class(*layer)) {
            ("swa", _) => true,
            ("c128", class) => class == LayerClass::Hca,
            (_, class) => class == LayerClass::Csa,
        };
        let want: Vec<usize> = (0..config.num_hidden_layers).filter(has).collect();
        assert_eq!(layers, want, "{component}");
    }
    // What prefill itself reads was never moved.
    let own = origins.iter().filter(|o| o.reader.phase == Some(Phase::Prefill));
    assert!(own.clone().count() > 0 && own.clone().all(|o| o.carrier.is_none()));
    // 128 + 128 + 44 rows: the ratio-128 state rows that a later group needs are read by the chunk that closes it.
    assert!(!origins.iter().any(|o| o.component == "c128_state"), "no open ratio-128 group was closed later");
}

#[test]
fn a_swap_in_the_middle_shows_both_writers() {
    let engine = start(&[("indexer", "indexer/cpu-stock{keys: bf16}")], Topology::Single);
    // Loaded before, so that the swap comes while the request runs.
    let (stock, sm120) = ("indexer/cpu-stock{keys: bf16}", "indexer/cpu-sm120");
    let patched = engine.slots().registry().generation(&sm120.parse().unwrap()).unwrap();
    let handle = engine.submit(request(400)).unwrap();
    let mut tokens = 0;
    while tokens < 12 {
        tokens += usize::from(matches!(handle.recv(), Some(Event::Token { .. })));
    }
    engine.slots().swap("live", rule("indexer@decode", sm120), LayoutPolicy::Refuse).unwrap();
    handle.tokens().unwrap();
    drop(patched);
    let read = keys(&engine);
    let layer = read[0].0;
    let by: Vec<_> =
        read.iter().filter(|r| r.0 == layer).map(|r| (r.1, r.2.as_str(), r.3.as_str())).collect();
    let (prefill, decode) = (Some(Phase::Prefill), Some(Phase::Decode));
    assert_eq!(by, [(prefill, stock, sm120), (decode, stock, sm120), (decode, sm120, sm120)]);
}
