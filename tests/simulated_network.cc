#include "tests/simulated_network.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/status/status.h"

namespace kvatlas {
namespace {

constexpr Duration kReconnectAfter = std::chrono::seconds(1);

}  // namespace

Simulation::Simulation() { clock_.Advance(std::chrono::seconds(1)); }

void Simulation::At(Time when, std::function<void()> what) {
  due_.push({std::max(when, now()), order_++, std::move(what)});
}

void Simulation::RunUntil(Time end) {
  while (!due_.empty() && due_.top().when <= end) {
    Due next = std::move(const_cast<Due&>(due_.top()));  // it goes away now
    due_.pop();
    clock_.Advance(next.when - now());
    next.what();
  }
  if (end > now()) clock_.Advance(end - now());
}

// Kept alive by what is under way; `connection` tells what is of an earlier one.
struct SimulatedLink::State : std::enable_shared_from_this<State> {
  State(Simulation* sim, StreamAcceptor* accept, const NetworkOptions& network, uint64_t seed,
        uint64_t* lost)
      : simulation(*sim),
        acceptor(*accept),
        options(network),
        random(seed),
        lost_count(lost),
        cut_until(sim->now()) {}

  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(random); }

  bool Cut() {
    if (options.partition_every <= Duration(0)) return false;
    const Time now = simulation.now();
    while (now >= cut_until) {
      const double wait = -std::log(1 - Uniform()) * double(options.partition_every.count());
      cut_from = cut_until + Duration(static_cast<int64_t>(wait));
      cut_until = cut_from + options.partition_for;
    }
    return now >= cut_from;
  }

  bool Lost() {
    const bool lost =
        !simulation.calm() && (Cut() || (options.loss > 0 && Uniform() < options.loss));
    if (lost && lost_count != nullptr) ++*lost_count;
    return lost;
  }

  // `what` happens at the other end, unless the connection ended meanwhile.
  void Send(std::function<void(State&)> what) {
    if (Lost()) return;
    simulation.After(
        options.delay, [self = shared_from_this(), of = connection, what = std::move(what)] {
          if (self->observer != nullptr && self->session != nullptr && of == self->connection)
            what(*self);
        });
  }

  void Connect() {
    if (observer == nullptr || session != nullptr) return;
    session = acceptor.Accept([weak = weak_from_this(), of = connection](ReceiverMessage message) {
      const std::shared_ptr<State> self = weak.lock();
      if (self == nullptr || of != self->connection) return;
      self->Send(
          [message = std::move(message)](State& state) { state.observer->OnMessage(message); });
    });
    observer->OnConnected();
  }

  // By the receiving end: the sender hears of it after what was replied.
  void Close(const absl::Status& why) {
    closing = true;
    simulation.After(options.delay, [self = shared_from_this(), of = connection, why] {
      if (of == self->connection) self->Disconnect(why);
    });
  }

  void Disconnect(const absl::Status& why) {
    if (session == nullptr) return;
    ++connection;
    closing = false;
    session.reset();
    if (observer == nullptr) return;
    observer->OnDisconnected(why);
    simulation.After(kReconnectAfter, [self = shared_from_this()] { self->Connect(); });
  }

  Simulation& simulation;
  StreamAcceptor& acceptor;
  const NetworkOptions options;
  std::mt19937_64 random;
  uint64_t* const lost_count;
  SenderLinkObserver* observer = nullptr;
  std::unique_ptr<ReceiverSession> session;
  uint64_t connection = 0;
  bool closing = false;  // by the receiving end
  Time cut_from{0};
  Time cut_until{0};
};

SimulatedLink::SimulatedLink(Simulation* simulation, StreamAcceptor* acceptor,
                             const NetworkOptions& options, uint64_t seed, uint64_t* lost)
    : state_(std::make_shared<State>(simulation, acceptor, options, seed, lost)) {}

SimulatedLink::~SimulatedLink() { Stop(std::chrono::nanoseconds::zero()); }

void SimulatedLink::Start(SenderLinkObserver* observer) {
  state_->observer = observer;
  state_->simulation.After(Duration(0), [state = state_] { state->Connect(); });
}

bool SimulatedLink::Write(const SenderMessage& message) {
  if (state_->session == nullptr) return false;
  state_->Send([message](State& state) {
    if (state.closing) return;
    const absl::Status status = state.session->OnMessage(message);
    if (!status.ok()) state.Close(status);
  });
  return true;
}

void SimulatedLink::Reset() {
  state_->simulation.After(Duration(0), [state = state_, of = state_->connection] {
    if (of == state->connection) state->Disconnect(absl::UnavailableError("reset by the sender"));
  });
}

void SimulatedLink::Stop(std::chrono::nanoseconds) {
  state_->observer = nullptr;
  state_->Disconnect(absl::CancelledError("stopped"));
}

}  // namespace kvatlas
