// One event, from its first byte to a decision:
//
// 1. `Read` takes a map (`ReadMap`) or a tuple (`ReadTuple`); both pass each value to `ReadField`,
//    by name or by place.
// 2. `ReadField` decodes the value into the event or into `choices_`. A value of a wrong form is
//    skipped, and its field noted in `malformed_` or `too_large_`: whether that matters is not
//    known before the kind is.
// 3. `Finish` finds the kind from the tag, refuses the event if a field that its kind needs was
//    noted, and chooses between fields with two names.
//
// kLost is returned only where the end of a value cannot be found: nothing behind it can be read.
// Everything else is skipped, so that the next event is read.

#include "indexer/kv_events/decoder_event.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace kvatlas {
namespace {

// Fields that a kind needs: an unreadable value of one refuses the event. A removal does not need
// tokens, a clear needs nothing but its tag.
constexpr EventFields kRemovedNeeds =
    Bit(EventField::kBlockHashes) | Bit(EventField::kSeqHashes) | Bit(EventField::kMedium) |
    Bit(EventField::kLocality) | Bit(EventField::kOwnership) | Bit(EventField::kGroupIdx) |
    Bit(EventField::kSpecKind) | Bit(EventField::kModelName) | Bit(EventField::kTenantId) |
    Bit(EventField::kAdditionalSalt) | Bit(EventField::kDpRank) | Bit(EventField::kComponentTypes) |
    Bit(EventField::kComponentType);
constexpr EventFields kStoredNeeds =
    kRemovedNeeds | Bit(EventField::kParentBlockHash) | Bit(EventField::kParentHash) |
    Bit(EventField::kTokenIds) | Bit(EventField::kBlockSize) | Bit(EventField::kLoraId) |
    Bit(EventField::kLoraName) | Bit(EventField::kCacheSalt) | Bit(EventField::kExtraKeys) |
    Bit(EventField::kSlidingWindow) | Bit(EventField::kBlockMmInfos) | Bit(EventField::kMmKeys) |
    Bit(EventField::kBaseBlockIdx) | Bit(EventField::kBlockOffsets);

// Fields outside of this are decoration for the kind: an unreadable value is as if it were absent.
constexpr EventFields NeededBy(EngineEvent::Kind kind) {
  if (kind == EngineEvent::Kind::kStored) return kStoredNeeds;
  return kind == EngineEvent::Kind::kRemoved ? kRemovedNeeds : 0;
}

// Tuples: the places behind the tag. `FieldAt` says what may stand at `kLoraName` instead.
constexpr EventField kStoredPlaces[] = {
    EventField::kBlockHashes, EventField::kParentBlockHash, EventField::kTokenIds,
    EventField::kBlockSize,   EventField::kLoraId,          EventField::kMedium,
    EventField::kLoraName,    EventField::kExtraKeys,
};
constexpr EventField kRemovedPlaces[] = {EventField::kBlockHashes, EventField::kMedium,
                                         EventField::kComponentType};
constexpr EventField kClearedPlaces[] = {EventField::kOwnership};

// Then the tail. Its layout is fixed when every value fits it; else values are told apart by their
// type, as the relays of Dynamo 1.2 wrote them: [block_mm_infos?, group, kind, window].
constexpr EventField kTailPlaces[] = {
    EventField::kGroupIdx, EventField::kSpecKind,  EventField::kSlidingWindow,
    EventField::kLocality, EventField::kOwnership,
};
constexpr EventField kTailIntegers[] = {EventField::kGroupIdx, EventField::kSlidingWindow};
constexpr EventField kTailTexts[] = {EventField::kSpecKind, EventField::kLocality,
                                     EventField::kOwnership};
constexpr EventField kTailArrays[] = {EventField::kBlockMmInfos};
constexpr size_t kTailMax = 8;  // values of a tail that are looked at

struct TailValue {
  MsgpackReader::Position at = nullptr;
  MsgpackType type = MsgpackType::kNil;  // kInteger only from 0 to 2^32-1, else kInvalid
};

MsgpackType TailTypeOf(EventField field) {
  return field == EventField::kGroupIdx || field == EventField::kSlidingWindow
             ? MsgpackType::kInteger
             : MsgpackType::kText;
}

// Whether each value of the tail has the type that its place demands, or is nil.
bool IsFixed(std::span<const TailValue> tail) {
  for (size_t i = 0; i < tail.size() && i < std::size(kTailPlaces); ++i) {
    if (tail[i].type != MsgpackType::kNil && tail[i].type != TailTypeOf(kTailPlaces[i])) {
      return false;
    }
  }
  return true;
}

// Reads a value of the tail for its type and its end.
bool ReadTailValue(MsgpackReader* in, TailValue* value) {
  *value = {in->position(), in->Peek()};
  if (!in->Skip()) return false;
  if (value->type != MsgpackType::kInteger) return true;
  const MsgpackReader::Position end = in->position();
  MsgpackInteger integer;
  in->Seek(value->at);
  if (!in->ReadInteger(&integer) || integer.negative ||
      integer.bits > std::numeric_limits<uint32_t>::max()) {
    value->type = MsgpackType::kInvalid;
  }
  in->Seek(end);
  return true;
}

// False: one of them has no end.
bool SkipValues(MsgpackReader* in, uint32_t values) {
  for (; values > 0; --values) {
    if (!in->Skip()) return false;
  }
  return true;
}

std::optional<EngineEvent::Kind> KindOf(std::string_view tag) {
  if (tag == "BlockStored" || tag == "stored") return EngineEvent::Kind::kStored;
  if (tag == "BlockRemoved" || tag == "removed") return EngineEvent::Kind::kRemoved;
  if (tag == "AllBlocksCleared" || tag == "cleared") return EngineEvent::Kind::kCleared;
  if (tag == "Ignored") return EngineEvent::Kind::kIgnored;
  return std::nullopt;
}

// Kinds of events without effect here that take no block away: further forms of a store, a block
// that no request uses but that stays (proposed for vLLM), the size of a pool (TensorRT-LLM).
// TensorRT-LLM's "updated" is not among them: it moves blocks to another tier.
bool RemovesNothing(std::string_view tag) {
  return tag.starts_with("BlockStored") || tag == "BlockInactive" || tag == "created";
}

}  // namespace

// Field by field: for a whole structure of this size compilers use a fill instruction with a high
// start-up cost.
void EventReader::Choices::Reset() {
  type.reset();
  event_type.reset();
  block_hashes = {};
  seq_hashes = {};
  has_block_hashes = false;
  has_seq_hashes = false;
  parent_block_hash.reset();
  parent_hash.reset();
  block_mm_infos = {};
  mm_keys = {};
  block_size.reset();
  lookahead_blocks = 0;
  block_offsets = {};
  has_block_offsets = false;
  component_types.reset();
  component_type.reset();
}

EventReader::Outcome EventReader::Read(EngineEvent* event) {
  event_ = event;
  choices_.Reset();
  malformed_ = 0;
  too_large_ = 0;
  switch (in_.Peek()) {
    case MsgpackType::kMap:
      return ReadMap() ? Finish() : Outcome::kLost;
    case MsgpackType::kArray:
      return ReadTuple() ? Finish() : Outcome::kLost;
    default:
      return in_.Skip() ? Refuse(Refusal::kMalformed, Doubt::kLost) : Outcome::kLost;
  }
}

// A key that is no text, or unknown, is skipped with its value.
bool EventReader::ReadMap() {
  uint32_t pairs = 0;
  if (!in_.ReadMap(&pairs)) return false;
  for (uint32_t i = 0; i < pairs; ++i) {
    EventField field;
    if (!keys_.Read(&in_, pairs, i, &field) || !ReadField(field)) return false;
  }
  return true;
}

// The tag is the first value. An empty tuple is an event without a tag, which `Finish` refuses.
bool EventReader::ReadTuple() {
  uint32_t values = 0;
  if (!in_.ReadArray(&values)) return false;
  if (values == 0) return true;
  return ReadField(EventField::kType) && ReadTupleFields(values - 1);
}

// Fixed places by kind, then the tail. A tuple may end at any place: what is behind is absent. A
// tuple of an unknown kind has no places: its values are skipped.
bool EventReader::ReadTupleFields(uint32_t values) {
  const std::optional<EngineEvent::Kind> kind =
      choices_.type.has_value() ? KindOf(*choices_.type) : std::nullopt;
  std::span<const EventField> places;
  if (kind == EngineEvent::Kind::kStored) places = kStoredPlaces;
  if (kind == EngineEvent::Kind::kRemoved) places = kRemovedPlaces;
  if (kind == EngineEvent::Kind::kCleared) places = kClearedPlaces;
  for (const EventField place : places) {
    if (values == 0) return true;
    // Without a component, as vLLM writes removals, the tail begins here.
    if (place == EventField::kComponentType && !PeekComponent()) break;
    --values;
    const bool is_metadata = place == EventField::kLoraName && in_.Peek() == MsgpackType::kMap;
    if (!(is_metadata ? ReadMetadata() : ReadField(FieldAt(place)))) return false;
  }
  const bool has_tail = kind == EngineEvent::Kind::kStored || kind == EngineEvent::Kind::kRemoved;
  return has_tail ? ReadTail(values) : SkipValues(&in_, values);
}

// The field that stands at this place of a tuple. SGLang writes components where vLLM has the
// adapter's name: a list, or one label. An adapter with such a name has a number beside it in vLLM;
// SGLang's tuples have no number.
EventField EventReader::FieldAt(EventField place) {
  if (place != EventField::kLoraName) return place;
  if (in_.Peek() == MsgpackType::kArray) return EventField::kComponentTypes;
  const bool is_component = !event_->lora_id.has_value() && PeekComponent();
  return is_component ? EventField::kComponentType : place;
}

// Whether a known component's label comes next. Reads nothing.
bool EventReader::PeekComponent() {
  if (in_.Peek() != MsgpackType::kText) return false;
  const MsgpackReader::Position start = in_.position();
  std::string_view label;
  const bool is_known = in_.ReadText(&label) && ComponentOf(label) != kComponentUnknown;
  in_.Seek(start);
  return is_known;
}

// {"cache_salt": …}, and whatever else of the namespace may come to stand there.
bool EventReader::ReadMetadata() {
  uint32_t pairs = 0;
  if (!in_.ReadMap(&pairs)) return false;
  for (uint32_t i = 0; i < pairs; ++i) {
    EventField field;
    if (!keys_.Read(&in_, pairs, i, &field)) return false;
    const bool is_known = field == EventField::kCacheSalt || field == EventField::kLoraName ||
                          field == EventField::kSessionId || field == EventField::kComponentTypes ||
                          field == EventField::kComponentType;
    if (!ReadField(is_known ? field : EventField::kUnknown)) return false;
  }
  return true;
}

// The values behind the fixed places, in two passes: the first finds types and ends, and decides
// whether the layout is fixed; the second goes back and reads each value as its field. Values
// beyond `kTailMax` are skipped. Each type's fields are given out in their order where the layout
// is not fixed.
bool EventReader::ReadTail(uint32_t values) {
  std::array<TailValue, kTailMax> storage;
  const size_t looked_at = std::min<size_t>(values, kTailMax);
  for (size_t i = 0; i < looked_at; ++i) {
    if (!ReadTailValue(&in_, &storage[i])) return false;
  }
  if (!SkipValues(&in_, values - static_cast<uint32_t>(looked_at))) return false;
  const MsgpackReader::Position end = in_.position();
  const std::span<const TailValue> tail(storage.data(), looked_at);
  const bool fixed = IsFixed(tail);
  std::span<const EventField> integers = kTailIntegers;
  std::span<const EventField> texts = kTailTexts;
  std::span<const EventField> arrays = kTailArrays;
  for (size_t i = 0; i < tail.size(); ++i) {
    EventField field = EventField::kUnknown;
    const auto take = [&](std::span<const EventField>* fields) {
      if (fields->empty()) return;
      field = fields->front();
      *fields = fields->subspan(1);
    };
    if (fixed) {
      if (i < std::size(kTailPlaces)) field = kTailPlaces[i];
    } else if (tail[i].type == MsgpackType::kInteger) {
      take(&integers);
    } else if (tail[i].type == MsgpackType::kText) {
      take(&texts);
    } else if (tail[i].type == MsgpackType::kArray) {
      take(&arrays);
    }
    in_.Seek(tail[i].at);
    if (!ReadField(field)) return false;
  }
  in_.Seek(end);
  return true;
}

// Reads the value of a field, or skips it and notes why. Memory of the failed attempt goes back to
// the arena. False: where the value ends cannot be known.
bool EventReader::ReadField(EventField field) {
  if (field == EventField::kUnknown) return in_.Skip();
  const MsgpackReader::Position start = in_.position();
  const DecoderArena::Mark mark = values_.arena->mark();
  const DecodeResult result = DecodeField(field);
  if (result == DecodeResult::kOk) return true;
  (result == DecodeResult::kTooLarge ? too_large_ : malformed_) |= Bit(field);
  values_.arena->Release(mark);
  in_.Seek(start);
  return in_.Skip();
}

DecodeResult EventReader::DecodeField(EventField field) {
  switch (field) {
    case EventField::kUnknown:
      break;
    case EventField::kType:
      return DecodeOptionalText(values_, &choices_.type);
    case EventField::kEventType:
      return DecodeOptionalText(values_, &choices_.event_type);
    case EventField::kBlockHashes:
      return DecodeHashes(values_, &choices_.block_hashes, &choices_.has_block_hashes);
    case EventField::kSeqHashes:
      return DecodeHashes(values_, &choices_.seq_hashes, &choices_.has_seq_hashes);
    case EventField::kParentBlockHash:
      return DecodeOptionalHash(values_, &choices_.parent_block_hash);
    case EventField::kParentHash:
      return DecodeOptionalHash(values_, &choices_.parent_hash);
    case EventField::kTokenIds:
      return DecodeTokenIds();
    case EventField::kBlockSize:
      return DecodeOptionalU32(values_, &choices_.block_size);
    case EventField::kLoraId:
      return DecodeOptionalI64(values_, &event_->lora_id);
    case EventField::kMedium:
      return DecodeText(values_, &event_->medium);
    case EventField::kLoraName:
      return DecodeText(values_, &event_->lora_name);
    case EventField::kCacheSalt:
      return DecodeOptionalText(values_, &event_->cache_salt);
    case EventField::kExtraKeys:
      return DecodeExtraKeys(values_, &event_->extra_keys);
    case EventField::kGroupIdx:
      return DecodeOptionalU32(values_, &event_->group);
    case EventField::kSpecKind:
      return DecodeText(values_, &event_->spec_kind);
    case EventField::kSlidingWindow:
      return DecodeOptionalU32(values_, &event_->sliding_window);
    case EventField::kLocality:
      return DecodeText(values_, &event_->locality);
    case EventField::kOwnership:
      return DecodeText(values_, &event_->ownership);
    case EventField::kSessionId:
      return DecodeText(values_, &event_->session_id);
    case EventField::kBlockMmInfos:
      return DecodeMultimodal(values_, &choices_.block_mm_infos);
    case EventField::kMmKeys:
      return DecodeMultimodal(values_, &choices_.mm_keys);
    case EventField::kModelName:
      return DecodeText(values_, &event_->model_name);
    case EventField::kTenantId:
      return DecodeText(values_, &event_->tenant_id);
    case EventField::kBackendId:
      return DecodeText(values_, &event_->backend_id);
    case EventField::kAdditionalSalt:
      return DecodeText(values_, &event_->additional_salt);
    case EventField::kBaseBlockIdx:
      return DecodeOptionalU32(values_, &event_->base_block);
    case EventField::kDpRank:
      return DecodeOptionalI64(values_, &event_->rank);
    case EventField::kLookahead:
      return DecodeLookahead();
    case EventField::kBlockOffsets:
      return DecodeOffsets(values_, &choices_.block_offsets, &choices_.has_block_offsets);
    case EventField::kComponentTypes:
      return DecodeComponents(values_, &choices_.component_types);
    case EventField::kComponentType:
      return DecodeComponent(values_, &choices_.component_type);
  }
  return DecodeResult::kMalformed;
}

// Bigrams look ahead by one token: `DecodeTokens` has made one flat list of them.
DecodeResult EventReader::DecodeTokenIds() {
  DecodedTokens decoded;
  const DecodeResult result = DecodeTokens(values_.in, values_.arena, &decoded);
  event_->tokens = decoded.tokens;
  event_->look_ahead = decoded.bigrams ? 1 : 0;
  event_->tokens_opaque = decoded.opaque;
  return result;
}

// [[the tokens behind block 0 that its hash covers], …]. A value of another form is ignored.
DecodeResult EventReader::DecodeLookahead() {
  choices_.lookahead_blocks = 0;
  uint32_t blocks = 0;
  if (in_.Peek() != MsgpackType::kArray || !in_.ReadArray(&blocks)) return DecodeResult::kMalformed;
  // The tokens behind the last block are kept; those behind the others are tokens of the event.
  uint32_t of_each = 0;
  for (uint32_t i = 0; i < blocks; ++i) {
    uint32_t tokens = 0;
    if (in_.Peek() != MsgpackType::kArray || !in_.ReadArray(&tokens) || tokens == 0 ||
        tokens > kLookAheadMax || (i != 0 && tokens != of_each)) {
      return DecodeResult::kMalformed;
    }
    of_each = tokens;
    for (uint32_t t = 0; t < tokens; ++t) {
      MsgpackInteger token;
      if (in_.Peek() != MsgpackType::kInteger || !in_.ReadInteger(&token) || token.negative ||
          token.bits > std::numeric_limits<TokenId>::max()) {
        return DecodeResult::kMalformed;
      }
      choices_.lookahead[t] = static_cast<TokenId>(token.bits);
    }
  }
  choices_.lookahead_blocks = blocks;
  choices_.lookahead_tokens = of_each;
  return DecodeResult::kOk;
}

// Appends the tokens behind the last block to the event's own, so that every block has the tokens
// that its hash covers. False: no room.
bool EventReader::AddLookahead() {
  const std::span<const TokenId> tokens = event_->tokens;
  if (choices_.lookahead_blocks == 0 || choices_.lookahead_blocks != event_->hashes.size() ||
      event_->look_ahead != 0 || tokens.empty()) {
    return true;
  }
  const size_t ahead = choices_.lookahead_tokens;
  TokenId* const longer = values_.arena->Allocate<TokenId>(tokens.size() + ahead);
  if (longer == nullptr) return false;
  std::copy_n(choices_.lookahead.begin(), ahead, std::copy(tokens.begin(), tokens.end(), longer));
  event_->tokens = {longer, tokens.size() + ahead};
  event_->look_ahead = choices_.lookahead_tokens;
  return true;
}

// Where an event has both keys, the one component counts: the event is about that.
void EventReader::SetComponents() {
  if (choices_.component_type.has_value()) {
    event_->component_form = ComponentForm::kOne;
    event_->components = *choices_.component_type;
  } else if (choices_.component_types.has_value()) {
    event_->component_form = ComponentForm::kSnapshot;
    event_->components = *choices_.component_types;
  }
}

// The tag, under either name; "event_type" marks the envelope and counts where both are.
bool EventReader::FindKind() {
  event_->envelope = choices_.event_type.has_value();
  const std::optional<std::string_view>& tag =
      event_->envelope ? choices_.event_type : choices_.type;
  if (!tag.has_value()) {
    Refuse(Refusal::kMalformed, Doubt::kLost);
    return false;
  }
  const std::optional<EngineEvent::Kind> kind = KindOf(*tag);
  if (!kind.has_value()) {
    Refuse(Refusal::kUnknownTag, RemovesNothing(*tag) ? Doubt::kNone : Doubt::kUnknown);
    return false;
  }
  event_->kind = *kind;
  return true;
}

EventReader::Outcome EventReader::Finish() {
  if (!FindKind()) return Outcome::kRefused;
  const EventFields needed = NeededBy(event_->kind);
  // A store that is refused makes an answer too small; a removal that is refused leaves something
  // that may be gone: doubt.
  const Doubt doubt = event_->kind == EngineEvent::Kind::kRemoved ? Doubt::kLost : Doubt::kNone;
  if ((too_large_ & needed) != 0) return Refuse(Refusal::kTooLarge, doubt);
  if ((malformed_ & needed) != 0) return Refuse(Refusal::kMalformed, doubt);
  // The engine's own name counts; without one (Mooncake, for keys of other origin) the sequence
  // hash.
  const bool has_own =
      choices_.has_block_hashes && (!choices_.block_hashes.empty() || !choices_.has_seq_hashes);
  event_->hashes = has_own ? choices_.block_hashes : choices_.seq_hashes;
  event_->parent =
      choices_.parent_block_hash.has_value() ? choices_.parent_block_hash : choices_.parent_hash;
  event_->multimodal = choices_.block_mm_infos.empty() ? choices_.mm_keys : choices_.block_mm_infos;
  event_->block_size = choices_.block_size.value_or(0);
  const bool names_blocks =
      event_->kind == EngineEvent::Kind::kStored || event_->kind == EngineEvent::Kind::kRemoved;
  if (names_blocks && !choices_.has_block_hashes && !choices_.has_seq_hashes) {
    return Refuse(Refusal::kMissingField, doubt);
  }
  // Mooncake's master does not know the size of the blocks that it stores.
  if (event_->kind == EngineEvent::Kind::kStored && !choices_.block_size.has_value() &&
      !event_->envelope) {
    return Refuse(Refusal::kMissingField, doubt);
  }
  if (event_->kind == EngineEvent::Kind::kStored) {
    if (choices_.has_block_offsets && choices_.block_offsets.size() != event_->hashes.size()) {
      return Refuse(Refusal::kMalformed, doubt);
    }
    event_->block_offsets = choices_.block_offsets;
    if (!AddLookahead()) return Refuse(Refusal::kTooLarge, doubt);
  }
  if (names_blocks) SetComponents();
  return Outcome::kDecoded;
}

EventReader::Outcome EventReader::Refuse(Refusal refusal, Doubt doubt) {
  refusal_ = refusal;
  doubt_ = doubt;
  return Outcome::kRefused;
}

}  // namespace kvatlas
