// Checks of each service by what it says of itself, and of services that did not answer. Texts of
// statuses and flags are matched by the words that our own services use.

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/kvatlas/findings.h"
#include "tools/kvatlas/table.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

std::string MiB(uint64_t bytes) { return absl::StrCat(Grouped(bytes >> 20), " MiB"); }

// ---- What did not answer ----

// The remedy by the service that told the address: its flag has to be mended, or the service
// started.
std::string RemedyFor(const Unreached& what) {
  if (what.told_by.empty())
    return absl::StrCat("start the ", what.kind, ", or name its ",
                        what.kind == "frontend" || what.kind == "relay" ? "HTTP" : "gRPC",
                        " address");
  if (what.kind == "hierarchy") {
    return absl::StrCat("start the node, or mend ",
                        absl::StartsWith(what.told_by, "frontend") ? "--hierarchy" : "--parents",
                        " of ", what.told_by);
  }
  if (absl::StartsWith(what.told_by, "hierarchy")) {
    return absl::StrCat("start the leaf, or give it --advertise=HOST:PORT that others reach",
                        what.cell.empty() ? "" : ", in cell " + what.cell);
  }
  return absl::StrCat("start the leaf, or mend --leaves of ", what.told_by);
}

// The TLS look (`LookAtTls`) tells apart why nothing of ours answered. In this order: a certificate
// that no CA vouches for, one for another name, TLS where we asked in clear, or nothing there at
// all.
void CheckUnreached(const Unreached& what, FindingList* findings) {
  const std::string where = absl::StrCat(what.kind, " ", what.address);
  const std::string told =
      what.told_by.empty() ? "" : absl::StrCat(" (told by ", what.told_by, ")");
  // gRPC's and OpenSSL's words for a failed handshake: then we did ask by TLS.
  const bool asked_by_tls =
      absl::StrContains(what.why.message(), "TLS") || absl::StrContains(what.why.message(), "SSL");
  if (what.tls.connected.ok() && what.tls.speaks_tls && !what.tls.chain_error.empty()) {
    return findings->Error("certificate_invalid", where,
                           absl::StrCat("its certificate: ", what.tls.chain_error, told),
                           "give it --tls_cert and --tls_key that the CA of --tls_ca issued");
  }
  if (what.tls.connected.ok() && what.tls.speaks_tls && !what.tls.name.ok()) {
    return findings->Error(
        "certificate_invalid", where, absl::StrCat(what.tls.name.message(), told),
        "issue its --tls_cert for the name or address that others dial, or dial that");
  }
  if (what.tls.connected.ok() && what.tls.speaks_tls && !asked_by_tls) {
    return findings->Error("tls_mismatch", where,
                           absl::StrCat("it speaks TLS and was asked in clear, or refused our "
                                        "credential: ",
                                        what.why.message(), told),
                           "give --tls_ca, and --tls_cert with --tls_key or --token, to the asker");
  }
  findings->Error(
      "unreachable", where,
      absl::StrCat(what.tls.connected.ok() ? what.why.message() : what.tls.connected.message(),
                   told),
      RemedyFor(what));
}

// ---- Certificates ----

// The certificate of a service that answered: it may end soon, or not fit the address that others
// dial.
void CheckCertificate(const Certificate& of, const CheckOptions& options, FindingList* findings) {
  const int64_t left_s = of.tls.names.not_after_unix_s - options.now_unix_s;
  const char* const renew =
      "renew the file of --tls_cert; it is watched, so that no restart is needed";
  if (!of.tls.chain_error.empty()) {
    findings->Error("certificate_invalid", of.service,
                    absl::StrCat("its certificate: ", of.tls.chain_error), renew);
  } else if (left_s <= 0) {
    findings->Error("certificate_invalid", of.service, "its certificate has expired", renew);
  } else if (left_s < options.certificate_days * 24 * 3600) {
    findings->Warning("certificate_ends", of.service,
                      absl::StrCat("its certificate ends in ",
                                   left_s < 2 * 3600 ? absl::StrCat(left_s / 60, " minutes")
                                                     : absl::StrCat(left_s / 3600, " hours")),
                      renew);
  }
  if (!of.tls.name.ok()) {
    findings->Error("certificate_invalid", of.service,
                    absl::StrCat("at ", of.address, ": ", of.tls.name.message()),
                    "issue its --tls_cert for the name or address that others dial");
  }
}

// ---- Memory, disk, addresses ----

// "ample", "tight" or worse, as `MemoryBudget` calls its levels; "": the service has no budget.
void CheckMemory(const std::string& where, const std::string& level, uint64_t used, uint64_t budget,
                 FindingList* findings) {
  if (level.empty() || level == "ample") return;
  const std::string what = absl::StrCat("memory is ", level, ": ", MiB(used), " of ", MiB(budget),
                                        " of --memory_budget");
  const char* const remedy = "raise --memory_budget, or spread its workers over more leaves";
  if (level == "tight") return findings->Warning("memory", where, what, remedy);
  findings->Error("memory", where, absl::StrCat(what, "; new blocks are refused"), remedy);
}

// A restore that failed is a warning, since streams repair it; a checkpoint that cannot be written
// is an error, since the next restart will not have it.
void CheckCheckpoint(const std::string& where, const v1::CheckpointStats& of,
                     FindingList* findings) {
  if (!of.restore_error().empty()) {
    findings->Warning("checkpoint", where, "it started without what it knew: " + of.restore_error(),
                      "register again the engines that were registered over HTTP; others come back "
                      "by themselves");
  }
  if (!of.last_error().empty()) {
    findings->Error(
        "checkpoint", where,
        absl::StrCat("no checkpoint can be written to ", of.directory(), ": ", of.last_error(),
                     of.age_ms() < 0 ? ""
                                     : absl::StrCat(" (the last one is ",
                                                    ShortMs(uint64_t(of.age_ms())), " old)")),
        "make room there, or name another directory by --checkpoint_dir");
  } else if (of.bytes() > 0 && of.free_bytes() >= 0 &&
             static_cast<uint64_t>(of.free_bytes()) < of.bytes()) {
    findings->Warning("checkpoint", where,
                      absl::StrCat(of.directory(), " has ", MiB(uint64_t(of.free_bytes())),
                                   " left, and a checkpoint takes ", MiB(of.bytes())),
                      "make room there, or keep fewer with --checkpoint_keep");
  }
}

// By text: an address that was advertised is not resolved here.
bool IsUnspecified(const std::string& address) {
  return absl::StartsWith(address, "0.0.0.0:") || absl::StartsWith(address, "[::]:");
}
bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "[::1]:") ||
         absl::StartsWith(address, "localhost:");
}

// Addresses that cells advertise to a node, by which frontends will ask them. A loopback address is
// right where the node itself is on this host.
void CheckAdvertised(const SurveyedNode& node, FindingList* findings) {
  for (const v1::DomainStats& domain : node.stats.domains()) {
    for (const v1::HolderStats& holder : domain.holder_stats()) {
      const std::string& told = holder.address();
      const std::string where = absl::StrCat("cell ", holder.holder().name());
      if (IsUnspecified(told)) {
        findings->Error("address", where,
                        absl::StrCat("it tells ", node.Name(), " that it is asked at ", told,
                                     ", which is no address of one host"),
                        "start its leaf with --advertise=HOST:PORT");
      } else if (IsLoopback(told) && !IsLoopback(node.addresses.front())) {
        findings->Warning("address", where,
                          absl::StrCat("it tells ", node.Name(), " that it is asked at ", told,
                                       ", which only processes of its own host reach"),
                          "start its leaf with --advertise=HOST:PORT");
      }
    }
  }
}

// --insecure is a finding without TLS only.
void CheckInsecure(const std::string& where, bool insecure, bool tls, FindingList* findings) {
  if (!insecure || tls) return;
  findings->Warning(
      "insecure", where,
      "--insecure: any process that reaches its ports may speak for any worker and cell",
      "give it --tls_cert, --tls_key, --tls_ca and --access_policy, or listen on "
      "loopback");
}

// A leaf or node without holders is a warning only: it may just have been started.
void CheckNode(const SurveyedNode& node, FindingList* findings) {
  const v1::MemoryStats& memory = node.stats.memory();
  CheckMemory(node.Name(), memory.level(), memory.used_bytes(), memory.budget_bytes(), findings);
  if (node.stats.has_checkpoint()) CheckCheckpoint(node.Name(), node.stats.checkpoint(), findings);
  CheckInsecure(node.Name(), node.Flag("insecure") == "true", !node.Flag("tls_cert").empty(),
                findings);
  bool has_holders = false;
  for (const v1::DomainStats& domain : node.stats.domains())
    has_holders = has_holders || domain.holder_stats_size() > 0;
  if (node.is_leaf()) {
    if (!has_holders)
      findings->Warning("no_workers", node.Name(), "no worker was ever heard of",
                        absl::StrCat("point publishers or relays at ", node.addresses.front(),
                                     ", or name engines by --workers"));
    return;
  }
  CheckAdvertised(node, findings);
  if (!has_holders)
    findings->Warning("no_cells", node.Name(), "no cell reports to it",
                      absl::StrCat("start leaves with --parents=", node.addresses.front()));
}

// The value of a flag as `process.flags` of a status has it; "": the default.
std::string FlagOf(const Json& status, const char* name) {
  if (!status.contains("process") || !status["process"].is_object()) return "";
  const Json& process = status["process"];
  if (!process.contains("flags") || !process["flags"].contains(name)) return "";
  return TextIn(process["flags"][name], "value");
}

// 0: missing, or no number.
double Real(const Json& json, const char* field) {
  if (!json.is_object() || !json.contains(field) || !json[field].is_number()) return 0;
  return json[field].get<double>();
}

// ---- Frontends ----

// A warning if more than a tenth of all routes since the start fell back.
void CheckRoutes(const SurveyedPage& page, FindingList* findings) {
  const double routes = Real(page.status, "routes");
  if (routes == 0 || !page.status["by_fallback"].is_object()) return;
  double without = 0;
  std::string named;
  for (const auto& [fallback, times] : page.status["by_fallback"].items()) {
    if (fallback == "none" || !times.is_number() || times.get<double>() == 0) continue;
    without += times.get<double>();
    absl::StrAppend(&named, named.empty() ? "" : ", ", fallback, " ", times.get<uint64_t>());
  }
  if (without > 0.1 * routes)
    findings->Warning(
        "fallbacks", page.Name(),
        absl::StrCat(without, " of ", routes, " routes since its start fell back: ", named),
        "mend what is unreachable above; kvatlas streams shows who is behind");
}

// A frontend sees that workers of such a cell are silent, and not why: the leaf's own finding about
// its Redis replaces those.
bool ItIsWithoutRedis(const Survey& survey, const std::string& cell) {
  return std::any_of(survey.nodes.begin(), survey.nodes.end(), [&](const SurveyedNode& node) {
    return node.is_leaf() && node.stats.cell() == cell && IsWithoutRedis(node);
  });
}

// Its upstreams, its routes, kept promises, memory, and its own diagnosis.
void CheckFrontend(const Survey& survey, const SurveyedPage& page, FindingList* findings) {
  const bool has_nodes = !ListIn(page.status, "hierarchies").empty();
  if (!has_nodes && ListIn(page.status, "leaves").empty()) {
    findings->Error("no_upstreams", page.Name(), "it knows no hierarchy node and no leaf",
                    "start it with --hierarchy=HOST:PORT or --leaves=CELL=HOST:PORT");
  }
  CheckRoutes(page, findings);
  // `believed` is the share of promises that the frontend now expects to be kept.
  for (const Json& cell : ListIn(page.status, "promises")) {
    const double believed = Real(cell, "believed");
    if (believed >= 0.75) continue;
    findings->Warning(
        "broken_promises", absl::StrCat("cell ", TextIn(cell, "cell")),
        absl::StrCat("its leaf had less than the hierarchy said in ", Real(cell, "broken"), " of ",
                     Real(cell, "promises"), " cases at ", page.Name()),
        "look for stale streams of this cell; lower --withdraw_delay of its leaf");
  }
  if (page.status.contains("memory")) {
    const Json& memory = page.status["memory"];
    CheckMemory(page.Name(), TextIn(memory, "level"),
                static_cast<uint64_t>(Real(memory, "used_bytes")),
                static_cast<uint64_t>(Real(memory, "budget_bytes")), findings);
  }
  // The frontend's own diagnosis, as findings of this list.
  for (const Json& finding : ListIn(page.diagnosis, "findings")) {
    const std::string worker = TextIn(finding, "worker");
    // Engines are asked from here as well (`CheckEngines`).
    if (TextIn(finding, "cause") == "engine_unreachable") continue;
    if (TextIn(finding, "cause") == "publisher_dead" &&
        ItIsWithoutRedis(survey, TextIn(finding, "cell")))
      continue;
    findings->Warning("prediction",
                      worker.empty()
                          ? page.Name()
                          : absl::StrCat("worker ", worker, " of cell ", TextIn(finding, "cell")),
                      absl::StrCat(TextIn(finding, "cause"), ": ", TextIn(finding, "meaning")),
                      TextIn(finding, "remedy"));
  }
}

}  // namespace

void CheckServices(const Survey& survey, const CheckOptions& options, FindingList* findings) {
  for (const Unreached& unreached : survey.unreached) CheckUnreached(unreached, findings);
  for (const Certificate& certificate : survey.certificates)
    CheckCertificate(certificate, options, findings);
  for (const SurveyedNode& node : survey.nodes) CheckNode(node, findings);
  for (const SurveyedPage& page : survey.pages) {
    CheckInsecure(page.Name(), FlagOf(page.status, "insecure") == "true",
                  !FlagOf(page.status, "tls_cert").empty(), findings);
    if (page.kind == "frontend") CheckFrontend(survey, page, findings);
  }
}

}  // namespace kvatlas
