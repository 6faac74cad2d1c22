//! From a `bisect` section to what is bisected.

use hotseam_config::{BisectSection, Config, OracleKind};
use hotseam_encoding::Tokenizer;
use hotseam_slots::Rule;
use hotseam_target::{Cleaner, Endpoints, EndpointsSetup, InProcess, Setup, Target};
use tokio::signal::unix::{SignalKind, signal};

use super::{Bar, announce, expose, start};
use crate::failure::Failure;

/// Name and hash of the plugins that a target runs.
pub(crate) type Plugins = Vec<(String, String)>;

/// Loads what a `bisect` section is about: an engine in this process, or the servers that it names. `bar` shows how far a run is.
///
/// # Errors
/// Usage, naming what is refused.
pub(crate) fn target(
    config: &Config,
    section: &BisectSection,
    good: Vec<Rule>,
    bad: Vec<Rule>,
    bar: &Bar,
) -> Result<(Box<dyn Target>, Plugins), Failure> {
    let ticking = bar.clone();
    let (good, bad) = ((section.good.clone(), good), (section.bad.clone(), bad));
    let progress = Box::new(move |progress: hotseam_target::Progress| {
        ticking.tick(progress.done, progress.total);
    });
    if let Some(servers) = &section.target {
        let setup = EndpointsSetup {
            section: servers.clone(),
            tokenizer: Tokenizer::load(&config.model.path).map_err(Failure::usage)?,
            good,
            bad,
            oracle: section.oracle.clone(),
            haystack: config.needle.haystack.clone(),
            seed: config.needle.seed,
            single_to_paired: section.single_to_paired,
            progress,
        };
        let target = Endpoints::new(setup).map_err(Failure::usage)?;
        clean_on_signal(target.cleaner())?;
        // Which plugins the servers have is in the digests of the arms.
        return Ok((Box::new(target), Plugins::new()));
    }
    let mut config = config.clone();
    // An oracle that asks about hand-offs needs an engine that looks at them.
    config.disaggregation.audit |= matches!(section.oracle.kind, OracleKind::Audit(_));
    let config = &config;
    let host = start(config)?;
    announce(config, &host);
    let slots = host.engine.slots().clone();
    let is_command = matches!(section.oracle.kind, OracleKind::Command(_));
    let expose = is_command.then(|| expose(config));
    let setup = Setup {
        engine: host.engine,
        tokenizer: host.tokenizer,
        good,
        bad,
        oracle: section.oracle.clone(),
        haystack: config.needle.haystack.clone(),
        seed: config.needle.seed,
        single_to_paired: section.single_to_paired,
        progress,
        expose,
    };
    let target = InProcess::new(setup).map_err(Failure::usage)?;
    let plugins = slots.registry().loaded().into_iter().map(|plugin| (plugin.name, plugin.sha256)).collect();
    Ok((Box::new(target), plugins))
}

/// Removes the temporary assignments of a target before SIGINT or SIGTERM ends this process.
fn clean_on_signal(cleaner: Cleaner) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        // Listening begins here, so no signal is lost while the thread starts.
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let code = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
            }
        });
        cleaner.clean();
        std::process::exit(code);
    })?;
    Ok(())
}
