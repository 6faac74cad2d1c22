//! Section `disaggregation`: prefill and decode in different workers.

use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{ADDRESS_PATTERN, address, seconds};

/// What a worker does of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// All of it.
    #[default]
    Single,
    /// Prompts, whose KV it sends to decode workers. Its API port serves the bootstrap registry.
    Prefill,
    /// Answers, over KV that prefill workers send.
    Decode,
}

/// Section `disaggregation`. The roles `prefill` and `decode` need `engine.topology: paired` and a transport between
/// processes, `kv_transport/tcp` or `kv_transport/shm`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a mapping with the keys role, listen, ...")]
pub struct DisaggregationSection {
    /// What this worker does of a request.
    pub role: Role,
    /// Address on which a prefill worker listens for decode workers. Port 0 takes a free one.
    #[serde(deserialize_with = "address")]
    #[schemars(extend("pattern" = ADDRESS_PATTERN))]
    pub listen: SocketAddr,
    /// Host under which decode workers reach a prefill worker; `null` for the address of `listen`.
    pub advertise: Option<String>,
    /// How long the two workers of a request wait for each other.
    #[serde(deserialize_with = "seconds")]
    #[schemars(range(min = 0.001, max = 604800))]
    pub bootstrap_timeout_seconds: f64,
    /// How long a decode worker waits for KV once it has asked, and a prefill worker for a transfer that does not go on.
    #[serde(deserialize_with = "seconds")]
    #[schemars(range(min = 0.001, max = 604800))]
    pub waiting_timeout_seconds: f64,
    /// Hosts that requests may name as `bootstrap_host`; empty for any. Name them where clients can reach a decode worker
    /// without a router: it asks the host that a request names.
    pub hosts: Vec<String>,
    /// Whether hand-offs are audited: destinations are poisoned first, and every item is compared by checksum. Slow.
    pub audit: bool,
}

impl Default for DisaggregationSection {
    fn default() -> Self {
        Self {
            role: Role::Single,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            bootstrap_timeout_seconds: 30.0,
            waiting_timeout_seconds: 300.0,
            hosts: Vec::new(),
            audit: false,
        }
    }
}
