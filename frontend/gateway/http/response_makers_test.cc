#include "frontend/gateway/http/response_makers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

KnownEngine At(std::string url) {
  KnownEngine engine;
  engine.url = std::move(url);
  return engine;
}

TEST(ResponseMakersTest, TheLastOnesAreKept) {
  ResponseMakers makers;
  for (size_t i = 0; i <= kResponsesMax; ++i)
    makers.Note("r" + std::to_string(i), At("http://e" + std::to_string(i % 2)));
  EXPECT_FALSE(makers.Of("r0").has_value());
  EXPECT_EQ(makers.Of("r1")->url, "http://e1");
  makers.Note("r1", At("http://other"));
  EXPECT_EQ(makers.Of("r1")->url, "http://other");
}

std::vector<std::string> IdsIn(std::string_view text, size_t piece) {
  ResponseIds reader;
  std::vector<std::string> ids;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size())))
    for (std::string& id : reader.Add(text.substr(0, piece))) ids.push_back(std::move(id));
  return ids;
}

// However the answer is cut.
TEST(ResponseMakersTest, IdsOfAResponseAndItsItemsAreFound) {
  const std::string whole = R"({"id":"resp_1","object":"response","output":[{"id" : "msg_1",)"
                            R"("text":"the \"id\":\"no\""},{"id":7},{"item_id":"x","id":"fc_1"}]})";
  const std::string stream =
      "event: response.created\ndata: {\"response\": {\"id\" : \"resp_2\", \"id\":\"" +
      std::string(kResponseIdMax + 1, 'x') + "\"}}\n\ndata: {\"item\":{\"id\":\"msg_2\"}}\n\n";
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{300}, size_t{1 << 20}}) {
    EXPECT_THAT(IdsIn(whole, piece), testing::ElementsAre("resp_1", "msg_1", "fc_1")) << piece;
    EXPECT_THAT(IdsIn(stream, piece), testing::ElementsAre("resp_2", "msg_2")) << piece;
  }
  for (const char* none :
       {"", "ok", R"({"id)", R"({"id":)", R"({"id":"resp_)", R"({"id":7,"x":"y"})"})
    EXPECT_THAT(IdsIn(none, 1), testing::IsEmpty()) << none;
}

}  // namespace
}  // namespace kvatlas
