//! Client of a server's admin socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;

/// Longest wait for an answer; a swap loads and checks a plugin.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks the server at `socket` and reads its JSON answer.
///
/// # Errors
/// If nothing listens there, and the server's own message if it refuses.
pub(crate) fn ask<T: DeserializeOwned>(
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async {
        tokio::time::timeout(PATIENCE, exchange(socket.to_owned(), method, path, body))
            .await
            .unwrap_or_else(|_| Err(anyhow!("the server did not answer within {} s", PATIENCE.as_secs())))
    });
    let (status, bytes) = answer.with_context(|| format!("admin socket {}", socket.display()))?;
    if !status.is_success() {
        bail!("{}", refusal(status, &bytes));
    }
    serde_json::from_slice(&bytes)
        .with_context(|| format!("the answer to {path} is not what this program expects"))
}

async fn exchange(
    socket: PathBuf,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = UnixStream::connect(&socket).await.context(
        "cannot connect; is the server running? Name its socket with --admin, or its file with -c",
    )?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    let bytes = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "hotseam")
        .header("content-type", "application/json")
        .body(Full::new(bytes))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let bytes = response.into_body().collect().await?.to_bytes();
    drop(sender);
    // The answer is whole; how the connection ends does not matter.
    let _ = driver.await;
    Ok((status, bytes))
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
        let error = ask::<Value>(Path::new("/nonexistent/x.sock"), Method::GET, "/slots", None).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("/nonexistent/x.sock") && text.contains("is the server running"), "{text}");
    }
}
