//! Refusals of SGLang 0.5.23 by a request's sampling parameters (SamplingParams.verify and
//! normalize, srt/sampling/sampling_params.py): a refused request has no prompt.

use super::lax::{float_of, int_of};
use crate::json::{Json, Map};
use crate::request::wrong;
use crate::Failure;

const STOPS_MAX: usize = 32;
/// Below it sampling is greedy, whatever top_k says.
const GREEDY: f64 = 1e-6;

/// Checks the fields of a chat, a completion, or a request of another API that has the same names.
/// Fields of another type were refused before.
pub fn check(body: &Map) -> Result<(), Failure> {
    let float = |name: &str| body.some(name).and_then(float_of);
    let int = |name: &str| body.some(name).and_then(int_of);
    let refuse = |name: &str, refused: bool| match refused {
        true => Err(wrong(name, "out of the range that the engine takes")),
        false => Ok(()),
    };
    let temperature = float("temperature").unwrap_or(1.0);
    refuse("temperature", !temperature.is_finite() || temperature < 0.0)?;
    for (name, low, high) in [
        ("top_p", f64::MIN_POSITIVE, 1.0),
        ("min_p", 0.0, 1.0),
        ("frequency_penalty", -2.0, 2.0),
        ("presence_penalty", -2.0, 2.0),
        ("repetition_penalty", f64::MIN_POSITIVE, 2.0),
    ] {
        refuse(name, float(name).is_some_and(|value| !(low..=high).contains(&value)))?;
    }
    refuse("top_k", temperature >= GREEDY && int("top_k").is_some_and(|k| k < 1 && k != -1))?;
    let tokens_max = int("max_completion_tokens").filter(|tokens| *tokens != 0).or_else(|| int("max_tokens"));
    let tokens_min = int("min_tokens").unwrap_or(0);
    refuse("min_tokens", tokens_min < 0 || tokens_max.is_some_and(|max| max < tokens_min))?;
    refuse("seed", body.some("seed").is_some_and(|seed| int_of(seed).is_none()))?;
    if let Some(Json::Map(bias)) = body.get("logit_bias") {
        refuse("logit_bias", bias.iter().any(|(id, _)| crate::python::strip(id, None, true, true).parse::<u32>().is_err()))?;
    }
    for name in ["stop", "stop_sequences"] {
        refuse(name, body.get(name).and_then(Json::as_list).is_some_and(|stops| stops.len() > STOPS_MAX))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_sampling_is_has_no_prompt() {
        let verdict = |body: &str| check(Json::parse(body).unwrap().as_map().unwrap()).is_ok();
        for body in [r#"{"temperature": 0, "top_k": 0}"#, r#"{"top_p": 1, "top_k": -1, "min_tokens": 1, "max_tokens": 1}"#, "{}"] {
            assert!(verdict(body), "{body}");
        }
        for body in [
            r#"{"temperature": -1}"#, r#"{"top_p": 0}"#, r#"{"top_k": 0}"#, r#"{"min_p": 2}"#, r#"{"seed": 18446744073709551615}"#,
            r#"{"min_tokens": 2, "max_tokens": 1}"#, r#"{"max_tokens": -1}"#, r#"{"logit_bias": {"x": 1}}"#, r#"{"repetition_penalty": 3}"#,
        ] {
            assert!(!verdict(body), "{body}");
        }
    }
}
