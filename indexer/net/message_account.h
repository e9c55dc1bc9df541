// How much memory the gRPC messages that clients have sent may take once they are parsed: one, and
// all that are alive together.
//
//   bytes of a message ─▶ ParsedSize ─▶ Admit ─┬▶ Charge ─▶ parsed ─▶ handled ─▶ given back
//                                              ╰▶ RESOURCE_EXHAUSTED: not parsed
//
// A message takes up to sixty times its bytes (`parsed_size.h`), and calls that wait keep theirs.
// *Place*: one account of the process; `bounded_message.h` charges streams, `bounded_methods.h` all
// other calls.
// *Threads*: any. *Cost*: two atomic additions for a message above `kSmallMessageBytes`.
// *Bounds*: `kParsedBytesMax` of one message; of all together `bytes_max`. Smaller ones than
// `kSmallMessageBytes` are neither charged nor refused, so that most calls go on whatever others
// send; their number is that of calls, which is bounded for each connection.

#ifndef KVATLAS_INDEXER_NET_MESSAGE_ACCOUNT_H_
#define KVATLAS_INDEXER_NET_MESSAGE_ACCOUNT_H_

#include <google/protobuf/io/zero_copy_stream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/net/parsed_size.h"

namespace kvatlas {

// Eight bytes for each of the longest message's (`GrpcServerOptions::message_bytes_max`), which is
// more than a prompt of that length takes.
inline constexpr size_t kParsedBytesMax = size_t{128} << 20;
inline constexpr size_t kSmallMessageBytes = 64 << 10;

class MessageAccount {
 public:
  // Gives its bytes back when it goes.
  class Charge {
   public:
    Charge() = default;
    // `of` may be null: what is not charged.
    Charge(MessageAccount* of, size_t bytes) : of_(of), bytes_(bytes) {}
    Charge(Charge&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Charge& operator=(Charge&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(bytes_, other.bytes_);
      other.Free();
      return *this;
    }
    ~Charge() { Free(); }

    // Of the message, charged or not.
    size_t bytes() const { return bytes_; }
    bool charged() const { return of_ != nullptr; }

   private:
    void Free() {
      if (of_ != nullptr) of_->bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
      of_ = nullptr;
      bytes_ = 0;
    }

    MessageAccount* of_ = nullptr;
    size_t bytes_ = 0;
  };

  explicit MessageAccount(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  MessageAccount(const MessageAccount&) = delete;
  MessageAccount& operator=(const MessageAccount&) = delete;

  // At first with an eighth of what the process may use.
  static MessageAccount& OfProcess();

  // The same of a budget; 0: none, nothing changes.
  void SetBudget(uint64_t budget_bytes);

  // `parsed_bytes` as `ParsedSize` tells them. RESOURCE_EXHAUSTED, counted.
  absl::StatusOr<Charge> Admit(size_t parsed_bytes, bool charged = true);

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t bytes_max() const { return bytes_max_.load(std::memory_order_relaxed); }
  enum class Refused : uint8_t { kTooLarge, kTooMany };
  uint64_t refused(Refused why) const {
    return refused_[static_cast<size_t>(why)].load(std::memory_order_relaxed);
  }

 private:
  absl::Status Refuse(Refused why, const char* text);

  std::atomic<uint64_t> bytes_max_;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> refused_[2] = {};
};

// A message of that shape, with the account of the process. Not `charged`: one that is handled and
// freed before its thread reads another; only what one may take counts.
absl::StatusOr<MessageAccount::Charge> AdmitMessage(const MessageShape& shape,
                                                    google::protobuf::io::ZeroCopyInputStream* wire,
                                                    bool charged);

// At most a line every ten seconds for each method. `peer` may be empty.
void LogRefusedMessage(std::string_view method, std::string_view peer, const absl::Status& why);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_MESSAGE_ACCOUNT_H_
