// Decisions of a policy; policy_reader.cc makes it from its file, policy_rule.h has the single
// rule. Everything is immutable after parsing, so no lock is taken.

#include "indexer/security/policy.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "indexer/security/policy_rule.h"

namespace kvatlas {
namespace {

constexpr std::array<std::string_view, kVerbs> kVerbNames = {
    "publish", "report",   "query",   "route",  "pick",    "feedback", "snapshot",
    "dump",    "register", "operate", "status", "metrics", "health"};

// Why the target claims to be another worker, cell or node than the identity's own; empty: it does
// not. These rules are built in, no policy can relax them.
std::string ClaimsAnother(const Identity& identity, Verb verb, const PolicyTarget& target) {
  const auto other = [](const std::optional<std::string>& claimed, std::string_view own) {
    return claimed.has_value() && *claimed != own;
  };
  const std::string replica = identity.name == "-" ? "" : identity.name;
  if (verb == Verb::kPublish && identity.role == IdentityRole::kWorker) {
    if (other(target.cell, identity.cell)) return "a worker publishes to its own cell only";
  }
  if (verb == Verb::kReport && identity.role == IdentityRole::kLeaf) {
    if (other(target.cell, identity.cell)) return "a leaf reports for its own cell only";
    if (other(target.replica, replica)) return "a leaf reports as its own replica only";
  }
  if (verb == Verb::kReport && identity.role == IdentityRole::kNode &&
      other(target.cell, identity.name)) {
    return "a node reports under its own name only";
  }
  if (verb == Verb::kSnapshot && identity.role == IdentityRole::kLeaf &&
      other(target.cell, identity.cell)) {
    return "a leaf takes snapshots of its own cell only";
  }
  return "";
}

}  // namespace

// The text between scheme and path, without login and port. What is no URL yields a text that no
// rule allows.
std::string HostOfUrl(const std::string& url) {
  const size_t scheme = url.find("://");
  const size_t from = scheme == std::string::npos ? 0 : scheme + 3;
  std::string host = url.substr(from, url.find_first_of("/?#", from) - from);
  if (const size_t at = host.rfind('@'); at != std::string::npos) host.erase(0, at + 1);
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  if (const size_t colon = host.rfind(':'); colon != std::string::npos) host.erase(colon);
  return host;
}

std::string_view VerbName(Verb verb) { return kVerbNames[static_cast<size_t>(verb)]; }

std::optional<Verb> VerbOfName(std::string_view name) {
  for (size_t i = 0; i < kVerbNames.size(); ++i) {
    if (kVerbNames[i] == name) return static_cast<Verb>(i);
  }
  return std::nullopt;
}

// Fields that were not asked about are left out; an empty tenant is shown, since it is a tenant.
std::string TextOf(const PolicyTarget& target) {
  std::string text;
  const auto add = [&text](std::string_view name, const std::optional<std::string>& value) {
    if (!value.has_value()) return;
    absl::StrAppend(&text, text.empty() ? "" : " ", Absl(name), "=", *value);
  };
  add("model", target.model);
  add("tenant", target.tenant);
  add("cell", target.cell);
  add("replica", target.replica);
  add("holder", target.holder);
  for (const std::string& host : target.url_hosts) add("host", host);
  return text;
}

// 1. The first SPIFFE URI decides alone: one of a foreign trust domain is refused, even if other
//    names are mapped. 2. Else the first DNS name that "names" maps. 3. Else the common name. The
//    credential's serial number and fingerprint are kept, to be found in "revoked".
absl::StatusOr<Identity> AccessPolicy::IdentityOf(const CertificateNames& names) const {
  std::optional<Identity> identity;
  for (const std::string& uri : names.uris) {
    if (!uri.starts_with("spiffe://")) continue;
    absl::StatusOr<Identity> parsed = ParseSpiffeId(uri, trust_domain_);
    if (!parsed.ok()) return absl::PermissionDeniedError(parsed.status().message());
    identity = *std::move(parsed);
    break;  // a certificate has one SPIFFE ID
  }
  const auto look_up = [&](std::string_view kind, const std::string& name) {
    if (identity.has_value() || name.empty()) return;
    const auto found = names_.find(absl::AsciiStrToLower(absl::StrCat(Absl(kind), name)));
    if (found != names_.end()) identity = found->second;
  };
  for (const std::string& dns : names.dns) look_up("dns:", dns);
  look_up("cn:", names.common_name);
  if (!identity.has_value()) {
    return absl::PermissionDeniedError(
        "the certificate has no SPIFFE ID, and the policy's \"names\" have neither its DNS names "
        "nor its common name");
  }
  identity->credential = {absl::StrCat("serial:", names.serial),
                          absl::StrCat("sha256:", names.sha256)};
  identity->not_after_unix_s = names.not_after_unix_s;
  return *std::move(identity);
}

// True for a verb that some rule allows for some target: the request is worth reading.
PolicyDecision AccessPolicy::DecideMethod(const Identity& identity, Verb verb) const {
  if (verb == Verb::kHealth) return {.allowed = true, .reason = "health is always allowed"};
  for (const auto& rule : rules_) {
    if (rule->Allows(verb) && rule->Of(identity)) {
      return {.allowed = true, .reason = absl::StrCat("rules[", rule->number, "]")};
    }
  }
  return {.allowed = false,
          .reason = absl::StrCat("no rule allows ", Absl(VerbName(verb)), " to ", identity.Text())};
}

// One rule must allow the whole target: two rules that allow a part each do not add up. A refusal
// names what the first rule with the verb lacks, or that no rule has the verb.
PolicyDecision AccessPolicy::Decide(const Identity& identity, Verb verb,
                                    const PolicyTarget& target) const {
  if (verb == Verb::kHealth) return {.allowed = true, .reason = "health is always allowed"};
  if (std::string claims = ClaimsAnother(identity, verb, target); !claims.empty()) {
    return {.allowed = false, .reason = std::move(claims)};
  }
  const Rule* nearest = nullptr;
  std::string missing;
  for (const auto& rule : rules_) {
    if (!rule->Allows(verb) || !rule->Of(identity)) continue;
    std::string lacks = rule->Missing(identity, verb, target);
    if (lacks.empty()) {
      return {.allowed = true, .reason = absl::StrCat("rules[", rule->number, "]")};
    }
    if (nearest != nullptr) continue;
    nearest = rule.get();
    missing = std::move(lacks);
  }
  if (nearest == nullptr) return DecideMethod(identity, verb);
  return {.allowed = false,
          .reason = absl::StrCat("rules[", nearest->number, "] does not allow ", missing)};
}

// By identity, or by serial number, fingerprint or token name. Linear in the list, but called only
// when an identity is first seen, and for each token.
bool AccessPolicy::Revoked(const Identity& identity) const {
  if (revoked_.empty()) return false;
  const auto has = [this](const std::string& name) {
    return std::find(revoked_.begin(), revoked_.end(), name) != revoked_.end();
  };
  return has(identity.Text()) ||
         std::any_of(identity.credential.begin(), identity.credential.end(), has);
}

// As Rule::AllowsTenant decides, as a list. Patterns with '*' are returned as they are.
std::vector<std::string> AccessPolicy::TenantsOf(const Identity& identity, Verb verb) const {
  std::set<std::string> tenants;
  for (const auto& rule : rules_) {
    if (!rule->Allows(verb) || !rule->Of(identity)) continue;
    if (!rule->tenants.has_value()) {
      tenants.insert(identity.tenant);
    } else if (!identity.tenant.empty()) {
      if (AnyMatches(*rule->tenants, identity.tenant)) tenants.insert(identity.tenant);
    } else {
      tenants.insert(rule->tenant_texts.begin(), rule->tenant_texts.end());
    }
  }
  return {tenants.begin(), tenants.end()};
}

// The first rule of the identity with a quota, whatever verbs it allows. No rule: no bound.
PolicyQuota AccessPolicy::QuotaOf(const Identity& identity) const {
  for (const auto& rule : rules_) {
    if (rule->quota.has_value() && rule->Of(identity)) return *rule->quota;
  }
  return {};
}

// With several tenants, or a pattern, the identity alone does not tell which tenant it acts for;
// the caller names it then.
std::string AccessPolicy::QuotaTenantOf(const Identity& identity) const {
  if (!tenant_quotas_ || !identity.tenant.empty()) return identity.tenant;
  std::set<std::string> tenants;
  for (const auto& rule : rules_) {
    if (rule->tenants.has_value() && rule->Of(identity))
      tenants.insert(rule->tenant_texts.begin(), rule->tenant_texts.end());
  }
  const bool one = tenants.size() == 1 && tenants.begin()->find('*') == std::string::npos;
  return one ? *tenants.begin() : "";
}

// For `kvatlas policy check`: rules that are valid and probably not meant. 8.8.8.8 stands for any
// address of the internet.
std::vector<std::string> AccessPolicy::Doubts() const {
  std::vector<std::string> doubts;
  const auto doubt = [&doubts](const Rule& rule, std::string_view what) {
    doubts.push_back(absl::StrCat("rules[", rule.number, "]: ", Absl(what)));
  };
  for (const auto& rule : rules_) {
    const bool changes = rule->Allows(Verb::kOperate) || rule->Allows(Verb::kRegister);
    const bool open = !rule->role.has_value() || rule->role == IdentityRole::kAnonymous;
    if (open && rule->verbs != 0) doubt(*rule, "holds for callers without a credential too");
    if (changes && rule->role.has_value() && rule->role != IdentityRole::kOperator) {
      doubt(*rule, "lets a role that is not operator register engines or operate");
    }
    if (rule->host_addresses.Contains("8.8.8.8")) {
      doubt(*rule, "url_hosts hold every address: requests may be sent anywhere");
    }
    if (rule->verbs == 0) doubt(*rule, "allows nothing");
  }
  if (trust_domain_.empty() && names_.empty()) {
    doubts.push_back("neither trust_domain nor names: no certificate has an identity");
  }
  return doubts;
}

const PolicyTenant* AccessPolicy::Tenant(std::string_view name) const {
  const auto found = tenants_.find(name);
  return found == tenants_.end() ? nullptr : &found->second;
}

}  // namespace kvatlas
