//! A function's parameters as TypeScript, as `openai_harmony` shows them to gpt-oss
//! (src/encoding.rs, json_schema_to_typescript).

use crate::json::{Json, Map};
use crate::python::JsonStyle;
use super::Package;
use crate::Failure;

/// The package's JSON reader (serde_json) takes 127 levels, of which a conversation has 9 around
/// the parameters of a function.
const LEVELS_MAX: usize = 118;
/// Spaces of indentation make deep and wide schemas long; no engine has a context for this.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// Appends the type to `out`. INVALID_ARGUMENT: the package cannot read such a schema.
pub fn write_type(package: Package, schema: &Json, out: &mut String) -> Result<(), Failure> {
    check(schema, 1)?;
    write(package, schema, 0, out)
}

/// INVALID_ARGUMENT: serde_json cannot read the value, for too many levels or numbers that are not
/// finite.
fn check(value: &Json, level: usize) -> Result<(), Failure> {
    if level > LEVELS_MAX {
        return Err(Failure::invalid("a schema of too many levels"));
    }
    match value {
        Json::Float(number) if !number.is_finite() => Err(Failure::invalid("a schema with a number that is not finite")),
        Json::BigInt(digits) if !digits.parse::<f64>().is_ok_and(f64::is_finite) => {
            Err(Failure::invalid("a schema with a number beyond 64-bit floats"))
        }
        Json::List(items) => items.iter().try_for_each(|item| check(item, level + 1)),
        Json::Map(map) => map.iter().try_for_each(|(_, item)| check(item, level + 1)),
        _ => Ok(()),
    }
}

/// Appends a schema as a type, without its description. `indent`: spaces in front of further lines.
/// The order of the cases is the package's: `oneOf` wins over `type`.
fn write(package: Package, schema: &Json, indent: usize, out: &mut String) -> Result<(), Failure> {
    if out.len() > TEXT_BYTES_MAX {
        return Err(Failure::unknown_here("schemas of functions that make too long a prompt"));
    }
    let Json::Map(schema) = schema else {
        out.push_str("any");
        return Ok(());
    };
    if let Some(Json::List(variants)) = schema.get("oneOf") {
        for variant in variants {
            out.push('\n');
            spaces(indent, out);
            out.push_str(" | ");
            write_nullable(package, variant, indent + 3, out)?;
            let notes = notes(package, variant, |_| true)?;
            if !notes.is_empty() {
                out.push_str(&format!(" // {}", notes.join(" ")));
            }
        }
        return Ok(());
    }
    let kind = match schema.get("type") {
        Some(Json::List(kinds)) => {
            let names: Vec<&str> = kinds.iter().filter_map(Json::as_str).map(|kind| if kind == "integer" { "number" } else { kind }).collect();
            out.push_str(&if names.is_empty() { "any".to_owned() } else { names.join(" | ") });
            return Ok(());
        }
        Some(Json::Str(kind)) => &**kind,
        _ => "any",
    };
    match kind {
        "object" => write_object(package, schema, indent, out)?,
        "string" => {
            let values = schema.get("enum").and_then(Json::as_list).unwrap_or_default();
            let values: Vec<String> = values.iter().filter_map(Json::as_str).map(|value| format!("\"{value}\"")).collect();
            out.push_str(&if values.is_empty() { "string".to_owned() } else { values.join(" | ") });
        }
        "number" | "integer" => out.push_str("number"),
        "boolean" => out.push_str("boolean"),
        "array" => match schema.get("items") {
            Some(items) => {
                write(package, items, indent, out)?;
                out.push_str("[]");
            }
            None => out.push_str("Array<any>"),
        },
        _ => out.push_str("any"),
    }
    Ok(())
}

/// An object as a block with a line for each property. Titles, descriptions, examples and defaults
/// become comments. Of a property with `oneOf` `write_variants` writes the line.
fn write_object(package: Package, schema: &Map, indent: usize, out: &mut String) -> Result<(), Failure> {
    comment(schema.text("description"), indent, out);
    out.push_str("{\n");
    let required: std::collections::HashSet<&str> =
        schema.get("required").and_then(Json::as_list).unwrap_or_default().iter().filter_map(Json::as_str).collect();
    for (name, value) in schema.get("properties").and_then(Json::as_map).into_iter().flat_map(Map::iter) {
        let nothing = Map::new();
        let fields = value.as_map().unwrap_or(&nothing);
        if let Some(title) = fields.text("title") {
            comment(Some(title), indent, out);
            spaces(indent, out);
            out.push_str("//\n");
        }
        let one_of = fields.get("oneOf");
        if one_of.is_none() {
            comment(fields.text("description"), indent, out);
        }
        let examples = fields.get("examples").and_then(Json::as_list).unwrap_or_default();
        if !examples.is_empty() {
            comment(Some("Examples:"), indent, out);
            for example in examples.iter().filter_map(Json::as_str) {
                comment(Some(&format!("- \"{example}\"")), indent, out);
            }
        }
        let mark = if required.contains(name) { "" } else { "?" };
        if let Some(Json::List(variants)) = one_of {
            write_variants(package, fields, variants, indent, out, &format!("{name}{mark}:\n"))?;
            continue;
        }
        spaces(indent, out);
        out.push_str(&format!("{name}{mark}: "));
        write_nullable(package, value, indent + 4, out)?;
        out.push(',');
        if let Some(default) = fields.get("default").filter(|_| one_of.is_none()) {
            out.push_str(&format!(" // {}", default_note(package, default, !is_enum(fields), true)?));
        }
        out.push('\n');
    }
    spaces(indent, out);
    out.push('}');
    Ok(())
}

/// A property that is one of several types; its description is written once where the first variant
/// has the same.
fn write_variants(package: Package, property: &Map, variants: &[Json], indent: usize, out: &mut String, name: &str) -> Result<(), Failure> {
    let description = property.text("description");
    let first = variants.first().and_then(Json::as_map).and_then(|variant| variant.text("description"));
    let is_above = description.is_some() && description != first;
    if is_above {
        comment(description, indent, out);
    }
    if let Some(default) = property.get("default") {
        comment(Some(&default_note(package, default, !is_enum(property), true)?), indent, out);
    }
    spaces(indent, out);
    out.push_str(name);
    for (i, variant) in variants.iter().enumerate() {
        spaces(indent, out);
        out.push_str(" | ");
        write_nullable(package, variant, indent + 3, out)?;
        let notes = notes(package, variant, |text| !(i == 0 && is_above) && Some(text) != description)?;
        if !notes.is_empty() {
            out.push_str(&format!(" // {}", notes.join(" ")));
        }
        out.push('\n');
    }
    spaces(indent, out);
    out.push_str(",\n");
    Ok(())
}

/// A type, with "| null" where the schema says nullable and the type does not say so itself.
fn write_nullable(package: Package, schema: &Json, indent: usize, out: &mut String) -> Result<(), Failure> {
    let start = out.len();
    write(package, schema, indent, out)?;
    let is_nullable = schema.as_map().and_then(|map| map.get("nullable")).and_then(Json::as_bool).unwrap_or(false);
    if is_nullable && !out[start..].contains("null") {
        out.push_str(" | null");
    }
    Ok(())
}

/// The comment behind a variant: its description, where `takes` wants it, and its default.
fn notes(package: Package, variant: &Json, takes: impl Fn(&str) -> bool) -> Result<Vec<String>, Failure> {
    let mut notes = vec![];
    let Json::Map(variant) = variant else { return Ok(notes) };
    if let Some(description) = variant.text("description").filter(|text| takes(text)) {
        notes.push(description.to_owned());
    }
    if let Some(default) = variant.get("default") {
        notes.push(default_note(package, default, !is_enum(variant), false)?);
    }
    Ok(notes)
}

/// The comment of a default value. A text is quoted, but for values of an enum; `bare`: those stand
/// as they are, not as JSON.
fn default_note(package: Package, default: &Json, quoted: bool, bare: bool) -> Result<String, Failure> {
    Ok(match default {
        Json::Str(text) if quoted => format!("default: \"{text}\""),
        Json::Str(text) if bare => format!("default: {text}"),
        value => {
            format!("default: {}", rust_text(value, JsonStyle::default(), package == Package::Openai)?)
        }
    })
}

/// As Rust's serde_json prints what it read of Python's text: floats and large integers are not
/// Python's. `is_old`: without the + of a float's exponent, as the crate ryu writes it; later
/// versions of serde_json write it.
pub fn rust_text(value: &Json, style: JsonStyle, is_old: bool) -> Result<String, Failure> {
    let value: serde_json::Value = serde_json::from_str(&value.dump(&style)).map_err(|e| Failure::invalid(e.to_string()))?;
    if !is_old {
        return Ok(value.to_string());
    }
    let mut out = vec![];
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, OldFloats);
    serde::Serialize::serialize(&value, &mut serializer).map_err(|e| Failure::invalid(e.to_string()))?;
    String::from_utf8(out).map_err(|e| Failure::internal(e.to_string()))
}

/// Writes exponents without a "+".
struct OldFloats;

impl serde_json::ser::Formatter for OldFloats {
    fn write_f64<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, value: f64) -> std::io::Result<()> {
        let text = serde_json::Number::from_f64(value).map_or_else(|| "null".to_owned(), |number| number.to_string());
        writer.write_all(text.replace("e+", "e").as_bytes())
    }
}

fn is_enum(schema: &Map) -> bool {
    schema.get("enum").and_then(Json::as_list).is_some_and(|values| !values.is_empty())
}

/// A line of comment; nothing without a text.
fn comment(text: Option<&str>, indent: usize, out: &mut String) {
    if let Some(text) = text {
        spaces(indent, out);
        out.push_str("// ");
        out.push_str(text);
        out.push('\n');
    }
}

fn spaces(count: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', count));
}
