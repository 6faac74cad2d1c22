//! Section `bisect.target`: running servers.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::schema::{seconds, some_items};

/// The servers of one serving instance, all of which get the same assignments: one server or the ranks of a group
/// (`endpoints` and `api`), or a prefill and a decode worker (`prefill` and `decode`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with the keys endpoints, api, prefill, decode, ...")]
pub struct TargetSection {
    /// Admin endpoints.
    #[serde(default, deserialize_with = "some_items", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1))]
    pub endpoints: Vec<Endpoint>,
    /// Where requests go: the server's OpenAI endpoint, or that of a router before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<Endpoint>,
    /// The worker that computes prompts; its bootstrap registry is on its API port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<WorkerSection>,
    /// The worker that decodes. Each request goes to both, with a room of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<WorkerSection>,
    /// A worker that does both, beside a pair: where it is asked whether a culprit fails without a hand-off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub single: Option<WorkerSection>,
    /// Seconds that one answer may take.
    #[serde(default = "timeout", deserialize_with = "seconds")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub timeout_seconds: f64,
}

/// A running server by its two doors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with the keys admin, api")]
pub struct WorkerSection {
    /// Admin endpoint.
    pub admin: Endpoint,
    /// OpenAI endpoint.
    pub api: Endpoint,
}

fn timeout() -> f64 {
    120.0
}

/// Where an endpoint listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointPlace {
    /// A unix socket.
    Unix(PathBuf),
    /// `host:port`, spoken to in HTTP without TLS: a loopback, a private network, or the near end of a tunnel.
    Tcp(String),
}

/// An endpoint: `unix:/path.sock`, `http://host:port`, or `{url: ..., token_file: ...}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where.
    pub place: EndpointPlace,
    /// File whose text is sent as bearer token.
    pub token_file: Option<PathBuf>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            EndpointPlace::Unix(path) => write!(out, "unix:{}", path.display()),
            EndpointPlace::Tcp(host) => write!(out, "http://{host}"),
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected unix:/path/of.sock or http://host:port";
        let place = if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(format!("{expected}, found `{text}`"));
            }
            EndpointPlace::Unix(path.into())
        } else if let Some(host) = text.strip_prefix("http://") {
            let host = host.strip_suffix('/').unwrap_or(host);
            let port = host.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?)));
            if host.contains('/') || port.is_none_or(|(name, _)| name.is_empty()) {
                return Err(format!("{expected}, found `{text}`"));
            }
            EndpointPlace::Tcp(host.to_owned())
        } else if text.starts_with("https://") {
            return Err(format!(
                "`{text}` asks for TLS, which this client does not speak; name the near end of a tunnel, such as \
                 http://127.0.0.1:9000"
            ));
        } else {
            return Err(format!("{expected}, found `{text}`"));
        };
        Ok(Self { place, token_file: None })
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fields {
    /// `unix:/path.sock` or `http://host:port`.
    url: String,
    /// File whose text is sent as bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.token_file {
            None => serializer.collect_str(self),
            Some(_) => {
                Fields { url: self.to_string(), token_file: self.token_file.clone() }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EndpointVisitor)
    }
}

/// The two forms of an endpoint, for the schema alone.
#[derive(JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Endpoint")]
#[expect(dead_code, reason = "only its schema is used")]
enum Form {
    /// `unix:/path.sock` or `http://host:port`.
    Text(String),
    /// With a token.
    Fields(Fields),
}

impl JsonSchema for Endpoint {
    fn schema_name() -> Cow<'static, str> {
        Form::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Form::json_schema(generator)
    }
}

/// By hand instead of `untagged`, which would lose the field path of an error inside.
struct EndpointVisitor;

impl<'de> Visitor<'de> for EndpointVisitor {
    type Value = Endpoint;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("unix:/path/of.sock, http://host:port or {url: ..., token_file: ...}")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Endpoint, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Endpoint, A::Error> {
        let Fields { url, token_file } = Fields::deserialize(MapAccessDeserializer::new(access))?;
        let endpoint: Endpoint = url.parse().map_err(A::Error::custom)?;
        Ok(Endpoint { token_file, ..endpoint })
    }
}

impl TargetSection {
    /// What is wrong with the fields together: the field, what it is, and the next step.
    pub(crate) fn fault(&self) -> Option<(&'static str, String, &'static str)> {
        let of_pair = [("prefill", &self.prefill), ("decode", &self.decode)];
        let given = of_pair.iter().filter(|(_, worker)| worker.is_some()).count();
        let missing = |field: &str| format!("missing field `{field}`");
        let one = "name a server by `endpoints` and `api`, or a pair by `prefill` and `decode`";
        if given == 0 {
            return match (self.endpoints.is_empty(), &self.api, &self.single) {
                (true, ..) => Some(("endpoints", missing("endpoints"), one)),
                (false, None, _) => Some(("api", missing("api"), one)),
                (false, Some(_), Some(_)) => {
                    Some(("single", "only read beside a pair".to_owned(), "leave it away"))
                }
                (false, Some(_), None) => None,
            };
        }
        if let Some((field, _)) = of_pair.iter().find(|(_, worker)| worker.is_none()) {
            return Some((field, missing(field), "a pair has a prefill and a decode worker"));
        }
        if !self.endpoints.is_empty() || self.api.is_some() {
            let field = if self.api.is_some() { "api" } else { "endpoints" };
            return Some((field, "only read without `prefill` and `decode`".to_owned(), one));
        }
        let prefill = self.prefill.as_ref()?;
        matches!(prefill.api.place, EndpointPlace::Unix(_)).then(|| {
            let what =
                "decode workers reach the bootstrap registry on this port, which a unix socket has not";
            ("prefill", what.to_owned(), "name it by http://host:port")
        })
    }

    /// Makes every path absolute.
    pub(crate) fn resolve_paths(&mut self, join: &mut impl FnMut(&str, &mut PathBuf)) {
        let mut each = |field: String, endpoint: &mut Endpoint| {
            if let EndpointPlace::Unix(path) = &mut endpoint.place {
                join(&field, path);
            }
            if let Some(path) = &mut endpoint.token_file {
                join(&field, path);
            }
        };
        for (index, endpoint) in self.endpoints.iter_mut().enumerate() {
            each(format!("bisect.target.endpoints[{index}]"), endpoint);
        }
        if let Some(api) = &mut self.api {
            each("bisect.target.api".to_owned(), api);
        }
        let workers =
            [("prefill", &mut self.prefill), ("decode", &mut self.decode), ("single", &mut self.single)];
        for (name, worker) in workers {
            if let Some(WorkerSection { admin, api }) = worker {
                each(format!("bisect.target.{name}.admin"), admin);
                each(format!("bisect.target.{name}.api"), api);
            }
        }
    }
}
