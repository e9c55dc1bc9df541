// A rule of a policy: the identities that it is for, what it allows, and what a request lacks.

#ifndef KVATLAS_INDEXER_SECURITY_POLICY_RULE_H_
#define KVATLAS_INDEXER_SECURITY_POLICY_RULE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/security/policy.h"

namespace kvatlas {

// '*' stands for any run of characters; at most one.
class NamePattern {
 public:
  static absl::StatusOr<NamePattern> Parse(const std::string& text) {
    const size_t star = text.find('*');
    if (star != std::string::npos && text.find('*', star + 1) != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", absl::CHexEscape(text), "\": expected at most one *"));
    }
    NamePattern pattern;
    pattern.head_ = text.substr(0, star);
    pattern.any_ = star != std::string::npos;
    if (pattern.any_) pattern.tail_ = text.substr(star + 1);
    return pattern;
  }

  bool Matches(std::string_view text) const {
    if (!any_) return text == head_;
    return text.size() >= head_.size() + tail_.size() && text.starts_with(head_) &&
           text.ends_with(tail_);
  }
  std::string Text() const { return any_ ? head_ + "*" + tail_ : head_; }

 private:
  std::string head_;
  std::string tail_;
  bool any_ = false;
};

inline bool AnyMatches(const std::vector<NamePattern>& patterns, std::string_view text) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [text](const NamePattern& pattern) { return pattern.Matches(text); });
}

struct AccessPolicy::Rule {
  size_t number = 0;
  std::optional<IdentityRole> role;  // none: any
  std::vector<NamePattern> names;
  uint32_t verbs = 0;
  std::optional<std::vector<NamePattern>> models;
  std::optional<std::vector<NamePattern>> tenants;
  std::vector<std::string> tenant_texts;
  std::optional<std::vector<NamePattern>> cells;
  std::optional<std::vector<NamePattern>> holders;
  std::vector<NamePattern> host_names;
  EngineAddresses host_addresses;
  std::optional<PolicyQuota> quota;

  bool Of(const Identity& identity) const {
    if (!role.has_value()) return true;
    if (*role != identity.role) return false;
    if (names.size() == 2) {
      return names[0].Matches(identity.cell) && names[1].Matches(identity.name);
    }
    return names.empty() || names[0].Matches(identity.name);
  }
  bool Allows(Verb verb) const { return (verbs >> static_cast<uint32_t>(verb) & 1) != 0; }

  bool AllowsTenant(const Identity& identity, const std::string& tenant) const {
    if (!identity.tenant.empty() && tenant != identity.tenant) return false;
    if (!tenants.has_value()) return tenant == identity.tenant;
    return AnyMatches(*tenants, tenant);
  }
  bool AllowsHost(const std::string& host) const {
    return host_addresses.Contains(host) || AnyMatches(host_names, host);
  }

  // What the request lacks to be allowed by this rule, for the audit log; empty: nothing. REQUIRES:
  // the rule is for this identity and verb.
  std::string Missing(const Identity& identity, Verb verb, const PolicyTarget& target) const {
    if (target.holder.has_value()) {
      const bool own =
          verb == Verb::kPublish && identity.role == IdentityRole::kWorker && !holders.has_value();
      if (own && *target.holder != identity.name) {
        return absl::StrCat("holder \"", *target.holder,
                            "\": without \"holders\" a worker publishes under its own name only");
      }
      if (holders.has_value() && !AnyMatches(*holders, *target.holder)) {
        return absl::StrCat("holder \"", *target.holder, "\"");
      }
    }
    if (target.tenant.has_value() && !AllowsTenant(identity, *target.tenant)) {
      return absl::StrCat("tenant \"", *target.tenant, "\"");
    }
    if (target.model.has_value() && models.has_value() && !AnyMatches(*models, *target.model)) {
      return absl::StrCat("model \"", *target.model, "\"");
    }
    if (target.cell.has_value() && cells.has_value() && !AnyMatches(*cells, *target.cell)) {
      return absl::StrCat("cell \"", *target.cell, "\"");
    }
    for (const std::string& host : target.url_hosts) {
      if (!AllowsHost(host)) return absl::StrCat("url host \"", host, "\"");
    }
    return "";
  }
};

inline absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_POLICY_RULE_H_
