// Each supposition is the same facts with one respect changed, hashed again. Questions are in the
// order of how common the mistake is: beginnings, namespaces, block sizes, seeds, look-ahead.

#include "frontend/accuracy/what_if.h"

#include <algorithm>
#include <utility>

namespace kvatlas {
namespace {

using Kind = Supposition::Kind;

// As `PreparedPrompt` hashes, without items: such prompts keep no tokens.
std::vector<SequenceHash> HashesOf(const PromptFacts& prompt) {
  const Blocking blocking{.block_size = prompt.block_size, .eagle = prompt.eagle};
  const uint64_t seed =
      BlockSeed({.lora_name = prompt.lora_name, .cache_salt = prompt.cache_salt}, prompt.contract);
  return SequenceHashes(LocalHashes(prompt.tokens, blocking, seed), prompt.contract);
}

// Gathers the questions, without one that equals the prompt as it is or another question.
class Questions {
 public:
  explicit Questions(const PromptFacts& prompt) : seen_({HashesOf(prompt)}) {}

  void Add(Kind kind, uint64_t value, const PromptFacts& changed) {
    std::vector<SequenceHash> sequence = HashesOf(changed);
    if (sequence.empty()) return;
    // Compared by the first block alone: every supposition here changes the first block if it
    // changes anything.
    for (const std::vector<SequenceHash>& seen : seen_)
      if (!seen.empty() && seen.front() == sequence.front()) return;
    seen_.push_back(sequence);
    questions_.push_back({.what = {.kind = kind, .value = value}, .sequence = std::move(sequence)});
  }
  std::vector<WhatIfQuestion> Take() { return std::move(questions_); }

 private:
  std::vector<std::vector<SequenceHash>> seen_;
  std::vector<WhatIfQuestion> questions_;
};

// REQUIRES: the prompt has a token.
void AddStarts(const PromptFacts& prompt, Questions* questions) {
  PromptFacts twice = prompt;
  twice.tokens.insert(twice.tokens.begin(), prompt.tokens.front());
  questions->Add(Kind::kFirstTokenTwice, 0, twice);
  PromptFacts dropped = prompt;
  dropped.tokens.erase(dropped.tokens.begin());
  questions->Add(Kind::kFirstTokenDropped, 0, dropped);
  // A BOS in front of a BOS is `kFirstTokenTwice`.
  if (!prompt.bos.has_value() || prompt.tokens.front() == *prompt.bos) return;
  PromptFacts added = prompt;
  added.tokens.insert(added.tokens.begin(), *prompt.bos);
  questions->Add(Kind::kBosAdded, 0, added);
}

// Where the prompt has no salt or adapter these change nothing and are dropped by `Add`.
void AddNamespaces(const PromptFacts& prompt, Questions* questions) {
  PromptFacts changed = prompt;
  changed.cache_salt.clear();
  questions->Add(Kind::kNoSalt, 0, changed);
  changed = prompt;
  changed.lora_name.clear();
  questions->Add(Kind::kNoLora, 0, changed);
  changed.cache_salt.clear();
  questions->Add(Kind::kNoNamespace, 0, changed);
}

}  // namespace

std::string ToString(const Supposition& supposition) {
  switch (supposition.kind) {
    case Kind::kFirstTokenTwice:
      return "the first token twice";
    case Kind::kFirstTokenDropped:
      return "without the first token";
    case Kind::kBosAdded:
      return "the BOS token in front";
    case Kind::kBlockSize:
      return "block size " + std::to_string(supposition.value);
    case Kind::kNoSalt:
      return "without the cache salt";
    case Kind::kNoLora:
      return "without the adapter";
    case Kind::kNoNamespace:
      return "without salt and adapter";
    case Kind::kSeed:
      return "hash seed " + std::to_string(supposition.value);
    case Kind::kLookAhead:
      return "look-ahead hashes the other way round";
  }
  return "nothing";
}

// Likely values come ahead of the usual ones.
std::vector<WhatIfQuestion> WhatIf(const PromptFacts& prompt, std::span<const uint64_t> more_seeds,
                                   std::span<const uint32_t> more_block_sizes) {
  if (prompt.tokens.empty()) return {};
  Questions questions(prompt);
  AddStarts(prompt, &questions);
  AddNamespaces(prompt, &questions);
  const auto add_size = [&](uint32_t size) {
    if (size == 0 || size == prompt.block_size) return;
    PromptFacts changed = prompt;
    changed.block_size = size;
    questions.Add(Kind::kBlockSize, size, changed);
  };
  for (uint32_t size : more_block_sizes) add_size(size);
  for (uint32_t size : kUsualBlockSizes) add_size(size);
  const auto add_seed = [&](uint64_t seed) {
    PromptFacts changed = prompt;
    changed.contract.seed = seed;
    questions.Add(Kind::kSeed, seed, changed);
  };
  for (uint64_t seed : more_seeds) add_seed(seed);
  for (uint64_t seed : kUsualSeeds) add_seed(seed);
  PromptFacts look_ahead = prompt;
  look_ahead.eagle = !prompt.eagle;
  questions.Add(Kind::kLookAhead, 0, look_ahead);
  return questions.Take();
}

}  // namespace kvatlas
