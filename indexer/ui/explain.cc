// Reads a question of the page, asks nothing itself, and writes the answers of cells as JSON
// without any hash.

#include "indexer/ui/explain.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "indexer/base/tier.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// Workers in an answer; the deepest are kept.
constexpr size_t kWorkersShown = 16;

// A worker of an answer, with its cell. The pointer is into the `ExplainAnswer`.
struct Shown {
  std::string cell;
  const v1::ExplainedWorker* worker;
};

// One letter for each block, of the nearest tier: the loop runs from the farthest to the nearest.
// `tiers` has a byte for each block, the bits of a `TierMask`.
std::string LettersOf(const std::string& tiers) {
  constexpr std::string_view kLetters = "dhkx";
  std::string letters;
  for (const char bits : tiers) {
    const TierMask held(static_cast<uint8_t>(bits));
    char letter = '.';
    for (int tier = kTiers - 1; tier >= 0; --tier)
      if (held.Has(static_cast<Tier>(tier))) letter = kLetters[static_cast<size_t>(tier)];
    letters.push_back(letter);
  }
  return letters;
}

std::string_view TrustName(v1::Trust trust) {
  switch (trust) {
    case v1::TRUST_EXACT:
      return "exact";
    case v1::TRUST_DEGRADED:
      return "degraded";
    case v1::TRUST_STALE:
      return "stale";
    default:
      return "unknown";
  }
}

absl::Status ReadText(const Json& json, const char* name, std::string* text) {
  if (!json.contains(name)) return absl::OkStatus();
  if (!json[name].is_string())
    return absl::InvalidArgumentError(std::string(name) + " is not a string");
  *text = json[name].get<std::string>();
  return absl::OkStatus();
}

// Only unsigned integers within the type: a negative or fractional id is refused, not rounded.
absl::Status ReadTokens(const Json& json, std::vector<TokenId>* tokens) {
  if (!json.contains("tokens")) return absl::OkStatus();
  if (!json["tokens"].is_array()) return absl::InvalidArgumentError("tokens is not an array");
  for (const Json& token : json["tokens"]) {
    if (!token.is_number_unsigned() || token.get<uint64_t>() > std::numeric_limits<TokenId>::max())
      return absl::InvalidArgumentError("tokens has an element that is no token id");
    tokens->push_back(token.get<TokenId>());
  }
  return absl::OkStatus();
}

}  // namespace

// The first error counts (`Update`). Exactly one of tokens and text must be there.
absl::StatusOr<ExplainQuestion> ReadExplain(const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("the body is not a JSON object");
  ExplainQuestion question;
  absl::Status status = ReadText(json, "model", &question.model);
  status.Update(ReadText(json, "tenant", &question.tenant));
  status.Update(ReadText(json, "lora_name", &question.lora_name));
  status.Update(ReadText(json, "cache_salt", &question.cache_salt));
  status.Update(ReadText(json, "text", &question.text));
  status.Update(ReadTokens(json, &question.tokens));
  if (status.ok() && question.model.empty())
    status = absl::InvalidArgumentError("model is missing");
  if (status.ok() && question.tokens.empty() == question.text.empty())
    status = absl::InvalidArgumentError("expected one of tokens and text");
  if (!status.ok()) return status;
  return question;
}

// The tokens as the leaf takes them; it hashes them itself.
v1::ExplainRequest ToRequest(const ExplainQuestion& question) {
  v1::ExplainRequest request;
  request.mutable_domain()->set_model(question.model);
  request.mutable_domain()->set_tenant(question.tenant);
  v1::Tokens* tokens = request.mutable_tokens();
  tokens->mutable_ids()->Add(question.tokens.begin(), question.tokens.end());
  tokens->set_lora_name(question.lora_name);
  tokens->set_cache_salt(question.cache_salt);
  return request;
}

// `diverges_at` is the depth of the deepest worker, where the prompt goes on beyond it.
std::string ExplainJson(const ExplainQuestion& question, const ExplainAnswer& answer) {
  std::vector<Shown> shown;
  uint32_t block_size = 0, blocks = 0, deepest = 0;
  for (const auto& [cell, response] : answer.cells) {
    block_size = std::max(block_size, response.block_size());
    blocks = std::max(blocks, response.blocks());
    for (const v1::ExplainedWorker& worker : response.workers()) {
      deepest = std::max(deepest, worker.blocks());
      shown.push_back({cell, &worker});
    }
  }
  std::stable_sort(shown.begin(), shown.end(), [](const Shown& a, const Shown& b) {
    return a.worker->blocks() > b.worker->blocks();
  });
  if (shown.size() > kWorkersShown) shown.resize(kWorkersShown);
  Json json = {{"model", question.model},
               {"tokens", question.tokens.size()},
               {"block_size", block_size},
               {"blocks", blocks},
               {"diverges_at", deepest < blocks ? Json(deepest) : Json(nullptr)},
               {"cells_asked", answer.cells_asked},
               {"cells", answer.cells_known},
               {"failed", answer.failed},
               {"workers", Json::array()}};
  for (const auto& [cell, worker] : shown) {
    json["workers"].push_back({{"cell", cell},
                               {"worker", worker->worker().name()},
                               {"rank", worker->worker().rank()},
                               {"overlap", worker->blocks()},
                               {"trust", TrustName(worker->trust())},
                               {"age_ms", worker->age_ms()},
                               {"tiers", LettersOf(worker->tiers())}});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvatlas
