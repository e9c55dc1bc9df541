// `IdentityAllowance` connects the registry, which knows no policy, to the quotas of an identity. A
// `Charge` of it is a `Security::Held`, given back when it is destroyed.

#include "indexer/transport/peer_policy.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

class IdentityAllowance final : public PeerAllowance {
 public:
  IdentityAllowance(std::shared_ptr<Security> security, StreamOrigin origin)
      : security_(std::move(security)), origin_(std::move(origin)) {}

  absl::StatusOr<ChargePtr> TakeDomain(const std::string& tenant) override {
    return Take({{QuotaKind::kDomains, 1}}, tenant, nullptr);
  }

  absl::StatusOr<ChargePtr> TakeHolder(const std::string& tenant, uint64_t label_bytes,
                                       const ChargePtr& previous) override {
    return Take(
        {{QuotaKind::kHolders, 1}, {QuotaKind::kLabelBytes, static_cast<double>(label_bytes)}},
        tenant, previous);
  }

  Blocks BlocksOf(const std::string& tenant) const override {
    const PolicyQuota quota = security_->QuotaOf(*origin_.identity, tenant);
    return {.max = static_cast<uint64_t>(quota.blocks_per_holder), .pool_times = quota.pool_times};
  }

  // A usual welcome is not audited here: the check of its hello was.
  void OnHelloAnswered(const Hello& hello, const absl::Status& answer, Epoch replaced) override {
    if (answer.ok() && replaced == 0) return;
    const std::string identity = origin_.identity->Text();
    const std::string target =
        absl::StrCat(TextOf(TargetOf(hello, origin_.verb, origin_.cell)), " epoch=", hello.epoch);
    const std::string reason =
        answer.ok()
            ? absl::StrCat("it takes the stream over from another instance, of epoch ", replaced)
            : std::string(answer.message());
    security_->Audit({.event = answer.ok() ? "takeover" : "refusal",
                      .allowed = answer.ok(),
                      .identity = identity,
                      .peer = origin_.peer,
                      .verb = VerbName(origin_.verb),
                      .target = target,
                      .reason = reason});
  }

 private:
  struct Held : Charge {
    explicit Held(Security::Held given) : hold(std::move(given)) {}
    const Security::Held hold;
  };

  // `previous` is ours if there is one, and then exchanged in one step: the same holder is not
  // counted twice in between.
  absl::StatusOr<ChargePtr> Take(std::vector<QuotaUse> uses, const std::string& tenant,
                                 const ChargePtr& previous) {
    const auto* const before = dynamic_cast<const Held*>(previous.get());
    absl::StatusOr<Security::Held> hold =
        security_->Hold(*origin_.identity, std::move(uses), origin_.peer, tenant,
                        before == nullptr ? nullptr : before->hold.get());
    if (!hold.ok()) return hold.status();
    return std::make_shared<const Held>(*std::move(hold));
  }

  const std::shared_ptr<Security> security_;
  const StreamOrigin origin_;
};

}  // namespace

// Addresses and labels named url count as claims: other processes would send requests there.
PolicyTarget TargetOf(const Hello& hello, Verb verb, const std::string& cell) {
  PolicyTarget target;
  target.model = hello.domain.model;
  target.tenant = hello.domain.tenant;
  if (verb == Verb::kReport) {
    target.cell = hello.holder.name;
    target.replica = hello.holder.replica;
  } else {
    target.holder = hello.holder.name;
    target.cell = cell;
  }
  if (!hello.address.empty()) target.url_hosts.push_back(HostOfUrl(hello.address));
  for (const auto& [name, value] : hello.labels) {
    if (name == "url") target.url_hosts.push_back(HostOfUrl(value));
  }
  return target;
}

std::shared_ptr<PeerAllowance> AllowanceOf(std::shared_ptr<Security> security,
                                           StreamOrigin origin) {
  return std::make_shared<IdentityAllowance>(std::move(security), std::move(origin));
}

}  // namespace kvatlas
