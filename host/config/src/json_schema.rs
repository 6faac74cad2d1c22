//! The published schema of the configuration file.

use serde_json::Value;

use crate::schema::Config;

/// Where the schema says it lives.
const ID: &str = "hotseam/config.schema.json";

/// JSON Schema (draft 2020-12) of the configuration file, made from the types; the comments of the fields are its
/// descriptions. Editors that know YAML schemas complete and check with it. What depends on two fields at once, such as
/// the name of an assignment to extend, only [`crate::load`] checks.
pub fn json_schema() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_deserialize();
    let mut value = settings.into_generator().into_root_schema_for::<Config>().to_value();
    value["$id"] = ID.into();
    value["title"] = "hotseam configuration".into();
    value
}
