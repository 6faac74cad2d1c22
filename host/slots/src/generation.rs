//! A live instance of a variant, as cells share it.

use crate::seam::{Op, Phase, Seam};
use crate::variant::VariantSpec;
use hotseam_abi::PluginV1;
use hotseam_loader::Instance;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One live instance. It ends when the last snapshot or rule that uses it is gone.
#[derive(Debug)]
pub struct Generation {
    /// Number, unique in the process and rising with time.
    pub id: u64,
    /// The variant: its name as it was asked for, and the options that differ from their defaults.
    pub spec: VariantSpec,
    /// sha256 over the plugin's file and all options, lower-case hexadecimal. Equal hashes are equal code and options.
    pub hash: String,
    /// Its seam.
    pub seam: Seam,
    /// The instance.
    pub instance: Instance,
    /// What serves the ops that the plugin leaves out; `None` if it leaves none out or names no base.
    pub base: Option<Arc<Self>>,
    /// Set when a call panicked. The contract forbids to use the instance again.
    pub(crate) poisoned: AtomicBool,
}

impl Generation {
    /// Whether the plugin itself has the op.
    pub fn has(&self, op: Op) -> bool {
        has_op(self.instance.plugin().entry(), self.seam, op)
    }

    /// The generation that serves `op`: this one, or the nearest base that has it.
    pub fn serving(self: &Arc<Self>, op: Op) -> Option<Arc<Self>> {
        let mut generation = self;
        while !generation.has(op) {
            generation = generation.base.as_ref()?;
        }
        Some(generation.clone())
    }

    /// Whether a call panicked: the instance is not used again, and a swap to the same variant makes a new one.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Whether it may be called in `phase`.
    pub fn serves(&self, phase: Phase) -> bool {
        self.instance.info().phases & (1 << phase.id()) != 0
    }

    /// Names of the phases that it serves.
    pub(crate) fn phases(&self) -> String {
        let names: Vec<_> = Phase::ALL.iter().filter(|p| self.serves(**p)).map(|p| p.name()).collect();
        if names.is_empty() {
            "neither prefill nor decode".to_owned()
        } else {
            format!("only {}", names.join(", "))
        }
    }
}

/// Whether the table of `seam` has the op.
pub(crate) fn has_op(entry: &PluginV1, seam: Seam, op: Op) -> bool {
    let attention = entry.attention.filter(|_| seam == Seam::Attention);
    let indexer = entry.indexer.filter(|_| seam == Seam::Indexer);
    let moe = entry.moe.filter(|_| seam == Seam::Moe);
    let mhc = entry.mhc.filter(|_| seam == Seam::Mhc);
    let transport = entry.kv_transport.filter(|_| seam == Seam::KvTransport);
    match op {
        Op::Store => attention.is_some_and(|t| t.store.is_some()),
        Op::Compress => {
            attention.is_some_and(|t| t.compress.is_some()) || indexer.is_some_and(|t| t.compress.is_some())
        }
        Op::Core => attention.is_some_and(|t| t.core.is_some()),
        Op::Select => indexer.is_some_and(|t| t.select.is_some()),
        Op::Route => moe.is_some_and(|t| t.route.is_some()),
        Op::Experts => moe.is_some_and(|t| t.experts.is_some()),
        Op::Pre => mhc.is_some_and(|t| t.pre.is_some()),
        Op::Post => mhc.is_some_and(|t| t.post.is_some()),
        Op::Head => mhc.is_some_and(|t| t.head.is_some()),
        // A ticket of one instance means nothing to another, so all four functions come from one plugin.
        Op::Transport => transport.is_some_and(|t| {
            t.register.is_some() && t.put.is_some() && t.poll.is_some() && t.cancel.is_some()
        }),
    }
}
