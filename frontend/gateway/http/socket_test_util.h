// A client and an engine for tests, on plain blocking sockets: the exact bytes, without an HTTP
// library in between.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_SOCKET_TEST_UTIL_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_SOCKET_TEST_UTIL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/address.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

// *Threads*: one sends while another reads.
class TestSocket {
 public:
  explicit TestSocket(int fd) : fd_(fd) {}
  explicit TestSocket(const Address& to);
  ~TestSocket();
  TestSocket(const TestSocket&) = delete;
  TestSocket& operator=(const TestSocket&) = delete;

  // False: the other side is gone.
  bool Send(std::string_view bytes);
  // Up to and with `end`; what there is when the other side ends before.
  std::string ReadUntil(std::string_view end);
  std::string Read(size_t bytes);
  std::string ReadToEnd();
  // A request or an answer: head, and a body of `content-length` or in chunks, as they came.
  std::string ReadMessage();
  void Close();  // with a reset, if something was not read
  void Shutdown();

 private:
  bool More();
  std::atomic<int> fd_;
  std::string ahead_;
};

// The last request that an engine got, for the thread of the test.
class LastMessage {
 public:
  // False: the other side is gone; what came before stays.
  bool ReadFrom(TestSocket& connection) {
    std::string message = connection.ReadMessage();
    if (message.empty()) return false;
    MutexLock lock(&mutex_);
    text_ = std::move(message);
    return true;
  }
  std::string text() {
    MutexLock lock(&mutex_);
    return text_;
  }

 private:
  Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

// Serves each connection with a function, on a thread of its own.
class TestEngine {
 public:
  using Serve = std::function<void(TestSocket& connection)>;
  // `host`: an IPv4 address of this machine.
  explicit TestEngine(Serve serve, const std::string& host = "127.0.0.1");
  ~TestEngine();  // closes all connections, and waits for `serve` to notice

  std::string url() const { return "http://" + address_.ToString(); }
  const Address& address() const { return address_; }
  size_t connections();

 private:
  void Accept();

  const Serve serve_;
  Address address_;
  int listen_ = -1;
  std::thread accepts_;
  Mutex mutex_;
  std::list<TestSocket> sockets_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

// The body of a message whose body came in chunks.
std::string Dechunked(std::string_view message);
std::string BodyOf(std::string_view message);

// A port without a listener, as long as the process lives.
Address ClosedPort();

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_SOCKET_TEST_UTIL_H_
