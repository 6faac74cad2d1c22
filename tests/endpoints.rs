//! A running server is bisected through its admin socket and its public API.

use hotseam_config::{NeedleOracle, Oracle, OracleKind, RepeatOracle, TargetSection};
use hotseam_encoding::Tokenizer;
use hotseam_engine::{Engine, EngineConfig, Topology};
use hotseam_server::admin::AdminSocket;
use hotseam_server::{ModelInfo, Served, Server, ServerOptions};
use hotseam_slots::Rule;
use hotseam_target::{Arm, Endpoints, EndpointsSetup, InProcess, Plan, Setup, Target, TargetError, Verdict};
use hotseam_tests::{Checkpoint, all, engine, root, rule};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// A server in this process, with as many admin sockets as it has engines; requests go to the first.
struct Site {
    runtime: Option<Runtime>,
    engines: Vec<Engine>,
    section: TargetSection,
    _dir: tempfile::TempDir,
}

impl Site {
    fn start(engines: Vec<Engine>) -> Self {
        let runtime = Runtime::new().unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(private).tempdir().unwrap();
        let section = runtime.block_on(async {
            let server = Server::bind(ServerOptions::new("127.0.0.1:0".parse().unwrap())).await.unwrap();
            let api = format!("http://{}", server.address());
            let model = ModelInfo {
                id: "nano-v4".into(),
                created: 0,
                max_context: 4096,
                vocab_size: engines[0].model().config.vocab_size,
            };
            let backend = Arc::new(engines[0].clone());
            server.handle().serve(Served { backend, tokenizer: tokenizer(), model });
            tokio::spawn(server.run(std::future::pending()));
            let mut endpoints = Vec::new();
            for (rank, engine) in engines.iter().enumerate() {
                let admin = AdminSocket::bind(&dir.path().join(format!("{rank}.sock"))).unwrap();
                endpoints.push(format!("unix:{}", admin.path().display()).parse().unwrap());
                tokio::spawn(admin.run(engine.clone(), "nano-v4".into(), std::future::pending()));
            }
            let api = Some(api.parse().unwrap());
            let (prefill, decode, single) = (None, None, None);
            TargetSection { endpoints, api, prefill, decode, single, timeout_seconds: 60.0 }
        });
        Self { runtime: Some(runtime), engines, section, _dir: dir }
    }

    fn setup(&self, bad: Vec<Rule>, oracle: Oracle) -> EndpointsSetup {
        EndpointsSetup {
            section: self.section.clone(),
            tokenizer: tokenizer(),
            good: ("live".into(), good()),
            bad: ("bad".into(), bad),
            oracle,
            haystack: haystack(),
            seed: 1,
            single_to_paired: false,
            progress: Box::new(|_| {}),
        }
    }

    fn names(&self) -> Vec<String> {
        self.engines[0].slots().names()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&root().join("assets/nano-v4")).unwrap()
}

fn haystack() -> Vec<std::path::PathBuf> {
    vec![root().join("assets/haystack/time-machine.txt")]
}

fn good() -> Vec<Rule> {
    let mut rules = all("cpu-stock");
    rules.push(rule("indexer", "indexer/cpu-stock{keys: fp8}"));
    rules
}

/// Right patches, and a planted fault.
fn bad() -> Vec<Rule> {
    let mut rules = good();
    rules.push(rule("attention@decode", "attention/cpu-sm120-mma"));
    rules.push(rule("indexer", "indexer/cpu-sm120{early_exit: true, keys: bf16}"));
    rules.push(rule("mhc", "mhc/cpu-bf16-gemm"));
    rules.push(rule("moe", "moe/cpu-fused-scale"));
    rules.push(rule("attention@decode", "faulty/attention{fault: half-scale}"));
    rules
}

fn sizes() -> EngineConfig {
    EngineConfig { max_context: 4096, topology: Topology::Paired, ..EngineConfig::default() }
}

fn needle(length: usize) -> Oracle {
    OracleKind::Needle(NeedleOracle { lengths: vec![length], depths: 4, ..NeedleOracle::default() }).into()
}

fn refusal(setup: EndpointsSetup) -> String {
    match Endpoints::new(setup) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn a_planted_fault_is_found_through_the_socket_and_nothing_is_left_behind() {
    let site = Site::start(vec![engine(Checkpoint::Nano, good(), sizes())]);
    let mut target = Endpoints::new(site.setup(bad(), needle(512))).unwrap_or_else(|e| panic!("{e}"));
    let plan = target.plan().clone();
    assert_eq!(plan, in_process_plan(), "the plan of a server is that of an engine in this process");

    let report = hotseam_bisect::run(&mut target, &hotseam_bisect::Options::default(), &mut ());
    assert_eq!(report.exit_code, 0, "{report:?}");
    let culprits = serde_json::to_string(&report.culprits).unwrap();
    assert!(culprits.contains("half-scale"), "{culprits}");
    // No transport moves anything but at hand-offs, and every cell of the bad end was called.
    assert!(target.not_run().is_empty(), "{:?}", target.not_run());
    assert!(site.names().iter().any(|name| name.starts_with("bisect-")), "{:?}", site.names());
    drop(target);
    assert_eq!(site.names(), ["live"]);
}

fn in_process_plan() -> Plan {
    let setup = Setup {
        engine: engine(Checkpoint::Nano, good(), sizes()),
        tokenizer: tokenizer(),
        good: ("live".into(), good()),
        bad: ("bad".into(), bad()),
        oracle: needle(512),
        haystack: haystack(),
        seed: 1,
        single_to_paired: false,
        progress: Box::new(|_| {}),
        expose: None,
    };
    InProcess::new(setup).unwrap_or_else(|error| panic!("{error}")).plan().clone()
}

#[test]
fn ranks_share_assignments_and_those_that_differ_are_named() {
    let first = engine(Checkpoint::Nano, good(), sizes());
    // Two sockets of one engine are two ranks that agree.
    let site = Site::start(vec![first.clone(), first.clone()]);
    let repeat = OracleKind::Repeat(RepeatOracle { tokens: 64, times: 2 });
    let mut target = Endpoints::new(site.setup(bad(), repeat.into())).unwrap_or_else(|e| panic!("{e}"));
    let outcome = target.measure(&Arm::new()).unwrap();
    assert_eq!((outcome.verdict, outcome.counts.total), (Verdict::Good, 1), "{outcome:?}");
    drop(target);
    drop(site);

    let single = EngineConfig { topology: Topology::Single, ..sizes() };
    let site = Site::start(vec![first, engine(Checkpoint::Nano, good(), single)]);
    let text = refusal(site.setup(bad(), needle(256)));
    assert!(text.contains("rank 1 (unix:") && text.contains("another assignment"), "{text}");
    assert_eq!(site.names(), ["live"], "a target that is not made leaves nothing behind");
}

#[test]
fn errors_name_the_server_and_the_next_step() {
    let site = Site::start(vec![engine(Checkpoint::Nano, good(), sizes())]);
    let mut gone = site.setup(bad(), needle(256));
    gone.section.endpoints[0] = "unix:/nonexistent/hotseam.sock".parse().unwrap();
    let text = refusal(gone);
    assert!(text.contains("unix:/nonexistent/hotseam.sock: cannot connect"), "{text}");

    let mut unknown = bad();
    unknown.push(rule("moe", "moe/no-such-variant"));
    let text = refusal(site.setup(unknown, needle(256)));
    assert!(text.contains("`bad` is refused") && text.contains("moe/no-such-variant"), "{text}");

    // What needs logits is refused when it is asked, by name and with what can be used.
    let kl = OracleKind::Kl(hotseam_config::KlOracle { tokens: 200, ..Default::default() });
    let mut target = Endpoints::new(site.setup(bad(), kl.into())).unwrap_or_else(|e| panic!("{e}"));
    match target.measure(&Arm::new()) {
        Err(TargetError::Oracle { message, .. }) => {
            assert!(
                message.contains("kl") && message.contains("use needle, exact, repeat or command"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }

    // What a signal handler does: everything this search defined is gone, from another handle than the target's.
    drop(target);
    let mut target = Endpoints::new(site.setup(bad(), needle(256))).unwrap_or_else(|e| panic!("{e}"));
    let all = target.plan().all();
    target.digest(&all).unwrap();
    assert_eq!(site.names().len(), 2, "{:?}", site.names());
    target.cleaner().clean();
    assert_eq!(site.names(), ["live"]);
}
