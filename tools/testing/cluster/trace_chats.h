// What would the requests of a trace have said? Chats of made-up words, and the blocks that an
// engine makes of them with a real tokenizer and its template.
//
//   hash ids ─▶ words ─▶ messages ─┬─▶ Body: what a client sends, for the frontend
//                                  └─▶ TextModel ─▶ tokens ─▶ Blocks: what an engine holds
//
// *Truth*: traces have no text, so it is ours: a hash id always says the same words, about as many
// as give the 512 tokens that it stands for, and prompts that begin with equal ids begin with equal
// text. The first id is the system's message; user and assistant say the others in turn, and the
// user has the last word. Tokens and blocks are what this tokenizer really makes of that.
// *Threads*: any, after `Make`.
// *Cost*: all prompts are tokenized once, by `Make`; only their hashes are kept.
//
// Example:
//   absl::StatusOr<TraceChats> chats = TraceChats::Make({.models = "m=/models/m", .block_size =
//   64}, &trace);
//   client.RouteChat(chats->Body(0));
//   request.blocks = chats->Blocks(0);

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_TRACE_CHATS_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_TRACE_CHATS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/ids.h"
#include "tools/trace/trace.h"

namespace kvatlas {

struct TraceChatsOptions {
  std::string models;  // as the frontend's --models; the first one is asked for
  uint32_t block_size = 64;
  // True: stop early, with CANCELLED.
  std::function<bool()> stop = [] { return false; };
};

class TraceChats {
 public:
  // `input_tokens` of the requests become those of their chats. An error: a model that cannot be
  // loaded, or refuses a chat.
  static absl::StatusOr<TraceChats> Make(const TraceChatsOptions& options,
                                         std::vector<TraceRequest>* trace);

  // Of POST /v1/chat/completions. `request` is the one at this place in the trace.
  std::string Body(const TraceRequest& request) const;
  const std::vector<SequenceHash>& Blocks(size_t request) const { return blocks_[request]; }

  const std::string& model() const { return model_; }
  const std::string& tokenizer() const { return tokenizer_; }
  const std::vector<double>& tokenize_us() const { return tokenize_us_; }

 private:
  std::string model_;
  std::string tokenizer_;  // with its files' hash
  uint32_t words_per_id_ = 0;
  std::vector<std::vector<SequenceHash>> blocks_;
  std::vector<double> tokenize_us_;
};

// `words` words for a hash id.
std::string WordsOfHashId(uint64_t hash_id, uint32_t words);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_TRACE_CHATS_H_
