#include "indexer/discovery/service_record.h"

#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

ServiceRecord Full() {
  ServiceRecord record;
  record.kind = ServiceKind::kHierarchy;
  record.name = "region-1";
  record.replica = "b";
  record.grpc = "10.0.0.1:7420";
  record.http = "10.0.0.1:8091";
  record.epoch = 18'446'744'073'709'551'615u;
  record.instance_id = 1ull << 63;
  record.labels = {{"rack", "\"7\""}, {"zone", "a"}};
  record.serves = {"llama-70b", "qwen"};
  record.load =
      Load{.running_requests = 3, .free_blocks = 1ull << 60, .tokens_per_s = 0.5, .workers = 64};
  return record;
}

TEST(ServiceRecordTest, ReadsWhatItWrote) {
  EXPECT_EQ(*ServiceRecordFromJson(ToJson(Full())), Full());
}

TEST(ServiceRecordTest, SkipsFieldsOfTheFuture) {
  EXPECT_EQ(
      ServiceRecordFromJson(R"({"kind":"leaf","name":"a","grpc":"h:1","colour":[1,{}]})")->name,
      "a");
}

TEST(ServiceRecordTest, NamesTheFieldAtFault) {
  const auto error = [](const std::string& json) {
    return std::string(ServiceRecordFromJson(json).status().message());
  };
  EXPECT_THAT(error("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(error(R"({"kind":"moon","grpc":"h:1"})"), HasSubstr("kind"));
  EXPECT_THAT(error(R"({"kind":"leaf"})"), HasSubstr("grpc is missing"));
  EXPECT_THAT(error(R"({"kind":"leaf","grpc":"here"})"), HasSubstr("grpc is not HOST:PORT"));
  EXPECT_THAT(error(R"({"kind":"leaf","grpc":"h:1","epoch":-1})"), HasSubstr("epoch"));
  EXPECT_THAT(error(R"({"kind":"leaf","grpc":"h:1","labels":["a"]})"), HasSubstr("labels"));
  EXPECT_THAT(error(R"({"kind":"leaf","grpc":"h:1","serves":{"a":1}})"), HasSubstr("serves"));
  EXPECT_THAT(error(R"({"kind":"leaf","grpc":"h:1","load":{"workers":4294967296}})"),
              HasSubstr("workers"));
  EXPECT_THAT(error(R"({"kind":"leaf","grpc":"h:1","name":")" + std::string(257, 'x') + "\"}"),
              HasSubstr("name"));
  EXPECT_THAT(error(std::string(kServiceRecordBytesMax + 1, ' ')), HasSubstr("64 KiB"));
}

TEST(ServiceRecordTest, TextThatIsNoRecordIsRefusedWhateverItIs) {
  std::mt19937_64 random(7);
  const std::string good = ToJson(Full());
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (uint64_t cuts = 1 + random() % 4; cuts > 0; --cuts)
      text[random() % text.size()] = static_cast<char>(random());
    static_cast<void>(ServiceRecordFromJson(text));  // no crash, no exception
  }
}

TEST(ServiceRecordTest, LoadAloneMakesNoOtherService) {
  ServiceRecord other = Full();
  other.load->running_requests = 4;
  EXPECT_TRUE(SameButLoad(Full(), other));
  other.epoch = 1;
  EXPECT_FALSE(SameButLoad(Full(), other));
}

TEST(ServiceRecordTest, IdTellsReplicasApartAndNamelessOnesByAddress) {
  EXPECT_EQ(IdOf(Full()), "region-1@b");
  ServiceRecord nameless;
  nameless.grpc = "h:1";
  EXPECT_EQ(IdOf(nameless), "h:1");
}

}  // namespace
}  // namespace kvatlas
