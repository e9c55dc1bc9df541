// The header has the picture. In terms of this file: `Find` collects the tokens of the chunks that
// begin a text, the tokenizer encodes the rest from the last cut on, `Insert` adds the chunks that
// were not known. The lock is held for look-ups in the map and the list alone; hashing, comparing
// and copying run without it, on chunks that are immutable and shared.

#include "frontend/prompt/text/token_cache.h"

#include <algorithm>
#include <utility>

#include "indexer/base/clock.h"

namespace kvatlas {
namespace {

// A chunk beside its text and tokens: two slots of the map, which is half empty at worst and holds
// the old table beside the new one while it grows; a node of the list; the chunk's own fields; and
// malloc's 8 to 23 bytes for each of four blocks.
constexpr size_t kChunkOverheadBytes = 400;

// Cuts are this far apart at least: close enough for the tail to be short, far enough to cost
// nothing.
constexpr size_t kPieceBytes = 128;

}  // namespace

// The seed is random: a client cannot choose texts whose chunks share a name.
TokenCache::TokenCache(size_t bytes_max) : bytes_max_(bytes_max), seed_(RandomInstanceId()) {}

absl::StatusOr<size_t> TokenCache::Encode(const Tokenizer& tokenizer, std::string_view text,
                                          std::vector<TokenId>& tokens) {
  tokens.clear();
  // About four bytes are a token in most texts: a third is on the high side and saves growing.
  tokens.reserve(text.size() / 3 + 16);
  const Known known = Find(text, tokens);
  std::vector<TokenCut> cuts;
  absl::Status encoded = tokenizer.Encode(text, known.bytes, kPieceBytes, tokens, &cuts);
  if (!encoded.ok()) return encoded;
  Insert(text, known, cuts, tokens, tokenizer.facts().lookahead_bytes);
  return known.tokens;
}

// The hash of each chunk has the hash before it as its seed, so a name stands for all of the text
// up to the chunk's end. A last chunk that is not full has no name and is never stored.
std::vector<uint64_t> TokenCache::NamesOf(std::string_view text) const {
  std::vector<uint64_t> names(text.size() / kChunkBytes);
  uint64_t name = seed_;
  for (size_t i = 0; i < names.size(); ++i) {
    name = Xxh3(text.substr(i * kChunkBytes, kChunkBytes), name);
    names[i] = name;
  }
  return names;
}

// 1. Makes the names without the lock, since they cost most.
// 2. With the lock, takes the chunks from the first on, up to the first name that is not there.
//    Marks them as used from the last to the first: the beginning of a text is the latest used, so
//    it is evicted last.
// 3. Without the lock, compares bytes and copies tokens. A chunk ends the walk if it does not begin
//    at the cut where the one before ended (`Chunk::from_bytes`), or if only its hash is equal.
TokenCache::Known TokenCache::Find(std::string_view text, std::vector<TokenId>& tokens) {
  if (bytes_max_ == 0) return {};
  Known known;
  known.names = NamesOf(text);
  const std::vector<uint64_t>& names = known.names;
  std::vector<std::shared_ptr<const Chunk>> chunks;
  {
    MutexLock lock(&mutex_);
    for (const uint64_t name : names) {
      const auto found = entries_.find(name);
      if (found == entries_.end()) break;
      chunks.push_back(found->second.chunk);
    }
    for (size_t i = chunks.size(); i-- > 0;) {
      used_.splice(used_.begin(), used_, entries_.find(names[i])->second.used);
    }
  }
  for (const std::shared_ptr<const Chunk>& chunk : chunks) {
    if (chunk->from_bytes != known.bytes) break;
    if (text.substr(known.chunks * kChunkBytes, kChunkBytes) != chunk->text) break;
    tokens.insert(tokens.end(), chunk->tokens.begin(), chunk->tokens.end());
    known.bytes = chunk->cut_bytes;
    known.tokens += chunk->tokens.size();
    ++known.chunks;
  }
  MutexLock lock(&mutex_);
  stats_.asked_bytes += text.size();
  stats_.known_bytes += known.bytes;
  return known;
}

// 1. Without the lock, makes a chunk for each name behind the known ones. A chunk has the tokens
//    from the cut of the chunk before up to the last cut that its own bytes make certain: a cut
//    depends on up to `lookahead_bytes` behind it, so it must lie that far before the chunk's end.
//    A chunk without such a cut has no tokens and the cut of the one before.
// 2. With the lock, puts them into the map, from the last to the first as in `Find`. An entry of
//    the same name stays if it begins at the same cut, and is replaced otherwise: its text was
//    encoded from another place, so its cuts do not continue this one's.
// 3. Evicts what is beyond the bound.
//
// Other threads may insert the same chunks meanwhile; either version is right.
void TokenCache::Insert(std::string_view text, const Known& known, std::span<const TokenCut> cuts,
                        std::span<const TokenId> tokens, size_t lookahead_bytes) {
  const std::vector<uint64_t>& names = known.names;
  if (bytes_max_ == 0 || known.chunks == names.size()) return;
  std::vector<std::shared_ptr<const Chunk>> chunks;
  TokenCut at{.bytes = known.bytes, .tokens = known.tokens};
  size_t next = 0;
  for (size_t i = known.chunks; i < names.size(); ++i) {
    const size_t end = (i + 1) * kChunkBytes;
    auto chunk = std::make_shared<Chunk>();
    chunk->text = text.substr(i * kChunkBytes, kChunkBytes);
    const size_t first = at.tokens;
    chunk->from_bytes = at.bytes;
    while (next < cuts.size() && known.bytes + cuts[next].bytes + lookahead_bytes <= end) {
      at = {known.bytes + cuts[next].bytes, known.tokens + cuts[next].tokens};
      ++next;
    }
    chunk->cut_bytes = at.bytes;
    chunk->tokens.assign(tokens.begin() + first, tokens.begin() + at.tokens);
    chunks.push_back(std::move(chunk));
  }
  MutexLock lock(&mutex_);
  for (size_t i = chunks.size(); i-- > 0;) {
    const uint64_t name = names[known.chunks + i];
    const auto [entry, is_new] = entries_.try_emplace(name);
    if (is_new) {
      used_.push_front(name);
      entry->second.used = used_.begin();
    } else if (entry->second.chunk->from_bytes == chunks[i]->from_bytes) {
      continue;
    }
    stats_.bytes -= entry->second.bytes;
    entry->second.bytes =
        kChunkOverheadBytes + chunks[i]->text.size() + chunks[i]->tokens.size() * sizeof(TokenId);
    entry->second.chunk = std::move(chunks[i]);
    stats_.bytes += entry->second.bytes;
  }
  EvictLocked();
}

// The chunk used longest ago goes first. Chunks behind a chunk that has gone are unreachable until
// it is inserted again; they are used no more and go soon.
void TokenCache::EvictLocked() {
  while (stats_.bytes > bytes_max_ && !used_.empty()) {
    const auto entry = entries_.find(used_.back());
    stats_.bytes -= entry->second.bytes;
    entries_.erase(entry);
    used_.pop_back();
    ++stats_.evicted_chunks;
  }
}

TokenCache::Stats TokenCache::stats() const {
  MutexLock lock(&mutex_);
  Stats stats = stats_;
  stats.chunks = entries_.size();
  return stats;
}

}  // namespace kvatlas
