//! Reads the items of the contract off its sources. The contract has no logic, so a line reader is enough; a line that it
//! does not understand is a panic with that line.

/// A field, or an argument of a function.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) docs: Vec<String>,
    pub(crate) name: String,
    /// As written in Rust.
    pub(crate) kind: String,
}

/// A public item.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    /// A number or a text; `module` is the module it is in, if any.
    Const { docs: Vec<String>, module: Option<String>, name: String, kind: String, value: String },
    /// Documentation of a module of numbers.
    Module { docs: Vec<String> },
    /// A struct of named fields.
    Struct { docs: Vec<String>, name: String, fields: Vec<Field> },
    /// A transparent struct around a function pointer.
    Function { docs: Vec<String>, name: String, kind: String },
}

/// The public items of a source file that C can see, in order.
pub(crate) fn items(source: &str) -> Vec<Item> {
    let mut lines = source.lines().map(str::trim_end);
    let mut items = Vec::new();
    let (mut docs, mut module) = (Vec::new(), None::<String>);
    let mut rust_only = false;
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        if let Some(doc) = text.strip_prefix("///") {
            docs.push(plain(doc));
        } else if text.starts_with("#[sabi(kind(Prefix") {
            rust_only = true;
        } else if text.starts_with("#[") || text.starts_with("//") || text.is_empty() {
        } else if text == "}" && line.starts_with('}') {
            module = None;
        } else if let Some(rest) = text.strip_prefix("pub const ") {
            let statement = until(rest, ";", &mut lines);
            let (name, rest) = statement.split_once(": ").expect("a type");
            let (kind, value) = rest.split_once(" = ").expect("a value");
            let docs = std::mem::take(&mut docs);
            if kind.starts_with("&[") || name == "NONE" {
                continue;
            }
            items.push(Item::Const {
                docs,
                module: module.clone(),
                name: name.to_owned(),
                kind: kind.to_owned(),
                value: value.to_owned(),
            });
        } else if let Some(name) = text.strip_prefix("pub mod ") {
            module = Some(name.trim_end_matches(" {").to_owned());
            items.push(Item::Module { docs: std::mem::take(&mut docs) });
        } else if let Some(rest) = text.strip_prefix("pub struct ") {
            let docs = std::mem::take(&mut docs);
            if let Some((name, kind)) = rest.split_once("(pub ") {
                let kind = kind.trim_end_matches(");").to_owned();
                items.push(Item::Function { docs, name: name.to_owned(), kind });
                continue;
            }
            let fields = fields(&mut lines);
            if !std::mem::take(&mut rust_only) {
                items.push(Item::Struct { docs, name: rest.trim_end_matches(" {").to_owned(), fields });
            }
        } else if text.starts_with("impl ") || text.starts_with("unsafe impl ") {
            docs.clear();
            if !text.ends_with("{}") {
                skip_block(&mut lines);
            }
        } else if !text.starts_with("use ") && !text.starts_with("mod ") && !text.starts_with("pub use ") {
            panic!("the header generator does not understand `{text}`");
        }
    }
    items
}

fn fields<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<Field> {
    let (mut found, mut docs) = (Vec::new(), Vec::new());
    loop {
        let text = lines.next().expect("the end of a struct").trim();
        if text == "}" {
            return found;
        }
        if let Some(doc) = text.strip_prefix("///") {
            docs.push(plain(doc));
        } else if let Some(rest) = text.strip_prefix("pub ") {
            let statement = until(rest, ",", lines);
            let (name, kind) = statement.split_once(':').expect("a type");
            found.push(Field {
                docs: std::mem::take(&mut docs),
                name: name.to_owned(),
                kind: kind.trim().to_owned(),
            });
        } else {
            assert!(text.starts_with("#["), "a field, not `{text}`");
        }
    }
}

/// Joins lines up to one that ends with `end`, and leaves that off.
fn until<'a>(first: &str, end: &str, lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut text = first.to_owned();
    while !text.ends_with(end) {
        text.push(' ');
        text.push_str(lines.next().expect("the end of a statement").trim());
    }
    text.trim_end_matches(end).to_owned()
}

fn skip_block<'a>(lines: &mut impl Iterator<Item = &'a str>) {
    lines.find(|line| *line == "}").expect("the end of a block");
}

/// A line of documentation without the links of rustdoc.
fn plain(doc: &str) -> String {
    let doc = doc.strip_prefix(' ').unwrap_or(doc);
    doc.replace("[`", "`").replace("`]", "`").replace("crate::", "").replace("*/", "* /")
}
