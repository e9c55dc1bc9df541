// Which tokens of this text were already made for an earlier one? The store of prefixes that makes
// the next turn of a conversation cost its new part alone.
//
// A text is looked at in chunks of kChunkBytes. A chunk's name is the hash of everything up to its
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
// *Bounds*: `bytes_max` of texts, tokens and all that holds them; beyond it the chunks go that were
// not used for longest, those of a beginning after those that follow it.
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
    uint64_t known_bytes = 0;  // of all texts asked for
    uint64_t asked_bytes = 0;
    uint64_t evicted_chunks = 0;
  };

  // With `bytes_max` 0 nothing is ever known.
  explicit TokenCache(size_t bytes_max);

  // Puts the tokens of `text` into `tokens`: those of its longest known beginning, and what
  // `tokenizer`, always the same one, makes of the rest; remembers the text. Returns how many were
  // known. Errors are the tokenizer's.
  absl::StatusOr<size_t> Encode(const Tokenizer& tokenizer, std::string_view text,
                                std::vector<TokenId>& tokens);

  Stats stats() const;

 private:
  struct Chunk {
    std::string text;
    // The tokens between the cut of the chunk before and this one's, both counted from the text's
    // start. A chunk whose `from_bytes` is not where the chunk before ends was made beside another
    // one and is of no use.
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
    std::vector<uint64_t> names;  // of all of the text's chunks
    size_t chunks = 0;
    size_t bytes = 0;
    size_t tokens = 0;
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
