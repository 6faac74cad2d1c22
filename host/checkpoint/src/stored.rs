//! Puts a matrix together from the tensors that store it: `X.weight` with, by its format,
//! `X.scale` (FP8, MXFP4), or `X.weight_scale` and `X.weight_scale_2` (NVFP4, which may have `X.input_scale` besides).

use hotseam_model::number::{e2m1, e4m3};
use hotseam_model::{DType, Format, Matrix};
use safetensors::Dtype;

use crate::error::CheckpointError;
use crate::quantisation::Role;
use crate::scan::Admit;
use crate::source::{Source, dtype, value};

/// What to do about an element type that no matrix has.
const MATRIX: &str =
    "this build reads bf16 and f32, FP8 (E4M3) with `.scale`, and packed FP4: convert the checkpoint first";
const SCALES: &str = "the scales have the wrong type, fetch the shard again";

/// Names of the tensors of one matrix.
struct Names {
    module: String,
    weight: String,
    /// UE8M0 scales of FP8 and MXFP4.
    scale: String,
    /// E4M3 scales of NVFP4.
    weight_scale: String,
    /// Factor of NVFP4.
    weight_scale_2: String,
    /// Factor of the activations.
    input_scale: String,
}

impl Names {
    fn new(module: &str) -> Self {
        let name = |suffix: &str| format!("{module}.{suffix}");
        Self {
            module: module.to_owned(),
            weight: name("weight"),
            scale: name("scale"),
            weight_scale: name("weight_scale"),
            weight_scale_2: name("weight_scale_2"),
            input_scale: name("input_scale"),
        }
    }

    /// Tensors that a format has beside the weights, and those that it cannot have.
    fn companions(&self, format: Format) -> (Vec<&String>, Vec<&String>) {
        let (power, small) = (vec![&self.scale], vec![&self.weight_scale, &self.weight_scale_2]);
        let activation = &self.input_scale;
        match format {
            Format::F32 | Format::Bf16 => (vec![], [power, small, vec![activation]].concat()),
            Format::Fp8Block | Format::Mxfp4 => (power, [small, vec![activation]].concat()),
            Format::Nvfp4 => (small, power),
        }
    }
}

impl Source<'_> {
    /// A matrix `[n, k]` in its format on disk, shared with the map; `module` is its name without `.weight`.
    pub(crate) fn matrix(
        &mut self,
        module: &str,
        [n, k]: [usize; 2],
        role: Role,
    ) -> Result<Matrix, CheckpointError> {
        let names = Names::new(module);
        let format = self.format(&names)?;
        self.check_stated(&names, role, format)?;
        self.check_companions(&names, format)?;
        let misfit = |source| CheckpointError::Matrix { name: names.weight.clone(), source };
        if !format.divides(k) {
            return Err(misfit(hotseam_model::MatrixError::Group { format, k }));
        }
        let (dtype, shape) = format.data(n, k);
        let entry = self.entry(&names.weight)?;
        // The FP4 type of safetensors counts values, the integers that stand in for it count bytes.
        let stored = if entry.dtype == Dtype::F4 { [n, k] } else { shape };
        let entry = self.find(&names.weight, &stored)?;
        let data = self.region_as(&names.weight, entry, dtype, shape.to_vec())?;
        match format {
            Format::Fp8Block => self.later(&names.weight, &data, Admit::Weights),
            _ => self.done(&names.weight), // every other code or value is a number, or is bf16 and not looked at
        }
        let Some((scale_dtype, scale_shape)) = format.scales(n, k) else {
            return Matrix::dense(data).map_err(misfit);
        };
        let name = if format == Format::Nvfp4 { &names.weight_scale } else { &names.scale };
        let entry = self.find(name, &scale_shape)?;
        let (accepted, wanted) = match scale_dtype {
            DType::E4m3 => (Dtype::F8_E4M3, "F8_E4M3"),
            _ => (Dtype::F8_E8M0, "F8_E8M0 or U8"),
        };
        if entry.dtype != accepted && !(entry.dtype == Dtype::U8 && scale_dtype == DType::E8m0) {
            return Err(self::dtype(name, wanted, entry, SCALES));
        }
        let scales = self.region(name, entry, scale_dtype)?;
        let admit = match format {
            Format::Nvfp4 => Admit::SmallScales,
            _ => Admit::PowerScales(format),
        };
        self.later(name, &scales, admit);
        let matrix = match format {
            Format::Fp8Block => Matrix::fp8(data, scales),
            Format::Mxfp4 => Matrix::mxfp4(data, scales),
            _ => Matrix::nvfp4(data, scales, self.global_scale(&names)?),
        };
        matrix.map_err(misfit)
    }

    /// Format of a matrix, from the element type of its weights and from which scales are there.
    fn format(&self, names: &Names) -> Result<Format, CheckpointError> {
        let there = |name: &String| self.shards.tensors.contains_key(name);
        let scales = [&names.scale, &names.weight_scale, &names.weight_scale_2, &names.input_scale];
        if !there(&names.weight)
            && let Some(alone) = scales.into_iter().find(|name| there(name))
        {
            return Err(CheckpointError::Alone { name: alone.clone(), partner: names.weight.clone() });
        }
        let entry = self.entry(&names.weight)?;
        match entry.dtype {
            Dtype::F32 => Ok(Format::F32),
            Dtype::BF16 => Ok(Format::Bf16),
            Dtype::F8_E4M3 => Ok(Format::Fp8Block),
            Dtype::I8 | Dtype::U8 | Dtype::F4 => match (there(&names.scale), there(&names.weight_scale)) {
                (true, false) => Ok(Format::Mxfp4),
                (_, true) => Ok(Format::Nvfp4),
                (false, false) => Err(CheckpointError::Alone {
                    name: names.weight.clone(),
                    partner: format!("{}` (MXFP4) or `{}` (NVFP4)", names.scale, names.weight_scale),
                }),
            },
            _ => Err(dtype(&names.weight, "BF16, F32, F8_E4M3, U8, I8 or F4", entry, MATRIX)),
        }
    }

    /// Refuses a format that the configuration does not state.
    fn check_stated(&self, names: &Names, role: Role, found: Format) -> Result<(), CheckpointError> {
        match self.quantisation.stated(&names.module, role) {
            Some(stated) if !stated.formats.contains(&found) => Err(CheckpointError::Contradiction {
                name: names.weight.clone(),
                found,
                field: stated.field,
                expected: stated.formats.iter().map(|f| f.name()).collect::<Vec<_>>().join(" or "),
            }),
            _ => Ok(()),
        }
    }

    /// Refuses scales that are missing, and those of another format.
    fn check_companions(&self, names: &Names, format: Format) -> Result<(), CheckpointError> {
        let there = |name: &String| self.shards.tensors.contains_key(name);
        let (needed, wrong) = names.companions(format);
        if let Some(missing) = needed.into_iter().find(|name| !there(name)) {
            return Err(CheckpointError::Alone { name: names.weight.clone(), partner: missing.clone() });
        }
        match wrong.into_iter().find(|name| there(name)) {
            Some(name) => Err(CheckpointError::Needless {
                name: name.clone(),
                weight: names.weight.clone(),
                found: format.name().to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// The second factor of NVFP4, one f32; passes over the factor of the activations.
    fn global_scale(&mut self, names: &Names) -> Result<f32, CheckpointError> {
        // The largest weight is a product of three factors.
        let limit = f32::MAX / (e2m1::MAX * e4m3::MAX);
        let global = self.scalar(&names.weight_scale_2)?;
        if !(global > 0.0 && global <= limit) {
            let expected = format!("a finite number above 0 and at most {limit:e}");
            return Err(value(&names.weight_scale_2, 0, expected, global.to_string()));
        }
        self.done(&names.weight_scale_2);
        if self.shards.tensors.contains_key(&names.input_scale) {
            self.scalar(&names.input_scale)?;
            self.input_scales += 1;
            self.done(&names.input_scale);
        }
        Ok(global)
    }

    /// An f32 of shape `[]` or `[1]`.
    fn scalar(&self, name: &str) -> Result<f32, CheckpointError> {
        let entry = self.entry(name)?;
        if entry.dtype != Dtype::F32 {
            return Err(dtype(name, "F32", entry, SCALES));
        }
        let shape: &[usize] = if entry.shape.is_empty() { &[] } else { &[1] };
        let entry = self.find(name, shape)?;
        Ok(self.region_as(name, entry, DType::F32, vec![1])?.f32()[0])
    }
}
