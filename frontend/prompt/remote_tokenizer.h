// Asks the engine itself for the tokens of a prompt, where files here cannot give them: no files of
// the tokenizer, a server with a template of its own, images.
//
//   kTokenize   POST /tokenize, of vLLM and SGLang; prompts that it cannot express are asked as with kRender, of engines that have it
//   kRender     POST /v1/…/render of vLLM, or of its render server: takes the client's own body, and tells where media items are
//
// *Order*: each prompt begins at another engine. After a quarter of the deadline without an answer
// the next engine is asked beside the first: the first answer counts. An engine that was late or
// failed comes last for `kEngineLateFor`. Where a model has engines of both kinds, those of the
// prompt's convention are asked.
// *Truth*: the engine's own answer to a question whose tokens are those of the request
// (`engine_question.h`), or an earlier answer to the same question (`cache_bytes`). Answers, and
// that it has no render endpoints, are forgotten with the engine's start: after a failed call, and
// where its metrics say another start (`look_every`).
// *Threads*: any. Callbacks run on its own thread, or before `Tokenize` returns.
// *Bounds*: `RemoteTokenizerOptions`; above `calls_max` prompts under way RESOURCE_EXHAUSTED.
// `kEnginesKnownMax` engines are remembered.
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
  // The engines that may be asked about a model.
  std::function<std::vector<std::string>(const std::string& model)> urls;
  size_t tries = 2;
  size_t calls_max = 256;
  size_t cache_bytes = 64 << 20;  // of prompts and tokens
  // An answer is kept so long at most: templates print the date.
  Duration answers_for = std::chrono::minutes(5);
  size_t answer_bytes_max = 32 << 20;
  // How often an engine in use is looked at: its /metrics, and SGLang's /server_info. 0: never.
  Duration look_every = std::chrono::seconds(10);
  EngineCallOptions engine;
};

class RemoteTokenizer : public PromptTokenizer {
 public:
  explicit RemoteTokenizer(RemoteTokenizerOptions options);
  ~RemoteTokenizer() override;

  void Tokenize(const std::string& model, const Prompt& prompt, Duration deadline,
                Callback callback) override;

  // The engine was restarted: its earlier answers are not used any more. *Threads*: any.
  void Forget(const std::string& url);

  // Prompts that were answered from earlier answers.
  uint64_t cache_hits() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_REMOTE_TOKENIZER_H_
