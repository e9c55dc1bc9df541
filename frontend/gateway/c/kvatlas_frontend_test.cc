// Text and chats through the C interface and through the service's gRPC, before one leaf: the same
// tokens, receipts and errors.

#include "frontend/gateway/c/kvatlas_frontend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "frontend/gateway/c/both_doors_test_util.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "proto/kvatlas/v1/frontend.pb.h"

namespace {

// The allocation behind so many further ones of this thread fails; negative: none does.
thread_local int allocations_left = -1;

}  // namespace

// Not inlined: compilers warn of memory from a `new` that ends in a `free` that they can see.
__attribute__((noinline)) void* operator new(size_t size) {
  void* const room = allocations_left >= 0 && allocations_left-- == 0
                         ? nullptr
                         : std::malloc(size == 0 ? 1 : size);
  if (room == nullptr) throw std::bad_alloc();
  return room;
}
__attribute__((noinline)) void operator delete(void* room) noexcept { std::free(room); }
__attribute__((noinline)) void operator delete(void* room, size_t) noexcept { std::free(room); }

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

TEST_F(RouteTextTest, ABodyGoesWhereTheServiceWouldSendItWithTheSameReceipt) {
  const RouteAnswer chat =
      Body(R"({"model":"bytes","messages":[{"role":"user","content":"Hello you"}]})");
  ASSERT_EQ(chat.code, KVATLAS_OK) << chat.error;
  EXPECT_EQ(chat.route["worker"]["name"], "near");
  EXPECT_EQ(chat.route["overlap_blocks"], 1);
  EXPECT_THAT(chat.route["tokenizer"], StartsWith("bytes (tokenizer.json "));
  EXPECT_GT(chat.route["prompt_tokens"], 4);
  EXPECT_EQ(chat.route["tokens"].size(), chat.route["prompt_tokens"]);
  const RouteAnswer text =
      Body(R"({"model":"pirate","prompt":"Hello you, all of you"})", "session 1");
  ASSERT_EQ(text.code, KVATLAS_OK) << text.error;
  EXPECT_THAT(text.route["tokenizer"], StartsWith("pirate ("));
  const RouteAnswer ids = Body(R"({"model":"unknown","prompt":[1,2,3,4,5,6,7,8]})");
  ASSERT_EQ(ids.code, KVATLAS_OK) << ids.error;
  EXPECT_EQ(ids.route["tokenizer"], "");
  EXPECT_EQ(ids.route["tokens"], Json({1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(RouteTextTest, WhatIsWrongWithABodyIsSaidInTheServicesWords) {
  EXPECT_EQ(Body("{").code, KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(Body("").code, KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(Body(R"({"messages":[]})").error, HasSubstr("model is missing"));
  EXPECT_THAT(Body(R"({"model":"bytes","messages":[]})").error, HasSubstr("messages are empty"));
  EXPECT_EQ(Body(R"({"model":"bytes"})").code, KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(Body(std::string(100'000, '[')).code, KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(Body(R"({"model":"bytes","messages":[{"role":"pirate","content":"Ahoy"}]})").error,
              HasSubstr("unknown role: pirate"));
  const RouteAnswer unknown = Body(R"({"model":"gpt-7","prompt":"Hello"})");
  EXPECT_EQ(unknown.code, KVATLAS_NOT_FOUND);
  EXPECT_THAT(unknown.error, HasSubstr("gpt-7"));
  EXPECT_EQ(Body(R"({"model":"bytes","prompt":"Hello"})", std::string(257, 's')).code,
            KVATLAS_INVALID_ARGUMENT);
}

TEST_F(RouteTextTest, TextIsTakenAsItIs) {
  const RouteAnswer all = Text("bytes", "Hello you, all of you");
  ASSERT_EQ(all.code, KVATLAS_OK) << all.error;
  const RouteAnswer bare = Text("bytes", "Hello you, all of you", 0);
  ASSERT_EQ(bare.code, KVATLAS_OK) << bare.error;
  EXPECT_LT(bare.route["tokens"].size(), all.route["tokens"].size()) << "no special tokens";
  EXPECT_EQ(Text("bytes", "Hello you, all of you", 1).route["tokens"], all.route["tokens"]);
  EXPECT_EQ(Text("unigram", std::string("with a NUL \0 inside", 19)).code, KVATLAS_OK);
  EXPECT_EQ(Text("gpt-7", "Hello").code, KVATLAS_NOT_FOUND);
  EXPECT_EQ(Text("bytes", "", 0).code, KVATLAS_INVALID_ARGUMENT) << "no tokens";
}

TEST_F(RouteTextTest, AConversationIsWrittenByItsTemplate) {
  const std::string hello = R"([{"role":"user","content":"Hello"}])";
  const RouteAnswer plain = Chat(hello);
  ASSERT_EQ(plain.code, KVATLAS_OK) << plain.error;
  const RouteAnswer tools =
      Chat(hello, R"([{"type":"function","function":{"name":"look_up","parameters":{}}}])");
  ASSERT_EQ(tools.code, KVATLAS_OK) << tools.error;
  EXPECT_GT(tools.route["prompt_tokens"], plain.route["prompt_tokens"]);
  EXPECT_EQ(Chat(R"([{"role":"user","content":"Hello"},{"role":"assistant","content":"Wel"}])", "",
                 R"({"enable_thinking":false})", /*is_continued=*/true)
                .code,
            KVATLAS_OK);
  EXPECT_THAT(Chat("{}").error, HasSubstr("messages_json"));
  EXPECT_THAT(Chat("").error, HasSubstr("messages_json is missing"));
  EXPECT_THAT(Chat(hello, "{}").error, HasSubstr("tools_json"));
  EXPECT_THAT(Chat(hello, "", "[]").error, HasSubstr("template_kwargs_json"));
  EXPECT_EQ(Chat(R"([{"role":"pirate","content":"Ahoy"}])").code, KVATLAS_INVALID_ARGUMENT);
}

TEST_F(RouteTextTest, TwoPromptsAreRefused) {
  CRequest c;
  c.request.model = "bytes";
  c.request.text = "Hello";
  c.request.text_size = 5;
  c.request.messages_json = "[]";
  EXPECT_EQ(Embedded(c.request).code, KVATLAS_INVALID_ARGUMENT);
  c.request.messages_json = nullptr;
  const uint32_t token = 1;
  c.request.tokens = &token;
  c.request.tokens_count = 1;
  EXPECT_THAT(Embedded(c.request).error, HasSubstr("more than one of"));
  c.request.tokens_count = 0;
  c.request.text = nullptr;
  EXPECT_EQ(Embedded(c.request).code, KVATLAS_INVALID_ARGUMENT) << "NULL, and a size";
}

TEST_F(RouteTextTest, ARouteToTwoWorkersNamesBothAndAReportWhoWasNotReached) {
  CRequest c;
  c.request.model = "bytes";
  c.request.text = "Hello you, all of you";
  c.request.text_size = 21;
  kvatlas_route* one = nullptr;
  ASSERT_EQ(kvatlas_frontend_route(embedded_, &c.request, &one, nullptr, 0), KVATLAS_OK);
  EXPECT_EQ(kvatlas_route_decode_worker(one), nullptr);
  EXPECT_EQ(kvatlas_route_decode_cell(one), nullptr);
  EXPECT_EQ(kvatlas_route_decode_url(one), nullptr);
  kvatlas_route_free(one);

  leaf_.is_split = true;
  kvatlas_route* two = nullptr;
  kvatlas_route* again = nullptr;
  Time reported;
  // Where everybody is slow the suspicion may be over before the next route: then this takes
  // another turn.
  do {
    kvatlas_route_free(std::exchange(two, nullptr));
    kvatlas_route_free(std::exchange(again, nullptr));
    ASSERT_EQ(kvatlas_frontend_route(embedded_, &c.request, &two, nullptr, 0), KVATLAS_OK);
    kvatlas_route_report report;
    kvatlas_route_report_init(&report, sizeof(report));
    report.decode_unreachable = 1;
    reported = Clock::Real().Now();
    ASSERT_EQ(kvatlas_frontend_report(embedded_, kvatlas_route_decision_id(two), &report),
              KVATLAS_OK);
    ASSERT_EQ(kvatlas_frontend_route(embedded_, &c.request, &again, nullptr, 0), KVATLAS_OK);
  } while (Clock::Real().Now() - reported >= SuspectsOptions().ttl);
  EXPECT_STREQ(kvatlas_route_worker(two), "near");
  ASSERT_NE(kvatlas_route_decode_worker(two), nullptr);
  EXPECT_STREQ(kvatlas_route_decode_cell(two), "c");
  EXPECT_STREQ(kvatlas_route_decode_url(two), "");
  EXPECT_EQ(kvatlas_route_decode_rank(two), 0u);
  EXPECT_STREQ(kvatlas_route_worker(again), "near") << "nothing is held against who prefills";
  ASSERT_NE(kvatlas_route_decode_worker(again), nullptr);
  EXPECT_STRNE(kvatlas_route_decode_worker(again), kvatlas_route_decode_worker(two));
  kvatlas_route_free(two);
  kvatlas_route_free(again);
}

// Protobuf would refuse it in words of its own.
TEST_F(RouteTextTest, TextThatIsNoUtf8IsRefused) {
  CRequest c;
  c.request.model = "bytes";
  c.request.text = "\xff\xfe";
  c.request.text_size = 2;
  const RouteAnswer answer = Embedded(c.request);
  EXPECT_EQ(answer.code, KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(answer.error, HasSubstr("UTF-8"));
}

// A request of a program that was compiled before there was text.
TEST_F(RouteTextTest, AnOlderHeadersRequestHasNoText) {
  CRequest c;
  c.request.model = "bytes";
  const uint32_t tokens[] = {1, 2, 3, 4, 5};
  c.request.tokens = tokens;
  c.request.tokens_count = 5;
  c.request.text = "what lies behind an older struct is not looked at";
  c.request.text_size = 5;
  c.request.struct_size = offsetof(kvatlas_route_request, text);
  const RouteAnswer answer = Embedded(c.request);
  EXPECT_EQ(answer.code, KVATLAS_OK) << answer.error;
  EXPECT_EQ(answer.route["prompt_tokens"], 5);
}

TEST(RouteTextOptionsTest, WhatCannotBeIsNamed) {
  const char* leaf = "c=127.0.0.1:1";
  kvatlas_frontend_options options;
  kvatlas_frontend_options_init(&options, sizeof(options));
  options.leaves = &leaf;
  options.leaves_count = 1;
  kvatlas_frontend* frontend = nullptr;
  char error[256];
  const auto create = [&] {
    return kvatlas_frontend_create(&options, &frontend, error, sizeof(error));
  };
  options.models = "there=/is/nothing/there";
  EXPECT_EQ(create(), KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(error, StartsWith("models: "));
  EXPECT_THAT(error, HasSubstr("there"));
  options.models = nullptr;
  for (const char* nowhere : {"a=leaf-0", "a=127.0.0.1:99999", "a=http://127.0.0.1:7410"}) {
    const char* const leaves[] = {nowhere};
    options.leaves = leaves;
    EXPECT_EQ(create(), KVATLAS_INVALID_ARGUMENT) << nowhere;
    EXPECT_THAT(error, StartsWith("leaves: "));
  }
  options.leaves = &leaf;
  options.hierarchy = "127.0.0.1:99999";
  EXPECT_EQ(create(), KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(error, StartsWith("hierarchy: "));
  options.hierarchy = nullptr;
  options.prompt_threads = 0;
  EXPECT_EQ(create(), KVATLAS_INVALID_ARGUMENT);
  options.prompt_threads = 1;
  options.prompts_max = 0;
  EXPECT_EQ(create(), KVATLAS_INVALID_ARGUMENT);
  options.prompts_max = 1;
  options.schedule = "sometimes";
  EXPECT_EQ(create(), KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(error, StartsWith("schedule: "));
  options.schedule = "early:7;every:16";
  ASSERT_EQ(create(), KVATLAS_OK) << error;
  CRequest c;
  c.request.model = "bytes";
  c.request.text = "Hello";
  c.request.text_size = 5;
  kvatlas_route* route = nullptr;
  EXPECT_EQ(kvatlas_frontend_route(frontend, &c.request, &route, error, sizeof(error)),
            KVATLAS_NOT_FOUND);
  EXPECT_THAT(error, HasSubstr("no tokenizer for model \"bytes\""));
  EXPECT_EQ(route, nullptr);
  kvatlas_frontend_destroy(frontend);
}

// Wherever memory runs out: no route stays under way, for which the end would wait, and the
// callback comes once, or never where the code says so.
TEST(RouteWithoutMemoryTest, ARouteThatCannotBeginIsNotWaitedFor) {
  const char* leaf = "c=127.0.0.1:1";
  kvatlas_frontend_options options;
  kvatlas_frontend_options_init(&options, sizeof(options));
  options.leaves = &leaf;
  options.leaves_count = 1;
  kvatlas_frontend* frontend = nullptr;
  ASSERT_EQ(kvatlas_frontend_create(&options, &frontend, nullptr, 0), KVATLAS_OK);
  CRequest c;
  c.request.model = "a model whose name is too long for a string's own room";
  c.request.text = "Hello";
  c.request.text_size = 5;
  struct Asked {
    int32_t code = KVATLAS_OK;
    std::atomic<int> answers = 0;
  };
  std::deque<Asked> asked;
  for (bool is_refused = true; is_refused && asked.size() < 1000;) {
    Asked& now = asked.emplace_back();
    const auto count = [](void* context, int32_t, const char*, kvatlas_route* route) {
      ++static_cast<Asked*>(context)->answers;
      kvatlas_route_free(route);
    };
    allocations_left = static_cast<int>(asked.size()) - 1;
    now.code = kvatlas_frontend_route_async(frontend, &c.request, count, &now);
    is_refused = allocations_left < 0;
    allocations_left = -1;
  }
  EXPECT_GT(asked.size(), 5u);
  EXPECT_EQ(asked.back().code, KVATLAS_OK);
  kvatlas_frontend_stats stats{};
  stats.struct_size = sizeof(stats);
  ASSERT_TRUE(Await(
      [&] {
        return kvatlas_frontend_get_stats(frontend, &stats) == KVATLAS_OK && stats.under_way == 0;
      },
      std::chrono::seconds(10)))
      << stats.under_way;
  kvatlas_frontend_destroy(frontend);
  for (const Asked& one : asked) {
    EXPECT_EQ(one.answers, one.code == KVATLAS_OK ? 1 : 0);
    EXPECT_TRUE(one.code == KVATLAS_OK || one.code == KVATLAS_RESOURCE_EXHAUSTED) << one.code;
  }
}

}  // namespace
}  // namespace kvatlas
