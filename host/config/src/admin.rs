//! Section `server.admin_tcp`: the admin endpoints on the loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::assignments::{NAME_PATTERN, valid_assignment_name};
use crate::schema::{ADDRESS_PATTERN, address};

/// A listener of the admin endpoints beside the unix socket. Whoever can load plugins runs code as this user, so it
/// listens on the loopback only, and every request carries one of the tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with the keys listen, tokens")]
pub struct AdminTcpSection {
    /// Address on the loopback. Port 0 takes a free one.
    #[serde(deserialize_with = "loopback")]
    #[schemars(extend("pattern" = ADDRESS_PATTERN))]
    pub listen: SocketAddr,
    /// Token files by the name that the audit log gives their users. A file holds one token, is this user's, and nobody
    /// else can read it.
    #[serde(deserialize_with = "tokens")]
    #[schemars(extend("minProperties" = 1, "propertyNames" = { "pattern": NAME_PATTERN }))]
    pub tokens: BTreeMap<String, PathBuf>,
}

fn loopback<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let address = address(deserializer)?;
    if !address.ip().is_loopback() {
        return Err(D::Error::custom(format_args!(
            "expected an address on the loopback, such as 127.0.0.1:8001, found {address}; from elsewhere, use a tunnel"
        )));
    }
    Ok(address)
}

fn tokens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, PathBuf>, D::Error> {
    let tokens = BTreeMap::<String, PathBuf>::deserialize(deserializer)?;
    if tokens.is_empty() {
        return Err(D::Error::custom(
            "expected at least one token, such as {ops: /etc/hotseam/ops.token}, found none",
        ));
    }
    if let Some(name) = tokens.keys().find(|name| !valid_assignment_name(name)) {
        return Err(D::Error::custom(format_args!(
            "`{name}` is no name of a token; use 1 to 64 letters, digits, `-`, `_` or `.`"
        )));
    }
    Ok(tokens)
}
