#include "indexer/coverage/parent_metrics.h"

#include "indexer/base/domain.h"

namespace kvatlas {
namespace {

// As the format has it: nothing else need be escaped.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '\n') {
      quoted += "\\n";
    } else if (c == '"' || c == '\\') {
      (quoted += '\\') += c;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace

void AppendParentMetrics(const std::vector<ParentStats>& parents, const std::string& prefix,
                         std::string* text) {
  const std::string name = prefix + "_parent_refuses";
  *text += "# HELP " + name + " 1: this parent refuses what is reported.\n";
  *text += "# TYPE " + name + " gauge\n";
  for (const ParentStats& stats : parents) {
    const bool refuses = !stats.status.ok() || !stats.refusal.ok();
    *text += name + "{domain=" + Quoted(ToString(stats.domain)) +
             ",parent=" + Quoted(stats.parent) + "} " + (refuses ? "1" : "0") + "\n";
  }
}

}  // namespace kvatlas
