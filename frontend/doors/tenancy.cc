#include "frontend/doors/tenancy.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

constexpr size_t kSaltDigits = 32;
constexpr char kSaltField[] = "cache_salt";

absl::Status NotAllowed() {
  return absl::PermissionDeniedError(absl::string_view(kNotAllowed.data(), kNotAllowed.size()));
}

std::string Hmac(const std::string& key, const std::string& text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size))
      .substr(0, kSaltDigits);
}

// Of a request's object; a value that is no string counts as none here and is refused where the request is read.
std::string TextIn(const nlohmann::ordered_json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

absl::StatusOr<std::string> Tenancy::Admit(const Identity& identity, const Claim& claim) const {
  const std::shared_ptr<const AccessPolicy> policy = security_->policy();
  std::string tenant(claim.tenant);
  if (policy == nullptr) return tenant;
  if (tenant.empty()) {
    const std::vector<std::string> tenants = policy->TenantsOf(identity, Verb::kRoute);
    if (tenants.size() == 1 && tenants[0].find('*') == std::string::npos) tenant = tenants[0];
    if (!identity.tenant.empty()) tenant = identity.tenant;
  }
  PolicyTarget target;
  target.model = claim.model;
  target.tenant = tenant;
  if (!security_->Check(identity, Verb::kRoute, target, "", "refusal").ok()) return NotAllowed();
  if (!claim.no_salt.empty() && Salted(tenant, "")) {
    return absl::FailedPreconditionError(
        absl::StrCat("prompts of this tenant are salted: ",
                     absl::string_view(claim.no_salt.data(), claim.no_salt.size())));
  }
  return tenant;
}

Tenancy::MayUse Tenancy::MayUseOf(std::shared_ptr<const Identity> identity,
                                  std::string tenant) const {
  if (!enforces()) return nullptr;
  return
      [this, identity = std::move(identity), tenant = std::move(tenant)](const std::string& model) {
        return Admit(*identity, {.tenant = tenant, .model = model}).status();
      };
}

std::string Tenancy::PoolOf(const std::string& tenant) const {
  const std::shared_ptr<const AccessPolicy> policy = security_->policy();
  const PolicyTenant* const found = policy == nullptr ? nullptr : policy->Tenant(tenant);
  return found == nullptr ? tenant : found->pool.value_or(tenant);
}

bool Tenancy::Allowed(const Identity& identity, Verb verb, const PolicyTarget& target) const {
  const std::shared_ptr<const AccessPolicy> policy = security_->policy();
  return policy == nullptr || policy->Decide(identity, verb, target).allowed;
}

bool Tenancy::MayRoute(const Identity& identity, const std::string& tenant,
                       const std::string& model) const {
  return Allowed(identity, Verb::kRoute, {.model = model, .tenant = tenant});
}

bool Tenancy::Sees(const Identity& identity, const std::string& tenant) const {
  return Allowed(identity, Verb::kFeedback, {.tenant = tenant});
}

bool Tenancy::Salted(std::string_view tenant, std::string_view callers_salt) const {
  const std::shared_ptr<const AccessPolicy> policy = security_->policy();
  const PolicyTenant* const found = policy == nullptr ? nullptr : policy->Tenant(tenant);
  if (found == nullptr || found->salt.empty()) return false;
  return !(found->public_prefixes && callers_salt.empty());
}

std::string Tenancy::SaltOf(std::string_view tenant, std::string_view model,
                            std::string_view callers_salt) const {
  const std::shared_ptr<const AccessPolicy> policy = security_->policy();
  const PolicyTenant* const found = policy == nullptr ? nullptr : policy->Tenant(tenant);
  if (found == nullptr || found->salt.empty() || (found->public_prefixes && callers_salt.empty())) {
    return std::string(callers_salt);
  }
  std::string text = "kvatlas-tenant";
  for (const std::string_view part : {tenant, model, callers_salt}) {
    text.push_back('\0');
    text.append(part);
  }
  return Hmac(found->salt, text);
}

absl::StatusOr<std::string> Tenancy::PutSalt(std::string_view tenant,
                                             std::shared_ptr<const std::string>* body) const {
  // With a salt of the caller's: the strictest question.
  if (!Salted(tenant, "x")) return std::string();
  // Parsed as a whole, so that no second "cache_salt", however it is written, gets past.
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(**body, nullptr, false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the body: expected one JSON object");
  }
  const std::string callers = TextIn(json, kSaltField);
  std::string salt;
  if (!Salted(tenant, callers)) {
    json.erase(kSaltField);
  } else {
    salt = SaltOf(tenant, TextIn(json, "model"), callers);
    json[kSaltField] = salt;
  }
  *body = std::make_shared<const std::string>(
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return salt;
}

}  // namespace kvatlas
