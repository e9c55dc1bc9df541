#include "frontend/prompt/engine_conventions.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "frontend/engine_client/engine_reach.h"

namespace kvatlas {
namespace {

// Which of the model's conventions each engine has; several engines may be at one authority, one
// after the other: the last counts.
ModelConventions::Ptr MakeModel(const std::map<std::string, std::optional<Convention>>& engines,
                                const absl::flat_hash_set<std::string>& takes_token_ids,
                                const std::optional<Convention>& otherwise) {
  struct Counted {
    Convention convention;
    size_t engines = 0;
  };
  std::vector<Counted> counted;
  for (const auto& [authority, said] : engines) {
    const std::optional<Convention>& convention = said.has_value() ? said : otherwise;
    if (!convention.has_value()) continue;
    const auto found = std::find_if(counted.begin(), counted.end(), [&](const Counted& one) {
      return one.convention == *convention;
    });
    if (found == counted.end()) {
      counted.push_back({.convention = *convention, .engines = 1});
    } else {
      ++found->engines;
    }
  }
  if (counted.empty()) return nullptr;
  // Equals by name, so that a look that changes nothing changes no order.
  std::sort(counted.begin(), counted.end(), [](const Counted& a, const Counted& b) {
    return a.engines != b.engines ? a.engines > b.engines
                                  : ToString(a.convention) > ToString(b.convention);
  });
  auto model = std::make_shared<ModelConventions>();
  for (const Counted& one : counted) model->conventions.push_back(one.convention);
  for (const auto& [authority, said] : engines) {
    const std::optional<Convention>& convention = said.has_value() ? said : otherwise;
    if (!convention.has_value()) continue;
    const auto place = std::find(model->conventions.begin(), model->conventions.end(), *convention);
    model->by_authority.emplace(authority, place - model->conventions.begin());
    if (takes_token_ids.contains(authority)) model->takes_token_ids.insert(authority);
  }
  return model;
}

}  // namespace

std::vector<std::string> EngineKindNames() { return {"auto", "vllm", "sglang", "plain"}; }

absl::StatusOr<std::optional<Convention>> ParseEngineKind(const std::string& text) {
  if (text == "auto") return std::optional<Convention>();
  if (text == "vllm") return Convention{.engine = EngineKind::kVllm};
  if (text == "sglang") return Convention{.engine = EngineKind::kSglang};
  if (text == "plain") return Convention{.engine = EngineKind::kPlain};
  return absl::InvalidArgumentError("'" + text + "' is not auto, vllm, sglang or plain");
}

std::string ToString(const Convention& convention) {
  switch (convention.engine) {
    case EngineKind::kPlain:
      return "plain";
    case EngineKind::kVllm:
      return "vllm";
    case EngineKind::kSglang:
      break;
  }
  std::string text = "sglang";
  if (!convention.reasoning_parser.empty())
    absl::StrAppend(&text, " reasoning_parser=", convention.reasoning_parser);
  if (!convention.tool_call_parser.empty())
    absl::StrAppend(&text, " tool_call_parser=", convention.tool_call_parser);
  return text;
}

std::optional<Convention> ConventionOf(const EngineFacts& facts) {
  if (facts.kind == kVllm) return Convention{.engine = EngineKind::kVllm};
  if (facts.kind != kSglang) return std::nullopt;
  return Convention{.engine = EngineKind::kSglang,
                    .reasoning_parser = facts.reasoning_parser,
                    .tool_call_parser = facts.tool_call_parser};
}

bool TakesTokenIds(const EngineFacts& facts) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(facts.version, absl::MaxSplits('.', 1));
  uint32_t major = 0, minor = 0;
  if (facts.kind != kVllm || !absl::SimpleAtoi(parts.first, &major) ||
      !absl::SimpleAtoi(parts.second.substr(0, parts.second.find('.')), &minor))
    return false;
  return major > 0 || minor >= 33;
}

bool ModelConventions::TakesTokenIds(const std::string& url) const {
  if (takes_token_ids.empty()) return false;
  const absl::StatusOr<EngineUrl> engine = EngineUrl::Parse(url);
  return engine.ok() && takes_token_ids.contains(engine->authority());
}

size_t ModelConventions::Of(const std::string& url) const {
  const absl::StatusOr<EngineUrl> engine = EngineUrl::Parse(url);
  if (!engine.ok()) return 0;
  const auto found = by_authority.find(engine->authority());
  return found == by_authority.end() ? 0 : found->second;
}

EngineConventions::EngineConventions(std::optional<Convention> otherwise)
    : otherwise_(std::move(otherwise)),
      unknown_(std::make_shared<const ModelConventions>(
          ModelConventions{.conventions = {otherwise_.value_or(Convention())}})) {}

void EngineConventions::Set(const std::vector<Engine>& engines) {
  std::map<std::string, std::map<std::string, std::optional<Convention>>> by_model;
  absl::flat_hash_set<std::string> takes_token_ids;
  for (const Engine& engine : engines) {
    by_model[engine.model][engine.authority] = engine.convention;
    if (engine.takes_token_ids) takes_token_ids.insert(engine.authority);
  }
  Models models;
  for (const auto& [name, of_model] : by_model) {
    if (ModelConventions::Ptr model = MakeModel(of_model, takes_token_ids, otherwise_);
        model != nullptr)
      models.emplace(name, std::move(model));
  }
  MutexLock lock(&mutex_);
  models_.swap(models);
}

ModelConventions::Ptr EngineConventions::Of(const std::string& model) const {
  MutexLock lock(&mutex_);
  const auto found = models_.find(model);
  return found == models_.end() ? unknown_ : found->second;
}

}  // namespace kvatlas
