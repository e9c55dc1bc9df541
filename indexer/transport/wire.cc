// In this order: helpers, messages of the stream (`MessageToProto`, `MessageFromProto`), then the
// words that other services use as well. Each `FromProto` writes its result and checks it field by
// field; the first field that is wrong decides, and its path is in the status. A result after an
// error is partly written and must not be used.

#include "indexer/transport/wire.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

absl::Status Bad(std::string_view field, std::string_view what) {
  return absl::InvalidArgumentError(std::string(field) + ": " + std::string(what));
}

std::string Dot(std::string_view field, std::string_view member) {
  return std::string(field) + "." + std::string(member);
}

// `bytes_min` is 1 for names, else 0: "empty" is the only text that is too short. UTF-8 is checked
// by `stream/validate.h`.
absl::Status CheckText(const std::string& text, size_t bytes_min, size_t bytes_max,
                       std::string_view field, std::string_view member) {
  if (text.size() < bytes_min) return Bad(Dot(field, member), "empty");
  if (text.size() > bytes_max) {
    return Bad(Dot(field, member), "longer than " + std::to_string(bytes_max) + " bytes");
  }
  return absl::OkStatus();
}

using WireHashes = google::protobuf::RepeatedField<uint64_t>;

// One copy of memory: the typed hash has the size of the wire's, as asserted.
void HashesToProto(const std::vector<SequenceHash>& hashes, WireHashes* out) {
  static_assert(sizeof(SequenceHash) == sizeof(uint64_t));
  out->Resize(static_cast<int>(hashes.size()), 0);
  if (!hashes.empty()) {
    std::memcpy(out->mutable_data(), hashes.data(), hashes.size() * sizeof(uint64_t));
  }
}

void HashesFromProto(const WireHashes& in, std::vector<SequenceHash>* out) {
  out->resize(static_cast<size_t>(in.size()));
  if (!in.empty()) std::memcpy(out->data(), in.data(), out->size() * sizeof(uint64_t));
}

absl::Status CheckBlocks(size_t blocks, std::string_view field) {
  if (blocks <= kBatchBlocksMax) return absl::OkStatus();
  return Bad(field, "more than " + std::to_string(kBatchBlocksMax) + " blocks");
}

// `kUnknownSide` is above the bound: no sender may send it.
absl::Status SideFromProto(uint32_t in, SideClass* out, std::string_view field) {
  if (in > kSideClassesMax) return Bad(Dot(field, "side"), "an unknown class");
  *out = static_cast<SideClass>(in);
  return absl::OkStatus();
}

// Removals need no position: the names are enough.
absl::Status FromProto(const v1::Removed& in, Removed* out, std::string_view field) {
  if (absl::Status status = FromProto(in.tier(), &out->tier, Dot(field, "tier")); !status.ok()) {
    return status;
  }
  HashesFromProto(in.blocks(), &out->blocks);
  if (absl::Status bad = SideFromProto(in.side(), &out->side, field); !bad.ok()) return bad;
  return CheckBlocks(out->blocks.size(), Dot(field, "blocks"));
}

// The parts that batches and snapshots have in common.
template <typename Wire, typename Value>
absl::Status TailFromProto(const Wire& in, Value* out, std::string_view field) {
  out->degraded = in.degraded();
  if (in.has_layout()) {
    absl::Status status = FromProto(in.layout(), &out->layout.emplace(), Dot(field, "layout"));
    if (!status.ok()) return status;
  }
  if (in.has_load()) {
    absl::Status status = FromProto(in.load(), &out->load.emplace(), Dot(field, "load"));
    if (!status.ok()) return status;
  }
  if (in.has_digest()) return FromProto(in.digest(), &out->digest.emplace(), Dot(field, "digest"));
  return absl::OkStatus();
}

template <typename Value, typename Wire>
void TailToProto(const Value& value, Wire* out) {
  if (value.load) ToProto(*value.load, out->mutable_load());
  if (value.digest) ToProto(*value.digest, out->mutable_digest());
  if (value.layout) ToProto(*value.layout, out->mutable_layout());
  out->set_degraded(value.degraded);
}

void MessageToProto(const Hello& hello, v1::SenderMessage* message) {
  v1::Hello* const out = message->mutable_hello();
  ToProto(hello.holder, out->mutable_holder());
  ToProto(hello.domain, out->mutable_domain());
  out->set_block_size(hello.block_size);
  out->set_contract_id(hello.contract_id);
  out->set_schedule(hello.schedule);
  out->set_epoch(hello.epoch);
  out->set_instance_id(hello.instance_id);
  out->set_first_kept(hello.first_kept);
  out->set_last_sent(hello.last_sent);
  out->set_starting(hello.starting);
  out->set_address(hello.address);
  for (const auto& [key, value] : hello.labels) (*out->mutable_labels())[key] = value;
  out->set_degraded(hello.degraded);
}

void MessageToProto(const Batch& batch, v1::SenderMessage* message) {
  v1::Batch* const out = message->mutable_batch();
  out->set_number(batch.number);
  out->mutable_events()->Reserve(static_cast<int>(batch.events.size()));
  for (const Event& event : batch.events) ToProto(event, out->add_events());
  TailToProto(batch, out);
}

void MessageToProto(const SnapshotPart& part, v1::SenderMessage* message) {
  v1::SnapshotPart* const out = message->mutable_snapshot_part();
  out->set_snapshot_id(part.snapshot_id);
  out->set_as_of(part.as_of);
  out->set_part(part.part);
  out->set_last(part.last);
  out->mutable_stored()->Reserve(static_cast<int>(part.stored.size()));
  for (const Stored& stored : part.stored) ToProto(stored, out->add_stored());
  TailToProto(part, out);
}

void MessageToProto(const Heartbeat& heartbeat, v1::SenderMessage* message) {
  message->mutable_heartbeat()->set_last_sent(heartbeat.last_sent);
}

void MessageToProto(const Goodbye&, v1::SenderMessage* message) { message->mutable_goodbye(); }

void MessageToProto(const Welcome& welcome, v1::ReceiverMessage* message) {
  v1::Welcome* const out = message->mutable_welcome();
  out->set_next(welcome.next);
  out->set_snapshot(welcome.snapshot);
  out->set_credit(welcome.credit);
}

void MessageToProto(const Refuse& refuse, v1::ReceiverMessage* message) {
  v1::Refuse* const out = message->mutable_refuse();
  out->set_code(static_cast<int32_t>(refuse.code));
  // Cut, so that a long reason does not make the message out of bounds at the other end.
  out->set_reason(refuse.reason.substr(0, kReasonBytesMax));
  out->set_epoch(refuse.epoch);
  out->set_instance_id(refuse.instance_id);
  out->set_lapsed(refuse.lapsed);
}

void MessageToProto(const Ack& ack, v1::ReceiverMessage* message) {
  message->mutable_ack()->set_applied(ack.applied);
  message->mutable_ack()->set_credit(ack.credit);
}

void MessageToProto(const Need& need, v1::ReceiverMessage* message) {
  message->mutable_need()->set_next(need.next);
  message->mutable_need()->set_snapshot(need.snapshot);
}

// Sorted, so that equal labels compare equal: `HolderInfo` and readers of Redis compare hellos.
absl::Status LabelsFromProto(const v1::Hello& in, Hello* out) {
  if (in.labels_size() > static_cast<int>(kHelloLabelsMax)) {
    return Bad("hello.labels", "more than " + std::to_string(kHelloLabelsMax));
  }
  for (const auto& [key, value] : in.labels()) {
    if (absl::Status s = CheckText(key, 1, kHelloTextBytesMax, "hello.labels", "key"); !s.ok()) {
      return s;
    }
    if (absl::Status s = CheckText(value, 0, kHelloTextBytesMax, "hello.labels", "value");
        !s.ok()) {
      return s;
    }
    out->labels.emplace_back(key, value);
  }
  std::sort(out->labels.begin(), out->labels.end());  // a map on the wire has no order
  return absl::OkStatus();
}

// `first_kept` may be one behind `last_sent`: nothing is kept then. Compared by subtraction, which
// cannot wrap here, since `first_kept` is not 0.
absl::Status CheckHelloNumbers(const v1::Hello& in) {
  if (in.block_size() == 0 || in.block_size() > kBlockSizeMax) {
    return Bad("hello.block_size", "not within 1 to " + std::to_string(kBlockSizeMax));
  }
  if (in.epoch() == 0) return Bad("hello.epoch", "missing");
  if (in.first_kept() == 0) return Bad("hello.first_kept", "numbers start at 1");
  if (in.first_kept() - 1 > in.last_sent()) {
    return Bad("hello.first_kept", "beyond the batch after last_sent");
  }
  return absl::OkStatus();
}

absl::Status CheckHelloTexts(const v1::Hello& in) {
  absl::Status status = CheckText(in.contract_id(), 1, kHelloTextBytesMax, "hello", "contract_id");
  status.Update(CheckText(in.schedule(), 0, kHelloTextBytesMax, "hello", "schedule"));
  status.Update(CheckText(in.address(), 0, kHelloTextBytesMax, "hello", "address"));
  return status;
}

absl::Status MessageFromProto(const v1::Hello& in, Hello* out) {
  if (!in.has_holder()) return Bad("hello.holder", "missing");
  if (!in.has_domain()) return Bad("hello.domain", "missing");
  absl::Status status = FromProto(in.holder(), &out->holder, "hello.holder");
  status.Update(FromProto(in.domain(), &out->domain, "hello.domain"));
  status.Update(CheckHelloNumbers(in));
  status.Update(CheckHelloTexts(in));
  if (!status.ok()) return status;
  out->block_size = in.block_size();
  out->contract_id = in.contract_id();
  out->schedule = in.schedule();
  out->epoch = in.epoch();
  out->instance_id = in.instance_id();
  out->first_kept = in.first_kept();
  out->last_sent = in.last_sent();
  out->starting = in.starting();
  out->address = in.address();
  out->degraded = in.degraded();
  return LabelsFromProto(in, out);
}

// The count of events is checked before anything is allocated for them, the sum of blocks at the
// end.
absl::Status MessageFromProto(const v1::Batch& in, Batch* out) {
  if (in.number() == 0) return Bad("batch.number", "numbers start at 1");
  if (in.events_size() > static_cast<int>(kBatchEventsMax)) {
    return Bad("batch.events", "more than " + std::to_string(kBatchEventsMax));
  }
  out->number = in.number();
  out->events.resize(static_cast<size_t>(in.events_size()));
  size_t blocks = 0;
  for (int i = 0; i < in.events_size(); ++i) {
    if (absl::Status s = FromProto(in.events(i), &out->events[i], "batch.events"); !s.ok()) {
      return s;
    }
    blocks += BlockCount(out->events[i]);
  }
  if (absl::Status status = CheckBlocks(blocks, "batch.events"); !status.ok()) return status;
  return TailFromProto(in, out, "batch");
}

// A part is bounded like a batch, so that both have one size on the wire at most. That the last one
// has a digest is checked by `stream/validate.h`.
absl::Status MessageFromProto(const v1::SnapshotPart& in, SnapshotPart* out) {
  if (in.stored_size() > static_cast<int>(kBatchEventsMax)) {
    return Bad("snapshot_part.stored", "more than " + std::to_string(kBatchEventsMax));
  }
  out->snapshot_id = in.snapshot_id();
  out->as_of = in.as_of();
  out->part = in.part();
  out->last = in.last();
  out->stored.resize(static_cast<size_t>(in.stored_size()));
  size_t blocks = 0;
  for (int i = 0; i < in.stored_size(); ++i) {
    if (absl::Status s = FromProto(in.stored(i), &out->stored[i], "snapshot_part.stored");
        !s.ok()) {
      return s;
    }
    blocks += out->stored[i].blocks.size();
  }
  if (absl::Status s = CheckBlocks(blocks, "snapshot_part.stored"); !s.ok()) return s;
  return TailFromProto(in, out, "snapshot_part");
}

absl::Status MessageFromProto(const v1::Heartbeat& in, Heartbeat* out) {
  out->last_sent = in.last_sent();
  return absl::OkStatus();
}

absl::Status MessageFromProto(const v1::Welcome& in, Welcome* out) {
  *out = {.next = in.next(), .snapshot = in.snapshot(), .credit = in.credit()};
  return absl::OkStatus();
}

// OK and unknown numbers are no refusals.
absl::Status MessageFromProto(const v1::Refuse& in, Refuse* out) {
  constexpr int kCodeMax = static_cast<int>(absl::StatusCode::kUnauthenticated);
  if (in.code() < 1 || in.code() > kCodeMax) return Bad("refuse.code", "not the code of an error");
  out->code = static_cast<absl::StatusCode>(in.code());
  out->reason = in.reason();
  out->epoch = in.epoch();
  out->instance_id = in.instance_id();
  out->lapsed = in.lapsed();
  return CheckText(in.reason(), 0, kReasonBytesMax, "refuse", "reason");
}

absl::Status MessageFromProto(const v1::Ack& in, Ack* out) {
  *out = {.applied = in.applied(), .credit = in.credit()};
  return absl::OkStatus();
}

absl::Status MessageFromProto(const v1::Need& in, Need* out) {
  *out = {.next = in.next(), .snapshot = in.snapshot()};
  return absl::OkStatus();
}

}  // namespace

void ToProto(const Domain& domain, v1::Domain* out) {
  out->set_model(domain.model);
  out->set_tenant(domain.tenant);
}

absl::Status FromProto(const v1::Domain& in, Domain* out, std::string_view field) {
  absl::Status status = CheckText(in.model(), 1, kNameBytesMax, field, "model");
  status.Update(CheckText(in.tenant(), 0, kNameBytesMax, field, "tenant"));
  if (status.ok()) *out = {in.model(), in.tenant()};
  return status;
}

void ToProto(const HolderId& holder, v1::Holder* out) {
  out->set_name(holder.name);
  out->set_rank(holder.rank);
  out->set_replica(holder.replica);
}

absl::Status FromProto(const v1::Holder& in, HolderId* out, std::string_view field) {
  absl::Status status = CheckText(in.name(), 1, kNameBytesMax, field, "name");
  status.Update(CheckText(in.replica(), 0, kNameBytesMax, field, "replica"));
  if (status.ok()) *out = {in.name(), in.rank(), in.replica()};
  return status;
}

void ToProto(const Load& load, v1::Load* out) {
  out->set_running_requests(load.running_requests);
  out->set_waiting_requests(load.waiting_requests);
  out->set_used_blocks(load.used_blocks);
  out->set_free_blocks(load.free_blocks);
  out->set_waiting_prefill_blocks(load.waiting_prefill_blocks);
  out->set_tokens_per_s(load.tokens_per_s);
  out->set_workers(load.workers);
}

absl::Status FromProto(const v1::Load& in, Load* out, std::string_view field) {
  if (!std::isfinite(in.tokens_per_s()) || in.tokens_per_s() < 0) {
    return Bad(Dot(field, "tokens_per_s"), "negative, or not a number");
  }
  *out = {.running_requests = in.running_requests(),
          .waiting_requests = in.waiting_requests(),
          .used_blocks = in.used_blocks(),
          .free_blocks = in.free_blocks(),
          .waiting_prefill_blocks = in.waiting_prefill_blocks(),
          .tokens_per_s = in.tokens_per_s(),
          .workers = in.workers()};
  return absl::OkStatus();
}

void ToProto(const Digest& digest, v1::Digest* out) {
  out->clear_tiers();
  for (const Digest::OfTier& tier : digest.tiers) {
    v1::Digest::OfTier* const of_tier = out->add_tiers();
    of_tier->set_blocks(tier.blocks);
    of_tier->set_sum(tier.sum);
  }
}

// Fewer tiers than we know are fine: an older sender has no blocks in the others.
absl::Status FromProto(const v1::Digest& in, Digest* out, std::string_view field) {
  if (in.tiers_size() > kTiers) return Bad(Dot(field, "tiers"), "an unknown tier");
  *out = Digest();
  for (int i = 0; i < in.tiers_size(); ++i) {
    out->tiers[i] = {.blocks = in.tiers(i).blocks(), .sum = in.tiers(i).sum()};
  }
  return absl::OkStatus();
}

void ToProto(const Stored& stored, v1::Stored* out) {
  out->set_tier(ToProto(stored.tier));
  out->set_position(stored.position);
  out->set_parent(Raw(stored.parent));
  HashesToProto(stored.blocks, out->mutable_blocks());
  out->set_side(stored.side);
}

// A block at position 0 has no parent, and position plus blocks must fit a `Position`: the index
// relies on both.
absl::Status FromProto(const v1::Stored& in, Stored* out, std::string_view field) {
  if (absl::Status status = FromProto(in.tier(), &out->tier, Dot(field, "tier")); !status.ok()) {
    return status;
  }
  if (in.position() == 0 && in.parent() != 0) {
    return Bad(Dot(field, "parent"), "the block at position 0 has none");
  }
  if (in.position() > std::numeric_limits<Position>::max() - in.blocks_size()) {
    return Bad(Dot(field, "position"), "too deep");
  }
  out->position = in.position();
  out->parent = SequenceHash{in.parent()};
  if (absl::Status bad = SideFromProto(in.side(), &out->side, field); !bad.ok()) return bad;
  if (out->side != 0 && in.position() != 0)
    return Bad(Dot(field, "position"), "side blocks have none");
  HashesFromProto(in.blocks(), &out->blocks);
  return CheckBlocks(out->blocks.size(), Dot(field, "blocks"));
}

void ToProto(const Event& event, v1::Event* out) {
  if (const Stored* stored = std::get_if<Stored>(&event)) {
    ToProto(*stored, out->mutable_stored());
  } else if (const Removed* removed = std::get_if<Removed>(&event)) {
    out->mutable_removed()->set_tier(ToProto(removed->tier));
    HashesToProto(removed->blocks, out->mutable_removed()->mutable_blocks());
    out->mutable_removed()->set_side(removed->side);
  } else {
    // No tiers at all cannot be said, since 0 means all; it would have no effect either.
    const TierMask tiers = std::get<Cleared>(event).tiers;
    if (tiers.empty()) {
      out->mutable_removed();
    } else {
      out->mutable_cleared()->set_tiers(tiers.bits());
    }
  }
}

absl::Status FromProto(const v1::Event& in, Event* out, std::string_view field) {
  switch (in.kind_case()) {
    case v1::Event::kStored:
      return FromProto(in.stored(), &out->emplace<Stored>(), Dot(field, "stored"));
    case v1::Event::kRemoved:
      return FromProto(in.removed(), &out->emplace<Removed>(), Dot(field, "removed"));
    case v1::Event::kCleared:
      return TiersFromProto(in.cleared().tiers(), &out->emplace<Cleared>().tiers,
                            Dot(field, "cleared.tiers"));
    case v1::Event::KIND_NOT_SET:
      break;
  }
  return Bad(Dot(field, "kind"), "missing or unknown");
}

// Enumerators have the wire's numbers, here and for tiers below: a cast is the conversion.
static_assert(static_cast<int>(CacheKind::kChunk) == v1::CACHE_KIND_CHUNK);

void ClassToProto(const CacheClass& of, v1::CacheClass* out) {
  out->set_kind(static_cast<v1::CacheKind>(of.kind));
  out->set_block_size(of.block_size);
  out->set_window_tokens(of.window_tokens);
  out->set_drops_last(of.drops_last);
}

void ToProto(const CacheLayout& layout, v1::CacheLayout* out) {
  out->Clear();
  if (layout.has_main) ClassToProto(layout.main, out->mutable_main());
  for (const CacheClass& side : layout.sides) ClassToProto(side, out->add_sides());
}

// Kinds are checked as numbers before they become enumerators; the rest is `ValidateLayout`.
absl::Status FromProto(const v1::CacheLayout& in, CacheLayout* out, std::string_view field) {
  const auto take = [&](const v1::CacheClass& from, CacheClass* to) {
    to->kind = static_cast<CacheKind>(std::clamp<int>(from.kind(), -1, kCacheKinds));
    to->block_size = from.block_size();
    to->window_tokens = from.window_tokens();
    to->drops_last = from.drops_last();
    const bool known = from.kind() >= 0 && from.kind() < kCacheKinds;
    return known ? absl::OkStatus() : Bad(Dot(field, "kind"), "an unknown kind of cache");
  };
  *out = CacheLayout();
  out->has_main = in.has_main();
  if (in.has_main())
    if (absl::Status bad = take(in.main(), &out->main); !bad.ok()) return bad;
  if (in.sides_size() > static_cast<int>(kSideClassesMax))
    return Bad(Dot(field, "sides"), "too many classes");
  out->sides.resize(static_cast<size_t>(in.sides_size()));
  for (int i = 0; i < in.sides_size(); ++i)
    if (absl::Status bad = take(in.sides(i), &out->sides[i]); !bad.ok()) return bad;
  return ValidateLayout(*out);
}

v1::Tier ToProto(Tier tier) { return static_cast<v1::Tier>(tier); }
static_assert(static_cast<int>(Tier::kDevice) == v1::TIER_DEVICE);
static_assert(static_cast<int>(Tier::kHost) == v1::TIER_HOST);
static_assert(static_cast<int>(Tier::kDisk) == v1::TIER_DISK);
static_assert(static_cast<int>(Tier::kExternal) == v1::TIER_EXTERNAL);

absl::Status FromProto(v1::Tier in, Tier* out, std::string_view field) {
  if (static_cast<int>(in) < 0 || static_cast<int>(in) >= kTiers) return Bad(field, "unknown");
  *out = static_cast<Tier>(in);
  return absl::OkStatus();
}

// By name and not by number: the wire has 0 for "unknown". A guess is sent but not taken.
v1::Trust ToProto(Trust trust) {
  switch (trust) {
    case Trust::kExact:
      return v1::TRUST_EXACT;
    case Trust::kDegraded:
      return v1::TRUST_DEGRADED;
    case Trust::kStale:
      return v1::TRUST_STALE;
    case Trust::kGuessed:
      return v1::TRUST_GUESSED;
  }
  return v1::TRUST_UNKNOWN;
}

absl::Status FromProto(v1::Trust in, Trust* out, std::string_view field) {
  switch (in) {
    case v1::TRUST_EXACT:
      *out = Trust::kExact;
      return absl::OkStatus();
    case v1::TRUST_DEGRADED:
      *out = Trust::kDegraded;
      return absl::OkStatus();
    case v1::TRUST_STALE:
      *out = Trust::kStale;
      return absl::OkStatus();
    default:
      return Bad(field, "missing or unknown");
  }
}

absl::Status TiersFromProto(uint32_t bits, TierMask* out, std::string_view field) {
  if (bits >= (1u << kTiers)) return Bad(field, "an unknown tier");
  *out = bits == 0 ? TierMask::All() : TierMask(static_cast<uint8_t>(bits));
  return absl::OkStatus();
}

void ToProto(const SenderMessage& message, v1::SenderMessage* out) {
  out->Clear();
  std::visit([out](const auto& value) { MessageToProto(value, out); }, message);
}

absl::Status FromProto(const v1::SenderMessage& in, SenderMessage* out) {
  switch (in.kind_case()) {
    case v1::SenderMessage::kHello:
      return MessageFromProto(in.hello(), &out->emplace<Hello>());
    case v1::SenderMessage::kBatch:
      return MessageFromProto(in.batch(), &out->emplace<Batch>());
    case v1::SenderMessage::kSnapshotPart:
      return MessageFromProto(in.snapshot_part(), &out->emplace<SnapshotPart>());
    case v1::SenderMessage::kHeartbeat:
      return MessageFromProto(in.heartbeat(), &out->emplace<Heartbeat>());
    case v1::SenderMessage::kGoodbye:
      out->emplace<Goodbye>();
      return absl::OkStatus();
    case v1::SenderMessage::KIND_NOT_SET:
      break;
  }
  return Bad("message.kind", "missing or unknown");
}

void ToProto(const ReceiverMessage& message, v1::ReceiverMessage* out) {
  out->Clear();
  std::visit([out](const auto& value) { MessageToProto(value, out); }, message);
}

absl::Status FromProto(const v1::ReceiverMessage& in, ReceiverMessage* out) {
  switch (in.kind_case()) {
    case v1::ReceiverMessage::kWelcome:
      return MessageFromProto(in.welcome(), &out->emplace<Welcome>());
    case v1::ReceiverMessage::kRefuse:
      return MessageFromProto(in.refuse(), &out->emplace<Refuse>());
    case v1::ReceiverMessage::kAck:
      return MessageFromProto(in.ack(), &out->emplace<Ack>());
    case v1::ReceiverMessage::kNeed:
      return MessageFromProto(in.need(), &out->emplace<Need>());
    case v1::ReceiverMessage::KIND_NOT_SET:
      break;
  }
  return Bad("message.kind", "missing or unknown");
}

}  // namespace kvatlas
