//! Makes an engine of this process reachable, for oracles that are commands.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hotseam_config::Config;
use hotseam_encoding::Tokenizer;
use hotseam_engine::Engine;
use hotseam_server::admin::{AdminSocket, default_admin_path};
use hotseam_server::{ModelInfo, Served, Server, ServerOptions};
use hotseam_target::{Expose, Exposed, Places};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::model_name;

/// Time that requests have to end when an engine is no longer to be reached.
const GRACE: Duration = Duration::from_secs(1);

/// Serves each engine on a free port of the loopback and on an admin socket, with a file of the effective configuration
/// beside the socket.
pub(crate) fn expose(config: &Config) -> Expose {
    let config = config.clone();
    Box::new(move |engine, tokenizer| serve(engine, tokenizer, &config).map_err(|error| format!("{error:#}")))
}

fn serve(engine: &Engine, tokenizer: &Tokenizer, config: &Config) -> anyhow::Result<Exposed> {
    let name = model_name(config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("hotseam-http")
        .enable_all()
        .build()
        .context("cannot start the HTTP runtime")?;
    let (stop, stopped) = watch::channel(false);
    let places = runtime.block_on(async {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Server::bind(ServerOptions { grace: GRACE, ..ServerOptions::new(listen) }).await?;
        let address = server.address();
        let admin = AdminSocket::bind(&default_admin_path(address.port()))?;
        let file = admin.path().with_extension("yaml");
        std::fs::write(&file, serde_yaml::to_string(config)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let places = Places {
            admin: vec![format!("unix:{}", admin.path().display())],
            api: Some(format!("http://{address}")),
            config: Some(file.clone()),
        };
        let model = ModelInfo {
            id: name.clone(),
            created: 0,
            max_context: engine.config().max_context,
            vocab_size: engine.model().config.vocab_size,
        };
        let backend = Arc::new(engine.clone());
        server.handle().serve(Served { backend, tokenizer: tokenizer.clone(), model });
        tokio::spawn(server.run(until(stopped.clone())));
        tokio::spawn(admin.run(engine.clone(), name, until(stopped)));
        anyhow::Ok((places, file))
    })?;
    let (places, file) = places;
    Ok(Exposed { places, guard: Box::new(Serving { runtime: Some(runtime), stop, file }) })
}

/// Ends the servers when dropped.
struct Serving {
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    file: PathBuf,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The receivers are in the tasks; if those have ended there is nothing to stop.
        let _ = self.stop.send(true);
        let _ = std::fs::remove_file(&self.file);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(GRACE);
        }
    }
}

/// Resolves when `stopped` becomes true or its sender is gone.
async fn until(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}
