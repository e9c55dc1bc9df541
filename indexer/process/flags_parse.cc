// Reads the values of flags at the start (Parse), and again while the process runs (Reload).
//
//   Parse    1. `ReadCommandLine`   2. `Gather`: the file, over it the environment, over that the command line
//            3. every flag is set, every problem is printed
//   Reload   2. as above, with the same command line   3. every value is looked at, none is set   4. the variables that may change are
//            set, and every reloader prepares   5. all commit, or the variables are as they were

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "indexer/base/nearest_name.h"
#include "indexer/net/redis_url.h"
#include "indexer/process/build_version.h"
#include "indexer/process/config_file.h"
#include "indexer/process/flags.h"

namespace kvatlas {
namespace {

constexpr std::string_view kPrefix = "KVATLAS_";

// Hyphens in names count as underscores.
std::string Underscored(std::string_view text) {
  std::string name(text);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string VariableOf(const std::string& flag) {
  return std::string(kPrefix) + absl::AsciiStrToUpper(flag);
}

// Names of variables with our prefix that other programs read: tests, and the publisher in Python.
// `name` is without the prefix.
bool IsOthers(std::string_view name) {
  static constexpr std::string_view kOthers[] = {
      "SEED",        "SEEDS",        "ROUNDS", "REQUESTS", "REDIS_SEED", "CHECKPOINT_SEED",
      "INTEROP_DIR", "ATLAS_PAUSES", "LEAVES", "LABELS",   "MODEL",      "WORKER"};
  if (name.starts_with("SIMULATION_") || name.starts_with("PUBLISHER_")) return true;
  return std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

// Kubernetes sets variables in each container for every service named kvatlas-…:
// KVATLAS_LEAF_SERVICE_HOST, …_SERVICE_PORT_GRPC, …_PORT=tcp://10.0.0.1:7410, …_PORT_7410_TCP_ADDR.
// They must not be refused as unknown.
bool IsOfKubernetes(std::string_view name, std::string_view value) {
  if (name.ends_with("_SERVICE_HOST") || name.find("_SERVICE_PORT") != std::string_view::npos)
    return true;
  const size_t port = name.rfind("_PORT");
  if (port == std::string_view::npos) return false;
  const std::string_view rest = name.substr(port + 5);
  if (rest.empty()) return value.find("://") != std::string_view::npos;
  return rest.size() > 1 && rest[0] == '_' &&
         std::isdigit(static_cast<unsigned char>(rest[1])) != 0;
}

}  // namespace

const FlagSet::Flag* FlagSet::Find(std::string_view name) const {
  const auto found = std::find_if(flags_.begin(), flags_.end(),
                                  [&](const Flag& flag) { return flag.name == name; });
  return found == flags_.end() ? nullptr : &*found;
}

std::set<std::string> FlagSet::Names() const {
  std::set<std::string> names;
  for (const Flag& flag : flags_) names.insert(flag.name);
  return names;
}

std::vector<std::string> FlagSet::NameList() const {
  const std::set<std::string> names = Names();
  return {names.begin(), names.end()};
}

// Assigns the arguments to flags, words and the three built-in switches, without setting a value.
// Every problem is collected, so that one run shows all of them.
// 1. The name is what stands between the dashes and '='.
// 2. The value is behind '=', or the next argument unless that starts with "--". A bool may stand
//    alone; where there are words, it takes the next argument only if that is a value of a bool.
// 3. A flag that came before is replaced, or appended to if it `Repeats`.
FlagSet::CommandLine FlagSet::ReadCommandLine(const std::vector<std::string>& arguments) const {
  CommandLine line;
  const auto unknown = [&](const std::string& as_typed, const std::string& name) {
    std::vector<std::string> names = NameList();
    names.insert(names.end(), {"help", "version"});
    if (TakesCheck()) names.emplace_back("check");
    line.problems.push_back("unknown flag " + as_typed + DidYouMean(name, names, "--"));
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t dashes = std::min(argument.find_first_not_of('-'), argument.size());
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string name =
        Underscored(std::string_view(argument).substr(dashes, std::max(equals, dashes) - dashes));
    const bool has_next = i + 1 < arguments.size() && !arguments[i + 1].starts_with("--");
    std::optional<std::string> value;
    if (equals < argument.size()) value = argument.substr(equals + 1);
    if (words_ != nullptr && (dashes == 0 || argument == "-")) {
      line.words.push_back(argument);
    } else if (dashes == 0 || name.empty()) {
      line.problems.push_back("stray argument " + argument);
    } else if (argument == "-h" || (dashes == 2 && name == "help")) {
      line.help = value.value_or("");
    } else if (dashes == 2 && name == "version" && !value.has_value()) {
      line.version = true;
    } else if (dashes == 2 && name == "check" && !value.has_value() && TakesCheck()) {
      line.check = true;
    } else if (const Flag* flag = dashes == 2 ? Find(name) : nullptr; flag == nullptr) {
      unknown(argument.substr(0, equals), name);
      // The next argument is most likely its value: not a problem of its own.
      if (!value.has_value() && has_next && !arguments[i + 1].starts_with("-")) ++i;
    } else {
      const bool takes_next = has_next && (words_ == nullptr || flag->kind != Flag::Kind::kBool ||
                                           flag->set(arguments[i + 1], /*apply=*/false).ok());
      if (!value.has_value() && takes_next) value = arguments[++i];
      if (!value.has_value() && flag->kind == Flag::Kind::kBool) value = "true";
      if (!value.has_value()) {
        line.problems.push_back("flag --" + flag->name + " needs a value: " + flag->type);
        continue;
      }
      Given& given = line.settings[flag];
      const bool more = flag->repeats && !given.where.empty();
      given.text = more ? given.text + "," + *value : *value;
      given.where = "flag --" + flag->name;
      given.with_value = given.where + "=" + given.text;
    }
  }
  return line;
}

// Reads KVATLAS_ variables. An unknown one is a problem, since a misspelt setting would otherwise
// be ignored silently; variables of other programs are exempt.
void FlagSet::ReadEnvironment(Settings* settings, std::vector<std::string>* problems) const {
  const std::set<std::string> others =
      other_names_ == nullptr ? std::set<std::string>() : other_names_();
  for (char* const* entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (!text.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    const std::string variable(text.substr(0, equals));
    const std::string value(text.substr(equals + 1));
    const std::string name = absl::AsciiStrToLower(variable.substr(kPrefix.size()));
    const Flag* const flag = Find(name);
    if (flag != nullptr && VariableOf(name) == variable) {
      (*settings)[flag] = {
          .text = value, .where = variable, .with_value = "variable " + variable + "=" + value};
      continue;
    }
    const std::string rest = variable.substr(kPrefix.size());
    if (IsOthers(rest) || IsOfKubernetes(rest, value) || others.contains(name)) continue;
    std::vector<std::string> names = NameList();
    names.insert(names.end(), others.begin(), others.end());
    const std::optional<std::string> nearest = NearestName(name, names);
    problems->push_back(
        "unknown variable " + variable +
        (nearest.has_value() ? "; did you mean " + VariableOf(*nearest) + "?" : ""));
  }
}

// Reads the configuration file. If another program's flags may be in the same file
// (`other_names_`), its keys are skipped, with their problems; and if the environment names the
// file, only the own section counts.
void FlagSet::ReadFile(const Given& path, Settings* settings,
                       std::vector<std::string>* problems) const {
  const bool only_section = other_names_ != nullptr && path.where.starts_with(kPrefix);
  const auto entries = ReadConfigFile(path.text, section_, only_section);
  if (!entries.ok()) {
    const std::string why(entries.status().message());
    const bool has_line = why.size() > path.text.size() + 1 &&
                          std::isdigit(static_cast<unsigned char>(why[path.text.size() + 1])) != 0;
    problems->push_back(has_line ? why : path.where + ": " + why);
    return;
  }
  for (const ConfigEntry& entry : *entries) {
    const std::string where = absl::StrCat(path.text, ":", entry.line);
    const Flag* const flag = Find(entry.key);
    const bool is_flag = flag != nullptr && flag->name != "config";
    const bool others = other_names_ != nullptr && other_names_().contains(entry.key);
    if (!entry.problem.empty() && (is_flag || !others)) {
      problems->push_back(absl::StrCat(where, ": ", entry.key, ": ", entry.problem));
      continue;
    }
    if (is_flag) {
      (*settings)[flag] = {.text = entry.text,
                           .where = where,
                           .with_value = absl::StrCat(where, ": ", entry.key, " = ", entry.text),
                           .is_list = entry.is_list};
      continue;
    }
    if (others) continue;
    if (flag != nullptr) {
      problems->push_back(where + ": config: a file names no other file");
      continue;
    }
    std::vector<std::string> names = NameList();
    names.insert(names.end(), ConfigSections().begin(), ConfigSections().end());
    problems->push_back(
        absl::StrCat(where, ": unknown key ", entry.key, DidYouMean(entry.key, names)));
  }
}

// Merges the three sources: the file first, the environment over it, the command line over both.
// The file's path itself may come from the upper two only. `file_keys`: settings that the file
// made, before they were overridden.
FlagSet::Settings FlagSet::Gather(const CommandLine& line, std::vector<std::string>* problems,
                                  size_t* file_keys) const {
  *file_keys = 0;
  if (!reads_config_) return line.settings;
  Settings over;
  ReadEnvironment(&over, problems);
  for (const auto& [flag, given] : line.settings) over[flag] = given;
  Settings settings;
  const auto path = over.find(Find("config"));
  if (path != over.end() && !path->second.text.empty()) ReadFile(path->second, &settings, problems);
  *file_keys = settings.size();
  for (auto& [flag, given] : over) settings[flag] = std::move(given);
  return settings;
}

// Two flags must not listen on one address. Port 0 is a different port each time, so it is exempt.
void FlagSet::CheckListeners(const std::map<const Flag*, std::string>& texts,
                             std::vector<std::string>* problems) const {
  std::map<std::string, const Flag*> taken;
  for (const Flag& flag : flags_) {
    const auto text = texts.find(&flag);
    if (!flag.listens || text == texts.end()) continue;
    for (const absl::string_view address : absl::StrSplit(text->second, ',', absl::SkipEmpty())) {
      if (absl::EndsWith(address, ":0")) continue;
      const auto [other, is_new] = taken.emplace(std::string(address), &flag);
      if (!is_new)
        problems->push_back(absl::StrCat("--", other->second->name, " and --", flag.name,
                                         " both listen on ", address));
    }
  }
}

// The steps are at the top. --help and --version end it before anything else is read, so that they
// work with a bad configuration too. Variables are set while flags are checked: after a refusal
// some have new values, and the caller exits.
std::optional<int> FlagSet::Parse(int argc, const char* const* argv, std::ostream& out,
                                  std::ostream& err) {
  arguments_.assign(argv + std::min(argc, 1), argv + argc);
  const CommandLine line = ReadCommandLine(arguments_);
  std::vector<std::string> problems = line.problems;
  if (line.help.has_value()) {
    const std::optional<std::string> help = line.help->empty() ? Help() : Help(*line.help);
    if (help.has_value()) {
      out << *help;
      return 0;
    }
    problems = {"--help=" + *line.help + ": no topic and no flag has this name"};
  } else if (line.version) {
    out << program_ << ' ' << BuildVersion() << '\n';
    return 0;
  }

  const Settings settings = Gather(line, &problems, &file_keys_);
  std::map<const Flag*, std::string> values;
  for (const Flag& flag : flags_) {
    const auto given = settings.find(&flag);
    if (given == settings.end()) {
      values[&flag] = flag.default_text;
      continue;
    }
    const bool list = given->second.is_list && !flag.takes_list;
    const absl::StatusOr<std::string> value =
        list ? absl::InvalidArgumentError("takes one value, and no list")
             : flag.Set(given->second.text, /*apply=*/true);
    if (value.ok())
      values[&flag] = *value;
    else
      problems.push_back(absl::StrCat(given->second.with_value, ": ", value.status().message()));
  }
  CheckListeners(values, &problems);
  for (const std::string& problem : problems)
    err << command_ << ": " << WithoutPasswords(problem) << " (see --help)\n";
  if (!problems.empty()) return 2;
  if (words_ != nullptr) *words_ = line.words;
  settings_ = settings;
  values_ = std::move(values);
  checking_ = line.check;
  return std::nullopt;
}

void FlagSet::ParseOrExit(int argc, const char* const* argv) {
  if (const std::optional<int> status = Parse(argc, argv, std::cout, std::cerr)) {
    std::cout.flush();
    std::exit(*status);
  }
}

std::string FlagSet::WhereFrom(const std::string& name) const {
  const auto given = settings_.find(Find(name));
  return given == settings_.end() ? "" : given->second.where;
}

// Adds where the value came from, unless it was the command line, which the user just typed.
std::string FlagSet::Refusal(std::string_view message) const {
  std::string text(message);
  if (message.starts_with("--")) {
    const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", 2);
    const std::string where = WhereFrom(std::string(message.substr(2, end - 2)));
    if (!where.empty() && !where.starts_with("flag ")) text += " (from " + where + ")";
  }
  return WithoutPasswords(text);
}

// ---- While the process runs ----

// A name that is no flag is a bug of the program and ends it at its start.
void FlagSet::OnReload(std::set<std::string> flags,
                       std::function<absl::StatusOr<Commit>()> prepare) {
  for (const std::string& name : flags) {
    if (Find(name) != nullptr) continue;
    std::cerr << program_ << ": --" << name << " may change, but is no flag\n";
    std::abort();
  }
  reloaders_.push_back({std::move(flags), std::move(prepare)});
}

// Sets the variables to texts that were their values before. A default is restored by `reset`: its
// text need not parse.
void FlagSet::Restore(const std::map<const Flag*, std::string>& texts) const {
  for (const auto& [flag, text] : texts) {
    if (text == flag->default_text)
      flag->reset();
    else
      flag->set(text, /*apply=*/true).IgnoreError();  // it was once
  }
}

// Steps 2 to 5 at the top. The command line is parsed again from the kept arguments, since its
// values win over the file's as at the start. An empty file where there was a full one is refused:
// an editor or a failed copy truncates a file before it writes it.
//
// Only flags that some reloader names may change. Others with a new value are reported in
// `need_restart` and keep the old one, also in `values_`, so that they are reported at each reload.
absl::StatusOr<FlagSet::Reloaded> FlagSet::Reload() {
  std::vector<std::string> problems;
  size_t file_keys = 0;
  const Settings settings = Gather(ReadCommandLine(arguments_), &problems, &file_keys);
  if (problems.empty() && file_keys == 0 && file_keys_ > 0)
    problems.push_back(absl::StrCat(settings.at(Find("config")).text,
                                    ": it is empty; expected some of the ", file_keys_,
                                    " keys that it had"));
  Reloaded reloaded;
  std::map<const Flag*, std::string> before, after;  // of those that change
  for (const Flag& flag : flags_) {
    const auto given = settings.find(&flag);
    absl::StatusOr<std::string> value = flag.default_text;
    std::string where;
    if (given != settings.end()) {
      where = given->second.where;
      value = given->second.is_list && !flag.takes_list
                  ? absl::InvalidArgumentError("takes one value, and no list")
                  : flag.Set(given->second.text, /*apply=*/false);
      if (!value.ok())
        problems.push_back(absl::StrCat(given->second.with_value, ": ", value.status().message()));
    }
    if (!value.ok() || *value == values_[&flag]) continue;
    const bool may_change = std::any_of(reloaders_.begin(), reloaders_.end(),
                                        [&](const auto& r) { return r.flags.contains(flag.name); });
    (may_change ? reloaded.changed : reloaded.need_restart).push_back({flag.name, where});
    if (!may_change) continue;
    before[&flag] = values_[&flag];
    after[&flag] = *value;
  }
  if (!problems.empty())
    return absl::InvalidArgumentError(WithoutPasswords(absl::StrJoin(problems, "; ")));

  Restore(after);
  std::vector<Commit> commits;
  for (const Reloader& reloader : reloaders_) {
    absl::StatusOr<Commit> commit = reloader.prepare();
    if (commit.ok()) {
      commits.push_back(*std::move(commit));
      continue;
    }
    Restore(before);
    return absl::InvalidArgumentError(Refusal(std::string(commit.status().message())));
  }
  for (const Commit& commit : commits) commit();
  file_keys_ = file_keys;
  for (const auto& [flag, value] : after) {
    values_[flag] = value;
    settings_.erase(flag);
    if (const auto given = settings.find(flag); given != settings.end())
      settings_[flag] = given->second;
  }
  return reloaded;
}

}  // namespace kvatlas
