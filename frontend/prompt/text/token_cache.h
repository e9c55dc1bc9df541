// The store of prefixes: tokens of texts that were encoded before, so that the next turn of a
// conversation costs its new part alone.
//
// A text is divided into chunks of kChunkBytes. A chunk's name is the hash of everything up to its
// end, so equal beginnings share their chunks, whichever conversations they belong to. A chunk
// remembers its bytes and the tokens up to the last cut (tokenizer.h) that the text up to its end
// makes certain; a later text with the same chunks has the same tokens up to there.
//
//     text     │ chunk 0 │ chunk 1 │ chunk 2 │ rest
//     cuts       ^   ^      ^     ^     ^  ^     ^
//     known    └────────────────────────┘ ← with chunks 0..2: the last cut that lies `lookahead_bytes` before their end
//
// *Truth*: bytes are compared, not hashes alone.
// *Threads*: all methods may be called from any.
// *Cost*: one hash and one comparison of the text; the lock is held for the look-ups alone.
// text_benchmark measures it.
// *Bounds*: `bytes_max` of texts, tokens and the structures around them. Beyond it the chunks used
// longest ago are evicted, the beginning of a text after what follows it.
//
// Example:
//   TokenCache cache(64 << 20);
//   ASSIGN reused = cache.Encode(*tokenizer, text, tokens);

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_TOKEN_CACHE_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_TOKEN_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "frontend/prompt/text/tokenizer.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

class TokenCache {
 public:
  static constexpr size_t kChunkBytes = 512;

  struct Stats {
    size_t bytes = 0;
    size_t chunks = 0;
    uint64_t known_bytes = 0;  // of `asked_bytes`, those whose tokens were known
    uint64_t asked_bytes = 0;  // of all texts
    uint64_t evicted_chunks = 0;
  };

  // With `bytes_max` 0 nothing is stored.
  explicit TokenCache(size_t bytes_max);

  // Puts the tokens of `text` into `tokens`: those of its longest known beginning, and those that
  // `tokenizer` makes of the rest; remembers the text. Returns how many were known. REQUIRES: the
  // same `tokenizer` in all calls. Errors are the tokenizer's.
  absl::StatusOr<size_t> Encode(const Tokenizer& tokenizer, std::string_view text,
                                std::vector<TokenId>& tokens);

  Stats stats() const;

 private:
  struct Chunk {
    std::string text;
    // The tokens between the cut of the chunk before (`from_bytes`) and this one's (`cut_bytes`),
    // both counted from the text's start. A chunk whose `from_bytes` is not the cut of the chunk
    // before was made behind another version of that chunk and cannot be used.
    size_t from_bytes = 0;
    size_t cut_bytes = 0;
    std::vector<TokenId> tokens;
  };
  struct Entry {
    std::shared_ptr<const Chunk> chunk;
    std::list<uint64_t>::iterator used;
    size_t bytes = 0;
  };

  // The beginning of a text that is known: its bytes up to a cut, and their tokens.
  struct Known {
    std::vector<uint64_t> names;  // of all full chunks of the text, known or not
    size_t chunks = 0;            // of them, how many are known
    size_t bytes = 0;             // up to the cut of the last known chunk
    size_t tokens = 0;            // up to there
  };

  std::vector<uint64_t> NamesOf(std::string_view text) const;
  // Appends the tokens of the longest known beginning.
  Known Find(std::string_view text, std::vector<TokenId>& tokens);
  // `cuts` count from what is known, `tokens` are all of the text's.
  void Insert(std::string_view text, const Known& known, std::span<const TokenCut> cuts,
              std::span<const TokenId> tokens, size_t lookahead_bytes);
  void EvictLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t bytes_max_;
  const uint64_t seed_;

  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<uint64_t> used_ ABSL_GUARDED_BY(mutex_);  // the latest first
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_TOKEN_CACHE_H_
