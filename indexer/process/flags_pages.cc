// The flags of a process as documents: a page of the manual, and a part of a reference.
//
//   --help=man        roff, as man(7) describes it
//   --help=markdown   a heading and a table for each topic

#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "indexer/base/version.h"
#include "indexer/net/redis_url.h"
#include "indexer/process/flags.h"
#include "indexer/process/roff.h"

namespace kvatlas {
namespace {

// In a cell of a table.
// A '|' would end the cell, '<', '*' and '_' would be read as markup.
std::string Cell(std::string_view text) {
  return absl::StrReplaceAll(absl::string_view(text.data(), text.size()),
                             {{"|", "\\|"}, {"\n", " "}, {"<", "\\<"}, {"*", "\\*"}, {"_", "\\_"}});
}

std::string Code(std::string_view text) {
  return absl::StrCat(
      "`",
      absl::StrReplaceAll(absl::string_view(text.data(), text.size()), {{"|", "\\|"}, {"\n", " "}}),
      "`");
}

}  // namespace

// The exit statuses at its end are those of `ServiceMain` for services, and of the kvatlas tool for
// commands.
std::string FlagSet::ManPage() const {
  // Commands of users are in section 1, services in 8.
  const bool is_command = program_.find(' ') != std::string::npos;
  const std::string name = absl::StrReplaceAll(program_, {{" ", "-"}});
  RoffPage page(name, is_command ? 1 : 8);
  page.Name(about_);
  page.Heading("Synopsis");
  page.Usage(command_, "[--flag=value...]");
  page.Heading("Description");
  page.Paragraph(about_);
  if (reads_config_) {
    page.Paragraph(absl::StrCat(
        "Each flag may also be a variable of the environment (KVATLAS_LOG_LEVEL for --log_level), "
        "or a key of the TOML file that --config or KVATLAS_CONFIG names, at its top or in its "
        "section [",
        section_, "]. A flag wins over a variable, that over the file."));
  }
  page.Heading("Options");
  for (const std::string& group : Groups()) {
    if (Groups().size() > 1) page.Subheading(group.empty() ? "General" : group);
    for (const Flag& flag : flags_) {
      if (flag.group != group) continue;
      const std::string shown = flag.default_text.empty() ? "none" : flag.default_text;
      page.Item(absl::StrCat("--", flag.name), flag.type,
                absl::StrCat(flag.help, flag.repeats ? "; may be given several times" : "",
                             " (default: ", WithoutPasswords(shown), ")"));
    }
  }
  if (TakesCheck())
    page.Item("--check", "", "look at everything that was told, print what counts, and exit");
  page.Item("--help", "[=TOPIC]", "show all flags, or those of one topic, and exit");
  page.Item("--version", "", "show the version and exit");
  if (!examples_.empty()) page.Heading("Examples");
  for (const auto& [command, does] : examples_) page.Example(command, does);
  page.Heading("Exit status");
  if (is_command) {
    page.Paragraph(
        "0: done. 1: the service, or a file, says no. 2: the command line is wrong. 3: diff found "
        "differences, doctor something wrong. 4: a service cannot be reached, or not in time.");
  } else {
    page.Paragraph(
        "0: stopped by SIGTERM or SIGINT. 1: it could not start or go on; standard error says "
        "why. 2: the command line, environment or configuration is wrong. 128 + N: ended by the "
        "second signal N.");
  }
  return page.Text();
}

std::string FlagSet::Markdown() const {
  std::string text = absl::StrCat("## ", program_, "\n\n", about_, "\n");
  for (const std::string& group : Groups()) {
    absl::StrAppend(&text, "\n", Groups().size() > 1 ? "### " : "",
                    Groups().size() > 1 ? group.empty() ? "General" : group : "",
                    Groups().size() > 1 ? "\n\n" : "", "| flag | default | |\n|---|---|---|\n");
    for (const Flag& flag : flags_) {
      if (flag.group != group) continue;
      const std::string shown = WithoutPasswords(flag.default_text);
      absl::StrAppend(&text, "| ", Code(absl::StrCat("--", flag.name, " ", flag.type)), " | ",
                      shown.empty() ? "none" : Code(shown), " | ", Cell(flag.help),
                      flag.repeats ? "; may be given several times" : "", " |\n");
    }
  }
  return text;
}

}  // namespace kvatlas
