//! The connections of the admin endpoints, through the unix socket and, if it is wanted, the loopback.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use warp::http::{HeaderMap, StatusCode};

use super::actions::Admin;
use super::routes;
use super::socket::user;
use super::who::{Tokens, Who};
use crate::error::ApiError;
use crate::server::ServerError;

/// Connections at one time, at most.
const CONNECTIONS: usize = 64;
/// Time that a client has to send the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// Time that requests in work have to end after the signal to stop.
const GRACE: Duration = Duration::from_secs(2);

/// A second door to the admin endpoints: a listener on the loopback whose requests carry tokens.
#[derive(Debug)]
pub struct AdminTcp {
    listener: TcpListener,
    address: SocketAddr,
    tokens: Arc<Tokens>,
}

impl AdminTcp {
    /// Binds the listener. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`ServerError::AdminTcp`]: the address is not on the loopback, or is taken.
    pub async fn bind(address: SocketAddr, tokens: Tokens) -> Result<Self, ServerError> {
        let refuse = |message: String| ServerError::AdminTcp { address, message };
        if !address.ip().is_loopback() {
            let text =
                "expected an address on the loopback: whoever reaches the admin endpoints can load code";
            return Err(refuse(text.to_owned()));
        }
        let listener = TcpListener::bind(address).await.map_err(|error| refuse(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| refuse(error.to_string()))?;
        Ok(Self { listener, address, tokens: Arc::new(tokens) })
    }

    /// The address in use.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the endpoints until `shutdown` resolves.
    pub async fn serve(self, admin: Arc<Admin>, shutdown: impl Future<Output = ()>) {
        connections(&Door::Tcp(self.listener, self.tokens), &admin, shutdown).await;
    }
}

/// Where connections come from.
pub(super) enum Door {
    Unix(UnixListener),
    Tcp(TcpListener, Arc<Tokens>),
}

/// What is known of the client of a connection before it has said anything.
#[derive(Clone)]
pub(crate) enum Caller {
    /// The kernel says who it is.
    Unix { uid: u32, pid: Option<i32> },
    /// Its requests must say.
    Tcp(Arc<Tokens>),
}

impl Caller {
    /// Who sends a request with these headers, if they may.
    pub(crate) fn who(&self, headers: &HeaderMap) -> Result<Who, ApiError> {
        match self {
            Self::Tcp(tokens) => tokens.check(headers),
            // The directory keeps others out already; this is for a directory that was opened later.
            Self::Unix { uid, .. } if *uid != user() && *uid != 0 => {
                let message = format!("user {uid} is not the one who runs this server, {}", user());
                Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message))
            }
            Self::Unix { uid, pid } => Ok(Who::Unix { uid: *uid, pid: *pid }),
        }
    }
}

/// A connection.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Door {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Caller)> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?;
                Ok((Box::new(stream), Caller::Unix { uid: peer.uid(), pid: peer.pid() }))
            }
            Self::Tcp(listener, tokens) => {
                let (stream, _) = listener.accept().await?;
                Ok((Box::new(stream), Caller::Tcp(tokens.clone())))
            }
        }
    }
}

/// Serves every connection until `shutdown` resolves, then gives running requests a moment.
pub(super) async fn connections(door: &Door, admin: &Arc<Admin>, shutdown: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let (stream, caller) = tokio::select! {
            () = &mut shutdown => break,
            accepted = door.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "an admin connection was not accepted");
                    // Out of descriptors, most likely: they come back.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::warn!(most = CONNECTIONS, "an admin connection was closed: too many");
            continue;
        };
        let service = TowerToHyperService::new(warp::service(routes::filter(admin.clone(), caller)));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an admin connection broke");
            }
        });
    }
    admin.stop();
    if tokio::time::timeout(GRACE, graceful.shutdown()).await.is_err() {
        tracing::warn!("admin requests were still in work at the deadline");
    }
}
