#include "frontend/prompt/text/rust/kvatlas_text.h"

#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kInvalidArgument = 3;

// A vocabulary of words.
constexpr std::string_view kWords = R"({
  "version": "1.0", "truncation": null, "padding": null,
  "added_tokens": [{"id": 3, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true}],
  "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
  "model": {"type": "WordLevel", "vocab": {"?": 0, "one": 1, "two": 2}, "unk_token": "?"}})";

kvatlas_text_view View(std::string_view text) { return {text.data(), text.size()}; }

kvatlas_text_sink Into(std::string& text) {
  return {&text, [](void* to, const char* data, size_t size) {
            static_cast<std::string*>(to)->append(data, size);
          }};
}

struct Made {
  kvatlas_tokenizer* tokenizer = nullptr;
  std::string error;
  int code = 0;

  explicit Made(std::string_view json, std::string_view options = "{}") {
    code = kvatlas_tokenizer_new(View(json), View(options), &tokenizer, Into(error));
  }
  ~Made() { kvatlas_tokenizer_free(tokenizer); }
};

using Pieces = std::vector<std::pair<size_t, std::vector<uint32_t>>>;

int Encode(const Made& made, std::string_view text, Pieces& pieces, std::string& error,
           size_t piece_bytes_min = 1) {
  return kvatlas_tokenizer_encode(
      made.tokenizer, View(text), /*continues=*/0, piece_bytes_min, &pieces,
      [](void* to, size_t end, const uint32_t* tokens, size_t count) {
        static_cast<Pieces*>(to)->emplace_back(end, std::vector<uint32_t>(tokens, tokens + count));
      },
      Into(error));
}

TEST(KvatlasTextTest, TokensComeInPiecesThatBeginWithAnAddedToken) {
  const Made made(kWords);
  ASSERT_EQ(made.code, 0) << made.error;
  Pieces pieces;
  std::string error;
  ASSERT_EQ(Encode(made, "one two<end>two", pieces, error), 0) << error;
  EXPECT_THAT(pieces, ElementsAre(Pieces::value_type(7, {1, 2}), Pieces::value_type(15, {3, 2})));
}

TEST(KvatlasTextTest, AnEmptyTextIsOnePieceWithoutTokens) {
  const Made made(kWords);
  Pieces pieces;
  std::string error;
  ASSERT_EQ(Encode(made, "", pieces, error), 0) << error;
  EXPECT_THAT(pieces, ElementsAre(Pieces::value_type(0, {})));
}

TEST(KvatlasTextTest, BadJsonAndTextThatIsNotUtf8AreErrorsWithText) {
  const Made bad("{\"version\": ");
  EXPECT_EQ(bad.code, kInvalidArgument);
  EXPECT_THAT(bad.error, HasSubstr("tokenizer.json"));
  EXPECT_EQ(bad.tokenizer, nullptr);

  const Made made(kWords);
  Pieces pieces;
  std::string error;
  EXPECT_EQ(Encode(made, "one \xff", pieces, error), kInvalidArgument);
  EXPECT_THAT(error, AllOf(HasSubstr("UTF-8"), HasSubstr("byte 4")));
  EXPECT_TRUE(pieces.empty());
}

TEST(KvatlasTextTest, AHandleServesManyThreads) {
  const Made made(kWords);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        Pieces pieces;
        std::string error;
        ASSERT_EQ(Encode(made, "two one<end>", pieces, error), 0) << error;
        ASSERT_THAT(pieces,
                    ElementsAre(Pieces::value_type(7, {2, 1}), Pieces::value_type(12, {3})));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Read {
  int code = 0;
  std::string text;
  std::string error;
};

// The reading of a body at `path` by `engine`, with one template.
Read ReadBody(int engine, int path, const std::string& source, const std::string& body) {
  Read read;
  kvatlas_templates* templates = nullptr;
  read.code = kvatlas_templates_new(View(source), View("{}"), &templates, Into(read.error));
  if (read.code != 0) return read;
  kvatlas_convention convention{};
  convention.engine = engine;
  convention.path = path;
  kvatlas_reading out{};
  out.to = &read.text;
  out.text = [](void* to, const char* data, size_t size, int) {
    static_cast<std::string*>(to)->append(data, size);
  };
  out.ids = [](void*, const uint32_t*, size_t) {};
  read.code = kvatlas_request_read(templates, &convention, View(body), &out, Into(read.error));
  kvatlas_templates_free(templates);
  return read;
}

// Of a newer caller, say: guessing would make other tokens than its engine's.
TEST(KvatlasTextTest, AnUnknownEngineOrPathIsRefused) {
  const std::string source = R"({"default": "x"})";
  const std::string body = R"({"messages": [], "prompt": "x", "text": "x"})";
  for (const int unknown : {-1, KVATLAS_GENERATE + 1, 1000}) {
    const Read engine = ReadBody(unknown, KVATLAS_CHAT, source, body);
    EXPECT_EQ(engine.code, kInvalidArgument) << unknown;
    EXPECT_THAT(engine.error, HasSubstr(std::to_string(unknown)));
    const Read path = ReadBody(KVATLAS_SGLANG, unknown, source, body);
    EXPECT_EQ(path.code, kInvalidArgument) << unknown;
    EXPECT_THAT(path.error, HasSubstr(std::to_string(unknown)));
  }
}

TEST(KvatlasTextTest, ATemplateRendersItsVariables) {
  const std::string source =
      R"({"default": "{% for m in messages %}\n<{{ m.role }}>{{ m['content'] }}\n{%- endfor %}"})";
  const Read read = ReadBody(KVATLAS_PLAIN, KVATLAS_CHAT, source,
                             R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(read.code, 0) << read.error;
  EXPECT_EQ(read.text, "<user>Hi");
  EXPECT_EQ(ReadBody(KVATLAS_PLAIN, KVATLAS_CHAT, source, "[1").code, kInvalidArgument);

  const Read bad = ReadBody(KVATLAS_PLAIN, KVATLAS_CHAT, R"({"default": "{% for %}"})", "{}");
  EXPECT_EQ(bad.code, kInvalidArgument);
  EXPECT_THAT(bad.error, HasSubstr("chat template"));
}

}  // namespace
