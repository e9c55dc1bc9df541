// The bytes of a connection that the kernel may hold while its reader reads nothing.
//
// Example:
//   socket.set_option(asio::socket_base::receive_buffer_size(64 << 10));  // and so it never grows
//   EXPECT_LE(bytes_sent, TcpSendBufferMax() + 2 * (64 << 10));

#ifndef KVATLAS_INDEXER_NET_TCP_BUFFERS_TEST_UTIL_H_
#define KVATLAS_INDEXER_NET_TCP_BUFFERS_TEST_UTIL_H_

#include <cstddef>
#include <fstream>
#include <string>

namespace kvatlas {

// The largest size that the system lets such buffers grow to, in bytes.
inline size_t TcpBufferMax(const std::string& setting) {
  std::ifstream file("/proc/sys/net/ipv4/" + setting);
  size_t least = 0, usual = 0, most = 0;
  file >> least >> usual >> most;
  return most;
}
inline size_t TcpSendBufferMax() { return TcpBufferMax("tcp_wmem"); }
inline size_t TcpReceiveBufferMax() { return TcpBufferMax("tcp_rmem"); }

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_TCP_BUFFERS_TEST_UTIL_H_
