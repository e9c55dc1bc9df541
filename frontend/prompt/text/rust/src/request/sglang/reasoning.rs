//! How SGLang 0.5.23 turns reasoning on and off, and writes that of former turns: by
//! --reasoning-parser (srt/parser/reasoning_parser.py) and by what the template's source says
//! (template_facts_sglang.rs).

use super::chat::ChatRequest;
use crate::request::{wrong, Convention};
use crate::template_facts_sglang::{Reasoning, Special};
use crate::Failure;

/// A detector of ReasoningParser.DetectorMap: what begins and ends reasoning in a text, and when a
/// model reasons.
struct Detector {
    begin: &'static str,
    end: &'static str,
    mode: &'static str,
}

/// None: the engine knows no such parser, or its marks depend on more (`OTHERS`).
fn detector(parser: &str) -> Option<Detector> {
    let (begin, end, mode) = match parser.to_lowercase().as_str() {
        "apertus2509" => ("<|inner_prefix|>", "<|inner_suffix|>", "always"),
        "deepseek-r1" | "step3" | "step3p5" | "gigachat35" | "minimax-append-think" => ("<think>", "</think>", "always"),
        "deepseek-v3" | "deepseek-v4" | "deepseek-v41" => ("<think>", "</think>", "thinking"),
        "dots" | "qwen3" | "qwen3-thinking" | "minimax" | "nanbeige" | "interns1" | "glm45" | "ling3" | "nemotron_3"
        | "granite_thinking_parser" | "iquest_q1" | "mimo" | "poolside_v1" => ("<think>", "</think>", "enable_thinking"),
        "gpt-oss" => ("<|channel|>analysis<|message|>", "<|end|>", "always"),
        "kimi" => ("◁think▷", "◁/think▷", "always"),
        "kimi_k2" => ("<think>", "</think>", "thinking"),
        "minimax-m3" => ("<mm:think>", "</mm:think>", "always"),
        "mistral" => ("[THINK]", "[/THINK]", "mistral"),
        "gemma4" => ("<|channel>thought\n", "<channel|>", "enable_thinking"),
        "cohere_command4" => ("<|START_THINKING|>", "<|END_THINKING|>", "always"),
        _ => return None,
    };
    Some(Detector { begin, end, mode })
}

/// Parsers whose marks depend on more than their names.
const OTHERS: [&str; 8] = ["auto", "beam", "hunyuan", "inkling", "k2_horizon", "kimi_k3", "muse", "response_template"];

/// wrap_reasoning_history: the reasoning of a former turn as a text; None where no parser tells its
/// marks.
pub fn as_text(convention: &Convention, reasoning: &str) -> Result<Option<String>, Failure> {
    if OTHERS.contains(&convention.reasoning_parser) {
        return Err(unknown(convention));
    }
    Ok(detector(convention.reasoning_parser).map(|marks| format!("{}{reasoning}\n{}", marks.begin, marks.end)))
}

fn unknown(convention: &Convention) -> Failure {
    Failure::unknown_here(format!("reasoning with --reasoning-parser {}", convention.reasoning_parser))
}

/// apply_reasoning_enabled: what `thinking` of /v1/messages sets.
/// By the parser where it has a rule of its own; else by what the template's source says
/// (`config`), where that is known; else by the parser's mode. INVALID_ARGUMENT: the model cannot
/// be switched so.
pub fn switch(
    request: &mut ChatRequest,
    convention: &Convention,
    config: Option<Reasoning>,
    on: bool,
) -> Result<(), Failure> {
    match convention.reasoning_parser {
        "" if on => return Err(wrong("thinking", "enabled, and the engine has no reasoning parser")),
        "" => return Ok(()),
        "hunyuan" => {
            let is_by_effort = config.and_then(|config| config.special) == Some(Special::Hunyuan);
            let level = if is_by_effort { "high" } else { "medium" };
            request.reasoning_effort = Some(if on { level } else { "no_think" }.into());
            return Ok(());
        }
        "iquest_q1" => {
            request.kwargs.insert("thinking", on);
            request.kwargs.insert("enable_thinking", on);
            return Ok(());
        }
        parser if OTHERS.contains(&parser) => return Err(unknown(convention)),
        _ => {}
    }
    let mode = detector(convention.reasoning_parser).map_or("", |detector| detector.mode);
    let by_template = config.is_some();
    let special = config.and_then(|config| config.special);
    if special == Some(Special::Mistral) || !by_template && mode == "mistral" {
        request.reasoning_effort = Some(if on { "medium" } else { "none" }.into());
        return Ok(());
    }
    if special == Some(Special::Always) || !by_template && mode == "always" {
        return match on {
            true => Ok(()),
            false => Err(wrong("thinking", "disabled, and this model always reasons")),
        };
    }
    let toggle = match config {
        Some(config) => config.toggle.filter(|_| config.enabled_by_default.is_some()),
        None => ["thinking", "enable_thinking"].into_iter().find(|name| *name == mode),
    };
    match toggle {
        Some(toggle) => request.kwargs.insert(toggle, on),
        None if on => return Err(wrong("thinking", "enabled, and nothing turns it on")),
        None => {}
    }
    Ok(())
}
