// A gRPC call with messages both ways, over HTTP/2 in clear, whose bytes are read and written by an
// I/O loop's own thread instead of gRPC's.
//
//   Open ─▶ resolve, connect ─▶ preface, SETTINGS, HEADERS ─▶ Send … / on_message … ─▶ on_over
//
// gRPC's client hands each message from thread to thread, three times a question; here a question
// costs one write, and its answer one read. Little of HTTP/2 (RFC 9113) is needed: there is one
// stream, its headers are constant, and its response headers need not be read. That the stream
// ended says enough; a caller that wants the reason asks by gRPC.
//
// *Truth*: messages arrive whole and in order. `on_over` comes once, unless `Close` came before; no
// message after it.
// *Threads*: the loop's. `on_message` and `on_over` are not called from within `Open`, `Send` or
// `Close`.
// *Bounds*: a message of `kMessageBytesMax`; of what is sent the peer's flow control holds back the
// rest: `unsent`.
// *Lifetime*: kept by its pending operations, and its events with it: they hold no owner of it.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_HTTP2_STREAM_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_HTTP2_STREAM_H_

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"

namespace kvatlas {

class Http2Stream : public std::enable_shared_from_this<Http2Stream> {
 public:
  static constexpr size_t kMessageBytesMax = 16 << 20;  // as in GrpcChannelOptions

  struct Events {
    std::function<void(std::string_view message)> on_message;  // valid until it returns
    std::function<void(const absl::Status& why)> on_over;
  };

  // `method`: "/package.Service/Method".
  Http2Stream(boost::asio::io_context* io, Address peer, std::string method, Events events);
  ~Http2Stream();

  Http2Stream(const Http2Stream&) = delete;
  Http2Stream& operator=(const Http2Stream&) = delete;

  void Open();
  // Before it is connected it waits.
  void Send(std::string_view message);
  // Bytes that the peer does not take yet.
  size_t unsent() const { return unsent_.size() + out_.size(); }
  // When the peer was last heard; 0: it was never connected.
  Time heard() const { return heard_; }
  // The peer wants no new calls: what was sent is answered, and nothing more should be.
  bool is_leaving() const { return leaving_; }
  void Close();

 private:
  using Error = boost::system::error_code;

  struct Frame {
    uint8_t type = 0;
    uint8_t flags = 0;
    uint32_t stream = 0;
    std::string_view payload;
  };

  void OnConnected(Error error);
  void Begin();
  void Pump();
  void Write();
  void Read();
  void OnRead(Error error, size_t bytes);
  bool TakeFrame();
  void OnFrame(const Frame& frame);
  void OnData(const Frame& frame);
  void OnSettings(const Frame& frame);
  void TakeMessages();
  void GiveWindow(size_t bytes);
  void Over(const std::string& why);

  const Address peer_;
  const std::string method_;
  Events events_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::ip::tcp::resolver resolver_;
  bool begun_ = false;
  bool over_ = false;
  bool leaving_ = false;
  bool writing_ = false;
  Time heard_{0};

  std::string unsent_;  // messages with their lengths, not framed yet
  std::string out_;     // frames to be written
  std::string being_written_;
  int64_t window_ = 0;         // of the connection, to send
  int64_t stream_window_ = 0;  // of the stream
  int64_t initial_window_ = 0;

  std::unique_ptr<char[]> in_;  // what was read and not parsed is [in_from_, in_to_)
  size_t in_from_ = 0;
  size_t in_to_ = 0;
  std::string messages_;  // of DATA frames, what is not a whole message yet
  size_t taken_ = 0;      // bytes that the peer has not been given back
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_HTTP2_STREAM_H_
