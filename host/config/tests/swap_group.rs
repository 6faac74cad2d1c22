//! What `disaggregation.swap_group` and `disaggregation.prefill_workers` cannot be, as a person sees it.

use std::path::Path;

use hotseam_config::parse;

fn with(section: &str) -> String {
    format!(
        "model: {{ path: nano-v4 }}\nengine: {{ topology: paired }}\ndisaggregation: {{ {section} }}\n\
         assignments: {{ live: [{{ select: attention, use: attention/cpu-stock }}] }}\n"
    )
}

/// The message about a section: without place, field and help in one line.
#[track_caller]
fn message(section: &str) -> String {
    let error = parse(&with(section), "x.yaml", Path::new("/etc/hotseam"), &[]).expect_err("accepted");
    let text = error.to_string();
    let (first, rest) = text.split_once('\n').expect("a place");
    let (_, said) = first.split_once(": ").expect("a message");
    let notes = rest.lines().filter_map(|line| line.strip_prefix("  ").filter(|line| line.contains(": ")));
    std::iter::once(said).chain(notes).collect::<Vec<_>>().join(" | ")
}

#[test]
fn a_swap_group_that_cannot_be_is_refused_with_its_reason() {
    let name = |found: &str| {
        format!(
            "expected 1 to 64 letters, digits, `-`, `_` or `.`, found `{found}` | field: disaggregation.swap_group | help: give \
             all workers of the group the same name, such as `pair-1`"
        )
    };
    let long = "x".repeat(65);
    for found in ["pair one", "pair/1", "", &long] {
        assert_eq!(message(&format!("role: prefill, swap_group: '{found}'")), name(found));
    }
    // Of a longer one as much is shown as names it.
    assert_eq!(message(&format!("role: prefill, swap_group: {}", "x".repeat(200))), name(&"x".repeat(80)));
    assert_eq!(
        message("swap_group: pair"),
        "the role is single, which has no other end | field: disaggregation.swap_group | help: leave it away, or set \
         `disaggregation.role`"
    );
    assert_eq!(
        message("role: decode, swap_group: pair"),
        "a decode worker connects to the host that a request names, and members of its group may ask it to swap plugins | field: \
         disaggregation.swap_group | help: name the prefill workers' hosts in `disaggregation.hosts`"
    );
    assert_eq!(
        message("role: decode, swap_group: [pair]"),
        "invalid type: sequence, expected a string | field: disaggregation.swap_group"
    );
}

#[test]
fn prefill_workers_that_cannot_be_are_refused_with_their_reason() {
    for role in ["role: decode, ", "role: prefill, ", ""] {
        assert_eq!(
            message(&format!("{role}prefill_workers: ['10.0.0.1:8101']")),
            "only a worker in a swap group connects to prefill workers that no request has named | field: \
             disaggregation.prefill_workers | help: set `disaggregation.swap_group`, or leave prefill_workers away"
        );
    }
    assert_eq!(
        message("role: prefill, swap_group: pair, prefill_workers: ['10.0.0.1:8101']"),
        "decode workers connect to prefill workers | field: disaggregation.prefill_workers | help: set it on the decode workers"
    );
    for (hosts, places, found) in [
        // Another host than those that requests may name.
        ("10.0.0.1", "'10.0.0.2:8101'", "10.0.0.2:8101"),
        ("10.0.0.1", "'10.0.0.1:8101', '10.0.0.1'", "10.0.0.1"),
        ("10.0.0.1", "'10.0.0.1:0'", "10.0.0.1:0"),
        ("10.0.0.1", "'10.0.0.1:65536'", "10.0.0.1:65536"),
        ("''", "':8101'", ":8101"),
    ] {
        assert_eq!(
            message(&format!(
                "role: decode, swap_group: pair, hosts: [{hosts}], prefill_workers: [{places}]"
            )),
            format!(
                "expected HOST:PORT with a host of `disaggregation.hosts`, found `{found}` | field: \
                 disaggregation.prefill_workers | help: such as `127.0.0.1:8101`"
            )
        );
    }
    assert_eq!(
        message("role: decode, prefill_workers: '10.0.0.1:8101'"),
        "invalid type: string \"10.0.0.1:8101\", expected a sequence | field: disaggregation.prefill_workers"
    );
}

/// The whole of one message, with the place in the file.
#[test]
fn a_message_points_at_the_name() {
    let error =
        parse(&with("swap_group: pair"), "x.yaml", Path::new("/etc/hotseam"), &[]).expect_err("accepted");
    assert_eq!(
        error.to_string(),
        "\
x.yaml:3:31: the role is single, which has no other end
  |
3 | disaggregation: { swap_group: pair }
  |                               ^
  field: disaggregation.swap_group
  help: leave it away, or set `disaggregation.role`"
    );
}

#[test]
fn places_are_taken_with_names_and_both_kinds_of_addresses() {
    let section = "role: decode, swap_group: pair-1.a_b, hosts: [10.0.0.1, '::1', node-7], \
                   prefill_workers: ['10.0.0.1:8101', '[::1]:8102', 'node-7:65535']";
    let config = parse(&with(section), "x.yaml", Path::new("/etc/hotseam"), &[]).expect("valid");
    let places = [("10.0.0.1", 8101), ("::1", 8102), ("node-7", 65535)];
    let places = places.map(|(host, port)| (host.to_owned(), port));
    assert_eq!(config.disaggregation.prefill_places(), places);
}
