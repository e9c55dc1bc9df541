#include "frontend/prompt/media_marks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

BodyPrompt Body(RequestPath path, const std::string& body) {
  return {.path = path, .body = std::make_shared<const std::string>(body)};
}

TEST(MediaMarksTest, ImagesAreFoundWhereTheyArePartsOfMessages) {
  EXPECT_EQ(MediaIn(R"([{"content":[{"type": "image", "image":"x"}]}])"), "image");
  EXPECT_EQ(MediaIn(R"([{"content":[{"image_url":{"url":"x"}}]}])"), "image_url");
  EXPECT_EQ(MediaIn(R"([{"content":"say \"image_url\"","name":"image"}])"), "");
}

TEST(MediaMarksTest, AMessageWithAnImageIsMarkedAndAllElseStays) {
  const auto marked = WithMarks(
      Body(RequestPath::kChat,
           R"({"tools":[1e400],"messages":[{"role":"system","content":"s"},)"
           R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]},)"
           R"({"role":"user","content":"b"}]})"),
      "7");
  ASSERT_TRUE(marked.ok()) << marked.status();
  EXPECT_EQ(marked->media, "image_url");
  EXPECT_EQ(*marked->prompt.body,
            R"({"tools":[1e400],"messages":[{"role":"system","content":"s"},)"
            R"({"role":"user","content":"7"},{"role":"user","content":"b"}]})");
}

TEST(MediaMarksTest, ResponsesHaveTheirsInTheirInput) {
  const auto marked =
      WithMarks(Body(RequestPath::kResponses,
                     R"({"input":[{"role":"user","content":[{"type":"input_image"}]},)"
                     R"({"type":"function_call_output","output":[{"type":"input_image"}]}]})"),
                "Q");
  ASSERT_TRUE(marked.ok()) << marked.status();
  EXPECT_EQ(*marked->prompt.body, R"({"input":[{"role":"user","content":"Q"},)"
                                  R"({"type":"function_call_output","output":"Q"}]})");
}

TEST(MediaMarksTest, WithoutMediaOrInOtherPlacesThereAreNoMarks) {
  const auto status_of = [](const char* body) {
    return WithMarks(Body(RequestPath::kChat, body), "7").status();
  };
  EXPECT_TRUE(absl::IsNotFound(status_of(R"({"messages":[{"content":"a"}]})")));
  EXPECT_TRUE(absl::IsNotFound(status_of(R"({"messages":3})")));
  EXPECT_TRUE(
      absl::IsUnimplemented(status_of(R"({"messages":[{"content":"a","image_url":"u"}]})")));
  EXPECT_TRUE(absl::IsInvalidArgument(status_of("[]")));
}

TEST(MediaMarksTest, WhatMayHaveGrownTogetherWithTheMarkIsLeftOut) {
  EXPECT_THAT(BeforeMarks({1, 2, 3, 7, 9}, {1, 2, 3, 8, 9}), ElementsAre(1u, 2u));
  EXPECT_THAT(BeforeMarks({1, 2}, {1, 2}), IsEmpty());  // the template prints no mark
  EXPECT_THAT(BeforeMarks({7}, {8}), IsEmpty());
}

}  // namespace
}  // namespace kvatlas
