// Reads adapter, salt and multimodal objects out of a stored event; the header says which text
// means what. Called once per event with tokens, before its blocks are hashed.

#include "indexer/kv_events/engine_content.h"

#include <algorithm>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

// Dynamo marks its salts with this prefix.
constexpr std::string_view kTag = "dynamo-cache-salt:";

// An identifier of 64-bit hash that was padded to 256 bits: 16 hexadecimal digits and 48 zeros.
bool IsPaddedIdentifier(std::string_view text) {
  return text.size() == 64 &&
         text.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos &&
         text.find_first_not_of('0', 16) == std::string_view::npos;
}

// Reads the extra keys of one block; false: they name content that cannot be hashed.
class BlockKeys {
 public:
  BlockKeys(const EngineEvent& event, StoredContent* content) : event_(event), content_(content) {}

  bool Read(size_t block, bool starts_chain) {
    starts_chain_ = starts_chain;
    bool adapter = false;
    const std::span<const ExtraKey> keys = event_.extra_keys[block];
    for (size_t i = 0; i < keys.size(); ++i) {
      const ExtraKey& key = keys[i];
      if (key.kind == ExtraKey::Kind::kBytes) return false;
      if (key.kind == ExtraKey::Kind::kNumber) {
        // A number is the adapter's, or content that no query can name.
        if (event_.lora_id != key.offset) return false;
      } else if (key.kind == ExtraKey::Kind::kTextAt) {
        Object(key.text);
      } else if (!adapter && !event_.lora_name.empty() && key.text == event_.lora_name) {
        adapter = true;
      } else if (!Text(key.text, block, IsLastText(keys, i))) {
        return false;
      }
    }
    return true;
  }

  std::optional<std::string_view> tagged() const { return tagged_; }
  std::optional<std::string_view> plain() const { return plain_; }

 private:
  static bool IsLastText(std::span<const ExtraKey> keys, size_t i) {
    for (++i; i < keys.size(); ++i)
      if (keys[i].kind == ExtraKey::Kind::kText || keys[i].kind == ExtraKey::Kind::kTextAt)
        return false;
    return true;
  }

  // A plain text, in this order: a tagged salt; the salt, as the last text of a chain's first
  // block; else an object's identifier. A tagged salt of a later block has to be the chain's: false
  // otherwise.
  bool Text(std::string_view text, size_t block, bool is_last) {
    if (text.substr(0, kTag.size()) == kTag) {
      text.remove_prefix(kTag.size());
      // Engines write it in a chain's first block.
      if (block == 0) tagged_ = text;
      return block == 0 || text == tagged_.value_or(event_.cache_salt.value_or(text));
    }
    if (starts_chain_ && is_last && !IsPaddedIdentifier(text)) {
      plain_ = text;
    } else {
      Object(text);
    }
    return true;
  }

  void Object(std::string_view identifier) {
    if (!identifier.empty()) content_->objects.push_back(MultimodalHash(identifier));
  }

  const EngineEvent& event_;
  StoredContent* const content_;
  bool starts_chain_ = false;
  std::optional<std::string_view> tagged_;
  std::optional<std::string_view> plain_;
};

// Objects that the event lists for a block (`block_mm_infos`, `mm_keys`) replace those read from
// its extra keys: both describe the same objects.
void TakeNamed(const EngineEvent& event, size_t block, size_t from, StoredContent* content) {
  if (block >= event.multimodal.size() || event.multimodal[block].empty()) return;
  content->objects.resize(from);
  content->objects.insert(content->objects.end(), event.multimodal[block].begin(),
                          event.multimodal[block].end());
}

// The adapter by name, else by number as "id:N".
std::string_view AdapterOf(const EngineEvent& event, StoredContent* content) {
  if (!event.lora_name.empty()) return event.lora_name;
  // Old SGLang and TensorRT-LLM write 0 for none.
  if (!event.lora_id.has_value() || *event.lora_id == 0) return {};
  content->lora_id = "id:" + std::to_string(*event.lora_id);
  return content->lora_id;
}

}  // namespace

// 1,000,000 and 30 bits of the object's hash: the value that SGLang publishes there.
TokenId PadValue(uint64_t object) {
  constexpr uint64_t kMask = (uint64_t{1} << 30) - 1;
  return static_cast<TokenId>(1'000'000 + (object & kMask));
}

bool PadImages(std::span<const TokenId> tokens, std::span<const uint64_t> objects,
               TokenId image_token, std::vector<TokenId>* padded) {
  if (objects.empty()) return false;
  padded->assign(tokens.begin(), tokens.end());
  size_t runs = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != image_token) continue;
    if (i == 0 || tokens[i - 1] != image_token) ++runs;
    (*padded)[i] = PadValue(objects[std::min(runs, objects.size()) - 1]);
  }
  return runs >= objects.size();
}

// 1. Nothing but tokens: done, the common case.
// 2. Block by block: extra keys, then listed objects. The first block whose keys cannot be hashed
//    ends the content (`blocks`).
// 3. The salt: said explicitly, else tagged, else plain.
void ReadContent(const EngineEvent& event, size_t blocks, bool at_root, StoredContent* content) {
  content->objects.clear();
  content->ends.clear();
  content->lora_name = AdapterOf(event, content);
  content->cache_salt = event.cache_salt;
  content->blocks = blocks;
  content->has_extras = event.cache_salt.has_value();
  if (event.extra_keys.empty() && event.multimodal.empty()) return;
  BlockKeys keys(event, content);
  content->ends.push_back(0);
  for (size_t i = 0; i < blocks; ++i) {
    const size_t from = content->objects.size();
    if (i < event.extra_keys.size() && !keys.Read(i, at_root && i == 0)) {
      content->objects.resize(from);
      content->blocks = i;
      break;
    }
    TakeNamed(event, i, from, content);
    content->ends.push_back(content->objects.size());
  }
  if (!content->cache_salt.has_value()) content->cache_salt = keys.tagged();
  if (!content->cache_salt.has_value()) content->cache_salt = keys.plain();
  content->has_extras = content->cache_salt.has_value() || !content->objects.empty();
  if (content->objects.empty()) content->ends.clear();
}

}  // namespace kvatlas
