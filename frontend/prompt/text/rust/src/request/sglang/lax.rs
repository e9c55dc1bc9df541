//! The values that pydantic (2.14) takes for a type in its lax mode, such as texts and floats for
//! integers.

use crate::json::{Json, Map};
use crate::request::wrong;
use crate::Failure;

/// A type of a field. References, so that tables of them are constants.
#[derive(Clone, Copy)]
pub enum Type {
    Any,
    Bool,
    Int,
    Float,
    Str,
    Dict,
    OneOf(&'static [&'static str]),
    List(&'static Type),
    DictOf(&'static Type),
    /// An object with these fields; others are ignored.
    Model(&'static [Field]),
    Either(&'static Type, &'static Type),
    Null(&'static Type),
}

/// A field's name, its type, and whether it must be there.
pub type Field = (&'static str, Type, bool);

impl Type {
    /// Whether pydantic takes the value as this type.
    pub fn takes(&self, value: &Json) -> bool {
        match self {
            Type::Any => true,
            Type::Bool => bool_of(value).is_some(),
            Type::Int => is_int(value),
            Type::Float => float_of(value).is_some(),
            Type::Str => value.as_str().is_some(),
            Type::Dict => value.as_map().is_some(),
            Type::OneOf(names) => value.as_str().is_some_and(|text| names.contains(&text)),
            Type::List(of) => value.as_list().is_some_and(|items| items.iter().all(|item| of.takes(item))),
            Type::DictOf(of) => value.as_map().is_some_and(|map| map.iter().all(|(_, item)| of.takes(item))),
            Type::Model(fields) => value.as_map().is_some_and(|map| check(map, fields).is_ok()),
            Type::Either(one, other) => one.takes(value) || other.takes(value),
            Type::Null(of) => value.is_null() || of.takes(value),
        }
    }
}

/// INVALID_ARGUMENT: a field that is missing, or of another type.
/// Fields that are not in the table are ignored. A table has few fields, so each is looked for in
/// turn.
pub fn check(map: &Map, fields: &[Field]) -> Result<(), Failure> {
    // Required fields that were not met; a key is there once.
    let mut required = fields.iter().filter(|(.., required)| *required).count();
    for (name, value) in map.iter() {
        let Some((_, kind, is_required)) = fields.iter().find(|(field, ..)| *field == name) else {
            continue;
        };
        if !kind.takes(value) {
            return Err(wrong(name, "of a type that the engine refuses"));
        }
        required -= usize::from(*is_required);
    }
    match fields.iter().find(|(field, _, is_required)| *is_required && required > 0 && !map.contains(field)) {
        Some((field, ..)) => Err(wrong(field, "missing")),
        None => Ok(()),
    }
}

/// A bool in lax mode. None: no bool.
pub fn bool_of(value: &Json) -> Option<bool> {
    match value {
        Json::Bool(value) => Some(*value),
        Json::Int(0) => Some(false),
        Json::Int(1) => Some(true),
        Json::Float(value) if *value == 0.0 => Some(false),
        Json::Float(value) if *value == 1.0 => Some(true),
        Json::Str(text) => match &*text.to_ascii_lowercase() {
            "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
            "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
            _ => None,
        },
        _ => None,
    }
}

/// A field that is false where it is missing; null is refused before (`check`).
pub fn flag(map: &Map, name: &str) -> bool {
    map.get(name).and_then(bool_of).unwrap_or(false)
}

/// An integer in lax mode, if 64 bits hold it. None: no integer, or a larger one.
pub fn int_of(value: &Json) -> Option<i64> {
    match value {
        Json::Bool(value) => Some(i64::from(*value)),
        Json::Int(value) => i64::try_from(*value).ok(),
        Json::Float(value) if is_int(&Json::Float(*value)) => Some(*value as i64),
        Json::Str(text) => {
            let digits = digits_of(text)?.replace('_', "");
            digits.parse().ok()
        }
        _ => None,
    }
}

/// Whether pydantic takes it as an integer, of any size.
fn is_int(value: &Json) -> bool {
    match value {
        Json::Bool(_) | Json::Int(_) => true,
        Json::Float(value) => value.fract() == 0.0 && value.abs() < 9_223_372_036_854_775_808.0,
        Json::Str(text) => digits_of(text).is_some(),
        _ => false,
    }
}

/// The sign and digits of a text that is an integer: "1", " +1_000 ", "1.00".
fn digits_of(text: &str) -> Option<&str> {
    let text = text.trim();
    let whole = match text.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => whole,
        Some(_) => return None,
        None => text,
    };
    let digits = whole.strip_prefix(['+', '-']).unwrap_or(whole);
    underscored(digits).then_some(whole)
}

/// Whether these are digits, with single underscores between them.
fn underscored(digits: &str) -> bool {
    !digits.is_empty()
        && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
        && !digits.starts_with('_')
        && !digits.ends_with('_')
        && !digits.contains("__")
}

/// A float in lax mode. None: no float.
pub fn float_of(value: &Json) -> Option<f64> {
    match value {
        Json::Bool(value) => Some(f64::from(u8::from(*value))),
        Json::Int(value) => Some(*value as f64),
        Json::Float(value) => Some(*value),
        Json::Str(text) => python_float(text),
        _ => None,
    }
}

/// Python's float(text).
/// Underscores must stand between digits.
pub fn python_float(text: &str) -> Option<f64> {
    let text = crate::python::strip(text, None, true, true);
    if text.contains('_') {
        let between_digits = text.split('_').collect::<Vec<_>>().windows(2).all(|pair| {
            pair[0].ends_with(|c: char| c.is_ascii_digit()) && pair[1].starts_with(|c: char| c.is_ascii_digit())
        });
        return between_digits.then(|| text.replace('_', "").parse().ok()).flatten();
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_floats_are_numbers_where_they_are_whole() {
        for text in [r#""1""#, r#"" +1_000 ""#, r#""1.00""#, "1.0", "true", r#""-0""#] {
            assert!(Type::Int.takes(&Json::parse(text).unwrap()), "{text}");
        }
        for text in [r#""""#, r#""1.""#, r#""1e3""#, r#""_1""#, r#""1__0""#, "1.5", "1e20", "null", r#""0x1""#] {
            assert!(!Type::Int.takes(&Json::parse(text).unwrap()), "{text}");
        }
        assert_eq!(int_of(&Json::from(" 1_000.0")), Some(1000));
        assert_eq!(float_of(&Json::from("0.9_9")), Some(0.99));
        assert_eq!(float_of(&Json::from("_1")), None);
    }

    #[test]
    fn yes_is_true() {
        assert_eq!(bool_of(&Json::from("YES")), Some(true));
        assert_eq!(bool_of(&Json::from(" true")), None);
        assert_eq!(bool_of(&Json::Int(2)), None);
    }
}
