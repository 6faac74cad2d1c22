//! `hotseam serve`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use hotseam_config::Config;
use hotseam_server::admin::{AdminSocket, default_admin_path};
use hotseam_server::{ModelInfo, Served, Server, ServerOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::args::ServeArgs;
use crate::failure::Failure;
use crate::host::{self, Host};
use crate::terminal;

/// Exit code after a second signal, as a shell reports an interrupt.
const INTERRUPTED: i32 = 130;

/// Serves until SIGINT or SIGTERM, then drains. A second signal ends at once.
pub(crate) fn run(args: &ServeArgs) -> Result<u8, Failure> {
    let config = host::guarded_config(&args.file)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("hotseam-http")
        .enable_all()
        .build()
        .context("cannot start the HTTP runtime")?;
    let result = runtime.block_on(serve(config));
    // Loading runs on a blocking thread that nothing can interrupt.
    runtime.shutdown_background();
    result
}

async fn serve(config: Config) -> Result<u8, Failure> {
    // The listener first: a taken port costs no loading, and /health answers while the model loads.
    let server = Server::bind(ServerOptions::new(config.server.listen)).await.map_err(Failure::usage)?;
    let address = server.address();
    let admin_path = config.server.admin.clone().unwrap_or_else(|| default_admin_path(address.port()));
    let admin = AdminSocket::bind(&admin_path).map_err(Failure::usage)?;
    let handle = server.handle();
    let (stop, stopped) = watch::channel(false);
    let mut signals = Signals::new()?;
    let serving = tokio::spawn(server.run(until(stopped.clone())));

    let name = host::model_name(&config);
    let max_context = config.engine.max_context;
    let loading = tokio::task::spawn_blocking(move || host::start(&config));
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
    let administering = tokio::spawn(admin.run(engine.clone(), name.clone(), until(stopped)));
    handle.serve(Served { backend: Arc::new(engine.clone()), tokenizer, model: info });

    terminal::data(&format!("http://{address}"))?;
    terminal::talk(&format!(
        "serving {name} on http://{address}\nadmin socket {path}\nswap with:  hotseam swap SELECTOR VARIANT --admin {path}",
        path = admin_path.display()
    ));
    signals.next().await;
    terminal::talk("draining; press Ctrl-C again to end at once");
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(INTERRUPTED);
    });
    // The receivers live in the tasks that are awaited next.
    let _ = stop.send(true);
    let _ = serving.await;
    let _ = administering.await;
    engine.shutdown();
    Ok(0)
}

/// Resolves when `stopped` becomes true or its sender is gone.
async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
