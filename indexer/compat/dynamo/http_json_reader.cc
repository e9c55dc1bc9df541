// A pull reader of JSON with serde_json's errors. In order: integers by SIMD, the wording of
// errors, structure (objects and arrays), numbers, text, skipping.
// Clients compare texts of refusals with those of Dynamo's indexer, so it matters at which byte
// each error is noted: `SyntaxHere` is the position behind the last byte taken, `SyntaxNext` counts
// the offending byte too, unless the text has ended. The transcripts that tests replay fix all of
// this.
// `at_` only moves forward. After a false nothing may be read any more, but the path of the error
// is still completed by the callers on the way out (`InField`, `AtIndex`).

#include "indexer/compat/dynamo/http_json_reader.h"

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <system_error>

#include "absl/strings/charconv.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/utf8.h"
#include "indexer/compat/dynamo/http_json_words.h"

namespace kvatlas {
namespace {

// serde_json's texts.
constexpr std::string_view kEndInValue = "EOF while parsing a value";
constexpr std::string_view kEndInList = "EOF while parsing a list";
constexpr std::string_view kEndInObject = "EOF while parsing an object";
constexpr std::string_view kEndInString = "EOF while parsing a string";
constexpr std::string_view kValueExpected = "expected value";
constexpr std::string_view kInvalidNumber = "invalid number";
constexpr std::string_view kInvalidEscape = "invalid escape";
constexpr std::string_view kControlCharacter =
    "control character (\\u0000-\\u001F) found while parsing a string";
constexpr std::string_view kLoneSurrogate = "lone leading surrogate in hex escape";
constexpr std::string_view kUnexpectedEndOfEscape = "unexpected end of hex escape";

bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string Backquoted(std::string_view before, std::string_view text) {
  return absl::StrCat(absl::string_view(before.data(), before.size()), "`",
                      absl::string_view(text.data(), text.size()), "`");
}

// REQUIRES: a Unicode scalar value; surrogates were joined or refused before.
void AppendUtf8(uint32_t code, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

// ---- Integers at speed ----

#if defined(__SSE4_1__)

// A window of 64 characters has one bit per character in each mask. Windows lie within the text, so
// nothing is read beyond its end; before it, `LastDigits` loads up to 16 bytes that end with the
// number, hence `kReachBack`.
constexpr size_t kWindow = 64;
constexpr ptrdiff_t kReachBack = 16;  // `LastDigits` reads so much before a number's end
constexpr uint64_t kDigitsMax = 19;   // so many digits always fit in 64 bits

__m128i Load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }

// Which of 64 characters are digits, commas, minus signs and blanks: bit i is character i.
struct Window {
  uint64_t digits = 0;
  uint64_t commas = 0;
  uint64_t minuses = 0;
  uint64_t blanks = 0;

  explicit Window(const char* text) {
    for (size_t i = 0; i < kWindow; i += 16) {
      const __m128i bytes = Load(text + i);
      const auto mask = [i](__m128i equal) {
        return uint64_t{static_cast<uint32_t>(_mm_movemask_epi8(equal))} << i;
      };
      const __m128i digit = _mm_sub_epi8(bytes, _mm_set1_epi8('0'));
      // Unsigned min(x, 9) == x holds for 0 to 9 alone: SSE has no unsigned comparison of bytes.
      digits |= mask(_mm_cmpeq_epi8(_mm_min_epu8(digit, _mm_set1_epi8(9)), digit));
      commas |= mask(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(',')));
      minuses |= mask(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('-')));
      blanks |= mask(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(' ')));
    }
  }
};

// The number whose `count` digits, at most 16, end before `end`. Loads 16 bytes, zeroes those
// before the number by a mask that slides over `kKeep`, and joins neighbours to pairs, fours and
// eights with multiply-add: 10 and 1, 100 and 1, 10,000 and 1. `end` - 16 must be readable.
inline uint64_t LastDigits(const char* end, size_t count) {
  alignas(16) static constexpr uint8_t kKeep[32] = {0,    0,    0,    0,    0,    0,    0,    0,
                                                    0,    0,    0,    0,    0,    0,    0,    0,
                                                    0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                                    0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
  const __m128i digits =
      _mm_and_si128(_mm_sub_epi8(Load(end - 16), _mm_set1_epi8('0')), Load(kKeep + count));
  const __m128i pairs = _mm_maddubs_epi16(
      digits, _mm_setr_epi8(10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1, 10, 1));
  const __m128i fours = _mm_madd_epi16(pairs, _mm_setr_epi16(100, 1, 100, 1, 100, 1, 100, 1));
  const __m128i eights = _mm_madd_epi16(_mm_packus_epi32(fours, fours),
                                        _mm_setr_epi16(10000, 1, 10000, 1, 10000, 1, 10000, 1));
  const auto both = static_cast<uint64_t>(_mm_cvtsi128_si64(eights));
  return (both & 0xFFFFFFFF) * 100'000'000 + (both >> 32);
}

// Up to `kDigitsMax` digits: the last 16, and those before them.
inline uint64_t DigitsOf(const char* from, size_t count) {
  if (count <= 16) return LastDigits(from + count, count);
  const size_t high = count - 16;
  return LastDigits(from + high, high) * 10'000'000'000'000'000 + LastDigits(from + count, 16);
}

// Whether the number is one of the type. What does not fit is left to the careful lane, which words
// the error.
inline bool Fits(bool negative, uint64_t magnitude, uint32_t* value) {
  *value = static_cast<uint32_t>(magnitude);
  return !negative && magnitude <= std::numeric_limits<uint32_t>::max();
}

inline bool Fits(bool negative, uint64_t magnitude, int64_t* value) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  // Two's complement without a branch: -m is ~m + 1.
  *value = static_cast<int64_t>((magnitude ^ (0 - uint64_t{negative})) + negative);
  // "-0" is a floating point number to serde.
  return magnitude <= kMax + negative && magnitude >= uint64_t{negative};
}

// Takes the integers of the window at `at`, each followed by a comma, by a blank if `kStep` is 2,
// and by a further element; returns how many characters they were. `at` is the first character of
// an element.
// 1. `starts`: places where an element may begin: `kStep` behind a comma, and the window's first.
//    `between`: places of the blank behind commas.
// 2. `right`: characters that are what they should be at their place: digits and commas, a minus at
// a start, a blank between. The first wrong one ends the window (`limit`), so all before it are
// digits, signs and separators at places that they may have.
// 3. Only commas with a whole step inside the limit count: the last number of a window may go on in
//    the next one.
// 4. Each number between commas: no digits, too many digits, a leading zero or a value that does
//    not fit stops here, before that number.
template <size_t kStep, typename T>
size_t TakeWindow(const char* at, std::vector<T>* values) {
  const Window window(at);
  const uint64_t starts = window.commas << kStep | 1;
  const uint64_t between = kStep == 2 ? window.commas << 1 : 0;
  const uint64_t right = (window.digits & ~between) | (window.commas & ~between) |
                         (window.minuses & starts & ~between) | (window.blanks & between);
  const size_t limit =
      static_cast<size_t>(right == ~uint64_t{0} ? kWindow : std::countr_one(right));
  if (limit <= kStep) return 0;
  size_t from = 0;
  for (uint64_t commas = window.commas & (~uint64_t{0} >> (kWindow - (limit - kStep))); commas != 0;
       commas &= commas - 1) {
    const auto to = static_cast<size_t>(std::countr_zero(commas));
    const bool negative = window.minuses >> from & 1;
    const char* const digits = at + from + negative;
    const size_t count = to - from - negative;
    // One unsigned comparison refuses 0 and more than `kDigitsMax`.
    if (count - 1 > kDigitsMax - 1 || (*digits == '0' && count > 1)) break;
    T value;
    if (!Fits(negative, DigitsOf(digits, count), &value)) break;
    values->push_back(value);
    from = to + kStep;
  }
  return from;
}

// Takes windows as long as they have something to take; returns the first character not taken,
// which begins an element. The first 16 bytes of the text are left to the careful lane
// (`kReachBack`), and so is its last window.
template <size_t kStep, typename T>
const char* TakeIntegers(const char* begin, const char* at, const char* end,
                         std::vector<T>* values) {
  if (at - begin < kReachBack) return at;
  while (end - at >= static_cast<ptrdiff_t>(kWindow)) {
    const size_t taken = TakeWindow<kStep>(at, values);
    if (taken == 0) break;
    at += taken;
  }
  return at;
}

#else

template <size_t kStep, typename T>
const char* TakeIntegers(const char*, const char* at, const char*, std::vector<T>*) {
  return at;
}

#endif

}  // namespace

// ---- What went wrong ----

// Notes an error; the last one wins. Always false, to be returned.
bool JsonReader::Fail(bool syntax, std::string_view text, const char* at) {
  syntax_ = syntax;
  problem_ = text;
  problem_at_ = at;
  return false;
}

bool JsonReader::Refuse(std::string_view text) { return Fail(false, text, at_); }

// Line and column are counted only here, since errors are rare. Columns are bytes, as serde_json's.
JsonError JsonReader::error() const {
  const std::string_view before(begin_, static_cast<size_t>(problem_at_ - begin_));
  const size_t newline = before.rfind('\n');
  const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
  const auto line = 1 + std::count(before.begin(), before.begin() + ptrdiff_t(line_start), '\n');
  return {.syntax = syntax_,
          .text = absl::StrCat(path_, path_.empty() ? "" : ": ", problem_, " at line ", line,
                               " column ", before.size() - line_start)};
}

// Puts a field in front of the path of the error. Called by each level on the way out, so the path
// grows from the innermost outwards. Always false.
bool JsonReader::InField(std::string_view name) {
  std::string path(name);
  if (!path_.empty() && path_[0] != '[') path += '.';
  path_ = path + path_;
  return false;
}

bool JsonReader::AtIndex(size_t index) {
  std::string path = absl::StrCat("[", index, "]");
  if (!path_.empty() && path_[0] != '[') path += '.';
  path_ = path + path_;
  return false;
}

// serde says "invalid type" of another kind of number, and "invalid value" of one of the right kind
// beyond the range.
bool JsonReader::WrongNumber(const Number& number, bool right_type, std::string_view expected) {
  const std::string value = number.kind == Kind::kUnsigned ? std::to_string(number.u)
                            : number.kind == Kind::kSigned ? std::to_string(number.i)
                                                           : FloatWords(number.f);
  const std::string words =
      Backquoted(number.kind == Kind::kFloat ? "floating point " : "integer ", value);
  return Refuse(absl::StrCat(right_type ? "invalid value: " : "invalid type: ", words,
                             ", expected ", absl::string_view(expected.data(), expected.size())));
}

// Says what the next value is, which is not what was expected. Scalars are taken first, since serde
// notes the position behind them; of a list or an object not even the bracket is taken. A syntax
// error within the value is the error instead.
bool JsonReader::InvalidType(std::string_view expected) {
  std::string words;
  const char first = Peek();
  if (at_ == end_) return SyntaxNext(kEndInValue);
  if (first == '-' || IsDigit(first)) {
    Number number;
    at_ += first == '-';
    if (!AnyNumber(first != '-', &number)) return false;
    return WrongNumber(number, /*right_type=*/false, expected);
  }
  switch (first) {
    case '"':
      if (!Text(&words)) return false;
      words = "string " + QuotedWords(words);
      break;
    case '[':
      words = "sequence";
      break;
    case '{':
      words = "map";
      break;
    case 'n':
      words = "null";
      break;
    case 't':
      words = "boolean `true`";
      break;
    case 'f':
      words = "boolean `false`";
      break;
    default:
      return SyntaxNext(kValueExpected);
  }
  if ((first == 'n' || first == 't' || first == 'f') && !SkipScalar(first)) return false;
  return Refuse(absl::StrCat("invalid type: ", words, ", expected ",
                             absl::string_view(expected.data(), expected.size())));
}

// ---- Structure ----

char JsonReader::Peek() {
  while (at_ < end_ && IsBlank(*at_)) ++at_;
  return at_ < end_ ? *at_ : '\0';
}

// serde also reads a struct from an array. None of our structs is sent so; an array is refused by
// its length, after all of it was skipped.
bool JsonReader::ReadStruct(std::string_view what, size_t elements,
                            std::span<const JsonField> fields,
                            absl::FunctionRef<bool(size_t i)> read, const bool* lenient) {
  const absl::string_view name(what.data(), what.size());
  switch (Peek()) {
    case '{':
      ++at_;
      return ReadFields(fields, read, lenient);
    case '[': {
      size_t length = 0;
      if (!ReadSequence([&] { return ++length, Skip(); })) return false;
      return Refuse(absl::StrCat("invalid length ", length, ", expected struct ", name, " with ",
                                 elements, elements == 1 ? " element" : " elements"));
    }
    default:
      return InvalidType(absl::StrCat("struct ", name));
  }
}

// Behind the '{'. Fields are looked for linearly: there are few, and `seen` has a bit for each (at
// most 32). Unknown keys are skipped whole. Missing fields are looked for at the end, in the order
// of `fields`, unless `lenient` says by then that nothing is required.
bool JsonReader::ReadFields(std::span<const JsonField> fields,
                            absl::FunctionRef<bool(size_t i)> read, const bool* lenient) {
  uint32_t seen = 0;
  std::string key;
  for (bool first = true, there = true;; first = false) {
    if (!NextKey(first, &there)) return false;
    if (!there) break;
    key.clear();
    if (!Text(&key)) return false;
    size_t i = 0;
    while (i < fields.size() && fields[i].name != key &&
           (fields[i].alias.empty() || fields[i].alias != key)) {
      ++i;
    }
    if (i == fields.size()) {
      if (!Colon() || !Skip()) return InField(key);
      continue;
    }
    if (seen >> i & 1) return RefuseDuplicate(fields[i].name);
    seen |= 1u << i;
    if (!Colon() || !read(i)) return InField(key);
  }
  ++at_;  // '}'
  if (lenient != nullptr && *lenient) return true;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].required && !(seen >> i & 1)) {
      return Refuse(Backquoted("missing field ", fields[i].name));
    }
  }
  return true;
}

// serde looks for the object's end before it notes the position: a '}' that follows directly is
// counted.
bool JsonReader::RefuseDuplicate(std::string_view name) {
  if (Peek() == '}') ++at_;
  return Refuse(Backquoted("duplicate field ", name));
}

// Before a key or the end: takes blanks and the comma. `there`: false at '}', which is left. Each
// wrong byte has an error of its own.
bool JsonReader::NextKey(bool first, bool* there) {
  const char next = Peek();
  if (at_ == end_) return SyntaxNext(kEndInObject);
  *there = next != '}';
  if (!*there) return true;
  if (first) return next == '"' || SyntaxNext("key must be a string");
  if (next != ',') return SyntaxNext("expected `,` or `}`");
  ++at_;
  const char key = Peek();
  if (at_ == end_) return SyntaxNext(kEndInValue);
  if (key == '}') return SyntaxNext("trailing comma");
  return key == '"' || SyntaxNext("key must be a string");
}

bool JsonReader::Colon() {
  const char next = Peek();
  if (at_ == end_) return SyntaxNext(kEndInObject);
  if (next != ':') return SyntaxNext("expected `:`");
  ++at_;
  return true;
}

bool JsonReader::ReadSequence(absl::FunctionRef<bool()> read) {
  if (Peek() != '[') return InvalidType("a sequence");
  ++at_;
  bool there = true;
  for (size_t i = 0;; ++i) {
    if (!NextElement(i == 0, &there)) return AtIndex(i);
    if (!there) break;
    if (!read()) return AtIndex(i);
  }
  ++at_;  // ']'
  return true;
}

// The same between elements of an array; false in `there` at ']', which is left.
bool JsonReader::NextElement(bool first, bool* there) {
  const char next = Peek();
  if (at_ == end_) return SyntaxNext(kEndInList);
  *there = next != ']';
  if (!*there || first) return true;
  if (next != ',') return SyntaxNext("expected `,` or `]`");
  ++at_;
  const char element = Peek();
  if (at_ == end_) return SyntaxNext(kEndInValue);
  return element != ']' || SyntaxNext("trailing comma");
}

// ---- Numbers ----

bool JsonReader::ReadNumber(std::string_view expected, Number* number) {
  const char first = Peek();
  if (first != '-' && !IsDigit(first)) return InvalidType(expected);
  at_ += first == '-';
  return AnyNumber(first != '-', number);
}

// From the first digit on; the sign was taken. An integer that fits 64 bits stays one: unsigned, or
// signed where it is negative. "-0", integers that do not fit, and all with a fraction or exponent
// are floating point, as in serde_json. A magnitude beyond double is an error; one below it becomes
// 0.
bool JsonReader::AnyNumber(bool positive, Number* number) {
  const char* const from = at_;
  if (at_ == end_) return SyntaxHere(kEndInValue);
  if (!IsDigit(*at_++)) return SyntaxHere(kInvalidNumber);
  if (*from == '0' && at_ < end_ && IsDigit(*at_)) return SyntaxNext(kInvalidNumber);
  while (at_ < end_ && IsDigit(*at_)) ++at_;
  const std::from_chars_result whole = std::from_chars(from, at_, number->u);
  const bool fraction = at_ < end_ && (*at_ == '.' || *at_ == 'e' || *at_ == 'E');
  constexpr uint64_t kLowest = uint64_t{1} << 63;
  if (!fraction && whole.ec == std::errc()) {
    number->kind = positive ? Kind::kUnsigned : Kind::kSigned;
    number->i = static_cast<int64_t>(0 - number->u);
    if (positive || (number->u != 0 && number->u <= kLowest)) return true;
  }
  if (fraction && !TakeFraction(/*skipping=*/false)) return false;
  number->kind = Kind::kFloat;
  const std::from_chars_result result = std::from_chars(from, at_, number->f);
  if (result.ec == std::errc::result_out_of_range) {
    // Out of range either way. Abseil's twin, other than the standard one, says which: the largest
    // number, or 0. A negative exponent says nothing: enough digits come before it.
    absl::from_chars(from, at_, number->f);
    if (number->f > 1) return SyntaxHere("number out of range");
    number->f = 0;
  }
  if (!positive) number->f = -number->f;
  return true;
}

// At '.' or an exponent. The end of the text within a skipped number has another error in
// serde_json (`skipping`).
bool JsonReader::TakeFraction(bool skipping) {
  if (*at_ == '.') {
    ++at_;
    if (at_ == end_ || !IsDigit(*at_)) {
      return SyntaxNext(at_ == end_ && !skipping ? kEndInValue : kInvalidNumber);
    }
    while (at_ < end_ && IsDigit(*at_)) ++at_;
  }
  if (at_ == end_ || (*at_ != 'e' && *at_ != 'E')) return true;
  ++at_;
  if (at_ < end_ && (*at_ == '+' || *at_ == '-')) ++at_;
  if (at_ == end_) return SyntaxHere(skipping ? kInvalidNumber : kEndInValue);
  if (!IsDigit(*at_++)) return SyntaxHere(kInvalidNumber);
  while (at_ < end_ && IsDigit(*at_)) ++at_;
  return true;
}

bool JsonReader::ReadU32(uint32_t* value) {
  Number number;
  if (!ReadNumber("u32", &number)) return false;
  if (number.kind == Kind::kFloat) return WrongNumber(number, false, "u32");
  if (number.kind == Kind::kSigned || number.u > std::numeric_limits<uint32_t>::max()) {
    return WrongNumber(number, true, "u32");
  }
  *value = static_cast<uint32_t>(number.u);
  return true;
}

bool JsonReader::ReadU64(uint64_t* value) {
  Number number;
  if (!ReadNumber("u64", &number)) return false;
  if (number.kind != Kind::kUnsigned)
    return WrongNumber(number, number.kind == Kind::kSigned, "u64");
  *value = number.u;
  return true;
}

bool JsonReader::ReadI64(int64_t* value) {
  Number number;
  if (!ReadNumber("i64", &number)) return false;
  if (number.kind == Kind::kFloat) return WrongNumber(number, false, "i64");
  if (number.kind == Kind::kUnsigned) {
    if (number.u > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return WrongNumber(number, true, "i64");
    }
    number.i = static_cast<int64_t>(number.u);
  }
  *value = number.i;
  return true;
}

// Two lanes. `TakeIntegers` takes windows of well-formed integers; one element at a time is read by
// `read_one`, which takes what the fast lane left and words what is wrong. After each such element
// the fast lane is tried again, with or without a blank between elements, as it was behind the last
// one (`blank_between_`, which is kept for the next array).
template <typename T, typename ReadOne>
bool JsonReader::ReadIntegers(std::vector<T>* values, ReadOne read_one) {
  values->clear();
  if (Peek() != '[') return InvalidType("a sequence");
  ++at_;
  const char first = Peek();
  if (at_ == end_) return SyntaxNext(kEndInList), AtIndex(0);
  if (first == ']') {
    ++at_;
    return true;
  }
  bool there = true;
  while (there) {
    T value;
    at_ = blank_between_ ? TakeIntegers<2>(begin_, at_, end_, values)
                         : TakeIntegers<1>(begin_, at_, end_, values);
    if (!read_one(&value)) return AtIndex(values->size());
    values->push_back(value);
    const char* const comma = at_;
    if (!NextElement(/*first=*/false, &there)) return AtIndex(values->size());
    blank_between_ = at_ - comma == 2;
  }
  ++at_;  // ']'
  return true;
}

bool JsonReader::ReadArray(std::vector<uint32_t>* values) {
  return ReadIntegers(values, [this](uint32_t* value) { return ReadU32(value); });
}

bool JsonReader::ReadArray(std::vector<int64_t>* values) {
  return ReadIntegers(values, [this](int64_t* value) { return ReadI64(value); });
}

bool JsonReader::ReadBool(bool* value) {
  const char first = Peek();
  if (first != 't' && first != 'f') return InvalidType("a boolean");
  *value = first == 't';
  return SkipScalar(first);
}

bool JsonReader::ReadOptional(std::optional<uint32_t>* value) {
  if (Peek() == 'n') {
    value->reset();
    return SkipScalar('n');
  }
  return ReadU32(&value->emplace());
}

// ---- Text ----

bool JsonReader::ReadString(std::string* value) {
  if (Peek() != '"') return InvalidType("a string");
  value->clear();
  return Text(value);
}

bool JsonReader::ReadOptional(std::optional<std::string>* value) {
  if (Peek() == 'n') {
    value->reset();
    return SkipScalar('n');
  }
  return ReadString(&value->emplace());
}

// From the opening quote on; appends to `value`. Runs without quotes, backslashes and control
// characters are copied whole. UTF-8 is checked at the end, if a byte is beyond ASCII: escapes
// cannot make it wrong.
bool JsonReader::Text(std::string* value) {
  const size_t before = value->size();
  bool ascii = true;
  ++at_;
  while (true) {
    const char* const from = at_;
    while (at_ < end_ && *at_ != '"' && *at_ != '\\' && static_cast<uint8_t>(*at_) >= 0x20) {
      ascii &= static_cast<uint8_t>(*at_) < 0x80;
      ++at_;
    }
    value->append(from, at_);
    if (at_ == end_) return SyntaxHere(kEndInString);
    const char c = *at_++;
    if (c == '"') break;
    if (c != '\\') return SyntaxHere(kControlCharacter);
    if (!Escape(value)) return false;
  }
  if (!ascii && !IsUtf8(std::string_view(*value).substr(before))) {
    return SyntaxHere("invalid unicode code point");
  }
  return true;
}

// Behind the backslash.
bool JsonReader::Escape(std::string* value) {
  if (at_ == end_) return SyntaxHere(kEndInString);
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const char letter = *at_++;
  if (letter == 'u') return HexEscape(value);
  const size_t which = kLetters.find(letter);
  if (which == std::string_view::npos) return SyntaxHere(kInvalidEscape);
  value->push_back(kMeanings[which]);
  return true;
}

// Too few bytes: the error stands at the end of the text, as serde_json has it.
bool JsonReader::FourHexDigits(uint32_t* code) {
  if (end_ - at_ < 4) {
    at_ = end_;
    return SyntaxHere(kEndInString);
  }
  const char* const from = at_;
  at_ += 4;
  *code = 0;
  const std::from_chars_result result = std::from_chars(from, at_, *code, 16);
  if (result.ec != std::errc() || result.ptr != at_) return SyntaxHere(kInvalidEscape);
  return true;
}

// Behind "\u": one code, or a pair of surrogates. serde_json calls a lone trailing surrogate a lone
// leading one too.
bool JsonReader::HexEscape(std::string* value) {
  uint32_t code;
  if (!FourHexDigits(&code)) return false;
  if (code >= 0xDC00 && code <= 0xDFFF) return SyntaxHere(kLoneSurrogate);
  if (code >= 0xD800 && code <= 0xDBFF) {
    for (const char expected : {'\\', 'u'}) {
      if (at_ == end_) return SyntaxHere(kEndInString);
      if (*at_++ != expected) return SyntaxHere(kUnexpectedEndOfEscape);
    }
    uint32_t low;
    if (!FourHexDigits(&low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return SyntaxHere(kLoneSurrogate);
    code = 0x10000 + ((code - 0xD800) << 10 | (low - 0xDC00));
  }
  AppendUtf8(code, value);
  return true;
}

// ---- Skipping ----

// The rest of null, true or false; the first letter was taken.
bool JsonReader::Word(std::string_view rest) {
  for (const char expected : rest) {
    if (at_ == end_) return SyntaxHere(kEndInValue);
    if (*at_++ != expected) return SyntaxHere("expected ident");
  }
  return true;
}

// From the opening quote on. As serde_json does for ignored values, surrogates and UTF-8 are not
// checked.
bool JsonReader::SkipString() {
  ++at_;
  while (true) {
    while (at_ < end_ && *at_ != '"' && *at_ != '\\' && static_cast<uint8_t>(*at_) >= 0x20) ++at_;
    if (at_ == end_) return SyntaxHere(kEndInString);
    if (*at_ == '"') return ++at_, true;
    if (*at_ != '\\') return SyntaxHere(kControlCharacter);
    if (++at_ == end_) return SyntaxHere(kEndInString);
    uint32_t code;
    if (*at_ == 'u') {
      ++at_;
      if (!FourHexDigits(&code)) return false;
    } else if (std::string ignored; !Escape(&ignored)) {
      return false;
    }
  }
}

// A string, a word or a number that begins with `first`, which is not taken yet.
bool JsonReader::SkipScalar(char first) {
  switch (first) {
    case '"':
      return SkipString();
    case 'n':
      return ++at_, Word("ull");
    case 't':
      return ++at_, Word("rue");
    case 'f':
      return ++at_, Word("alse");
    default:
      break;
  }
  if (first != '-' && !IsDigit(first)) return SyntaxNext(kValueExpected);
  at_ += first == '-';
  if (at_ == end_) return SyntaxHere(kInvalidNumber);
  const char digit = *at_++;
  if (!IsDigit(digit)) return SyntaxHere(kInvalidNumber);
  if (digit == '0' && at_ < end_ && IsDigit(*at_)) return SyntaxNext(kInvalidNumber);
  while (at_ < end_ && IsDigit(*at_)) ++at_;
  return at_ == end_ || (*at_ != '.' && *at_ != 'e' && *at_ != 'E') || TakeFraction(true);
}

bool JsonReader::SkipKey() {
  const char next = Peek();
  if (at_ == end_) return SyntaxNext(kEndInObject);
  if (next != '"') return SyntaxNext("key must be a string");
  return SkipString() && Colon();
}

// Any value, however deep, without recursion: `open` has the brackets that are open, so hostile
// nesting costs a byte a level and no stack.
// Each turn of the outer loop takes a scalar or an opening bracket; the inner one then closes what
// ends there and takes the comma, after which a key is taken if the innermost bracket is an
// object's.
bool JsonReader::Skip() {
  std::string open;
  while (true) {
    const char first = Peek();
    if (at_ == end_) return SyntaxNext(kEndInValue);
    const bool opens = first == '[' || first == '{';
    if (opens) {
      open.push_back(first);
      ++at_;
    } else if (!SkipScalar(first)) {
      return false;
    }
    // Behind a value, or behind a bracket that opened: what closes here closes.
    for (bool after_value = !opens;; after_value = true) {
      if (open.empty()) return true;
      const bool list = open.back() == '[';
      const char next = Peek();
      if (at_ == end_) return SyntaxNext(list ? kEndInList : kEndInObject);
      if (next == (list ? ']' : '}')) {
        ++at_;
        open.pop_back();
        continue;
      }
      if (!after_value) break;
      if (next != ',') return SyntaxNext(list ? "expected `,` or `]`" : "expected `,` or `}`");
      ++at_;
      break;
    }
    if (open.back() == '{' && !SkipKey()) return false;
  }
}

}  // namespace kvatlas
