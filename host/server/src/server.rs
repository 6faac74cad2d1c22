//! The public server: bind, serve, drain.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::lifecycle::{Life, Lifecycle};
use crate::live::Live;
use crate::public::{self, Public, Served};

/// Limits of the public server.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Choices that run or wait at one time; more get 429.
    pub max_choices: usize,
    /// Bytes of a request body; more get 413.
    pub body_limit: usize,
    /// Time that running requests have to end after the signal to stop.
    pub grace: Duration,
}

impl ServerOptions {
    /// Default limits: 128 choices, 8 MiB, 10 s.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, max_choices: 128, body_limit: 8 << 20, grace: Duration::from_secs(10) }
    }
}

/// Failure to start a listener.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; choose another address with --set server.listen=HOST:PORT"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The audit log cannot be opened.
    #[error("cannot open the audit log {}: {message}; choose another with --set server.audit=PATH", .path.display())]
    Audit {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong and what to do.
        message: String,
    },
    /// The loopback listener of the admin endpoints cannot be made.
    #[error("cannot make the admin listener on {address}: {message}")]
    AdminTcp {
        /// The address.
        address: SocketAddr,
        /// What is wrong and what to do.
        message: String,
    },
    /// The admin socket cannot be made.
    #[error("cannot make the admin socket {}: {message}", .path.display())]
    Admin {
        /// The socket.
        path: std::path::PathBuf,
        /// What is wrong and what to do.
        message: String,
    },
}

/// A bound public listener.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    public: Arc<Public>,
    grace: Duration,
}

/// Marks a server as ready, from wherever the model is loaded.
#[derive(Clone)]
pub struct ServerHandle(Arc<Public>);

impl ServerHandle {
    /// Begins to serve. A second call changes nothing.
    pub fn serve(&self, served: Served) {
        if self.0.served.set(served).is_ok() {
            self.0.life.advance(Life::Ready);
        }
    }

    /// What the server is doing.
    pub fn life(&self) -> Life {
        self.0.life.now()
    }
}

impl Server {
    /// Binds the listener. Connections wait until [`run`](Self::run).
    ///
    /// # Errors
    /// [`ServerError::Listen`] naming the address.
    pub async fn bind(options: ServerOptions) -> Result<Self, ServerError> {
        let listen = |source| ServerError::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let public = Arc::new(Public {
            served: OnceLock::new(),
            life: Lifecycle::new(),
            choices: Arc::new(Semaphore::new(options.max_choices)),
            live: Live::default(),
            body_limit: options.body_limit,
        });
        Ok(Self { listener, address, public, grace: options.grace })
    }

    /// The address in use.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle for whoever loads the model. Until it is used, requests get 503 and `/ready` says so.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(self.public.clone())
    }

    /// Serves until `shutdown` resolves, then drains: new requests get 503, running ones have the grace time,
    /// then end with an error.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let life = self.public.life.clone();
        let draining = life.clone();
        let server = warp::serve(public::filter(self.public))
            .incoming(self.listener)
            .graceful(async move { draining.reached(Life::Draining).await });
        let mut server = tokio::spawn(server.run());
        tokio::select! {
            () = shutdown => {}
            _ = &mut server => return,
        }
        tracing::info!(grace_seconds = self.grace.as_secs(), "draining");
        life.advance(Life::Draining);
        if tokio::time::timeout(self.grace, &mut server).await.is_ok() {
            return;
        }
        life.advance(Life::Cut);
        // Connections that do not even close now are left to the end of the process.
        if tokio::time::timeout(Duration::from_secs(2), &mut server).await.is_err() {
            tracing::warn!("connections were still open at the deadline");
            server.abort();
        }
    }
}
