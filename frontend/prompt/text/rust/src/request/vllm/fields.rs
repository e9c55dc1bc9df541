//! Fields as pydantic takes them in its lax mode (pydantic-core 2.50, input_python.rs).
//! Tables name the fields of a model; `check` refuses a field that is there and is none of its
//! kind. Fields that a table does not name are ignored, as pydantic does; whether a field must be
//! there is the reader's matter.

use crate::json::{Json, Map};
use crate::request::wrong;
use crate::Failure;

/// The kind of value that a field holds. Tables say which fields may be null.
#[derive(Clone, Copy)]
pub enum Kind {
    Any,
    Bool,
    Int(i128, i128),
    Float,
    Str,
    Map,
    ListOf(&'static Kind),
    MapOf(&'static Kind),
    /// A text, or a list of so many texts at most.
    TextOr(usize),
    OneOf(&'static [&'static str]),
}

/// Integers of 64 bits, and of any size.
pub const I64: Kind = Kind::Int(i64::MIN as i128, i64::MAX as i128);
pub const INT: Kind = Kind::Int(i128::MIN, i128::MAX);

/// Name, what it holds, whether it may be null.
pub type Field = (&'static str, Kind, bool);

/// INVALID_ARGUMENT: a field of the table that is there and is something else.
pub fn check(body: &Map, table: &[Field]) -> Result<(), Failure> {
    for (name, value) in body.iter() {
        let Some((_, kind, may_be_null)) = table.iter().find(|(field, _, _)| *field == name) else {
            continue;
        };
        if !(value.is_null() && *may_be_null || is(value, *kind)) {
            return Err(wrong(name, "not what the engine takes there"));
        }
    }
    Ok(())
}

/// Whether pydantic takes the value as this kind.
fn is(value: &Json, kind: Kind) -> bool {
    match kind {
        Kind::Any => true,
        Kind::Bool => bool_of(value).is_some(),
        Kind::Int(from, to) => match value {
            Json::BigInt(_) => from == i128::MIN,
            value => int_of(value).is_some_and(|value| (from..=to).contains(&value)),
        },
        Kind::Float => float_of(value).is_some(),
        Kind::Str => value.as_str().is_some(),
        Kind::Map => value.as_map().is_some(),
        Kind::ListOf(kind) => value.as_list().is_some_and(|items| items.iter().all(|item| is(item, *kind))),
        Kind::MapOf(kind) => value.as_map().is_some_and(|map| map.iter().all(|(_, item)| is(item, *kind))),
        Kind::TextOr(most) => match value {
            Json::Str(_) => true,
            Json::List(items) => items.len() <= most && items.iter().all(|item| item.as_str().is_some()),
            _ => false,
        },
        Kind::OneOf(names) => value.as_str().is_some_and(|text| names.contains(&text)),
    }
}

/// A bool in lax mode: also 0, 1 and some words, in any case. None: no bool.
pub fn bool_of(value: &Json) -> Option<bool> {
    const TRUE: [&str; 6] = ["1", "on", "t", "true", "y", "yes"];
    const FALSE: [&str; 6] = ["0", "off", "f", "false", "n", "no"];
    match value {
        Json::Bool(value) => Some(*value),
        Json::Int(0) => Some(false),
        Json::Int(1) => Some(true),
        Json::Float(value) if *value == 0.0 || *value == 1.0 => Some(*value == 1.0),
        Json::Str(text) if TRUE.iter().any(|name| name.eq_ignore_ascii_case(text)) => Some(true),
        Json::Str(text) if FALSE.iter().any(|name| name.eq_ignore_ascii_case(text)) => Some(false),
        _ => None,
    }
}

/// An integer in lax mode: also bools, whole floats, and texts of digits with single underscores
/// and a fraction of zeros. None: no integer.
pub fn int_of(value: &Json) -> Option<i128> {
    match value {
        Json::Int(value) => Some(*value),
        Json::Bool(value) => Some(i128::from(*value)),
        Json::Float(value) if value.fract() == 0.0 && value.abs() < 1e18 => Some(*value as i128),
        Json::Str(text) => {
            let text = text.trim();
            let whole = match text.split_once('.') {
                Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => whole,
                Some(_) => return None,
                None => text,
            };
            let bad = whole.starts_with('_') || whole.ends_with('_') || whole.contains("__");
            whole.replace('_', "").parse().ok().filter(|_| !bad)
        }
        _ => None,
    }
}

/// A float in lax mode. None: no float.
pub fn float_of(value: &Json) -> Option<f64> {
    match value {
        Json::Str(text) => text.trim().replace('_', "").parse().ok(),
        Json::BigInt(digits) => digits.parse().ok(),
        Json::Float(value) => Some(*value),
        value => int_of(value).map(|value| value as f64),
    }
}

/// A field that may be null.
pub fn int(body: &Map, name: &str) -> Result<Option<i128>, Failure> {
    match body.some(name) {
        None => Ok(None),
        Some(value) => int_of(value).map(Some).ok_or_else(|| wrong(name, "no integer")),
    }
}

/// A field that may be missing but not null.
pub fn flag(body: &Map, name: &str, default: bool) -> Result<bool, Failure> {
    match body.get(name) {
        None => Ok(default),
        Some(value) => bool_of(value).ok_or_else(|| wrong(name, "neither true nor false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text).unwrap()
    }

    #[test]
    fn a_bool_is_also_what_pydantic_takes_for_one() {
        for text in ["true", "1", "1.0", "\"true\"", "\"Yes\"", "\"on\"", "\"T\""] {
            assert_eq!(bool_of(&json(text)), Some(true), "{text}");
        }
        for text in ["2", "\"\"", "\" true\"", "null", "[]", "0.5"] {
            assert_eq!(bool_of(&json(text)), None, "{text}");
        }
    }

    #[test]
    fn an_int_is_also_what_pydantic_takes_for_one() {
        for (text, value) in [
            ("5", 5),
            ("5.0", 5),
            ("\"5\"", 5),
            ("\" 5.00 \"", 5),
            ("\"1_000\"", 1000),
            ("true", 1),
            ("\"+5\"", 5),
        ] {
            assert_eq!(int_of(&json(text)), Some(value), "{text}");
        }
        for text in ["5.5", "\"5.5\"", "\"5.\"", "\"a\"", "null", "[]", "\"\"", "NaN"] {
            assert_eq!(int_of(&json(text)), None, "{text}");
        }
    }
}
