// Names of refusals: labels of metrics, logs and answers, which do not change.

#include "indexer/kv_events/engine_event.h"

#include "indexer/base/big_endian.h"

namespace kvatlas {

uint64_t EngineBlockHash::FirstBytes() const {
  if (bytes.size() < 8) return value;
  return FromBigEndian(bytes.substr(0, 8));
}

std::string_view RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kMalformed:
      return "malformed";
    case Refusal::kMissingField:
      return "missing_field";
    case Refusal::kUnknownTag:
      return "unknown_tag";
    case Refusal::kTooLarge:
      return "too_large";
    case Refusal::kIgnoredEvent:
      return "ignored_event";
    case Refusal::kUnknownMedium:
      return "unknown_medium";
    case Refusal::kRemoteLocality:
      return "remote_locality";
    case Refusal::kUnknownLocality:
      return "unknown_locality";
    case Refusal::kUnsupportedOwnership:
      return "unsupported_ownership";
    case Refusal::kNotMainAttention:
      return "not_main_attention";
    case Refusal::kUnlearnedGroup:
      return "unlearned_group";
    case Refusal::kBlockSize:
      return "block_size";
    case Refusal::kNotDense:
      return "not_dense";
    case Refusal::kOpaqueTokens:
      return "opaque_tokens";
    case Refusal::kSelfReference:
      return "self_reference";
    case Refusal::kAmbiguousNamespace:
      return "ambiguous_namespace";
    case Refusal::kNoContent:
      return "no_content";
    case Refusal::kOrphanDropped:
      return "orphan_dropped";
    case Refusal::kUnknownRemoved:
      return "unknown_removed";
    case Refusal::kShed:
      return "shed";
    case Refusal::kPartBlock:
      return "part_block";
  }
  return "unknown";
}

}  // namespace kvatlas
