// Bodies as tables of fields. A table's order is the order of the cases below it; names of structs
// and numbers of elements are those of Dynamo's Rust types, since refusals name them. Fields of
// ours come last and are not counted there.

#include "indexer/compat/dynamo/http_bodies.h"

#include "absl/strings/str_cat.h"
#include "indexer/engine_directory/engine_directory.h"

namespace kvatlas {
namespace {

// Reads a field that has no effect here: it must still be a text or null, as in Dynamo.
bool ReadIgnored(JsonReader* reader) {
  std::optional<std::string> ignored;
  return reader->ReadOptional(&ignored);
}

// A number, as Dynamo's indexer takes it, or, ours, a name as --workers has them. A text that is a
// number is refused, as there: the attempt to read it as a number words the error. The reader is
// copied to look ahead; it is small.
bool ReadInstance(JsonReader* reader, std::string* instance) {
  JsonReader ahead = *reader;
  if (ahead.Peek() == '"' && ahead.ReadString(instance) && !instance->empty() &&
      !IsInstanceNumber(*instance)) {
    return reader->ReadString(instance);
  }
  uint64_t number = 0;
  if (!reader->ReadU64(&number)) return false;
  *instance = std::to_string(number);
  return true;
}

constexpr JsonField kQueryFields[] = {
    {"token_ids", true},   {"model_name", true}, {"routing_group", false}, {"tenant_id", false},
    {"cache_salt", false}, {"lora_name", false}, {"queries", false},
};
constexpr JsonField kHashFields[] = {
    {"block_hashes", true}, {"model_name", true},  {"routing_group", false},
    {"tenant_id", false},   {"cache_salt", false}, {"queries", false},
};
// As the service they come from has them: "queries" is not one.
constexpr size_t kQueryElements = 6;
constexpr size_t kHashElements = 5;

}  // namespace

// The next query, cleared. Queries beyond `count` keep their memory for later requests.
QueryBody* QueriesBody::Add(bool by_hash) {
  if (count == queries.size()) queries.emplace_back();
  QueryBody* query = &queries[count++];
  query->by_hash = by_hash;
  query->tokens.clear();
  query->hashes.clear();
  query->model.clear();
  query->group = kDefaultGroup;
  query->lora_name.reset();
  query->cache_salt.reset();
  return query;
}

namespace {

// Indices of the fields that both lists have at the same place. Queries by tokens have the adapter
// behind them; by hash it is already in the hashes.
constexpr size_t kPrompt = 0;
constexpr size_t kModel = 1;
constexpr size_t kGroup = 2;
constexpr size_t kTenant = 3;
constexpr size_t kSalt = 4;

// `field` is an index of either list. The tenant is read and ignored: Dynamo's queries name it
// beside the routing group, which is the tenant here.
bool ReadQueryField(size_t field, QueryBody* query, JsonReader* reader) {
  switch (field) {
    case kPrompt:
      return query->by_hash ? reader->ReadArray(&query->hashes) : reader->ReadArray(&query->tokens);
    case kModel:
      return reader->ReadString(&query->model);
    case kGroup:
      return reader->ReadString(&query->group);
    case kTenant:
      return ReadIgnored(reader);
    case kSalt:
      return reader->ReadOptional(&query->cache_salt);
    default:
      return reader->ReadOptional(&query->lora_name);
  }
}

// A query within a batch has no "queries": the last field is left out.
std::span<const JsonField> FieldsOf(bool by_hash, bool may_be_batch) {
  const std::span<const JsonField> all =
      by_hash ? std::span<const JsonField>(kHashFields) : std::span<const JsonField>(kQueryFields);
  return may_be_batch ? all : all.first(all.size() - 1);
}

// The Rust types' names and their numbers of fields, for refusals.
std::string_view NameOf(bool by_hash) { return by_hash ? "QueryByHashRequest" : "QueryRequest"; }
size_t ElementsOf(bool by_hash) { return by_hash ? kHashElements : kQueryElements; }

}  // namespace

// Query 0 is the frame: the request itself if it is a single query, else what stands beside
// "queries", which is not looked at. Queries of a batch are from 1 on, hence `count` is one more
// than there are. Once "queries" was seen nothing is required of the frame (`batch` is `lenient`).
bool QueriesBody::Read(bool by_hash, JsonReader* reader) {
  count = 0;
  batch = false;
  Add(by_hash);
  const std::span<const JsonField> fields = FieldsOf(by_hash, /*may_be_batch=*/true);
  const std::span<const JsonField> inner = FieldsOf(by_hash, /*may_be_batch=*/false);
  const size_t queries_field = fields.size() - 1;
  const auto read_one = [&] {
    if (count > kQueriesMax)
      return reader->Refuse(absl::StrCat("more than ", kQueriesMax, " queries"));
    QueryBody* const query = Add(by_hash);
    return reader->ReadStruct(NameOf(by_hash), ElementsOf(by_hash), inner,
                              [&](size_t field) { return ReadQueryField(field, query, reader); });
  };
  return reader->ReadStruct(
      NameOf(by_hash), ElementsOf(by_hash), fields,
      [&](size_t field) {
        if (field != queries_field) return ReadQueryField(field, &queries[0], reader);
        batch = true;
        return reader->ReadSequence(read_one);
      },
      &batch);
}

// A number equal to the constant that means "auto" is refused, so that only the text means it.
bool ReadBlockSize(JsonReader* reader, uint32_t* size) {
  if (reader->Peek() != '"') {
    return reader->ReadU32(size) &&
           (*size != kBlockSizeAuto || reader->Refuse("block_size: too large"));
  }
  std::string text;
  if (!reader->ReadString(&text)) return false;
  *size = text == kBlockSizeAutoText ? kBlockSizeAuto : 0;
  return *size != 0 || reader->Refuse("block_size: expected a number of tokens or \"auto\"");
}

// Nine elements are Dynamo's; the fields from "topic" on are ours.
bool RegisterBody::Read(JsonReader* reader) {
  *this = {};
  group = kDefaultGroup;
  constexpr JsonField kFields[] = {
      {"instance_id", true},
      {"endpoint", true},
      {"model_name", true},
      {"block_size", true},
      {"routing_group", false},
      {"dp_rank", false},
      {"replay_endpoint", false},
      {"tenant_id", false},
      {"additional_salt", false, "additionalsalt"},
      {"topic", false},
      {"lora_name", false},
      {"engine_type", false},
      {"bind", false},
      {"count_copies", false},
      {"image_token_id", false},
      {"url", false},
      {"eagle_drop", false},
      {"chunk_tokens", false},
      {"window_tokens", false},
      {"hybrid", false},
      {"server_key", false},
      {"offload_chunk_tokens", false},
      {"silent_tiers", false},
      {"first_rank", false},
      {"store", false},
      {"store_tiers", false},
      {"silent_blocks", false},
      {"silent_seconds", false},
  };
  return reader->ReadStruct("RegisterRequest", 9, kFields, [&](size_t field) {
    switch (field) {
      case 0:
        return reader->ReadU64(&instance);
      case 1:
        return reader->ReadString(&endpoint);
      case 2:
        return reader->ReadString(&model);
      case 3:
        return ReadBlockSize(reader, &block_size);
      case 4:
        return reader->ReadString(&group);
      case 5:
        return reader->ReadOptional(&rank);
      case 6:
        return reader->ReadOptional(&replay_endpoint);
      case 9:
        return reader->ReadOptional(&topic);
      case 10:
        return reader->ReadOptional(&lora_name);
      case 11:
        return reader->ReadOptional(&engine_type);
      case 12:
        return reader->ReadBool(&bind);
      case 13:
        return reader->ReadBool(&count_copies);
      case 14:
        return reader->ReadOptional(&image_token_id);
      case 15:
        return reader->ReadOptional(&url);
      case 16:
        return reader->ReadOptional(&eagle_drop);
      case 17:
        return reader->ReadOptional(&chunk_tokens);
      case 18:
        return reader->ReadOptional(&window_tokens);
      case 19:
        return reader->ReadBool(&hybrid);
      case 20:
        return reader->ReadOptional(&server_key);
      case 21:
        return reader->ReadOptional(&offload_chunk_tokens);
      case 22:
        return reader->ReadOptional(&silent_tiers);
      case 23:
        return reader->ReadOptional(&first_rank);
      case 24:
        return reader->ReadOptional(&store);
      case 25:
        return reader->ReadOptional(&store_tiers);
      case 26:
        return reader->ReadOptional(&silent_blocks);
      case 27:
        return reader->ReadOptional(&silent_seconds);
      default:
        return ReadIgnored(reader);
    }
  });
}

// Without a group, or without a rank, all of the instance is meant.
bool UnregisterBody::Read(JsonReader* reader) {
  *this = {};
  constexpr JsonField kFields[] = {{"instance_id", true},
                                   {"model_name", true},
                                   {"routing_group", false},
                                   {"dp_rank", false},
                                   {"tenant_id", false}};
  return reader->ReadStruct("UnregisterRequest", 5, kFields, [&](size_t field) {
    switch (field) {
      case 0:
        return ReadInstance(reader, &instance);
      case 1:
        return reader->ReadString(&model);
      case 2:
        return reader->ReadOptional(&group);
      case 3:
        return reader->ReadOptional(&rank);
      default:
        return ReadIgnored(reader);
    }
  });
}

bool PeerBody::Read(JsonReader* reader) {
  constexpr JsonField kFields[] = {{"url", true}};
  return reader->ReadStruct("PeerRequest", 1, kFields,
                            [&](size_t) { return reader->ReadString(&url); });
}

bool ListenerBody::Read(JsonReader* reader) {
  *this = {};
  constexpr JsonField kFields[] = {{"instance_id", true}, {"dp_rank", false}};
  return reader->ReadStruct("TestListenerRequest", 2, kFields, [&](size_t field) {
    return field == 0 ? reader->ReadU64(&instance) : reader->ReadOptional(&rank);
  });
}

}  // namespace kvatlas
