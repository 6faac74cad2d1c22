//! What the operator asks of plugin files.

use crate::error::LoadError;
use crate::signature::PublicKey;

/// How much must be known of a file before its code may run. Each step asks for what the one before asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Place, owner and mode. A sidecar that is there must hold; so must a signature by a trusted key.
    #[default]
    Open,
    /// A sidecar must be there, with the hash of the file.
    Manifest,
    /// The sidecar must be signed by a trusted key.
    Signed,
}

impl Trust {
    /// Every step, from the loosest on.
    pub const ALL: [Self; 3] = [Self::Open, Self::Manifest, Self::Signed];

    /// Name in configurations and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Manifest => "manifest",
            Self::Signed => "signed",
        }
    }
}

/// How strict the checks of files are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// Also refuse files and directories that their group may write.
    pub strict: bool,
    /// What a file must bring along.
    pub trust: Trust,
    /// The keys whose signatures count.
    pub keys: Vec<PublicKey>,
}

impl Policy {
    /// A policy of this step; strict if it asks for more than place, owner and mode.
    pub fn new(trust: Trust, keys: Vec<PublicKey>) -> Self {
        Self { strict: trust != Trust::Open, trust, keys }
    }

    /// What the policy asks of signatures, for messages.
    pub(crate) fn words(&self) -> String {
        let ids = match self.keys.as_slice() {
            [] => "none".to_owned(),
            keys => keys.iter().map(PublicKey::id).collect::<Vec<_>>().join(", "),
        };
        format!("{}, trusted keys {ids}", self.trust.name())
    }

    /// A configuration that can never load anything is refused at once.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        if self.trust != Trust::Signed || !self.keys.is_empty() {
            return Ok(());
        }
        Err(LoadError::Signature {
            name: "plugins.policy".to_owned(),
            path: "plugins.keys".into(),
            what: format!("no key is trusted, so no plugin could be loaded. policy {}", self.words()),
            next: "Name the public keys in `plugins.keys`, or choose another policy.".to_owned(),
        })
    }
}
