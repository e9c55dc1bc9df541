// What does this build write, of values that never change, in each format that leaves a process?
// What it wrote as a release lies in data/VERSION; later builds read that, and what they write of
// the same values is compared with it.
//
//   messages.txt          every message of proto/: name, bytes in hexadecimal, the same as text
//   stream.txt            every message of a stream of holdings: bytes in hexadecimal
//   redis_log.txt         the same as entries of a log in Redis: id, bytes in hexadecimal
//   checkpoint.bin        a checkpoint with domains, holders, runs, side blocks and a replica's snapshot
//   replica_snapshot.bin  what a replica is told of engines' own streams; replica_snapshot.txt: what a reader is told of it
//   dynamo_dump.json      the dump of the same engines; dynamo_dump.txt: the blocks that a reader restores
//
// *Threads*: none, but for engines that are recorded.

#ifndef KVATLAS_TESTS_WIRE_GOLDEN_H_
#define KVATLAS_TESTS_WIRE_GOLDEN_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "indexer/checkpoint/dynamo_dump.h"
#include "indexer/stream/messages.h"

namespace kvatlas {

std::string ToHex(std::string_view bytes);

// ---- Messages of proto/ ----

// All of our files, by their full names.
std::vector<const google::protobuf::Descriptor*> AllMessages();
// Each field has a value, by its number; of each oneof the alternative number `variant`, as far as
// there is one.
std::unique_ptr<google::protobuf::Message> FilledMessage(const google::protobuf::Descriptor* type,
                                                         int variant);
// The largest number of alternatives of any oneof in it, at least 1.
int VariantsOf(const google::protobuf::Descriptor* type);

// ---- Streams ----

std::vector<SenderMessage> GoldenSenderMessages();
std::vector<ReceiverMessage> GoldenReceiverMessages();

// ---- Files ----

std::string GoldenCheckpoint(std::string_view engines);
// What a reader is told, a line each, in the order of the file. The piece of engines is told as its
// size.
absl::StatusOr<std::string> TextOfCheckpoint(const std::string& path);
// In their own order, since names come in that of a hash table.
absl::StatusOr<std::string> TextOfReplicaSnapshot(const std::string& bytes);
absl::StatusOr<std::string> TextOfDynamoDump(const std::string& json);

// The bytes as a source of pieces.
ReadChunk ChunksOf(const std::string& bytes);

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_WIRE_GOLDEN_H_
