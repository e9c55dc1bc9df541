#include "indexer/service/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <type_traits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "indexer/base/utf8.h"
#include "indexer/service/redis_url.h"
#include "indexer/service/version.h"

namespace kvatlas {
namespace {

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

absl::Status Bad(std::string_view why) { return absl::InvalidArgumentError(ToAbsl(why)); }

// Abseil's parsers forgive blanks round a number; a flag does not.
bool HasBlanks(std::string_view text) {
  return text.find_first_of(" \t\r\n\v\f") != std::string_view::npos;
}

bool ParseNumber(std::string_view text, double* number) {
  return absl::SimpleAtod(ToAbsl(text), number) && std::isfinite(*number);
}

template <std::integral Number>
bool ParseNumber(std::string_view text, Number* number) {
  return absl::SimpleAtoi(ToAbsl(text), number);
}

// Comma-separated elements, none of them empty; no text is no element.
absl::StatusOr<std::vector<std::string>> SplitList(std::string_view text) {
  if (text.empty()) return std::vector<std::string>();
  std::vector<std::string> elements = absl::StrSplit(ToAbsl(text), ',');
  if (std::find(elements.begin(), elements.end(), "") != elements.end()) {
    return Bad("has an empty element");
  }
  return elements;
}

std::string ShowDuration(Duration duration) {
  if (duration == Duration::max()) return "inf";
  return absl::FormatDuration(absl::FromChrono(duration));
}

std::string ShowList(const std::vector<Address>& addresses) {
  return absl::StrJoin(addresses, ",", [](std::string* out, const Address& address) {
    out->append(address.ToString());
  });
}

}  // namespace

FlagSet::FlagSet(std::string program, std::string about)
    : program_(std::move(program)), about_(std::move(about)) {}

void FlagSet::Declare(Flag flag) {
  const auto taken = [&](const Flag& other) { return other.name == flag.name; };
  if (flag.name == "help" || flag.name == "version" ||
      std::any_of(flags_.begin(), flags_.end(), taken)) {
    std::cerr << program_ << ": flag --" << flag.name << " is declared twice\n";
    std::abort();
  }
  flags_.push_back(std::move(flag));
}

void FlagSet::Add(std::string name, std::string* value, std::string help) {
  Declare({std::move(name), "STRING", *value, std::move(help), [value](std::string_view text) {
             *value = std::string(text);
             return absl::OkStatus();
           }});
}

void FlagSet::AddName(std::string name, std::string* value, std::string help, bool may_be_empty) {
  Declare({std::move(name), "NAME", *value, std::move(help),
           [value, may_be_empty](std::string_view text) {
             if (text.empty() && !may_be_empty) return Bad("must not be empty");
             if (text.size() > kFlagNameBytesMax) {
               return Bad(absl::StrCat("must have at most ", kFlagNameBytesMax, " bytes"));
             }
             if (!IsUtf8(text)) return Bad("must be UTF-8");
             *value = std::string(text);
             return absl::OkStatus();
           }});
}

void FlagSet::Add(std::string name, bool* value, std::string help) {
  Declare({std::move(name), "true|false", *value ? "true" : "false", std::move(help),
           [value](std::string_view text) {
             if (text != "true" && text != "false") return Bad("must be true or false");
             *value = text == "true";
             return absl::OkStatus();
           },
           /*may_stand_alone=*/true});
}

template <typename Number>
void FlagSet::AddNumber(std::string name, Number* value, std::string help, Number min, Number max) {
  Declare({std::move(name), std::is_floating_point_v<Number> ? "NUMBER" : "N", absl::StrCat(*value),
           std::move(help), [=](std::string_view text) {
             Number number{};
             // An integer that does not fit its type fails to parse, but is a number to the reader.
             double any_number;
             if (HasBlanks(text) || !absl::SimpleAtod(ToAbsl(text), &any_number)) {
               return Bad("not a number");
             }
             if (!ParseNumber(text, &number) || number < min || number > max) {
               return Bad(absl::StrCat("must be ", std::is_integral_v<Number> ? "an integer " : "",
                                       "in ", min, "..", max));
             }
             *value = number;
             return absl::OkStatus();
           }});
}

void FlagSet::Add(std::string name, int32_t* value, std::string help, int32_t min, int32_t max) {
  AddNumber(std::move(name), value, std::move(help), min, max);
}
void FlagSet::Add(std::string name, int64_t* value, std::string help, int64_t min, int64_t max) {
  AddNumber(std::move(name), value, std::move(help), min, max);
}
void FlagSet::Add(std::string name, uint32_t* value, std::string help, uint32_t min, uint32_t max) {
  AddNumber(std::move(name), value, std::move(help), min, max);
}
void FlagSet::Add(std::string name, uint64_t* value, std::string help, uint64_t min, uint64_t max) {
  AddNumber(std::move(name), value, std::move(help), min, max);
}
void FlagSet::Add(std::string name, double* value, std::string help, double min, double max) {
  AddNumber(std::move(name), value, std::move(help), min, max);
}

void FlagSet::Add(std::string name, Duration* value, std::string help, Duration min, Duration max) {
  Declare({std::move(name), "DURATION", ShowDuration(*value), std::move(help),
           [=](std::string_view text) {
             absl::Duration parsed;
             if (HasBlanks(text) || !absl::ParseDuration(ToAbsl(text), &parsed)) {
               return Bad("not a duration such as 250ms, 10s or 1m30s");
             }
             const Duration duration = absl::ToChronoNanoseconds(parsed);  // saturates
             if (duration < min || duration > max) {
               return Bad(absl::StrCat("must be in ", ShowDuration(min), "..", ShowDuration(max)));
             }
             *value = duration;
             return absl::OkStatus();
           }});
}

void FlagSet::Add(std::string name, Address* value, std::string help) {
  Declare({std::move(name), "HOST:PORT", value->ToString(), std::move(help),
           [value](std::string_view text) {
             absl::StatusOr<Address> address = Address::Parse(text);
             if (!address.ok()) return address.status();
             *value = *std::move(address);
             return absl::OkStatus();
           }});
}

void FlagSet::Add(std::string name, std::vector<std::string>* value, std::string help) {
  Declare({std::move(name), "STRING,...", absl::StrJoin(*value, ","), std::move(help),
           [value](std::string_view text) {
             absl::StatusOr<std::vector<std::string>> elements = SplitList(text);
             if (!elements.ok()) return elements.status();
             *value = *std::move(elements);
             return absl::OkStatus();
           }});
}

void FlagSet::Add(std::string name, std::vector<Address>* value, std::string help) {
  Declare({std::move(name), "HOST:PORT,...", ShowList(*value), std::move(help),
           [value](std::string_view text) {
             absl::StatusOr<std::vector<std::string>> elements = SplitList(text);
             if (!elements.ok()) return elements.status();
             std::vector<Address> addresses;
             for (const std::string& element : *elements) {
               absl::StatusOr<Address> address = Address::Parse(element);
               if (!address.ok()) return address.status();
               addresses.push_back(*std::move(address));
             }
             *value = std::move(addresses);
             return absl::OkStatus();
           }});
}

void FlagSet::AddChoice(std::string name, std::string* value, std::string help,
                        std::vector<std::string> choices) {
  std::string type = absl::StrJoin(choices, "|");
  Declare({std::move(name), std::move(type), *value, std::move(help),
           [value, choices = std::move(choices)](std::string_view text) {
             if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
               return Bad(absl::StrCat("must be one of ", absl::StrJoin(choices, ", ")));
             }
             *value = std::string(text);
             return absl::OkStatus();
           }});
}

std::optional<int> FlagSet::Parse(int argc, const char* const* argv, std::ostream& out,
                                  std::ostream& err) const {
  bool help = false;
  bool version = false;
  CLI::App app(about_, program_);
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("--help", help);
  app.add_flag("--version", version);
  std::vector<std::string> texts(flags_.size());
  std::vector<CLI::Option*> options;
  for (size_t i = 0; i < flags_.size(); ++i) {
    CLI::Option* option = app.add_option("--" + flags_[i].name, texts[i]);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    options.push_back(option);
  }

  try {
    app.parse(Normalize(argc, argv));
  } catch (const CLI::ParseError& error) {
    return Refuse(err, error.what());
  }

  if (help) {
    out << Help();
    return 0;
  }
  if (version) {
    out << program_ << ' ' << kVersion << '\n';
    return 0;
  }
  if (const std::vector<std::string> rest = app.remaining(); !rest.empty()) {
    const bool flag = rest.front().starts_with("-");
    return Refuse(err, absl::StrCat(flag ? "unknown flag " : "stray argument ", rest.front()));
  }
  for (size_t i = 0; i < flags_.size(); ++i) {
    if (options[i]->count() == 0) continue;
    if (const absl::Status status = flags_[i].set(texts[i]); !status.ok()) {
      return Refuse(err,
                    absl::StrCat("flag --", flags_[i].name, "=", texts[i], ": ", status.message()));
    }
  }
  return std::nullopt;
}

// "--block-size=16" is how others spell "--block_size=16".
std::string FlagSet::WithUnderscores(std::string argument) const {
  if (!argument.starts_with("--")) return argument;
  std::string name = argument.substr(2, argument.find('=') - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  const bool known = std::any_of(flags_.begin(), flags_.end(),
                                 [&](const Flag& flag) { return flag.name == name; });
  return known ? argument.replace(2, name.size(), name) : argument;
}

// What CLI11 needs to read the command line as we do: `--flag=` and a lone bool get their value as
// an argument of its own (CLI11 would take the next argument for the first), and all of it last
// first.
std::vector<std::string> FlagSet::Normalize(int argc, const char* const* argv) const {
  std::vector<std::string> arguments;
  for (int i = argc - 1; i > 0; --i) {
    std::string argument = WithUnderscores(argv[i]);
    const bool last = i == argc - 1 || std::string_view(argv[i + 1]).starts_with("--");
    if (argument.size() > 3 && argument.starts_with("--") &&
        argument.find('=') == argument.size() - 1) {
      argument.pop_back();
      arguments.emplace_back();
    } else if (last && std::any_of(flags_.begin(), flags_.end(), [&](const Flag& flag) {
                 return flag.may_stand_alone && argument == "--" + flag.name;
               })) {
      arguments.emplace_back("true");
    }
    arguments.push_back(std::move(argument));
  }
  return arguments;
}

std::optional<int> FlagSet::Refuse(std::ostream& err, std::string_view why) const {
  err << program_ << ": " << WithoutRedisPassword(why) << " (see --help)\n";
  return 2;
}

void FlagSet::ParseOrExit(int argc, const char* const* argv) const {
  if (const std::optional<int> status = Parse(argc, argv, std::cout, std::cerr)) {
    std::cout.flush();
    std::exit(*status);
  }
}

std::string FlagSet::Help() const {
  std::ostringstream text;
  text << program_ << ' ' << kVersion << ": " << about_ << "\n\nFlags:\n";
  for (const Flag& flag : flags_) {
    text << "  --" << flag.name << ' ' << flag.type << "\n      " << flag.help
         << " (default: " << (flag.default_text.empty() ? "none" : flag.default_text) << ")\n";
  }
  text << "  --help\n      show this and exit\n  --version\n      show the version and exit\n";
  return text.str();
}

}  // namespace kvatlas
