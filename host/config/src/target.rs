//! Section `bisect.target`: running servers.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::schema::{seconds, some_items};

/// The servers of one serving instance, all of which get the same assignments: one server, the ranks of a group, or the
/// workers of a prefill and decode pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with the keys endpoints, api, timeout_seconds")]
pub struct TargetSection {
    /// Admin endpoints.
    #[serde(deserialize_with = "some_items")]
    #[schemars(length(min = 1))]
    pub endpoints: Vec<Endpoint>,
    /// Where requests go: the server's OpenAI endpoint, or that of a router before it.
    pub api: Endpoint,
    /// Seconds that one answer may take.
    #[serde(default = "timeout", deserialize_with = "seconds")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub timeout_seconds: f64,
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
    /// Makes every path absolute.
    pub(crate) fn resolve_paths(&mut self, join: &mut impl FnMut(&str, &mut PathBuf)) {
        let all = self.endpoints.iter_mut().enumerate();
        let named = all.map(|(index, endpoint)| (format!("bisect.target.endpoints[{index}]"), endpoint));
        for (field, endpoint) in named.chain([("bisect.target.api".to_owned(), &mut self.api)]) {
            if let EndpointPlace::Unix(path) = &mut endpoint.place {
                join(&field, path);
            }
            if let Some(path) = &mut endpoint.token_file {
                join(&field, path);
            }
        }
    }
}
