// A blocking client on asynchronous operations: `State::Finish` runs the io_context until the step
// that was just started is done. Time-outs come from the stream's timer, and Cancel ends the step
// by a task that it posts from another thread.

#include "indexer/net/http_fetch.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/system/system_error.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/net/http_client_stream.h"
#include "indexer/security/security.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr double kSecondsMax = 1e9;  // more than any rate's bytes are waited for

absl::Status Failed(std::string_view what, const error_code& error) {
  return absl::UnavailableError(std::string(what) + ": " + error.message());
}

}  // namespace

// A missing scheme means http. A trailing '/' is dropped from the base: paths that are appended
// begin with one.
absl::StatusOr<HttpUrl> HttpUrl::Parse(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  constexpr std::string_view kTlsScheme = "https://";
  std::string_view rest = url;
  HttpUrl parsed;
  parsed.tls = rest.starts_with(kTlsScheme);
  if (parsed.tls) {
    rest.remove_prefix(kTlsScheme.size());
  } else if (rest.starts_with(kScheme)) {
    rest.remove_prefix(kScheme.size());
  } else if (rest.find("://") != std::string_view::npos) {
    return absl::InvalidArgumentError("\"" + std::string(url) +
                                      "\" is neither http:// nor https://");
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  parsed.base = rest.substr(slash);
  while (!parsed.base.empty() && parsed.base.back() == '/') parsed.base.pop_back();
  const std::string host(rest.substr(0, slash));
  const bool has_port = host.find(':', host.rfind(']') + 1) != std::string::npos;
  absl::StatusOr<Address> address =
      Address::Parse(has_port ? host : host + (parsed.tls ? ":443" : ":80"));
  if (!address.ok()) return address.status();
  parsed.address = *std::move(address);
  return parsed;
}

// One fetch. All of it belongs to the thread that fetches, except `cancelled` and posts to
// `context`.
struct HttpFetch::State {
  explicit State(const HttpFetchOptions& given) : options(given) {}

  // Runs the step that was just started. `error` is written by its handler, which is why it is read
  // only after `run`.
  absl::Status Finish(std::string_view what, const error_code& error) {
    context.restart();
    context.run();
    if (cancelled.load()) return absl::CancelledError("fetching was cancelled");
    return error ? Failed(what, error) : absl::OkStatus();
  }

  // The part of `given` that is left of `total_timeout`. Zero makes the step time out at once.
  Duration Within(Duration given) const {
    return std::max(Duration::zero(), std::min(given, until - Clock::Real().Now()));
  }

  // Why a step of the body timed out.
  // Which of the three bounds has passed: the whole fetch, the least rate, or the time of one
  // piece.
  absl::Status TooSlow() const {
    if (Within(Duration::max()) == Duration::zero())
      return absl::UnavailableError("the answer was not complete in time");
    if (SlowFor() <= Duration::zero())
      return absl::UnavailableError("the answer is slower than " +
                                    std::to_string(options.bytes_per_s_min) + " bytes a second");
    return absl::UnavailableError("no more of the answer came in time");
  }

  // How much longer its body may be waited for at the least rate.
  Duration SlowFor() const {
    const double seconds =
        static_cast<double>(body_bytes) / static_cast<double>(options.bytes_per_s_min);
    return options.slow_for +
           std::chrono::duration_cast<Duration>(
               std::chrono::duration<double>(std::min(seconds, kSecondsMax))) -
           waited;
  }

  // Resolves (blocking, without a time-out of its own), connects, and with TLS shakes hands and
  // checks the server's names.
  absl::Status Connect(const Address& address, bool tls) {
    stream.emplace(context);
    asio::ip::tcp::resolver resolver(context);
    error_code error;
    const auto found = resolver.resolve(address.host, std::to_string(address.port), error);
    if (error) return Failed("resolving " + address.ToString(), error);
    stream->expires_after(Within(options.connect_timeout));
    stream->tcp().async_connect(found, [&](const error_code& e, const auto&) { error = e; });
    if (absl::Status bad = Finish("connecting to " + address.ToString(), error); !bad.ok() || !tls)
      return bad;
    if (options.tls_client != nullptr) {
      stream->PrepareTls(address, options.tls_client.get());
    } else if (absl::Status bad = stream->PrepareTls(address, Security::OfProcess().get());
               !bad.ok()) {
      return bad;
    }
    stream->expires_after(Within(options.connect_timeout));
    stream->async_handshake([&](const error_code& e) { error = e; });
    if (absl::Status bad = Finish("TLS with " + address.ToString(), error); !bad.ok()) return bad;
    return stream->CheckServer(address);
  }

  // Sends the request and reads the header. "connection: close": each fetch has a connection of its
  // own.
  absl::Status Ask(const Address& address, const std::string& target) {
    http::request<http::empty_body> request(http::verb::get, target, 11);
    request.set(http::field::host, address.ToString());
    request.set(http::field::connection, "close");
    if (!options.authorization.empty())
      request.set(http::field::authorization, options.authorization);
    error_code error;
    stream->expires_after(Within(options.read_timeout));
    http::async_write(*stream, request, [&](const error_code& e, size_t) { error = e; });
    if (absl::Status bad = Finish("asking " + address.ToString(), error); !bad.ok()) return bad;
    parser.emplace();
    parser->body_limit(options.body_bytes_max);
    stream->expires_after(Within(options.read_timeout));
    http::async_read_header(*stream, buffer, *parser,
                            [&](const error_code& e, size_t) { error = e; });
    return Finish("waiting for " + address.ToString(), error);
  }

  const HttpFetchOptions options;
  Time until{0};       // of the whole fetch
  Duration waited{0};  // for the body
  uint64_t body_bytes = 0;
  std::atomic<bool> cancelled{false};
  asio::io_context context;
  std::optional<HttpClientStream> stream;
  beast::flat_buffer buffer;
  std::optional<http::response_parser<http::buffer_body>> parser;
};

HttpFetch::HttpFetch(const HttpFetchOptions& options) : state_(std::make_unique<State>(options)) {}
HttpFetch::~HttpFetch() = default;

// Replaces the former stream and parser; the clocks of the fetch begin here.
absl::StatusOr<int> HttpFetch::Get(std::string_view url, std::string_view path_and_query) {
  State& state = *state_;
  const absl::StatusOr<HttpUrl> parsed = HttpUrl::Parse(url);
  if (!parsed.ok()) return parsed.status();
  state.parser.reset();
  state.buffer.clear();
  state.until = Clock::Real().Now() + state.options.total_timeout;
  state.waited = Duration::zero();
  state.body_bytes = 0;
  // The first socket of a context opens its epoll and timer, for whose want Asio throws.
  try {
    if (absl::Status bad = state.Connect(parsed->address, parsed->tls); !bad.ok()) return bad;
  } catch (const boost::system::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("fetching cannot begin: ", error.what()));
  }
  const std::string target = parsed->base + std::string(path_and_query);
  if (absl::Status bad = state.Ask(parsed->address, target); !bad.ok()) return bad;
  return static_cast<int>(state.parser->get().result_int());
}

// Reads at least one byte, unless the body is complete. Each step waits for the shortest of
// `read_timeout`, the whole fetch, and the least rate. `need_buffer` is Beast's word for "`to` is
// full", no error. A step may bring only framing and no bytes; then the loop goes on.
absl::StatusOr<size_t> HttpFetch::Read(char* to, size_t size) {
  State& state = *state_;
  if (!state.parser.has_value()) return absl::FailedPreconditionError("nothing was asked");
  while (!state.parser->is_done()) {
    auto& body = state.parser->get().body();
    body.data = to;
    body.size = size;
    body.more = true;
    error_code error;
    const Time asked = Clock::Real().Now();
    const Duration patience = std::min(state.Within(state.options.read_timeout), state.SlowFor());
    if (patience <= Duration::zero()) return state.TooSlow();
    state.stream->expires_after(patience);
    http::async_read_some(*state.stream, state.buffer, *state.parser,
                          [&](const error_code& e, size_t) { error = e; });
    const absl::Status status = state.Finish("reading an answer", error);
    const size_t got = size - body.size;
    state.waited += Clock::Real().Now() - asked;
    state.body_bytes += got;
    if (error == beast::error::timeout && !state.cancelled.load()) return state.TooSlow();
    if (!status.ok() && error != http::error::need_buffer) return status;
    if (state.cancelled.load()) return status;
    if (got > 0) return got;
  }
  return size_t{0};
}

std::function<absl::StatusOr<size_t>(char*, size_t)> HttpFetch::Body() {
  return [this](char* to, size_t size) { return Read(to, size); };
}

absl::StatusOr<std::string> HttpFetch::ReadAll(size_t bytes_max) {
  std::string all;
  char piece[16 << 10];
  for (;;) {
    const absl::StatusOr<size_t> got = Read(piece, sizeof piece);
    if (!got.ok()) return got.status();
    if (*got == 0) return all;
    if (all.size() + *got > bytes_max)
      return absl::ResourceExhaustedError("an answer of more than " + std::to_string(bytes_max) +
                                          " bytes");
    all.append(piece, *got);
  }
}

// The flag makes every later step fail; the post ends the present one. A post that runs only in a
// later step meets a stream that is cancelled anyway.
void HttpFetch::Cancel() {
  State& state = *state_;
  state.cancelled = true;
  asio::post(state.context, [&state] {
    if (state.stream.has_value()) state.stream->cancel();
  });
}

}  // namespace kvatlas
