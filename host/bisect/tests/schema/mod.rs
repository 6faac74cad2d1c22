//! As much of JSON Schema as the published schemas use; a keyword it does not know is a failure, not a pass.

use serde_json::Value;

/// What is wrong with `value` under `root`; empty if it is valid.
pub(crate) fn errors(root: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(root, root, value, "$", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let keywords = match schema {
        Value::Bool(true) => return,
        Value::Object(keywords) => keywords,
        other => return found.push(format!("{at}: schema is {other}")),
    };
    for (keyword, rule) in keywords {
        let wrong = match keyword.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" | "default" | "format" => false,
            "$ref" => {
                let path = rule.as_str().and_then(|path| path.strip_prefix('#')).unwrap();
                check(root, root.pointer(path).expect("the reference leads somewhere"), value, at, found);
                false
            }
            "type" => match rule {
                Value::Array(names) => !names.iter().any(|name| is(name, value)),
                name => !is(name, value),
            },
            "enum" => !rule.as_array().unwrap().contains(value),
            "const" => rule != value,
            "minimum" => value.as_f64().is_some_and(|number| number < rule.as_f64().unwrap()),
            "maximum" => value.as_f64().is_some_and(|number| number > rule.as_f64().unwrap()),
            "pattern" => {
                let pattern = regex::Regex::new(rule.as_str().unwrap()).expect("a pattern");
                value.as_str().is_some_and(|text| !pattern.is_match(text))
            }
            "propertyNames" => {
                for name in value.as_object().into_iter().flat_map(|map| map.keys()) {
                    check(root, rule, &name.as_str().into(), &format!("{at}: name {name}"), found);
                }
                false
            }
            "minItems" => value.as_array().is_some_and(|list| (list.len() as u64) < rule.as_u64().unwrap()),
            "exclusiveMinimum" => value.as_f64().is_some_and(|number| number <= rule.as_f64().unwrap()),
            "minProperties" => {
                value.as_object().is_some_and(|map| (map.len() as u64) < rule.as_u64().unwrap())
            }
            "maxItems" => value.as_array().is_some_and(|list| list.len() as u64 > rule.as_u64().unwrap()),
            "required" => {
                let has = |name: &Value| value.get(name.as_str().unwrap()).is_some();
                value.is_object() && !rule.as_array().unwrap().iter().all(has)
            }
            "properties" => {
                for (name, schema) in rule.as_object().unwrap() {
                    if let Some(inner) = value.get(name) {
                        check(root, schema, inner, &format!("{at}.{name}"), found);
                    }
                }
                false
            }
            "additionalProperties" => {
                let known = |name: &str| keywords.get("properties").is_some_and(|p| p.get(name).is_some());
                for (name, inner) in value.as_object().into_iter().flatten().filter(|(name, _)| !known(name))
                {
                    match rule {
                        Value::Bool(false) => found.push(format!("{at}: {name} is not known")),
                        rule => check(root, rule, inner, &format!("{at}.{name}"), found),
                    }
                }
                false
            }
            "items" => {
                for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, inner, &format!("{at}[{index}]"), found);
                }
                false
            }
            "prefixItems" => {
                let rules = rule.as_array().unwrap();
                for (index, (rule, inner)) in
                    rules.iter().zip(value.as_array().into_iter().flatten()).enumerate()
                {
                    check(root, rule, inner, &format!("{at}[{index}]"), found);
                }
                false
            }
            "anyOf" | "oneOf" => {
                let fits = |schema: &&Value| {
                    let mut inner = Vec::new();
                    check(root, schema, value, at, &mut inner);
                    inner.is_empty()
                };
                let count = rule.as_array().unwrap().iter().filter(fits).count();
                if keyword == "oneOf" { count != 1 } else { count == 0 }
            }
            _ => {
                found.push(format!("{at}: keyword {keyword} is not known here"));
                false
            }
        };
        if wrong {
            found.push(format!("{at}: {value} against {keyword} {rule}"));
        }
    }
}

fn is(name: &Value, value: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other}"),
    }
}
