// pki: certificates and keys for a trial. All work is done by `Pki`, `CurveKeys` and `RecordKeys`;
// here are the words and the output, which names the flags that take the files.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/nearest_name.h"
#include "indexer/security/curve.h"
#include "indexer/security/pki.h"
#include "indexer/security/record_keys.h"
#include "indexer/security/secret_file.h"
#include "tools/kvatlas/command.h"

namespace kvatlas {
namespace {

// The example policy is a start that works with the certificates of `issue`.
int Init(Command* command, const std::string& directory, const std::string& trust_domain) {
  const absl::StatusOr<Pki> pki = Pki::Create(directory, trust_domain);
  if (!pki.ok()) return command->Fail(pki.status());
  if (absl::Status bad = pki->WriteExamplePolicy(); !bad.ok()) return command->Fail(bad);
  const std::string policy = pki->policy_path();
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

// The secret key goes to `path`, the public one to where people and scripts see it.
int Curve(Command* command, const std::string& path) {
  const absl::StatusOr<CurveKeys> keys = MakeCurveKeys();
  if (!keys.ok()) return command->Fail(keys.status());
  absl::Status written = WriteNewFile(path, keys->secret_key + "\n", 0600);
  if (!written.ok()) return command->Fail(written);
  command->PrintJson({{"curve_key", path}, {"server_key", keys->public_key}});
  if (command->table()) {
    command->out() << "secret key: " << path << "\npublic key: " << keys->public_key
                   << "\n  an engine's: --zmq_curve_key=" << path
                   << ", and server_key where it is registered\n";
  }
  return command->Done();
}

// The key with which a worker signs its records in Redis, derived from the cell's: the cell's own
// key need not be on the worker's host.
int RecordKey(Command* command, const std::string& cell, const std::string& worker,
              const std::string& path) {
  absl::Status written = RecordKeys::WriteOfWorker(cell, worker, path);
  if (!written.ok()) return command->Fail(written);
  command->PrintJson({{"record_key", path}, {"worker", worker}});
  if (command->table())
    command->out() << "for worker " << worker << ", in its Redis URL: log_key=" << path << '\n';
  return command->Done();
}

}  // namespace

// Four commands behind one word, told apart by it and the number of the other words.
int RunPki(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command(
      "pki",
      "init DIR: a CA for a trial and a policy to begin with. issue DIR IDENTITY: a "
      "certificate of it. curve FILE: keys of an engine, or of a process that listens "
      "to engines, for encrypted ZeroMQ. record-key CELL_KEY WORKER FILE: the key that a "
      "worker signs its logs in Redis with, of the cell's. A fleet has a PKI of its own, such as "
      "SPIRE "
      "or cert-manager.",
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
  command.flags().Example("kvatlas pki curve engine.key", "for an engine's events");
  command.flags().Example("kvatlas pki record-key cell.logkey 0 worker-0.logkey",
                          "for worker 0 of a cell with logs in Redis");
  command.TakeWords("init DIR | issue DIR IDENTITY | curve FILE | record-key CELL_KEY WORKER FILE");
  if (std::optional<int> exit = command.Parse(arguments)) return *exit;
  const std::vector<std::string>& words = command.words();
  const std::string what = words.empty() ? "" : words[0];
  if (what == "init" && words.size() == 2) return Init(&command, words[1], trust_domain);
  if (what == "issue" && words.size() == 3) {
    issue.identity = words[2];
    issue.valid_for_s = int64_t{days} * 24 * 3600;
    return Issue(&command, words[1], std::move(issue));
  }
  if (what == "curve" && words.size() == 2) return Curve(&command, words[1]);
  if (what == "record-key" && words.size() == 4)
    return RecordKey(&command, words[1], words[2], words[3]);
  return command.Usage(
      "expected \"init DIR\", \"issue DIR IDENTITY\", \"curve FILE\" or "
      "\"record-key CELL_KEY WORKER FILE\"");
}

}  // namespace kvatlas
