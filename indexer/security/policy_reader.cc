// Reads a policy file. Unknown keys and verbs are refused, with the nearest known name: a key that
// is misspelt and ignored would open more than its author meant. The first error ends the reading,
// and nothing of a bad file is used.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "indexer/base/nearest_name.h"
#include "indexer/security/policy.h"
#include "indexer/security/policy_rule.h"
#include "indexer/security/secret_file.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr size_t kFileBytesMax = 4 << 20;
constexpr size_t kSaltBytesMin = 16;

}  // namespace

// Fills `policy_` from the JSON of the file, section by section. Errors begin with the place, as
// rules[2].allow[0].
class AccessPolicy::Reader {
 public:
  explicit Reader(AccessPolicy* policy) : policy_(policy) {}

  // In the order of the file's description in policy.h. "version" is required, so that a later
  // format is not read as this one.
  absl::Status Read(const Json& json) {
    static const std::vector<std::string> kKeys = {"version", "trust_domain", "names",
                                                   "rules",   "revoked",      "tenants"};
    if (absl::Status bad = CheckKeys("the policy", json, kKeys); !bad.ok()) return bad;
    if (!json.contains("version") || json["version"] != 1) {
      return Bad("version", "expected 1");
    }
    if (absl::Status bad = ReadText(json, "trust_domain", "", &policy_->trust_domain_); !bad.ok()) {
      return bad;
    }
    if (absl::Status bad = ReadNames(json); !bad.ok()) return bad;
    if (absl::Status bad = ReadRules(json); !bad.ok()) return bad;
    if (absl::Status bad = ReadRevoked(json); !bad.ok()) return bad;
    return ReadTenants(json);
  }

 private:
  static absl::Status Bad(std::string_view place, std::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(Absl(place), ": ", Absl(what)));
  }

  static absl::Status Bad(std::string_view place, const absl::Status& status) {
    return Bad(place, std::string(status.message()));
  }

  // An object with no other keys than these.
  static absl::Status CheckKeys(std::string_view place, const Json& json,
                                const std::vector<std::string>& keys) {
    if (!json.is_object()) {
      return Bad(place, absl::StrCat("expected an object, found ", json.type_name()));
    }
    for (const auto& [key, value] : json.items()) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      return Bad(place,
                 absl::StrCat("unknown key \"", absl::CHexEscape(key), "\"", DidYouMean(key, keys),
                              "; expected one of ", absl::StrJoin(keys, ", ")));
    }
    return absl::OkStatus();
  }

  // A key that may be absent: then `*text` keeps its value.
  static absl::Status ReadText(const Json& json, const char* key, std::string_view place,
                               std::string* text) {
    if (!json.contains(key)) return absl::OkStatus();
    if (!json[key].is_string()) {
      return Bad(absl::StrCat(Absl(place), key),
                 absl::StrCat("expected a string, found ", json[key].type_name()));
    }
    *text = json[key].get<std::string>();
    return absl::OkStatus();
  }

  // A list of strings. REQUIRES: the key is there.
  static absl::StatusOr<std::vector<std::string>> ReadTexts(const Json& json, const char* key,
                                                            std::string_view place) {
    const std::string at = absl::StrCat(Absl(place), key);
    std::vector<std::string> texts;
    if (!json[key].is_array()) {
      return Bad(at, absl::StrCat("expected a list of strings, found ", json[key].type_name()));
    }
    for (const Json& one : json[key]) {
      if (!one.is_string()) {
        return Bad(absl::StrCat(at, "[", texts.size(), "]"),
                   absl::StrCat("expected a string, found ", one.type_name()));
      }
      texts.push_back(one.get<std::string>());
    }
    return texts;
  }

  // Absent is not the same as empty: an absent list means the default of its key, an empty one
  // matches nothing.
  static absl::Status ReadPatterns(const Json& json, const char* key, std::string_view place,
                                   std::optional<std::vector<NamePattern>>* patterns) {
    if (!json.contains(key)) return absl::OkStatus();
    absl::StatusOr<std::vector<std::string>> texts = ReadTexts(json, key, place);
    if (!texts.ok()) return texts.status();
    patterns->emplace();
    for (const std::string& text : *texts) {
      absl::StatusOr<NamePattern> pattern = NamePattern::Parse(text);
      if (!pattern.ok()) {
        return Bad(absl::StrCat(Absl(place), key, "[", (*patterns)->size(), "]"), pattern.status());
      }
      (*patterns)->push_back(*std::move(pattern));
    }
    return absl::OkStatus();
  }

  // Names are kept in lower case, as DNS names are compared (AccessPolicy::IdentityOf looks them up
  // so).
  absl::Status ReadNames(const Json& json) {
    if (!json.contains("names")) return absl::OkStatus();
    if (!json["names"].is_object()) return Bad("names", "expected an object");
    for (const auto& [name, value] : json["names"].items()) {
      const std::string place = absl::StrCat("names[\"", absl::CHexEscape(name), "\"]");
      if (!name.starts_with("dns:") && !name.starts_with("cn:")) {
        return Bad(place, "expected \"dns:NAME\" or \"cn:NAME\"");
      }
      if (!value.is_string()) return Bad(place, "expected an identity as a string");
      absl::StatusOr<Identity> identity = ParseIdentity(value.get<std::string>());
      if (!identity.ok()) return Bad(place, identity.status());
      policy_->names_[absl::AsciiStrToLower(name)] = *std::move(identity);
    }
    return absl::OkStatus();
  }

  // "rules" must be there: a file without them would refuse everything, most likely by mistake.
  absl::Status ReadRules(const Json& json) {
    if (!json.contains("rules"))
      return Bad("rules", "expected a list; without it nothing is allowed");
    if (!json["rules"].is_array()) return Bad("rules", "expected a list");
    for (const Json& one : json["rules"]) {
      auto rule = std::make_shared<Rule>();
      rule->number = policy_->rules_.size();
      if (absl::Status bad = ReadRule(one, rule.get()); !bad.ok()) return bad;
      policy_->rules_.push_back(std::move(rule));
    }
    return absl::OkStatus();
  }

  // The number of a rule is its index in the file; decisions name it.
  absl::Status ReadRule(const Json& json, Rule* rule) {
    static const std::vector<std::string> kKeys = {"identity", "allow",   "models",    "tenants",
                                                   "cells",    "holders", "url_hosts", "quota"};
    const std::string place = absl::StrCat("rules[", rule->number, "]");
    const std::string within = place + ".";
    if (absl::Status bad = CheckKeys(place, json, kKeys); !bad.ok()) return bad;
    for (const char* const needed : {"identity", "allow"}) {
      if (!json.contains(needed)) return Bad(within + needed, "expected, not found");
    }
    std::string identity;
    if (absl::Status bad = ReadText(json, "identity", within, &identity); !bad.ok()) return bad;
    if (absl::Status bad = ReadIdentity(within + "identity", identity, rule); !bad.ok()) return bad;
    if (absl::Status bad = ReadAllow(json, within, rule); !bad.ok()) return bad;
    if (absl::Status bad = ReadPatterns(json, "models", within, &rule->models); !bad.ok()) {
      return bad;
    }
    if (absl::Status bad = ReadPatterns(json, "tenants", within, &rule->tenants); !bad.ok()) {
      return bad;
    }
    if (rule->tenants.has_value()) {
      for (const NamePattern& one : *rule->tenants) rule->tenant_texts.push_back(one.Text());
    }
    if (absl::Status bad = ReadPatterns(json, "cells", within, &rule->cells); !bad.ok()) return bad;
    if (absl::Status bad = ReadPatterns(json, "holders", within, &rule->holders); !bad.ok()) {
      return bad;
    }
    if (absl::Status bad = ReadHosts(json, within, rule); !bad.ok()) return bad;
    return ReadQuota(json, within, &rule->quota);
  }

  // "*" is any identity: role and names stay empty.
  static absl::Status ReadIdentity(const std::string& place, const std::string& text, Rule* rule) {
    if (text == "*") return absl::OkStatus();
    // With a letter in place of each '*' it must be a valid identity; then each segment is a
    // pattern.
    std::string plain = text;
    std::replace(plain.begin(), plain.end(), '*', 'x');
    absl::StatusOr<Identity> identity = ParseIdentity(plain);
    if (!identity.ok()) return Bad(place, identity.status());
    rule->role = identity->role;
    const std::vector<std::string> segments = absl::StrSplit(text, '/');
    for (size_t i = 1; i < segments.size(); ++i) {
      absl::StatusOr<NamePattern> pattern = NamePattern::Parse(segments[i]);
      if (!pattern.ok()) return Bad(place, pattern.status());
      rule->names.push_back(*std::move(pattern));
    }
    return absl::OkStatus();
  }

  // A set of bits by `Verb`. "route" includes "pick": the same question, put by a gateway
  // (ext_proc).
  static absl::Status ReadAllow(const Json& json, const std::string& within, Rule* rule) {
    absl::StatusOr<std::vector<std::string>> verbs = ReadTexts(json, "allow", within);
    if (!verbs.ok()) return verbs.status();
    for (size_t i = 0; i < verbs->size(); ++i) {
      const std::string& name = (*verbs)[i];
      if (name == "*") {
        rule->verbs = (1u << kVerbs) - 1;
        continue;
      }
      const std::optional<Verb> verb = VerbOfName(name);
      if (!verb.has_value()) {
        std::vector<std::string> names;
        for (int v = 0; v < kVerbs; ++v) names.emplace_back(VerbName(static_cast<Verb>(v)));
        return Bad(
            absl::StrCat(within, "allow[", i, "]"),
            absl::StrCat("unknown verb \"", absl::CHexEscape(name), "\"", DidYouMean(name, names),
                         "; expected *, ", absl::StrJoin(names, ", ")));
      }
      rule->verbs |= 1u << static_cast<uint32_t>(*verb);
      if (*verb == Verb::kRoute) rule->verbs |= 1u << static_cast<uint32_t>(Verb::kPick);
    }
    return absl::OkStatus();
  }

  // Each entry is an address, a range, or a pattern of names. "*" is both: every range and every
  // name. Without "url_hosts" no host is allowed.
  static absl::Status ReadHosts(const Json& json, const std::string& within, Rule* rule) {
    std::vector<std::string> ranges;
    if (json.contains("url_hosts")) {
      absl::StatusOr<std::vector<std::string>> hosts = ReadTexts(json, "url_hosts", within);
      if (!hosts.ok()) return hosts.status();
      for (size_t i = 0; i < hosts->size(); ++i) {
        const std::string& host = (*hosts)[i];
        if (host == "*") ranges.insert(ranges.end(), {"0.0.0.0/0", "::/0"});
        if (EngineAddresses::Parse({host}).ok()) {
          ranges.push_back(host);
          continue;
        }
        absl::StatusOr<NamePattern> pattern = NamePattern::Parse(host);
        if (host.empty() || host.find('/') != std::string::npos || !pattern.ok()) {
          return Bad(absl::StrCat(within, "url_hosts[", i, "]"),
                     absl::StrCat("\"", absl::CHexEscape(host),
                                  "\": expected ADDRESS, ADDRESS/BITS, HOST or *.DOMAIN"));
        }
        rule->host_names.push_back(*std::move(pattern));
      }
    }
    absl::StatusOr<EngineAddresses> addresses = EngineAddresses::Parse(ranges);
    if (!addresses.ok()) return Bad(within + "url_hosts", addresses.status());
    rule->host_addresses = *std::move(addresses);
    return absl::OkStatus();
  }

  // A bound of 0 would read as "none" (PolicyQuota), so it is refused.
  static absl::Status ReadQuota(const Json& json, const std::string& within,
                                std::optional<PolicyQuota>* read) {
    if (!json.contains("quota")) return absl::OkStatus();
    PolicyQuota quota;
    const std::vector<std::pair<std::string, double*>> fields = {
        {"connections", &quota.connections},   {"streams", &quota.streams},
        {"hellos_per_s", &quota.hellos_per_s}, {"domains", &quota.domains},
        {"holders", &quota.holders},           {"label_bytes", &quota.label_bytes},
        {"blocks_per_s", &quota.blocks_per_s}, {"queries_per_s", &quota.queries_per_s},
        {"dumps_per_s", &quota.dumps_per_s},   {"blocks_per_holder", &quota.blocks_per_holder},
        {"pool_times", &quota.pool_times},     {"unread_bytes", &quota.unread_bytes},
    };
    std::vector<std::string> names;
    for (const auto& [name, value] : fields) names.push_back(name);
    if (absl::Status bad = CheckKeys(within + "quota", json["quota"], names); !bad.ok()) return bad;
    for (const auto& [name, value] : fields) {
      if (!json["quota"].contains(name)) continue;
      const Json& number = json["quota"][name];
      if (!number.is_number() || number.get<double>() <= 0) {
        return Bad(absl::StrCat(within, "quota.", name),
                   absl::StrCat("expected a number above 0, found ", number.dump()));
      }
      *value = number.get<double>();
    }
    *read = quota;
    return absl::OkStatus();
  }

  // Serial numbers and fingerprints are brought into the form that ReadCertificate makes, so that
  // texts copied from openssl match.
  absl::Status ReadRevoked(const Json& json) {
    if (!json.contains("revoked")) return absl::OkStatus();
    absl::StatusOr<std::vector<std::string>> revoked = ReadTexts(json, "revoked", "");
    if (!revoked.ok()) return revoked.status();
    for (size_t i = 0; i < revoked->size(); ++i) {
      std::string& one = (*revoked)[i];
      const bool credential =
          one.starts_with("serial:") || one.starts_with("sha256:") || one.starts_with("token:");
      if (credential && !one.starts_with("token:")) {
        // As `openssl x509` prints them: capitals, leading zeros, colons.
        std::string digits = absl::AsciiStrToLower(one.substr(7));
        digits.erase(std::remove(digits.begin(), digits.end(), ':'), digits.end());
        const bool hex =
            !digits.empty() && digits.find_first_not_of("0123456789abcdef") == digits.npos;
        if (!hex || (one.starts_with("sha256:") && digits.size() != 64)) {
          return Bad(absl::StrCat("revoked[", i, "]"),
                     absl::StrCat("\"", absl::CHexEscape(one),
                                  "\": expected serial:HEX, or sha256: and 64 digits"));
        }
        if (one.starts_with("serial:"))
          digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size() - 1));
        one = one.substr(0, 7) + digits;
      }
      if (credential || ParseIdentity(one).ok()) continue;
      return Bad(absl::StrCat("revoked[", i, "]"),
                 absl::StrCat("\"", absl::CHexEscape(one),
                              "\": expected an identity, serial:HEX, sha256:HEX or token:NAME"));
    }
    policy_->revoked_ = *std::move(revoked);
    return absl::OkStatus();
  }

  // A tenant whose engines serve others too must have a salt: its hashes would otherwise match
  // blocks that the others cached.
  absl::Status ReadTenants(const Json& json) {
    static const std::vector<std::string> kKeys = {"salt", "pool", "public_prefixes", "quota"};
    if (!json.contains("tenants")) return absl::OkStatus();
    if (!json["tenants"].is_object()) return Bad("tenants", "expected an object");
    for (const auto& [name, value] : json["tenants"].items()) {
      const std::string place = absl::StrCat("tenants[\"", absl::CHexEscape(name), "\"]");
      if (absl::Status bad = CheckKeys(place, value, kKeys); !bad.ok()) return bad;
      PolicyTenant tenant;
      std::string salt;
      if (absl::Status bad = ReadText(value, "salt", place + ".", &salt); !bad.ok()) return bad;
      if (!salt.empty()) {
        absl::StatusOr<std::string> bytes = ReadSalt(salt);
        if (!bytes.ok()) return Bad(place + ".salt", bytes.status());
        tenant.salt = *std::move(bytes);
      }
      if (value.contains("pool")) {
        std::string pool;
        if (absl::Status bad = ReadText(value, "pool", place + ".", &pool); !bad.ok()) return bad;
        if (salt.empty() && pool != name) {
          return Bad(place,
                     "engines that are shared need a \"salt\", or this tenant would be served "
                     "what others cached");
        }
        tenant.pool = std::move(pool);
      }
      if (value.contains("public_prefixes")) {
        if (!value["public_prefixes"].is_boolean()) {
          return Bad(place + ".public_prefixes", "expected true or false");
        }
        tenant.public_prefixes = value["public_prefixes"].get<bool>();
      }
      if (absl::Status bad = ReadQuota(value, place + ".", &tenant.quota); !bad.ok()) return bad;
      policy_->tenant_quotas_ |= tenant.quota.has_value();
      policy_->tenants_[name] = std::move(tenant);
    }
    return absl::OkStatus();
  }

  // The secret itself is never in the policy. Its file must be readable by owner and group alone.
  static absl::StatusOr<std::string> ReadSalt(const std::string& text) {
    if (!text.starts_with('@')) {
      return absl::InvalidArgumentError(
          "expected @FILE: a policy is read by many, a salt is a secret");
    }
    const std::string path = text.substr(1);
    absl::StatusOr<std::string> bytes = ReadSecretFile(path);
    if (!bytes.ok()) return bytes.status();
    if (bytes->size() >= kSaltBytesMin) return bytes;
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected at least ", kSaltBytesMin,
                                                   " bytes (openssl rand -hex 32), found ",
                                                   bytes->size()));
  }

  AccessPolicy* const policy_;
};

absl::StatusOr<std::shared_ptr<const AccessPolicy>> AccessPolicy::Parse(std::string_view json) {
  // nlohmann keeps the last of two equal keys. A policy that says two things is refused: the
  // callback keeps the keys of each open object in a stack of sets.
  std::vector<std::set<std::string>> keys;
  std::string twice;
  const auto look = [&keys, &twice](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.empty() &&
        !keys.back().insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  Json parsed;
  try {
    parsed = Json::parse(json.begin(), json.end(), look);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("not JSON: ", error.what()));
  }
  if (!twice.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the key \"", absl::CHexEscape(twice), "\" is given twice in one object"));
  }
  auto policy = std::make_shared<AccessPolicy>();
  if (absl::Status bad = Reader(policy.get()).Read(parsed); !bad.ok()) return bad;
  return std::shared_ptr<const AccessPolicy>(std::move(policy));
}

// As Parse, with the path before its errors.
absl::StatusOr<std::shared_ptr<const AccessPolicy>> AccessPolicy::Read(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFileUpTo(path, kFileBytesMax);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::shared_ptr<const AccessPolicy>> policy = Parse(*text);
  if (policy.ok()) return policy;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", policy.status().message()));
}

}  // namespace kvatlas
