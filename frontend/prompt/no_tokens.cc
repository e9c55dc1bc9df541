// Maps a status to one of seven reasons. A call whose path has no prompt is marked by a payload,
// since its code (UNIMPLEMENTED) is also that of an unsupported body.

#include "frontend/prompt/no_tokens.h"

#include <chrono>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "frontend/router/frontend.h"

namespace kvatlas {
namespace {

constexpr char kNoPromptUrl[] = "kvatlas/no-prompt";

// Every value that `NoTokensReason` returns: `Count` looks its counter up and must find it.
constexpr std::string_view kReasons[] = {"path",        "unsupported", "refused", "no_tokenizer",
                                         "unavailable", "late",        "too_long"};

}  // namespace

absl::Status NoPromptOf(std::string_view method, std::string_view path) {
  absl::Status why = absl::UnimplementedError(
      absl::StrCat("no prompt is read of ", absl::string_view(method.data(), method.size()), " ",
                   absl::string_view(path.data(), path.size())));
  why.SetPayload(kNoPromptUrl, absl::Cord());
  return why;
}

// RESOURCE_EXHAUSTED is also the code of a full queue, which counts as too long.
std::string_view NoTokensReason(const absl::Status& why) {
  if (why.GetPayload(kNoPromptUrl).has_value()) return "path";
  switch (why.code()) {
    case absl::StatusCode::kUnimplemented:
      return "unsupported";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return "refused";
    case absl::StatusCode::kNotFound:
      return "no_tokenizer";
    case absl::StatusCode::kDeadlineExceeded:
      return "late";
    case absl::StatusCode::kResourceExhausted:
      return "too_long";
    default:
      return "unavailable";
  }
}

NoTokensCounter::NoTokensCounter(Metrics* metrics) : limiter_(std::chrono::minutes(1)) {
  for (const std::string_view reason : kReasons) {
    by_reason_.emplace(
        reason,
        metrics->AddCounter(
            "kvatlas_frontend_no_tokens_total",
            "Prompts without tokens, by why: routed by load, or refused where a door has no "
            "other way.",
            {{"reason", std::string(reason)}}));
  }
}

// Calls without a prompt are normal traffic, so they are logged for debugging only.
void NoTokensCounter::Count(const std::string& model, const absl::Status& why) {
  if (IsUnknownModel(why)) return;
  const std::string_view reason = NoTokensReason(why);
  by_reason_.at(reason).Increment();
  LogEvery(limiter_, absl::StrCat(model, " ", absl::string_view(reason.data(), reason.size())),
           reason == "path" ? LogLevel::kDebug : LogLevel::kWarning, "a prompt has no tokens",
           {{"model", model}, {"reason", reason}, {"error", std::string(why.message())}});
}

}  // namespace kvatlas
