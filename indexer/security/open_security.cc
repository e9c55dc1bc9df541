// The security of a process, test or library without files: every question is answered with yes,
// without a lock or an allocation.

#include "indexer/security/open_security.h"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvatlas {
namespace {

// A call that is never cut has nothing to remember.
class NoCall : public Security::OpenCall {
  void Allowed(Verb, PolicyTarget) override {}
};

class OpenSecurity : public Security {
 public:
  TlsFiles* tls() override { return nullptr; }
  bool enforces() const override { return false; }
  Duration connection_age() const override { return Duration(0); }
  std::shared_ptr<const AccessPolicy> policy() const override { return nullptr; }
  absl::Status MayListen(const Address&) override { return absl::OkStatus(); }
  absl::Status MayGoInClear(std::string_view, const std::string&, bool) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<const Identity>> Authenticate(std::string_view,
                                                               std::string_view) override {
    return AnonymousIdentity();
  }
  absl::Status CheckMethod(const Identity&, Verb, std::string_view) override {
    return absl::OkStatus();
  }
  void AuditUnknown(Verb, std::string_view, const absl::Status&) override {}
  absl::Status Check(const Identity&, Verb, const PolicyTarget&, std::string_view, std::string_view,
                     bool) override {
    return absl::OkStatus();
  }
  std::unique_ptr<OpenCall> AddCall(std::shared_ptr<const Identity>, std::string, std::string, Verb,
                                    std::string, std::function<void()>) override {
    return std::make_unique<NoCall>();
  }
  absl::Status Take(const Identity&, QuotaKind, double, std::string_view,
                    std::string_view) override {
    return absl::OkStatus();
  }
  absl::StatusOr<Held> Hold(const Identity&, std::vector<QuotaUse>, std::string_view,
                            std::string_view, const QuotaHold*) override {
    return Held();
  }
  absl::StatusOr<Held> HoldConnection(const Identity&, const std::string&) override {
    return Held();
  }
  PolicyQuota QuotaOf(const Identity&, std::string_view) const override { return {}; }
  void Audit(const AuditLine&) override {}
  void AppendMetrics(std::string*) const override {}
};

}  // namespace

const std::shared_ptr<const Identity>& AnonymousIdentity() {
  static const auto* const anonymous =
      new std::shared_ptr<const Identity>(std::make_shared<Identity>());
  return *anonymous;
}

std::unique_ptr<Security::OpenCall> MakeOpenCall() { return std::make_unique<NoCall>(); }

std::shared_ptr<Security> MakeOpenSecurity() { return std::make_shared<OpenSecurity>(); }

}  // namespace kvatlas
