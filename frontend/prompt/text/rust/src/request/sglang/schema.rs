//! Schemas of tools' parameters: the names of types that SGLang rewrites, which is what the model
//! is shown, and what it refuses.
//! Two passes over a schema: `rewrite_types` changes names of types, `check` decides whether it is
//! a schema at all. Both walk only keywords whose values are schemas.

use crate::json::Json;
use crate::request::wrong;
use crate::Failure;
use std::collections::HashSet;

/// Names of types of JSON Schema.
const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];
/// Keywords whose values are schemas, by how they hold them.
const SCHEMA: [&str; 11] = [
    "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties", "contentSchema",
];
const BY_NAME: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const LISTED: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];

/// normalize_json_schema_types (srt/function_call/utils.py): "varchar(255)" becomes "string", in
/// place.
pub fn rewrite_types(schema: &mut Json) {
    let map = match schema {
        Json::List(items) => return items.iter_mut().for_each(rewrite_types),
        Json::Map(map) => map,
        _ => return,
    };
    match map.get_mut("type") {
        Some(Json::Str(name)) => {
            if let Some(standard) = standard_type(name) {
                *name = standard.into();
            }
        }
        Some(Json::List(names)) => rewrite_list(names),
        _ => {}
    }
    for (key, value) in map.iter_mut() {
        match value {
            Json::Map(by_name) if BY_NAME.contains(&key) => by_name.iter_mut().for_each(|(_, v)| rewrite_types(v)),
            Json::List(items) if LISTED.contains(&key) => items.iter_mut().for_each(rewrite_types),
            value if SCHEMA.contains(&key) && key != "contentSchema" => rewrite_types(value),
            _ => {}
        }
    }
}

/// A name of a type once only. A list with anything else is refused later.
fn rewrite_list(names: &mut Vec<Json>) {
    let mut seen = HashSet::new();
    names.retain_mut(|name| match name {
        Json::Str(text) => {
            if let Some(standard) = standard_type(text) {
                *text = standard.into();
            }
            seen.insert(text.clone())
        }
        _ => true,
    });
}

/// _normalize_single_type: None where the name stays.
fn standard_type(name: &str) -> Option<&'static str> {
    if TYPES.contains(&name) {
        return None;
    }
    // "varchar(255)" counts as "varchar", in any case.
    let base = name.split('(').next().unwrap_or("");
    let base = crate::python::strip(base, None, true, true).to_lowercase();
    if let Some(standard) = TYPES.iter().find(|standard| **standard == base) {
        return Some(standard);
    }
    Some(match base.as_str() {
        "str" | "text" | "varchar" | "char" | "enum" | "uuid" | "date" | "datetime" | "time" | "timestamp"
        | "binary" | "blob" | "bytea" | "bytes" | "varbinary" => "string",
        "bool" => "boolean",
        "bigint" | "smallint" | "tinyint" => "integer",
        "double" | "decimal" | "real" | "numeric" => "number",
        "arr" | "tuple" | "set" => "array",
        "map" => "object",
        _ => {
            let begins = |prefixes: &[&str]| {
                prefixes.iter().any(|prefix| {
                    base.strip_prefix(prefix)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with(|c| "0123456789[<( \t".contains(c)))
                })
            };
            if begins(&["int", "uint", "long", "short", "unsigned"]) {
                "integer"
            } else if begins(&["num", "float"]) {
                "number"
            } else if begins(&["list"]) {
                "array"
            } else if begins(&["dict"]) {
                "object"
            } else {
                return None;
            }
        }
    })
}

/// jsonschema's Draft202012Validator.check_schema. INVALID_ARGUMENT: what is no schema of JSON
/// Schema 2020-12. UNIMPLEMENTED: a regular expression of which it is not known whether Python
/// takes it.
pub fn check(schema: &Json) -> Result<(), Failure> {
    let map = match schema {
        Json::Bool(_) => return Ok(()),
        Json::Map(map) => map,
        _ => return refused("a schema"),
    };
    for (key, value) in map.iter() {
        check_keyword(key, value)?;
    }
    Ok(())
}

/// One keyword and its value, by the metaschemas of 2020-12. Unknown keywords may have any value.
fn check_keyword(key: &str, value: &Json) -> Result<(), Failure> {
    if SCHEMA.contains(&key) {
        return check(value);
    }
    if BY_NAME.contains(&key) {
        let Json::Map(schemas) = value else { return refused(key) };
        if key == "patternProperties" {
            schemas.iter().try_for_each(|(pattern, _)| check_pattern(pattern))?;
        }
        return schemas.iter().try_for_each(|(_, schema)| check(schema));
    }
    if LISTED.contains(&key) {
        let Json::List(schemas) = value else { return refused(key) };
        return match schemas.is_empty() {
            true => refused(key),
            false => schemas.iter().try_for_each(check),
        };
    }
    let taken = match key {
        "type" => is_type(value),
        "enum" | "examples" => value.as_list().is_some(),
        "multipleOf" => number(value).is_some_and(|number| number > 0.0),
        "maximum" | "exclusiveMaximum" | "minimum" | "exclusiveMinimum" => number(value).is_some(),
        "maxLength" | "minLength" | "maxItems" | "minItems" | "maxContains" | "minContains" | "maxProperties"
        | "minProperties" => number(value).is_some_and(|number| number >= 0.0 && number.fract() == 0.0),
        "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => value.as_bool().is_some(),
        "required" => is_names(value),
        "dependentRequired" => value.as_map().is_some_and(|map| map.iter().all(|(_, names)| is_names(names))),
        "dependencies" => {
            let Json::Map(map) = value else { return refused(key) };
            return map.iter().filter(|(_, v)| !is_names(v)).try_for_each(|(_, v)| check(v));
        }
        "title" | "description" | "format" | "contentEncoding" | "contentMediaType" | "$comment" | "$schema"
        | "$ref" | "$dynamicRef" | "$recursiveRef" => value.as_str().is_some(),
        "$id" => value.as_str().is_some_and(|id| !id.trim_end_matches('#').contains('#') && !id.ends_with("##")),
        "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" => value.as_str().is_some_and(is_anchor),
        "$vocabulary" => value.as_map().is_some_and(|map| map.iter().all(|(_, v)| v.as_bool().is_some())),
        "pattern" => match value {
            Json::Str(pattern) => return check_pattern(pattern),
            _ => false,
        },
        _ => true,
    };
    match taken {
        true => Ok(()),
        false => refused(key),
    }
}

fn refused(what: &str) -> Result<(), Failure> {
    Err(wrong("a tool's parameters", &format!("no JSON Schema: {what}")))
}

/// A number; bools are none.
fn number(value: &Json) -> Option<f64> {
    match value {
        Json::Int(value) => Some(*value as f64),
        Json::Float(value) => Some(*value),
        _ => None,
    }
}

/// A name of a type, or a list of different ones.
fn is_type(value: &Json) -> bool {
    let is_name = |value: &Json| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        Json::List(names) => {
            // No more than there are, so that comparing each with each is cheap.
            let some = !names.is_empty() && names.len() <= TYPES.len();
            some && names.iter().all(is_name) && (1..names.len()).all(|at| !names[..at].contains(&names[at]))
        }
        name => is_name(name),
    }
}

/// A list of different texts.
fn is_names(value: &Json) -> bool {
    let mut seen = HashSet::new();
    value.as_list().is_some_and(|names| names.iter().all(|name| name.as_str().is_some_and(|name| seen.insert(name))))
}

fn is_anchor(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
}

/// The format "regex": Python's re.compile must take the pattern. A pattern counts as taken if the
/// crate regex-syntax takes it, but for forms that the two read differently.
fn check_pattern(pattern: &str) -> Result<(), Failure> {
    if foreign_escape(pattern) {
        return refused("a pattern that Python's re refuses");
    }
    // The crate has no look-ahead, which Python has with the same syntax inside: looked at as a
    // plain group.
    let known = pattern.replace("\\/", "/").replace("(?=", "(?:").replace("(?!", "(?:");
    match !is_read_otherwise(pattern) && regex_syntax::ast::parse::Parser::new().parse(&known).is_ok() {
        true => Ok(()),
        false => Err(Failure::unknown_here("a pattern in a tool's parameters that Python's re may refuse")),
    }
}

/// Repetitions of repetitions, and flags behind the beginning, which Python refuses.
fn is_read_otherwise(pattern: &str) -> bool {
    let bytes = pattern.as_bytes();
    let is_twice = bytes.windows(2).any(|pair| b"*+?}".contains(&pair[0]) && b"*+{".contains(&pair[1]));
    let has_flags = pattern.match_indices("(?").any(|(at, _)| {
        at > 0 && bytes.get(at + 2).is_some_and(|byte| (byte.is_ascii_alphabetic() && *byte != b'P') || *byte == b'-')
    });
    is_twice || has_flags
}

/// Whether there is an escaped ASCII letter that Python's re does not know: `\p{L}` is "bad escape
/// \p".
fn foreign_escape(pattern: &str) -> bool {
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        if c == '\\' {
            match rest.next() {
                Some(letter) if letter.is_ascii_alphabetic() => {
                    if !"AbBdDsSwWZabfnrtvxuUN".contains(letter) {
                        return true;
                    }
                }
                Some(_) => {}
                None => return true,
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(schema: &str) -> i32 {
        check(&Json::parse(schema).unwrap()).map_or_else(|failure| failure.code, |()| 0)
    }

    #[test]
    fn names_of_types_are_rewritten() {
        let mut schema = Json::parse(
            r#"{"type": "dict[str, int]", "properties": {"a": {"type": "varchar(255)"}, "b": {"type": ["int", "integer", "null"]},
                "c": {"type": "internal"}, "type": {"type": "Float64"}}, "items": {"type": "bool"}}"#,
        )
        .unwrap();
        rewrite_types(&mut schema);
        let expected = Json::parse(
            r#"{"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]},
                "c": {"type": "internal"}, "type": {"type": "number"}}, "items": {"type": "boolean"}}"#,
        )
        .unwrap();
        assert_eq!(schema, expected);
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for schema in [
            r#"{"type": "object", "properties": {"a": {"enum": [1], "default": null, "nullable": true}}, "required": []}"#,
            r#"{"minimum": 1e-07, "maximum": 100000000000000000000.0, "maxItems": 2.0, "pattern": "^[a-z]+(\\d|x)*$"}"#,
            "true", "{}",
        ] {
            assert_eq!(verdict(schema), 0, "{schema}");
        }
        for schema in [
            r#"{"type": "thing"}"#, r#"{"properties": []}"#, r#"{"required": true}"#, r#"{"required": ["a", "a"]}"#,
            r#"{"items": [{}]}"#, r#"{"anyOf": []}"#, r#"{"minLength": -1}"#, r#"{"exclusiveMinimum": true}"#, "[]", "\"x\"",
            r#"{"properties": {"a": {"description": 1}}}"#, r#"{"pattern": "\\p{L}"}"#,
        ] {
            assert_eq!(verdict(schema), 3, "{schema}");
        }
    }

    #[test]
    fn of_a_pattern_it_is_known_whether_python_takes_it_or_said_that_it_is_not() {
        for (pattern, code) in [
            ("^(?!x)[a-z]{2,3}\\d+?$", 0), ("(?i)x", 0), ("(?P<n>a)", 0), ("\\p{L}", 3), ("\\z", 3), ("a\\", 3), ("a**", 12), ("x(?i)", 12),
            ("(", 12), ("(?<=a)b", 12), ("(a)\\1", 12),
        ] {
            let taken = check_pattern(pattern).map_or_else(|failure| failure.code, |()| 0);
            assert_eq!(taken, code, "{pattern}");
        }
    }
}
