//! The device, its memory, and the plugins.

use crate::{ROPE_DIM, TOKENS};
use fastrand::Rng;
use hotseam_abi::{MIN_WORKSPACE, OK, RopeTables, StepCtx, TensorRef, device, dtype};
use hotseam_cuda::{Buffer, Device, Stream, copy_from_device, copy_to_device, fill};
use hotseam_loader::{Instance, Loader, Options, Shape, host_services, take_error};
use hotseam_ops::Pool;
use hotseam_tests::plugins;
use std::ffi::c_void;

/// Half of the roped values.
const HALF: usize = ROPE_DIM / 2;

/// Where a tensor lies: in host memory or on the device.
pub(crate) type Place = u32;

/// A function of a plugin.
pub(crate) type Op<A> = extern "C" fn(*mut c_void, *const StepCtx, *const A) -> i32;

/// A contiguous tensor.
pub(crate) fn tensor(place: Place, address: u64, dtype: u32, shape: &[usize]) -> TensorRef {
    let ndim = shape.len() as u32;
    let mut t = TensorRef { data: address as *mut c_void, dtype, ndim, device: place, ..TensorRef::NONE };
    t.shape = [1; 4];
    let mut stride = 1;
    for (d, extent) in shape.iter().enumerate().rev() {
        (t.shape[d], t.strides[d]) = (*extent as i64, stride);
        stride *= *extent as i64;
    }
    t
}

/// Values that lie in host memory and on the device.
pub(crate) struct Both<T> {
    pub(crate) host: Vec<T>,
    memory: Buffer,
}

impl<T: Copy> Both<T> {
    pub(crate) fn new(host: Vec<T>) -> Self {
        let memory = Buffer::of(&host, "an input").expect("memory of the device");
        Self { host, memory }
    }

    pub(crate) fn address(&self, place: Place) -> u64 {
        match place {
            device::CPU => self.host.as_ptr() as u64,
            _ => self.memory.address(),
        }
    }

    /// Contiguous, of the whole.
    pub(crate) fn tensor(&self, place: Place, dtype: u32, shape: &[usize]) -> TensorRef {
        tensor(place, self.address(place), dtype, shape)
    }

    pub(crate) fn f32s(&self, place: Place, shape: &[usize]) -> TensorRef {
        self.tensor(place, dtype::F32, shape)
    }

    pub(crate) fn pointer(&self, place: Place) -> *const T {
        self.address(place) as *const T
    }
}

/// The device and what every test needs of it.
pub(crate) struct Kit {
    pub(crate) real: bool,
    /// Threads for truth.
    pub(crate) pool: Pool,
    loader: Loader,
    stream: Stream,
    workspace: Buffer,
    cos: Both<f32>,
    sin: Both<f32>,
    device: Device,
}

impl Kit {
    /// `None`, with a printed reason, without a device.
    pub(crate) fn new() -> Option<Self> {
        if !hotseam_tests::cuda::device() {
            return None;
        }
        let device = Device::open(0).expect("a device");
        let frequency = |i: usize| 160_000f64.powf(-((i % HALF) as f64) / HALF as f64);
        let frequencies: Vec<f64> = (0..HALF).map(frequency).collect();
        let table = |f: fn(f64) -> f64| {
            let angle = |i: usize| (i / HALF) as f64 * frequencies[i % HALF];
            Both::new((0..TOKENS * HALF).map(|i| f(angle(i)) as f32).collect::<Vec<f32>>())
        };
        Some(Self {
            real: hotseam_tests::cuda::is_real(),
            pool: Pool::new(0),
            loader: Loader::new(vec![plugins()]).expect("a plugin directory"),
            stream: Stream::new().expect("a stream"),
            workspace: Buffer::new(MIN_WORKSPACE as usize, "the workspace").expect("memory of the device"),
            cos: table(f64::cos),
            sin: table(f64::sin),
            device,
        })
    }

    /// What fills memory that is not to be read or written. It is no entry of any layout, but for codes of fp4, whose scale is none.
    /// The emulated device has it in all new memory, which costs nothing.
    pub(crate) fn poison(&self) -> u8 {
        if self.real { 0xff } else { 0xcd }
    }

    /// Memory full of poison.
    pub(crate) fn poisoned(&self, bytes: usize, what: &str) -> Buffer {
        let memory = Buffer::new(bytes, what).unwrap_or_else(|e| panic!("{e}"));
        if self.real {
            fill(memory.address(), self.poison(), bytes).expect("a fill");
        }
        memory
    }

    pub(crate) fn rope(&self, place: Place) -> RopeTables {
        let of = |table: &Both<f32>| table.f32s(place, &[TOKENS, HALF]);
        RopeTables { cos: of(&self.cos), sin: of(&self.sin) }
    }

    /// An instance with options, each a name and a value.
    pub(crate) fn instance(
        &self,
        variant: &str,
        options: &[(&str, serde_json::Value)],
        dim: usize,
    ) -> Instance {
        let plugin = self.loader.open(variant).unwrap_or_else(|e| panic!("{e}"));
        let options: Options = options.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
        let shape = Shape { dim: dim as u32, rope_dim: ROPE_DIM as u32 };
        plugin.create(&options, shape).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Calls an op and waits for the device.
    pub(crate) fn call<A>(&self, what: &str, instance: &Instance, op: Op<A>, phase: u32, args: &A) {
        let ctx = StepCtx {
            size: size_of::<StepCtx>() as u32,
            phase,
            layer: 2,
            layer_class: 0,
            rank: 0,
            world: 1,
            step: 1,
            stream: self.stream.raw(),
            workspace: self.workspace.address() as *mut c_void,
            workspace_bytes: MIN_WORKSPACE,
            host: host_services(),
        };
        let code = op(instance.this(), &raw const ctx, std::ptr::from_ref(args));
        assert_eq!(code, OK, "{what}: {}", take_error());
        self.stream.synchronize().unwrap_or_else(|e| panic!("{what}: {e}"));
        self.device.synchronize().unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// Copies bytes of the device back.
pub(crate) fn read<T: Copy + Default>(address: u64, n: usize) -> Vec<T> {
    let mut values = vec![T::default(); n];
    copy_from_device(&mut values, address).expect("a copy");
    values
}

/// Copies values to the device.
pub(crate) fn write<T: Copy>(address: u64, values: &[T]) {
    copy_to_device(address, values).expect("a copy");
}

/// Nearly normal values: sums of four uniform numbers.
pub(crate) fn normals(rng: &mut Rng, n: usize, scale: f32) -> Vec<f32> {
    let one = |bits: u64| (0..4).map(|i| bits >> (16 * i) & 0xffff).sum::<u64>() as f32 - 131_070.0;
    (0..n).map(|_| scale * one(rng.u64(..)) * (3f32.sqrt() / 65_536.0)).collect()
}
