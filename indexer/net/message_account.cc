#include "indexer/net/message_account.h"

#include <algorithm>
#include <chrono>

#include "indexer/telemetry/log.h"
#include "indexer/telemetry/process_memory.h"

namespace kvatlas {
namespace {

constexpr uint64_t kPartOfBudget = 8;
// Whatever the budget, so that ordinary prompts go on.
constexpr uint64_t kBytesMaxLeast = uint64_t{16} << 20;

uint64_t PartOf(uint64_t bytes) { return std::max(bytes / kPartOfBudget, kBytesMaxLeast); }

}  // namespace

MessageAccount& MessageAccount::OfProcess() {
  static auto* const account = new MessageAccount(PartOf(MemoryLimitBytes()));
  return *account;
}

void MessageAccount::SetBudget(uint64_t budget_bytes) {
  if (budget_bytes > 0) bytes_max_.store(PartOf(budget_bytes), std::memory_order_relaxed);
}

// Adds first and takes back on failure, so that two callers cannot both pass the bound; one beside
// a failing one may be refused although it would have fitted.
absl::StatusOr<MessageAccount::Charge> MessageAccount::Admit(size_t parsed_bytes, bool charged) {
  if (parsed_bytes > kParsedBytesMax)
    return Refuse(Refused::kTooLarge, "the message has too many parts: send it in smaller ones");
  if (!charged || parsed_bytes <= kSmallMessageBytes) return Charge(nullptr, parsed_bytes);
  Charge charge(this, parsed_bytes);
  if (bytes_.fetch_add(parsed_bytes, std::memory_order_relaxed) + parsed_bytes <= bytes_max())
    return charge;
  return Refuse(Refused::kTooMany,
                "too many large messages at once (an eighth of --memory_budget)");
}

absl::Status MessageAccount::Refuse(Refused why, const char* text) {
  refused_[static_cast<size_t>(why)].fetch_add(1, std::memory_order_relaxed);
  return absl::ResourceExhaustedError(text);
}

absl::StatusOr<MessageAccount::Charge> AdmitMessage(const MessageShape& shape,
                                                    google::protobuf::io::ZeroCopyInputStream* wire,
                                                    bool charged) {
  return MessageAccount::OfProcess().Admit(ParsedSize(shape, wire, kParsedBytesMax), charged);
}

void LogRefusedMessage(std::string_view method, std::string_view peer, const absl::Status& why) {
  static auto* const limiter = new LogLimiter(std::chrono::seconds(10));
  LogEvery(*limiter, method, LogLevel::kWarning, "grpc message refused",
           {{"method", method}, {"peer", peer}, {"reason", why}});
}

}  // namespace kvatlas
