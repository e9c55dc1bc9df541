// The shape of a request is a text: engine, path, model and the words of `kFeatures` that its body
// has. Requests of one shape are assumed to be tokenized alike, right or wrong, so a few samples
// speak for all of them.

#include "frontend/prompt/token_evidence.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/engine_question.h"

namespace kvatlas {
namespace {

// A word in the body, and how the log names it. Two words may have one name; they stand side by
// side then, and the name is written once.
struct Feature {
  std::string_view word;  // in the body
  const char* name;
};

// Searched with their quotation marks, so that a string of the body cannot match: marks in it are
// escaped. A value may match as well as a key ("developer", "tool_use").
constexpr std::array<Feature, 9> kFeatures = {{{"\"tools\"", "tools"},
                                               {"\"tool_calls\"", "calls of tools"},
                                               {"\"tool_use\"", "calls of tools"},
                                               {"\"tool_choice\"", "tool_choice"},
                                               {"\"reasoning_content\"", "reasoning"},
                                               {"\"reasoning_effort\"", "an effort"},
                                               {"\"developer\"", "a developer's message"},
                                               {"\"text\"", "parts"},
                                               {"\"chat_template_kwargs\"", "template variables"}}};

// A bit for each of `kFeatures` that is in the body. One pass over the quotation marks instead of
// nine searches: a body has about a thousand marks.
uint32_t FeaturesOf(std::string_view body) {
  uint32_t found = 0;
  for (size_t at = body.find('"'); at != std::string_view::npos; at = body.find('"', at + 1)) {
    const std::string_view rest = body.substr(at);
    for (size_t i = 0; i < kFeatures.size(); ++i) {
      const std::string_view word = kFeatures[i].word;
      if (rest.size() >= word.size() && rest[1] == word[1] && rest.starts_with(word))
        found |= uint32_t{1} << i;
    }
  }
  return found;
}

}  // namespace

// Only the first `kShapeBytesMax` of the body count; a longer one may get the shape of its
// beginning.
std::string ShapeOf(const std::string& model, const BodyPrompt& prompt) {
  const char* const engine = prompt.convention.engine == EngineKind::kSglang ? "SGLang" : "vLLM";
  std::string shape = absl::StrCat(engine, "'s ", PathName(prompt.path), " of ", model);
  const uint32_t features = FeaturesOf(std::string_view(*prompt.body).substr(0, kShapeBytesMax));
  const char* last = nullptr;
  for (size_t i = 0; i < kFeatures.size(); ++i) {
    const char* const name = kFeatures[i].name;
    if (name == last || (features >> i & 1) == 0) continue;
    absl::StrAppend(&shape, last == nullptr ? " with " : ", ", name);
    last = name;
  }
  return shape;
}

bool TokenEvidence::IsDistrusted(const std::string& shape) {
  MutexLock lock(&mutex_);
  const auto found = shapes_.find(shape);
  return found != shapes_.end() && options_.clock->Now() < found->second.distrusted_until;
}

// A difference sets `equal` back to 0, so the count is of equal samples since then.
bool TokenEvidence::IsTrusted(const std::string& shape) {
  MutexLock lock(&mutex_);
  const auto found = shapes_.find(shape);
  return found != shapes_.end() && found->second.equal >= options_.first;
}

// Requests of a shape are samples until `first` were taken since the last difference; then each
// `every`-th request is one. A request that is due while `under_way_max` samples run is skipped.
// True: one is counted as under way, until `Add` or `Unknown`.
bool TokenEvidence::Samples(const std::string& shape) {
  MutexLock lock(&mutex_);
  if (shapes_.size() >= options_.shapes_max && !shapes_.contains(shape)) return false;
  Shape& of = shapes_[shape];
  // Samples without an answer count too. A shape that the engine cannot tokenize then costs a
  // question once in `every` requests, not each time.
  const bool due = of.sampled < options_.first || of.requests % options_.every == 0;
  ++of.requests;
  if (!due || under_way_ >= options_.under_way_max) return false;
  ++under_way_;
  ++of.sampled;
  return true;
}

void TokenEvidence::Unknown() {
  MutexLock lock(&mutex_);
  --under_way_;
}

// A difference distrusts the shape and starts its counts anew: after `distrust_for` it is sampled
// like a new one. The log hears of a shape once in the life of the process.
bool TokenEvidence::Add(const std::string& shape, const std::vector<TokenId>& here,
                        const std::vector<TokenId>& engine) {
  MutexLock lock(&mutex_);
  --under_way_;
  Shape& of = shapes_[shape];
  if (here == engine) {
    ++of.equal;
    ++counts_.equal;
    return false;
  }
  of.sampled = of.equal = 0;
  of.distrusted_until = options_.clock->Now() + options_.distrust_for;
  ++counts_.different;
  return !std::exchange(of.told, true);
}

TokenEvidence::Counts TokenEvidence::counts() const {
  MutexLock lock(&mutex_);
  return counts_;
}

}  // namespace kvatlas
