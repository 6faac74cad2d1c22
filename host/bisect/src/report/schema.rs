//! The published schema of the JSON report.

use serde_json::Value;

use super::Report;

/// Where the schema says it lives.
const ID: &str = "hotseam/bisect-report.schema.json";

/// JSON Schema (draft 2020-12) of the JSON report, made from the types; the comments of the fields are its
/// descriptions.
pub fn schema() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
    let mut value = settings.into_generator().into_root_schema_for::<Report>().to_value();
    value["$id"] = ID.into();
    value["title"] = "hotseam bisect report".into();
    value
}
