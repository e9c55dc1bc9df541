// Which tokens does the engine itself make of this prompt? Asks it, where parity needs that: a
// tokenizer without files here, a server with a template of its own, images.
//
//   kTokenize   POST /tokenize, of vLLM and SGLang; what that cannot express is asked of the engines that have kRender
//   kRender     POST /v1/…/render of vLLM, or of its render server: takes the client's own body, and tells where images are
//
// *Order*: each prompt begins at another engine. One that has not answered after a quarter of the
// deadline is left to go on while the next is asked beside it: the first answer counts. One that
// was late or failed comes last for `kEngineLateFor`. Of engines of both kinds those of the
// prompt's convention are asked.
// *Truth*: the engine's own answer to a question that makes it read what its door reads
// (`engine_question.h`), or one it gave to the same question before (`cache_bytes`). Answers, and
// that it has no render endpoints, are forgotten with the engine's start: after a failed call, and
// where its metrics say another start (`look_every`).
// *Threads*: any; one of its own, on which callbacks run.
// *Bounds*: `RemoteTokenizerOptions`; above `calls_max` under way RESOURCE_EXHAUSTED. Of
// `kEnginesKnownMax` engines it is remembered what they are.
// *Lifetime*: the destructor cuts the calls under way, whose callbacks get UNAVAILABLE.

#ifndef KVATLAS_FRONTEND_PROMPT_REMOTE_TOKENIZER_H_
#define KVATLAS_FRONTEND_PROMPT_REMOTE_TOKENIZER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "frontend/engine_client/engine_call.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "indexer/base/clock.h"

namespace kvatlas {

inline constexpr Duration kEngineLateFor = std::chrono::seconds(10);
inline constexpr size_t kEnginesKnownMax = 4096;

enum class RemoteWay { kTokenize, kRender };

struct RemoteTokenizerOptions {
  RemoteWay way = RemoteWay::kTokenize;
  // Who may be asked about a model.
  std::function<std::vector<std::string>(const std::string& model)> urls;
  size_t tries = 2;
  size_t calls_max = 256;
  size_t cache_bytes = 64 << 20;  // of prompts and tokens
  // After that it is asked again: templates print the day.
  Duration answers_for = std::chrono::minutes(5);
  size_t answer_bytes_max = 32 << 20;
  // An engine that is asked is looked at so often: its /metrics, and SGLang's /server_info. 0:
  // never.
  Duration look_every = std::chrono::seconds(10);
  EngineCallOptions engine;
};

class RemoteTokenizer : public PromptTokenizer {
 public:
  explicit RemoteTokenizer(RemoteTokenizerOptions options);
  ~RemoteTokenizer() override;

  void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                Callback callback) override;

  // The engine was restarted: what it said is not asked of memory again. *Threads*: any.
  void Forget(const std::string& url);

  // Answered from what an engine said before.
  uint64_t cache_hits() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_REMOTE_TOKENIZER_H_
