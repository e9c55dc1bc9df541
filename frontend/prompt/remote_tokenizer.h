// Which tokens does the engine itself make of this prompt? Asks it, where parity needs that: a tokenizer without files here, a
// server with a template of its own, images.
//
//   kTokenize   POST /tokenize, of vLLM and SGLang
//   kRender     POST /v1/completions/render, /v1/chat/completions/render of vLLM, or of its render server: expands what a
//               multimodal processor expands
//
// *Order*: each prompt begins at another engine. One that has not answered after a quarter of the deadline is left to go on while
// the next is asked beside it: the first answer counts. One that was late or failed comes last for `kEngineLateFor`.
// *Truth*: the engine's own answer, or one it gave to the same words before (`cache_bytes`).
// *Threads*: any; one of its own, on which callbacks run.
// *Bounds*: `RemoteTokenizerOptions`; above `calls_max` under way RESOURCE_EXHAUSTED.
// *Lifetime*: the destructor cuts the calls under way, whose callbacks get UNAVAILABLE.

#ifndef KVATLAS_FRONTEND_PROMPT_REMOTE_TOKENIZER_H_
#define KVATLAS_FRONTEND_PROMPT_REMOTE_TOKENIZER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/peers/engine_call.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/clock.h"

namespace kvatlas {

inline constexpr Duration kEngineLateFor = std::chrono::seconds(10);

enum class RemoteWay { kTokenize, kRender };

struct RemoteTokenizerOptions {
  RemoteWay way = RemoteWay::kTokenize;
  // Who may be asked about a model.
  std::function<std::vector<std::string>(const std::string& model)> urls;
  size_t tries = 2;
  size_t calls_max = 256;
  size_t cache_bytes = 64 << 20;  // of prompts and tokens
  size_t answer_bytes_max = 32 << 20;
  EngineCallOptions engine;
};

class RemoteTokenizer : public PromptTokenizer {
 public:
  explicit RemoteTokenizer(RemoteTokenizerOptions options);
  ~RemoteTokenizer() override;

  void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                Callback callback) override;

  // Answered from what an engine said before.
  uint64_t cache_hits() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

// What a request to an engine says, and what its answer means.
std::string RemoteTarget(RemoteWay way, const Prompt& prompt);
std::string RemoteBody(RemoteWay way, const std::string& model, const Prompt& prompt);
// INVALID_ARGUMENT and NOT_FOUND: the engine refused, in its words. UNAVAILABLE: anything else that is no list of tokens.
absl::StatusOr<std::vector<TokenId>> ReadRemoteAnswer(int status, std::string_view body);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_REMOTE_TOKENIZER_H_
