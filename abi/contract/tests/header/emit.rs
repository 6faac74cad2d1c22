//! Writes the items of the contract as C.

use crate::layouts::Layout;
use crate::parse::{Field, Item};
use std::fmt::Write as _;

/// Front of every type name.
const PREFIX: &str = "Hotseam";

/// One header a source, in order; each includes the one before.
pub(crate) fn headers<'a>(parsed: &[(&'a str, Vec<Item>)]) -> Vec<(&'a str, String)> {
    let mut headers = Vec::new();
    for (i, (file, items)) in parsed.iter().enumerate() {
        let mut out = opening(file);
        match i {
            0 => {
                out.push_str("#include <stddef.h>\n#include <stdint.h>\n\n");
                forward(parsed.iter().flat_map(|(_, items)| items), &mut out);
            }
            _ => {
                let _ = writeln!(out, "#include \"{}\"\n", parsed[i - 1].0);
            }
        }
        let last = i + 1 == parsed.len();
        out.push_str("#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
        items.iter().for_each(|item| write_item(item, &mut out));
        if last {
            out.push_str(
                "\n/** The symbol that a plugin in C or C++ exports. What it returns lives as long as the process. */\n\
                 const HotseamPluginV1 *hotseam_plugin_v1(void);\n",
            );
        }
        out.push_str("\n#ifdef __cplusplus\n}\n#endif\n");
        if last {
            out.push_str("\n#include \"layout.h\"\n");
        }
        out.push_str("\n#endif\n");
        headers.push((*file, out));
    }
    headers
}

/// Sizes and offsets as assertions of the compiler.
pub(crate) fn layout(layouts: &[Layout]) -> String {
    let mut out = opening("layout.h");
    out.push_str("#include \"plugin.h\"\n\n#ifdef __cplusplus\n#define HOTSEAM_LAYOUT(what) static_assert(what, #what)\n#else\n#define HOTSEAM_LAYOUT(what) _Static_assert(what, #what)\n#endif\n");
    for layout in layouts {
        let name = format!("{PREFIX}{}", layout.name);
        let mut line = format!("\nHOTSEAM_LAYOUT(sizeof({name}) == {}", layout.size);
        for (field, offset) in &layout.fields {
            let term = format!(" && offsetof({name}, {}) == {offset}", self::field(field));
            if line.len() + term.len() > 116 {
                out.push_str(&line);
                line = "\n              ".to_owned();
            }
            line.push_str(&term);
        }
        let _ = write!(out, "{line});");
    }
    out.push_str("\n\n#endif\n");
    out
}

fn opening(file: &str) -> String {
    let guard = format!("HOTSEAM_{}", file.replace('.', "_").to_uppercase());
    format!(
        "/* The plugin contract of Hotseam in C: generated from abi/contract/src by its tests, and checked by them. Do not\n \
         * edit. */\n#ifndef {guard}\n#define {guard}\n\n"
    )
}

fn forward<'a>(items: impl Iterator<Item = &'a Item>, out: &mut String) {
    for item in items {
        if let Item::Struct { name, .. } = item {
            let _ = writeln!(out, "typedef struct {PREFIX}{name} {PREFIX}{name};");
        }
    }
    out.push('\n');
}

fn write_item(item: &Item, out: &mut String) {
    match item {
        Item::Module { docs } => {
            out.push('\n');
            write_docs(docs, "", out);
        }
        Item::Const { docs, module, name, kind, value } => {
            if module.is_none() {
                out.push('\n');
            }
            write_docs(docs, "", out);
            let module = module.as_ref().map(|m| format!("{}_", m.to_uppercase())).unwrap_or_default();
            let value = match (kind.as_str(), value.split_once(" << ")) {
                ("u64", Some((one, bits))) => format!("((uint64_t){one} << {bits})"),
                ("u32", None) => format!("{value}u"),
                ("i32", None) | ("&str", None) => value.clone(),
                other => panic!("constant {name}: {other:?}"),
            };
            let _ = writeln!(out, "#define HOTSEAM_{module}{name} {value}");
        }
        Item::Function { docs, name, kind } => {
            out.push('\n');
            write_docs(docs, "", out);
            let _ = writeln!(out, "typedef {};", declare(kind, &format!("{PREFIX}{name}")));
        }
        Item::Struct { docs, name, fields } => {
            out.push('\n');
            write_docs(docs, "", out);
            let _ = writeln!(out, "struct {PREFIX}{name} {{");
            for Field { docs, name, kind } in fields {
                write_docs(docs, "    ", out);
                let _ = writeln!(out, "    {};", declare(kind, field(name)));
            }
            out.push_str("};\n");
        }
    }
}

fn write_docs(docs: &[String], indent: &str, out: &mut String) {
    for (i, line) in docs.iter().enumerate() {
        let start = if i == 0 { "/** " } else { " *  " };
        let end = if i + 1 == docs.len() { " */" } else { "" };
        let _ = writeln!(out, "{}", format!("{indent}{start}{line}{end}").trim_end());
    }
}

/// The name of a field in C, where `register` is a word of the language.
fn field(name: &str) -> &str {
    if name == "register" { "register_" } else { name }
}

/// The C declaration of `name` with a Rust type.
fn declare(kind: &str, name: &str) -> String {
    let kind = kind.trim();
    if let Some(inner) = kind.strip_prefix("Option<").and_then(|k| k.strip_suffix('>')) {
        return declare(inner, name);
    }
    if let Some(rest) = kind.strip_prefix("extern \"C\" fn(") {
        let (args, result) = rest.rsplit_once(')').expect("the end of the arguments");
        let result = result.trim().strip_prefix("-> ").map_or("void".to_owned(), |kind| declare(kind, ""));
        let args: Vec<String> = args
            .split(", ")
            .map(|arg| {
                let (name, kind) =
                    arg.trim().trim_end_matches(',').split_once(": ").expect("a named argument");
                // `this` is a word of C++.
                declare(kind, if name == "this" { "self" } else { name })
            })
            .collect();
        return format!(
            "{}{}(*{name})({})",
            result.trim(),
            if result.ends_with('*') { "" } else { " " },
            args.join(", ")
        );
    }
    if let Some((inner, len)) = kind.strip_prefix('[').and_then(|k| k.strip_suffix(']')?.split_once("; ")) {
        return declare(inner, &format!("{name}[{len}]"));
    }
    for (pointer, constant) in [("*const ", true), ("&'static ", true), ("*mut ", false)] {
        if let Some(inner) = kind.strip_prefix(pointer) {
            let target = declare(inner, &format!("*{name}"));
            return if constant { format!("const {target}") } else { target };
        }
    }
    let base = match kind {
        "u8" => "uint8_t".to_owned(),
        "u32" => "uint32_t".to_owned(),
        "i32" => "int32_t".to_owned(),
        "u64" => "uint64_t".to_owned(),
        "i64" => "int64_t".to_owned(),
        "f32" => "float".to_owned(),
        "usize" => "size_t".to_owned(),
        "c_void" => "void".to_owned(),
        own if own.chars().all(char::is_alphanumeric) => format!("{PREFIX}{own}"),
        other => panic!("no C type for `{other}`"),
    };
    format!("{base} {name}").trim_end().to_owned()
}
