//! Chat templates as Hugging Face's `apply_chat_template` renders them: Jinja2 with `trim_blocks` and `lstrip_blocks`, loop
//! controls, `generation` blocks, `raise_exception`, `strftime_now`, a `tojson` that is Python's `json.dumps`, and Python's methods.

use crate::Failure;
use crate::python;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use serde_json::Value as Json;

pub struct Template {
    environment: Environment<'static>,
}

const NAME: &str = "chat template";
/// Far more than any conversation needs, and an end for a template that has none.
const STEPS_MAX: u64 = 1_000_000_000;

impl Template {
    pub fn new(source: &str) -> Result<Self, Failure> {
        let mut environment = Environment::new();
        environment.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .map_err(|e| Failure::internal(e.to_string()))?,
        );
        environment.set_fuel(Some(STEPS_MAX));
        environment.set_unknown_method_callback(python::method);
        environment.set_formatter(|out, state, value| match python::float_text(value) {
            Some(text) => out.write_str(&text).map_err(Error::from),
            None => minijinja::escape_formatter(out, state, value),
        });
        environment.add_filter("tojson", to_json);
        environment.add_filter("trim", |value: &Value, chars: Option<&str>| match value.as_str() {
            Some(text) => python::strip(text, chars, true, true).to_owned(),
            None => python::strip(&value.to_string(), chars, true, true).to_owned(),
        });
        environment.add_filter("string", |value: &Value| match python::float_text(value) {
            Some(text) => Value::from(text),
            None if value.kind() == ValueKind::String => value.clone(),
            None => Value::from(value.to_string()),
        });
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, without_generation(source))
            .map_err(|e| Failure::invalid(format!("the chat template: {e:#}")))?;
        Ok(Template { environment })
    }

    pub fn render(&self, variables: &str, now: i64) -> Result<String, Failure> {
        let variables: Json = serde_json::from_str(variables)
            .map_err(|e| Failure::invalid(format!("the template's variables: {e}")))?;
        let Json::Object(mut pairs) = variables else {
            return Err(Failure::invalid("the template's variables are no object"));
        };
        pairs.remove("strftime_now");
        let now = Value::from_function(move |format: &str| python::strftime(format, now));
        let variables = Value::from_pairs(
            pairs
                .into_iter()
                .map(|(name, value)| (Value::from(name), value_of(value)))
                .chain([(Value::from("strftime_now"), now)]),
        );
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(variables))
            .map_err(|e| Failure::invalid(format!("the chat template: {e}")))
    }
}

/// `{% generation %}` marks for training what the model said; here it is a block that is always printed.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else {
            break;
        };
        let tag = &rest[open + 2..open + length];
        let word = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let stands_for = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => word,
        };
        out.push_str(&rest[..open + 2]);
        out.push_str(&if stands_for == word { tag.to_owned() } else { tag.replacen(word, stands_for, 1) });
        rest = &rest[open + length..];
    }
    out.push_str(rest);
    out
}

fn value_of(json: Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(bool) => Value::from(bool),
        Json::Number(number) => {
            if let Some(number) = number.as_i64() {
                Value::from(number)
            } else if let Some(number) = number.as_u64() {
                Value::from(number)
            } else {
                Value::from(number.as_f64().unwrap_or(f64::NAN))
            }
        }
        Json::String(text) => Value::from(text),
        Json::Array(items) => Value::from(items.into_iter().map(value_of).collect::<Vec<_>>()),
        Json::Object(pairs) => Value::from_pairs(pairs.into_iter().map(|(k, v)| (k, value_of(v)))),
    }
}

/// json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
fn to_json(_state: &State, value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let mut style = python::JsonStyle::default();
    let indent = match indent {
        Some(indent) => indent,
        None => options.get::<Option<Value>>("indent")?.unwrap_or_default(),
    };
    if let Some(text) = indent.as_str() {
        style.indent = Some(text.to_owned());
    } else if let Ok(width) = i64::try_from(indent.clone()) {
        style.indent = Some(" ".repeat(width.clamp(0, 64) as usize));
    }
    style.ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if style.indent.is_some() {
        style.item_separator = ",".to_owned();
    }
    if let Some(separators) = options.get::<Option<Value>>("separators")? {
        if separators.kind() != ValueKind::None {
            style.item_separator = separators.get_item_by_index(0)?.to_string();
            style.key_separator = separators.get_item_by_index(1)?.to_string();
        }
    }
    options.assert_all_used()?;
    let mut out = String::new();
    python::write_json(value, &style, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}
