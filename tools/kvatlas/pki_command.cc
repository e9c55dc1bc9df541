// pki: certificates for a trial.

#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "indexer/service/nearest_name.h"
#include "indexer/service/security/pki.h"
#include "tools/kvatlas/command.h"

namespace kvatlas {
namespace {

// Lets every role do its work for the empty tenant, with engines on loopback and in private networks.
std::string ExamplePolicy(const std::string& trust_domain) {
  constexpr char kHosts[] =
      R"(["127.0.0.0/8", "::1", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "localhost"])";
  return absl::StrCat(
      "{\n  \"version\": 1,\n  \"trust_domain\": \"", trust_domain, "\",\n  \"rules\": [\n",
      "    {\"identity\": \"worker/*/*\", \"allow\": [\"publish\"], \"url_hosts\": ", kHosts,
      "},\n",
      "    {\"identity\": \"leaf/*/*\", \"allow\": [\"report\", \"snapshot\", \"query\"], "
      "\"url_hosts\": ",
      kHosts, "},\n",
      "    {\"identity\": \"node/*\", \"allow\": [\"report\", \"query\"], \"url_hosts\": ", kHosts,
      "},\n", "    {\"identity\": \"frontend/*\", \"allow\": [\"query\", \"status\"]},\n",
      "    {\"identity\": \"gateway/*\", \"allow\": [\"route\", \"feedback\"]},\n",
      "    {\"identity\": \"operator/*\", \"allow\": [\"*\"], \"tenants\": [\"*\"], "
      "\"url_hosts\": ",
      kHosts, "},\n", "    {\"identity\": \"viewer/*\", \"allow\": [\"status\", \"metrics\"]}\n",
      "  ]\n}\n");
}

int Init(Command* command, const std::string& directory, const std::string& trust_domain) {
  const absl::StatusOr<Pki> pki = Pki::Create(directory, trust_domain);
  if (!pki.ok()) return command->Fail(pki.status());
  const std::string policy = directory + "/policy.json";
  std::ofstream file(policy, std::ios::trunc);
  file << ExamplePolicy(trust_domain);
  file.close();
  if (!file) return command->Fail(absl::UnavailableError("cannot write " + policy));
  command->PrintJson({{"ca", pki->ca_path()}, {"policy", policy}});
  if (command->table()) {
    command->out() << "CA for a trial, its keys in " << directory
                   << ":\n  --tls_ca=" << pki->ca_path() << "\n  --access_policy=" << policy
                   << "\nnext: kvatlas pki issue " << directory << " leaf/CELL/-\n";
  }
  return command->Done();
}

int Issue(Command* command, const std::string& directory, PkiIssue issue) {
  const absl::StatusOr<Pki> pki = Pki::Open(directory);
  if (!pki.ok()) return command->Fail(pki.status());
  const absl::StatusOr<TlsPaths> paths = pki->Issue(issue);
  if (!paths.ok()) return command->Fail(paths.status());
  command->PrintJson(
      {{"tls_cert", paths->certificate}, {"tls_key", paths->key}, {"tls_ca", paths->ca}});
  if (command->table()) {
    command->out() << "--tls_cert=" << paths->certificate << " --tls_key=" << paths->key
                   << " --tls_ca=" << paths->ca << '\n';
  }
  return command->Done();
}

}  // namespace

int RunPki(const std::vector<std::string>& arguments, const CommandIo& io) {
  std::vector<std::string> words;
  std::vector<std::string> flags;
  for (const std::string& one : arguments) (one.starts_with("-") ? flags : words).push_back(one);
  Command command("pki",
                  "init DIR: a CA for a trial and a policy to begin with. issue DIR IDENTITY: a "
                  "certificate of it. A fleet has a PKI of its own, such as SPIRE or cert-manager.",
                  io);
  std::string trust_domain = "kvatlas.local";
  PkiIssue issue;
  uint32_t days = 90;
  command.flags().Add("trust_domain", &trust_domain, "init: trust domain of the SPIFFE IDs");
  command.flags().Add("dns", &issue.dns, "issue: DNS names of the certificate");
  command.flags().Add("ip", &issue.ips, "issue: addresses of the certificate");
  command.flags().Add("days", &days, "issue: how long it is valid", 1, 3650);
  command.flags().Example("kvatlas pki init ca", "once");
  command.flags().Example("kvatlas pki issue ca worker/a/0", "for each process");
  if (std::optional<int> exit = command.Parse(flags)) return *exit;
  const std::string what = words.empty() ? "" : words[0];
  if (what == "init" && words.size() == 2) return Init(&command, words[1], trust_domain);
  if (what == "issue" && words.size() == 3) {
    issue.identity = words[2];
    issue.valid_for_s = int64_t{days} * 24 * 3600;
    return Issue(&command, words[1], std::move(issue));
  }
  return command.Usage("expected \"init DIR\" or \"issue DIR IDENTITY\"");
}

}  // namespace kvatlas
