//! Request bodies of bounded size, with or without `Content-Length`.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio_stream::{Stream, StreamExt};
use warp::http::header::CONTENT_LENGTH;
use warp::http::{HeaderMap, StatusCode};

use crate::error::ApiError;

/// Time a client has to send its body.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads a whole body of at most `limit` bytes.
///
/// `warp::body::content_length_limit` would refuse chunked bodies with 411, so the bytes are counted here.
pub(crate) async fn read<B: Buf>(
    body: impl Stream<Item = Result<B, warp::Error>>,
    headers: &HeaderMap,
    limit: usize,
) -> Result<BytesMut, ApiError> {
    let too_large = || {
        let message = format!("the request body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    };
    let declared = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let collect = async {
        let mut body = std::pin::pin!(body);
        let mut bytes = BytesMut::with_capacity(declared.unwrap_or(0));
        while let Some(piece) = body.next().await {
            let mut piece = piece.map_err(|_| {
                let message = "the connection ended before the request body was complete";
                ApiError::new(StatusCode::BAD_REQUEST, "incomplete_body", message)
            })?;
            if bytes.len() + piece.remaining() > limit {
                return Err(too_large());
            }
            while piece.has_remaining() {
                let length = piece.chunk().len();
                bytes.extend_from_slice(piece.chunk());
                piece.advance(length);
            }
        }
        Ok(bytes)
    };
    tokio::time::timeout(PATIENCE, collect).await.unwrap_or_else(|_| {
        let message = format!("the request body did not arrive within {} s", PATIENCE.as_secs());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message))
    })
}
