//! What abi_stable compares when a plugin is loaded is checked in, so that an accidental change of the contract fails
//! here and not on a user's machine.
//!
//! `HOTSEAM_BLESS=1 cargo test --release -p hotseam-abi --test layout` writes the snapshot after a meant change, which
//! raises `CONTRACT`.

use abi_stable::StableAbi;
use abi_stable::type_layout::TypeLayout;
use hotseam_abi::{CONTRACT, StepCtx};
use std::fmt::Write as _;
use std::path::Path;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/layout.txt");

macro_rules! layouts {
    ($($name:ident),+ $(,)?) => {
        [$(<hotseam_abi::$name as StableAbi>::LAYOUT),+]
    };
}

/// Every type that crosses the boundary.
const TYPES: &[&TypeLayout] = &layouts![
    TensorRef,
    WeightRef,
    Text,
    StepCtx,
    SeqSpan,
    Batch,
    RopeTables,
    PoolRef,
    StoreArgs,
    CompressArgs,
    CoreArgs,
    SelectArgs,
    RouteArgs,
    ExpertRef,
    ExpertsArgs,
    MhcPreArgs,
    MhcPostArgs,
    MhcHeadArgs,
    Region,
    RegisterArgs,
    PutArgs,
    PollArgs,
    EndpointArgs,
    ConnectArgs,
    AcceptArgs,
    CloseArgs,
    ParallelBody,
    HostServicesV1,
    InfoV1,
    AttentionV1,
    IndexerV1,
    MoeV1,
    MhcV1,
    KvTransportV1,
    PluginV1,
    PluginMod,
];

fn text(layout: &'static TypeLayout) -> String {
    let mut text = format!("{} size {} align {}\n", layout.full_type(), layout.size(), layout.alignment());
    for field in layout.get_fields().into_iter().flat_map(|fields| fields.iter()) {
        let size = field.layout().size();
        let _ = writeln!(text, "  {}: {} ({size})", field.name(), field.full_type());
        for function in field.function_range().iter() {
            let _ = writeln!(
                text,
                "    {}",
                function.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
            );
        }
    }
    text
}

fn snapshot() -> String {
    let types = TYPES.iter().map(|layout| format!("\n{}", text(layout)));
    format!("contract {CONTRACT}\n{}", types.collect::<String>())
}

#[test]
fn layouts_are_those_of_the_snapshot() {
    let now = snapshot();
    if std::env::var_os("HOTSEAM_BLESS").is_some() {
        std::fs::write(FILE, &now).expect("written");
    }
    let kept = std::fs::read_to_string(FILE).expect("the snapshot is checked in");
    let differs = now.lines().zip(kept.lines()).find(|(now, kept)| now != kept);
    assert!(
        now == kept,
        "the layout of the contract changed: expected and found differ first at {differs:?}. Plugins that are built \
         will be refused: undo the change or make it a new type beside the old; if it is meant, raise CONTRACT and \
         write {} with HOTSEAM_BLESS=1",
        Path::new(FILE).display()
    );
}

#[test]
fn every_struct_of_the_contract_is_in_the_snapshot() {
    let snapshot = snapshot();
    let sources =
        [include_str!("../src/args.rs"), include_str!("../src/plugin.rs"), include_str!("../src/tensor.rs")];
    let names = sources
        .iter()
        .flat_map(|source| source.lines())
        .filter_map(|line| line.strip_prefix("pub struct ")?.split(|c: char| !c.is_alphanumeric()).next());
    let missing: Vec<&str> = names
        // abi_stable knows the fields of the root module by the reference to it, `PluginMod`.
        .filter(|name| *name != "PluginModVal" && !snapshot.contains(&format!("\n{name} size ")))
        .collect();
    assert!(missing.is_empty(), "{missing:?} are not in `TYPES`");
    assert!(snapshot.contains(&format!("\nStepCtx size {} align 8\n", size_of::<StepCtx>())));
}
