// Turns messages on the wire into typed values, or refuses them: nothing above this file handles a
// message that is out of bounds.
//
// *Truth*: `FromProto` is OK only for what a correct peer can say; then every bound of `event.h`,
// `domain.h` and below holds. INVALID_ARGUMENT names the field ("hello.domain.model: empty").
// Unknown fields are ignored, an unknown enumerator is refused. `ToProto` takes any value and
// replaces what the message held; a value within the bounds comes back equal.
// *Threads*: pure functions.
// *Cost*: one copy of the hashes.
//
// Example:
//   v1::SenderMessage wire;
//   ToProto(message, &wire);
//   SenderMessage back;
//   absl::Status status = FromProto(wire, &back);

#ifndef KVATLAS_INDEXER_TRANSPORT_WIRE_H_
#define KVATLAS_INDEXER_TRANSPORT_WIRE_H_

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/validate.h"
#include "proto/kvatlas/v1/stream.pb.h"
#include "proto/kvatlas/v1/types.pb.h"

namespace kvatlas {

// The longest names of models, tenants, workers, cells and replicas. Labels and the other texts of
// a hello: `stream/validate.h`.
inline constexpr size_t kNameBytesMax = kHelloTextBytesMax;
inline constexpr size_t kReasonBytesMax = 4096;

// The words. `field` is how errors call the value.
void ToProto(const Domain& domain, v1::Domain* out);
absl::Status FromProto(const v1::Domain& in, Domain* out, std::string_view field = "domain");

void ToProto(const HolderId& holder, v1::Holder* out);
absl::Status FromProto(const v1::Holder& in, HolderId* out, std::string_view field = "holder");

void ToProto(const Load& load, v1::Load* out);
absl::Status FromProto(const v1::Load& in, Load* out, std::string_view field = "load");

void ToProto(const Digest& digest, v1::Digest* out);
absl::Status FromProto(const v1::Digest& in, Digest* out, std::string_view field = "digest");

void ToProto(const Stored& stored, v1::Stored* out);
absl::Status FromProto(const v1::Stored& in, Stored* out, std::string_view field = "stored");

void ToProto(const Event& event, v1::Event* out);
absl::Status FromProto(const v1::Event& in, Event* out, std::string_view field = "event");

void ToProto(const CacheLayout& layout, v1::CacheLayout* out);
absl::Status FromProto(const v1::CacheLayout& in, CacheLayout* out,
                       std::string_view field = "layout");

v1::Tier ToProto(Tier tier);
absl::Status FromProto(v1::Tier in, Tier* out, std::string_view field = "tier");

v1::Trust ToProto(Trust trust);
absl::Status FromProto(v1::Trust in, Trust* out, std::string_view field = "trust");

// Bits of tiers as queries and clears carry them: 0 means all.
absl::Status TiersFromProto(uint32_t bits, TierMask* out, std::string_view field = "tiers");

// The stream.
void ToProto(const SenderMessage& message, v1::SenderMessage* out);
absl::Status FromProto(const v1::SenderMessage& in, SenderMessage* out);

void ToProto(const ReceiverMessage& message, v1::ReceiverMessage* out);
absl::Status FromProto(const v1::ReceiverMessage& in, ReceiverMessage* out);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_WIRE_H_
