// policy: checks a policy file, explains a decision, makes a token. Works on files alone: no
// service is asked, so what it says is of the file, not of what a process has loaded.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "indexer/base/nearest_name.h"
#include "indexer/security/policy.h"
#include "indexer/security/tokens.h"
#include "tools/kvatlas/command.h"

namespace kvatlas {
namespace {

// Every file is checked, and the worst result is the exit status. `Doubts` are rules that are valid
// but look like an oversight.
int Check(Command* command, const std::vector<std::string>& files) {
  if (files.empty()) return command->Usage("check: expected the policy's FILE");
  int exit = kExitOk;
  for (const std::string& file : files) {
    const absl::StatusOr<std::shared_ptr<const AccessPolicy>> policy = AccessPolicy::Read(file);
    if (!policy.ok()) {
      exit = command->Fail(policy.status());
      continue;
    }
    command->PrintJson({{"file", file}, {"rules", (*policy)->rules()}, {"ok", true}});
    if (!command->table()) continue;
    command->out() << file << ": " << (*policy)->rules() << " rules, trust domain \""
                   << (*policy)->trust_domain() << "\"\n";
    for (const std::string& doubt : (*policy)->Doubts()) command->out() << "  " << doubt << '\n';
  }
  const int done = command->Done();
  return exit == kExitOk ? done : exit;
}

// The claims of the question; an empty text claims nothing.
struct Explained {
  std::string policy;
  std::string model, tenant, holder, cell, replica;
  std::vector<std::string> hosts;
};

std::optional<std::string> Given(const std::string& value) {
  return value.empty() ? std::nullopt : std::optional(value);
}

// Decides as a service would, by `AccessPolicy::Decide`; a revoked identity is refused whatever the
// rules say.
int Explain(Command* command, const Explained& asked, const std::vector<std::string>& words) {
  if (words.size() != 2 || asked.policy.empty()) {
    return command->Usage("explain: expected IDENTITY VERB --policy=FILE");
  }
  const absl::StatusOr<Identity> identity = ParseIdentity(words[0]);
  if (!identity.ok()) return command->Usage(std::string(identity.status().message()));
  const std::optional<Verb> verb = VerbOfName(words[1]);
  if (!verb.has_value()) {
    std::vector<std::string> names;
    for (int i = 0; i < kVerbs; ++i) names.emplace_back(VerbName(static_cast<Verb>(i)));
    return command->Usage(absl::StrCat("unknown verb \"", words[1], "\"",
                                       DidYouMean(words[1], names),
                                       "; verbs: ", absl::StrJoin(names, ", ")));
  }
  const absl::StatusOr<std::shared_ptr<const AccessPolicy>> policy =
      AccessPolicy::Read(asked.policy);
  if (!policy.ok()) return command->Fail(policy.status());
  const PolicyTarget target = {.model = Given(asked.model),
                               .tenant = asked.tenant,  // a domain without a name has the empty one
                               .holder = Given(asked.holder),
                               .cell = Given(asked.cell),
                               .replica = Given(asked.replica),
                               .url_hosts = asked.hosts};
  PolicyDecision decision = (*policy)->Decide(*identity, *verb, target);
  if ((*policy)->Revoked(*identity)) decision = {.allowed = false, .reason = "it is revoked"};
  command->PrintJson({{"identity", identity->Text()},
                      {"verb", words[1]},
                      {"allowed", decision.allowed},
                      {"reason", decision.reason}});
  if (command->table()) {
    command->out() << (decision.allowed ? "allowed: " : "refused: ") << decision.reason << '\n';
  }
  const int done = command->Done();
  return decision.allowed || done != kExitOk ? done : kExitRefused;
}

struct NewToken {
  std::string identity, tenant, name, expires;
};

// The token is printed once and stored nowhere: the line for --access_tokens has its hash alone.
int Token(Command* command, const NewToken& wanted) {
  const absl::StatusOr<Identity> identity = ParseIdentity(wanted.identity);
  if (!identity.ok()) {
    return command->Usage("--identity: " + std::string(identity.status().message()));
  }
  if (!wanted.expires.empty()) {
    const absl::StatusOr<int64_t> end = TokenEnd(wanted.expires);
    if (!end.ok()) return command->Usage("--expires: " + std::string(end.status().message()));
    if (*end <= absl::ToUnixSeconds(absl::Now()))
      return command->Usage("--expires=" + wanted.expires + ": that day is over");
  }
  const std::string token = NewBearerToken();
  std::string line = absl::StrCat("sha256:", TokenHash(token), " ", wanted.identity);
  for (const auto& [name, value] :
       {std::pair("tenant", wanted.tenant), std::pair("name", wanted.name),
        std::pair("expires", wanted.expires)}) {
    if (!value.empty()) absl::StrAppend(&line, " ", name, "=", value);
  }
  command->PrintJson({{"token", token}, {"line", line}});
  if (command->table()) {
    command->out() << "token, shown once:          " << token
                   << "\nline for --access_tokens: " << line << '\n';
  }
  return command->Done();
}

}  // namespace

// Three commands behind one word; their flags are declared together, and each says in its help
// which one it belongs to.
int RunPolicy(const std::vector<std::string>& arguments, const CommandIo& io) {
  Command command("policy",
                  "check FILE…: what is wrong with a policy. explain IDENTITY VERB --policy=FILE: "
                  "which rule decides. token --identity=IDENTITY: a bearer token and its line.",
                  io);
  Explained asked;
  NewToken wanted;
  FlagSet& flags = command.flags();
  flags.Add("policy", &asked.policy, "explain: the policy's file");
  flags.Add("model", &asked.model, "explain: model of the domain");
  flags.Add("tenant", &asked.tenant, "explain: tenant of the domain");
  flags.Add("holder", &asked.holder, "explain: the worker that is claimed");
  flags.Add("cell", &asked.cell, "explain: the cell that is claimed");
  flags.Add("replica", &asked.replica, "explain: the replica that is claimed");
  flags.Add("host", &asked.hosts, "explain: hosts of addresses and URLs");
  flags.Add("identity", &wanted.identity, "token: whose it is, as gateway/NAME");
  flags.Add("of_tenant", &wanted.tenant,
            "token: the one tenant it is for; empty: as the rules say");
  flags.Add("name", &wanted.name, "token: name to revoke it by, as token:NAME");
  flags.Add("expires", &wanted.expires, "token: last day, as 2027-01-31");
  flags.Example("kvatlas policy check policy.json", "before it is put in place");
  flags.Example(
      "kvatlas policy explain worker/a/0 publish --policy=policy.json --holder=0 --cell=a",
      "why a worker is refused");
  command.TakeWords("check FILE... | explain IDENTITY VERB | token");
  if (std::optional<int> exit = command.Parse(arguments)) return *exit;
  std::vector<std::string> words = command.words();
  const std::string what = words.empty() ? "" : words[0];
  if (!words.empty()) words.erase(words.begin());
  if (what == "check") return Check(&command, words);
  if (what == "explain") return Explain(&command, asked, words);
  if (what == "token") return Token(&command, wanted);
  return command.Usage(absl::StrCat("expected check, explain or token, found \"", what, "\"",
                                    DidYouMean(what, {"check", "explain", "token"})));
}

}  // namespace kvatlas
