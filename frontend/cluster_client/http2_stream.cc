// A gRPC client call in about the least HTTP/2 that a server takes: frames and HPACK literals
// above, the connection below. Two directions, each in the loop's thread:
//   out: `Send` → `unsent_` → `Pump` (frames, as the windows allow) → `out_` → `Write`
//   in:  `Read` → `OnRead` → `TakeFrame` → `OnFrame` → `OnData` → `TakeMessages` → `on_message`

#include "frontend/cluster_client/http2_stream.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/base/big_endian.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// The preface is the first bytes of a client (RFC 9113, 3.4). Our windows are large, so that a
// peer's answers never wait for this side, and are given back in steps of `kGiveBackBytes`.
// `kOurStream` is the first stream of a client, and here the only one.
constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHeadBytes = 9;
constexpr size_t kFrameBytesMax = 16 << 10;  // of either side: no other is agreed on
constexpr int64_t kWindowAtFirst = 65535;    // until SETTINGS say otherwise
constexpr uint32_t kOurWindow = 8 << 20;     // of the stream and of the connection
constexpr size_t kGiveBackBytes = 1 << 20;
constexpr size_t kInputBytes = 64 << 10;
constexpr size_t kPrefixBytes = 5;  // of a message: compressed or not, its length
constexpr uint32_t kOurStream = 1;
// A whole frame always fits, so `Read` always has room after all whole frames were taken.
static_assert(kInputBytes > kFrameHeadBytes + kFrameBytesMax);

// RFC 9113, 6. PRIORITY, PUSH_PROMISE and CONTINUATION are ignored like unknown types: no header
// block is ever decoded.
enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
};
constexpr uint8_t kEndStream = 1;  // of DATA and HEADERS
constexpr uint8_t kAck = 1;        // of SETTINGS and PING
constexpr uint8_t kEndHeaders = 4;
constexpr uint8_t kPadded = 8;

// RFC 9113, 6.5.2. A table of size 0 keeps the peer from using a dynamic one, which would have to
// be followed.
constexpr uint16_t kHeaderTableSize = 1;
constexpr uint16_t kEnablePush = 2;
constexpr uint16_t kInitialWindowSize = 4;

// REQUIRES: `payload` has at most `kFrameBytesMax` bytes. The length has 24 bits.
void AppendFrame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload,
                 std::string* to) {
  const auto size = static_cast<uint32_t>(payload.size());
  *to += static_cast<char>(size >> 16);
  *to += BigEndian(static_cast<uint16_t>(size));
  *to += static_cast<char>(type);
  *to += static_cast<char>(flags);
  *to += BigEndian(stream);
  *to += payload;
}

void AppendSetting(uint16_t name, uint32_t value, std::string* to) {
  *to += BigEndian(name);
  *to += BigEndian(value);
}

// ---- HPACK (RFC 7541), of constant headers ----
//
// Literals that are not to be indexed, without Huffman codes.

// RFC 7541, 5.1: the value in the low `prefix_bits` of a byte whose other bits are `first`; a
// larger one goes on in bytes of 7 bits, the lowest first.
void AppendInteger(uint8_t first, uint8_t prefix_bits, size_t value, std::string* to) {
  const size_t most = (size_t{1} << prefix_bits) - 1;
  if (value < most) {
    *to += static_cast<char>(first | value);
    return;
  }
  *to += static_cast<char>(first | most);
  for (value -= most; value >= 128; value >>= 7) *to += static_cast<char>(128 | (value & 127));
  *to += static_cast<char>(value);
}

void AppendText(std::string_view text, std::string* to) {
  AppendInteger(0, 7, text.size(), to);
  *to += text;
}

// `name`: its place in the table that both sides know.
void AppendHeader(size_t name, std::string_view value, std::string* to) {
  AppendInteger(0, 4, name, to);
  AppendText(value, to);
}

// The request headers of a gRPC call. Method and scheme stand whole in the static table (0x80: an
// indexed field); the others take their name from it.
std::string HeaderBlock(const std::string& authority, const std::string& method) {
  constexpr size_t kAuthority = 1, kPost = 3, kPath = 4, kHttp = 6, kContentType = 31,
                   kUserAgent = 58;
  std::string block;
  AppendInteger(0x80, 7, kPost, &block);
  AppendInteger(0x80, 7, kHttp, &block);
  AppendHeader(kPath, method, &block);
  AppendHeader(kAuthority, authority, &block);
  block += '\0';  // a name that stands in no table
  AppendText("te", &block);
  AppendText("trailers", &block);
  AppendHeader(kContentType, "application/grpc", &block);
  AppendHeader(kUserAgent, "kvatlas-loop", &block);
  return block;
}

}  // namespace

Http2Stream::Http2Stream(asio::io_context* io, Address peer, std::string method, Events events)
    : peer_(std::move(peer)),
      method_(std::move(method)),
      events_(std::move(events)),
      socket_(*io),
      resolver_(*io) {}

Http2Stream::~Http2Stream() = default;

// Resolves and connects; `Close` in between is seen by `over_`.
void Http2Stream::Open() {
  resolver_.async_resolve(
      peer_.host, std::to_string(peer_.port), tcp::resolver::numeric_service,
      [self = shared_from_this()](Error error, const tcp::resolver::results_type& found) {
        if (self->over_) return;
        if (error) return self->Over(error.message());
        asio::async_connect(self->socket_, found, [self](Error failed, const tcp::endpoint&) {
          self->OnConnected(failed);
        });
      });
}

// Non-blocking, so that `Write` may try at once; no delay, since each message is one write.
void Http2Stream::OnConnected(Error error) {
  if (over_) return;
  if (error) return Over(error.message());
  Error ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  Begin();
  in_ = std::make_unique<char[]>(kInputBytes);
  Read();
}

// Sends all that opens the call in one write: preface, SETTINGS, a larger window for the connection
// (SETTINGS only sets that of streams), HEADERS, and whatever was sent before. The peer's SETTINGS
// are not waited for: until they come, its windows are those of the RFC.
void Http2Stream::Begin() {
  begun_ = true;
  heard_ = Clock::Real().Now();
  window_ = stream_window_ = initial_window_ = kWindowAtFirst;
  out_ += kPreface;
  std::string settings;
  AppendSetting(kHeaderTableSize, 0, &settings);
  AppendSetting(kEnablePush, 0, &settings);
  AppendSetting(kInitialWindowSize, kOurWindow, &settings);
  AppendFrame(kSettings, 0, 0, settings, &out_);
  const std::string window = BigEndian(static_cast<uint32_t>(kOurWindow - kWindowAtFirst));
  AppendFrame(kWindowUpdate, 0, 0, window, &out_);
  AppendFrame(kHeaders, kEndHeaders, kOurStream, HeaderBlock(peer_.ToString(), method_), &out_);
  Pump();
}

// gRPC's framing: a byte for compression, four for the length.
void Http2Stream::Send(std::string_view message) {
  if (over_) return;
  unsent_ += '\0';  // not compressed
  unsent_ += BigEndian(static_cast<uint32_t>(message.size()));
  unsent_ += message;
  if (begun_) Pump();
}

// Makes DATA frames of `unsent_`, as much as both windows allow. Called whenever either grows: by
// `Send`, WINDOW_UPDATE or SETTINGS. A window may be negative after SETTINGS (RFC 9113, 6.9.2);
// then nothing is sent.
void Http2Stream::Pump() {
  size_t sent = 0;
  while (sent < unsent_.size() && window_ > 0 && stream_window_ > 0) {
    const size_t bytes =
        std::min({unsent_.size() - sent, kFrameBytesMax, static_cast<size_t>(window_),
                  static_cast<size_t>(stream_window_)});
    AppendFrame(kData, 0, kOurStream, std::string_view(unsent_).substr(sent, bytes), &out_);
    sent += bytes;
    window_ -= static_cast<int64_t>(bytes);
    stream_window_ -= static_cast<int64_t>(bytes);
  }
  unsent_.erase(0, sent);
  Write();
}

// Writes `out_` at once, as far as the socket takes it; the rest asynchronously, from
// `being_written_`, while new frames gather in `out_`. So there is one write at a time, in order.
void Http2Stream::Write() {
  if (writing_ || out_.empty()) return;
  Error error;
  const size_t written = socket_.write_some(asio::buffer(out_), error);
  if (!error && written == out_.size()) return out_.clear();
  if (error && error != asio::error::would_block && error != asio::error::try_again) {
    // An error is left to the pending read, which fails too: `on_over` must not come from within
    // `Send`.
    return out_.clear();
  }
  writing_ = true;
  being_written_.assign(out_, error ? 0 : written);
  out_.clear();
  asio::async_write(socket_, asio::buffer(being_written_),
                    [self = shared_from_this()](Error failed, size_t) {
                      self->writing_ = false;
                      if (!failed && !self->over_) self->Write();
                    });
}

// Moves what is not parsed to the front, less than a frame, and reads behind it. One read is always
// pending while the stream lives.
void Http2Stream::Read() {
  if (in_from_ > 0) {
    std::memmove(in_.get(), in_.get() + in_from_, in_to_ - in_from_);
    in_to_ -= in_from_;
    in_from_ = 0;
  }
  socket_.async_read_some(
      asio::buffer(in_.get() + in_to_, kInputBytes - in_to_),
      [self = shared_from_this()](Error error, size_t bytes) { self->OnRead(error, bytes); });
}

// Takes all whole frames, and writes once for all answers to them (acknowledgements, windows)
// before the next read.
void Http2Stream::OnRead(Error error, size_t bytes) {
  if (over_) return;
  if (error) return Over(error == asio::error::eof ? "the connection was closed" : error.message());
  heard_ = Clock::Real().Now();
  in_to_ += bytes;
  while (!over_ && TakeFrame()) {
  }
  if (over_) return;
  Write();
  Read();
}

// Takes one frame from the input. False: it is not all there yet, or the stream is over.
bool Http2Stream::TakeFrame() {
  const std::string_view input(in_.get() + in_from_, in_to_ - in_from_);
  if (input.size() < kFrameHeadBytes) return false;
  const size_t size = FromBigEndian(input.substr(0, 3));
  if (size > kFrameBytesMax) {
    Over(absl::StrCat("a frame of ", size, " bytes; at most ", kFrameBytesMax, " are taken"));
    return false;
  }
  if (input.size() < kFrameHeadBytes + size) return false;
  in_from_ += kFrameHeadBytes + size;
  OnFrame({.type = static_cast<uint8_t>(input[3]),
           .flags = static_cast<uint8_t>(input[4]),
           .stream = static_cast<uint32_t>(FromBigEndian(input.substr(5, 4))) & 0x7fffffff,
           .payload = input.substr(kFrameHeadBytes, size)});
  return true;
}

void Http2Stream::OnFrame(const Frame& frame) {
  switch (frame.type) {
    case kData:
      return OnData(frame);
    case kHeaders:
      if ((frame.flags & kEndStream) != 0) Over("the peer ended the stream");
      return;
    case kReset:
      return Over("the peer reset the stream");
    case kSettings:
      return OnSettings(frame);
    case kPing:
      if ((frame.flags & kAck) == 0) AppendFrame(kPing, kAck, 0, frame.payload, &out_);
      return;
    case kGoAway:
      leaving_ = true;
      return;
    case kWindowUpdate: {
      if (frame.payload.size() != 4) return Over("a malformed WINDOW_UPDATE");
      const uint64_t more = FromBigEndian(frame.payload) & 0x7fffffff;
      // Frames of other streams cannot come: there is one.
      (frame.stream == 0 ? window_ : stream_window_) += more;
      return Pump();
    }
    default:
      return;  // of no meaning here, as the RFC wants
  }
}

// The padding counts against the window as the data does, so the whole payload is given back.
void Http2Stream::OnData(const Frame& frame) {
  std::string_view data = frame.payload;
  if ((frame.flags & kPadded) != 0) {
    const size_t padding = data.empty() ? 0 : static_cast<unsigned char>(data[0]) + size_t{1};
    if (data.empty() || padding > data.size()) return Over("malformed padding");
    data = data.substr(1, data.size() - padding);
  }
  GiveWindow(frame.payload.size());
  messages_ += data;
  TakeMessages();
  if (!over_ && (frame.flags & kEndStream) != 0) Over("the peer ended the stream");
}

// A new initial window changes the window of the open stream by the difference (RFC 9113, 6.9.2).
// Other settings ask for nothing that is done here; a peer may not allow frames below
// `kFrameBytesMax`.
void Http2Stream::OnSettings(const Frame& frame) {
  if ((frame.flags & kAck) != 0) return;
  if (frame.payload.size() % 6 != 0) return Over("malformed SETTINGS");
  for (std::string_view rest = frame.payload; !rest.empty(); rest.remove_prefix(6)) {
    if (FromBigEndian(rest.substr(0, 2)) != kInitialWindowSize) continue;
    const auto window = static_cast<int64_t>(FromBigEndian(rest.substr(2, 4)));
    stream_window_ += window - initial_window_;
    initial_window_ = window;
  }
  AppendFrame(kSettings, kAck, 0, {}, &out_);
  Pump();
}

// Whole messages go to `on_message` as views into `messages_`, whose front is erased once, at the
// end. A callback may `Close`: the loop sees `over_`.
void Http2Stream::TakeMessages() {
  size_t from = 0;
  while (!over_ && messages_.size() - from >= kPrefixBytes) {
    const std::string_view rest = std::string_view(messages_).substr(from);
    const size_t size = FromBigEndian(rest.substr(1, 4));
    if (rest[0] != 0) return Over("a compressed message");
    if (size > kMessageBytesMax) return Over("a message that is too large");
    if (rest.size() < kPrefixBytes + size) break;
    from += kPrefixBytes + size;
    events_.on_message(rest.substr(kPrefixBytes, size));
  }
  messages_.erase(0, from);
}

// In steps, so that not every frame costs two WINDOW_UPDATEs.
void Http2Stream::GiveWindow(size_t bytes) {
  taken_ += bytes;
  if (taken_ < kGiveBackBytes) return;
  const std::string window = BigEndian(static_cast<uint32_t>(std::exchange(taken_, 0)));
  AppendFrame(kWindowUpdate, 0, 0, window, &out_);
  AppendFrame(kWindowUpdate, 0, kOurStream, window, &out_);
}

// `events_` may hold the caller's state: the callback is moved out first, and called last.
void Http2Stream::Over(const std::string& why) {
  if (over_) return;
  const auto on_over = std::move(events_.on_over);
  Close();
  on_over(absl::UnavailableError(absl::StrCat(peer_.ToString(), ": ", why)));
}

// Pending operations end with an error, and see `over_`. `events_` are kept until the last of them
// is gone.
void Http2Stream::Close() {
  over_ = true;
  Error ignored;
  resolver_.cancel();
  socket_.close(ignored);
}

}  // namespace kvatlas
