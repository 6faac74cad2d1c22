//! Selectors, variants and rules as text.

use hotseam_slots::{
    CellId, Class, NumberSet, Op, Phase, Rule, Scope, Seam, Selector, Topology, VariantSpec,
};
use serde_json::json;

/// A small deterministic source of choices.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn maybe<T>(&mut self, items: &[T]) -> Option<T>
    where
        T: Copy,
    {
        let i = self.below(items.len() + 1);
        items.get(i).copied()
    }

    fn numbers(&mut self) -> NumberSet {
        let count = 1 + self.below(6);
        NumberSet::of((0..count).map(|_| self.below(12) as u32).collect::<Vec<_>>())
    }

    fn selector(&mut self) -> Selector {
        let seam = Seam::ALL[self.below(5)];
        let inside = seam != Seam::KvTransport;
        let ops = if inside { seam.ops() } else { &[] };
        let scope = match self.below(3) {
            1 if inside => Scope::Layers(self.numbers()),
            2 if inside => {
                let classes = Class::of_seam(seam);
                Scope::Class(classes[self.below(classes.len())])
            }
            _ => Scope::All,
        };
        Selector {
            heal: self.below(2) == 1,
            seam,
            op: self.maybe(ops),
            phase: self.maybe(if inside { Phase::ALL } else { &[] }),
            scope,
            ranks: (self.below(3) == 0).then(|| self.numbers()),
            topology: self.maybe(Topology::ALL),
        }
    }

    fn word(&mut self) -> String {
        let letters = [
            'a', 'Z', '0', '9', '-', '_', ' ', ':', ',', '{', '}', '"', '\'', '#', '\\', '\n', 'é', '~', '.',
            'e',
        ];
        let fixed =
            ["true", "null", "1e3", "0x10", "", "~", "no", "Yes", ".inf", "on", "1_000", "2001-01-01", "- a"];
        match self.below(3) {
            0 => fixed[self.below(fixed.len())].to_owned(),
            _ => (0..self.below(8)).map(|_| letters[self.below(letters.len())]).collect(),
        }
    }
}

#[test]
fn selectors_read_back_as_they_were_written() {
    let mut dice = Dice(7);
    for _ in 0..5000 {
        let selector = dice.selector();
        let text = selector.to_string();
        assert_eq!(text.parse::<Selector>().expect(&text), selector, "{text}");
        let json = serde_json::to_string(&selector).expect("JSON");
        assert_eq!(serde_json::from_str::<Selector>(&json).expect(&json), selector);
    }
}

#[test]
fn selectors_have_one_form() {
    for (given, printed) in [
        ("indexer@decode:layers=2-6", "indexer@decode:layers=2-6"),
        ("attention:class=csa", "attention:class=csa"),
        ("moe/ranks=0", "moe/ranks=0"),
        ("kv_transport^paired", "kv_transport^paired"),
        ("kv_transport^disagg", "kv_transport^paired"),
        (
            "!attention.core@decode:layers=8,2-6,3,7/ranks=0,1^single",
            "!attention.core@decode:layers=2-8/ranks=0-1^single",
        ),
        ("mhc^paired/ranks=0:layers=3@prefill", "mhc@prefill:layers=3/ranks=0^paired"),
        ("mhc:layers=4294967295,0", "mhc:layers=0,4294967295"),
    ] {
        assert_eq!(given.parse::<Selector>().expect(given).to_string(), printed);
    }
}

#[test]
fn bad_selectors_say_what_and_suggest() {
    for (text, words) in [
        ("indexr@decode", &["unknown seam `indexr`", "Did you mean `indexer`?"][..]),
        ("", &["unknown seam ``"]),
        ("!", &["unknown seam ``"]),
        ("attention.cor", &["attention has no op `cor`", "Did you mean `core`?"]),
        ("indexer.store", &["indexer has no op `store`"]),
        ("moe@decod", &["unknown phase `decod`", "Did you mean `decode`?"]),
        ("moe@", &["unknown phase ``", "prefill, decode"]),
        ("moe:class=csa", &["moe has no class `csa`", "hash, topk"]),
        ("indexer:class=hash", &["indexer has no class `hash`"]),
        ("indexer:layer=3", &["found `layer=`", "Did you mean `layers`?"]),
        ("indexer:3", &["`layers=` or `class=`", "found `3`"]),
        ("indexer:layers=", &["layers: expected numbers", "found ``"]),
        ("indexer:layers=6-2", &["rises", "`6-2`"]),
        ("indexer:layers=+3", &["found `+3`"]),
        ("indexer:layers=1-", &["found ``"]),
        ("indexer:layers=4294967296", &["4294967296"]),
        ("indexer:layers=2:layers=3", &["`:` appears twice"]),
        ("moe/rank=0", &["expected `ranks=`", "rank=0"]),
        ("moe^singel", &["unknown topology `singel`", "Did you mean `single`?"]),
        ("kv_transport.put", &["no op `put` of its own", "kv_transport`"]),
        ("kv_transport@decode", &["no phases, layers or classes"]),
        ("kv_transport:layers=1", &["no phases, layers or classes"]),
        ("moe é", &["unknown seam `moe é`"]),
        ("moe@é", &["unknown phase `é`"]),
    ] {
        let error = text.parse::<Selector>().expect_err(text).to_string();
        assert!(error.starts_with(&format!("selector `{text}`: ")), "{error}");
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    }
}

#[test]
fn a_cell_prints_as_its_selector() {
    let cell = |seam, op, phase, layer| CellId { seam, op, phase, layer, rank: None };
    for (cell, text) in [
        (cell(Seam::Indexer, Op::Select, Some(Phase::Decode), Some(3)), "indexer.select@decode:layers=3"),
        (cell(Seam::Mhc, Op::Head, Some(Phase::Prefill), None), "mhc.head@prefill"),
        (cell(Seam::KvTransport, Op::Transport, None, None), "kv_transport"),
    ] {
        assert_eq!(cell.to_string(), text);
        assert_eq!(text.parse::<Selector>().expect(text), cell.selector());
        let json = serde_json::to_value(cell).expect("JSON");
        assert_eq!(json["seam"], cell.seam.name());
        assert_eq!(serde_json::from_value::<CellId>(json).expect("a cell"), cell);
    }
}

#[test]
fn variants_read_back_as_they_were_written() {
    let mut dice = Dice(11);
    for _ in 0..3000 {
        let mut options = serde_json::Map::new();
        for _ in 0..dice.below(4) {
            let value = match dice.below(4) {
                0 => json!(dice.below(2) == 0),
                1 => json!(dice.below(1000) as i64 - 500),
                2 => json!((dice.below(1000) as f64 - 500.0) * 10f64.powi(dice.below(40) as i32 - 20)),
                _ => json!(dice.word()),
            };
            options.insert(dice.word(), value);
        }
        let name = ["indexer/cpu-sm120", "faulty/kv_transport", "/some/where/x.so"][dice.below(3)];
        let variant = VariantSpec::new(name, options);
        let text = variant.to_string();
        assert_eq!(text.parse::<VariantSpec>().expect(&text), variant, "{text}");
    }
}

#[test]
fn variants_have_one_form() {
    for (given, printed) in [
        (
            "indexer/cpu-sm120{keys: bf16, early_exit: true}",
            "indexer/cpu-sm120{early_exit: true, keys: bf16}",
        ),
        ("faulty/indexer{fault: one-page}", "faulty/indexer{fault: one-page}"),
        ("  moe/cpu-stock {}  ", "moe/cpu-stock"),
        ("a/b{splits: 16, eps: 1.0e-2, name: \"16\"}", "a/b{eps: 0.01, name: \"16\", splits: 16}"),
        ("/x/y.so{k: 'a b'}", "/x/y.so{k: \"a b\"}"),
    ] {
        assert_eq!(given.parse::<VariantSpec>().expect(given).to_string(), printed);
    }
    let variant: VariantSpec = "a/b{k: 1}".parse().expect("a variant");
    assert_eq!(variant.with_option("j", Some(json!("x"))).to_string(), "a/b{j: x, k: 1}");
    assert_eq!(variant.with_option("k", None).to_string(), "a/b");
}

#[test]
fn bad_variants_say_what() {
    for (text, word) in [
        ("", "found ``"),
        ("indexer", "found `indexer`"),
        ("a/b/c", "found `a/b/c`"),
        ("a/b}", "found `a/b}`"),
        ("a/b{k: 1", "not a YAML flow map"),
        ("a/b{k: 1}}", "not a YAML flow map"),
        ("a/b{k: 1, k: 2}", "duplicate"),
        ("a/b{k: [1]}", "option `k`"),
        ("a/b{k: {j: 1}}", "option `k`"),
        ("a/b{k: null}", "option `k`"),
        ("a/b{k}", "option `k`"),
        ("a/b{k: .nan}", "option `k`"),
        ("a/b{1: 2}", "option names are words"),
    ] {
        let error = text.parse::<VariantSpec>().expect_err(text).to_string();
        assert!(error.starts_with(&format!("variant `{text}`: ")), "{error}");
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn rules_are_a_selector_and_a_variant_or_heal() {
    let rule: Rule =
        serde_json::from_value(json!({"select": "moe@decode", "use": "moe/cpu-stock"})).expect("a rule");
    assert_eq!(rule.to_string(), "moe@decode = moe/cpu-stock");
    assert_eq!(
        serde_json::to_value(&rule).expect("JSON"),
        json!({"select": "moe@decode", "use": "moe/cpu-stock"})
    );
    let heal: Rule = serde_json::from_value(json!({"select": "!moe@decode"})).expect("a rule");
    assert_eq!(serde_json::to_value(&heal).expect("JSON"), json!({"select": "!moe@decode"}));
    for (json, word) in [
        (json!({"select": "moe"}), "expected a variant"),
        (json!({"select": "!moe", "use": "moe/cpu-stock"}), "names no variant"),
        (json!({"select": "moee", "use": "moe/cpu-stock"}), "Did you mean `moe`?"),
        (json!({"select": "moe", "use": "moe"}), "dir/name"),
        (json!({"select": "moe", "user": "moe/x"}), "unknown field"),
    ] {
        let error = serde_json::from_value::<Rule>(json).expect_err(word).to_string();
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}
