#include "frontend/prompt/text/local_tokenizer.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/clock.h"

namespace kvatlas {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr char kModels[] =
    "bytes=frontend/prompt/text/testdata/bytes,pirate=bytes,blanks=frontend/prompt/text/testdata/"
    "blanks/"
    "tokenizer.json";

std::unique_ptr<ModelRegistry> Registry(const std::string& flag = kModels) {
  auto options = ParseModels(flag);
  EXPECT_TRUE(options.ok()) << options.status();
  auto registry = ModelRegistry::Create(*std::move(options));
  EXPECT_TRUE(registry.ok()) << registry.status();
  return *std::move(registry);
}

absl::StatusOr<PromptTokens> Ask(PromptTokenizer& tokenizer, const std::string& model,
                                 const Prompt& prompt) {
  std::promise<absl::StatusOr<PromptTokens>> answer;
  tokenizer.Tokenize(
      model, prompt, std::chrono::seconds(60),
      [&](absl::StatusOr<PromptTokens> tokens) { answer.set_value(std::move(tokens)); });
  return answer.get_future().get();
}

// As apply_chat_template alone reads it.
BodyPrompt Chat(Json messages, Json more = Json::object()) {
  more["messages"] = std::move(messages);
  return {.path = RequestPath::kChat,
          .body = std::make_shared<const std::string>(more.dump()),
          .convention = {.engine = EngineKind::kPlain}};
}

TEST(LocalTokenizerTest, AModelAnswersUnderAllOfItsNames) {
  const auto registry = Registry();
  for (const int threads : {0, 2}) {
    LocalTokenizer tokenizer(registry.get(), {.threads = threads});
    const auto base = Ask(tokenizer, "bytes", TextPrompt{.text = "Hello"});
    const auto adapter = Ask(tokenizer, "pirate", TextPrompt{.text = "Hello"});
    ASSERT_TRUE(base.ok() && adapter.ok());
    EXPECT_EQ(base->tokens, adapter->tokens);
    EXPECT_THAT(base->source, StartsWith("bytes (tokenizer.json "));
    EXPECT_THAT(adapter->source, StartsWith("pirate (tokenizer.json "));
  }
}

// A prompt that takes far longer than its millisecond is given up, and the next prompt has its
// tokens.
TEST(LocalTokenizerTest, APromptIsGivenUpWhenItsTimeIsOver) {
  const auto registry = Registry();
  const auto chat_of = [](size_t messages) {
    return Chat(Json(messages, Json{{"role", "user"}, {"content", "a"}}));
  };
  const std::vector<Prompt> prompts = {TextPrompt{.text = std::string(3 << 20, 'a')},
                                       TextPrompt{.text = std::string(3 << 20, ' ')},
                                       chat_of(200'000)};
  for (const int threads : {0, 1}) {
    LocalTokenizer tokenizer(registry.get(), {.threads = threads});
    for (const Prompt& prompt : prompts) {
      std::promise<absl::StatusOr<PromptTokens>> answer;
      tokenizer.Tokenize(
          "bytes", prompt, std::chrono::milliseconds(1),
          [&](absl::StatusOr<PromptTokens> tokens) { answer.set_value(std::move(tokens)); });
      EXPECT_EQ(answer.get_future().get().status().code(), absl::StatusCode::kDeadlineExceeded);
    }
    EXPECT_TRUE(Ask(tokenizer, "bytes", TextPrompt{.text = "Hello"}).ok());
    EXPECT_TRUE(Ask(tokenizer, "bytes", chat_of(2)).ok());
  }
}

TEST(LocalTokenizerTest, ATextOfMoreThanFourMebibytesThatCannotBeCutIsNotTried) {
  const auto registry = Registry();
  LocalTokenizer tokenizer(registry.get(), {});
  const auto answer = Ask(tokenizer, "bytes", TextPrompt{.text = std::string((4 << 20) + 1, ' ')});
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("4194304 bytes"));
}

TEST(LocalTokenizerTest, AnUnknownModelIsNotFoundAndTheKnownOnesAreNamed) {
  const auto registry = Registry();
  LocalTokenizer tokenizer(registry.get(), {});
  const auto answer = Ask(tokenizer, "gpt-9", TextPrompt{.text = "Hello"});
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(answer.status().message()),
              AllOf(HasSubstr("gpt-9"), HasSubstr("blanks, bytes, pirate")));
}

TEST(LocalTokenizerTest, WhatATemplateRefusesIsToldInItsWords) {
  const auto registry = Registry();
  LocalTokenizer tokenizer(registry.get(), {});
  const auto refused = Ask(tokenizer, "bytes", Chat({{{"role", "robot"}, {"content", "beep"}}}));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("unknown role: robot"));

  const std::vector<Json> none = {Json(), Json::array(), Json::array({"text"}), Json::object()};
  for (const Json& messages : none) {
    EXPECT_EQ(Ask(tokenizer, "bytes", Chat(messages)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  BodyPrompt broken = Chat({{{"role", "user"}, {"content", "x"}}});
  broken.body = std::make_shared<const std::string>("{\"messages\": [\"\xff\"]}");
  EXPECT_EQ(Ask(tokenizer, "bytes", broken).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(tokenizer, "bytes", TextPrompt{.text = "\xff"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LocalTokenizerTest, ATemplateOfTheRequestIsUsedOnlyWhereTrusted) {
  auto options = ParseModels(kModels);
  const BodyPrompt chat = Chat({{{"role", "user"}, {"content", "Hi"}}},
                               {{"chat_template", "{{ messages[0].content }}"}});
  for (const bool trusted : {false, true}) {
    (*options)[0].text.trust_request_templates = trusted;
    const auto registry = ModelRegistry::Create(*options);
    LocalTokenizer tokenizer(registry->get(), {});
    const auto answer = Ask(tokenizer, "bytes", chat);
    ASSERT_EQ(answer.ok(), trusted) << answer.status();
    if (trusted) {
      EXPECT_EQ(
          answer->tokens,
          Ask(tokenizer, "bytes", TextPrompt{.text = "Hi", .add_special_tokens = false})->tokens);
    }
  }
}

TEST(LocalTokenizerTest, AChatHasSpecialTokensFromItsTemplateOnce) {
  const auto registry = Registry();
  LocalTokenizer tokenizer(registry.get(), {});
  const auto chat = Ask(tokenizer, "bytes", Chat({{{"role", "user"}, {"content", "Hi"}}}));
  const auto text = Ask(tokenizer, "bytes", TextPrompt{.text = "Hi"});
  ASSERT_TRUE(chat.ok() && text.ok());
  EXPECT_EQ(chat->tokens[0], text->tokens[0]);
  EXPECT_NE(chat->tokens[1], chat->tokens[0]);
}

TEST(LocalTokenizerTest, APromptThatIsTooLongIsRefused) {
  auto options = ParseModels(kModels);
  (*options)[0].text.prompt_bytes_max = 10;
  const auto registry = ModelRegistry::Create(*options);
  LocalTokenizer tokenizer(registry->get(), {});
  EXPECT_TRUE(Ask(tokenizer, "bytes", TextPrompt{.text = "0123456789"}).ok());
  EXPECT_EQ(Ask(tokenizer, "bytes", TextPrompt{.text = "0123456789a"}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// One thread, which a callback holds while other prompts wait.
class BusyTokenizer {
 public:
  BusyTokenizer(ModelRegistry* registry, const Clock* clock)
      : tokenizer(std::make_unique<LocalTokenizer>(
            registry, LocalTokenizerOptions{.threads = 1, .queue_max = 2, .clock = clock})) {
    std::promise<void> begun;
    tokenizer->Tokenize("bytes", TextPrompt{.text = "x"}, std::chrono::seconds(1), [&](auto) {
      begun.set_value();
      go_on.get_future().wait();
    });
    begun.get_future().wait();
  }

  std::future<absl::StatusOr<PromptTokens>> Ask() {
    auto answer = std::make_shared<std::promise<absl::StatusOr<PromptTokens>>>();
    tokenizer->Tokenize("bytes", TextPrompt{.text = "x"}, std::chrono::seconds(1),
                        [answer](auto tokens) { answer->set_value(std::move(tokens)); });
    return answer->get_future();
  }

  std::promise<void> go_on;
  std::unique_ptr<LocalTokenizer> tokenizer;
};

TEST(LocalTokenizerTest, WhatWaitsTooLongOrIsTooMuchIsToldSo) {
  const auto registry = Registry();
  ManualClock clock;
  BusyTokenizer busy(registry.get(), &clock);
  auto late = busy.Ask();
  clock.Advance(std::chrono::seconds(2));
  auto in_time = busy.Ask();
  auto too_much = busy.Ask();
  EXPECT_EQ(too_much.get().status().code(), absl::StatusCode::kResourceExhausted);
  busy.go_on.set_value();
  EXPECT_EQ(late.get().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(in_time.get().ok());
}

TEST(LocalTokenizerTest, AStopAnswersWhatWaits) {
  const auto registry = Registry();
  ManualClock clock;
  BusyTokenizer busy(registry.get(), &clock);
  auto waiting = busy.Ask();
  std::thread stop([&] { busy.tokenizer.reset(); });
  busy.go_on.set_value();
  const absl::StatusOr<PromptTokens> answer = waiting.get();
  EXPECT_TRUE(answer.ok() || absl::IsUnavailable(answer.status()));
  stop.join();
}

TEST(ModelRegistryTest, WhatIsNoListOfModelsIsRefused) {
  for (const char* flag :
       {"bytes", "=path", "a=", "a=b,a=c", "@frontend/prompt/text/no_such_file"}) {
    EXPECT_EQ(ParseModels(flag).status().code(), absl::StatusCode::kInvalidArgument) << flag;
  }
}

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() : folder_(absl::StrCat(::testing::TempDir(), "models")) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path) << text;
    return path;
  }

  const std::string folder_;
};

TEST_F(FilesTest, AFileOfModelsSaysMoreThanAFlag) {
  const std::string chat = Write("chat.jinja", "{{ greeting }} {{ messages[0].content }}");
  const std::string file =
      Write("models.json", Json({{"models",
                                  {{{"name", "bytes"},
                                    {"path", "frontend/prompt/text/testdata/bytes"},
                                    {"aliases", {"a", "b"}},
                                    {"rules", "file"},
                                    {"chat_template", chat},
                                    {"template_kwargs", {{"greeting", "Ahoy"}}}}}}})
                               .dump());
  const auto registry = Registry(absl::StrCat("@", file));
  const auto model = registry->Find("b");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(*(*model)->Render(Chat({{{"role", "user"}, {"content", "Hi"}}})), "Ahoy Hi");
  const Json told = registry->Describe();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0]["aliases"], Json({"a", "b"}));
  EXPECT_EQ(told[0]["rules"], "file");
  EXPECT_GT(told[0]["vocabulary_size"].get<int>(), 1000);

  for (const char* bad :
       {R"({"models": [{"name": "x"}]})", R"({"models": [{"name": "x", "path": "y", "z": 1}]})",
        R"({"models": [{"name": 1, "path": "y"}]})", R"({"models": 3})", "[",
        R"({"models": [{"name": "x", "path": "y", "rules": "mine"}]})"}) {
    EXPECT_EQ(ParseModels(absl::StrCat("@", Write("bad.json", bad))).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

// _fix_v5_add_bos_eos_token of SGLang, which DeepSeek V3 needs: its tokenizer.json adds nothing.
TEST_F(FilesTest, SglangPutsABosInFrontOfTextsByTheTokenizersClass) {
  const std::string from = "frontend/prompt/text/testdata/bytes/";
  Json file = Json::parse(std::ifstream(from + "tokenizer.json"));
  file["post_processor"] = nullptr;
  Write("tokenizer.json", file.dump());
  const auto ask = [&](EngineKind engine, const Json& more) {
    Json config = {{"tokenizer_class", "LlamaTokenizerFast"}, {"bos_token", "<|begin|>"}};
    config.update(more);
    Write("tokenizer_config.json", config.dump());
    const auto registry = Registry(absl::StrCat("m=", folder_));
    LocalTokenizer tokenizer(registry.get(), {});
    const auto answer =
        Ask(tokenizer, "m",
            BodyPrompt{.path = RequestPath::kCompletions,
                       .body = std::make_shared<const std::string>(R"({"prompt": "Hello"})"),
                       .convention = {.engine = engine}});
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer->tokens;
  };
  const std::vector<TokenId> plain = ask(EngineKind::kVllm, Json::object());
  std::vector<TokenId> with_bos = plain;
  with_bos.insert(with_bos.begin(), file["added_tokens"][0]["id"].get<TokenId>());
  EXPECT_EQ(ask(EngineKind::kSglang, Json::object()), with_bos);
  EXPECT_EQ(ask(EngineKind::kSglang, {{"add_bos_token", false}}), plain);
  EXPECT_EQ(ask(EngineKind::kSglang, {{"tokenizer_class", "PreTrainedTokenizerFast"}}), plain);
}

TEST_F(FilesTest, AModelWithoutFilesIsNamed) {
  const auto registry = ModelRegistry::Create(*ParseModels(absl::StrCat("empty=", folder_)));
  EXPECT_EQ(registry.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(registry.status().message()),
              AllOf(HasSubstr("empty"), HasSubstr("tokenizer.json")));

  Write("tokenizer.json", "{}");
  const auto broken = ModelRegistry::Create(*ParseModels(absl::StrCat("broken=", folder_)));
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(broken.status().message()), HasSubstr("tokenizer.json"));
}

TEST_F(FilesTest, AReloadTakesNewFilesAndKeepsAModelThatNowFails) {
  std::filesystem::copy("frontend/prompt/text/testdata/bytes", folder_,
                        std::filesystem::copy_options::recursive);
  const auto registry = Registry(absl::StrCat("m=", folder_, ",alias=m"));
  const auto before = *registry->Find("m");
  ASSERT_TRUE(registry->Reload().ok());
  EXPECT_EQ(*registry->Find("m"), before);

  Write("new.jinja", "new");
  std::filesystem::rename(absl::StrCat(folder_, "/new.jinja"),
                          absl::StrCat(folder_, "/chat_template.jinja"));
  ASSERT_TRUE(registry->Reload().ok());
  EXPECT_NE((*registry->Find("m"))->facts().template_hash, before->facts().template_hash);
  EXPECT_EQ((*registry->Find("m"))->facts().tokenizer_hash, before->facts().tokenizer_hash);
  EXPECT_EQ(*(*registry->Find("alias"))->Render(Chat({{{"role", "user"}}})), "new");

  Write("broken.json", "{");
  std::filesystem::rename(absl::StrCat(folder_, "/broken.json"),
                          absl::StrCat(folder_, "/tokenizer.json"));
  const absl::Status reloaded = registry->Reload();
  EXPECT_THAT(std::string(reloaded.message()), HasSubstr("model m"));
  EXPECT_TRUE((*registry->Find("m"))->Tokenize(TextPrompt{.text = "Hi"}).ok());
}

// What lies beside the tokenizer and decides how requests are read, though not on ids.
TEST_F(FilesTest, AReloadTakesTheContextsLengthAndFilesOfMistral) {
  std::filesystem::copy("frontend/prompt/text/testdata/bytes", folder_,
                        std::filesystem::copy_options::recursive);
  const auto registry = Registry(absl::StrCat("m=", folder_));
  const auto ask = [&] {
    return (*registry->Find("m"))
        ->Tokenize(BodyPrompt{
            .path = RequestPath::kCompletions,
            .body = std::make_shared<const std::string>(
                Json({{"prompt", std::vector<int>(50, 1)}, {"truncate_prompt_tokens", -1}}).dump()),
            .convention = {.engine = EngineKind::kVllm}});
  };
  EXPECT_EQ(ask().status().code(), absl::StatusCode::kUnimplemented) << "no length is known";
  for (const size_t length : {20, 30}) {
    Write("config.json", Json({{"max_position_embeddings", length}}).dump());
    ASSERT_TRUE(registry->Reload().ok());
    const auto made = ask();
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->tokens.size(), length - 1) << "one is left for the output";
  }
  const auto before = *registry->Find("m");
  ASSERT_TRUE(registry->Reload().ok());
  EXPECT_EQ(*registry->Find("m"), before) << "nothing changed";

  BodyPrompt chat = Chat({{{"role", "user"}, {"content", "Hi"}}});
  chat.convention.engine = EngineKind::kVllm;
  ASSERT_TRUE((*registry->Find("m"))->Tokenize(chat).ok());
  Write("tekken.json", "{}");
  ASSERT_TRUE(registry->Reload().ok());
  EXPECT_THAT(std::string((*registry->Find("m"))->Tokenize(chat).status().message()),
              HasSubstr("mistral_common"));
}

}  // namespace
}  // namespace kvatlas
