//! The audit names what a faulty transport did: component, layer and page.

mod common;
#[path = "common/pair.rs"]
mod pair;

use common::ask;
use hotseam_engine::{Engine, Finding, FindingKind, Role};
use pair::{hear, worker};

/// The tiny model: layer 0 has a window only, layer 1 is csa, layer 2 is hca.
const CSA: u32 = 1;
const HCA: u32 = 2;

fn audited(fault: &str) -> Engine {
    let transport = format!("faulty/kv_transport{{{fault}}}");
    worker(Role::Single, &transport, |config| config.pd.audit = true)
}

/// Runs a prompt and returns what the audit found. The request must have failed because of it.
fn found(engine: &Engine, number: usize, length: usize) -> Vec<Finding> {
    let heard = hear(&engine.submit(ask(number, length, 4)).unwrap());
    let (code, message) = heard.expect_err("the audit passes");
    assert_eq!(code, "E-KV-AUDIT", "{message}");
    let map = engine.kv_map().expect("audited");
    let first = map.findings.first().expect("found").to_string();
    assert!(message.contains(&first), "{message} does not name {first}");
    let rows = map.rows.iter().map(|row| row.expected - row.whole).sum::<usize>();
    let of_request = map.findings.iter().filter(|finding| finding.page.is_some()).count();
    assert_eq!(rows, of_request, "{map:?}");
    map.findings
}

fn places(findings: &[Finding]) -> Vec<(&str, u32, Option<usize>)> {
    findings.iter().map(|f| (f.component.as_str(), f.layer, f.page)).collect()
}

#[test]
fn every_dropped_component_is_named() {
    for (component, layers, items) in [
        ("swa", &[0, CSA, HCA][..], 2),
        ("c4", &[CSA], 3),
        ("c128", &[HCA], 3),
        ("index_keys", &[CSA], 3),
        ("c4_state", &[CSA], 5),
        ("c128_state", &[HCA], 9),
        ("index_state", &[CSA], 5),
    ] {
        let engine = audited(&format!("fault: component-dropped, component: {component}"));
        // 521 = 2 * 256 + 9 positions: three pages, of which the window reads two.
        let findings = found(&engine, 1, 521);
        let want: Vec<_> = layers
            .iter()
            .flat_map(|layer| (0..items).map(move |page| (component, *layer, Some(page))))
            .collect();
        assert_eq!(places(&findings), want);
        assert!(findings.iter().all(|f| f.kind == FindingKind::NeverWritten), "{findings:?}");
        assert!(findings[0].to_string().ends_with("0: expected but never written"), "{}", findings[0]);
    }
}

#[test]
fn entries_of_another_buffer_are_told_from_their_own() {
    let findings = found(&audited("fault: layer-offset"), 2, 600);
    assert_eq!(places(&findings), [0, 1, 2].map(|page| ("c128", HCA, Some(page))));
    assert!(findings.iter().all(|f| f.kind == FindingKind::Differs), "{findings:?}");
}

#[test]
fn pages_of_another_size_are_found_where_they_are_not() {
    let findings = found(&audited("fault: page-size"), 3, 521);
    // Every page lands at a quarter of its offset, so that those after the first are not written.
    let kinds = |component: &str, page: usize| {
        let of = findings.iter().filter(|f| f.component == component && f.page == Some(page));
        of.map(|f| f.kind.clone()).collect::<Vec<_>>()
    };
    let components: Vec<&str> = places(&findings).into_iter().map(|(component, _, _)| component).collect();
    for component in ["swa", "c4", "c128", "index_keys", "c4_state", "c128_state", "index_state"] {
        assert!(components.contains(&component), "{component}: {findings:?}");
    }
    assert_eq!(kinds("c4", 2), [FindingKind::NeverWritten]);
    assert_eq!(kinds("c4", 1), [FindingKind::NeverWritten]);
}

#[test]
fn a_ring_of_another_size_is_seen_in_the_states_alone() {
    let findings = found(&audited("fault: ring-size"), 4, 519);
    // Positions 512 to 518 are kept for ratio 4, and as many for ratio 128.
    let of = |component: &str, layer: u32| -> Vec<_> {
        findings
            .iter()
            .filter(|f| f.component == component && f.layer == layer)
            .map(|f| f.kind.clone())
            .collect()
    };
    let holds =
        |component: &str, layer, page| FindingKind::Holds { component: component.into(), layer, page };
    for (component, layer, rows) in [("c4_state", CSA, 7), ("index_state", CSA, 7), ("c128_state", HCA, 7)] {
        let at = rows / 2;
        let want: Vec<_> = (0..rows).map(|row| holds(component, layer, (row + rows - at) % rows)).collect();
        assert_eq!(of(component, layer), want, "{component}");
    }
    assert_eq!(findings.len(), 21, "{findings:?}");
    assert_eq!(findings[0].to_string(), "c4_state layer 1 row 0: holds c4_state layer 1 row 4");
}

#[test]
fn a_page_that_ends_early_is_named_with_its_bytes() {
    // The window reads the second page only.
    for (component, layer, page) in [("c4", CSA, 1), ("swa", 0, 0)] {
        let findings = found(&audited(&format!("fault: truncated-page, component: {component}")), 5, 512);
        let first = &findings[0];
        assert_eq!((first.component.as_str(), first.layer), (component, layer), "{findings:?}");
        let FindingKind::CutAt { bytes, of } = first.kind else { panic!("{first}") };
        assert_eq!(bytes * 2, of, "{first}");
        assert_eq!(first.page, Some(page), "{first}");
    }
}

#[test]
fn bytes_of_the_request_before_are_known_again() {
    let engine = audited("fault: stale-page");
    // The first request has none before it.
    assert!(hear(&engine.submit(ask(6, 300, 3)).unwrap()).is_ok());
    let before = engine.kv_map().unwrap().room;
    let findings = found(&engine, 7, 300);
    assert_eq!(places(&findings), [("c4", CSA, Some(0))]);
    assert_eq!(findings[0].kind, FindingKind::Stale { room: before });
}

#[test]
fn one_bit_is_enough() {
    for (component, layer) in [("c4", CSA), ("index_keys", CSA), ("c128", HCA), ("c128_state", HCA)] {
        let findings = found(&audited(&format!("fault: bit-flip, component: {component}")), 8, 300);
        assert_eq!(places(&findings), [(component, layer, Some(0))]);
        assert_eq!(findings[0].kind, FindingKind::Differs);
    }
}

#[test]
fn pages_that_changed_places_are_named_by_what_they_hold() {
    let findings = found(&audited("fault: reorder, component: index_keys"), 9, 600);
    let texts: Vec<String> = findings.iter().map(|f| f.to_string()).collect();
    assert_eq!(
        texts,
        [
            "index_keys layer 1 page 0: holds index_keys layer 1 page 1",
            "index_keys layer 1 page 1: holds index_keys layer 1 page 0"
        ]
    );
}

#[test]
fn a_page_that_nobody_asked_for_is_named() {
    let findings = found(&audited("fault: stray-page"), 10, 300);
    assert_eq!(places(&findings), [("c4", CSA, None)]);
    assert!(findings[0].to_string().ends_with("of no request: written but not expected"), "{}", findings[0]);
}

/// Pools of another layout were not poisoned for the layout before, and what is left in them is nobody's stray write.
#[test]
fn assignments_of_two_layouts_take_turns() {
    let engine = audited("fault: late-reversed");
    let mut rules = pair::over("faulty/kv_transport{fault: late-reversed}");
    rules.push(common::rule("indexer", "indexer/cpu-stock{keys: bf16}"));
    engine.slots().define("bf16", rules).unwrap();
    for (number, name) in ["live", "bf16", "live", "bf16", "bf16", "live"].into_iter().enumerate() {
        let request = hotseam_engine::Request { assignment: name.to_owned(), ..ask(number, 300 + number, 4) };
        hear(&engine.submit(request).unwrap())
            .unwrap_or_else(|failure| panic!("{number} {name}: {failure:?}"));
        assert_eq!(engine.kv_map().unwrap().verdict(), None, "{number} {name}");
    }
}

/// A transport that is only slow and goes backwards is none of these.
#[test]
fn a_sound_transport_passes() {
    let engine = audited("fault: late-reversed");
    for (number, length) in [1, 5, 128, 257, 700].into_iter().enumerate() {
        hear(&engine.submit(ask(number, length, 5)).unwrap()).unwrap();
        assert_eq!(engine.kv_map().unwrap().verdict(), None);
    }
}
