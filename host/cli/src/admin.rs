//! Client of a server's admin endpoints.

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Longest wait for an answer. A swap loads and checks a plugin, and may drain; a reload does so for each assignment.
const PATIENCE: Duration = Duration::from_secs(600);

/// Where the admin endpoints of a server are.
#[derive(Debug, Clone)]
pub(crate) enum Door {
    /// Its unix socket.
    Unix(PathBuf),
    /// Its loopback listener, and the token that it wants.
    Tcp { address: String, token: String },
}

impl fmt::Display for Door {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(out, "admin socket {}", path.display()),
            Self::Tcp { address, .. } => write!(out, "admin listener {address}"),
        }
    }
}

/// Asks the server behind `door` and reads its JSON answer.
///
/// # Errors
/// If nothing listens there, and the server's own message if it refuses.
pub(crate) fn ask<T: DeserializeOwned>(
    door: &Door,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> anyhow::Result<T> {
    let answer = runtime()?.block_on(async {
        tokio::time::timeout(PATIENCE, exchange(door, method, path, body))
            .await
            .unwrap_or_else(|_| Err(anyhow!("the server did not answer within {} s", PATIENCE.as_secs())))
    });
    let (status, bytes) = answer.with_context(|| door.to_string())?;
    if !status.is_success() {
        bail!("{}", refusal(status, &bytes));
    }
    serde_json::from_slice(&bytes)
        .with_context(|| format!("the answer to {path} is not what this program expects"))
}

/// Reads the server-sent events at `path` until `each`, given name and data, breaks or the server ends the stream.
///
/// # Errors
/// As [`ask`], and what `each` breaks with.
pub(crate) fn follow(
    door: &Door,
    path: &str,
    mut each: impl FnMut(&str, &str) -> ControlFlow<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let listen = async {
        let mut response = send(door, Method::GET, path, None).await?;
        if !response.status().is_success() {
            let (status, bytes) = (response.status(), response.into_body().collect().await?.to_bytes());
            bail!("{}", refusal(status, &bytes));
        }
        let mut events = Events::default();
        while let Some(frame) = response.frame().await {
            let Ok(bytes) = frame?.into_data() else { continue };
            for (name, data) in events.push(&bytes) {
                if let ControlFlow::Break(result) = each(&name, &data) {
                    return result;
                }
            }
        }
        Ok(())
    };
    runtime()?.block_on(listen).with_context(|| door.to_string())
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// A connection.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Sends a request; the connection goes on until its answer is read.
async fn send(
    door: &Door,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> anyhow::Result<Response<Incoming>> {
    let hint = "cannot connect; is the server running? Name its socket with --admin, or its file with -c";
    let stream: Box<dyn Stream> = match door {
        Door::Unix(path) => Box::new(UnixStream::connect(path).await.context(hint)?),
        Door::Tcp { address, .. } => Box::new(TcpStream::connect(address).await.context(hint)?),
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // The answer says how it went; how the connection ends does not matter.
    tokio::spawn(async move { drop(connection.await) });
    let bytes = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "hotseam")
        .header("content-type", "application/json");
    if let Door::Tcp { token, .. } = door {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    Ok(sender.send_request(request.body(Full::new(bytes))?).await?)
}

async fn exchange(
    door: &Door,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let response = send(door, method, path, body).await?;
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

/// Server-sent events out of the pieces in which they arrive.
#[derive(Default)]
struct Events {
    /// Bytes of an event that is not whole yet.
    rest: Vec<u8>,
}

impl Events {
    /// The events that `bytes` completes, each name and data.
    fn push(&mut self, bytes: &[u8]) -> Vec<(String, String)> {
        self.rest.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.rest.windows(2).position(|pair| pair == b"\n\n") {
            let block: Vec<u8> = self.rest.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&block);
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            // A block without data is a comment.
            if let Some(data) = field("data:") {
                events.push((field("event:").unwrap_or_default().to_owned(), data.to_owned()));
            }
        }
        events
    }
}

/// The message of an error answer (`{"error": {"message": ...}}`), or the answer itself.
fn refusal(status: StatusCode, bytes: &[u8]) -> String {
    let message = serde_json::from_slice::<Value>(bytes)
        .ok()
        .and_then(|value| value["error"]["message"].as_str().map(str::to_owned));
    message.unwrap_or_else(|| format!("{status}: {}", String::from_utf8_lossy(bytes).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_give_the_servers_message() {
        let body = br#"{"error":{"message":"E-PLUG-100 x: no such plugin","type":"invalid_request_error"}}"#;
        assert_eq!(refusal(StatusCode::BAD_REQUEST, body), "E-PLUG-100 x: no such plugin");
        assert_eq!(refusal(StatusCode::BAD_GATEWAY, b"oops\n"), "502 Bad Gateway: oops");
    }

    #[test]
    fn a_missing_socket_says_what_to_do() {
        let door = Door::Unix("/nonexistent/x.sock".into());
        let error = ask::<Value>(&door, Method::GET, "/slots", None).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("/nonexistent/x.sock") && text.contains("is the server running"), "{text}");
    }

    #[test]
    fn events_are_whole_however_they_arrive() {
        let text =
            b": hello\n\nevent: state\ndata: {\"a\": 1}\n\nevent: swap\ndata: {}\n\ndata: bare\n\nevent: cut";
        let want = [("state", "{\"a\": 1}"), ("swap", "{}"), ("", "bare")];
        for size in [1, 2, 3, 7, 1000] {
            let mut events = Events::default();
            let got: Vec<_> = text.chunks(size).flat_map(|piece| events.push(piece)).collect();
            let got: Vec<_> = got.iter().map(|(name, data)| (name.as_str(), data.as_str())).collect();
            assert_eq!(got, want, "pieces of {size}");
        }
    }
}
