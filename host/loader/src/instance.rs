//! A live instance of a plugin.

use crate::Options;
use crate::error::LoadError;
use crate::plugin::{Plugin, error_text};
use crate::services;
use hotseam_abi::{InfoV1, OK, Text, capability, layout, phase, seam};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A live instance. Dropping it calls the plugin's `destroy`; the code stays mapped.
#[derive(Debug)]
pub struct Instance {
    this: *mut c_void,
    info: InfoV1,
    options: Options,
    plugin: Arc<Plugin>,
    ended: Arc<AtomicBool>,
}

/// Room behind a description, to see a plugin that takes the struct for a longer one.
const BEHIND: [u64; 16] = [0xa5a5_a5a5_a5a5_a5a5; 16];

/// A description and what is behind it.
#[repr(C)]
struct Described {
    info: InfoV1,
    behind: [u64; 16],
}

// SAFETY: the contract lets the host call an instance from any one thread at a time and destroy it on any thread.
unsafe impl Send for Instance {}
// SAFETY: shared references only hand out the pointer and plain data; that calls on one instance do not overlap is the
// caller's side of the contract.
unsafe impl Sync for Instance {}

impl Instance {
    /// Makes an instance from canonical options, and asks it for its description.
    pub(crate) fn create(plugin: Arc<Plugin>, options: Options, dim: u32) -> Result<Self, LoadError> {
        let entry = plugin.entry();
        let json = serde_json::Value::Object(options.clone()).to_string();
        let failed = |plugin: &Plugin, stage, reason: String| LoadError::Create {
            name: plugin.name().to_owned(),
            stage,
            reason,
            options: json.clone(),
        };

        services::take_error();
        let mut this = std::ptr::null_mut();
        let text = Text { ptr: json.as_ptr(), len: json.len() };
        let code = (entry.create)(services::host_services(), text, &raw mut this);
        if code != OK {
            return Err(failed(&plugin, "create", format!("{} (code {code})", error_text())));
        }
        if this.is_null() {
            return Err(failed(&plugin, "create", "it returned success and no instance".to_owned()));
        }

        // From here on the instance exists, so that an early return destroys it.
        let info = InfoV1 {
            size: size_of::<InfoV1>() as u32,
            capabilities: 0,
            phases: 0,
            layout: 0,
            dim,
            entry_bytes: 0,
        };
        let mut instance = Self { this, info, options, plugin, ended: Arc::default() };
        let mut described = Described { info, behind: BEHIND };
        // Of the whole, since the plugin may write behind the description.
        let code = (entry.info)(this, (&raw mut described).cast());
        if code != OK {
            return Err(failed(&instance.plugin, "info", format!("{} (code {code})", error_text())));
        }
        if described.behind != BEHIND || described.info.size != info.size {
            let reason = format!(
                "size: expected the {} bytes of this host's description, found {}",
                info.size,
                match described.behind == BEHIND {
                    true => described.info.size.to_string(),
                    false => "writes behind them".to_owned(),
                }
            );
            return Err(failed(&instance.plugin, "info", reason));
        }
        instance.info = InfoV1 { dim, ..described.info };
        instance.check_info().map_err(|reason| failed(&instance.plugin, "info", reason))?;
        Ok(instance)
    }

    fn check_info(&self) -> Result<(), String> {
        let info = &self.info;
        let known = 1 << phase::PREFILL | 1 << phase::DECODE | 1 << phase::VERIFY;
        if info.phases == 0 || info.phases & !known != 0 {
            return Err(format!("phases: expected some of the bits {known:#b}, found {:#b}", info.phases));
        }
        let takeovers = capability::FUSES_INVERSE_ROPE
            | capability::NORM_FUSED
            | capability::ROUTE_SCALES_HASH
            | capability::ROUTE_SCALES_TOPK;
        if info.capabilities & !takeovers != 0 {
            return Err(format!(
                "capabilities: this host knows the bits {takeovers:#b}, found {:#b}. It would do again what the plugin \
                 has taken over; build the plugin against this host's contract.",
                info.capabilities
            ));
        }
        let has_pool = matches!(self.plugin.seam(), seam::ATTENTION | seam::INDEXER);
        if has_pool && !layout::NAMES.iter().any(|(id, _)| *id == info.layout) {
            let names: Vec<_> = layout::NAMES.iter().map(|(id, name)| format!("{id} ({name})")).collect();
            return Err(format!("layout: expected one of {}, found {}", names.join(", "), info.layout));
        }
        let expected = entry_bytes(info.layout, info.dim);
        if has_pool && info.entry_bytes != expected {
            return Err(format!(
                "entry_bytes: expected {expected} for an entry of this layout and dimension {}, found {}",
                info.dim, info.entry_bytes
            ));
        }
        if !has_pool && (info.layout != 0 || info.entry_bytes != 0) {
            return Err(format!(
                "layout and entry_bytes: expected 0 for a seam without a pool, found {} and {}",
                info.layout, info.entry_bytes
            ));
        }
        Ok(())
    }

    /// First argument of every call. Valid while the instance lives; calls on it must not overlap.
    pub fn this(&self) -> *mut c_void {
        self.this
    }

    /// What the instance says of itself.
    pub fn info(&self) -> &InfoV1 {
        &self.info
    }

    /// Its options in their one form: all of them, sorted, defaults included.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Turns true once the instance has ended: from then on it writes nowhere any more.
    pub fn ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ended)
    }

    /// The plugin it was made by.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.plugin
    }
}

/// Bytes of an entry of a layout that this host knows.
fn entry_bytes(id: u32, dim: u32) -> u32 {
    match id {
        layout::KEY_BF16 => 2 * dim,
        layout::KEY_FP8_HADAMARD => dim + 4,
        _ => 4 * dim,
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        (self.plugin.entry().destroy)(self.this);
        self.ended.store(true, Ordering::Release);
    }
}
