//! Makes generations of variants, and shares those that are alike.

use crate::digest::Digest;
use crate::error::SlotsError;
use crate::generation::{Generation, has_op};
use crate::geometry::Geometry;
use crate::seam::Seam;
use crate::variant::VariantSpec;
use hotseam_loader::{Device, LoadError, Loader, Options, Plugin};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Makes generations. All methods may be called from any thread, but not in the step loop.
#[derive(Debug)]
pub struct Registry {
    loader: Loader,
    geometry: Geometry,
    device: Device,
    next_id: AtomicU64,
    live: Mutex<HashMap<Key, Weak<Generation>>>,
}

/// What makes two generations alike: code and options, down the chain of bases.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key(Vec<String>);

/// A plugin whose code is mapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Variant name, from its manifest.
    pub name: String,
    /// Hash of the file.
    pub sha256: String,
    /// The file it was first opened from.
    pub path: PathBuf,
    /// Live generations of it.
    pub generations: usize,
}

impl Registry {
    /// A registry of the plugins that `loader` finds, for a model of this geometry whose steps run on the CPU.
    pub fn new(loader: Loader, geometry: Geometry) -> Self {
        Self { loader, geometry, device: Device::Cpu, next_id: AtomicU64::new(1), live: Mutex::default() }
    }

    /// The same for steps that run on `device`.
    pub fn on(self, device: Device) -> Self {
        Self { device, ..self }
    }

    /// Where steps run: assignments have variants that run there, and transports, which move what they are given.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The model's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The loader.
    pub fn loader(&self) -> &Loader {
        &self.loader
    }

    /// A generation of the variant: a live one if there is one of the same code and options, else a new one.
    ///
    /// The file is read each time, so a file that was replaced on disk gives a new generation. If the plugin leaves
    /// an op of its seam out and its manifest names a base, the base gets a generation too, with those of the
    /// variant's options that the base knows.
    ///
    /// # Errors
    /// [`SlotsError::Load`] for the variant; [`SlotsError::Base`], [`SlotsError::BaseCircle`] and
    /// [`SlotsError::BaseSeam`] and [`SlotsError::BaseDevice`] for its base.
    pub fn generation(&self, spec: &VariantSpec) -> Result<Arc<Generation>, SlotsError> {
        self.resolve(spec, None, &mut Vec::new())
    }

    /// As [`Registry::generation`], of a variant that runs on `device`, so that memory of that device may be given to it, or
    /// of a transport that runs on the CPU.
    ///
    /// # Errors
    /// Those, and [`SlotsError::Device`] before an instance is made.
    pub fn generation_on(&self, device: Device, spec: &VariantSpec) -> Result<Arc<Generation>, SlotsError> {
        self.resolve(spec, Some(device), &mut Vec::new())
    }

    /// `above` holds the names of the variants whose base is being resolved.
    fn resolve(
        &self,
        spec: &VariantSpec,
        device: Option<Device>,
        above: &mut Vec<String>,
    ) -> Result<Arc<Generation>, SlotsError> {
        let plugin = self.loader.open(&spec.name)?;
        let found = plugin.manifest().device;
        let transport = plugin.seam() == Seam::KvTransport.id() && found == Device::Cpu;
        if let Some(expected) = device.filter(|expected| *expected != found && !transport) {
            return Err(SlotsError::Device { variant: spec.to_string(), expected, found });
        }
        let options = plugin.manifest().canonical(spec.options())?;
        let seam = seam_of(&plugin)?;
        let base = self.base(spec, &plugin, seam, &options, above)?;

        let hash = Digest::of([plugin.sha256(), &Value::Object(options.clone()).to_string()]).to_string();
        let mut key = vec![hash.clone()];
        let mut below = base.as_ref();
        while let Some(generation) = below {
            key.push(generation.hash.clone());
            below = generation.base.as_ref();
        }
        let key = Key(key);
        let sound = |live: &Weak<Generation>| live.upgrade().filter(|generation| !generation.is_poisoned());
        if let Some(generation) = self.live().get(&key).and_then(sound) {
            return Ok(generation);
        }

        // Not under the lock: creating may take long, and only equal work could be done twice.
        let instance = plugin.create(&options, self.geometry.shape(seam))?;
        let generation = Arc::new(Generation {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            spec: VariantSpec::new(spec.name.clone(), plugin.manifest().changed_options(&options)),
            hash,
            seam,
            instance,
            base,
            poisoned: AtomicBool::new(false),
        });
        let mut live = self.live();
        if let Some(other) = live.get(&key).and_then(sound) {
            return Ok(other);
        }
        live.retain(|_, generation| generation.strong_count() > 0);
        live.insert(key, Arc::downgrade(&generation));
        tracing::info!(id = generation.id, variant = %generation.spec, hash = generation.hash, "generation created");
        Ok(generation)
    }

    fn base(
        &self,
        spec: &VariantSpec,
        plugin: &Plugin,
        seam: Seam,
        options: &Options,
        above: &mut Vec<String>,
    ) -> Result<Option<Arc<Generation>>, SlotsError> {
        let complete = seam.ops().iter().all(|op| has_op(plugin.entry(), seam, *op));
        let Some(base) = plugin.manifest().base.as_deref().filter(|_| !complete) else {
            return Ok(None);
        };
        let name = plugin.name().to_owned();
        if above.contains(&name) {
            let chain = [above.as_slice(), &[name]].concat().join(" -> ");
            return Err(SlotsError::BaseCircle { variant: spec.to_string(), chain });
        }
        let wrap = |source: Box<LoadError>| SlotsError::Base {
            variant: spec.to_string(),
            base: base.to_owned(),
            source,
        };
        let base_plugin = self.loader.open(base).map_err(|error| wrap(Box::new(error)))?;
        let found = seam_of(&base_plugin)?;
        if found != seam {
            let (variant, base) = (spec.to_string(), base.to_owned());
            return Err(SlotsError::BaseSeam { variant, base, expected: seam, found });
        }
        let (expected, found) = (plugin.manifest().device, base_plugin.manifest().device);
        if found != expected {
            let (variant, base) = (spec.to_string(), base.to_owned());
            return Err(SlotsError::BaseDevice { variant, base, expected, found });
        }
        let shared = VariantSpec::new(base, base_plugin.manifest().known_options(options));
        above.push(name);
        let generation = self.resolve(&shared, None, above).map_err(|error| match error {
            SlotsError::Load(source) => wrap(source),
            other => other,
        });
        above.pop();
        generation.map(Some)
    }

    /// The plugins whose code is mapped, sorted by name and hash, with the number of their live generations.
    pub fn loaded(&self) -> Vec<Loaded> {
        let live: Vec<_> = self.live().values().filter_map(Weak::upgrade).collect();
        let plugins = self.loader.opened();
        plugins
            .iter()
            .map(|plugin| Loaded {
                name: plugin.name().to_owned(),
                sha256: plugin.sha256().to_owned(),
                path: plugin.path().to_owned(),
                generations: live.iter().filter(|g| Arc::ptr_eq(g.instance.plugin(), plugin)).count(),
            })
            .collect()
    }

    fn live(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Weak<Generation>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The seam of an opened plugin. The loader refuses numbers that have no name, so the error is for a contract that has
/// a seam more than this crate.
fn seam_of(plugin: &Plugin) -> Result<Seam, LoadError> {
    Seam::from_id(plugin.seam()).ok_or_else(|| LoadError::Seam {
        name: plugin.name().to_owned(),
        expected: Seam::ALL.iter().map(|s| s.name()).collect::<Vec<_>>().join(", "),
        found: plugin.seam().to_string(),
        next: "Use a newer host.".to_owned(),
    })
}
