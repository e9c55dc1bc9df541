#include "indexer/process/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "indexer/base/nearest_name.h"
#include "indexer/base/utf8.h"

// How flags are declared, and how a text becomes a value of each type. Reading command line,
// environment and file is in flags_parse.cc, help and documents in flags_help.cc and
// flags_pages.cc.
//
// A flag is its name, texts for --help, and a `Setter`: a closure that knows the type and the bound
// variable, so that everything else handles all types alike, as text.
namespace kvatlas {
namespace {

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

absl::Status Bad(std::string_view why) { return absl::InvalidArgumentError(ToAbsl(why)); }

// Abseil's parsers accept blanks around a number; a flag does not.
bool HasBlanks(std::string_view text) {
  return text.find_first_of(" \t\r\n\v\f") != std::string_view::npos;
}

bool ParseNumber(std::string_view text, double* number) {
  return absl::SimpleAtod(ToAbsl(text), number) && std::isfinite(*number);
}

// An integer with a fraction or out of the type's range is refused, not rounded.
template <std::integral Number>
bool ParseNumber(std::string_view text, Number* number) {
  return absl::SimpleAtoi(ToAbsl(text), number);
}

// Splits at commas. An empty text is an empty list; an empty element is an error.
absl::StatusOr<std::vector<std::string>> SplitList(std::string_view text) {
  if (text.empty()) return std::vector<std::string>();
  std::vector<std::string> elements = absl::StrSplit(ToAbsl(text), ',');
  if (std::find(elements.begin(), elements.end(), "") != elements.end()) {
    return Bad("has an empty element");
  }
  return elements;
}

// ---- Values as text that is read back to the same value ----

// Reload compares values in this form, and restores them from it.
std::string Show(const std::string& text) { return text; }
std::string Show(bool value) { return value ? "true" : "false"; }
std::string Show(const Address& address) { return address.ToString(); }

template <typename Number>
  requires(std::is_arithmetic_v<Number> && !std::is_same_v<Number, bool>)
std::string Show(Number number) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

std::string Show(Duration duration) {
  if (duration == Duration::max()) return "inf";
  return absl::FormatDuration(absl::FromChrono(duration));
}

template <typename Element>
std::string Show(const std::vector<Element>& elements) {
  return absl::StrJoin(
      elements, ",", [](std::string* out, const Element& element) { out->append(Show(element)); });
}

template <typename Number>
// The range for an error message; a limit that is the type's own is left out of a float's.
std::string Expected(Number min, Number max) {
  const std::string_view what = std::is_integral_v<Number> ? "an integer " : "";
  if (std::is_floating_point_v<Number> && max == std::numeric_limits<Number>::max()) {
    if (min == std::numeric_limits<Number>::lowest()) return "must be a number";
    return absl::StrCat("must be at least ", Show(min));
  }
  return absl::StrCat("must be ", ToAbsl(what), "in ", Show(min), "..", Show(max));
}

absl::StatusOr<Address> ParseAddress(const std::string& text) { return Address::Parse(text); }

// A bug of the program, found at its first start, whatever its arguments are.
[[noreturn]] void DieOfTwin(const std::string& program, const std::string& name) {
  std::cerr << program << ": flag --" << name << " is declared twice\n";
  std::abort();
}

}  // namespace

FlagSet::FlagSet(std::string program, std::string about)
    : program_(std::move(program)), about_(std::move(about)), command_(program_) {}

FlagSet::Flag& FlagSet::Flag::Check(std::function<absl::Status(const std::string&)> check) {
  checks.push_back(std::move(check));
  return *this;
}

FlagSet::Flag& FlagSet::Flag::List() {
  takes_list = true;
  type += ",...";
  return *this;
}

FlagSet::Flag& FlagSet::Flag::Repeats() {
  repeats = true;
  return *this;
}

FlagSet::Flag& FlagSet::Flag::Listens() {
  listens = true;
  return *this;
}

// Parses, then runs the checks, then sets: the variable is not touched unless all pass. Checks do
// not see an empty text, which means "absent" for the flags that have checks.
absl::StatusOr<std::string> FlagSet::Flag::Set(const std::string& text, bool apply) const {
  absl::StatusOr<std::string> value = set(text, /*apply=*/false);
  if (!value.ok()) return value;
  for (const auto& check : checks) {
    if (text.empty()) break;
    if (absl::Status bad = check(text); !bad.ok()) return bad;
  }
  return apply ? set(text, /*apply=*/true) : value;
}

// Declares --config in the last group of --help, whichever group is being filled at the moment.
void FlagSet::ReadConfig(std::string section, std::function<std::set<std::string>()> other_names) {
  reads_config_ = true;
  if (other_names == nullptr && Find("check") != nullptr) DieOfTwin(program_, "check");
  section_ = std::move(section);
  other_names_ = std::move(other_names);
  const std::string group = std::exchange(group_, kLastGroup);
  Add("config", &config_path_, "TOML file of these settings; a flag or a variable wins over it");
  group_ = group;
}

void FlagSet::CommonGroup(const std::string& heading) {
  common_groups_.insert(heading);
  Group(heading);
}

void FlagSet::Example(std::string command, std::string does) {
  examples_.emplace_back(std::move(command), std::move(does));
}

void FlagSet::Words(std::vector<std::string>* words, std::string usage) {
  words_ = words;
  words_usage_ = std::move(usage);
}

// All flags are added here. `help`, `version` and `check` are handled by ReadCommandLine and may
// not be declared. `flags_` is a deque, so pointers to flags stay valid.
FlagSet::Flag& FlagSet::Declare(Flag flag) {
  const bool taken = Find(flag.name) != nullptr;
  const bool check = flag.name == "check" && TakesCheck();
  if (flag.name == "help" || flag.name == "version" || check || taken)
    DieOfTwin(program_, flag.name);
  flag.group = group_;
  flag.takes_list = flag.kind == Flag::Kind::kList;
  const Flag& declared = flags_.emplace_back(std::move(flag));
  values_[&declared] = declared.default_text;
  return flags_.back();
}

// Makes a flag of any type from a parser of its texts. The value at the time of `Add` is kept for
// `reset`, since the text of a default need not parse (an empty address).
template <typename Value, typename Parser>
FlagSet::Flag& FlagSet::AddParsed(std::string name, std::string type, Flag::Kind kind, Value* value,
                                  std::string help, Parser parse) {
  Flag flag;
  flag.name = std::move(name);
  flag.type = std::move(type);
  flag.kind = kind;
  flag.default_text = Show(*value);
  flag.help = std::move(help);
  flag.set = [value, parse](const std::string& text, bool apply) -> absl::StatusOr<std::string> {
    absl::StatusOr<Value> parsed = parse(text);
    if (!parsed.ok()) return parsed.status();
    std::string shown = Show(*parsed);
    if (apply) *value = *std::move(parsed);
    return shown;
  };
  flag.reset = [value, given = *value] { *value = given; };
  return Declare(std::move(flag));
}

FlagSet::Flag& FlagSet::Add(std::string name, std::string* value, std::string help) {
  return AddParsed(std::move(name), "STRING", Flag::Kind::kText, value, std::move(help),
                   [](const std::string& text) -> absl::StatusOr<std::string> { return text; });
}

FlagSet::Flag& FlagSet::AddName(std::string name, std::string* value, std::string help,
                                bool may_be_empty) {
  return AddParsed(std::move(name), "NAME", Flag::Kind::kText, value, std::move(help),
                   [may_be_empty](const std::string& text) -> absl::StatusOr<std::string> {
                     if (text.empty() && !may_be_empty) return Bad("must not be empty");
                     if (text.size() > kFlagNameBytesMax) {
                       return Bad(absl::StrCat("must have at most ", kFlagNameBytesMax, " bytes"));
                     }
                     if (!IsUtf8(text)) return Bad("must be UTF-8");
                     return text;
                   });
}

FlagSet::Flag& FlagSet::Add(std::string name, bool* value, std::string help) {
  return AddParsed(std::move(name), "true|false", Flag::Kind::kBool, value, std::move(help),
                   [](const std::string& text) -> absl::StatusOr<bool> {
                     // Spellings that are usual in environments.
                     const std::string word = absl::AsciiStrToLower(text);
                     for (const char* yes : {"true", "1", "yes", "on"})
                       if (word == yes) return true;
                     for (const char* no : {"false", "0", "no", "off"})
                       if (word == no) return false;
                     return Bad("must be true or false");
                   });
}

template <typename Number>
FlagSet::Flag& FlagSet::AddNumber(std::string name, Number* value, std::string help, Number min,
                                  Number max) {
  return AddParsed(std::move(name), std::is_floating_point_v<Number> ? "NUMBER" : "N",
                   Flag::Kind::kNumber, value, std::move(help),
                   [min, max](const std::string& text) -> absl::StatusOr<Number> {
                     Number number{};
                     // An integer that does not fit its type fails to parse, but is a number to the
                     // reader.
                     double any_number;
                     if (HasBlanks(text) || !absl::SimpleAtod(text, &any_number)) {
                       return Bad(absl::StrCat("not a number; ", Expected(min, max)));
                     }
                     if (!ParseNumber(text, &number) || number < min || number > max)
                       return Bad(Expected(min, max));
                     return number;
                   });
}

FlagSet::Flag& FlagSet::Add(std::string name, int32_t* value, std::string help, int32_t min,
                            int32_t max) {
  return AddNumber(std::move(name), value, std::move(help), min, max);
}
FlagSet::Flag& FlagSet::Add(std::string name, int64_t* value, std::string help, int64_t min,
                            int64_t max) {
  return AddNumber(std::move(name), value, std::move(help), min, max);
}
FlagSet::Flag& FlagSet::Add(std::string name, uint32_t* value, std::string help, uint32_t min,
                            uint32_t max) {
  return AddNumber(std::move(name), value, std::move(help), min, max);
}
FlagSet::Flag& FlagSet::Add(std::string name, uint64_t* value, std::string help, uint64_t min,
                            uint64_t max) {
  return AddNumber(std::move(name), value, std::move(help), min, max);
}
FlagSet::Flag& FlagSet::Add(std::string name, double* value, std::string help, double min,
                            double max) {
  return AddNumber(std::move(name), value, std::move(help), min, max);
}

FlagSet::Flag& FlagSet::Add(std::string name, Duration* value, std::string help, Duration min,
                            Duration max) {
  return AddParsed(std::move(name), "DURATION", Flag::Kind::kText, value, std::move(help),
                   [min, max](const std::string& text) -> absl::StatusOr<Duration> {
                     absl::Duration parsed;
                     if (HasBlanks(text) || !absl::ParseDuration(text, &parsed)) {
                       return Bad("not a duration such as 250ms, 10s or 1m30s");
                     }
                     const Duration duration = absl::ToChronoNanoseconds(parsed);  // saturates
                     if (duration < min || duration > max)
                       return Bad(absl::StrCat("must be in ", Show(min), "..", Show(max)));
                     return duration;
                   });
}

FlagSet::Flag& FlagSet::Add(std::string name, Address* value, std::string help) {
  return AddParsed(std::move(name), "HOST:PORT", Flag::Kind::kText, value, std::move(help),
                   ParseAddress);
}

// A string rather than an `Address`, so that it can be empty; checks are not called for an empty
// text.
FlagSet::Flag& FlagSet::AddAddress(std::string name, std::string* value, std::string help) {
  Flag& flag = Add(std::move(name), value, std::move(help));
  flag.type = "HOST:PORT";
  return flag.Check([](const std::string& text) { return Address::Parse(text).status(); });
}

FlagSet::Flag& FlagSet::Add(std::string name, std::vector<std::string>* value, std::string help) {
  return AddParsed(std::move(name), "STRING,...", Flag::Kind::kList, value, std::move(help),
                   [](const std::string& text) { return SplitList(text); });
}

FlagSet::Flag& FlagSet::Add(std::string name, std::vector<Address>* value, std::string help) {
  return AddParsed(std::move(name), "HOST:PORT,...", Flag::Kind::kList, value, std::move(help),
                   [](const std::string& text) -> absl::StatusOr<std::vector<Address>> {
                     absl::StatusOr<std::vector<std::string>> elements = SplitList(text);
                     if (!elements.ok()) return elements.status();
                     std::vector<Address> addresses;
                     for (const std::string& element : *elements) {
                       absl::StatusOr<Address> address = Address::Parse(element);
                       if (!address.ok()) return address.status();
                       addresses.push_back(*std::move(address));
                     }
                     return addresses;
                   });
}

FlagSet::Flag& FlagSet::AddChoice(std::string name, std::string* value, std::string help,
                                  std::vector<std::string> choices) {
  std::string type = absl::StrJoin(choices, "|");
  return AddParsed(std::move(name), std::move(type), Flag::Kind::kText, value, std::move(help),
                   [choices](const std::string& text) -> absl::StatusOr<std::string> {
                     if (std::find(choices.begin(), choices.end(), text) != choices.end())
                       return text;
                     return Bad(absl::StrCat("must be one of ", absl::StrJoin(choices, ", "),
                                             DidYouMean(text, choices)));
                   });
}

absl::Status OfFlag(std::string_view flag, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--", ToAbsl(flag), ": ", status.message()));
}

}  // namespace kvatlas
