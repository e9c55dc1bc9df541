// Options and statistics of `ZmqIngest`: where an engine's ZMQ stream comes from, how it is read,
// and how it is doing.
//
// A source that no flag of this process names may come from any client that reaches its port: it is
// tcp://HOST:PORT, connects, and only to addresses that `ZmqIngestOptions::addresses` contains.
// ipc:// would delete the file at its path, a bind would open a port, and any address would reach
// what only this machine may reach.
//
// With a `server_key` both sockets speak CURVE: what arrives was sent by the engine that has the
// key, and no other can read it. vLLM and SGLang speak it only behind a proxy or with the publisher
// library.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ZMQ_SOURCE_H_
#define KVATLAS_INDEXER_KV_EVENTS_ZMQ_SOURCE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/base/resolve_host.h"
#include "indexer/kv_events/stream_tracker.h"
#include "indexer/net/connection_watch.h"
#include "indexer/security/curve.h"

namespace kvatlas {

// A socket that engines dial, each with a topic of its own (`zmq_shared.h`).
struct ZmqSharedSocket {
  std::string endpoint;       // bound, as flags name it: tcp://0.0.0.0:5557
  std::string topic = "kv@";  // prefix
  // Called for a topic that has messages and no stream, in a lane's thread: it must neither wait
  // nor call the ingest. A source that binds this endpoint, with that topic, takes it.
  std::function<void(const std::string& endpoint, const std::string& topic)> on_topic;
};

struct ZmqIngestOptions {
  uint32_t io_threads = 1;      // libzmq's, that read sockets
  uint32_t decode_threads = 0;  // lanes, at most 256; 0: as many as cores, at most 8
  // Held back in a lane for replays; beyond, streams that wait for one are not read.
  size_t lane_bytes_max = 64 << 20;
  // An engine that sends a larger one is disconnected, and one of which more is held that no
  // message was taken of.
  size_t message_bytes_max = 64 << 20;
  // Per socket, messages: what waits beyond it waits in the engine, whose own bound is the one to
  // be set.
  int receive_hwm = 256;
  Duration heartbeat =
      std::chrono::seconds(5);  // ZMTP ping; a peer silent for three of them is gone
  Duration reconnect_min = std::chrono::milliseconds(100);
  Duration reconnect_max = std::chrono::seconds(5);
  TrackerOptions tracker;  // `can_replay` is filled in
  const Clock* clock = &Clock::Real();
  EngineAddresses addresses;           // of sources that no flag names
  HostResolver resolve = ResolveHost;  // of their names
  // Own keys, for engines that admit known listeners alone; without some, a pair is made at the
  // start.
  std::optional<CurveKeys> curve = std::nullopt;
  // Events in clear may cross a network. Else only loopback may do without a `server_key`, where
  // this process has an access policy;
  // where it has none, a warning says so.
  bool plain_engines = false;
  std::vector<ZmqSharedSocket> shared = {};
  // A libzmq context to share, since inproc:// reaches no other. Not owned.
  void* zmq_context = nullptr;
};

struct ZmqSource {
  std::string worker_name = {};      // for logs
  uint32_t rank = 0;                 // registered data-parallel rank
  std::string endpoint = {};         // tcp://host:port, tcp://[v6]:port, ipc://path, inproc://name
  std::string replay_endpoint = {};  // empty: the engine cannot replay
  std::string topic = {};            // prefix; empty: everything
  // The engine's public key of CURVE, for both endpoints; empty: its events come in clear.
  std::string server_key = {};
  bool bind = false;        // engines that dial out
  bool from_flags = false;  // trusted: any endpoint, and `bind`
};

enum class ListenerStatus : uint8_t { kPending, kActive, kPaused, kFailed };
std::string_view ListenerStatusName(ListenerStatus status);  // "active"

struct ZmqStreamStats {
  ListenerStatus status = ListenerStatus::kPending;
  std::string last_error;
  // How the connection to the endpoint is, and why it is not there; and that to the replay
  // endpoint, since its first request.
  ConnectionStatus connection;
  std::optional<ConnectionStatus> replay;
  bool connected = false;  // a peer is there (`bind`: at least one)
  bool arrived = false;    // and the worker knows what that means for what it holds
  Duration silent{0};      // since the last message; since the start when there was none
  uint64_t bytes = 0;
  uint64_t bad_frames = 0;   // not [topic, number, payload]
  uint64_t undecodable = 0;  // payloads that are no batch
  double lag_ms =
      0;  // engine's clock to applied, of the last batch that named a time; may be negative
  uint64_t queued_bytes = 0;  // held back for a replay
  TrackerStats tracker;
};

// Says what is wrong with an endpoint, in the words of Dynamo's indexer: "invalid ZMQ endpoint `E`:
// missing scheme".
absl::Status CheckZmqEndpoint(std::string_view endpoint);

// Both endpoints, and what a source may be that no flag names. INVALID_ARGUMENT, saying what is
// accepted.
absl::Status CheckZmqSource(const ZmqSource& source, const EngineAddresses& addresses);

// FAILED_PRECONDITION, with the remedy: its events would cross a network in clear.
absl::Status CheckEncrypted(const ZmqSource& source);

// The address of tcp://HOST:PORT alone: none of libzmq's wildcards, devices and source addresses.
// INVALID_ARGUMENT.
absl::StatusOr<Address> TcpAddressOf(std::string_view endpoint);

using ZmqStreamId = uint64_t;

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ZMQ_SOURCE_H_
