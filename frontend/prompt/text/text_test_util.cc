#include "frontend/prompt/text/text_test_util.h"

#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/model_files.h"
#include "frontend/prompt/text/sentencepiece_tokenizer.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kParts[] = {
    "<|turn|>",
    "<|turn|>user\n",
    "<|end|>",
    "<|end|>\n",
    "<s>",
    "</s>",
    "<wide>",
    "<left>",
    "<alone>",
    "<think>",
    "</think>",
    "<|begin",
    "|>",
    "<|turn",
    "Kvatlas",
    "<|call|>",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "\v",
    "\f",
    "\r",
    "\r\n",
    "\x1c",
    "\u0085",
    "\u00a0",
    "\u1680",
    "\u2028",
    "\u3000",
    "Hello",
    "hello world",
    " the",
    " a line of words and more of them",
    "it's",
    "WE'LL",
    "'",
    "'S",
    "'\u017f",
    "'re",
    "'d",
    "\u2019s",
    "\u212a",
    "HTTPServer",
    "\u01c5",
    "snake_case",
    "x",
    "The",
    "\nthe",
    "\n\nThe",
    "\n  word",
    ".\nNext",
    ". \nNext",
    "1",
    "12345",
    " 7",
    "3.14",
    "\u0663\u0664",
    "\u00bd\u2163",
    "e\u0301",
    "\u0301",
    " \u0301",
    "\u3099",
    "Größe",
    "Привет мир",
    "你好，世界",
    "日本語。\n",
    "かき\u3099",
    "한국어",
    "\u1112\u1161\u11ab",
    "\uac00\u11a8",
    "नमस्ते ",
    "ภาษาไทย",
    "👩‍👩‍👧",
    "🇩🇪",
    "\u200d",
    "\ufe0f",
    "ﬁ",
    "\u1e9b\u0323",
    "\ue000",
    "\U0010ffff",
    "▁",
    "▁▁",
    "##",
    "#",
    "!!!",
    "...\n\n",
    "/",
    "\\n",
    "<0x0A>",
    "{\"a\": [1, 2]}",
    "def f(x):\n    return x\n",
    "A sentence of some words, and one more.\nThen a line of its own\nand another.\n\n"};

constexpr const char* kCl100k =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kPossessive =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kQwenMarks =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepseek =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kKimi =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// An expression with a look-behind and an anchor, which pattern.rs does not understand.
constexpr const char* kStrange = R"((?<=a)b+|\s+$|\p{L}+|[^\p{L}]+)";

Json Split(const char* regex, const char* behavior = "Isolated", bool invert = false) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", behavior},
          {"invert", invert}};
}

Json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json Steps(std::vector<Json> steps) {
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

Json Bytes(const char* regex) { return Steps({Split(regex), ByteLevel(false)}); }

Json Metaspace(const char* scheme, bool split) {
  return {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
}

Json Replace() { return {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}; }

// Removes the added tokens for which `is` is true.
void Drop(Json& tokenizer, const std::function<bool(const Json&)>& is) {
  Json kept = Json::array();
  for (const Json& token : tokenizer["added_tokens"]) {
    if (!is(token)) kept.push_back(token);
  }
  tokenizer["added_tokens"] = kept;
}

bool IsSingleWord(const Json& token) { return token["single_word"] == true; }

using Change = std::function<void(Json&)>;

Change Words(Json pre_tokenizer) {
  return [pre_tokenizer](Json& json) { json["pre_tokenizer"] = pre_tokenizer; };
}

// Blanks as Llama 2 and Gemma have them, without the tokens that our own encoder leaves to the
// library.
Change Blanks(Json normalizer, Json pre_tokenizer) {
  return [normalizer, pre_tokenizer](Json& json) {
    json["normalizer"] = normalizer;
    json["pre_tokenizer"] = pre_tokenizer;
    Drop(json, IsSingleWord);
  };
}

const std::map<std::string, Change>& Forms() {
  static const auto* forms = new std::map<std::string, Change>{
      {"bytes", [](Json&) {}},
      {"bytes_gpt2", Words(ByteLevel(true))},
      {"bytes_qwen", Words(Bytes(kQwenMarks))},
      {"bytes_o200k", Words(Bytes(kO200k))},
      {"bytes_tekken", Words(Bytes(kTekken))},
      {"bytes_possessive", Words(Bytes(kPossessive))},
      {"bytes_kimi", Words(Bytes(kKimi))},
      {"bytes_strange", Words(Bytes(kStrange))},
      {"bytes_matches", Words(Steps({Split(kCl100k, "Removed", true), ByteLevel(false)}))},
      {"bytes_deepseek", Words(Steps({Split("\\p{N}{1,3}"), Split("[一-龥\u3040-ゟ゠-ヿ]+"),
                                      Split(kDeepseek), ByteLevel(false)}))},
      {"bytes_digits",
       Words(Steps({{{"type", "Digits"}, {"individual_digits", true}}, ByteLevel(true)}))},
      {"bytes_runs",
       Words(Steps({{{"type", "Digits"}, {"individual_digits", false}}, ByteLevel(true)}))},
      {"bytes_raw",
       [](Json& json) {
         json["normalizer"] = nullptr;
         json["model"]["ignore_merges"] = true;
       }},
      {"bytes_around",
       [](Json& json) {
         json["added_tokens"][1]["lstrip"] = true;
         json["added_tokens"][2]["rstrip"] = true;
       }},
      {"bytes_joined",
       [](Json& json) {
         Json token = json["added_tokens"].back();
         token["id"] = 1210;
         token["content"] = "hello world";
         json["added_tokens"].push_back(token);
       }},
      {"blanks", [](Json&) {}},
      {"blanks_first", Blanks(nullptr, Metaspace("first", false))},
      {"blanks_always", Blanks(nullptr, Metaspace("always", false))},
      {"blanks_never", Blanks(nullptr, Metaspace("never", false))},
      {"blanks_split", Blanks(nullptr, Metaspace("first", true))},
      {"blanks_prepend",
       Blanks({{"type", "Sequence"},
               {"normalizers", {{{"type", "Prepend"}, {"prepend", "▁"}}, Replace()}}},
              nullptr)},
      {"blanks_gemma", Blanks(Replace(), {{"type", "Split"},
                                          {"pattern", {{"String", " "}}},
                                          {"behavior", "MergedWithPrevious"},
                                          {"invert", false}})},
      {"blanks_unknown",
       [](Json& json) {
         json["model"]["byte_fallback"] = false;
         Drop(json, IsSingleWord);
       }},
      {"unigram", [](Json&) {}},
      {"unigram_whole", Words(Metaspace("always", false))},
      {"unigram_between",
       Words(Steps({{{"type", "WhitespaceSplit"}}, Metaspace("always", true)}))},
      {"sentences", [](Json&) {}}};
  return *forms;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& name) {
  const std::string base = name.substr(0, name.find('_'));
  absl::StatusOr<ModelFiles> files =
      ReadModelFiles(absl::StrCat("frontend/prompt/text/testdata/", base), TokenizerRules::kFile);
  if (!files.ok()) return files.status();
  if (!files->sentencepiece_model.empty()) {
    return MakeSentencePieceTokenizer(files->sentencepiece_model);
  }
  Json json = Json::parse(files->tokenizer.tokenizer_json);
  Forms().at(name)(json);
  files->tokenizer.tokenizer_json = json.dump();
  return MakeTokenizer(files->tokenizer);
}

}  // namespace

std::string RandomText(Random& random, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += kParts[random() % std::size(kParts)];
  return text;
}

std::string CutAnywhere(const std::string& text, Random& random) {
  size_t at = text.empty() ? 0 : random() % text.size();
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return text.substr(0, at);
}

std::vector<std::string> TokenizerForms() {
  std::vector<std::string> names;
  for (const auto& [name, change] : Forms()) names.push_back(name);
  return names;
}

std::unique_ptr<Tokenizer> LoadTokenizerForm(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = Load(name);
  EXPECT_TRUE(loaded.ok()) << name << ": " << loaded.status();
  return loaded.ok() ? *std::move(loaded) : nullptr;
}

std::vector<TokenId> WholeTokens(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> tokens;
  const absl::Status encoded = tokenizer.Encode(text, 0, kOnePiece, tokens, nullptr);
  EXPECT_TRUE(encoded.ok()) << encoded;
  return tokens;
}

}  // namespace kvatlas
