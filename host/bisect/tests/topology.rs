//! In which topology a culprit fails, and what the audit of its hand-offs says, in every form and from the log.

use std::collections::BTreeMap;

use hotseam_bisect::log::{Header, Journal, Line, Log, Recorded, Recorder};
use hotseam_bisect::report::{About, Fails, Style, headline, html, markdown, text};
use hotseam_bisect::{Options, Report, Word, run};
use hotseam_target::simulated::{Condition, Fault, PlanBuilder, Rates, Simulated};
use hotseam_target::{Class, Damage, Handoff, Moved, Plan, Span, TOPOLOGY, Target};
use serde_json::json;

/// Atoms 0 and 1 are attention in prefill, 2 is MoE in decode, 3 the transport.
fn plan() -> Plan {
    let mut builder = PlanBuilder::default();
    builder.variant("attention", Span::Prefill, Class::Csa, "attention/patched", &[2, 4]);
    builder.variant("moe", Span::Decode, Class::Topk, "moe/patched", &[4]);
    builder.variant("kv_transport", Span::Handoff, Class::Model, "kv_transport/patched", &[]);
    builder.build()
}

fn paired(fault: Fault) -> Fault {
    fault.when(Condition::Is(TOPOLOGY.into(), "paired".into()))
}

fn target(fault: Fault) -> Simulated {
    Simulated::new(plan(), fault).axis(TOPOLOGY, "paired", &["single"])
}

fn searched(target: &mut dyn Target) -> Report {
    run(target, &Options { budget_runs: 200, ..Options::default() }, &mut ())
}

fn handoff() -> Handoff {
    let own = |component: &str, whole, damage| Moved {
        component: component.into(),
        layers: vec![2, 4],
        items: 6,
        whole,
        damage,
    };
    let what = "c4 layer 4 page 1: expected but never written".to_owned();
    Handoff {
        transport: "kv_transport/patched".into(),
        requests: 2,
        components: vec![own("swa", 6, vec![]), own("c4", 5, vec![Damage { layer: 4, page: Some(1), what }])],
    }
}

#[test]
fn a_transport_is_guilty_only_where_something_is_handed_over() {
    let mut target = target(paired(Fault::any([3]))).hands_over(handoff());
    let report = searched(&mut target);
    assert_eq!(report.verdict, Word::Found);
    let [culprit] = report.culprits.as_slice() else { panic!("{report:?}") };
    let by = culprit.topology.expect("asked");
    assert_eq!(
        (culprit.seam.as_str(), by.fails, by.paired),
        ("kv_transport", Fails::OnlyPaired, culprit.sufficient)
    );
    let single = &report.trials[by.single - 1];
    assert_eq!(single.axes, [(TOPOLOGY.to_owned(), "single".to_owned())]);
    assert!(headline(&report).contains("guilty only when disaggregated"), "{}", headline(&report));
    assert_eq!(culprit.handoff.as_ref(), Some(&handoff()));
    let about = About { version: "1".into(), command: "x".into(), log: None, facts: vec![] };
    let style = Style { color: false, width: 400 };
    for form in [text(&report, style), markdown(&report, &about), html(&report, &about)] {
        assert!(form.contains("guilty only when disaggregated"), "{form}");
        assert!(form.contains("c4 layer 4 page 1: expected but never written"), "{form}");
        assert!(form.contains("swa arrived as sent"), "{form}");
    }
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(value["culprits"][0]["topology"]["fails"], "only_paired");
    assert_eq!(value["culprits"][0]["handoff"]["components"][1]["damage"][0]["page"], 1);
}

#[test]
fn what_prefill_computes_is_asked_about_and_what_only_decode_does_is_not() {
    let report = searched(&mut target(Fault::any([0])));
    let by = report.culprits[0].topology.expect("asked");
    assert_eq!(by.fails, Fails::Both);
    assert!(report.culprits[0].evidence.iter().any(|line| line.contains("so it is not the hand-off")));
    assert!(!headline(&report).contains("only when"), "{}", headline(&report));

    let decode = searched(&mut target(Fault::any([2])));
    assert_eq!((decode.verdict, decode.culprits[0].topology), (Word::Found, None));
    assert!(decode.trials.iter().all(|trial| trial.axes.is_empty()));
}

#[test]
fn draws_are_repeated_until_it_is_known_or_said_that_it_is_not() {
    let mut unclear = 0;
    for (fault, fails) in [(paired(Fault::any([3])), Fails::OnlyPaired), (Fault::any([3]), Fails::Both)] {
        for seed in 0..8 {
            let rates = Rates { draws: 8, ..Rates::new(0.05, 0.7) };
            let report = searched(&mut target(fault.clone()).noisy(rates, seed).one_launch());
            let why =
                || format!("seed {seed}, {} runs, {:?}: {:?}", report.runs, report.verdict, report.notes);
            assert_eq!(report.verdict, Word::Found, "{}", why());
            match report.culprits[0].topology {
                Some(by) => assert_eq!(by.fails, fails, "{}", why()),
                None => {
                    assert!(
                        report.notes.iter().any(|note| note.contains("did not become clear")),
                        "{}",
                        why()
                    );
                    unclear += 1;
                }
            }
        }
    }
    assert!(unclear <= 2, "{unclear} of 16");
}

#[test]
fn a_topology_that_is_a_change_has_its_answer_in_the_ends() {
    let mut builder = PlanBuilder::default();
    builder.variant(TOPOLOGY, Span::Handoff, Class::Model, "paired", &[]);
    let mut target = Simulated::new(builder.build(), Fault::any([0])).hands_over(handoff());
    let report = searched(&mut target);
    assert_eq!((report.verdict, report.runs), (Word::Found, 2));
    let by = report.culprits[0].topology.expect("known");
    assert_eq!((by.fails, by.paired, by.single), (Fails::OnlyPaired, 2, 1));
    // No variant of that name is looked for.
    assert_eq!(report.conformance.iter().filter(|check| check.variant.contains("stock")).count(), 0);
}

#[test]
fn damage_points_at_the_transport_and_the_log_knows_it_again() {
    let mut target = target(paired(Fault::any([3]))).hands_over(handoff());
    let options = Options::default();
    let header = Header::of(&target, "1", BTreeMap::new(), json!({}), serde_json::to_value(options).unwrap());
    let mut bytes = Vec::new();
    let journal = Journal::new(&mut bytes);
    journal.write(&[Line::Header(Box::new(header.clone()))]);
    let mut recorder = Recorder::new(&mut target, header, journal.clone(), Recorded::default());
    let report = run(&mut recorder, &options, &mut journal.clone());
    drop((recorder, journal));
    // The accused is asked first: alone it fails, so nothing else is tried before it is confirmed.
    assert_eq!(report.culprits[0].sufficient, 3, "{:?}", report.trials);
    assert_eq!(report.handoff, Some(handoff()));

    let log = Log::read(&bytes).unwrap();
    let mut again = Recorder::replay(&log);
    assert_eq!(run(&mut again, &options, &mut ()), report);
    assert_eq!(again.missing(), None);
}
