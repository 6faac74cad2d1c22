//! The manifest that every plugin carries: what it is, which options it has, what it needs.

use crate::cuda;
use crate::suggest::did_you_mean;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Parsed manifest of a plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Variant name, `seam/variant`.
    pub name: String,
    /// Version of the plugin; shown, never compared.
    pub version: String,
    /// One line for people.
    pub description: String,
    /// Variant that serves the ops this one leaves out.
    pub base: Option<String>,
    /// Where its ops run, and so where the memory of their arguments is.
    #[serde(default)]
    pub device: Device,
    /// Options by name.
    pub options: BTreeMap<String, OptionSpec>,
    /// What the machine must have.
    pub requires: Requires,
    /// Panic strategy of the build; `None` for plugins that are not written in Rust.
    pub panic: Option<String>,
}

/// One option of a plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptionSpec {
    /// Type of the value.
    #[serde(rename = "type")]
    pub kind: OptionKind,
    /// Value when the option is not given.
    pub default: Value,
    /// The values there are; empty means every value of the type.
    #[serde(default)]
    pub values: Vec<Value>,
    /// One line for people.
    #[serde(default)]
    pub help: String,
}

/// Where the ops of a variant run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// On the CPU, in host memory.
    #[default]
    Cpu,
    /// On a CUDA device, in its memory.
    Cuda,
}

impl Device {
    /// Name as it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }
}

/// Type of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptionKind {
    /// `true` or `false`.
    Boolean,
    /// 64-bit signed integer.
    Integer,
    /// Finite number.
    Number,
    /// Text.
    String,
}

/// What a plugin needs of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Requires {
    /// CPU features by their names in Rust (`avx2`, `fma`, ...).
    pub cpu: Vec<String>,
    /// Shared libraries that the plugin opens by itself (`libcuda.so.1`, ...); those that it is linked to are the
    /// dynamic linker's matter.
    pub libs: Vec<String>,
    /// A CUDA driver and device; `None` if it needs none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<Cuda>,
}

/// What a plugin needs of CUDA.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cuda {
    /// Oldest version of CUDA that the driver must know, as `12.8`; `None` for any.
    pub driver_min: Option<String>,
    /// Compute capabilities that it has code for, as 90 for 9.0; empty for any.
    pub sm: Vec<u32>,
}

impl OptionKind {
    const ALL: [Self; 4] = [Self::Boolean, Self::Integer, Self::Number, Self::String];

    /// Name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::String => "string",
        }
    }

    /// The value in the one form of this type (`1` is `1.0` for a number), or `None` if it is of another type.
    pub(crate) fn canonical(self, value: &Value) -> Option<Value> {
        match (self, value) {
            (Self::Boolean, Value::Bool(_)) | (Self::String, Value::String(_)) => Some(value.clone()),
            (Self::Integer, Value::Number(n)) => n.as_i64().map(Value::from),
            (Self::Number, Value::Number(n)) => {
                n.as_f64().and_then(serde_json::Number::from_f64).map(Value::Number)
            }
            _ => None,
        }
    }
}

impl Manifest {
    /// Parses the JSON text of a manifest. The error names the field, or line and column of a syntax error.
    pub(crate) fn parse(json: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(json).map_err(|e| format!("not valid JSON: {e}"))?;
        Self::read(&value)
    }

    /// As [`Manifest::parse`], of a value.
    pub(crate) fn read(value: &Value) -> Result<Self, String> {
        let top = Object::new("the manifest", value)?;
        top.known(&["name", "version", "description", "base", "device", "options", "requires", "panic"])?;

        let mut options = BTreeMap::new();
        if let Some(value) = top.fields.get("options") {
            for (name, spec) in Object::new("options", value)?.fields {
                options.insert(name.clone(), parse_option(&format!("options.{name}"), spec)?);
            }
        }
        let mut requires = Requires::default();
        if let Some(value) = top.fields.get("requires") {
            let object = Object::new("requires", value)?;
            object.known(&["cpu", "libs", "cuda"])?;
            requires.cpu = object.strings("cpu")?;
            requires.libs = object.strings("libs")?;
            requires.cuda = object.fields.get("cuda").map(parse_cuda).transpose()?;
        }
        let name = top.string("name")?;
        if crate::resolve::file_name(&name).is_none() {
            return Err(format!(
                "name: expected `seam/variant` of letters, digits, `-` and `_`, found `{name}`"
            ));
        }
        let device = match top.optional_string("device")?.as_deref() {
            None | Some("cpu") => Device::Cpu,
            Some("cuda") => Device::Cuda,
            Some(other) => return Err(format!("device: expected `cpu` or `cuda`, found `{other}`")),
        };
        Ok(Self {
            name,
            version: top.string("version")?,
            description: top.string("description")?,
            base: top.optional_string("base")?,
            device,
            options,
            requires,
            panic: top.optional_string("panic")?,
        })
    }
}

fn parse_cuda(value: &Value) -> Result<Cuda, String> {
    let object = Object::new("requires.cuda", value)?;
    object.known(&["driver_min", "sm"])?;
    let driver_min = object.optional_string("driver_min")?;
    if let Some(found) = driver_min.as_deref().filter(|text| cuda::version(text).is_none()) {
        return Err(format!("requires.cuda.driver_min: expected a version such as `12.8`, found `{found}`"));
    }
    let wrong = |found: &Value| {
        format!("requires.cuda.sm: expected a list of compute capabilities such as 90, found {found}")
    };
    let sm = match object.fields.get("sm") {
        None => Vec::new(),
        Some(list) => serde_json::from_value(list.clone()).map_err(|_| wrong(list))?,
    };
    Ok(Cuda { driver_min, sm })
}

fn parse_option(path: &str, value: &Value) -> Result<OptionSpec, String> {
    let object = Object::new(path, value)?;
    object.known(&["type", "default", "values", "help"])?;
    let kind_name = object.string("type")?;
    let kind = OptionKind::ALL.into_iter().find(|k| k.name() == kind_name).ok_or_else(|| {
        let hint = did_you_mean(&kind_name, OptionKind::ALL.iter().map(|k| k.name()));
        format!("{path}.type: unknown type `{kind_name}`. {hint}")
    })?;
    let typed = |field: &str, value: &Value| {
        kind.canonical(value)
            .ok_or_else(|| format!("{path}.{field}: expected a value of type {}, found {value}", kind.name()))
    };
    let values = match object.fields.get("values") {
        None => Vec::new(),
        Some(Value::Array(list)) => list.iter().map(|v| typed("values", v)).collect::<Result<Vec<_>, _>>()?,
        Some(other) => return Err(format!("{path}.values: expected a list, found {other}")),
    };
    let default = object.fields.get("default").ok_or_else(|| format!("{path}.default: missing"))?;
    let default = typed("default", default)?;
    if !values.is_empty() && !values.contains(&default) {
        let values = Value::Array(values);
        return Err(format!("{path}.default: expected one of {values}, found {default}"));
    }
    let help = object.optional_string("help")?.unwrap_or_default();
    Ok(OptionSpec { kind, default, values, help })
}

/// A JSON object and the path that error messages give it.
struct Object<'a> {
    path: &'a str,
    fields: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    fn new(path: &'a str, value: &'a Value) -> Result<Self, String> {
        match value {
            Value::Object(fields) => Ok(Self { path, fields }),
            other => Err(format!("{path}: expected an object, found {other}")),
        }
    }

    fn known(&self, names: &[&str]) -> Result<(), String> {
        match self.fields.keys().find(|k| !names.contains(&k.as_str())) {
            None => Ok(()),
            Some(key) => {
                let hint = did_you_mean(key, names.iter().copied());
                Err(format!("{}: unknown field `{key}`. {hint}", self.path))
            }
        }
    }

    fn optional_string(&self, field: &str) -> Result<Option<String>, String> {
        match self.fields.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(format!("{field} of {}: expected a string, found {other}", self.path)),
        }
    }

    fn string(&self, field: &str) -> Result<String, String> {
        self.optional_string(field)?.ok_or_else(|| format!("{field} of {}: missing", self.path))
    }

    fn strings(&self, field: &str) -> Result<Vec<String>, String> {
        let wrong =
            |found: &Value| format!("{}.{field}: expected a list of strings, found {found}", self.path);
        match self.fields.get(field) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => {
                list.iter().map(|v| v.as_str().map(str::to_owned).ok_or_else(|| wrong(v))).collect()
            }
            Some(other) => Err(wrong(other)),
        }
    }
}
