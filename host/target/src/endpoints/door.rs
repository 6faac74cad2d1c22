//! Where requests go: to one server, or to both workers of a pair at once, as a router sends them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hotseam_config::{EndpointPlace, WorkerSection};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::http::{Client, Trouble};
use crate::planning::Refused;

/// A room is below this: workers and routers hold it as a signed number.
const ROOMS: u64 = 1 << 63;

/// The public side of what is asked.
#[derive(Debug)]
pub(super) enum Door {
    /// A server, or a router.
    One(Client),
    /// A prefill and a decode worker.
    Pair(Box<Pair>),
}

/// A prefill and a decode worker.
#[derive(Debug)]
pub(super) struct Pair {
    prefill: Client,
    decode: Client,
    /// Where decode workers find the bootstrap registry.
    host: String,
    port: u16,
    /// The next room: every request has its own.
    room: AtomicU64,
}

impl Door {
    /// That of a pair.
    pub(super) fn pair(
        prefill: &WorkerSection,
        decode: &WorkerSection,
        limit: Duration,
    ) -> Result<Self, Refused> {
        let EndpointPlace::Tcp(place) = &prefill.api.place else {
            return Err(
                format!("{}: the bootstrap registry of a prefill worker needs a port", prefill.api).into()
            );
        };
        let (host, port) = place.rsplit_once(':').ok_or("bisect.target.prefill.api has no port")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        Ok(Self::Pair(Box::new(Pair {
            prefill: Client::new(&prefill.api, limit)?,
            decode: Client::new(&decode.api, limit)?,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: port.parse()?,
            // Two searches on one pair, and its other users, must not meet in one room.
            room: AtomicU64::new(now.rotate_left(20) ^ u64::from(std::process::id())),
        })))
    }

    /// Whose answer it is.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::One(api) => api.name(),
            Self::Pair(pair) => pair.decode.name(),
        }
    }

    /// The room of the last request to a pair.
    pub(super) fn last_room(&self) -> Option<u64> {
        match self {
            Self::One(_) => None,
            Self::Pair(pair) => Some(pair.room.load(Ordering::Relaxed).wrapping_sub(1) % ROOMS),
        }
    }

    /// Puts a request and reads the JSON answer.
    pub(super) fn post<T: DeserializeOwned>(&self, path: &str, body: Value) -> Result<T, Trouble> {
        match self {
            Self::One(api) => api.ask("POST", path, Some(&body)),
            Self::Pair(pair) => pair.post(path, body),
        }
    }
}

impl Pair {
    fn post<T: DeserializeOwned>(&self, path: &str, mut body: Value) -> Result<T, Trouble> {
        body["bootstrap_host"] = json!(self.host);
        body["bootstrap_port"] = json!(self.port);
        body["bootstrap_room"] = json!(self.room.fetch_add(1, Ordering::Relaxed) % ROOMS);
        let (prefilled, decoded) = std::thread::scope(|scope| {
            let prefill = scope.spawn(|| self.prefill.ask::<Value>("POST", path, Some(&body)));
            let decoded = self.decode.ask::<T>("POST", path, Some(&body));
            let ended = prefill.join().unwrap_or_else(|_| {
                let place = self.prefill.name().to_owned();
                Err(Trouble::Broken { place, message: "the request panicked".to_owned() })
            });
            (ended, decoded)
        });
        match (decoded, prefilled) {
            (Ok(answer), _) => Ok(answer),
            // Decode says that prefill failed; prefill says at which call.
            (Err(_), Err(Trouble::Refused { place, status, code, message }))
                if code.starts_with("E-PLUG") =>
            {
                Err(Trouble::Refused { place, status, code, message })
            }
            (Err(trouble), _) => Err(trouble),
        }
    }
}
