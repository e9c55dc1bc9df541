// completion: what bash and zsh need to complete commands, services and flags. The words come from
// the table of commands and from each command's flags, at the time of asking, so that they are
// those of this binary.

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tools/kvatlas/command.h"
#include "tools/kvatlas/service_name.h"

namespace kvatlas {
namespace {

// Bash splits words at '=' and ':', and replaces only the last piece, so the part of a candidate
// before that piece is cut off. `line` is what was typed up to the cursor.
constexpr char kBash[] = R"sh(_kvatlas() {
  local line="${COMP_LINE:0:$COMP_POINT}"
  local word="${line##* }" typed="${COMP_WORDS[COMP_CWORD]}" candidate
  [[ $typed == "=" || $typed == ":" ]] && typed=""
  COMPREPLY=()
  while IFS= read -r candidate; do
    [[ $candidate == "$word"* ]] && COMPREPLY+=("${candidate:$((${#word} - ${#typed}))}")
  done < <("${COMP_WORDS[0]}" completion words -- "$line" 2>/dev/null)
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
  return 0
}
complete -o default -F _kvatlas kvatlas
)sh";

constexpr char kZsh[] = R"sh(#compdef kvatlas
_kvatlas() {
  local -a candidates
  candidates=(${(f)"$(${words[1]} completion words -- "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
  compadd -Q -S '' -a candidates
}
compdef _kvatlas kvatlas
)sh";

// Values of a flag with choices, once its name and '=' are typed; else names of flags.
void AddFlags(const std::string& command, const std::string& word,
              std::vector<std::string>* candidates) {
  LookAtFlags(command, [&](const FlagSet& flags) {
    for (const FlagSet::Text& flag : flags.Texts()) {
      const std::string name = "--" + flag.name;
      const bool choices = flag.type.find('|') != std::string::npos;
      if (word.starts_with(name + "=")) {
        if (!choices) continue;
        for (const absl::string_view choice : absl::StrSplit(flag.type, '|'))
          candidates->push_back(name + "=" + std::string(choice));
      } else {
        candidates->push_back(flag.is_bool ? name : name + "=");
      }
    }
    candidates->emplace_back("--help");
  });
}

}  // namespace

// Splits at blanks alone: quoted words are not completed.
std::vector<std::string> CompletionsOf(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  const std::string word = words.back();
  std::vector<std::string> given;  // before it, without the program
  for (size_t i = 1; i + 1 < words.size(); ++i)
    if (!words[i].empty()) given.push_back(words[i]);
  std::vector<std::string> candidates;
  if (given.empty()) {
    for (const CommandText& command : CommandTexts()) candidates.push_back(command.name);
  } else if (word.starts_with("-")) {
    AddFlags(given[0], word, &candidates);
  } else if (given[0] == "completion") {
    candidates = {"bash", "zsh"};
  } else if (given[0] == "policy") {
    candidates = {"check", "explain", "token"};
  } else if (given[0] == "pki") {
    candidates = {"init", "issue", "curve", "record-key"};
  } else if (given[0] != "serve") {
    for (const ServiceRole role : kRoles) candidates.push_back(std::string(RoleName(role)) + "=");
    if (given[0] == "dump" || given[0] == "diff")
      candidates.insert(candidates.end(), {"file=", "checkpoint="});
  }
  std::erase_if(candidates,
                [&](const std::string& candidate) { return !candidate.starts_with(word); });
  return candidates;
}

int RunCompletion(const std::vector<std::string>& arguments, const CommandIo& io) {
  // A command line that is completed is no flag of this one.
  if (arguments.size() == 3 && arguments[0] == "words" && arguments[1] == "--") {
    for (const std::string& candidate : CompletionsOf(arguments[2])) io.out << candidate << '\n';
    return kExitOk;
  }
  FlagSet flags("kvatlas completion",
                "Prints what bash or zsh needs to complete commands and flags.");
  std::vector<std::string> words;
  flags.Words(&words, "bash|zsh");
  flags.Example("source <(kvatlas completion bash)", "in ~/.bashrc");
  flags.Example("kvatlas completion zsh > ~/.zfunc/_kvatlas", "in a folder of $fpath");
  if (io.flags != nullptr) {
    io.flags(flags);
    return kExitOk;
  }
  std::vector<const char*> argv = {"kvatlas completion"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  if (const auto exit = flags.Parse(static_cast<int>(argv.size()), argv.data(), io.out, io.err))
    return *exit;
  if (words.size() == 1 && (words[0] == "bash" || words[0] == "zsh")) {
    io.out << (words[0] == "bash" ? kBash : kZsh);
    return kExitOk;
  }
  io.err << "kvatlas completion: expected bash or zsh (see --help)\n";
  return kExitUsage;
}

}  // namespace kvatlas
