#include "tools/testing/mock_engine/byte_tokenizer.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

std::string TextOf(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string Render(const BodyPrompt& prompt) {
  using Json = nlohmann::ordered_json;
  const Json body = Json::parse(*prompt.body, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object()) return "";
  if (prompt.path == RequestPath::kCompletions) {
    const Json text = body.value("prompt", Json());
    return TextOf(text.is_array() && !text.empty() ? text.front() : text);
  }
  std::string text;
  for (const auto& message : body.value("messages", Json::array())) {
    text += TextOf(message.value("role", nlohmann::ordered_json("")));
    text += ": ";
    text += TextOf(message.value("content", nlohmann::ordered_json("")));
    text += '\n';
  }
  if (body.value("add_generation_prompt", true)) text += "assistant: ";
  return text;
}

}  // namespace

void ByteTokenizer::Tokenize(const std::string&, const Prompt& prompt, Duration,
                             Callback callback) {
  const auto* body = std::get_if<BodyPrompt>(&prompt);
  const std::string text = body != nullptr ? Render(*body) : std::get<TextPrompt>(prompt).text;
  PromptTokens tokens{.tokens = {}, .source = "bytes"};
  tokens.tokens.reserve(text.size());
  for (char byte : text)
    tokens.tokens.push_back(static_cast<TokenId>(static_cast<unsigned char>(byte)));
  callback(std::move(tokens));
}

}  // namespace kvatlas
