// A hello that any receiver takes.

#ifndef KVATLAS_INDEXER_TRANSPORT_HELLO_TEST_UTIL_H_
#define KVATLAS_INDEXER_TRANSPORT_HELLO_TEST_UTIL_H_

#include <string>

#include "indexer/stream/messages.h"

namespace kvatlas {

inline Hello HelloOf(const std::string& holder) {
  return {.holder = {holder, 0, ""},
          .domain = {"m", ""},
          .block_size = 16,
          .contract_id = "c",
          .schedule = "",
          .epoch = 1,
          .instance_id = 7,
          .first_kept = 1,
          .last_sent = 0,
          .starting = true,
          .address = "",
          .labels = {}};
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_HELLO_TEST_UTIL_H_
