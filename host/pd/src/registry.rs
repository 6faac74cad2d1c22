//! The bootstrap registry of a prefill worker: its ranks, as decode workers ask for them, and which rank has which room. It has
//! the routes, fields and status codes of SGLang's (`disaggregation/common/conn.py`, `CommonKVBootstrapServer`).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ranks of one worker, at most.
const MOST_RANKS: u64 = 4096;
/// Rooms whose rank is remembered; the oldest goes first.
const MOST_ROOMS: usize = 65536;

/// A rank of a prefill worker, as `PUT /route` takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rank {
    /// Tensor-parallel ranks of the attention.
    pub attn_tp_size: u64,
    /// Which of them this is.
    pub attn_tp_rank: u64,
    /// Context-parallel ranks.
    pub attn_cp_size: u64,
    /// Which of them this is.
    pub attn_cp_rank: u64,
    /// Data-parallel ranks of the attention.
    pub attn_dp_size: u64,
    /// Which of them this is.
    pub attn_dp_rank: u64,
    /// Pipeline ranks.
    pub pp_size: u64,
    /// Which of them this is.
    pub pp_rank: u64,
    /// Data-parallel copies of the whole worker.
    pub system_dp_size: u64,
    /// Which of them this is.
    pub system_dp_rank: u64,
    /// Address at which decode workers reach the rank.
    pub rank_ip: String,
    /// Port there.
    pub rank_port: u16,
    /// Positions of a KV page.
    pub page_size: u64,
    /// Form of the KV entries.
    pub kv_cache_dtype: String,
    /// Port of the worker's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_http_port: Option<u16>,
    /// How requests are spread over ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balance_method: Option<String>,
}

impl Rank {
    /// The only rank of a worker.
    pub fn only(rank_ip: String, rank_port: u16, page_size: u64, kv_cache_dtype: String) -> Self {
        Self {
            attn_tp_size: 1,
            attn_tp_rank: 0,
            attn_cp_size: 1,
            attn_cp_rank: 0,
            attn_dp_size: 1,
            attn_dp_rank: 0,
            pp_size: 1,
            pp_rank: 0,
            system_dp_size: 1,
            system_dp_rank: 0,
            rank_ip,
            rank_port,
            page_size,
            kv_cache_dtype,
            prefill_http_port: None,
            load_balance_method: None,
        }
    }

    /// Data-parallel ranks, and which this is: those of the attention, or else of whole workers.
    fn dp(&self) -> (u64, u64) {
        match self.system_dp_size {
            1 => (self.attn_dp_size, self.attn_dp_rank),
            size => (size, self.system_dp_rank),
        }
    }

    /// What tells a registration that cannot be.
    fn check(&self) -> Result<(), String> {
        let pairs = [
            ("attn_tp", self.attn_tp_size, self.attn_tp_rank),
            ("attn_cp", self.attn_cp_size, self.attn_cp_rank),
            ("attn_dp", self.attn_dp_size, self.attn_dp_rank),
            ("pp", self.pp_size, self.pp_rank),
            ("system_dp", self.system_dp_size, self.system_dp_rank),
        ];
        if let Some((name, size, rank)) = pairs.iter().find(|(_, size, rank)| rank >= size) {
            return Err(format!(
                "{name}_rank is {rank}, expected 0 to {name}_size - 1, and {name}_size is {size}"
            ));
        }
        let all = pairs.iter().try_fold(1u64, |all, (_, size, _)| all.checked_mul(*size));
        match all {
            Some(1..=MOST_RANKS) if self.rank_port > 0 && !self.rank_ip.is_empty() => Ok(()),
            Some(1..=MOST_RANKS) => Err("rank_ip and rank_port must name an address".to_owned()),
            _ => Err(format!("the sizes make more than {MOST_RANKS} ranks")),
        }
    }
}

/// Where a rank stands: data, context, tensor and pipeline parallel.
type Place = (u64, u64, u64, u64);

#[derive(Debug, Default)]
struct Inner {
    ranks: BTreeMap<Place, Rank>,
    rooms: HashMap<u64, u64>,
    order: VecDeque<u64>,
}

/// The registry.
#[derive(Debug, Default)]
pub struct Registry(Mutex<Inner>);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegisterRoom {
    bootstrap_room: u64,
    dp_rank: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryRooms {
    bootstrap_rooms: Vec<u64>,
}

/// Status and body of an answer.
type Answer = (u16, Value);

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before the lock is released.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a path is one of the registry's own.
    pub fn serves(path: &str) -> bool {
        matches!(path, "/route" | "/register_dp_rank" | "/query_dp_ranks")
    }

    /// Answers a request to one of its paths, `query` without the question mark.
    pub fn answer(&self, method: &str, path: &str, query: &str, body: &[u8]) -> Answer {
        match (method, path) {
            ("PUT", "/route") => match serde_json::from_slice::<Rank>(body) {
                Ok(rank) => self.put(rank),
                Err(error) => (400, json!(format!("registration: {error}"))),
            },
            ("GET", "/route") => self.route(query),
            ("POST", "/register_dp_rank") => match serde_json::from_slice::<RegisterRoom>(body) {
                Ok(room) => self.register(&room),
                Err(error) => (400, json!(format!("expected bootstrap_room and dp_rank: {error}"))),
            },
            ("POST", "/query_dp_ranks") => match serde_json::from_slice::<QueryRooms>(body) {
                Ok(query) => self.query(&query.bootstrap_rooms),
                Err(error) => (400, json!(format!("expected bootstrap_rooms: {error}"))),
            },
            (_, "/route") => (405, json!("GET and PUT are served here")),
            _ => (405, json!("POST is served here")),
        }
    }

    /// `PUT /route`.
    pub fn put(&self, rank: Rank) -> Answer {
        if let Err(why) = rank.check() {
            return (400, json!(format!("registration: {why}")));
        }
        let place = (rank.dp().1, rank.attn_cp_rank, rank.attn_tp_rank, rank.pp_rank);
        let mut inner = self.lock();
        let sizes = |r: &Rank| {
            (r.attn_tp_size, r.attn_cp_size, r.dp().0, r.pp_size, r.page_size, r.kv_cache_dtype.clone())
        };
        // A worker that is started anew with other sizes replaces what it was.
        inner.ranks.retain(|_, known| sizes(known) == sizes(&rank));
        inner.ranks.insert(place, rank);
        (200, json!("OK"))
    }

    fn route(&self, query: &str) -> Answer {
        let number = |name: &str| -> Result<i64, String> {
            let mut values =
                query.split('&').filter_map(|pair| pair.split_once('=')).filter(|(key, _)| *key == name);
            let (_, value) = values.next().ok_or_else(|| format!("the query lacks {name}"))?;
            value.parse().map_err(|_| format!("{name} is no number"))
        };
        let names = ["prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"];
        let [dp, cp, tp, pp] = match names.map(number) {
            [Ok(dp), Ok(cp), Ok(tp), Ok(pp)] => [dp, cp, tp, pp],
            found => {
                let why = found.into_iter().find_map(Result::err).unwrap_or_default();
                return (400, json!(why));
            }
        };
        let inner = self.lock();
        if [dp, cp, tp, pp] == [-1; 4] {
            let Some(first) = inner.ranks.values().next() else {
                return (503, json!("no rank has registered yet"));
            };
            let (dp_size, _) = first.dp();
            let expected = dp_size * first.attn_cp_size * first.attn_tp_size * first.pp_size;
            if (inner.ranks.len() as u64) < expected {
                return (503, json!(format!("{} of {expected} ranks have registered", inner.ranks.len())));
            }
            return (200, topology(first, dp_size));
        }
        let place = [dp, cp, tp, pp].map(|n| u64::try_from(n).unwrap_or(u64::MAX));
        match inner.ranks.get(&(place[0], place[1], place[2], place[3])) {
            Some(rank) => (200, json!({ "rank_ip": rank.rank_ip, "rank_port": rank.rank_port })),
            None => (404, json!("no such rank has registered")),
        }
    }

    fn register(&self, room: &RegisterRoom) -> Answer {
        let inner = &mut *self.lock();
        if inner.rooms.insert(room.bootstrap_room, room.dp_rank).is_none() {
            inner.order.push_back(room.bootstrap_room);
        }
        while inner.order.len() > MOST_ROOMS {
            if let Some(oldest) = inner.order.pop_front() {
                inner.rooms.remove(&oldest);
            }
        }
        (200, json!("OK"))
    }

    fn query(&self, rooms: &[u64]) -> Answer {
        let inner = self.lock();
        let known = rooms.iter().filter_map(|room| Some((room.to_string(), json!(inner.rooms.get(room)?))));
        (200, Value::Object(known.collect()))
    }
}

fn topology(rank: &Rank, dp_size: u64) -> Value {
    json!({
        "attn_tp_size": rank.attn_tp_size,
        "attn_cp_size": rank.attn_cp_size,
        "dp_size": dp_size,
        "pp_size": rank.pp_size,
        "page_size": rank.page_size,
        "kv_cache_dtype": rank.kv_cache_dtype,
        "prefill_http_port": rank.prefill_http_port,
        "follow_bootstrap_room": rank.load_balance_method.as_deref().is_none_or(|m| m == "follow_bootstrap_room"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1";

    fn rank(tp: u64) -> Rank {
        let only = Rank::only("127.0.0.1".into(), 4000 + tp as u16, 256, "kv_f32".into());
        Rank { attn_tp_size: 2, attn_tp_rank: tp, ..only }
    }

    fn put(registry: &Registry, rank: &Rank) -> Answer {
        registry.answer("PUT", "/route", "", &serde_json::to_vec(rank).unwrap())
    }

    #[test]
    fn topology_is_told_once_every_rank_has_registered() {
        let registry = Registry::default();
        let route = |query: &str| registry.answer("GET", "/route", query, b"");
        assert_eq!(route(ALL).0, 503);
        assert_eq!(put(&registry, &rank(0)).0, 200);
        assert_eq!(route(ALL), (503, json!("1 of 2 ranks have registered")));
        assert_eq!(put(&registry, &rank(1)).0, 200);
        let (status, found) = route(ALL);
        assert_eq!((status, &found["attn_tp_size"], &found["page_size"]), (200, &json!(2), &json!(256)));
        let one = "prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=1&target_pp_rank=0";
        assert_eq!(route(one), (200, json!({ "rank_ip": "127.0.0.1", "rank_port": 4001 })));
        let unknown = "prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=7&target_pp_rank=0";
        assert_eq!(route(unknown).0, 404);
        for query in
            ["", "prefill_dp_rank=0", "prefill_dp_rank=x&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0"]
        {
            assert_eq!(route(query).0, 400, "{query}");
        }
        // Started anew with one rank.
        assert_eq!(put(&registry, &Rank { attn_tp_size: 1, ..rank(0) }).0, 200);
        assert_eq!(route(ALL).1["attn_tp_size"], json!(1));
    }

    #[test]
    fn registrations_that_cannot_be_are_refused_by_name() {
        let registry = Registry::default();
        let bad = |rank: Rank, text: &str| {
            let (status, message) = put(&registry, &rank);
            assert!(status == 400 && message.as_str().unwrap().contains(text), "{message}");
        };
        bad(Rank { attn_tp_rank: 2, ..rank(0) }, "attn_tp_rank is 2");
        bad(Rank { pp_size: u64::MAX, attn_cp_size: 3, ..rank(0) }, "more than 4096 ranks");
        bad(Rank { rank_port: 0, ..rank(0) }, "rank_port");
        for body in [&b""[..], b"{}", b"[]", b"\xff", br#"{"attn_tp_size": -1}"#] {
            assert_eq!(registry.answer("PUT", "/route", "", body).0, 400);
            assert_eq!(registry.answer("POST", "/register_dp_rank", "", body).0, 400);
            assert_eq!(registry.answer("POST", "/query_dp_ranks", "", body).0, 400);
        }
        assert_eq!(registry.answer("DELETE", "/route", "", b"").0, 405);
        assert_eq!(registry.answer("GET", "/query_dp_ranks", "", b"").0, 405);
    }

    #[test]
    fn rooms_have_ranks() {
        let registry = Registry::default();
        let room = u64::MAX >> 1;
        let body = format!(r#"{{"bootstrap_room": {room}, "dp_rank": 3}}"#);
        assert_eq!(registry.answer("POST", "/register_dp_rank", "", body.as_bytes()).0, 200);
        let body = format!(r#"{{"bootstrap_rooms": [{room}, 1]}}"#);
        let (status, found) = registry.answer("POST", "/query_dp_ranks", "", body.as_bytes());
        assert_eq!((status, found), (200, json!({ room.to_string(): 3 })));
    }
}
