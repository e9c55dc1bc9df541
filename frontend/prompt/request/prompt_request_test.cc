#include "frontend/prompt/request/prompt_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

TEST(WithSaltTest, PutsItWhereTheBodyHasOneOrInFront) {
  const auto salted = [](std::string_view body, std::optional<std::string> put = "S") {
    const absl::StatusOr<std::string> text =
        WithSalt(body, [&](const std::string& model, const std::string& callers) {
          EXPECT_EQ(model, "m") << body;
          EXPECT_EQ(callers, body.find("mine") == std::string_view::npos ? "" : "mine") << body;
          return put;
        });
    return text.ok() ? *text : std::string(text.status().message());
  };
  EXPECT_EQ(salted(R"({"model":"m"})"), R"({"cache_salt":"S","model":"m"})");
  EXPECT_EQ(salted("\xef\xbb\xbf {\"model\" : \"m\"}\n"),
            " {\"cache_salt\":\"S\",\"model\" : \"m\"}\n");
  EXPECT_EQ(salted(R"({"model":"m","cache_salt":"mine", "n":1})"),
            R"({"model":"m","cache_salt":"S", "n":1})");
  EXPECT_EQ(salted(R"({"cache\u005fsalt":"x","model":"m","cache_salt":"mine"})"),
            R"({"cache\u005fsalt":"S","model":"m","cache_salt":"S"})");
  EXPECT_EQ(salted(R"({"model":"m","cache_salt":{"cache_salt":[1,"}"]},"a":[1]})"),
            R"({"model":"m","cache_salt":"S","a":[1]})");
  EXPECT_EQ(salted(R"({"model":"m","cache_salt":[[1],"]"],"a":{"cache_salt":"b"}})"),
            R"({"model":"m","cache_salt":"S","a":{"cache_salt":"b"}})");
  EXPECT_EQ(salted(R"({"model":"m","cache_salt": null , "a":1})"),
            R"({"model":"m","cache_salt": "S", "a":1})");
  EXPECT_EQ(salted(R"({"model":"x","model":"m"})"),
            R"({"cache_salt":"S","model":"x","model":"m"})");
  EXPECT_EQ(salted(R"({"model":"m","cache_salt":"mine"})", std::nullopt),
            R"({"model":"m","cache_salt":null})");
  EXPECT_EQ(salted(R"({"model":"m"})", std::nullopt), R"({"model":"m"})");
  const auto any = [](const std::string&, const std::string&) { return "S"; };
  EXPECT_EQ(*WithSalt(" {}", any), " {\"cache_salt\":\"S\"}");
  const std::string wide("{\0}\0", 4);
  for (const std::string& bad :
       {std::string(), std::string("[]"), std::string("{"), std::string("{} x"),
        std::string("{\"a\":1"), std::string("\xff{}"), wide})
    EXPECT_FALSE(WithSalt(bad, any).ok()) << bad;
}

TEST(WithModelTest, PutsItWhereTheBodyHasOne) {
  std::string before;
  const auto with = [&before](const std::string& body) {
    const absl::StatusOr<std::string> changed = WithModel(body, "a\"b", &before);
    return changed.ok() ? *changed : std::string(changed.status().message());
  };
  EXPECT_EQ(with(R"({"model" : "m" , "n":{"model":"x"}})"),
            R"({"model" : "a\"b" , "n":{"model":"x"}})");
  EXPECT_EQ(before, "m");
  EXPECT_EQ(with(R"({"mo\u0064el":"y","model":"z"})"), R"({"mo\u0064el":"a\"b","model":"a\"b"})");
  EXPECT_EQ(with(R"({"input":"x"})"), "the body names no model");
  EXPECT_EQ(*WithModel(R"({"model":"m"})", "a\nb", &before), R"({"model":"a\u000ab"})");
  for (const char* bad : {"", "[]", "{", R"({"model":7})", R"({"model":["m"]})"})
    EXPECT_FALSE(WithModel(bad, "m", &before).ok()) << bad;
}

// If each field were compared with all earlier ones, this would take some 10^11 steps.
TEST(WithSaltTest, TakesManyFieldsInOnePass) {
  std::string body = "{";
  for (int i = 0; i < 400'000; ++i) absl::StrAppend(&body, "\"k", i, "\":1,");
  body += "\"model\":\"m\",\"prompt\":\"x\"}";
  const absl::StatusOr<std::string> salted =
      WithSalt(body, [](const std::string& model, const std::string&) { return model; });
  ASSERT_TRUE(salted.ok());
  EXPECT_EQ(*salted, "{\"cache_salt\":\"m\"," + body.substr(1));
  const absl::StatusOr<PromptRequest> request =
      ReadPromptRequest(RequestPath::kCompletions, std::make_shared<const std::string>(body));
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->model, "m");
  EXPECT_EQ(*ReadModel(body), "m");
}

TEST(PathsTest, OnlyWhatIsKnownToLeaveNoBlocksDoes) {
  for (const char* path : {"/tokenize", "/v1/detokenize", "/v1/chat/completions/render?x=1",
                           "/v1/messages/count_tokens", "/v1/responses/r1/cancel"})
    EXPECT_TRUE(LeavesNoBlocks("POST", path)) << path;
  for (const char* path :
       {"/v1/embeddings", "/v1/score", "/v1/chat/completions", "/generate", "/new"})
    EXPECT_FALSE(LeavesNoBlocks("POST", path)) << path;
  EXPECT_TRUE(LeavesNoBlocks("GET", "/v1/models"));
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr auto kText = RequestPath::kCompletions;
constexpr auto kChat = RequestPath::kChat;

absl::StatusOr<PromptRequest> Read(RequestPath path, std::string body) {
  return ReadPromptRequest(path, std::make_shared<const std::string>(std::move(body)));
}

TEST(RequestPathOfTest, OnlyPostsWithAPromptHaveAPath) {
  EXPECT_EQ(RequestPathOf("POST", "/v1/completions"), kText);
  EXPECT_EQ(RequestPathOf("POST", "/v1/chat/completions"), kChat);
  EXPECT_EQ(RequestPathOf("POST", "/team/v1/chat/completions?beta=1"), kChat);
  EXPECT_EQ(RequestPathOf("POST", "/v1/responses"), RequestPath::kResponses);
  EXPECT_EQ(RequestPathOf("POST", "/v1/messages"), RequestPath::kMessages);
  EXPECT_EQ(RequestPathOf("POST", "/inference/v1/generate"), RequestPath::kVllmGenerate);
  EXPECT_EQ(RequestPathOf("POST", "/generate"), RequestPath::kSglangGenerate);
  for (const char* path : {"/v1/responses/7/cancel", "/v1/embeddings", "/v1/messages/count_tokens",
                           "/metrics?then=/v1/completions"})
    EXPECT_EQ(RequestPathOf("POST", path), std::nullopt) << path;
  EXPECT_EQ(RequestPathOf("GET", "/v1/chat/completions"), std::nullopt);
}

TEST(ReadPromptRequestTest, TokenIdsNeedNoTokenizer) {
  const auto request = Read(
      kText, R"({"model": "m", "prompt": [1, 2, 4294967295], "cache_salt": "s", "max_tokens": 7})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->model, "m");
  EXPECT_EQ(request->cache_salt, "s");
  EXPECT_EQ(request->output_tokens_max, 7u);
  EXPECT_THAT(std::get<std::vector<TokenId>>(request->prompt), ElementsAre(1, 2, 4294967295));
}

TEST(ReadPromptRequestTest, IdsAreTakenAsEnginesTakeThem) {
  const auto ids = [](RequestPath path, const char* body) {
    const auto request = Read(path, body);
    EXPECT_TRUE(request.ok()) << body << request.status();
    return std::get<std::vector<TokenId>>(request->prompt);
  };
  // Integers in the forms that pydantic takes.
  EXPECT_THAT(ids(kText, R"({"prompt": [1.0, 2.0]})"), ElementsAre(1, 2));
  EXPECT_THAT(ids(kText, R"({"prompt": [true, false]})"), ElementsAre(1, 0));
  EXPECT_THAT(ids(RequestPath::kVllmGenerate, R"({"token_ids": [3, 4]})"), ElementsAre(3, 4));
  EXPECT_THAT(ids(RequestPath::kSglangGenerate, R"({"input_ids": [[5], [6]]})"), ElementsAre(5));
}

// vLLM keeps a part of them, SGLang all.
TEST(ReadPromptRequestTest, IdsThatAnEngineCutsAreReadByItsConvention) {
  const auto prompt = [](RequestPath path, const std::string& ids, const std::string& more) {
    const auto request = Read(path, "{" + ids + ": [1, 2, 3, 4], " + more + "}");
    EXPECT_TRUE(request.ok()) << more << request.status();
    return request->prompt;
  };
  const auto is_body = [](const auto& prompt) {
    return std::holds_alternative<BodyPrompt>(prompt);
  };
  const std::string three = R"("truncate_prompt_tokens": 3)";
  EXPECT_TRUE(is_body(prompt(kText, R"("prompt")", three)));
  EXPECT_TRUE(is_body(prompt(kText, R"("prompt")", three + R"(, "truncation_side": "right")")));
  EXPECT_FALSE(is_body(prompt(kText, R"("prompt")", R"("truncate_prompt_tokens": -1)")));
  EXPECT_FALSE(is_body(prompt(kText, R"("prompt")", R"("truncate_prompt_tokens": 4)")));
  EXPECT_FALSE(is_body(prompt(RequestPath::kVllmGenerate, R"("token_ids")", three)));
  EXPECT_FALSE(is_body(prompt(RequestPath::kSglangGenerate, R"("input_ids")", three)));
}

TEST(ReadPromptRequestTest, WhatOneEngineTakesIsReadByItsConvention) {
  for (const std::string body : {R"({"prompt": [884, " 1"]})", R"({"prompt": [[884, "1.0"]]})",
                                 R"({"prompt": [["5"]]})", R"({"prompt": [[], [75]]})"}) {
    const auto request = Read(kText, body);
    ASSERT_TRUE(request.ok()) << body << request.status();
    EXPECT_TRUE(std::holds_alternative<BodyPrompt>(request->prompt)) << body;
  }
  const auto request = Read(RequestPath::kResponses, R"({"input": {}})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(std::holds_alternative<BodyPrompt>(request->prompt));
}

TEST(ReadPromptRequestTest, TheLastOfEqualPromptsCounts) {
  const auto text = Read(kText, R"({"prompt": [1], "prompt": "x"})");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_TRUE(std::holds_alternative<BodyPrompt>(text->prompt));
  const auto ids = Read(kText, R"({"prompt": ["1", 2], "prompt": [3]})");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_THAT(std::get<std::vector<TokenId>>(ids->prompt), ElementsAre(3));
}

TEST(ReadPromptRequestTest, TheFirstOfSeveralPromptsCounts) {
  auto request = Read(kText, R"({"model": "m", "prompt": ["one", "two"], "stream": true})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(std::holds_alternative<BodyPrompt>(request->prompt));
  EXPECT_TRUE(request->stream);
  request = Read(kText, R"({"model": "m", "prompt": [[5, 6], [7]]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(std::get<std::vector<TokenId>>(request->prompt), ElementsAre(5, 6));
}

TEST(ReadPromptRequestTest, EitherIsAChatOnlyIfTheBodyHasMessages) {
  const auto path = [](const char* body) {
    const auto request = Read(RequestPath::kChatOrCompletion, body);
    EXPECT_TRUE(request.ok()) << request.status();
    return std::get<BodyPrompt>(request->prompt).path;
  };
  EXPECT_EQ(path(R"({"model": "m", "messages": [{}]})"), kChat);
  EXPECT_EQ(path(R"({"model": "m", "mess\u0061ges": [{}]})"), kChat);
  EXPECT_EQ(path(R"({"model": "m", "prompt": "messages"})"), kText);
  EXPECT_EQ(path(R"({"model": "messages", "prompt": "x", "messages": null})"), kText);
}

TEST(ReadPromptRequestTest, WhatIsNoPartOfThePromptIsNotJudged) {
  for (const auto& [more, tokens] :
       std::vector<std::pair<std::string, size_t>>{{R"("max_tokens": 5.0)", 5},
                                                   {R"("max_tokens": "5")", 5},
                                                   {R"("max_tokens": "many")", 0},
                                                   {R"("max_tokens": -1)", 0},
                                                   {R"("max_tokens": 1e300)", 0},
                                                   {R"("max_tokens": [])", 0},
                                                   {R"("temperature": NaN)", 0},
                                                   {R"("temperature": -Infinity)", 0},
                                                   {R"("top_p": 1e400)", 0},
                                                   {R"("user": "\ud83d")", 0},
                                                   {R"("stream": 1)", 0}}) {
    const auto request = Read(kText, R"({"prompt": "x", )" + more + R"(, "model": "m"})");
    ASSERT_TRUE(request.ok()) << more << request.status();
    EXPECT_EQ(request->output_tokens_max, tokens) << more;
    EXPECT_EQ(request->model, "m") << more;
    EXPECT_FALSE(request->stream) << more;
  }
  EXPECT_EQ(Read(kText, R"({"prompt": "x"})")->model, "") << "engines with one model need no name";
}

TEST(ReadPromptRequestTest, FieldsThatChangeWhatIsReadAreNamedOnce) {
  const auto request = Read(kChat, R"({"messages": [{}], "tools": [], "reasoning_effort": "high",
                                       "temperature": 1, "tools": [1], "documents": null})");
  ASSERT_TRUE(request.ok());
  EXPECT_THAT(request->traits, ElementsAre("tools", "reasoning_effort"));
}

TEST(ReadPromptRequestTest, AMillionBracketsAreNoRecursion) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  for (const std::string& body :
       {R"({"model":"m","messages":[{"role":"user","content":)" + deep + "}]}",
        R"({"model":"m","messages":)" + deep + "}",
        R"({"messages":[{}],"tools":)" + deep + R"(,"model":"m"})"}) {
    const auto request = Read(kChat, body);
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->model, "m");
  }
}

TEST(ReadPromptRequestTest, WhatTheCacheCannotGiveIsSaid) {
  for (const char* more :
       {R"("prompt_logprobs": 0)", R"("echo": true, "logprobs": 1)",
        R"("logprobs": 0, "echo": true)", R"("echo": true, "top_logprobs": 2)"}) {
    const auto request = Read(kText, absl::StrCat(R"({"prompt": "x", )", more, "}"));
    ASSERT_TRUE(request.ok());
    EXPECT_TRUE(absl::IsUnimplemented(request->cache_not_read)) << more;
  }
  for (const char* more : {R"("prompt_logprobs": null)", R"("echo": true)", R"("logprobs": 3)",
                           R"("echo": false, "logprobs": 3)", R"("echo": true, "logprobs": false)"})
    EXPECT_TRUE(Read(kText, absl::StrCat(R"({"prompt": "x", )", more, "}"))->cache_not_read.ok())
        << more;
  EXPECT_TRUE(
      absl::IsUnimplemented(Read(kText, R"({"prompt": "x", "extra_key": "k"})")->no_prompt));
}

TEST(ReadPromptRequestTest, BodiesThatAnEngineTakesAndThatAreNotReadHaveNoPrompt) {
  const auto embeds = Read(kText, R"({"model": "m", "prompt_embeds": "AAAA"})");
  ASSERT_TRUE(embeds.ok()) << embeds.status();
  EXPECT_TRUE(absl::IsUnimplemented(embeds->no_prompt));
  std::string wide;
  for (char c : std::string(R"({"model": "m", "prompt": "x"})")) wide += {c, '\0'};
  const auto utf16 = Read(kText, wide);
  ASSERT_TRUE(utf16.ok()) << utf16.status();
  EXPECT_TRUE(absl::IsUnimplemented(utf16->no_prompt));
  EXPECT_EQ(Read(kText, "\xef\xbb\xbf{\"model\": \"m\", \"prompt\": \"x\"}")->model, "m");
}

TEST(ReadPromptRequestTest, WhatNoEngineTakesIsNamed) {
  const auto why = [](RequestPath path, const char* body) {
    const auto request = Read(path, body);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << body;
    return std::string(request.status().message());
  };
  EXPECT_THAT(why(kText, ""), HasSubstr("JSON"));
  EXPECT_THAT(why(kText, "[1]"), HasSubstr("JSON object"));
  EXPECT_THAT(why(kText, "\"x\""), HasSubstr("JSON object"));
  EXPECT_THAT(why(kText, "{"), HasSubstr("JSON"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": "x"} x)"), HasSubstr("JSON"));
  EXPECT_THAT(why(kText, "{\"model\": \"m\", \"prompt\": \"\xff\"}"), HasSubstr("JSON"));
  EXPECT_THAT(why(kText, R"({"model": 1, "prompt": "x"})"), HasSubstr("model"));
  EXPECT_THAT(why(kText, R"({"model": "m"})"), HasSubstr("prompt"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": []})"), HasSubstr("prompt"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": [1, -2]})"), HasSubstr("token ids"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": [4294967296]})"), HasSubstr("token ids"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": {"a": 1}})"), HasSubstr("prompt"));
  EXPECT_THAT(why(kText, R"({"model": "m", "prompt": "x", "cache_salt": 1})"), HasSubstr("salt"));
  EXPECT_THAT(why(RequestPath::kVllmGenerate, R"({"model": "m"})"), HasSubstr("token_ids"));
  EXPECT_THAT(why(kText, R"({"model": m, "prompt": "x"})"), HasSubstr("wrong at byte 11"));
  EXPECT_THAT(why(kChat, R"({"model": "m"})"), HasSubstr("messages"));
  EXPECT_THAT(why(kChat, R"({"model": "m", "messages": "hi"})"), HasSubstr("messages"));
  EXPECT_THAT(why(RequestPath::kResponses, R"({"model": "m"})"), HasSubstr("input"));
  EXPECT_THAT(why(RequestPath::kResponses, R"({"model": "m", "input": 7})"), HasSubstr("input"));
  EXPECT_THAT(why(RequestPath::kMessages, R"({"model": "m"})"), HasSubstr("messages"));
  EXPECT_THAT(why(kChat, R"({"model": "m", "messages": [{}], "tools": {}})"), HasSubstr("tools"));
}

TEST(ReadModelTest, ANameOrNone) {
  EXPECT_EQ(*ReadModel(R"({"input": [NaN], "model": "m"})"), "m");
  EXPECT_EQ(*ReadModel(R"({"model": null})"), "");
  EXPECT_EQ(ReadModel(R"({"model": 1})").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadModel("x").status().code(), absl::StatusCode::kInvalidArgument);
}

RequestWishes WishesOf(RequestPath path, std::string body) {
  const absl::StatusOr<PromptRequest> request = Read(path, std::move(body));
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? request->wishes : RequestWishes();
}

RequestWishes OfResponses(std::string fields) {
  return WishesOf(RequestPath::kResponses, R"({"input":"x",)" + std::move(fields) + "}");
}

TEST(RequestWishesTest, WhatAnEngineHasStoredIsNamed) {
  EXPECT_THAT(OfResponses(R"("previous_response_id":"resp_1")").stored, ElementsAre("resp_1"));
  EXPECT_THAT(OfResponses(R"("conversation":"conv_1")").stored, ElementsAre("conv_1"));
  EXPECT_THAT(
      OfResponses(R"("conversation":{"a":[1],"id":"conv_1"},"previous_response_id":null)").stored,
      ElementsAre("conv_1"));
  EXPECT_THAT(
      WishesOf(
          RequestPath::kResponses,
          R"({"input":[{"type":"message","id":"a","content":[{"type":"item_reference","id":"b"}]},)"
          R"({"id":"msg_1","type":"item_reference"},7,{"type":7},{}],"previous_response_id":"resp_1"})")
          .stored,
      ElementsAre("resp_1", "msg_1"));
  // Other paths have no such fields.
  EXPECT_THAT(
      WishesOf(RequestPath::kChat, R"({"messages":[],"previous_response_id":"resp_1"})").stored,
      IsEmpty());
}

TEST(RequestWishesTest, SglangsRankHasTwoNames) {
  const auto rank = [](std::string fields) {
    return WishesOf(RequestPath::kChat, R"({"messages":[{"routed_dp_rank":9}],)" + fields + "}")
        .rank;
  };
  EXPECT_EQ(rank(R"("routed_dp_rank":1)"), 1u);
  EXPECT_EQ(rank(R"("data_parallel_rank":2)"), 2u);
  EXPECT_EQ(rank(R"("data_parallel_rank":2,"routed_dp_rank":1)"), 1u);
  EXPECT_EQ(rank(R"("data_parallel_rank":2,"routed_dp_rank":null)"), 2u);
  EXPECT_EQ(rank(R"("routed_dp_rank":-1)"), std::nullopt);
  EXPECT_EQ(rank(R"("routed_dp_rank":"1")"), std::nullopt);
  EXPECT_EQ(rank(R"("n":1)"), std::nullopt);
}

std::string SessionOf(const std::string& fields, RequestPath path = RequestPath::kChat) {
  const absl::StatusOr<PromptRequest> request =
      Read(path, R"({"messages":[{"role":"user","content":"x","session_id":"no"}],"input":"x",)" +
                     fields + "}");
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? request->session : "";
}

TEST(SessionOfBodyTest, FieldsOfEnginesAndAgentsNameIt) {
  EXPECT_EQ(SessionOf(R"("session_params":{"rid":"r","id":"s"})"), "s");
  EXPECT_EQ(SessionOf(R"("nvext":{"a":1,"session_control":{"action":"bind","session_id":"s"}})"),
            "s");
  EXPECT_EQ(SessionOf(R"("session_id":"s")"), "s");
  EXPECT_EQ(SessionOf(R"("metadata":{"other":[1],"session_id":"s"})"), "s");
  EXPECT_EQ(SessionOf(R"("prompt_cache_key":"019a9544-7ab1")", RequestPath::kResponses),
            "019a9544-7ab1");
  EXPECT_EQ(SessionOf(R"("user":"u","safety_identifier":"i")"), "") << "they are people";
}

TEST(SessionOfBodyTest, ClaudeCodeWritesItIntoTheUsersIdInTwoWays) {
  const auto of = [](const std::string& user) {
    return SessionOf(R"("metadata":{"user_id":")" + user + R"("})", RequestPath::kMessages);
  };
  EXPECT_EQ(of("user_0f3a_account__session_57a121ec-f78c"), "57a121ec-f78c");
  EXPECT_EQ(of(R"({\"device_id\":\"d\",\"account_uuid\":\"\",\"session_id\":\"54c1eb09-bc4c\"})"),
            "54c1eb09-bc4c");
  EXPECT_EQ(of(R"({ \"session_id\" : \"54c1eb09\" })"), "54c1eb09");
  for (const char* none :
       {"a-user-of-another-kind", "user_0f3a_session_", R"({\"device_id\":\"d\"})",
        R"({\"session_id\":7})", R"({\"session_id\")", R"({\"session_id\":\")"})
    EXPECT_EQ(of(none), "") << none;
}

TEST(SessionOfBodyTest, TheMostCertainOneCountsWhereverItStands) {
  const std::string key = R"("prompt_cache_key":"key")", user = R"("user_id":"x_session_user")";
  EXPECT_EQ(SessionOf(key + R"(,"metadata":{)" + user + "}"), "user");
  EXPECT_EQ(SessionOf(R"("metadata":{)" + user + R"(,"session_id":"meta"},)" + key), "meta");
  EXPECT_EQ(SessionOf(R"("session_id":"plain","metadata":{"session_id":"meta"})"), "plain");
  EXPECT_EQ(SessionOf(key + R"(,"session_id":"plain","session_params":{"id":"engine"})"), "engine");
  EXPECT_EQ(SessionOf(R"("session_id":"a","session_id":"b")"), "b") << "as in Python";
}

TEST(SessionOfBodyTest, WhatIsNoTextOrTooLongIsNone) {
  for (const char* fields :
       {R"("session_id":7)", R"("session_id":null)", R"("session_id":"")", R"("metadata":"s")",
        R"("metadata":[{"session_id":"s"}])", R"("metadata":{"session_id":{"id":"s"}})",
        R"("session_params":[{"id":"s"}])", R"("nvext":{"session_control":"s"})",
        R"("session_id":"\ud800")"})
    EXPECT_EQ(SessionOf(fields), "") << fields;
  const std::string longer(kBodySessionBytesMax + 1, 's');
  EXPECT_EQ(SessionOf(R"("session_id":")" + longer + R"(","prompt_cache_key":"key")"), "key");
  EXPECT_EQ(SessionOf(R"("session_id":")" + longer.substr(1) + R"(")"), longer.substr(1));
}

// vLLM announces blocks again that it holds already (vllm_xargs of chats and completions, extra
// arguments of /inference/v1/generate).
TEST(WithoutFullReportsTest, TheMemberBecomesWhiteSpaceAndNothingElseChanges) {
  const auto blanks = [](size_t count) { return std::string(count, ' '); };
  const std::string member = R"("kv_cache_report_mode": "full")";
  const auto of = [](const std::string& body) { return WithoutFullReports(body).value_or("none"); };
  EXPECT_EQ(of(R"({"vllm_xargs": {)" + member + R"(}, "model": "m"})"),
            R"({"vllm_xargs": {)" + blanks(member.size()) + R"(}, "model": "m"})");
  EXPECT_EQ(of(R"({"vllm_xargs": {)" + member + R"( , "a": 1}})"),
            R"({"vllm_xargs": {)" + blanks(member.size() + 2) + R"( "a": 1}})");
  EXPECT_EQ(of(R"({"vllm_xargs": {"a": "full", )" + member + R"( }})"),
            R"({"vllm_xargs": {"a": "full")" + blanks(member.size() + 2) + R"( }})");
  // Names and values as JSON may spell them, and named twice.
  for (
      const char* body :
      {R"({"vllm_xargs":{"kv_cache_report_mode":"\u0066ull"}})",
       R"({"vllm_xargs":{"kv_cache_report_mode":"full","kv_cache_report_mode":"full"}})",
       R"({"vllm_xargs":{"kv_cache_report_\u006dode":"full"}})",
       R"({"\u0076llm_xargs":{"kv\u005fcache\u005freport\u005fmode":"full"}})",
       "\xef\xbb\xbf{\"vllm_xargs\":{\"kv_cache_report_mode\":\"full\"}}",
       R"({"token_ids":[1],"sampling_params":{"n":1,"extra_args":{"kv_cache_report_mode":"full"}}})",
       R"({"sampling_params":{"vllm_xargs":{"kv_cache_report_mode":"full"},"n":1}})"}) {
    const std::string without = of(body);
    EXPECT_EQ(without.size(), std::string_view(body).size());
    EXPECT_THAT(without, Not(HasSubstr("full"))) << without;
    EXPECT_EQ(of(without), "none");
    EXPECT_TRUE(ReadModel(without).ok()) << without;
  }
}

TEST(WithoutFullReportsTest, WhatAsksForNothingStaysAsItIs) {
  for (const char* body :
       {R"({"messages":[{"content":"\"kv_cache_report_mode\": \"full\""}]})",
        R"({"kv_cache_report_mode":"full"})",
        R"({"vllm_xargs":{"kv_cache_report_mode":"incremental"}})",
        R"({"vllm_xargs":{"kv_cache_report_mode":["full"]}})",
        R"({"vllm_xargs":{"a":{"kv_cache_report_mode":"full"}}})",
        R"({"vllm_xargs":"kv_cache_report_mode"})", R"({"vllm_xargs":null})",
        R"({"vllm_xargs":{"kv_cache_report_mode":"full"})", "kv_cache_report_mode", ""})
    EXPECT_EQ(WithoutFullReports(body), std::nullopt) << body;
}

// Only then is a body searched for what an engine must not be asked.
TEST(RequestWishesTest, ArgumentsOfTheEnginesOwnAreNoticed) {
  const auto has = [](const std::string& fields) {
    const auto request = ReadPromptRequest(
        RequestPath::kCompletions,
        std::make_shared<const std::string>(R"({"model":"m","prompt":"x")" + fields + "}"));
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() && request->wishes.has_engine_arguments;
  };
  EXPECT_TRUE(has(R"(,"vllm_xargs":{})"));
  EXPECT_TRUE(has(R"(,"vllm\u005fxargs":{"a":1},"n":1)"));
  EXPECT_TRUE(has(R"(,"sampling_params":{"n":1,"extra_args":{}})"));
  EXPECT_TRUE(has(R"(,"sampling_params":{"vllm_x\u0061rgs":{},"n":1})"));
  EXPECT_FALSE(has(""));
  EXPECT_FALSE(has(R"(,"vllm_xargs":null)"));
  EXPECT_FALSE(has(R"(,"a":{"vllm_xargs":{}},"b":"vllm_xargs","extra_args":{})"));
  EXPECT_FALSE(has(R"(,"sampling_params":{"n":1,"a":{"extra_args":1}})"));
}

TEST(RequestWishesTest, SeveralPromptsOrChoicesAreNotOne) {
  const auto one_prompt = [](RequestPath path, std::string body) {
    return WishesOf(path, std::move(body)).one_prompt;
  };
  for (const char* one :
       {R"({"prompt":"a"})", R"({"prompt":[1,2,3]})", R"({"prompt":["a"]})", R"({"prompt":[[1]]})",
        R"({"prompt":"a","n":1})", R"({"prompt":"a","n":null})", R"({"prompt":"a","n":"2"})"})
    EXPECT_TRUE(one_prompt(RequestPath::kCompletions, one)) << one;
  for (const char* several :
       {R"({"prompt":["a","b"]})", R"({"prompt":[[1],[2]]})", R"({"n":2,"prompt":"a"})"})
    EXPECT_FALSE(one_prompt(RequestPath::kCompletions, several)) << several;
  EXPECT_FALSE(one_prompt(RequestPath::kChat, R"({"messages":[],"n":2})"));
  for (const char* one :
       {R"({"text":"a","sampling_params":{"n":1}})", R"({"input_ids":[1,2],"sampling_params":{}})"})
    EXPECT_TRUE(one_prompt(RequestPath::kSglangGenerate, one)) << one;
  for (const char* several : {R"({"text":["a","b"],"sampling_params":{}})",
                              R"({"input_ids":[[1],[2]],"sampling_params":{}})",
                              R"({"text":"a","sampling_params":{"stop":["x"],"n":2}})"})
    EXPECT_FALSE(one_prompt(RequestPath::kSglangGenerate, several)) << several;
}

}  // namespace
}  // namespace kvatlas
