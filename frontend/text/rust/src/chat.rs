//! Chat templates as Hugging Face's `apply_chat_template` renders them.

use crate::Failure;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::Environment;
use serde_json::Value as Json;

pub struct Template {
    environment: Environment<'static>,
}

const NAME: &str = "chat template";

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
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|e| Failure::invalid(format!("the chat template: {e:#}")))?;
        Ok(Template { environment })
    }

    pub fn render(&self, variables: &str, _now: i64) -> Result<String, Failure> {
        let variables: Json = serde_json::from_str(variables)
            .map_err(|e| Failure::invalid(format!("the template's variables: {e}")))?;
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(value_of(variables)))
            .map_err(|e| Failure::invalid(format!("the chat template: {e:#}")))
    }
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
