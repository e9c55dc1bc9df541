#include "tools/engine/byte_tokenizer.h"

#include <utility>
#include <variant>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

std::string TextOf(const nlohmann::ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string Render(const ChatPrompt& chat) {
  std::string text;
  for (const auto& message : chat.messages) {
    text += TextOf(message.value("role", nlohmann::ordered_json("")));
    text += ": ";
    text += TextOf(message.value("content", nlohmann::ordered_json("")));
    text += '\n';
  }
  if (chat.add_generation_prompt) text += "assistant: ";
  return text;
}

}  // namespace

void ByteTokenizer::Tokenize(const std::string&, const Prompt& prompt, Duration,
                             Callback callback) {
  const auto* chat = std::get_if<ChatPrompt>(&prompt);
  const std::string text = chat != nullptr ? Render(*chat) : std::get<TextPrompt>(prompt).text;
  PromptTokens tokens{.tokens = {}, .source = "bytes"};
  tokens.tokens.reserve(text.size());
  for (char byte : text)
    tokens.tokens.push_back(static_cast<TokenId>(static_cast<unsigned char>(byte)));
  callback(std::move(tokens));
}

}  // namespace kvatlas
