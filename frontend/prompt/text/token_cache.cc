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

TokenCache::TokenCache(size_t bytes_max) : bytes_max_(bytes_max), seed_(RandomInstanceId()) {}

absl::StatusOr<size_t> TokenCache::Encode(const Tokenizer& tokenizer, std::string_view text,
                                          std::vector<TokenId>& tokens) {
  tokens.clear();
  // Of most texts an estimate on the high side.
  tokens.reserve(text.size() / 3 + 16);
  const Known known = Find(text, tokens);
  std::vector<TokenCut> cuts;
  absl::Status encoded = tokenizer.Encode(text, known.bytes, kPieceBytes, tokens, &cuts);
  if (!encoded.ok()) return encoded;
  Insert(text, known, cuts, tokens, tokenizer.facts().lookahead_bytes);
  return known.tokens;
}

std::vector<uint64_t> TokenCache::NamesOf(std::string_view text) const {
  std::vector<uint64_t> names(text.size() / kChunkBytes);
  uint64_t name = seed_;
  for (size_t i = 0; i < names.size(); ++i) {
    name = Xxh3(text.substr(i * kChunkBytes, kChunkBytes), name);
    names[i] = name;
  }
  return names;
}

// 1. Names without the lock, since they cost most.
// 2. Chunks from the first on, with it; they are used from the last to the first, so that a
//   beginning is evicted last.
// 3. Bytes are compared and tokens copied without it.
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
