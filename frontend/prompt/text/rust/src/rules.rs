//! The changes that `AutoTokenizer` of the Python package `transformers`, version 5, makes to the
//! tokenizer.json of a folder when it loads it. Special tokens that the configuration names are
//! added, and four classes of tokenizers replace parts of the file by their own. `add_bos_token`
//! and `add_eos_token` change nothing where there is a tokenizer.json: its post-processor stands.
//! `apply` follows the constructor of the Python class: first the parts of the tokenizer
//! (`rebuild`), then the named special tokens, then the tokens that are added. Ids depend on that
//! order, since a token that is new gets the next free id.

use crate::Failure;
use serde_json::{json, Map, Value};
use tokenizers::models::ModelWrapper;
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

/// Special tokens that every tokenizer class has, in the order in which they are added.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Types of models whose tokenizer_config.json names the wrong class: transformers ignores the
/// class.
const CLASS_IS_WRONG: [&str; 48] = [
    "arctic", "chatlm", "ernie4_5", "ernie4_5_moe", "fuyu", "h2ovl_chat", "hyperclovax", "hyperclovax_vlm",
    "hyperclovax_vision_v2", "internlm2", "internlm3", "iquestcoder", "jamba", "llava", "llava_next",
    "minicpm3", "minicpmv", "minimax_m2", "modernbert", "modernbert-decoder", "molmo", "molmo2", "nemotron",
    "nvfp4", "opencua", "openvla", "paddleocr_vl", "phi3", "phi3_v", "phimoe", "qwen3_5",
    "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "step3_vl", "vipllava", "cohere_asr", "camembertv2-base",
    "siglip2", "smolvlm", "mistral", "mistral3", "mixtral", "ministral", "ministral3", "pixtral", "voxtral",
    "mistral4",
];

/// The expression of the class Qwen2Tokenizer, which replaces the file's.
const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Changes `tokenizer` as `options` say (kvatlas_text.h) and returns the named special tokens,
/// which templates print.
/// 1. Rebuilds the parts that the class replaces.
/// 2. Names: each special token from special_tokens_map.json (only where the configuration has no
///    added_tokens_decoder), else from the configuration, else the default of the class. Then the
///    model's own `*_token` fields and `extra_special_tokens`.
/// 3. Unless the rules are those of the file alone, adds known tokens and special tokens to the
///    tokenizer.
pub fn apply(tokenizer: &mut Tokenizer, options: &Value) -> Result<Map<String, Value>, Failure> {
    let empty = json!({});
    let config = match &options["tokenizer_config"] {
        Value::Null => &empty,
        config => config,
    };
    let as_file = options["rules"] == "file";
    let class = if as_file { "" } else { class_of(tokenizer, config, &options["model_type"])? };
    rebuild(tokenizer, class, config)?;

    let known = known_tokens(tokenizer, config)?;
    let defaults = defaults_of(class);
    let legacy = match config.get("added_tokens_decoder") {
        None => &options["special_tokens_map"],
        Some(_) => &Value::Null,
    };
    let value_of = |name: &str| -> Value {
        for source in [legacy, config, &defaults] {
            if let Some(value) = source.get(name) {
                return value.clone();
            }
        }
        Value::Null
    };
    let mut named: Vec<(String, Token)> = vec![];
    for name in NAMED {
        if let Some(token) = Token::of(&value_of(name), &known)? {
            named.push((name.to_owned(), token));
        }
    }
    let mut models_own: Vec<(String, Value)> = vec![];
    if let Some(config) = config.as_object() {
        for (name, value) in config {
            if name.ends_with("_token") && !NAMED.contains(&name.as_str()) && (value.is_string() || is_token(value)) {
                models_own.push((name.clone(), value.clone()));
            }
        }
    }
    let listed = |key: &str| config.get(key).filter(|value| !value.is_null()).cloned();
    let extra = listed("extra_special_tokens")
        .filter(|value| !(value.as_array().is_some_and(Vec::is_empty)))
        .or_else(|| listed("additional_special_tokens"))
        .unwrap_or(Value::Null);
    if let Some(extra) = extra.as_object() {
        models_own.extend(extra.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    for (name, value) in models_own {
        if let Some(token) = Token::of(&value, &[])? {
            named.push((name, token));
        }
    }
    let mut specials: Vec<Token> = named.iter().map(|(_, token)| token.clone()).collect();
    if let Some(extra) = extra.as_array() {
        for value in extra {
            specials.extend(Token::of(value, &[])?);
        }
    }
    if !as_file {
        add_known(tokenizer, &known, &specials)?;
        add_specials(tokenizer, &specials)?;
    }
    Ok(named.into_iter().map(|(name, token)| (name, json!(token.0.content))).collect())
}

/// Classes for which SGLang restores `add_bos_token` (utils/hf_transformers/tokenizer.py,
/// _fix_v5_add_bos_eos_token; version 0.5.23).
const SGLANG_ADDS_BOS: [&str; 7] = [
    "LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast", "GemmaTokenizer",
    "GemmaTokenizerFast", "CohereTokenizerFast",
];

/// The ids that SGLang puts in front of a text and behind it, where these are not those of
/// tokenizer.json's post-processor: the BOS alone, unless tokenizer_config.json says false.
pub fn sglang_around(tokenizer: &Tokenizer, options: &Value, named: &Map<String, Value>) -> Option<(Vec<u32>, Vec<u32>)> {
    let config = &options["tokenizer_config"];
    let is_known = config["tokenizer_class"].as_str().is_some_and(|class| SGLANG_ADDS_BOS.contains(&class));
    if options["rules"] == "file" || !is_known || config["add_bos_token"] == Value::Bool(false) {
        return None;
    }
    let bos = named.get("bos_token").and_then(Value::as_str).and_then(|bos| tokenizer.token_to_id(bos));
    Some((bos.into_iter().collect(), vec![]))
}

/// A named special token; `special` is set whatever its source says.
#[derive(Clone)]
struct Token(AddedToken);

/// Whether this is a token as the files write one: an object with content.
fn is_token(value: &Value) -> bool {
    value.get("content").is_some_and(Value::is_string)
}

fn flag(value: &Value, name: &str, default: bool) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(default)
}

/// As Python's `AddedToken(**value)`.
fn added_token(value: &Value) -> Result<AddedToken, Failure> {
    let content = value["content"]
        .as_str()
        .ok_or_else(|| Failure::invalid(format!("an added token without content: {value}")))?;
    let special = flag(value, "special", false);
    Ok(AddedToken::from(content, special)
        .single_word(flag(value, "single_word", false))
        .lstrip(flag(value, "lstrip", false))
        .rstrip(flag(value, "rstrip", false))
        .normalized(flag(value, "normalized", !special)))
}

impl Token {
    /// A text or an object. A token that is known by its content keeps the flags that it has there.
    /// None: an empty text, or no token.
    fn of(value: &Value, known: &[AddedToken]) -> Result<Option<Self>, Failure> {
        let token = match value {
            Value::String(content) if content.is_empty() => return Ok(None),
            Value::String(content) => AddedToken::from(content.as_str(), true),
            value if is_token(value) => added_token(value)?,
            _ => return Ok(None),
        };
        let token = known.iter().find(|other| other.content == token.content).unwrap_or(&token).clone();
        Ok(Some(Token(token.special(true))))
    }
}

/// Added tokens by what the configuration says, else by tokenizer.json, in the order of their ids.
fn known_tokens(tokenizer: &Tokenizer, config: &Value) -> Result<Vec<AddedToken>, Failure> {
    let mut tokens = vec![];
    match config.get("added_tokens_decoder").and_then(Value::as_object) {
        Some(decoder) => {
            for (id, value) in decoder {
                let id: u32 = id
                    .parse()
                    .map_err(|_| Failure::invalid(format!("tokenizer_config.json: a token's id is {id:?}")))?;
                tokens.push((id, added_token(value)?));
            }
        }
        None => tokens.extend(tokenizer.get_added_tokens_decoder()),
    }
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens.into_iter().map(|(_, token)| token).collect())
}

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::invalid(format!("added tokens: {e}"))
}

/// Adds the tokens of the configuration that tokenizer.json lacks or has with other flags, then
/// special tokens that are in neither.
fn add_known(tokenizer: &mut Tokenizer, known: &[AddedToken], specials: &[Token]) -> Result<(), Failure> {
    let there = tokenizer.get_added_tokens_decoder();
    let mut add: Vec<AddedToken> = known
        .iter()
        .filter(|token| !there.values().any(|other| other == *token && other.content == token.content))
        .cloned()
        .collect();
    for Token(token) in specials {
        let is_there = there.values().any(|other| other.content == token.content);
        if !is_there && !add.iter().any(|other| other.content == token.content) {
            add.push(token.clone());
        }
    }
    tokenizer.add_tokens(add).map_err(failed)?;
    Ok(())
}

/// Adds special tokens that are still missing, and marks the others as special.
fn add_specials(tokenizer: &mut Tokenizer, specials: &[Token]) -> Result<(), Failure> {
    tokenizer
        .add_special_tokens(specials.iter().map(|Token(token)| token.clone()).collect::<Vec<_>>())
        .map_err(failed)?;
    Ok(())
}

/// The class that is loaded, of those that change something. Empty: none of them. A LlamaTokenizer
/// over ByteLevel is another kind of tokenizer and stays as its file says.
fn class_of<'a>(tokenizer: &Tokenizer, config: &'a Value, model_type: &Value) -> Result<&'a str, Failure> {
    let class = config["tokenizer_class"].as_str().unwrap_or("");
    let class = class.strip_suffix("Fast").unwrap_or(class);
    let is_bpe = matches!(tokenizer.get_model(), ModelWrapper::BPE(_));
    let known = ["LlamaTokenizer", "GemmaTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer"];
    if !is_bpe || !known.contains(&class) || model_type.as_str().is_some_and(|t| CLASS_IS_WRONG.contains(&t)) {
        return Ok("");
    }
    if class == "LlamaTokenizer" {
        let pre_tokenizer = serde_json::to_string(&tokenizer.get_pre_tokenizer())
            .map_err(|e| Failure::internal(e.to_string()))?;
        let decoder = serde_json::to_string(&tokenizer.get_decoder()).map_err(|e| Failure::internal(e.to_string()))?;
        if pre_tokenizer.contains("\"ByteLevel\"") || decoder.contains("\"ByteLevel\"") {
            return Ok("");
        }
    }
    Ok(class)
}

/// Special tokens that the class has where the files name none.
fn defaults_of(class: &str) -> Value {
    match class {
        "LlamaTokenizer" => json!({"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}),
        "GemmaTokenizer" => json!({"unk_token": "<unk>", "bos_token": "<bos>", "eos_token": "<eos>",
                                   "pad_token": "<pad>", "mask_token": "<mask>"}),
        "GPT2Tokenizer" => json!({"unk_token": "<|endoftext|>", "bos_token": "<|endoftext|>",
                                  "eos_token": "<|endoftext|>"}),
        "Qwen2Tokenizer" => json!({"unk_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                                   "pad_token": "<|endoftext|>"}),
        _ => json!({}),
    }
}

/// Replaces what the class replaces.
/// The vocabulary and the merges stay; normalizer, pre-tokenizer and options of the model become
/// those of the class.
fn rebuild(tokenizer: &mut Tokenizer, class: &str, config: &Value) -> Result<(), Failure> {
    let prefix_space = |default: bool| config["add_prefix_space"].as_bool().unwrap_or(default);
    let byte_level = |use_regex: bool| {
        json!({"type": "ByteLevel", "add_prefix_space": prefix_space(false), "trim_offsets": true,
               "use_regex": use_regex})
    };
    let (normalizer, pre_tokenizer) = match class {
        "LlamaTokenizer" => {
            let scheme = match (prefix_space(true), config["legacy"].as_bool().unwrap_or(false)) {
                (false, _) => "never",
                (true, true) => "always",
                (true, false) => "first",
            };
            (
                Value::Null,
                json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false}),
            )
        }
        "GemmaTokenizer" => (
            json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
            json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}),
        ),
        "GPT2Tokenizer" => (Value::Null, byte_level(true)),
        "Qwen2Tokenizer" => (
            json!({"type": "NFC"}),
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": false},
                byte_level(false)]}),
        ),
        _ => return Ok(()),
    };
    let broken = |e: serde_json::Error| Failure::internal(e.to_string());
    if let ModelWrapper::BPE(model) = tokenizer.get_model() {
        let mut model = model.clone();
        let sentence = class == "LlamaTokenizer" || class == "GemmaTokenizer";
        model.dropout = None;
        model.fuse_unk = sentence;
        model.byte_fallback = sentence;
        model.ignore_merges = false;
        model.unk_token = match class {
            "GemmaTokenizer" => Some(config["unk_token"].as_str().unwrap_or("<unk>").to_owned()),
            _ => None,
        };
        tokenizer.with_model(model);
    }
    let normalizer: Option<NormalizerWrapper> = serde_json::from_value(normalizer).map_err(broken)?;
    let pre_tokenizer: Option<PreTokenizerWrapper> = serde_json::from_value(pre_tokenizer).map_err(broken)?;
    tokenizer.with_normalizer(normalizer).map_err(failed)?;
    tokenizer.with_pre_tokenizer(pre_tokenizer);
    Ok(())
}
