#include "frontend/gateway/ext_proc/model_names.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "indexer/base/test_seed.h"

namespace kvatlas {
namespace {

std::string Whole(const std::string& text) { return ModelNames("served", "asked").Add(text, true); }

TEST(ModelNamesTest, TheClientReadsTheNameThatItAskedFor) {
  EXPECT_EQ(Whole(R"({"id":"1","model":"served","choices":[]})"),
            R"({"id":"1","model":"asked","choices":[]})");
  EXPECT_EQ(Whole(R"({"message": {"model" : "served"}})"), R"({"message": {"model" : "asked"}})");
}

TEST(ModelNamesTest, WhatIsNoFieldOfThatNameIsLeftAlone) {
  for (const char* const text :
       {R"({"model":"served-too"})", R"({"content":"say \"model\":\"served\""})",
        R"({"models":"served"})", R"(["model","served"])", R"({"a":"model"})", R"({"model":null})",
        R"({"model")", R"({"model":)", R"({"model":"ser)", "\"", ""})
    EXPECT_EQ(Whole(text), text);
}

TEST(ModelNamesTest, ANameThatIsEscapedStaysJson) {
  EXPECT_EQ(ModelNames("a\"b", "c\\d").Add(R"({"model":"a\"b"})", true), R"({"model":"c\\d"})");
}

TEST(ModelNamesTest, PiecesOfAnySizeGiveWhatTheWholeGives) {
  const std::string text =
      "data: {\"id\":\"1\",\"model\": \"served\",\"delta\":\"the \\\"model\\\" is\"}\n\n"
      "data: {\"model\"\n:\t\"served\"}\n\ndata: {\"model\":\"serve\"}\n\ndata: [DONE]\n\n";
  const std::string whole = Whole(text);
  EXPECT_NE(whole, text);
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 200; ++round) {
    ModelNames names("served", "asked");
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::uniform_int_distribution<size_t>(0, 1 + round % 12)(random);
      out += names.Add(std::string_view(text).substr(at, size), false);
      at += size;
    }
    out += names.Add("", true);
    ASSERT_EQ(out, whole) << "round " << round;
  }
}

}  // namespace
}  // namespace kvatlas
