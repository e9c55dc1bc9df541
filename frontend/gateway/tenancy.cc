// Questions to the policy in force at that moment. The policy is read anew for each question, since
// it may be replaced while the process runs; a request may so be admitted by one and salted by the
// next.

#include "frontend/gateway/tenancy.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "frontend/prompt/request/prompt_request.h"

namespace kvatlas {
namespace {

// 128 bits of the HMAC: more than enough against collisions, and short in every body.
constexpr size_t kSaltDigits = 32;

// One text for every refusal, so that it does not tell whether a tenant or a model exists.
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

}  // namespace

// 1. Without a policy the claimed tenant counts.
// 2. Without a claim: the tenant that the credential is bound to, else the only one that the rules
//    name. A pattern with '*' names no tenant.
// 3. The policy decides about tenant, and model where it is known; a refusal is audited.
// 4. A salted tenant cannot send a request that has no place for its salt.
absl::StatusOr<std::string> Tenancy::Admit(const Identity& identity, const Claim& claim) const {
  const std::shared_ptr<const AccessPolicy> policy = security_->policy();
  std::string tenant(claim.tenant);
  if (policy == nullptr) return tenant;
  if (tenant.empty()) {
    const std::vector<std::string> tenants = policy->TenantsOf(identity, verb_);
    if (tenants.size() == 1 && tenants[0].find('*') == std::string::npos) tenant = tenants[0];
    if (!identity.tenant.empty()) tenant = identity.tenant;
  }
  PolicyTarget target;
  target.model = claim.model;
  target.tenant = tenant;
  if (!security_->Check(identity, verb_, target, "", "refusal").ok()) return NotAllowed();
  if (!claim.no_salt.empty() && Salted(tenant, "")) {
    return absl::FailedPreconditionError(
        absl::StrCat("prompts of this tenant are salted: ",
                     absl::string_view(claim.no_salt.data(), claim.no_salt.size())));
  }
  return tenant;
}

// Asked once the model is known, by the same rules.
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
  return Allowed(identity, verb_, {.model = model, .tenant = tenant});
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

// The zero bytes between the parts keep ("ab", "c") and ("a", "bc") apart.
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

// The callback of `WithSalt` decides by the model and the salt that the body has; `nullopt` leaves
// the body without a salt, which means that its prompts are shared. The old body stays valid for
// its other holders.
absl::StatusOr<std::string> Tenancy::PutSalt(std::string_view tenant,
                                             std::shared_ptr<const std::string>* body) const {
  if (!MaySalt(tenant)) return std::string();
  std::string salt;
  absl::StatusOr<std::string> salted = WithSalt(
      **body,
      [&](const std::string& model, const std::string& callers) -> std::optional<std::string> {
        if (!Salted(tenant, callers)) return std::nullopt;
        return salt = SaltOf(tenant, model, callers);
      });
  if (!salted.ok()) return salted.status();
  *body = std::make_shared<const std::string>(*std::move(salted));
  return salt;
}

}  // namespace kvatlas
