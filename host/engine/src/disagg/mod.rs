//! What a worker of a pair knows beside its engine: settings, the fingerprint of its layouts, and the audit of what arrives.

pub(crate) mod audit;
pub(crate) mod fingerprint;

pub use audit::{Finding, FindingKind, KvMap, KvRow};

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// How a prefill or decode worker meets others.
#[derive(Debug, Clone)]
pub struct PdSettings {
    /// Where a prefill worker listens for decode workers; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Host under which decode workers reach it; `None` for the address of `listen`.
    pub advertise: Option<String>,
    /// How long the two workers of a request wait for each other.
    pub bootstrap_timeout: Duration,
    /// How long a decode worker waits for KV once it has asked, and a prefill worker for a transfer that does not go on.
    pub waiting_timeout: Duration,
    /// Hosts that requests may name as prefill workers; empty for any.
    pub hosts: Vec<String>,
    /// Workers with which this one swaps what both ends of a pair must have alike; `None` for none.
    pub swap_group: Option<String>,
    /// Prefill workers (host and port of their API) that a decode worker in a swap group connects to from the start.
    pub prefill_workers: Vec<(String, u16)>,
    /// Whether swaps that members of the swap group ask for are refused until somebody decides about them
    /// ([`crate::Swaps::ask_first`]), so that none begins before it can be written down.
    pub peers_wait: bool,
    /// Whether hand-offs are audited: destinations poisoned first, and checksums of every item compared. Slow, for finding faults.
    pub audit: bool,
}

impl Default for PdSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            bootstrap_timeout: Duration::from_secs(30),
            waiting_timeout: Duration::from_secs(300),
            hosts: Vec::new(),
            swap_group: None,
            prefill_workers: Vec::new(),
            peers_wait: false,
            audit: false,
        }
    }
}
