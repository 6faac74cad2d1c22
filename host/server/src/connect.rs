//! CONNECT is for proxies. Its target has no path, and asking warp for one would panic, so it is refused first.

use warp::http::{Method, StatusCode};
use warp::reply::{Reply, Response};
use warp::{Filter, Rejection};

use crate::error::ApiError;

/// `served`, with CONNECT answered by an error in OpenAI's shape before it.
pub(crate) fn refused_before<F>(
    served: F,
) -> impl Filter<Extract = (Response,), Error = Rejection> + Clone + Send + Sync + 'static
where
    F: Filter<Extract = (Response,), Error = Rejection> + Clone + Send + Sync + 'static,
{
    let other = warp::method().and_then(|method: Method| async move {
        match method == Method::CONNECT {
            true => Err(warp::reject::reject()),
            false => Ok(()),
        }
    });
    let refuse = || async {
        let message = "CONNECT is not served here; this is no proxy";
        let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message);
        Ok::<_, Rejection>(error.into_response())
    };
    other.untuple_one().and(served).or(warp::any().and_then(refuse)).unify()
}
