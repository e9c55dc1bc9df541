// The payloads that callers of a frontend read from its statuses, and the check of names before any
// other work.

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "frontend/router/frontend.h"

namespace kvatlas {
namespace {

// Statuses carry what callers need beside code and message as payloads, under these names.
constexpr char kRetryAfterUrl[] = "kvatlas.io/retry_after_ms";
constexpr char kUnknownModelUrl[] = "kvatlas/unknown-model";

}  // namespace

absl::Status CheckNames(const Domain& domain, const std::string& session_id) {
  if (domain.model.empty()) return absl::InvalidArgumentError("domain.model is empty");
  if (domain.model.size() > kDomainNameBytesMax || domain.tenant.size() > kDomainNameBytesMax)
    return absl::InvalidArgumentError("domain: a name has at most 256 bytes");
  if (session_id.size() > kSessionIdBytesMax)
    return absl::InvalidArgumentError("session_id: at most 256 bytes");
  return absl::OkStatus();
}

absl::Status WithRetryAfter(absl::Status status, Duration retry_after) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(retry_after).count();
  const std::string text = std::to_string(ms);
  // By way of a view: the template that takes strings has a name in clang that a library built by
  // gcc lacks.
  status.SetPayload(kRetryAfterUrl, absl::Cord(absl::string_view(text)));
  return status;
}

absl::Status UnknownModelError(std::string_view model) {
  absl::Status unknown = absl::NotFoundError(absl::StrCat(
      "The model `", absl::string_view(model.data(), model.size()), "` does not exist."));
  unknown.SetPayload(kUnknownModelUrl, absl::Cord());
  return unknown;
}

bool IsUnknownModel(const absl::Status& why) {
  return why.GetPayload(kUnknownModelUrl).has_value();
}

std::optional<Duration> RetryAfter(const absl::Status& refused) {
  const absl::optional<absl::Cord> payload = refused.GetPayload(kRetryAfterUrl);
  int64_t ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &ms)) return std::nullopt;
  return std::chrono::milliseconds(ms);
}

}  // namespace kvatlas
