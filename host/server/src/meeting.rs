//! Where the two workers of a disaggregated request meet: what routers put into a body, and what a prefill worker answers.
//!
//! Two contracts. The routers of SGLang send prefill and decode the same body at the same time, with `bootstrap_host`,
//! `bootstrap_port` and `bootstrap_room`. The router of vLLM asks prefill first and gives decode the `kv_transfer_params`
//! of prefill's answer.

use hotseam_engine::{Bootstrap, Request, Role};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::id;

/// Names of the fields that [`take`] reads.
pub(crate) const FIELDS: [&str; 4] =
    ["bootstrap_host", "bootstrap_port", "bootstrap_room", "kv_transfer_params"];
/// A room is below this: routers hold it as a signed number.
const ROOMS: u64 = 1 << 63;
/// Room of the choices of one prompt that a router gave one room: this times the number of the choice is mixed in.
const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// What a body says of the meeting.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Meeting {
    /// One place for all, for each prompt or for each choice, in order.
    Rooms(Vec<Place>),
    /// Prefill is to keep its KV until decode asks.
    Hold,
    /// Decode finds the KV of each choice there.
    Held(Vec<Place>),
}

/// One entry of the bootstrap fields.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Place {
    host: String,
    port: u16,
    room: u64,
}

/// Reads the fields of both contracts.
pub(crate) fn take(fields: &mut Fields) -> Result<Option<Meeting>, ApiError> {
    let rooms = rooms(fields)?;
    let params = match fields.object("kv_transfer_params")? {
        Some(params) => transfer(params)?,
        None => None,
    };
    if rooms.is_some() && params.is_some() {
        let message = "only allowed without `bootstrap_room`; a request has one router";
        return Err(ApiError::field("kv_transfer_params", "invalid_value", message));
    }
    Ok(rooms.map(Meeting::Rooms).or(params))
}

fn rooms(fields: &mut Fields) -> Result<Option<Vec<Place>>, ApiError> {
    let hosts = list(fields, "bootstrap_host", "a string", |value| value.as_str().map(str::to_owned))?;
    let expected = "a port, or the router was not told it: `--prefill URL PORT`";
    let port = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
    let ports = list(fields, "bootstrap_port", expected, port)?;
    let rooms = list(fields, "bootstrap_room", ROOM, room)?;
    let (hosts, ports, rooms) = match (hosts, ports, rooms) {
        (None, None, None) => return Ok(None),
        (Some(hosts), Some(ports), Some(rooms)) => (hosts, ports, rooms),
        (None, _, _) => return Err(ApiError::missing("bootstrap_host", "with the other bootstrap fields")),
        (_, None, _) => return Err(ApiError::missing("bootstrap_port", expected)),
        (_, _, None) => return Err(ApiError::missing("bootstrap_room", "with the other bootstrap fields")),
    };
    for (name, count) in [("bootstrap_host", hosts.len()), ("bootstrap_port", ports.len())] {
        if count != rooms.len() {
            let expected = format!("as many as `bootstrap_room`, {}", rooms.len());
            return Err(ApiError::out_of_range(name, &expected, count));
        }
    }
    let places = hosts.into_iter().zip(ports).zip(rooms);
    Ok(Some(places.map(|((host, port), room)| Place { host, port, room }).collect()))
}

const ROOM: &str = "an integer from 0 to 9223372036854775807";

fn room(value: &Value) -> Option<u64> {
    value.as_u64().filter(|room| *room < ROOMS)
}

/// A value or a list of values; how many are allowed is known later.
fn list<T>(
    fields: &mut Fields,
    name: &str,
    expected: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<Vec<T>>, ApiError> {
    let path = fields.path(name);
    let items = match fields.take(name) {
        None => return Ok(None),
        Some(Value::Array(items)) => items,
        Some(one) => vec![one],
    };
    let wrong = |item: &Value| match item {
        Value::Number(found) => ApiError::out_of_range(&path, expected, found),
        other => ApiError::wrong_type(&path, expected, other),
    };
    items.iter().map(|item| read(item).ok_or_else(|| wrong(item))).collect::<Result<_, _>>().map(Some)
}

fn transfer(mut params: Fields) -> Result<Option<Meeting>, ApiError> {
    let hold = params.boolean("do_remote_decode")?.unwrap_or(false);
    let held = params.boolean("do_remote_prefill")?.unwrap_or(false);
    let path = |name: &str| format!("kv_transfer_params.{name}");
    let host = params.string("remote_host")?;
    let port = params.size("remote_port", 1, u32::from(u16::MAX))?;
    let rooms = list(&mut params, "remote_block_ids", ROOM, room)?;
    params.string("remote_engine_id")?;
    let known = [
        "do_remote_decode",
        "do_remote_prefill",
        "remote_engine_id",
        "remote_block_ids",
        "remote_host",
        "remote_port",
    ];
    params.finish(&[], &known)?;
    match (hold, held) {
        (false, false) => Ok(None),
        (true, true) => {
            let message = "only allowed without `do_remote_prefill`; a worker does one of them";
            Err(ApiError::field(path("do_remote_decode"), "invalid_value", message))
        }
        (true, false) => Ok(Some(Meeting::Hold)),
        (false, true) => {
            let missing = |name| ApiError::missing(&path(name), "what the prefill worker answered");
            let host = host.ok_or_else(|| missing("remote_host"))?;
            let port = port.ok_or_else(|| missing("remote_port"))? as u16;
            let rooms = rooms.ok_or_else(|| missing("remote_block_ids"))?;
            let place = |room| Place { host: host.clone(), port, room };
            Ok(Some(Meeting::Held(rooms.into_iter().map(place).collect())))
        }
    }
}

impl Meeting {
    /// The field that a refusal names.
    fn field(&self) -> &'static str {
        match self {
            Self::Rooms(_) => "bootstrap_room",
            Self::Hold | Self::Held(_) => "kv_transfer_params",
        }
    }

    /// Refuses a meeting that a worker of this role cannot have.
    pub(crate) fn suits(&self, role: Role) -> Result<(), ApiError> {
        let message = match (self, role) {
            (Self::Rooms(_), Role::Prefill | Role::Decode)
            | (Self::Hold, Role::Prefill)
            | (Self::Held(_), Role::Decode) => return Ok(()),
            (_, Role::Single) => {
                "this worker has the role single and meets no other; start it with the role prefill or decode, or name it \
                 to the router as a plain worker"
            }
            (Self::Hold, Role::Decode) => {
                "`do_remote_decode` asks a prefill worker, and this one has the role decode; swap the URLs of the router"
            }
            (Self::Held(_), Role::Prefill) => {
                "`do_remote_prefill` asks a decode worker, and this one has the role prefill; swap the URLs of the router"
            }
        };
        Err(ApiError::field(self.field(), "wrong_role", message))
    }

    /// Gives each request its meeting; the requests of one of `prompts` prompts stand together. `own` is the address by
    /// which this worker was reached. Returns the `kv_transfer_params` of a prefill worker's answer.
    pub(crate) fn assign(
        &self,
        requests: &mut [Request],
        prompts: usize,
        own: Option<(String, u16)>,
    ) -> Result<Option<Value>, ApiError> {
        let places = match self {
            Self::Rooms(places) | Self::Held(places) => {
                spread(places, self.field(), requests.len(), prompts)?
            }
            Self::Hold => {
                let (host, port) = own.ok_or_else(|| {
                    let message = "the request has no `Host` header with the address of this worker";
                    ApiError::field("kv_transfer_params", "invalid_value", message)
                })?;
                let place = |_| Place { host: host.clone(), port, room: id::random() >> 1 };
                (0..requests.len()).map(place).collect()
            }
        };
        let hold = *self == Self::Hold;
        let answer = hold.then(|| {
            let (host, port) = (&places[0].host, places[0].port);
            json!({
                "do_remote_prefill": true,
                "do_remote_decode": false,
                "remote_engine_id": format!("{host}:{port}"),
                // One room for each choice, in order: the names by which this worker keeps its KV.
                "remote_block_ids": places.iter().map(|place| place.room).collect::<Vec<_>>(),
                "remote_host": host,
                "remote_port": port,
            })
        });
        for (request, Place { host, port, room }) in requests.iter_mut().zip(places) {
            request.disaggregation = Some(Bootstrap { host, port, room, hold });
        }
        Ok(answer)
    }
}

/// One place for each of `choices` choices of `prompts` prompts. A router that has one room for several choices sends the
/// same body to both workers, so both find the same rooms for the later ones.
fn spread(places: &[Place], field: &str, choices: usize, prompts: usize) -> Result<Vec<Place>, ApiError> {
    let each = match places.len() {
        given if given == choices => 1,
        given if given == prompts => choices / prompts,
        1 => choices,
        given => {
            let expected = format!("1 room, one for each of {prompts} prompts or of {choices} choices");
            return Err(ApiError::out_of_range(field, &expected, given));
        }
    };
    let place = |choice: usize| {
        let given = &places[choice / each];
        Place { room: later_room(given.room, (choice % each) as u64), ..given.clone() }
    };
    Ok((0..choices).map(place).collect())
}

/// The room of a choice after the first that has room `first` (the mixing of splitmix64).
fn later_room(first: u64, choice: u64) -> u64 {
    if choice == 0 {
        return first;
    }
    let mut mixed = first.wrapping_add(STRIDE.wrapping_mul(choice));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ (mixed >> 31)) >> 1
}

#[cfg(test)]
#[path = "meeting_tests.rs"]
mod tests;
