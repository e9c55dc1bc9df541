//! How SGLang 0.5.23 reads a request (files below sglang/srt/ are named).
//!   /v1/chat/completions  chat_request (pydantic) ─▶ chat: validate ─▶ process ─▶ transformers
//!   /v1/messages          messages  ─▶ ChatRequest ─▶ validate ─▶ process
//!   /v1/responses         responses ─▶ ChatRequest ─▶ process; gpt-oss: responses_harmony
//!   /v1/completions, /generate          completions
//!
//! `lax` and `fields` stand for pydantic, `schema` for jsonschema, `sampling` for SamplingParams.

pub mod chat;
mod chat_request;
mod completions;
mod fields;
pub mod lax;
mod messages;
mod reasoning;
mod responses;
mod responses_harmony;
mod sampling;
mod schema;

use super::{Convention, Path, Reading};
use crate::chat::{Template, Templates};
use crate::json::Map;
use crate::Failure;

pub fn read(templates: &Templates, convention: &Convention, path: Path, body: Map) -> Result<Reading, Failure> {
    match path {
        Path::Completions => completions::read(body),
        Path::Generate => completions::generate(body),
        Path::Chat => chat::read(templates, convention, body),
        Path::Messages => messages::read(templates, convention, body),
        Path::Responses => responses::read(templates, convention, body),
    }
}

/// The template that SGLang renders. UNIMPLEMENTED: models whose chats SGLang writes itself,
/// without one.
/// SGLang knows one template, the first of a model.
pub fn template_of<'a>(templates: &'a Templates, convention: &Convention) -> Result<&'a Template, Failure> {
    let parsers = ["deepseekv41", "deepseekv4", "deepseekv32", "kimi_k3"];
    // resolve_chat_encoding_spec, srt/entrypoints/openai/chat_encoding.py, which goes by
    // architectures; MODEL_TYPE_TO_TEMPLATE, srt/parser/conversation.py.
    let model_types = [
        "deepseek_v4", "deepseek_v41", "kimi_k3", "inkling", "inkling_mm_model", "internvl_chat", "deepseek_vl_v2", "multi_modality",
        "phi4mm", "minicpmv", "minicpmo", "moss_vl", "deepseek-ocr", "unlimited-ocr", "paddleocr_vl", "whisper", "muse_spark",
        "minimax_m3_vl",
    ];
    let is_own = parsers.contains(&convention.tool_call_parser) || model_types.contains(&convention.model_type);
    let template = templates.first();
    if is_own || template.is_none() && convention.model_type.starts_with("deepseek_v3") {
        return Err(Failure::unknown_here("the engine has an encoding of its own for chats of this model"));
    }
    template.ok_or_else(|| Failure::invalid("this model has no chat template"))
}

/// Whether the model takes images, by its `model_type` (multimodal_model_archs,
/// srt/configs/model_config.py): its prompts are texts that are encoded again, with special tokens.
pub fn is_multimodal(convention: &Convention) -> bool {
    const TYPES: [&str; 33] = [
        "gemma3n", "gemma4", "gemma4_unified", "cohere2_vision", "ernie4_5_moe_vl", "glm4v", "glm4v_moe", "glm5_next", "glm_ocr",
        "interns1", "kimi_k25", "kimi_vl", "lfm2_vl", "lighton_ocr", "llava", "llava_llama", "llava_mistral", "llava_next",
        "llava_onevision", "llava_qwen", "mistral3", "mllama", "pixtral", "qwen2_5_vl", "qwen2_audio", "qwen2_vl", "qwen3_5",
        "qwen3_5_moe", "qwen3_omni_moe", "qwen3_vl", "qwen3_vl_moe", "step3p7", "voxtral",
    ];
    TYPES.contains(&convention.model_type)
}
