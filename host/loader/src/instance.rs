//! A live instance of a plugin.

use crate::Options;
use crate::error::LoadError;
use crate::manifest::Device as Place;
use crate::plugin::{Plugin, error_text};
use crate::{device, services};
use hotseam_abi::{InfoV1, OK, Text, capability, layout, phase, seam};
use hotseam_cuda::Device;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the pool entries of a model are; zeros for seams without a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Values of an entry: `head_dim` for attention, `index_head_dim` for the indexer.
    pub dim: u32,
    /// How many of them are roped: `qk_rope_head_dim`.
    pub rope_dim: u32,
}

/// A live instance. Dropping it calls the plugin's `destroy`; the code stays mapped.
#[derive(Debug)]
pub struct Instance {
    this: *mut c_void,
    info: InfoV1,
    options: Options,
    plugin: Arc<Plugin>,
    /// What its ops run on; `None` if they run on the CPU.
    device: Option<Arc<Device>>,
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
    pub(crate) fn create(plugin: Arc<Plugin>, options: Options, shape: Shape) -> Result<Self, LoadError> {
        let entry = plugin.entry();
        let json = serde_json::Value::Object(options.clone()).to_string();
        let device = match plugin.manifest().device {
            Place::Cpu => None,
            Place::Cuda => Some(device::open(plugin.name())?),
        };
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
            dim: shape.dim,
            rope_dim: shape.rope_dim,
            data_bytes: 0,
            scale_bytes: 0,
        };
        let mut instance = Self { this, info, options, plugin, device, ended: Arc::default() };
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
        instance.info = InfoV1 { dim: info.dim, rope_dim: info.rope_dim, ..described.info };
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
        let (expected, found) = (parts(info.layout, self.shape()), [info.data_bytes, info.scale_bytes]);
        if has_pool && found != expected {
            return Err(format!(
                "data_bytes and scale_bytes: expected {} and {} for an entry of this layout and dimension {}, found {} and {}",
                expected[0], expected[1], info.dim, found[0], found[1]
            ));
        }
        if !has_pool && (info.layout != 0 || found != [0; 2]) {
            return Err(format!(
                "layout, data_bytes and scale_bytes: expected 0 for a seam without a pool, found {}, {} and {}",
                info.layout, found[0], found[1]
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

    /// The shape that it was made for.
    pub fn shape(&self) -> Shape {
        Shape { dim: self.info.dim, rope_dim: self.info.rope_dim }
    }

    /// Its options in their one form: all of them, sorted, defaults included.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Turns true once the instance has ended: from then on it writes nowhere any more.
    pub fn ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ended)
    }

    /// The CUDA device that its ops run on, whose context must be current in every call; `None` if they run on the CPU.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// The plugin it was made by.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.plugin
    }
}

/// Data and scale bytes of an entry of a layout that this host knows, as [`layout`] has them.
fn parts(id: u32, shape: Shape) -> [u32; 2] {
    let Shape { dim, rope_dim } = shape;
    match id {
        layout::KV_BF16 | layout::KEY_BF16 => [2 * dim, 0],
        layout::KV_FP8_DS_MLA => {
            let nope = dim.saturating_sub(rope_dim);
            [nope + 2 * rope_dim, nope.div_ceil(64).next_multiple_of(8)]
        }
        layout::KEY_FP8_HADAMARD => [dim, 4],
        layout::KEY_FP4_HADAMARD => [dim / 2, dim / 32],
        _ => [4 * dim, 0],
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // If it is refused, what the plugin then does with the device is refused as well.
        let _ = self.device.as_ref().map(|device| device.make_current());
        (self.plugin.entry().destroy)(self.this);
        self.ended.store(true, Ordering::Release);
    }
}
