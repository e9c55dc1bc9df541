#include "frontend/prompt/engine_conventions.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using testing::ElementsAre;

const Convention kReadsAsVllm = {.engine = EngineKind::kVllm};
const Convention kReadsAsSglang = {.engine = EngineKind::kSglang};
const Convention kReadsAsPlain = {.engine = EngineKind::kPlain};

TEST(EngineConventionsTest, AnEngineReadsAsItSaysThatItIs) {
  EngineConventions conventions;
  conventions.Set({{.model = "m", .authority = "v:1", .convention = kReadsAsVllm},
                   {.model = "m", .authority = "s:1", .convention = kReadsAsSglang},
                   {.model = "m", .authority = "s:2", .convention = kReadsAsSglang},
                   {.model = "other", .authority = "v:2", .convention = kReadsAsVllm}});
  const ModelConventions::Ptr model = conventions.Of("m");
  EXPECT_THAT(model->conventions, ElementsAre(kReadsAsSglang, kReadsAsVllm));
  EXPECT_EQ(model->Of("http://s:2"), 0u);
  EXPECT_EQ(model->Of("http://v:1/"), 1u);
  EXPECT_THAT(conventions.Of("other")->conventions, ElementsAre(kReadsAsVllm));
}

TEST(EngineConventionsTest, OneThatDoesNotSayReadsAsMostOfTheModelDo) {
  EngineConventions conventions;
  conventions.Set({{.model = "m", .authority = "s:1", .convention = kReadsAsSglang},
                   {.model = "m", .authority = "x:1"}});
  const ModelConventions::Ptr model = conventions.Of("m");
  EXPECT_THAT(model->conventions, ElementsAre(kReadsAsSglang));
  EXPECT_EQ(model->Of("http://x:1"), 0u);
  EXPECT_EQ(model->Of("http://never-heard-of:1"), 0u);
  EXPECT_EQ(model->Of(""), 0u);
}

TEST(EngineConventionsTest, OfAModelWhoseEnginesDoNotSayTheFlagCountsOrElseVllm) {
  EngineConventions by_default, given(kReadsAsPlain);
  for (EngineConventions* conventions : {&by_default, &given})
    conventions->Set({{.model = "m", .authority = "x:1"}});
  EXPECT_THAT(by_default.Of("m")->conventions, ElementsAre(kReadsAsVllm));
  EXPECT_THAT(by_default.Of("unknown")->conventions, ElementsAre(kReadsAsVllm));
  EXPECT_THAT(given.Of("m")->conventions, ElementsAre(kReadsAsPlain));
  EXPECT_THAT(given.Of("unknown")->conventions, ElementsAre(kReadsAsPlain));
}

TEST(EngineConventionsTest, AFlagIsOfEnginesThatDoNotSayBesideThoseThatDo) {
  EngineConventions conventions(kReadsAsVllm);
  conventions.Set({{.model = "m", .authority = "s:1", .convention = kReadsAsSglang},
                   {.model = "m", .authority = "s:2", .convention = kReadsAsSglang},
                   {.model = "m", .authority = "x:1"}});
  const ModelConventions::Ptr model = conventions.Of("m");
  EXPECT_THAT(model->conventions, ElementsAre(kReadsAsSglang, kReadsAsVllm));
  EXPECT_EQ(model->Of("http://x:1"), 1u);
}

TEST(EngineConventionsTest, ParsersTellSglangsApart) {
  EngineFacts with = {.kind = kSglang}, without = {.kind = kSglang}, unknown = {};
  with.reasoning_parser = "qwen3";
  with.tool_call_parser = "qwen25";
  EXPECT_NE(*ConventionOf(with), *ConventionOf(without));
  EXPECT_EQ(ToString(*ConventionOf(with)), "sglang reasoning_parser=qwen3 tool_call_parser=qwen25");
  EXPECT_EQ(ToString(*ConventionOf(without)), "sglang");
  EXPECT_EQ(ConventionOf(unknown), std::nullopt);
}

TEST(EngineConventionsTest, TheFlagNamesAKind) {
  EXPECT_EQ(*ParseEngineKind("auto"), std::nullopt);
  EXPECT_EQ(*ParseEngineKind("vllm"), kReadsAsVllm);
  EXPECT_EQ(*ParseEngineKind("sglang"), kReadsAsSglang);
  EXPECT_EQ(*ParseEngineKind("plain"), kReadsAsPlain);
  EXPECT_EQ(ParseEngineKind("tgi").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TakesTokenIdsTest, OfVllmFromThatVersionOn) {
  const auto takes = [](const char* kind, const char* version) {
    return TakesTokenIds(EngineFacts{.kind = kind, .version = version});
  };
  for (const char* version : {"0.33.0", "0.33.1.dev3+g1a2b", "0.40.0", "1.0.0"})
    EXPECT_TRUE(takes(kVllm, version)) << version;
  for (const char* version : {"0.32.0", "0.9.1", "", "dev", "0"})
    EXPECT_FALSE(takes(kVllm, version)) << version;
  EXPECT_FALSE(takes(kSglang, "0.33.0"));
}

}  // namespace
}  // namespace kvatlas
