#include "indexer/compat/dynamo/http_json_reader.h"
#include "indexer/base/test_seed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <simdjson.h>

#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "indexer/compat/dynamo/http_bodies.h"
#include "indexer/compat/dynamo/http_json_words.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// The text with which a query's body is refused; "" if it is not.
std::string Refusal(const std::string& body, bool by_hash = false) {
  JsonReader reader(body);
  QueriesBody queries;
  if (queries.Read(by_hash, &reader)) return "";
  const JsonError error = reader.error();
  return (error.syntax ? "400 " : "422 ") + error.text;
}

TEST(JsonReaderTest, ReadsAQuery) {
  const std::string body =
      R"( {"surprise":[{"a":[1,"\u00e9",null]},true],"token_ids":[ 1 , 2,4294967295 ,0],
          "model_name":"a\"b\u20ac\ud83d\ude00","lora_name":null,"cache_salt":"s"} trailing)";
  JsonReader reader(body);
  QueriesBody queries;
  ASSERT_TRUE(queries.Read(false, &reader)) << reader.error().text;
  ASSERT_EQ(queries.count, 1u);
  const QueryBody& query = queries.queries[0];
  EXPECT_THAT(query.tokens, ElementsAre(1, 2, 4294967295, 0));
  EXPECT_EQ(query.model, "a\"b€😀");
  EXPECT_EQ(query.group, "default");
  EXPECT_EQ(query.lora_name, std::nullopt);
  EXPECT_EQ(query.cache_salt, "s");
}

TEST(JsonReaderTest, ReadsHashesAsSignedNumbers) {
  const std::string body =
      R"({"block_hashes":[9223372036854775807,-9223372036854775808,-1,0,1088361764653601668,12345678,123456789,1234567890123456],"model_name":"m"})";
  JsonReader reader(body);
  QueriesBody queries;
  ASSERT_TRUE(queries.Read(true, &reader)) << reader.error().text;
  EXPECT_THAT(queries.queries[0].hashes,
              ElementsAre(std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(),
                          -1, 0, 1088361764653601668, 12345678, 123456789, 1234567890123456));
}

TEST(JsonReaderTest, BatchOfQueriesNeedsNothingBesideIt) {
  const std::string body =
      R"({"queries":[{"token_ids":[1],"model_name":"a"},{"token_ids":[2],"model_name":"b","routing_group":"g"}]})";
  JsonReader reader(body);
  QueriesBody queries;
  ASSERT_TRUE(queries.Read(false, &reader)) << reader.error().text;
  EXPECT_TRUE(queries.batch);
  ASSERT_EQ(queries.count, 3u);  // the first is the frame's
  EXPECT_THAT(queries.queries[2].tokens, ElementsAre(2));
  EXPECT_EQ(queries.queries[2].group, "g");
  EXPECT_EQ(Refusal(R"({"queries":[{"token_ids":[1],"model_name":"a"},{"token_ids":[1,-2]}]})"),
            "422 queries[1].token_ids[1]: invalid value: integer `-2`, expected u32 at line 1 "
            "column 65");
}

// The same words and positions as Dynamo's indexer, whatever the shape of the mistake.
TEST(JsonReaderTest, SyntaxErrorsAreNamedWhereTheyAre) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "EOF while parsing a value at line 1 column 0"},
      {"  ", "EOF while parsing a value at line 1 column 2"},
      {"{", "EOF while parsing an object at line 1 column 1"},
      {"x", "expected value at line 1 column 1"},
      {"nul", "EOF while parsing a value at line 1 column 3"},
      {"nulx", "expected ident at line 1 column 4"},
      {"{1:2}", "key must be a string at line 1 column 2"},
      {R"({"a" 1})", "a: expected `:` at line 1 column 6"},
      {R"({"a":1,})", "trailing comma at line 1 column 8"},
      {R"({"a":1 "b":2})", "expected `,` or `}` at line 1 column 8"},
      {R"({"a":1,)", "EOF while parsing a value at line 1 column 7"},
      {R"({"a)", "EOF while parsing a string at line 1 column 3"},
      {R"({"token_ids":[1,2)", "token_ids[2]: EOF while parsing a list at line 1 column 17"},
      {R"({"token_ids":[1,)", "token_ids[1]: EOF while parsing a value at line 1 column 16"},
      {R"({"token_ids":[1,]})", "token_ids[1]: trailing comma at line 1 column 17"},
      {R"({"token_ids":[1 2]})", "token_ids[1]: expected `,` or `]` at line 1 column 17"},
      {R"({"token_ids":[01]})", "token_ids[0]: invalid number at line 1 column 16"},
      {R"({"token_ids":[-]})", "token_ids[0]: invalid number at line 1 column 16"},
      {R"({"token_ids":[1.]})", "token_ids[0]: invalid number at line 1 column 17"},
      {R"({"token_ids":[1e999]})", "token_ids[0]: number out of range at line 1 column 19"},
      {absl::StrCat(R"({"token_ids":[)", std::string(400, '1'), "e-5]}"),
       "token_ids[0]: number out of range at line 1 column 417"},
      {absl::StrCat(R"({"token_ids":[-)", std::string(400, '1'), ".5e-5]}"),
       "token_ids[0]: number out of range at line 1 column 420"},
      {R"({"a":[1,{"b":2])", "a: expected `,` or `}` at line 1 column 15"},
      {R"({"model_name":"\x"})", "model_name: invalid escape at line 1 column 17"},
      {R"({"model_name":"\ud800"})",
       "model_name: unexpected end of hex escape at line 1 column 22"},
      {"{\"model_name\":\"a\nb\"}",
       "model_name: control character (\\u0000-\\u001F) found while parsing a string at line 2 "
       "column 0"},
      {"{\n \"model_name\":\"\xff\"}",
       "model_name: invalid unicode code point at line 2 column 17"},
  };
  for (const auto& [body, words] : cases) EXPECT_EQ(Refusal(body), "400 " + words) << body;
}

TEST(JsonReaderTest, WrongShapesAreNamedWhereTheyAre) {
  const std::pair<std::string, std::string> cases[] = {
      {"7", "invalid type: integer `7`, expected struct QueryRequest at line 1 column 1"},
      {"true", "invalid type: boolean `true`, expected struct QueryRequest at line 1 column 4"},
      {R"({"token_ids":{}})",
       "token_ids: invalid type: map, expected a sequence at line 1 column 13"},
      {R"({"token_ids":[[1]]})",
       "token_ids[0]: invalid type: sequence, expected u32 at line 1 column 14"},
      {R"({"token_ids":[1],"model_name":["m"]})",
       "model_name: invalid type: sequence, expected a string at line 1 column 30"},
      {R"({"token_ids":[-0]})",
       "token_ids[0]: invalid type: floating point `-0.0`, expected u32 at line 1 column 16"},
      {R"({"token_ids":[1e2]})",
       "token_ids[0]: invalid type: floating point `100.0`, expected u32 at line 1 column 17"},
      {R"({"token_ids":["a\n\"b"]})",
       "token_ids[0]: invalid type: string \"a\\n\\\"b\", expected u32 at line 1 column 22"},
      {R"({"token_ids":[1],"model_name":"m","lora_name":7})",
       "lora_name: invalid type: integer `7`, expected a string at line 1 column 47"},
      {"{\"token_ids\":[1],\n\"model_name\":7}",
       "model_name: invalid type: integer `7`, expected a string at line 2 column 14"},
      {R"({"model_name":"m","model_name" :"n"})",
       "duplicate field `model_name` at line 1 column 31"},
      {"{}", "missing field `token_ids` at line 1 column 2"},
  };
  for (const auto& [body, words] : cases) EXPECT_EQ(Refusal(body), "422 " + words) << body;
}

TEST(JsonReaderTest, DeepNestingIsSkippedWithoutAStack) {
  const std::string deep(1 << 20, '[');
  EXPECT_EQ(Refusal("{\"a\":" + deep + std::string(1 << 20, ']') + ",\"token_ids\":[]}"),
            "422 missing field `model_name` at line 1 column " + std::to_string((2 << 20) + 21));
  EXPECT_EQ(Refusal("{\"a\":" + deep),
            "400 a: EOF while parsing a list at line 1 column " + std::to_string((1 << 20) + 5));
}

TEST(JsonReaderTest, FloatsAreShownInShortestForm) {
  EXPECT_EQ(FloatWords(1), "1.0");
  EXPECT_EQ(FloatWords(0.5), "0.5");
  EXPECT_EQ(FloatWords(-1234.5), "-1234.5");
  EXPECT_EQ(FloatWords(1e15), "1000000000000000.0");
  EXPECT_EQ(FloatWords(1e16), "1e+16");
  EXPECT_EQ(FloatWords(0.00012), "0.00012");
  EXPECT_EQ(FloatWords(1.5e-7), "1.5e-7");
  EXPECT_EQ(FloatWords(18446744073709551616.0), "1.8446744073709552e+19");
}

// ---- Beside simdjson ----

class RandomJson {
 public:
  explicit RandomJson(uint64_t seed) : random_(seed) {}

  uint64_t Below(uint64_t bound) { return random_() % bound; }

  // An array of integers: as programs write them, with or without a blank behind each comma, or of
  // all lengths with blanks anywhere.
  std::string Array() {
    std::string text = "[";
    const uint64_t style = Below(3);
    const uint64_t bits = 1 + Below(64);
    const uint64_t count = Below(60);
    for (uint64_t i = 0; i < count; ++i) {
      if (i > 0) text += style == 0 ? "," : style == 1 ? ", " : "," + Blank();
      text += Number(style == 2 ? 1 + Below(64) : bits);
      if (style == 2 && Below(20) == 0) text += Blank();
    }
    return text + "]";
  }

  // One byte becomes another, goes, or comes.
  void Damage(std::string* text) {
    constexpr std::string_view kBytes = "0123456789,,[]{}\"-.eE +tfnu\\\n\xff";
    const size_t at = Below(text->size());
    const char byte = kBytes[Below(kBytes.size())];
    switch (Below(3)) {
      case 0:
        (*text)[at] = byte;
        break;
      case 1:
        text->erase(at, 1);
        break;
      default:
        text->insert(at, 1, byte);
    }
  }

 private:
  std::string Blank() {
    constexpr const char* kBlanks[] = {"", "", "", " ", "  ", "\n", "\t \r"};
    return kBlanks[Below(7)];
  }
  std::string Number(uint64_t bits) {
    const uint64_t value = random_() >> (64 - bits);
    return (Below(4) == 0 ? "-" : "") + std::to_string(value);
  }

  std::mt19937_64 random_;
};

// Reads an array of i64 as the reader should; false: it is not one.
bool TwinReads(const std::string& text, std::vector<int64_t>* values) {
  simdjson::dom::parser parser;
  simdjson::dom::array array;
  if (parser.parse(text).get_array().get(array) != simdjson::SUCCESS) return false;
  for (const simdjson::dom::element element : array) {
    int64_t value;
    if (!element.is_int64() || element.get_int64().get(value) != simdjson::SUCCESS) return false;
    values->push_back(value);
  }
  return true;
}

TEST(JsonReaderTest, IntegersAreThoseThatSimdjsonReads) {
  const uint64_t seed = TestSeed();
  RandomJson random(seed);
  for (int round = 0; round < 50'000; ++round) {
    std::string text = random.Array();
    for (uint64_t i = random.Below(3); i > 0; --i) random.Damage(&text);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text);
    std::vector<int64_t> expected;
    const bool readable = TwinReads(text, &expected);
    JsonReader reader(text);
    std::vector<int64_t> values;
    const bool read = reader.ReadArray(&values);
    // Text behind the array is the caller's.
    if (read && reader.Peek() != '\0') continue;
    // "-0" is a number to simdjson and a float to serde.
    if (text.find("-0") != std::string::npos) continue;
    ASSERT_EQ(read, readable);
    if (read) {
      ASSERT_EQ(values, expected);
    }
  }
}

TEST(JsonReaderTest, NoBytesMakeItFail) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(SeedText(seed));
  RandomJson random(seed);
  const std::string body =
      R"({"token_ids":[1,22,333],"model_name":"m\u0041","x":{"y":[1.5e3,true,null,"\\"]},"cache_salt":null})";
  for (int round = 0; round < 20'000; ++round) {
    std::string text = body;
    for (uint64_t i = 1 + random.Below(4); i > 0; --i) random.Damage(&text);
    // On the heap, so that a sanitizer sees a byte too far.
    const std::vector<char> exact(text.begin(), text.end());
    JsonReader reader({exact.data(), exact.size()});
    QueriesBody queries;
    if (!queries.Read(false, &reader)) {
      ASSERT_THAT(reader.error().text, Not(IsEmpty()));
    }
  }
}

}  // namespace
}  // namespace kvatlas
