#include "tools/testing/cluster/trace_chats.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/text/text_model.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

// So many different words, as frequent ones of a language are.
constexpr uint64_t kWords = 4096;
constexpr uint32_t kWordsPerSentence = 12;
// How many tokens a word has is measured on so many.
constexpr uint32_t kSampleWords = 8192;
constexpr std::string_view kConsonants = "bdfghklmnprstvwz";
constexpr std::string_view kVowels = "aeiou";
constexpr char kLastWord[] = "Go on.";

// One to four syllables.
void AppendWord(uint64_t number, std::string* out) {
  uint64_t bits = Raw(LocalOfHashId(number, kWords));
  const uint64_t syllables = 1 + bits % 4;
  bits /= 4;
  for (uint64_t i = 0; i < syllables; ++i) {
    out->push_back(kConsonants[bits % kConsonants.size()]);
    bits /= kConsonants.size();
    out->push_back(kVowels[bits % kVowels.size()]);
    bits /= kVowels.size();
  }
}

Json Message(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

Json MessagesOf(const TraceRequest& request, uint32_t words_per_id) {
  Json messages = Json::array();
  const uint32_t words = std::max(1u, words_per_id * request.id_tokens / kTokensPerHashId);
  for (size_t i = 0; i < request.hash_ids.size(); ++i) {
    const char* role = i == 0 ? "system" : i % 2 == 1 ? "user" : "assistant";
    messages.push_back(Message(role, WordsOfHashId(request.hash_ids[i], words)));
  }
  if (request.hash_ids.size() % 2 == 1) messages.push_back(Message("user", kLastWord));
  return messages;
}

absl::StatusOr<uint32_t> WordsPerId(TextModel& model) {
  const absl::StatusOr<PromptTokens> sample =
      model.Tokenize(TextPrompt{.text = WordsOfHashId(0, kSampleWords)});
  if (!sample.ok()) return sample.status();
  const double per_word = double(sample->tokens.size()) / kSampleWords;
  return static_cast<uint32_t>(
      std::clamp(kTokensPerHashId / per_word, 1.0, 1.0 * kTokensPerHashId));
}

}  // namespace

std::string WordsOfHashId(uint64_t hash_id, uint32_t words) {
  std::string text;
  for (uint32_t i = 0; i < words; ++i) {
    if (i > 0) text += i % kWordsPerSentence == 0 ? ". " : " ";
    AppendWord(Raw(LocalOfHashId(hash_id, i)) % kWords, &text);
  }
  return text + ".";
}

absl::StatusOr<TraceChats> TraceChats::Make(const TraceChatsOptions& options,
                                            std::vector<TraceRequest>* trace) {
  absl::StatusOr<std::vector<ModelOptions>> models = ParseModels(options.models);
  if (!models.ok()) return models.status();
  if (models->empty()) return absl::InvalidArgumentError("no model is named");
  TraceChats chats;
  chats.model_ = models->front().name;
  const absl::StatusOr<std::unique_ptr<ModelRegistry>> registry =
      ModelRegistry::Create(*std::move(models));
  if (!registry.ok()) return registry.status();
  const absl::StatusOr<std::shared_ptr<TextModel>> model = (*registry)->Find(chats.model_);
  if (!model.ok()) return model.status();
  const absl::StatusOr<uint32_t> words_per_id = WordsPerId(**model);
  if (!words_per_id.ok()) return words_per_id.status();
  chats.words_per_id_ = *words_per_id;
  for (TraceRequest& request : *trace) {
    if (options.stop()) return absl::CancelledError("stopped");
    const BodyPrompt prompt{.path = RequestPath::kChat,
                            .body = std::make_shared<const std::string>(chats.Body(request))};
    const Time start = Clock::Real().Now();
    const absl::StatusOr<PromptTokens> tokens = (*model)->Tokenize(prompt);
    const Duration took = Clock::Real().Now() - start;
    if (!tokens.ok()) return tokens.status();
    chats.tokenize_us_.push_back(std::chrono::duration<double, std::micro>(took).count());
    chats.tokenizer_ = chats.model_ + " (" + tokens->source + ")";
    chats.blocks_.push_back(SequenceHashes(
        LocalHashes(tokens->tokens, {.block_size = options.block_size}, BlockSeed({}))));
    request.input_tokens = static_cast<uint32_t>(tokens->tokens.size());
  }
  return chats;
}

std::string TraceChats::Body(const TraceRequest& request) const {
  Json body = {{"model", model_}, {"messages", MessagesOf(request, words_per_id_)}};
  if (request.output_tokens > 0) body["max_tokens"] = request.output_tokens;
  return body.dump();
}

}  // namespace kvatlas
