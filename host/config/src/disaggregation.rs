//! Section `disaggregation`: prefill and decode in different workers.

use std::net::{Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::assignments::valid_assignment_name;
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
    /// Name of the swap group of this worker; `null` for none. A swap of what both ends of a pair must have alike is then carried
    /// to all connected workers that have the same name, and commits on all or on none. A member may ask for such swaps, of
    /// plugins in this worker's own directories and under its own trust rules. Decode workers name their `hosts` too.
    pub swap_group: Option<String>,
    /// Prefill workers, `HOST:PORT` of their API, that a decode worker in a swap group connects to from the start. Without it a
    /// request that names one connects it.
    pub prefill_workers: Vec<String>,
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
            swap_group: None,
            prefill_workers: Vec::new(),
            audit: false,
        }
    }
}

/// Host and port of `HOST:PORT`; brackets around an IPv6 address are left out.
fn place(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

impl DisaggregationSection {
    /// Hosts and ports of `prefill_workers`.
    pub fn prefill_places(&self) -> Vec<(String, u16)> {
        self.prefill_workers.iter().filter_map(|text| place(text)).collect()
    }

    /// What of the swap group cannot be: the field, why, and what to do.
    pub(crate) fn check_group(&self) -> Result<(), (&'static str, String, &'static str)> {
        let Some(name) = &self.swap_group else {
            return match self.prefill_workers.is_empty() {
                true => Ok(()),
                false => Err((
                    "prefill_workers",
                    "only a worker in a swap group connects to prefill workers that no request has named"
                        .to_owned(),
                    "set `disaggregation.swap_group`, or leave prefill_workers away",
                )),
            };
        };
        if !valid_assignment_name(name) {
            let found: String = name.chars().take(80).collect();
            let message = format!("expected 1 to 64 letters, digits, `-`, `_` or `.`, found `{found}`");
            return Err((
                "swap_group",
                message,
                "give all workers of the group the same name, such as `pair-1`",
            ));
        }
        if self.role == Role::Single {
            let message = "the role is single, which has no other end".to_owned();
            return Err(("swap_group", message, "leave it away, or set `disaggregation.role`"));
        }
        if self.role == Role::Decode && self.hosts.is_empty() {
            let message = "a decode worker connects to the host that a request names, and members of its group may ask \
                           it to swap plugins"
                .to_owned();
            return Err(("swap_group", message, "name the prefill workers' hosts in `disaggregation.hosts`"));
        }
        if self.role == Role::Prefill && !self.prefill_workers.is_empty() {
            let message = "decode workers connect to prefill workers".to_owned();
            return Err(("prefill_workers", message, "set it on the decode workers"));
        }
        for text in &self.prefill_workers {
            let known = place(text).is_some_and(|(host, _)| self.hosts.contains(&host));
            if !known {
                let found: String = text.chars().take(80).collect();
                let message =
                    format!("expected HOST:PORT with a host of `disaggregation.hosts`, found `{found}`");
                return Err(("prefill_workers", message, "such as `127.0.0.1:8101`"));
            }
        }
        Ok(())
    }
}
