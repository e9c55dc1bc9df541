// A process at the end of simulated connections that can be killed: its connections break, and what
// comes next at the same address knows nothing.
//
// *Threads*: one.

#ifndef KVATLAS_TESTS_MORTAL_ACCEPTOR_H_
#define KVATLAS_TESTS_MORTAL_ACCEPTOR_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"

namespace kvatlas {

class MortalAcceptor : public StreamAcceptor {
 public:
  // Where streams end from now on; null: they are refused. REQUIRES: `Kill` before the one of
  // before goes.
  void SetAcceptor(StreamAcceptor* acceptor) { acceptor_ = acceptor; }

  // The sessions end; each connection breaks when something is sent on it.
  void Kill() {
    for (const auto& weak : open_)
      if (const auto open = weak.lock(); open != nullptr) open->session.reset();
    open_.clear();
    acceptor_ = nullptr;
  }

  std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) override {
    auto open = std::make_shared<Open>();
    if (acceptor_ != nullptr) open->session = acceptor_->Accept(std::move(reply));
    std::erase_if(open_, [](const std::weak_ptr<Open>& ended) { return ended.expired(); });
    open_.push_back(open);
    return std::make_unique<Session>(std::move(open));
  }

 private:
  struct Open {
    std::unique_ptr<ReceiverSession> session;  // null: the process it was of is no more
  };
  class Session : public ReceiverSession {
   public:
    explicit Session(std::shared_ptr<Open> open) : open_(std::move(open)) {}
    ~Session() override { open_->session.reset(); }
    absl::Status OnMessage(SenderMessage message) override {
      if (open_->session == nullptr) return absl::UnavailableError("killed");
      return open_->session->OnMessage(std::move(message));
    }

   private:
    const std::shared_ptr<Open> open_;
  };

  StreamAcceptor* acceptor_ = nullptr;
  std::vector<std::weak_ptr<Open>> open_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_MORTAL_ACCEPTOR_H_
