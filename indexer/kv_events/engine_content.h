// The content of a stored block beside its tokens: the adapter and the salt that its event names,
// and the multimodal objects of each block.
//
//   first block of a chain   extra_keys = [adapter] + [(identifier, offset)…] + [salt] + [digest of prompt embeddings]
//   later blocks             extra_keys = [adapter] + [(identifier, offset)…] +          [digest of prompt embeddings]
//
// *Truth*: a salt is, in this order: `cache_salt`; a text "dynamo-cache-salt:S" (S alone is asked
// for); vLLM's ordinary salt, the last plain text of a chain's first block. A plain text that is
// the adapter's name is the adapter. Any other plain text is the identifier of an object, as vLLM
// 0.18 wrote them; in a chain's first block that release's last identifier reads as a salt: then no
// query finds the chain; no other reading could promise that. An identifier of 16 hexadecimal
// digits and 48 zeros, as Dynamo's frontend makes them, is never a salt. Offsets play no part.
// Bytes (embeddings) and numbers are content that no query can say: such a block and those after it
// are refused.
//
// An object's place in a hash: its own hash behind the block's tokens, or, where the model's image
// token is known, as the content of the tokens that stand for it (`PadImages`), which is what
// SGLang publishes and Dynamo's frontend asks for.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENGINE_CONTENT_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENGINE_CONTENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

// Reused from event to event. Views are the event's.
struct StoredContent {
  // As the event names it; empty: none. An adapter known by number alone is "id:7".
  std::string_view lora_name;
  std::optional<std::string_view> cache_salt;
  // Leading blocks whose content can be hashed.
  size_t blocks = 0;
  // Some block has a salt in its extra keys, or a multimodal object.
  bool has_extras = false;

  // Hashes of the objects of block i.
  std::span<const uint64_t> multimodal(size_t i) const {
    if (i + 1 >= ends.size()) return {};
    return std::span(objects).subspan(ends[i], ends[i + 1] - ends[i]);
  }

  std::vector<uint64_t> objects;
  std::vector<size_t> ends;  // of block i: from ends[i] to ends[i + 1]; empty: no objects
  std::string lora_id;       // memory of `lora_name`
};

// The token that stands for an image in its tokens' place.
TokenId PadValue(uint64_t object);

// The block's tokens with each image's token replaced by its pad value: the n-th run of
// `image_token` is the n-th object, those behind the last object are the last one's, since an image
// may be broken into lines. False: there are no objects, or more than runs, so that this would not
// distinguish images; then objects are hashed.
bool PadImages(std::span<const TokenId> tokens, std::span<const uint64_t> objects,
               TokenId image_token, std::vector<TokenId>* padded);

// Reads the first `blocks` blocks. `at_root`: the first one starts a chain.
void ReadContent(const EngineEvent& event, size_t blocks, bool at_root, StoredContent* content);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENGINE_CONTENT_H_
