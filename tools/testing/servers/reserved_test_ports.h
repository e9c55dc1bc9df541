// How does a test keep the ports of a process that has ended and is to come back? Otherwise the
// system gives them to the next process that asks for any free port, in a test that runs beside it.
//
// A held port has a socket that is bound to it and does not listen: the system gives it to no other
// process, connections to it are refused, and a process that names it can listen on it (ours,
// redis-server and libzmq set SO_REUSEADDR).
//
// *Threads*: one. *Bounds*: IPv4; a descriptor for each port.
//
// Example:
//   ReservedTestPorts held;
//   Kill(leaf);
//   held.Hold(leaf_address);   // until `held` ends
//   Start(leaf, "--grpc=" + leaf_address.ToString());

#ifndef KVATLAS_TOOLS_TESTING_SERVERS_RESERVED_TEST_PORTS_H_
#define KVATLAS_TOOLS_TESTING_SERVERS_RESERVED_TEST_PORTS_H_

#include <map>
#include <string>

#include "indexer/base/address.h"

namespace kvatlas {

class ReservedTestPorts {
 public:
  ReservedTestPorts() = default;
  ~ReservedTestPorts();
  ReservedTestPorts(const ReservedTestPorts&) = delete;
  ReservedTestPorts& operator=(const ReservedTestPorts&) = delete;

  // A port of 127.0.0.1 that was free, for a process that is told where to listen. Aborts when
  // there is none.
  Address HoldAny();
  // False: it cannot be held, as another process listens on it already, or it is no address of
  // IPv4.
  bool Hold(const Address& address);

 private:
  std::map<std::string, int> sockets_;  // by address
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_SERVERS_RESERVED_TEST_PORTS_H_
