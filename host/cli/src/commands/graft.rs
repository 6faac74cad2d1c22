//! `hotseam graft`.

use anyhow::anyhow;
use hotseam_config::{Config, Topology};
use hotseam_engine::Engine;
use hotseam_evidence::divergence::{DECODE_TOKENS, Passage};
use hotseam_evidence::graft::{self, Engines, Graft, GraftPlan, GraftReport, KvPart, Oracle};
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::needle::{NeedlePlan, Probe};

use super::bisect::plant;
use crate::args::{Format, GraftArgs, GraftOracle};
use crate::failure::{Failure, USAGE};
use crate::host::{self, Host};
use crate::terminal;

/// Exit code if a graft could not be made, since 1 says that there is nothing to heal.
const NOT_MADE: u8 = 5;
/// Name of the bad end with what was planted.
const PLANTED: &str = "graft-bad";
/// Needle prompts to look in by default: a fault that is lost in a quarter of them shows in two.
const PROBES: usize = 8;
/// Failing prompts by default: a second one so that a graft does not heal by luck.
const CASES: usize = 2;
/// Default bar of a divergence in nats: above what faithful variants differ by (docs/measurements.md).
const THRESHOLD: f64 = 4e-4;

/// Puts values of a good run into a bad one, in this process.
pub(crate) fn run(args: &GraftArgs) -> Result<u8, Failure> {
    let report = graft(args).map_err(|failure| match failure.code {
        USAGE => failure,
        _ => Failure { code: NOT_MADE, ..failure },
    })?;
    match args.format {
        Format::Text => terminal::data(&report.to_string())?,
        Format::Json => terminal::json(&report)?,
    }
    Ok(report.exit_code())
}

fn graft(args: &GraftArgs) -> Result<GraftReport, Failure> {
    let config = host::config(&args.file)?;
    let (good, bad) = ends(&config, args)?;
    let grafts = args.graft.iter().map(|text| text.parse::<Graft>());
    let grafts = grafts.collect::<Result<Vec<_>, _>>().map_err(Failure::usage)?;
    host::named(&config, &good)?;
    let rules = plant(host::named(&config, &bad)?, &args.plant).map_err(Failure::usage)?;
    let idle = match args.oracle {
        GraftOracle::Needle => args.threshold.map(|_| "--threshold is read with --oracle kl only"),
        GraftOracle::Kl => {
            args.probes.or(args.cases).map(|_| "--probes and --cases are read with --oracle needle only")
        }
    };
    if let Some(text) = idle {
        return Err(Failure::usage(anyhow!("{text}; leave it out, or change --oracle")));
    }
    let threshold = args.threshold.unwrap_or(THRESHOLD);
    if !(threshold.is_finite() && threshold > 0.0) {
        return Err(Failure::usage(anyhow!("--threshold is {threshold}, expected a number above 0")));
    }
    let (tokens, most) = (args.tokens as usize, config.engine.max_context);
    if tokens + DECODE_TOKENS > most {
        return Err(Failure::usage(anyhow!(
            "--tokens {tokens} leaves no room to decode in engine.max_context, {most}; raise it with --set \
             engine.max_context={}",
            tokens + DECODE_TOKENS
        )));
    }

    let host = host::start(&config)?;
    host::announce(&config, &host);
    let layers = host.engine.model().config.num_hidden_layers;
    for graft in &grafts {
        if let Graft::Kv(KvPart { layers: Some(named), .. }) = graft
            && named.max().is_some_and(|last| last as usize >= layers)
        {
            return Err(Failure::usage(anyhow!(
                "graft `{graft}`: the layers of this model are 0 to {}",
                layers - 1
            )));
        }
    }
    let bad = match args.plant.is_empty() {
        true => bad,
        false => {
            host.engine.slots().define(PLANTED, rules).map_err(Failure::usage)?;
            PLANTED.to_owned()
        }
    };
    let plan = GraftPlan {
        good,
        bad,
        grafts,
        kv: args.kv,
        cases: args.cases.map_or(CASES, |cases| cases as usize),
        reverse: !args.no_reverse,
        layers: args.layers,
    };
    // The good end of such a file has one pool for both phases.
    let single = match config.bisect.as_ref().is_some_and(|section| section.single_to_paired) {
        true => Some(host::beside(&config, &host, Topology::Single)?),
        false => None,
    };
    let engines = Engines { good: single.as_ref().unwrap_or(&host.engine), bad: &host.engine };
    let text = Haystack::read(&host.tokenizer, &config.needle.haystack).map_err(Failure::usage)?;
    let bar = host::spinner("grafts");
    let progress = |what: &str| {
        bar.message(what);
        tracing::info!(what, "graft");
    };
    let report = match args.oracle {
        GraftOracle::Needle => {
            let probes = probes(&config, args, &host, &text)?;
            graft::run(engines, &host.tokenizer, Oracle::Needle(&probes), &plan, progress)
        }
        GraftOracle::Kl => {
            let passage =
                Passage::new(&host.tokenizer, &text, tokens, DECODE_TOKENS).map_err(Failure::usage)?;
            let oracle = Oracle::Kl(&passage, threshold);
            graft::run(engines, &host.tokenizer, oracle, &plan, progress)
        }
    };
    bar.finish();
    single.iter().for_each(Engine::shutdown);
    host.engine.shutdown();
    Ok(report?)
}

/// The ends: as they are named, or those of the `bisect` section.
fn ends(config: &Config, args: &GraftArgs) -> Result<(String, String), Failure> {
    let section = config.bisect.as_ref();
    let good = args.good.clone().or_else(|| section.map(|s| s.good.clone()));
    let bad = args.bad.clone().or_else(|| section.map(|s| s.bad.clone())).ok_or_else(|| {
        Failure::usage(anyhow!("the file has no `bisect` section; name the assignment that fails with --bad"))
    })?;
    Ok((good.unwrap_or_else(|| "live".to_owned()), bad))
}

fn probes(config: &Config, args: &GraftArgs, host: &Host, text: &Haystack) -> Result<Vec<Probe>, Failure> {
    let plan = NeedlePlan {
        lengths: vec![args.tokens as usize],
        probes: args.probes.map_or(PROBES, |probes| probes as usize),
        seed: config.needle.seed,
    };
    plan.probes(&host.tokenizer, text).map_err(Failure::usage)
}
