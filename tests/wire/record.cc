// Writes what this build writes in every format, as a release: record DIR (see README.md).

#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/text_format.h"
#include "indexer/base/await.h"
#include "indexer/base/hash.h"
#include "indexer/checkpoint/replica_snapshot.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/engine_directory/pool_engine_test_util.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/transport/redis/redis_entry.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/stream.pb.h"
#include "tests/wire/golden.h"

namespace kvatlas {
namespace {

std::string Bytes(const google::protobuf::Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream to(&bytes);
    google::protobuf::io::CodedOutputStream out(&to);
    out.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&out);
  }
  return bytes;
}

std::string Text(const google::protobuf::Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(message, &text);
  return text;
}

std::string Messages() {
  std::string text;
  for (const auto* type : AllMessages()) {
    for (int variant = 0; variant < VariantsOf(type); ++variant) {
      const auto message = FilledMessage(type, variant);
      text += type->full_name() + "\t" + ToHex(Bytes(*message)) + "\t" + Text(*message) + "\n";
    }
  }
  return text;
}

std::string Streams() {
  std::string text;
  for (const SenderMessage& message : GoldenSenderMessages()) {
    v1::SenderMessage proto;
    ToProto(message, &proto);
    text += "sender\t" + ToHex(proto.SerializeAsString()) + "\n";
  }
  for (const ReceiverMessage& message : GoldenReceiverMessages()) {
    v1::ReceiverMessage proto;
    ToProto(message, &proto);
    text += "receiver\t" + ToHex(proto.SerializeAsString()) + "\n";
  }
  return text;
}

std::string RedisLog() {
  std::string text;
  uint64_t number = 78;
  for (const SenderMessage& message : GoldenSenderMessages()) {
    const RedisEntryId id = RedisEntryId::Of(1'700'000'000'000'000'000, number++);
    text += id.ToString() + "\t" + ToHex(EncodeRedisEntry(message, id)) + "\n";
  }
  return text;
}

std::string All(const TextSource& source) {
  std::string text;
  for (bool more = true; more;) more = source(&text);
  return text;
}

// What is known of two engines that publish over real sockets.
struct Engines {
  std::string snapshot;
  std::string dump;
};
Engines OfEngines() {
  ZmqIngest ingest({});
  PoolEngine names({.seed = 31, .replay = true});
  PoolEngine digests({.seed = 32, .rank = 2, .digests = true});
  HolderRegistryOptions options;
  options.contract_id = HashContract().Id();
  options.index.keep_local_hashes = true;
  HolderRegistry registry(options);
  EngineDirectoryOptions directory_options;
  directory_options.worker.keep_local_hashes = true;
  EngineDirectory directory(directory_options, &registry, &ingest);
  directory.Open();
  for (PoolEngine* engine : {&names, &digests}) {
    if (!directory.Register(engine->Registration("1")).ok()) std::abort();
    engine->sockets().WaitForSubscribers();
    engine->Run(6);
  }
  for (PoolEngine* engine : {&names, &digests})
    if (!Await([&] { return engine->Compare(registry, "1").empty(); }, std::chrono::seconds(60)))
      std::abort();
  return {All(ReplicaSnapshotSource(HashContract(), &directory, /*names=*/true)),
          All(DumpSource(&directory))};
}

void Write(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file) {
    std::cerr << path << " cannot be written\n";
    std::exit(1);
  }
}

int Main(const std::string& directory) {
  std::filesystem::create_directories(directory);
  const auto write = [&](const std::string& name, const std::string& content) {
    Write(directory + "/" + name, content);
  };
  const Engines engines = OfEngines();
  write("messages.txt", Messages());
  write("stream.txt", Streams());
  write("redis_log.txt", RedisLog());
  write("replica_snapshot.bin", engines.snapshot);
  write("replica_snapshot.txt", *TextOfReplicaSnapshot(engines.snapshot));
  write("dynamo_dump.json", engines.dump);
  write("dynamo_dump.txt", *TextOfDynamoDump(engines.dump));
  write("checkpoint.bin", GoldenCheckpoint(engines.snapshot));
  write("checkpoint.txt", *TextOfCheckpoint(directory + "/checkpoint.bin"));
  return 0;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    const bool asked = argc == 2 && std::string(argv[1]) == "--help";
    (asked ? std::cout : std::cerr)
        << "record DIR: writes what this build writes in every format\n";
    return asked ? 0 : 2;
  }
  return kvatlas::Main(argv[1]);
}
