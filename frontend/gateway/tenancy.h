// Decides for which tenant a request is, and keeps its prompts apart from other tenants'.
//
// *Tenant*: that of the credential, if it is bound to one; else the one that is claimed (a field,
// x-kvatlas-tenant), if a rule of the policy allows it to this identity; else, where nothing is
// claimed and the rules name exactly one, that one. Anything else is PERMISSION_DENIED, in the same
// words whether the tenant exists or not. Without a policy: what is claimed.
//
// *Model*: rules are asked about the name that the request says, before any name is looked up: of
// an adapter, that of the adapter. A request that goes to an engine without its model being read
// needs a rule for all models.
//
// *Salt*: of a tenant with a "salt" in the policy, the engine's request carries cache_salt =
//   hex(HMAC-SHA-256(salt, "kvatlas-tenant" 0 tenant 0 model 0 the caller's cache_salt))[0..32)
// and the route's hashes are made with it. So equal prompts of two tenants have other hashes in the
// index and in the engine, no outsider can compute them, and no time to first token tells of
// another tenant's prompts. The caller's own salt is mixed in and never passed on as it is. A
// tenant with "public_prefixes" whose caller gives no salt is not salted: it shares its prompts
// with everybody, by choice. An engine has to take `cache_salt` (vLLM and SGLang do). A call that
// leaves blocks in a cache and has no place for a salt is refused.
//
// *Pool*: tenants whose requests the same engines serve name the tenant of these engines' domains
// as their "pool"; their salts keep them apart there. Without one a tenant has engines of its own.
//
// *Threads*: any.

#ifndef KVATLAS_FRONTEND_GATEWAY_TENANCY_H_
#define KVATLAS_FRONTEND_GATEWAY_TENANCY_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/security/security.h"

namespace kvatlas {

// The model of a request whose model is not read here. No model has this name: only a rule for all
// models allows it.
inline constexpr char kModelNotRead[] = "(not read)";

class Tenancy {
 public:
  // `verb`: the right that sending a request needs at this interface.
  explicit Tenancy(std::shared_ptr<Security> security = Security::OfProcess(),
                   Verb verb = Verb::kRoute)
      : security_(std::move(security)), verb_(verb) {}

  bool enforces() const { return security_->enforces(); }
  Security& security() const { return *security_; }

  // May `identity` send this request? Its tenant. PERMISSION_DENIED, audited; FAILED_PRECONDITION:
  // the tenant is salted. Where the model is known later than the tenant, it is asked again.
  struct Claim {
    std::string_view tenant = {};
    std::optional<std::string> model = std::nullopt;  // none: not known yet; or `kModelNotRead`
    std::string_view no_salt =
        {};  // why a salt cannot be put into it, and what to do; empty: it can
  };
  absl::StatusOr<std::string> Admit(const Identity& identity, const Claim& claim) const;
  // Asks again, once a model is known; what it points to must outlive it. Null: there is no policy.
  using MayUse = std::function<absl::Status(const std::string& model)>;
  MayUse MayUseOf(std::shared_ptr<const Identity> identity, std::string tenant) const;

  // The tenant of the domains whose engines serve `tenant`: its own, unless the policy gives it a
  // "pool".
  std::string PoolOf(const std::string& tenant) const;

  // May it send requests for this model of this tenant? Not audited.
  bool MayRoute(const Identity& identity, const std::string& tenant,
                const std::string& model) const;
  // May this identity see what belongs to `tenant`: a decision, a receipt?
  bool Sees(const Identity& identity, const std::string& tenant) const;

  // Is there a salt that the engine's request must carry, whatever the caller says?
  bool Salted(std::string_view tenant, std::string_view callers_salt) const;
  bool MaySalt(std::string_view tenant) const {
    return Salted(tenant, "x");
  }  // some of its prompts
  // The cache_salt that the request carries: the caller's, unless the tenant is salted.
  std::string SaltOf(std::string_view tenant, std::string_view model,
                     std::string_view callers_salt) const;

  // The same in the body of an OpenAI request, which has no other "cache_salt" afterwards; returns
  // it. INVALID_ARGUMENT: not a JSON object. Empty, and the body stays as it is, where the tenant
  // has no salt (`MaySalt`).
  absl::StatusOr<std::string> PutSalt(std::string_view tenant,
                                      std::shared_ptr<const std::string>* body) const;

 private:
  bool Allowed(const Identity& identity, Verb verb, const PolicyTarget& target) const;

  const std::shared_ptr<Security> security_;
  const Verb verb_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_TENANCY_H_
