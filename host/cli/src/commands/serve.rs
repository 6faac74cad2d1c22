//! `hotseam serve`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use hotseam_config::Config;
use hotseam_server::admin::{
    Admin, AdminSocket, AdminTcp, Audit, ReloadRequest, Tokens, Who, default_admin_path,
};
use hotseam_server::{ModelInfo, Served, Server, ServerError, ServerOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::args::ServeArgs;
use crate::commands::live;
use crate::failure::Failure;
use crate::host::{self, ConfigSource, Host};
use crate::terminal;

/// Exit code after a second signal, as a shell reports an interrupt.
const INTERRUPTED: i32 = 130;

/// Serves until SIGINT or SIGTERM, then drains. A second signal ends at once.
pub(crate) fn run(args: &ServeArgs) -> Result<u8, Failure> {
    let config = host::guarded_config(&args.file)?;
    let source = ConfigSource { file: host::guarded_file(&args.file), in_use: config.clone() };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("hotseam-http")
        .enable_all()
        .build()
        .context("cannot start the HTTP runtime")?;
    let result = runtime.block_on(serve(config, source));
    // Loading runs on a blocking thread that nothing can interrupt.
    runtime.shutdown_background();
    result
}

async fn serve(config: Config, source: ConfigSource) -> Result<u8, Failure> {
    // The listener first: a taken port costs no loading, and whoever asks while the model loads hears so.
    let server = Server::bind(ServerOptions::new(config.server.listen)).await.map_err(Failure::usage)?;
    let address = server.address();
    let admin_path = config.server.admin.clone().unwrap_or_else(|| default_admin_path(address.port()));
    let socket = AdminSocket::bind(&admin_path).map_err(|error| match &config.server.admin {
        Some(_) => Failure::usage(config.error_at("server.admin", error.to_string())),
        None => Failure::usage(error),
    })?;
    let tcp = admin_tcp(&config).await?;
    let audit = audit(&config)?;
    let handle = server.handle();
    let (stop, stopped) = watch::channel(false);
    let mut signals = Signals::new()?;
    let mut hangup = listen(SignalKind::hangup())?;
    let serving = tokio::spawn(server.run(until(stopped.clone())));

    let name = host::model_name(&config);
    let max_context = config.engine.max_context;
    let names: Vec<String> = config.assignments.iter().map(|(name, _)| name.to_owned()).collect();
    let loading = tokio::task::spawn_blocking(move || host::start_server(&config));
    let host = tokio::select! {
        loaded = loading => loaded.map_err(|_| anyhow!("loading the model panicked"))?,
        () = signals.next() => return Ok(0),
    };
    let Host { engine, tokenizer } = host?;
    let info = ModelInfo {
        id: name.clone(),
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        max_context,
        vocab_size: engine.model().config.vocab_size,
    };
    let audit_path = audit.as_ref().map(|audit| audit.path().to_owned());
    let mut admin = Admin::new(engine.clone(), name.clone()).with_reload(Box::new(source), names);
    match audit {
        Some(audit) => admin = admin.with_audit(audit).context("cannot start the audit log")?,
        // Nothing is written down, whoever asks.
        None => engine.swaps().ask_first(|_| Ok(())),
    }
    let admin = Arc::new(admin);
    let mut administering = vec![tokio::spawn(socket.serve(admin.clone(), until(stopped.clone())))];
    let tcp_address = tcp.as_ref().map(AdminTcp::address);
    if let Some(tcp) = tcp {
        administering.push(tokio::spawn(tcp.serve(admin.clone(), until(stopped))));
    }
    handle.serve(Served { backend: Arc::new(engine.clone()), tokenizer, model: info });

    terminal::data(&format!("http://{address}"))?;
    terminal::talk(&format!(
        "serving {name} on http://{address}\nadmin socket {path}\nswap with:  hotseam swap SELECTOR VARIANT --admin {path}",
        path = admin_path.display()
    ));
    if let Some(control) = engine.control() {
        terminal::talk(&format!(
            "prefill worker: bootstrap registry on port {}, control on {control}",
            address.port()
        ));
    }
    if let Some(address) = tcp_address {
        terminal::talk(&format!("admin listener http://{address}, with a token"));
    }
    match audit_path {
        Some(path) => terminal::talk(&format!("audit log {}", path.display())),
        None => terminal::talk("no audit log; name one with --set server.audit=PATH"),
    }
    loop {
        tokio::select! {
            () = signals.next() => break,
            _ = hangup.recv() => reload(admin.clone()),
        }
    }
    terminal::talk("draining; press Ctrl-C again to end at once");
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(INTERRUPTED);
    });
    // The receivers live in the tasks that are awaited next.
    let _ = stop.send(true);
    let _ = serving.await;
    for task in administering {
        let _ = task.await;
    }
    engine.shutdown();
    Ok(0)
}

/// The loopback listener of the admin endpoints, if the file wants one.
async fn admin_tcp(config: &Config) -> Result<Option<AdminTcp>, Failure> {
    let Some(section) = &config.server.admin_tcp else { return Ok(None) };
    let refuse = |field: &str, message: String| {
        Failure::usage(config.error_at(&format!("server.admin_tcp.{field}"), message))
    };
    let tokens = Tokens::read(&section.tokens).map_err(|error| refuse("tokens", error))?;
    let tcp = AdminTcp::bind(section.listen, tokens).await;
    tcp.map(Some).map_err(|error| refuse("listen", error.to_string()))
}

/// The audit log: where the file says, or in the state directory.
fn audit(config: &Config) -> Result<Option<Audit>, Failure> {
    if let Some(path) = &config.server.audit {
        let refuse = |error: ServerError| Failure::usage(config.error_at("server.audit", error.to_string()));
        return Audit::open(path).map(Some).map_err(refuse);
    }
    let Some(directory) = config.plugins.state_dir() else { return Ok(None) };
    match Audit::open(&directory.join("audit.jsonl")) {
        // Nobody asked for this directory by name: a read-only home is no reason to stop.
        Err(error) if config.plugins.state_dir.is_none() => {
            tracing::warn!(%error, "changes are not written down");
            Ok(None)
        }
        opened => opened.map(Some).map_err(Failure::usage),
    }
}

/// Reads the file again, where it may block; how it went is told on stderr.
fn reload(admin: Arc<Admin>) {
    tokio::task::spawn_blocking(move || {
        match admin.reload(&Who::Signal("SIGHUP"), &ReloadRequest::default()) {
            Ok(answer) => terminal::talk(live::reloaded(&answer).trim_end()),
            Err(error) => terminal::talk(&format!("reload refused, nothing was changed: {}", error.message)),
        }
    });
}

/// Resolves when `stopped` becomes true or its sender is gone.
async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn listen(kind: SignalKind) -> anyhow::Result<Signal> {
    signal(kind).context("cannot listen for signals")
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
