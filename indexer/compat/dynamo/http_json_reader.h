// A reader of JSON bodies. The caller says which shape it expects; no document is built, and
// refusals are worded as serde words them, since clients of Dynamo's indexer read those.
//
//   "token_ids[0]: invalid value: integer `-1`, expected u32 at line 1 column 16"
//
// *Truth*: RFC 8259, with serde_json's quirks: text after the value is ignored; of a skipped value
// strings are not checked for UTF-8, and depth is not limited (nor does it cost stack). A number
// that is no integer is no integer, also if its value is: 1.0.
// *Cost*: an array of integers costs half of what simdjson takes for it: 64 characters are looked
// at together.
// *Threads*: one at a time. *Lifetime*: the text outlives the reader.
//
// Example:
//   JsonReader reader(body);
//   std::vector<uint32_t> tokens;
//   const JsonField fields[] = {{"token_ids", true}};
//   if (!reader.ReadStruct("QueryRequest", 1, fields,
//                          [&](size_t) { return reader.ReadArray(&tokens); })) {
//     return Refuse(reader.error().syntax ? 400 : 422, reader.error().text);
//   }

#ifndef KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_JSON_READER_H_
#define KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"

namespace kvatlas {

struct JsonField {
  std::string_view name;
  bool required = false;
  std::string_view alias = {};  // another name for it; empty: none
};

struct JsonError {
  bool syntax = false;  // not JSON at all; else JSON of another shape
  std::string text;
};

class JsonReader {
 public:
  explicit JsonReader(std::string_view text)
      : begin_(text.data()), at_(text.data()), end_(text.data() + text.size()) {}

  // All of these take the next value; false: it is not what was asked for, and `error` says why.
  // After a false the reader is of no use.

  // An object with these fields, each at most once and in any order; others are skipped. `read`
  // takes the value of field `i`. `what` is "QueryRequest", `elements` the number of fields that it
  // says to have. Nothing is required if `*lenient` says so at the end. At most 32 fields.
  bool ReadStruct(std::string_view what, size_t elements, std::span<const JsonField> fields,
                  absl::FunctionRef<bool(size_t i)> read, const bool* lenient = nullptr);
  // An array; `read` takes one element after the other.
  bool ReadSequence(absl::FunctionRef<bool()> read);

  bool ReadString(std::string* value);
  bool ReadU32(uint32_t* value);
  bool ReadU64(uint64_t* value);
  bool ReadI64(int64_t* value);
  bool ReadBool(bool* value);
  // Null is nothing.
  bool ReadOptional(std::optional<std::string>* value);
  bool ReadOptional(std::optional<uint32_t>* value);

  bool ReadArray(std::vector<uint32_t>* values);
  bool ReadArray(std::vector<int64_t>* values);

  // Any value.
  bool Skip();

  // The value's first byte, blanks before it taken; 0 at the end.
  char Peek();

  // Says no to a value that was read and is of the right type, for a reason of the caller's.
  bool Refuse(std::string_view text);

  // REQUIRES: something said false.
  JsonError error() const;

 private:
  enum class Kind : uint8_t { kUnsigned, kSigned, kFloat };
  struct Number {
    Kind kind = Kind::kUnsigned;
    uint64_t u = 0;
    int64_t i = 0;
    double f = 0;
  };

  // Errors: of what was taken, or of what comes next; the latter are one column further, unless at
  // the end.
  bool Fail(bool syntax, std::string_view text, const char* at);
  bool SyntaxHere(std::string_view text) { return Fail(true, text, at_); }
  bool SyntaxNext(std::string_view text) { return Fail(true, text, at_ < end_ ? at_ + 1 : at_); }
  bool InvalidType(std::string_view expected);
  bool WrongNumber(const Number& number, bool right_type, std::string_view expected);
  bool InField(std::string_view name);
  bool AtIndex(size_t index);

  bool ReadFields(std::span<const JsonField> fields, absl::FunctionRef<bool(size_t i)> read,
                  const bool* lenient);
  bool RefuseDuplicate(std::string_view name);
  bool NextKey(bool first, bool* there);
  bool NextElement(bool first, bool* there);
  bool Colon();
  bool Word(std::string_view rest);
  bool ReadNumber(std::string_view expected, Number* number);
  bool AnyNumber(bool positive, Number* number);
  bool TakeFraction(bool skipping);
  bool Text(std::string* value);
  bool Escape(std::string* value);
  bool HexEscape(std::string* value);
  bool FourHexDigits(uint32_t* code);
  bool SkipString();
  bool SkipScalar(char first);
  bool SkipKey();

  template <typename T, typename ReadOne>
  bool ReadIntegers(std::vector<T>* values, ReadOne read_one);

  const char* const begin_;
  const char* at_;  // next byte
  const char* const end_;
  bool blank_between_ = false;  // elements of the last array that was looked at: "1, 2"
  bool syntax_ = false;
  std::string problem_;
  const char* problem_at_ = nullptr;
  std::string path_;  // to the problem, from the innermost outwards
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_JSON_READER_H_
