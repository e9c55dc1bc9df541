// Collects what engines say of themselves into one immutable table for each model (`MakeModel`).
// `Set` builds all tables without the lock and swaps them in; readers keep the table that they got.

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

// The table of one model. `engines`: what the engine at each HOST:PORT said; nothing: it does not
// say. `otherwise`: what an engine that does not say counts as; nothing: such an engine is left out
// of the table, and `ModelConventions::Of` gives it the first convention, which most engines have.
// Null: no engine has a convention.
//
// 1. Counts the engines of each convention.
// 2. Sorts: most engines first, since the first convention stands for engines that are not known.
// 3. Notes the place of each engine's convention, and the engines that take token ids.
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
  // Equal counts are ordered by name: a look that finds the same engines gives the same order, and
  // readings keep their numbers.
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

// SGLang's parsers belong to its convention, as they change what its templates get. Of vLLM no
// option is known here that does.
std::optional<Convention> ConventionOf(const EngineFacts& facts) {
  if (facts.kind == kVllm) return Convention{.engine = EngineKind::kVllm};
  if (facts.kind != kSglang) return std::nullopt;
  return Convention{.engine = EngineKind::kSglang,
                    .reasoning_parser = facts.reasoning_parser,
                    .tool_call_parser = facts.tool_call_parser};
}

// The version is "0.33.0" or the like; one that does not begin with two numbers counts as too old.
bool TakesTokenIds(const EngineFacts& facts) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(facts.version, absl::MaxSplits('.', 1));
  uint32_t major = 0, minor = 0;
  if (facts.kind != kVllm || !absl::SimpleAtoi(parts.first, &major) ||
      !absl::SimpleAtoi(parts.second.substr(0, parts.second.find('.')), &minor))
    return false;
  return major > 0 || minor >= 33;
}

// A url that does not parse, and an engine that is not known, take none.
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

// A model without a table reads as `otherwise` says, and under `auto` as vLLM (the default of
// `Convention`).
EngineConventions::EngineConventions(std::optional<Convention> otherwise)
    : otherwise_(std::move(otherwise)),
      unknown_(std::make_shared<const ModelConventions>(
          ModelConventions{.conventions = {otherwise_.value_or(Convention())}})) {}

// An authority that is given twice for a model counts with the last of the two: one engine after
// another was at the address.
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
