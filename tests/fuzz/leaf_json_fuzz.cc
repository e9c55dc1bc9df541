// Bodies of a leaf's paths: what a whole parser takes for JSON is skipped as a value, and a refusal
// says why.

#include <nlohmann/json.hpp>

#include "indexer/compat/dynamo/http_bodies.h"
#include "indexer/compat/dynamo/http_json_reader.h"
#include "tests/fuzz/fuzz.h"

namespace kvatlas {
namespace {

bool ReadAs(size_t path, JsonReader* reader) {
  static auto* const queries = new QueriesBody;  // memory of before is used again, as in a process
  switch (path) {
    case 0:
      return queries->Read(/*by_hash=*/false, reader);
    case 1:
      return queries->Read(/*by_hash=*/true, reader);
    case 2:
      return RegisterBody().Read(reader);
    case 3:
      return UnregisterBody().Read(reader);
    case 4:
      return PeerBody().Read(reader);
    default:
      return ListenerBody().Read(reader);
  }
}

const AddFuzzSeeds kSeeds([] {
  return std::vector<std::string>{
      std::string(1, '\0') +
          R"({"token_ids":[1,2,4294967295],"model_name":"m","tenant_id":null,"x":[{"y":1.5e3}]})",
      std::string(1, '\0') +
          R"({"queries":[{"token_ids":[],"model_name":"m"},{"token_ids":[ 7 , 8 ],"model_name":"\u00e9\ud83d\ude00"}]})",
      "\x01"
      R"({"block_hashes":[-1,9223372036854775807],"model_name":"m","routing_group":"g"})",
      "\x02"
      R"({"instance_id":1,"endpoint":"tcp://127.0.0.1:1","model_name":"m","block_size":16,"bind":true,"dp_rank":0,"url":"http://a:1"})",
      "\x02"
      R"({"instance_id":18446744073709551615,"endpoint":"","model_name":"","block_size":"auto","silent_tiers":"host","additionalsalt":"s"})",
      "\x03"
      R"({"instance_id":"w1","model_name":"m","dp_rank":null})",
      "\x04"
      R"({"url":"http://h:1"})",
      "\x05"
      R"({"instance_id":1,"dp_rank":3})"};
}());

}  // namespace

}  // namespace kvatlas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvatlas::FuzzCheck;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t path = kvatlas::FuzzChoice(&input, 6);
  kvatlas::JsonReader reader(input);
  if (!kvatlas::ReadAs(path, &reader))
    FuzzCheck(!reader.error().text.empty(), "a refusal without a word");
  kvatlas::JsonReader whole(input);
  const bool skipped = whole.Skip();
  if (nlohmann::json::accept(input)) FuzzCheck(skipped, "JSON that is not skipped");
  return 0;
}
